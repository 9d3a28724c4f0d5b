// SPDX-License-Identifier: MIT
// The program into which the objects of all header tests are linked; to link is the test.
int main() {}
