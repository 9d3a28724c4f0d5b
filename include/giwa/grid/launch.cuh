// SPDX-License-Identifier: MIT
// Launching: any kernel or op with any configuration, at the cost of a bare launch, and a reason when it is refused.
#ifndef GIWA_GRID_LAUNCH_CUH
#define GIWA_GRID_LAUNCH_CUH

#include <giwa/base/arch.hpp>
#include <giwa/device/properties.hpp>
#include <giwa/grid/device_block.cuh>
#include <giwa/grid/occupancy.hpp>
#include <giwa/grid/op.hpp>

namespace giwa::inline GIWA_ABI {

// All that launches carries the architecture list in its name, see base/arch.hpp.
namespace detail::inline GIWA_ARCH_TAG {

inline dim3 to_dim3(const dimensions& d) {
  return dim3(static_cast<unsigned>(d.x), static_cast<unsigned>(d.y), static_cast<unsigned>(d.z));
}

/// Why the runtime refused a launch. Asked only after it has: a launch that succeeds pays for none of this. An error that
/// is not about this launch (a kernel before it has failed, there is no driver) is passed on as it is.
inline status explain_launch(const status& plain, const void* kernel, const launch_config& c) {
  cudaFuncAttributes f{};
  if (const status s = consume(cudaFuncGetAttributes(&f, kernel), "kernel"); !s.ok())
    return s.cuda_code == plain.cuda_code ? plain : s;
  const result<int> device = current_device();
  if (!device.ok()) return device.state;
  const auto ask = [&](cudaDeviceAttr which) { return attribute(device.value, which).value; };

  if (c.block.count() > f.maxThreadsPerBlock)
    return status::invalid("block", "a block has more threads than this kernel's registers or launch bounds allow",
                           bound::at_most, f.maxThreadsPerBlock, c.block.count());
  const int64 shared_limit = ask(cudaDevAttrMaxSharedMemoryPerBlockOptin) - static_cast<int64>(f.sharedSizeBytes);
  if (c.shared_bytes > shared_limit)
    return status::invalid("shared_bytes", "a block asks for more shared memory than this GPU gives a block",
                           bound::at_most, shared_limit, c.shared_bytes);
  if (c.cluster.count() > 1 && ask(cudaDevAttrClusterLaunch) == 0)
    return {status_code::not_supported,
            bound::none,
            plain.cuda_code,
            "a cluster needs a GPU of compute capability 9.0 or newer",
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
      return status::invalid("cluster", "a cluster has more blocks than this GPU can run together for this kernel",
                             bound::at_most, largest, c.cluster.count());
  }
  if (c.cooperative) {
    if (ask(cudaDevAttrCooperativeLaunch) == 0)
      return {status_code::not_supported,
              bound::none,
              plain.cuda_code,
              "this GPU has no cooperative launch",
              "cooperative",
              0,
              0};
    const result<int> blocks = resident_blocks(kernel, static_cast<int>(c.block.count()), c.shared_bytes);
    const int64 resident = blocks.value * ask(cudaDevAttrMultiProcessorCount);
    if (blocks.ok() && c.grid.count() > resident)
      return status::invalid("grid", "a cooperative grid has more blocks than this GPU can run at once", bound::at_most,
                             resident, c.grid.count());
  }
  return plain;
}

/// Launches with parameters that are already in place. Asynchronous, allocates nothing, may be captured in a graph.
inline status launch_with(cudaStream_t s, const launch_config& c, const void* kernel, void** parameters) {
  if (const status state = validate(c); !state.ok()) return state;
  if (const result<bool> fits = allow_shared_bytes(kernel, c.shared_bytes); !fits.value)
    return fits.ok() ? explain_launch(to_status(cudaErrorInvalidValue), kernel, c) : fits.state;
  cudaError_t error = cudaSuccess;
  const bool clustered = c.cluster.count() > 1;
  if (!clustered && !c.cooperative && !c.dependent) {
    error = cudaLaunchKernel(kernel, to_dim3(c.grid), to_dim3(c.block), parameters,
                             static_cast<stdlib::size_t>(c.shared_bytes), s);
  } else {
    cudaLaunchAttribute attributes[3] = {};
    unsigned count = 0;
    if (clustered) {
      attributes[count].id = cudaLaunchAttributeClusterDimension;
      attributes[count++].val.clusterDim = {to_dim3(c.cluster).x, to_dim3(c.cluster).y, to_dim3(c.cluster).z};
    }
    if (c.cooperative) {
      attributes[count].id = cudaLaunchAttributeCooperative;
      attributes[count++].val.cooperative = 1;
    }
    if (c.dependent) {
      attributes[count].id = cudaLaunchAttributeProgrammaticStreamSerialization;
      attributes[count++].val.programmaticStreamSerializationAllowed = 1;
    }
    constexpr int64 portable_cluster = 8;  // more needs the kernel's consent as well
    if (c.cluster.count() > portable_cluster)
      error = cudaFuncSetAttribute(kernel, cudaFuncAttributeNonPortableClusterSizeAllowed, 1);
    cudaLaunchConfig_t config{};
    config.gridDim = to_dim3(c.grid);
    config.blockDim = to_dim3(c.block);
    config.dynamicSmemBytes = static_cast<stdlib::size_t>(c.shared_bytes);
    config.stream = s;
    config.attrs = attributes;
    config.numAttrs = count;
    if (error == cudaSuccess) error = cudaLaunchKernelExC(&config, kernel, parameters);
  }
  return error == cudaSuccess ? status{} : explain_launch(consume(error), kernel, c);
}

/// Whether an argument keeps its value as the kernel's parameter; only integers can fail.
template <class Parameter, class Argument>
constexpr bool keeps_value(const Argument& argument) {
  if constexpr (stdlib::integral<Parameter> && stdlib::integral<Argument> && !stdlib::same_as<Parameter, bool>) {
    const auto converted = static_cast<Parameter>(argument);
    if constexpr (stdlib::signed_integral<Parameter> == stdlib::signed_integral<Argument>)
      return static_cast<Argument>(converted) == argument;
    else if constexpr (stdlib::signed_integral<Argument>)  // by cases, as nvcc warns of an unsigned number below zero
      return static_cast<Argument>(converted) == argument && argument >= 0;
    else
      return static_cast<Argument>(converted) == argument && converted >= 0;
  } else {
    return true;
  }
}

/// The one kernel that every op runs in.
template <class Op>
__global__ void __launch_bounds__(Op::max_threads, Op::min_blocks)
    entry(const __grid_constant__ Op op, const __grid_constant__ typename Op::params params) {
  extern __shared__ __align__(1024) unsigned char giwa_shared[];  // 1024: what 128-byte swizzled tiles of TMA ask for
  op(device_block{}, params, *reinterpret_cast<typename Op::shared_storage*>(giwa_shared));
}

/// The dynamic shared memory of an op's block.
template <class Op>
inline constexpr int64 shared_bytes_of =
    stdlib::is_empty_v<typename Op::shared_storage> ? 0 : static_cast<int64>(sizeof(typename Op::shared_storage));

/// The largest shared memory of a block on any GPU: 227 KB, compute capability 9.0 and 10.0.
inline constexpr int64 largest_shared_bytes = 227 << 10;

template <int64 Bytes, int64 Limit>
constexpr void require_shared_memory() {
  static_assert(
      Bytes <= Limit,
      "giwa::launch: the op's shared_storage (first number, bytes) is larger than the shared memory that any GPU "
      "gives a block (second number): choose smaller tiles or fewer stages.");
}

}  // namespace detail::inline GIWA_ARCH_TAG

inline namespace GIWA_ARCH_TAG {

/// Launches a `__global__` function: `launch(stream, {.grid = 80, .block = 256}, saxpy, n, a, x, y)`.
/// Arguments convert to the kernel's parameters as in a call, and an integer that does not fit is an error.
/// Asynchronous on `s`, which must be a stream of the current device; allocates nothing; may be captured in a graph.
/// Errors: invalid_argument with the limit and the value seen, not_supported, no_driver, no_device, no_kernel_image,
/// cuda_error; what happens later inside the kernel is reported by synchronize().
template <class... Parameters, class... Arguments>
status launch(cudaStream_t s, const launch_config& config, void (*kernel)(Parameters...),
              const Arguments&... arguments) {
  if constexpr (sizeof...(Parameters) != sizeof...(Arguments)) {
    static_assert(detail::always_false<Parameters..., Arguments...>,
                  "giwa::launch: the kernel takes another number of arguments.");
    return {};
  } else {
    static_assert((stdlib::convertible_to<const Arguments&, Parameters> && ...),
                  "giwa::launch: an argument does not convert to the kernel's parameter in its place.");
    static_assert(((!stdlib::integral<Parameters> || !stdlib::floating_point<Arguments>)&&...),
                  "giwa::launch: a floating-point argument would be cut to an integer parameter; convert it yourself.");
    if (!(detail::keeps_value<Parameters>(arguments) && ...))
      return status::invalid("arguments", "an integer does not fit in the kernel's parameter in its place");
    if (kernel == nullptr) return status::invalid("kernel", "the pointer to the kernel is null");
    const auto call = [&](Parameters... parameters) {
      // One more element, because a kernel may have no parameter and an array must have one.
      void* pointers[] = {const_cast<void*>(static_cast<const volatile void*>(&parameters))..., nullptr};
      return detail::launch_with(s, config, reinterpret_cast<const void*>(kernel), pointers);
    };
    return call(static_cast<Parameters>(arguments)...);
  }
}

/// Launches an op (see grid/op.hpp) on a stream, as launch() does a kernel; the same call with giwa::host in the
/// stream's place runs it on the CPU.
template <class Op>
status launch(cudaStream_t s, const launch_config& config, const Op& op, const typename Op::params& params) {
  detail::require_op<Op>();
  constexpr int64 bytes = detail::shared_bytes_of<Op>;
  detail::require_shared_memory<bytes, detail::largest_shared_bytes>();
  static_assert(alignof(typename Op::shared_storage) <= 1024,
                "giwa::launch: shared_storage is aligned to 1024 bytes at most.");
  if (const status state = detail::validate_op<Op>(config); !state.ok()) return state;
  launch_config c = config;
  c.shared_bytes = bytes;
  const auto kernel = &detail::entry<Op>;
  void* parameters[] = {const_cast<Op*>(&op), const_cast<typename Op::params*>(&params)};
  return detail::launch_with(s, c, reinterpret_cast<const void*>(kernel), parameters);
}

/// How many blocks of an op the current GPU runs at once, `cluster` of them together: the grid of an op that shares its work
/// out among the blocks it has. Launches nothing; grants the op its shared memory, as launch() does.
template <class Op>
result<int64> blocks_at_once(int cluster = 1) {
  detail::require_op<Op>();
  constexpr int64 bytes = detail::shared_bytes_of<Op>;
  const auto kernel = reinterpret_cast<const void*>(&detail::entry<Op>);
  const result<int> on_one = detail::resident_blocks(kernel, Op::max_threads, bytes);
  if (!on_one.ok()) return {0, on_one.state};
  if (cluster == 1) {
    const result<int> device = current_device();
    if (!device.ok()) return {0, device.state};
    const result<int64> processors = detail::attribute(device.value, cudaDevAttrMultiProcessorCount);
    return {on_one.value * processors.value, processors.state};
  }
  if (const status s = validate({.grid = cluster, .block = Op::max_threads, .cluster = cluster}); !s.ok())
    return {0, s};
  cudaLaunchAttribute attribute{};
  attribute.id = cudaLaunchAttributeClusterDimension;
  attribute.val.clusterDim = {static_cast<unsigned>(cluster), 1, 1};
  cudaLaunchConfig_t config{};
  config.gridDim = dim3(static_cast<unsigned>(cluster));
  config.blockDim = dim3(Op::max_threads);
  config.dynamicSmemBytes = static_cast<stdlib::size_t>(bytes);
  config.attrs = &attribute;
  config.numAttrs = 1;
  int clusters = 0;
  const status s = detail::consume(cudaOccupancyMaxActiveClusters(&clusters, kernel, &config), "cluster");
  return {s.ok() ? int64{clusters} * cluster : 0, s};
}

}  // namespace GIWA_ARCH_TAG
}  // namespace giwa::inline GIWA_ABI

#endif
