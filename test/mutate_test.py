#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""The faults that mutate.py finds in a small header, and what a whole run says of them."""
import contextlib
import io
import sys
import tempfile
import unittest
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent))
import mutate

HEADER = '''// a + b < c
#define TWICE(x) ((x) + 2)
#if defined(__CUDA_ARCH__)
inline int on_device(int a) { return a + 3; }
#else
inline int on_host(int a) { return a - 4; }
#endif
template <int N>
concept small = N < 5;
static_assert(small<4>, "a < b");
GIWA_DEVICE inline int device_only(int a, int b) {
  if (a < b) return b + 6;
  return a;
}
inline int sum(const int* x, int count) {
  int total = 0;
  for (int i = 0; i < count; ++i) total += x[i];
  return total;
}
inline bool touches(int first, int last) {
  return first <= last && last != 7;  // "x" - 1
}
inline status check(int n) {
  if (n > 8) return status{"too many: n > 8"};
  fence_of(n);
  return {};
}
'''

TREE = {
    "include/giwa/sums.hpp": '''inline int sum(const int* x, int count) {
  int total = 0;
  for (int i = 0; i < count; ++i) total += x[i];
  return total;
}
inline int larger(int a, int b) { return a > b ? a : b; }
template <class T>
int unused(T a) { return a.none < 3; }
#if !defined(GIWA_DOXYGEN)  // calls that do not compile, and the reason
template <class T>
int larger(T, T*) {
  static_assert(sizeof(T) > 100, "not a pointer");
  return 0;
}
#endif
''',
    "test/compile_fail/larger_of_a_pointer.cpp": '''// EXPECT: not a pointer
// SPDX-License-Identifier: MIT
#include <giwa/sums.hpp>
#if defined(GIWA_COMPILE_FAIL)
int i = larger(1, &i);
#endif
''',
    "test/support/main.cpp": "int failures(); int main() { return failures(); }",
    "test/host/sums_test.cpp": '''#include <giwa/sums.hpp>
int failures() { const int x[3] = {1, 2, 4}; return (sum(x, 2) != 3) + (larger(2, 1) != 2) + (larger(1, 2) != 2); }
''',
}


KERNEL = '''inline int on_host(int a) { return a + 3; }
struct kernel {
  GIWA_DEVICE void run(int tiles) {
    for (int i = 0; i < tiles; ++i) {
      if (i > 0) full[i].wait(phase);
      multiply();
      release(stage ^ 1);
    }
  }
  GIWA_HOST_DEVICE int both(int a) { return a + 4; }
};
'''


class of_a_kernel(unittest.TestCase):
    lines = {mutate.difference(KERNEL, f)[::2] for f in mutate.faults(KERNEL, on_gpu=True)}

    def test_only_device_code_is_changed(self):
        self.assertEqual({number for number, _ in self.lines}, {4, 5, 6, 7})

    def test_waits_order_and_loops(self):
        for line, new in ((4, "for (int i = 0; i < (tiles) - 1; ++i) {"), (5, "if (i > 0) ;"), (7, ";"), (7, "release(stage ^ 0);"),
                          (6, "release(stage ^ 1); multiply();")):
            self.assertIn((line, new), self.lines)

    def test_every_kernel_has_a_program(self):
        root = Path(mutate.__file__).resolve().parent.parent
        for _, programs in mutate.GPU_PROGRAMS:
            for name in (program.partition(":")[0] for program in programs.split()):
                self.assertTrue((root / (f"test/gpu/{name}.cu" if "/" in name else f"test/fuzz/gpu_{name}.cu")).exists(), name)


class of_a_header(unittest.TestCase):
    faults = mutate.faults(HEADER)
    lines = {mutate.difference(HEADER, f) for f in faults}

    def changed(self, line):
        return {new for number, _, new in self.lines if number == line}

    def test_only_host_code_is_changed(self):
        self.assertEqual({number for number, _, _ in self.lines}, {6, 16, 17, 18, 21, 24, 25})

    def test_operators_constants_bounds(self):
        loop = "for (int i = 0; i < count; ++i) total += x[i];"
        for old, new in (("i < count", "i <= count"), ("i = 0", "i = 1"), ("+=", "-=")):
            self.assertIn(loop.replace(old, new), self.changed(17))
        self.assertIn("return (total) + 1;", self.changed(18))
        found = self.changed(21)
        self.assertIn("return first < last && last != 7; // \"x\" - 1", found)
        self.assertIn("return first <= last || last != 7; // \"x\" - 1", found)
        self.assertIn("return first <= last && last == 7; // \"x\" - 1", found)

    def test_arguments_refusals_waits(self):
        self.assertIn(";", self.changed(24))
        self.assertIn(";", self.changed(25))
        self.assertIn("f(b, a);", {mutate.difference("x = f(a, b);\n", f)[2].removeprefix("x = ")
                                   for f in mutate.faults("x = f(a, b);\n")})
        self.assertNotIn("arguments", {f.kind for f in mutate.faults("int f(int a, long b);\n")})

    def test_lines_and_order(self):
        self.assertEqual({mutate.difference(HEADER, f)[0] for f in mutate.faults(HEADER, "", {17, 21})}, {17, 21})
        self.assertEqual(self.faults, mutate.faults(HEADER))


class of_a_tree(unittest.TestCase):
    def test_run_and_continue(self):
        with tempfile.TemporaryDirectory() as folder:
            root = Path(folder)
            for name, text in TREE.items():
                (root / name).parent.mkdir(parents=True, exist_ok=True)
                (root / name).write_text(text)

            def run(*more):
                said = io.StringIO()
                with contextlib.redirect_stdout(said):
                    mutate.main(["--tree", folder, "--count", "100", "sums.hpp", *more])
                return said.getvalue()
            said = run()
            self.assertIn("killed    include/giwa/sums.hpp:3 operator, by sums_test.cpp fails", said)
            self.assertRegex(said, r"sums.hpp:6 \(operator, 1 tests\)\n.*\n  \+ .*a >= b")  # equal
            self.assertIn("killed    include/giwa/sums.hpp:11 arguments, by compile_fail/larger_of_a_pointer.cpp refusal", said)
            self.assertRegex(said, r"sums.hpp:8 ")  # never instantiated
            self.assertRegex(said, r"\| all \| \d+ \| \d+ \| \d+ \| \d+ % \|")
            self.assertEqual((root / "include/giwa/sums.hpp").read_text(), TREE["include/giwa/sums.hpp"])
            again = run()  # nothing is built: the results are kept
            self.assertNotIn("killed    ", again)
            self.assertEqual(said.split("Not noticed")[1], again.split("Not noticed")[1])
            # A test that asks more notices more.
            test = root / "test/host/sums_test.cpp"
            test.write_text("struct of { int none; };\n" + test.read_text().replace("(sum", "(unused(of{3}) != 0) + (sum"))
            self.assertIn("killed    include/giwa/sums.hpp:8 operator", run("--again", "--kind", "operator"))


if __name__ == "__main__":
    unittest.main()
