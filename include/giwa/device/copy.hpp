// SPDX-License-Identifier: MIT
// Copies of whole arrays between host, pinned and device memory, in stream order or on the CPU.
#ifndef GIWA_DEVICE_COPY_HPP
#define GIWA_DEVICE_COPY_HPP

#include <giwa/device/host.hpp>
#include <giwa/device/pointer.hpp>
#include <giwa/numeric/tensor_view.hpp>

#include <cstring>

namespace giwa::inline GIWA_ABI {

namespace detail {

/// All elements of an array, or of a contiguous view of any rank, in one dimension; or the rule that it breaks.
template <class Array>
result<tensor_view<element_of<Array>, 1>> flat(Array& array, const char* argument) {
  result<tensor_view<element_of<Array>, 1>> r;
  if constexpr (requires { array.check(argument); }) {
    r.state = array.check(argument);
    if (r.ok() && !array.contiguous()) r.state = status::invalid(argument, "only contiguous elements can be copied");
    if (r.ok()) r.value = {array.data(), {array.size()}};
  } else {
    const tensor_view<element_of<Array>, 1> all(array.data(), {static_cast<int64>(array.size())});
    r.state = all.check(argument);
    if (r.ok()) r.value = all;
  }
  return r;
}

/// The rules of a copy between two flat views that are right in themselves.
template <class T>
status check_copy(const tensor_view<const T, 1>& from, const tensor_view<T, 1>& to, const char* to_argument) {
  if (from.size() != to.size())
    return status::invalid(to_argument, "the number of elements differs from the source's", bound::exactly, from.size(),
                           to.size());
  const auto first = reinterpret_cast<uint64>(from.data()), second = reinterpret_cast<uint64>(to.data());
  const uint64 bytes = static_cast<uint64>(from.size()) * sizeof(T);
  if (first < second + bytes && second < first + bytes)
    return status::invalid(to_argument, "the target overlaps the source");
  return {};
}

/// Gives the stream a copy, by the addresses' own places.
template <class T>
status copy_flat(cudaStream_t s, const tensor_view<const T, 1>& from, const tensor_view<T, 1>& to,
                 const char* to_argument) {
  if (const status state = check_copy(from, to, to_argument); !state.ok() || from.size() == 0) return state;
  const auto bytes = static_cast<stdlib::size_t>(from.size()) * sizeof(T);
  const result<pointer_location> source = location_of(from.data()), target = location_of(to.data());
  if (!source.ok()) return source.state;
  if (!target.ok()) return target.state;
  // Between the pools of two GPUs, which need not see each other's memory, only this call finds a way.
  if (source.value.kind == memory_kind::device && target.value.kind == memory_kind::device &&
      source.value.device != target.value.device)
    return consume(cudaMemcpyPeerAsync(to.data(), target.value.device, from.data(), source.value.device, bytes, s),
                   to_argument);
  return consume(cudaMemcpyAsync(to.data(), from.data(), bytes, cudaMemcpyDefault, s), to_argument);
}

template <class From, class To>
constexpr void require_copy() {
  using element = element_of<To>;
  static_assert(!stdlib::is_const_v<element>, "giwa::copy: the target is written, and its elements are const.");
  static_assert(stdlib::is_same_v<stdlib::remove_const_t<element_of<From>>, element>,
                "giwa::copy: source and target have one element type; for_all(where, elementwise{to, from}, "
                "convert<T>{}) converts.");
  static_assert(goes_as_bytes<element>,
                "giwa::copy: elements are copied byte by byte: they must be trivially copyable.");
}

}  // namespace detail

/// Copies every element of `from` to `to`: arrays, or contiguous views of any rank, of one element type and equal numbers of
/// elements, each in pageable, pinned, managed or device memory, also of two GPUs. Where they lie is found by their addresses.
///
/// In the order of the stream `s`. The call returns at once between pinned and device memory, and between device memories; the
/// host's memory must stay as it is, and is not to be read, until the stream has come that far. From pageable memory to a GPU the
/// call returns when the source has been read, to pageable memory when the copy is done: then the stream has no work left, and
/// nothing overlaps. `giwa::pinned_array` is what makes a copy asynchronous.
/// Errors: `from` or `to` is null or not contiguous, has another number of elements, or overlaps the other. To capture a copy in a
/// graph, both sides are pinned or on the device.
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

/// The same by the CPU, between host, pinned and managed memory; done when it returns. Memory of a GPU is refused.
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
