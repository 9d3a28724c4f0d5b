// SPDX-License-Identifier: MIT
// launch: runs a kernel or an op with any configuration at the cost of a bare launch, and says why a launch is refused.
#ifndef GIWA_GRID_LAUNCH_CUH
#define GIWA_GRID_LAUNCH_CUH

#include <giwa/base/arch.hpp>
#include <giwa/device/properties.hpp>
#include <giwa/grid/device_block.cuh>
#include <giwa/grid/explain_launch.cuh>
#include <giwa/grid/occupancy.hpp>
#include <giwa/grid/op.hpp>

namespace giwa::inline GIWA_ABI {

// Every function that launches carries the architecture list in its name, see base/arch.hpp.
namespace detail::inline GIWA_ARCH_TAG {

/// Raises the kernel's limit of shared memory on the current GPU if necessary. Fails where the GPU has too little.
inline status allow_launch(const launch_config& c, const void* kernel) {
  const result<bool> fits = allow_shared_bytes(kernel, c.shared_bytes);
  if (fits.value || !fits.ok()) return fits.state;
  return explain_launch(to_status(cudaErrorInvalidValue), kernel, c);
}

/// Launches a kernel with pointers to its parameters, after validate() and allow_launch(). Asynchronous; allocates
/// nothing; may be captured in a graph. A grid without blocks launches nothing, and adds no node to a graph.
inline status enqueue(cudaStream_t s, const launch_config& c, const void* kernel, void** parameters) {
  if (c.grid.count() == 0) return {};
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
    constexpr int64 portable_cluster = 8;  // a larger one also needs a function attribute
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

/// Returns the configuration, dependent only where the kernel can wait for the one before it: that takes code for 9.0, on a newer
/// GPU too (arch/dependent_launch.cuh). Asks the driver, for dependent launches alone.
inline result<launch_config> for_code_of(const void* kernel, const launch_config& config) {
  launch_config c = config;
  if (!c.dependent || c.grid.count() == 0) return {c, {}};
  const result<kernel_attributes> a = attributes_of(kernel);
  c.dependent = a.value.ptx >= 90;
  return {c, a.state};
}

/// Checks and launches.
inline status launch_with(cudaStream_t s, const launch_config& c, const void* kernel, void** parameters) {
  if (const status state = validate(c); !state.ok()) return state;
  if (c.grid.count() == 0) return {};
  if (const status state = allow_launch(c, kernel); !state.ok()) return state;
  const result<launch_config> checked = for_code_of(kernel, c);
  return checked.ok() ? enqueue(s, checked.value, kernel, parameters) : checked.state;
}

/// Returns whether an argument keeps its value when converted to the kernel's parameter. Only integers can fail.
template <class Parameter, class Argument>
constexpr bool keeps_value(const Argument& argument) {
  if constexpr (stdlib::integral<Parameter> && stdlib::integral<Argument> && !stdlib::same_as<Parameter, bool>) {
    const auto converted = static_cast<Parameter>(argument);
    if constexpr (stdlib::signed_integral<Parameter> == stdlib::signed_integral<Argument>)
      return static_cast<Argument>(converted) == argument;
    else if constexpr (stdlib::signed_integral<Argument>)  // separate cases: nvcc warns of unsigned >= 0
      return static_cast<Argument>(converted) == argument && argument >= 0;
    else
      return static_cast<Argument>(converted) == argument && converted >= 0;
  } else {
    return true;
  }
}

/// The kernel that runs every op.
template <class Op>
__global__ void __launch_bounds__(Op::max_threads, Op::min_blocks)
    entry(const __grid_constant__ Op op, const __grid_constant__ typename Op::params params) {
  extern __shared__ __align__(1024) unsigned char giwa_shared[];  // 1024: tiles of TMA with a 128-byte swizzle
  op(device_block{}, params, *reinterpret_cast<typename Op::shared_storage*>(giwa_shared));
}

/// The dynamic shared memory of a block of an op, in bytes.
template <class Op>
inline constexpr int64 shared_bytes_of =
    stdlib::is_empty_v<typename Op::shared_storage> ? 0 : static_cast<int64>(sizeof(typename Op::shared_storage));

/// The most shared memory of a block on any GPU: 227 KB, on compute capability 9.0 and 10.0.
inline constexpr int64 largest_shared_bytes = 227 << 10;

template <int64 Bytes, int64 Limit>
constexpr void require_shared_memory() {
  static_assert(
      Bytes <= Limit,
      "giwa::launch: the shared_storage of the op (first number, bytes) is larger than the shared memory of a block on "
      "any GPU (second number): choose smaller tiles or fewer stages.");
}

/// The two halves of launch() for an op: checks that depend on the configuration and the GPU alone, which also raise the
/// limit of shared memory, and the launch itself. A prepared call does the first half once.
///@{
template <class Op>
status allow_op(const launch_config& config) {
  require_op<Op>();
  constexpr int64 bytes = shared_bytes_of<Op>;
  require_shared_memory<bytes, largest_shared_bytes>();
  static_assert(alignof(typename Op::shared_storage) <= 1024,
                "giwa::launch: give shared_storage an alignment of at most 1024 bytes.");
  if (const status state = validate_op<Op>(config); !state.ok()) return state;
  if (config.grid.count() == 0) return {};  // enqueue_op() launches nothing
  launch_config c = config;
  c.shared_bytes = bytes;
  return allow_launch(c, reinterpret_cast<const void*>(&entry<Op>));
}
template <class Op>
status enqueue_op(cudaStream_t s, const launch_config& config, const Op& op, const typename Op::params& params) {
  launch_config c = config;
  c.shared_bytes = shared_bytes_of<Op>;
  void* parameters[] = {const_cast<Op*>(&op), const_cast<typename Op::params*>(&params)};
  return enqueue(s, c, reinterpret_cast<const void*>(&entry<Op>), parameters);
}
///@}

}  // namespace detail::inline GIWA_ARCH_TAG

inline namespace GIWA_ARCH_TAG {

/// Launches a `__global__` function: `launch(stream, {.grid = 80, .block = 256}, saxpy, n, a, x, y)`.
///
/// Parameters:
///   - s: a stream of the current device; the call is asynchronous, allocates nothing, and may be captured in a graph
///   - config: grid, block, shared memory, cluster (launch_config). A grid of 0 blocks launches nothing
///   - kernel: the `__global__` function
///   - arguments: convert to the kernel's parameters as in a call; an integer that does not fit is an error
///
/// Errors: invalid_argument with the limit and the value seen, not_supported, no_driver, no_device, no_kernel_image,
/// cuda_error. synchronize() reports errors inside the kernel.
template <class... Parameters, class... Arguments>
status launch(cudaStream_t s, const launch_config& config, void (*kernel)(Parameters...),
              const Arguments&... arguments) {
  if constexpr (sizeof...(Parameters) != sizeof...(Arguments)) {
    static_assert(detail::always_false<Parameters..., Arguments...>,
                  "giwa::launch: pass one argument for each parameter of the kernel.");
    return {};
  } else {
    static_assert((stdlib::convertible_to<const Arguments&, Parameters> && ...),
                  "giwa::launch: each argument must convert to the kernel's parameter at its position.");
    static_assert(((!stdlib::integral<Parameters> || !stdlib::floating_point<Arguments>)&&...),
                  "giwa::launch: a floating-point argument would be truncated to an integer parameter: convert it "
                  "with static_cast.");
    if (!(detail::keeps_value<Parameters>(arguments) && ...))
      return status::invalid("arguments", "an integer must fit in the type of the kernel's parameter");
    if (kernel == nullptr) return status::invalid("kernel", "the kernel must not be null");
    const auto call = [&](Parameters... parameters) {
      // The last element is there because a kernel may have no parameters and an array must have an element.
      void* pointers[] = {const_cast<void*>(static_cast<const volatile void*>(&parameters))..., nullptr};
      return detail::launch_with(s, config, reinterpret_cast<const void*>(kernel), pointers);
    };
    return call(static_cast<Parameters>(arguments)...);
  }
}

/// Launches an op (see kernel_op) on a stream: `launch(stream, {.grid = 80, .block = 256}, op{}, {a, b})`. With giwa::host
/// instead of the stream the same call runs the op on the CPU. Capture and errors are as for a kernel.
///
/// Parameters:
///   - s: a stream of the current device
///   - config: a block must be a multiple of 32 threads and at most Op::max_threads. The shared memory is the op's
///     shared_storage: leave config.shared_bytes out
///   - op: the kernel
///   - params: its parameters, Op::params
template <class Op>
status launch(cudaStream_t s, const launch_config& config, const Op& op, const typename Op::params& params) {
  if (const status state = detail::allow_op<Op>(config); !state.ok()) return state;
  const auto c = detail::for_code_of(reinterpret_cast<const void*>(&detail::entry<Op>), config);
  return c.ok() ? detail::enqueue_op(s, c.value, op, params) : c.state;
}

/// Returns how many blocks of an op the current GPU runs at once, in clusters of `cluster` blocks: the grid of a persistent
/// op, whose blocks share the work. Launches nothing. Raises the shared-memory limit of the kernel as launch() does.
/// Errors: `cluster` is out of range, and those of the runtime.
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

#if !defined(GIWA_DOXYGEN)  // a call that does not compile, and the reason
template <class Op, class... Arguments>
  requires(stdlib::is_class_v<Op> && !detail::params_for<Op, Arguments...>)
status launch(cudaStream_t, const launch_config&, const Op&, const Arguments&...) {
  detail::refuse_params<Op>();
  return {};
}
#endif

}  // namespace GIWA_ARCH_TAG
}  // namespace giwa::inline GIWA_ABI

#endif
