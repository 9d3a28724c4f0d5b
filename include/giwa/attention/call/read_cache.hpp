// SPDX-License-Identifier: MIT
// read_cache: writes the keys and values of a cache as numbers of 16 or 32 bits.
#ifndef GIWA_ATTENTION_CALL_READ_CACHE_HPP
#define GIWA_ATTENTION_CALL_READ_CACHE_HPP

#include <giwa/attention/call/forward_types.hpp>
#include <giwa/attention/problem/cached_checks.hpp>
#include <giwa/attention/problem/cached_params.hpp>
#include <giwa/attention/quantize/codes.hpp>
#include <giwa/numeric/extents.hpp>

namespace giwa::inline GIWA_ABI {

namespace detail {

/// Four elements as fp32; append.cuh has another one for e4m3 on a GPU.
template <class Element>
GIWA_HOST_DEVICE void widen_four(const element_run<Element, 4>& from, float* to) {
  GIWA_UNROLL
  for (int i = 0; i < 4; ++i) to[i] = convert<float>{}(from.get(i));
}
/// Writes `Count` numbers of a key and of its value, for each index (sequence, key, kv head, run).
template <class T, class Element, int Count>
struct read_cache_run {
  cached_params<T, Element, T, full, plain_score> call;  // q and o are the tensors that are written
  tensor_view<T, 4> k;

  GIWA_HOST_DEVICE void operator()(const index<4>& at) const {
    const cached_sequence s = call.at(static_cast<int>(at[0]));
    if (at[1] >= s.keys) return;
    const cache_row row = call.row_of(s, static_cast<int>(at[1]));
    const kv_cache<const Element>& c = call.views.cache;
    write(row, c.k, c.scales.k, k, at);
    if (call.views.o.data() != nullptr) write(row, c.v, c.scales.v, call.views.o, at);
  }

