// SPDX-License-Identifier: MIT
// explain_launch: why the runtime refused a launch, with the limit and the value.
#ifndef GIWA_GRID_EXPLAIN_LAUNCH_CUH
#define GIWA_GRID_EXPLAIN_LAUNCH_CUH

#include <giwa/base/arch.hpp>
#include <giwa/device/properties.hpp>
#include <giwa/grid/occupancy.hpp>

namespace giwa::inline GIWA_ABI::detail::inline GIWA_ARCH_TAG {

inline dim3 to_dim3(const dimensions& d) {
  return dim3(static_cast<unsigned>(d.x), static_cast<unsigned>(d.y), static_cast<unsigned>(d.z));
}

/// Returns why the runtime refused a launch. Called only after a refusal, so a launch that succeeds pays nothing for it. An
/// error that is not about this launch (an earlier kernel failed, there is no driver) is returned unchanged.
inline status explain_launch(const status& plain, const void* kernel, const launch_config& c) {
  cudaFuncAttributes f{};
  if (const status s = consume(cudaFuncGetAttributes(&f, kernel), "kernel"); !s.ok())
    return s.cuda_code == plain.cuda_code ? plain : s;
  const result<int> device = current_device();
  if (!device.ok()) return device.state;
  const auto ask = [&](cudaDeviceAttr which) { return attribute(device.value, which).value; };

  if (c.block.count() > f.maxThreadsPerBlock)
    return status::invalid("block", "the registers or launch bounds of this kernel do not allow so many threads",
                           bound::at_most, f.maxThreadsPerBlock, c.block.count());
  const int64 shared_limit = ask(cudaDevAttrMaxSharedMemoryPerBlockOptin) - static_cast<int64>(f.sharedSizeBytes);
  if (c.shared_bytes > shared_limit)
    return status::invalid("shared_bytes", "a block of this GPU does not have so much shared memory", bound::at_most,
                           shared_limit, c.shared_bytes);
  if (c.cluster.count() > 1 && ask(cudaDevAttrClusterLaunch) == 0)
    return {status_code::not_supported,
            bound::none,
            plain.cuda_code,
            "clusters need a GPU of compute capability 9.0 or newer",
            "cluster",
            0,
            0};
  if (c.cluster.count() > 1) {
    cudaLaunchConfig_t query{};
    query.blockDim = to_dim3(c.block);
    query.gridDim = to_dim3(c.grid);
    query.dynamicSmemBytes = static_cast<stdlib::size_t>(c.shared_bytes);
    int largest = 0;
    if (consume(cudaOccupancyMaxPotentialClusterSize(&largest, kernel, &query)).ok() && c.cluster.count() > largest)
      return status::invalid("cluster", "this GPU cannot run so many blocks of this kernel in one cluster",
                             bound::at_most, largest, c.cluster.count());
  }
  if (c.cooperative) {
    if (ask(cudaDevAttrCooperativeLaunch) == 0)
      return {status_code::not_supported,
              bound::none,
              plain.cuda_code,
              "this GPU does not support cooperative launches",
              "cooperative",
              0,
              0};
    const result<int> blocks = resident_blocks(kernel, static_cast<int>(c.block.count()), c.shared_bytes);
    const int64 resident = blocks.value * ask(cudaDevAttrMultiProcessorCount);
    if (blocks.ok() && c.grid.count() > resident)
      return status::invalid("grid", "this GPU cannot run so many blocks of a cooperative grid at once", bound::at_most,
                             resident, c.grid.count());
  }
  return plain;
}

}  // namespace giwa::inline GIWA_ABI::detail::inline GIWA_ARCH_TAG

#endif
