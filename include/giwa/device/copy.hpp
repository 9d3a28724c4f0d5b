// SPDX-License-Identifier: MIT
// Copies of arrays between pageable, pinned, managed and device memory, in stream order or on the CPU.
#ifndef GIWA_DEVICE_COPY_HPP
#define GIWA_DEVICE_COPY_HPP

#include <giwa/device/host.hpp>
#include <giwa/device/pointer.hpp>
#include <giwa/numeric/tensor_view.hpp>

#include <cstring>

namespace giwa::inline GIWA_ABI {

namespace detail {

/// Returns the elements of an array, or of a contiguous view of any rank, as a view of one dimension. Errors: those of
/// the view.
template <class Array>
result<tensor_view<element_of<Array>, 1>> flat(Array& array, const char* argument) {
  result<tensor_view<element_of<Array>, 1>> r;
  if constexpr (requires { array.check(argument); }) {
    r.state = array.check(argument);
    if (r.ok() && !array.contiguous()) r.state = status::invalid(argument, "the elements of a copy must be contiguous");
    if (r.ok()) r.value = {array.data(), {array.size()}};
  } else {
    const tensor_view<element_of<Array>, 1> all(array.data(), {static_cast<int64>(array.size())});
    r.state = all.check(argument);
    if (r.ok()) r.value = all;
  }
  return r;
}

/// Checks two views that pass check() for a copy: equal sizes, no overlap.
template <class T>
status check_copy(const tensor_view<const T, 1>& from, const tensor_view<T, 1>& to, const char* to_argument) {
  if (from.size() != to.size())
    return status::invalid(to_argument, "the target must have as many elements as the source", bound::exactly,
                           from.size(), to.size());
  const auto first = reinterpret_cast<uint64>(from.data()), second = reinterpret_cast<uint64>(to.data());
  const uint64 bytes = static_cast<uint64>(from.size()) * sizeof(T);
  if (first < second + bytes && second < first + bytes)
    return status::invalid(to_argument, "the target must not overlap the source");
  return {};
}

/// Enqueues a copy. The direction follows from the locations of the two addresses.
template <class T>
status copy_flat(cudaStream_t s, const tensor_view<const T, 1>& from, const tensor_view<T, 1>& to,
                 const char* to_argument) {
  if (const status state = check_copy(from, to, to_argument); !state.ok() || from.size() == 0) return state;
  const auto bytes = static_cast<stdlib::size_t>(from.size()) * sizeof(T);
  const result<pointer_location> source = location_of(from.data()), target = location_of(to.data());
  if (!source.ok()) return source.state;
  if (!target.ok()) return target.state;
  // The only copy that works between the pools of two GPUs without access to each other's memory.
  if (source.value.kind == memory_kind::device && target.value.kind == memory_kind::device &&
      source.value.device != target.value.device)
    return consume(cudaMemcpyPeerAsync(to.data(), target.value.device, from.data(), source.value.device, bytes, s),
                   to_argument);
  return consume(cudaMemcpyAsync(to.data(), from.data(), bytes, cudaMemcpyDefault, s), to_argument);
}

template <class From, class To>
constexpr void require_copy() {
  using element = element_of<To>;
  static_assert(!stdlib::is_const_v<element>, "giwa::copy: the elements of the target must not be const.");
  static_assert(stdlib::is_same_v<stdlib::remove_const_t<element_of<From>>, element>,
                "giwa::copy: source and target must have one element type; for_all(where, elementwise{to, from}, "
                "convert<T>{}) converts.");
  static_assert(goes_as_bytes<element>,
                "giwa::copy: elements are copied byte by byte, so they must be trivially copyable.");
}

}  // namespace detail

/// Copies all elements of `from` to `to` in the order of the stream `s`.
///
/// Parameters:
///   - s: the stream
///   - from, to: arrays, or contiguous views of any rank, of one element type and of equal size. Each may be in pageable,
///     pinned, managed or device memory, and on different GPUs: the direction follows from the addresses
///
/// Between pinned and device memory, and between device memories, the call returns at once. Host memory must then not
/// be changed or read until the stream has done the copy. From pageable memory to a GPU the call returns when the
/// source has been read; to pageable memory it returns when the copy is done, so that nothing overlaps with it. A
/// pinned_array makes a copy asynchronous. A copy can be captured in a graph if both sides are in pinned or device
/// memory. Errors: `from` or `to` is null, misaligned or not contiguous; the sizes differ; the two overlap.
template <detail::contiguous_range_like From, detail::contiguous_range_like To>
status copy(cudaStream_t s, const From& from, To&& to) {
  detail::require_copy<const From, stdlib::remove_reference_t<To>>();
  using element = detail::element_of<stdlib::remove_reference_t<To>>;
  const auto source = detail::flat(from, "from");
  if (!source.ok()) return source.state;
  const auto target = detail::flat(to, "to");
  if (!target.ok()) return target.state;
  return detail::copy_flat<element>(s, source.value, target.value, "to");
}

/// Copies all elements of `from` to `to` on the CPU. Done when it returns.
///
/// Parameters:
///   - from, to: as on a stream, in pageable, pinned and managed memory
///
/// Errors: those of the overload for streams; device memory.
template <detail::contiguous_range_like From, detail::contiguous_range_like To>
status copy(host_t, const From& from, To&& to) {
  detail::require_copy<const From, stdlib::remove_reference_t<To>>();
  using element = detail::element_of<stdlib::remove_reference_t<To>>;
  const auto source = detail::flat(from, "from");
  if (!source.ok()) return source.state;
  const auto target = detail::flat(to, "to");
  if (!target.ok()) return target.state;
  if (const status state = detail::check_copy<element>(source.value, target.value, "to");
      !state.ok() || source.value.size() == 0)
    return state;
  if (const status state = check_host_pointer(source.value.data(), "from"); !state.ok()) return state;
  if (const status state = check_host_pointer(target.value.data(), "to"); !state.ok()) return state;
  std::memcpy(static_cast<void*>(target.value.data()), source.value.data(),
              static_cast<std::size_t>(source.value.size()) * sizeof(element));
  return {};
}

}  // namespace giwa::inline GIWA_ABI

#endif
