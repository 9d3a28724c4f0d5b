// SPDX-License-Identifier: MIT
// Another GPU, which a test takes the present one for: its limits, in the place of what the CUDA runtime answers.
#ifndef GIWA_TEST_SUPPORT_ANOTHER_GPU_HPP
#define GIWA_TEST_SUPPORT_ANOTHER_GPU_HPP

namespace giwa_test {

/// The limits of a GPU that decide what giwa launches there. CUDA C++ Programming Guide, "Technical specifications per compute
/// capability"; the multiprocessors are those of one such GPU, no more than an H100 has.
struct gpu_limits {
  int capability;       // 86 for 8.6; 0: the present GPU
  int block_kb;         // shared memory of a block, static and dynamic
  int shared_kb;        // shared memory of a multiprocessor
  int reserved_kb;      // of it, what CUDA takes for each block
  int threads, blocks;  // resident on a multiprocessor
  int multiprocessors;
};
inline constexpr gpu_limits known_gpus[] = {
    {75, 64, 64, 0, 1024, 16, 40},      // T4
    {80, 163, 164, 1, 2048, 32, 108},   // A100
    {86, 99, 100, 1, 1536, 16, 72},     // A10
    {87, 163, 164, 1, 1536, 16, 16},    // AGX Orin
    {89, 99, 100, 1, 1536, 24, 58},     // L4
    {100, 227, 228, 1, 2048, 32, 132},  // B200 has 148
    {120, 99, 100, 1, 1536, 24, 48},    // GeForce RTX 5070
};

/// The GPU that GIWA_TEST_AS names, as in GIWA_TEST_AS=8.6. Ends the program where the table has none of that name.
const gpu_limits& gpu_of_test();

/// The number of multiprocessors that launches of this thread find; 0: those that the GPU has.
extern thread_local int processors_of_test;

}  // namespace giwa_test

#endif