 private:
  GIWA_HOST_DEVICE static void write(const cache_row& row, const tensor_view<const Element, 4>& from,
                                     const tensor_view<const float, 3>& scales, const tensor_view<T, 4>& to,
                                     const index<4>& at) {
    const int64 first = at[3] * Count;
    if (first >= to.extent(3)) return;
    const int head = static_cast<int>(at[2]);
    float x[stdlib::size_t{Count}] = {};
    if (row.element >= 0) {
      const Element* const data = &from(row.element, row.row, head, 0);
      const float scale = scales.data() == nullptr ? 1.f : *scale_at(scales, row, head);
      if constexpr (row_format<Element>) {
        GIWA_UNROLL
        for (int i = 0; i < Count; ++i) x[i] = Element::number_at(data, first + i);
      } else {
        constexpr int codes = codes_of<Element>;
        const auto run = element_run<Element, Count / codes>::read(data + first / codes);
        if constexpr (codes == 1 && Count % 4 == 0) {
          GIWA_UNROLL
          for (int i = 0; i < Count; i += 4) widen_four(run.template part<4>(i), x + i);
        } else {
          GIWA_UNROLL
          for (int i = 0; i < Count; ++i) {
            const Element element = run.get(i / codes);
            if constexpr (codes == 1)
              x[i] = convert<float>{}(element);
            else
              x[i] = element[i % codes];
          }
        }
        GIWA_UNROLL
        for (int i = 0; i < Count; ++i) x[i] = fma_with_subnormals(x[i], scale, -0.0f);
      }
    }
    T* const target = &to(at[0], at[1], head, first);
    if constexpr (Count > codes_of<Element>) {
      constexpr int each = 16 / static_cast<int>(sizeof(T));  // in a store
      GIWA_UNROLL
      for (int i = 0; i < Count; i += each) round_run<T, each>(target + i, x + i, nothing{});
    } else {
      for (int i = 0; i < Count; ++i) target[i] = convert<T>{}(x[i]);
    }
  }
};

#if !defined(__CUDACC_RTC__)  // NVRTC has no host functions
/// Whether runs of `Count` numbers fit rows of a cache and those that are written.
template <int Count, class T, class Element>
bool read_fits(const tensor_view<const Element, 4>& from, const tensor_view<T, 4>& to) {
  return (row_format<Element> || rows_are_aligned(from, Count * int64{sizeof(Element)} / codes_of<Element>)) &&
         rows_are_aligned(to, 16) && to.extent(3) % Count == 0;
}

/// The first rule that a call breaks.
template <class T, class Element>
status check_read(const kv_cache<const Element>& c, const tensor_view<T, 4>& keys, const tensor_view<T, 4>& values) {
  first_failure broken;
  const auto of = [&](const tensor_view<const Element, 4>& from, const char* name, const tensor_view<T, 4>& to,
                      const char* argument) {
    return broken(check_rows(from, name)) || broken(check_rows(to, argument)) ||
           broken(check_same(to, keys, 0, argument, "must have as many sequences as keys")) ||
           broken(check_same(to, keys, 1, argument, "must have as many rows as keys")) ||
           broken(check_same(to, c.k, 2, argument, "must have as many heads as the cache")) ||
           broken(check_head_size(to, from, argument, "must have the head size of the cache")) ||
           broken(check_written(to, argument));
  };
  if (broken(check_page_table(c)) || broken(check_row_format(c.k)) || broken(check_row_address(c.k)) ||
      of(c.k, "k", keys, "keys"))
    return broken.state;
  const bool has_values = is_given(values);
  if (has_values && (broken(check_same(c.v, c.k, 2, "v", "v must have as many heads as k")) ||
                     broken(check_same(c.v, c.k, 1, "v", "v must have as many rows as k")) ||
                     broken(check_same(c.v, c.k, 0, "v", "v must have as many sequences or pages as k")) ||
                     of(c.v, "v", values, "values") || broken(check_apart(values, keys, "values", "overlaps keys"))))
    return broken.state;
  const int64 sequences = c.pages.indices != nullptr ? c.sequences : c.k.extent(0);
  if (keys.extent(0) != sequences)
    return status::invalid("keys", "must have as many sequences as the cache", bound::exactly, sequences,
                           keys.extent(0));
  if (broken(check_reach(c)) || broken(check_scales(c))) return broken.state;
  const tensor_view<const T, 4> no_queries(nullptr, {sequences, 0, 0, 0});
  const cached_views<T, Element, T> inputs{no_queries, {}, c};
  const auto overlaps = [&](const tensor_view<T, 4>& to, const char* message) {
    return broken(check_apart_from_inputs(inputs, plain_score{}, cached_options{}, to, message));
  };
  static_cast<void>(overlaps(keys, "must not overlap keys, which the call writes") ||
                    overlaps(values, "must not overlap values, which the call writes"));
  return broken.state;
}
#endif

inline namespace GIWA_ARCH_TAG {

template <class T>
struct stream_read_cache;  // defined by <giwa/cache.cuh>

}  // namespace GIWA_ARCH_TAG

template <class T>
struct host_read_cache;  // defined by <giwa/host.hpp>

}  // namespace detail

#if !defined(__CUDACC_RTC__)
inline namespace GIWA_ARCH_TAG {

/// Writes the keys and values of each sequence of a cache as numbers, each times its scale and rounded once:
/// `read_cache(stream, cache, keys, values)`. Many queries over a cache of 8 bits or fewer are faster over these, with
/// `kv_cache<const fp16>{.k = keys, .v = values, .lengths = cache.lengths}`, than over the cache.
///
/// Parameters:
///   - where: a stream of the current device, or giwa::host
///   - cache: contiguous or in pages, of any element that attention_cached() takes
///   - keys, values: (sequences, rows, kv heads, head size), written, of fp16, bf16 or fp32. Row i is key i; rows from the length of a
///     sequence on are left alone, and keys from the last row on are left out. Empty values are not written
///
/// A key in a page outside the cache gives zeros. The bits are the same on host and device.
///
/// On a stream of the current device: asynchronous, allocates nothing, may be captured. With giwa::host: done when it
/// returns (`#include <giwa/host.hpp>`). Errors: sizes that do not fit together, overlaps, memory that the GPU cannot use, those
/// of launch(). Nothing is written then.
template <detail::attention_place Where, class Element, class T>
status read_cache(const Where& where, const kv_cache<Element>& cache, const tensor_view<T, 4>& keys,
                  const tensor_view<T, 4>& values) {
  using element = stdlib::remove_const_t<Element>;
  static_assert(detail::attention_element<T>, "giwa::read_cache: keys and values must be giwa::fp16, bf16 or fp32.");
  static_assert(
      detail::attention_element<element> || detail::scaled_element<element> || detail::row_format<element>,
      "giwa::read_cache: elements of the cache must be fp16, bf16, fp32, giwa::e4m3, int8_code, int4_pair, q8_0, "
      "q4_0 or rows_656.");
  const kv_cache<const element> c = detail::with_values(
      kv_cache<const element>{cache.k, cache.v, cache.pages, cache.lengths, cache.sequences, cache.scales});
  if (const status s = detail::check_read(c, keys, values); !s.ok()) return s;
  if (keys.size() == 0 && values.size() == 0) return {};
  const auto call = detail::cached_params_of(detail::cached_views<T, element, T>{keys, values, c}, full{},
                                             plain_score{}, cached_options{});
  constexpr int least = detail::codes_of<element>, count = 16 / static_cast<int>(sizeof(element));
  const bool fits =
      detail::read_fits<count>(c.k, keys) && (values.data() == nullptr || detail::read_fits<count>(c.v, values));
  const int64 most = keys.extent(3) > values.extent(3) ? keys.extent(3) : values.extent(3);
  const int64 rows = keys.extent(1) < call.capacity ? keys.extent(1) : call.capacity;
  const auto run = [&](const auto& f, int64 runs) {
    const extents sizes{keys.extent(0), rows, keys.extent(2), runs};
    if constexpr (stdlib::same_as<Where, host_t>) {
      static_assert(detail::defined<detail::host_read_cache<T>>,
                    "giwa::read_cache(giwa::host, ...) needs #include <giwa/host.hpp>.");
      return detail::host_read_cache<T>::run(f, sizes);
    } else {
      static_assert(detail::defined<detail::stream_read_cache<T>>,
                    "giwa::read_cache on a stream needs #include <giwa/cache.cuh>, in a file that nvcc compiles.");
      return detail::stream_read_cache<T>::run(static_cast<cudaStream_t>(where), f, sizes);
    }
  };
  if (fits) return run(detail::read_cache_run<T, element, count>{call, keys}, most / count);
  return run(detail::read_cache_run<T, element, least>{call, keys}, most / least);
}

}  // namespace GIWA_ARCH_TAG
#endif

}  // namespace giwa::inline GIWA_ABI

#endif
