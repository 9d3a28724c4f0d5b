// SPDX-License-Identifier: MIT
// launch_config: the shape of a launch, and the limits that hold on every CUDA GPU.
#ifndef GIWA_GRID_LAUNCH_CONFIG_HPP
#define GIWA_GRID_LAUNCH_CONFIG_HPP

#include <giwa/base/status.hpp>
#include <giwa/numeric/integer.hpp>

namespace giwa::inline GIWA_ABI {

/// Counts along x, y and z, in CUDA's order. They have 64 bits, so that a count that is too large is reported and not
/// truncated.
struct dimensions {
  int64 x = 1;  ///< The fastest dimension.
  int64 y = 1;  ///< The second dimension.
  int64 z = 1;  ///< The slowest dimension.

  /// Takes one to three counts.
  GIWA_HOST_DEVICE constexpr dimensions(int64 x_ = 1, int64 y_ = 1, int64 z_ = 1) : x(x_), y(y_), z(z_) {}
  /// Takes a dim3, or any type with x, y and z.
  template <class Dim3>
    requires requires(const Dim3& d) { d.x + d.y + d.z; }
  GIWA_HOST_DEVICE constexpr dimensions(const Dim3& d) : x(d.x), y(d.y), z(d.z) {}

  /// Returns the product, which must fit in 64 bits.
  GIWA_HOST_DEVICE constexpr int64 count() const { return x * y * z; }
  /// Returns whether all three counts are equal.
  GIWA_HOST_DEVICE friend constexpr bool operator==(const dimensions& a, const dimensions& b) {
    return a.x == b.x && a.y == b.y && a.z == b.z;
  }
};

/// The shape of a launch: `{.grid = 80, .block = 256}`, `{.grid = {8, 4}, .block = {32, 8}, .shared_bytes = 65536}`.
struct launch_config {
  dimensions grid{};         ///< The number of blocks.
  dimensions block{};        ///< The number of threads of a block.
  int64 shared_bytes = 0;    ///< Dynamic shared memory of a block, in bytes. More than 48 KB needs no further call.
  dimensions cluster{};      ///< The number of blocks of a cluster; each divides that of the grid. Capability 9.0.
  bool cooperative = false;  ///< All blocks run at once, so that the grid can synchronise; refused if they cannot.
  /// Programmatic dependent launch, compute capability 9.0: the kernel may start before the previous kernel of the stream
  /// ends, after that kernel allows it. It calls arch::wait_for_previous_kernel before it touches memory that the previous
  /// kernel reads or writes (arch/dependent_launch.cuh). Code for older GPUs, which cannot wait, starts as any other.
  bool dependent = false;
};

/// Limits of compute capability 7.5 and newer (CUDA C++ Programming Guide, "Technical specifications per compute
/// capability"). A GPU or kernel may allow less; launch() then reports the smaller limit.
namespace launch_limits {
/// The most of each; warp_threads is the size of a warp.
///@{
inline constexpr int64 block_threads = 1024, block_x = 1024, block_y = 1024, block_z = 64;
inline constexpr int64 grid_x = 2147483647, grid_y = 65535, grid_z = 65535;
inline constexpr int64 cluster_blocks = 16;  ///< 8 on every GPU of capability 9.0; 16 on those that allow it
inline constexpr int64 warp_threads = 32;
///@}
}  // namespace launch_limits

/// Returns the first error of a configuration that launch() refuses on every GPU, with the limit and the value seen. A grid
/// of 0 blocks in some dimension is valid, though CUDA refuses it: launch() then does nothing.
GIWA_HOST_DEVICE constexpr status validate(const launch_config& c) {
  namespace limits = launch_limits;
  struct rule {
    int64 value, limit;
    const char *argument, *message;
    int64 least = 1;
  };
  const rule rules[] = {
      {c.grid.x, limits::grid_x, "grid.x", "the number of blocks is out of range", 0},
      {c.grid.y, limits::grid_y, "grid.y", "the number of blocks is out of range; put the longest dimension on x", 0},
      {c.grid.z, limits::grid_z, "grid.z", "the number of blocks is out of range; put the longest dimension on x", 0},
      {c.block.x, limits::block_x, "block.x", "the number of threads is out of range"},
      {c.block.y, limits::block_y, "block.y", "the number of threads is out of range"},
      {c.block.z, limits::block_z, "block.z", "the number of threads is out of range"},
      {c.cluster.x, limits::cluster_blocks, "cluster.x", "the number of blocks in a cluster is out of range"},
      {c.cluster.y, limits::cluster_blocks, "cluster.y", "the number of blocks in a cluster is out of range"},
      {c.cluster.z, limits::cluster_blocks, "cluster.z", "the number of blocks in a cluster is out of range"},
  };
  for (const rule& r : rules) {
    if (r.value < r.least) return status::invalid(r.argument, r.message, bound::at_least, r.least, r.value);
    if (r.value > r.limit) return status::invalid(r.argument, r.message, bound::at_most, r.limit, r.value);
  }
  if (c.block.count() > limits::block_threads)
    return status::invalid("block", "the number of threads is out of range", bound::at_most, limits::block_threads,
                           c.block.count());
  if (c.cluster.count() > limits::cluster_blocks)
    return status::invalid("cluster", "the number of blocks in a cluster is out of range", bound::at_most,
                           limits::cluster_blocks, c.cluster.count());
  if (c.grid.x % c.cluster.x != 0 || c.grid.y % c.cluster.y != 0 || c.grid.z % c.cluster.z != 0)
    return status::invalid("cluster", "the grid must be a multiple of the cluster in every dimension");
  if (c.shared_bytes < 0)
    return status::invalid("shared_bytes", "a size must not be negative", bound::at_least, 0, c.shared_bytes);
  return {};
}

}  // namespace giwa::inline GIWA_ABI

#endif
