// SPDX-License-Identifier: MIT
// for_all over arrays on a stream: c[i] = f(a[i], b[i]) with 16-byte memory accesses.
#ifndef GIWA_GRID_ELEMENTWISE_CUH
#define GIWA_GRID_ELEMENTWISE_CUH

#include <giwa/device/pointer.hpp>
#include <giwa/grid/elementwise.hpp>
#include <giwa/grid/for_all.cuh>
#include <giwa/numeric/vector_access.hpp>

namespace giwa::inline GIWA_ABI {

namespace detail::inline GIWA_ARCH_TAG {

/// `Count` neighbouring elements in registers; in memory one aligned access.
template <class T, int Count>
struct packet {
  T element[Count];
};

/// Whether elements can be moved in packets.
template <class T>
inline constexpr bool can_be_packed = is_power_of_two(sizeof(T)) && stdlib::is_default_constructible_v<T>;

template <class... T>
constexpr int largest_size() {
  int largest = 1;
  ((largest = static_cast<int>(sizeof(T)) > largest ? static_cast<int>(sizeof(T)) : largest), ...);
  return largest;
}

/// Computes out[i] = f(in[i], ...) for the i in [first, n) that belong to this grid.
template <class F, class Out, class... In>
struct elementwise_op {
  struct params {
    int64 first, n;
    F f;
    Out* out;
    pointers<In...> in;
    bool aligned;
  };
  using shared_storage = no_shared_storage;
  static constexpr bool params_go_as_bytes = goes_as_bytes<F>;
  // Each thread makes one 16-byte access of the widest type. c = a + b on an H200, 2026-11-20: speed relative to
  // cub::DeviceTransform in the same run at 2^30 fp16, 2^29 fp32, 2^28 fp64, and at 10^7 of each:
  //   384 threads 1.01 0.99 1.00, 1.02 1.00 1.00
  // Loads are not marked as streaming (ld.global.cs): they lose 5 to 10 % after a kernel that has filled the L2 cache with
  // ordinary lines, which they do not evict. Streaming stores gain 0.2 %.
  static constexpr int max_threads = 384, min_blocks = 1;
  // Packets are for elements of 1, 2, 4, 8 or 16 bytes; others go one by one.
  static constexpr int widest = largest_size<Out, In...>();
  static constexpr bool packets = widest <= 16 && can_be_packed<Out> && (can_be_packed<In> && ...);
  static constexpr int count = packets ? 16 / widest : 1;
  static constexpr int tile = max_threads * count;

  template <class Block>
  GIWA_HOST_DEVICE void operator()(Block block, const params& p, shared_storage&) const {
    const int64 tile_begin = p.first + block.block_index()[2] * tile;
    const int thread = static_cast<int>(block.thread_index()[2]);
#if defined(__CUDA_ARCH__)
    if constexpr (packets) {
      if (p.aligned && p.n - tile_begin >= tile) {
        apply(p, tile_begin + thread * count, p.in);
        return;
      }
    }
#endif
    const int64 left = p.n - tile_begin;
    for (int i = thread; i < tile && i < left; i += max_threads)
      p.out[tile_begin + i] = static_cast<Out>(p.in.call(p.f, tile_begin + i));
  }

 private:
#if defined(__CUDA_ARCH__)
  // Loads one packet of every input, calls f for each element, and stores the results.
  template <class First, class... Rest, class... Packet>
  GIWA_DEVICE static void apply(const params& p, int64 i, const pointers<First, Rest...>& in, const Packet&... loaded) {
    apply(p, i, in.rest, loaded..., load_vector<packet<First, count>>(in.first + i));
  }
  template <class... Packet>
  GIWA_DEVICE static void apply(const params& p, int64 i, const pointers<>&, const Packet&... loaded) {
    packet<Out, count> result;
    for (int e = 0; e < count; ++e) result.element[e] = static_cast<Out>(p.f(loaded.element[e]...));
    store_vector_streaming(p.out + i, result);
  }
#endif
};

/// Checks that the kernel may use the pointer, unless it is trusted. Clears `aligned` if the pointer is not aligned to
/// `Count` elements.
template <int Count, class T>
status check_array(const T* pointer, const char* argument, bool trusted, bool& aligned) {
  aligned = aligned && reinterpret_cast<uint64>(pointer) % (Count * sizeof(T)) == 0;
  return trusted ? status{} : check_device_pointer(pointer, argument);
}

template <int Count, class... T>
status check_inputs(const pointers<T...>& in, bool trusted, bool& aligned) {
  if constexpr (sizeof...(T) == 0) {
    return {};
  } else {
    const status s = check_array<Count>(in.first, "in", trusted, aligned);
    return s.ok() ? check_inputs<Count>(in.rest, trusted, aligned) : s;
  }
}

}  // namespace detail::inline GIWA_ARCH_TAG

inline namespace GIWA_ARCH_TAG {

/// Computes out[i] = f(in[i], ...) on the GPU for every element: `for_all(stream, elementwise{c, a, b}, add)`. Faster than the
/// form by index, most of all for 16-bit types, because each access moves 16 bytes.
///
/// Parameters:
///   - s: a stream of the current device; the call is asynchronous, allocates nothing, and may be captured
///   - arrays: the output, then the inputs. Pointers of any alignment work; those aligned to 16 bytes are fastest
///   - f: a const callable on the elements of the inputs, whose result converts to the element type of the output
///
/// Errors: those of elementwise::state(), host pointers, pointers of another GPU, and those of launch().
template <class Out, class... In, class F>
status for_all(cudaStream_t s, const elementwise<Out, In...>& arrays, const F& f) {
  detail::require_device_body<stdlib::decay_t<F>>();
  detail::require_function_of_elements<F, In...>();
  static_assert(goes_as_bytes<Out> && (goes_as_bytes<In> && ...),
                "giwa::for_all: elements are read and written as bytes: make their types trivially copyable.");
  if constexpr (detail::asks_host_lambda<F>()) {
    return {};
  } else {
    using op = detail::elementwise_op<F, Out, In...>;
    if (!arrays.state().ok()) return arrays.state();
    if (arrays.size() == 0) return {};
    bool aligned = true;
    // A device_array knows its GPU; a look-up of any other pointer takes about 0.1 us.
    const bool trusted = arrays.known_device() >= 0 && current_device().value == arrays.known_device();
    if (const status state = detail::check_array<op::count>(arrays.out(), "out", trusted, aligned); !state.ok())
      return state;
    if (const status state = detail::check_inputs<op::count>(arrays.in(), trusted, aligned); !state.ok()) return state;
    return detail::launch_tiles<op>(s, arrays.size(), [&](int64 first) {
      return typename op::params{first, arrays.size(), f, arrays.out(), arrays.in(), aligned};
    });
  }
}

/// Sets every element of an array in device memory to a value: `fill(stream, x, 0)`.
///
/// Parameters:
///   - s: a stream of the current device; the call is asynchronous, allocates nothing, and may be captured
///   - array: contiguous: a tensor_view of any rank, a device_array, or a type with data() and size()
///   - value: converts to the element type
///
/// Errors: as of for_all(s, elementwise{array}, f).
template <detail::contiguous_range_like Array>
status fill(cudaStream_t s, Array&& array, const detail::value_for<Array>& value) {
  return for_all(s, elementwise{array}, detail::constant<detail::value_for<Array>>{value});
}

}  // namespace GIWA_ARCH_TAG
}  // namespace giwa::inline GIWA_ABI

#endif
