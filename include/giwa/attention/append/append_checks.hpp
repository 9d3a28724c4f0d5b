// SPDX-License-Identifier: MIT
// The first rule that an append_to_cache call breaks, found without touching memory.
#ifndef GIWA_ATTENTION_APPEND_APPEND_CHECKS_HPP
#define GIWA_ATTENTION_APPEND_APPEND_CHECKS_HPP

#include <giwa/attention/append/append_rows.hpp>
#include <giwa/attention/append/rotated_queries.hpp>
#include <giwa/attention/problem/cached_checks.hpp>

namespace giwa::inline GIWA_ABI::detail {

/// f(view, argument) for each input of the call, q aside, until f returns true.
template <class T, class Element, class Rotary, class F>
bool any_append_input(const append_views<T, Element>& a, const Rotary& rotary, bool needs_sequences, const F& f) {
  const kv_cache<Element>& c = a.cache;
  const int64 count = a.sequence_count();
  const auto tables = tables_of(rotary);
  if (f(a.k, "k_new") || (a.has_v() && f(a.v, "v_new")) || f(a.positions.narrow(), "positions") ||
      f(a.positions.wide(), "positions") || f(a.slots.narrow(), "slots") || f(a.slots.wide(), "slots") ||
      f(c.scales.k, "scales") || f(c.scales.v, "scales") || f(a.k_mean, "k_mean") || f(tables.cos, "cos") ||
      f(tables.sin, "sin"))
    return true;
  if (!needs_sequences) return false;
  return f(view_of(a.packed.offsets, count + 1), "q_offsets") || f(view_of(c.lengths, count), "lengths") ||
         (a.is_paged() && (f(indices_of(c.pages, count), "pages") || f(view_of(c.pages.offsets, count + 1), "pages")));
}

/// A size that the kernel counts in ints.
constexpr status check_append_range(int64 size, int64 least, const char* argument, const char* message) {
  if (size < least) return status::invalid(argument, message, bound::at_least, least, size);
  if (size <= attention_limits::length) return {};
  return status::invalid(argument, message, bound::at_most, attention_limits::length, size);
}

/// The sizes of new rows and of the cache.
template <class T, class Element>
status check_append_tensors(const append_views<T, Element>& a) {
  first_failure broken;
  const kv_cache<Element>& c = a.cache;
  if (broken(check_rows(a.k, "k_new")) || broken(check_rows(c.k, "k")) || broken(check_row_format(c.k)) ||
      broken(check_row_address(c.k)) ||
      broken(check_same(a.k, c.k, 2, "k_new", "k_new must have as many heads as k of the cache")) ||
      broken(check_head_size(a.k, c.k, "k_new", "k_new must have the head size of k of the cache")))
    return broken.state;
  if (c.k.extent(1) < 1)
    return status::invalid("k", "the cache must have room for at least one key", bound::at_least, 1, c.k.extent(1));
  if (broken(check_append_range(a.k.extent(3), 1, "k_new", "the head size is out of range")) ||
      broken(check_append_range(a.k.extent(2), 0, "k_new", "the number of heads is out of range")))
    return broken.state;
  if (!a.has_v()) return {};
  if (latent_format<Element>)
    return status::invalid("v_new", "the values of such rows are numbers of k_new: pass no v_new");
  if (broken(check_rows(a.v, "v_new")) || broken(check_rows(c.v, "v")) ||
      broken(check_same(a.v, a.k, 0, "v_new", "v_new must have as many sequences as k_new")) ||
      broken(check_same(a.v, a.k, 1, "v_new", "v_new must have as many rows as k_new")) ||
      broken(check_same(a.v, a.k, 2, "v_new", "v_new must have as many heads as k_new")) ||
      broken(check_same(c.v, c.k, 0, "v", "v must have as many sequences or pages as k")) ||
      broken(check_same(c.v, c.k, 1, "v", "v must have as many rows as k")) ||
      broken(check_same(c.v, c.k, 2, "v", "v must have as many heads as k")) ||
      broken(check_head_size(a.v, c.v, "v_new", "v_new must have the head size of v of the cache")))
    return broken.state;
  return check_append_range(a.v.extent(3), 1, "v_new", "the head size is out of range");
}

/// Queries to rotate: both views or none, with the sizes of k_new. `q_rank` and `to_rank` are 0 for none.
template <class T, class Element>
constexpr status check_append_queries(const append_views<T, Element>& a, int rank, int q_rank, int to_rank) {
  if (q_rank == 0 && to_rank == 0) return {};
  if (to_rank == 0) return status::invalid("q_to", "q needs q_to, the view that is written; it may be q");
  if (q_rank == 0) return status::invalid("q", "there is q_to, which is written, without q");
  if (q_rank != rank || to_rank != rank)
    return status::invalid(q_rank != rank ? "q" : "q_to", "q and q_to must have the rank of k_new", bound::exactly,
                           rank, q_rank != rank ? q_rank : to_rank);
  if (const status s = check_rows(a.q, "q"); !s.ok()) return s;
  if (const status s = check_rows(a.q_to, "q_to"); !s.ok()) return s;
  constexpr const char* messages[4] = {"q must have as many sequences as k_new", "q must have as many rows as k_new",
                                       "", "q must have the head size of k_new"};
  for (int d = 0; d < 4; ++d) {
    if (d != 2 && a.q.extent(d) != a.k.extent(d))
      return status::invalid("q", messages[d], bound::exactly, a.k.extent(d), a.q.extent(d));
    if (a.q_to.extent(d) != a.q.extent(d))
      return status::invalid("q_to", "q_to must have the sizes of q", bound::exactly, a.q.extent(d), a.q_to.extent(d));
  }
  return check_append_range(a.q.extent(2), 0, "q", "the number of heads is out of range");
}

/// What gives each row its place: sequences, or slots and positions.
template <class T, class Element>
constexpr status check_append_places(const append_views<T, Element>& a, bool needs_sequences) {
  first_failure broken;
  constexpr const char* one_each = "there must be one number for each row of k_new";
  if (broken(check_row_numbers(a.positions, a.rows(), "positions", one_each)) ||
      broken(check_row_numbers(a.slots, a.rows(), "slots", one_each)) || !needs_sequences)
    return broken.state;
  if (a.is_packed && a.packed.offsets == nullptr)
    return status::invalid("q_offsets",
                           "packed rows need the offsets of their sequences, or slots and, if k is rotated, positions");
  if (a.is_packed &&
      (broken(check_append_range(a.packed.count, 0, "sequences", "the number of sequences is out of range")) ||
       broken(check_count(a.packed, a.k.extent(1)))))
    return broken.state;
  if (broken(check_page_table(a.cache))) return broken.state;
  const int64 sequences = a.is_paged() ? a.cache.sequences : a.cache.k.extent(0);
  if (sequences != a.sequence_count())
    return status::invalid(a.is_paged() ? "sequences" : "k", "the cache must have as many sequences as k_new",
                           bound::exactly, a.sequence_count(), sequences);
  return check_reach(a.cache);
}

/// Whether rows of heads share memory: q, k and v may be parts of one tensor or pool. From the largest stride on, views
/// are compared element by element in the dimensions that both have alike, and by their ranges in what is left of an
/// element. So heads may differ in number and size, as those of parts of a row, of a page, or of a sequence do.
template <class First, class Second>
bool heads_share(const tensor_view<First, 4>& a, const tensor_view<Second, 4>& b) {
  if (!may_share(a, b)) return false;
  const auto bytes = [](const auto& v, int d, int64 element) {
    const int64 stride = v.extent(d) == 1 ? 0 : v.stride(d) < 0 ? -v.stride(d) : v.stride(d);
    return stride * element;
  };
  constexpr int64 sizes[2] = {sizeof(First), sizeof(Second)}, most = max_int64 / 8;
  index<4> extent{1, 1, 1, 1}, step{};                                 // what is alike
  int64 of_a = a.extent(3) * sizes[0], of_b = b.extent(3) * sizes[1];  // bytes of what is left
  bool done[3] = {}, alike = true;
  for (int i = 0; i < 3; ++i) {
    int d = -1;
    int64 largest = -1;
    for (int other = 0; other < 3; ++other) {
      const int64 x = bytes(a, other, sizes[0]), y = bytes(b, other, sizes[1]);
      if (!done[other] && (x > y ? x : y) > largest) d = other, largest = x > y ? x : y;
    }
    done[d] = true;
    const int64 x = bytes(a, d, sizes[0]), y = bytes(b, d, sizes[1]);
    alike = alike && a.extent(d) == b.extent(d) && x == y;
    if (largest > most) return true;
    if (alike)
      extent[i] = a.extent(d), step[i] = 2 * x;
    else
      of_a += (a.extent(d) - 1) * x, of_b += (b.extent(d) - 1) * y;
  }
  // The ranges [0, of_a) and [distance, distance + of_b) meet where twice their centers are closer than of_a + of_b.
  const auto distance = static_cast<int64>(range_of(b).first - range_of(a).first);
  if (distance > most || distance < -most) return true;
  return detail::steps_meet<4>(extent, step, 0, 2 * distance + of_b - of_a, of_a + of_b);
}
template <class Any, int Rank, class Second>
bool heads_share(const tensor_view<Any, Rank>& a, const tensor_view<Second, 4>& b) {
  return may_share(a, b);
}

/// The scales that a call finds.
template <class T, class Element>
status check_found_scales(const append_views<T, Element>& a, [[maybe_unused]] const rotary_layout& r) {
  first_failure broken;
  const bool of_v = a.v_scales.data() != nullptr;
  if (!a.finds_scales() && !of_v && a.k_mean.data() == nullptr && !a.hadamard) return {};
  if (!scaled_element<Element>)
    return status::invalid("k_scales", "only a cache of e4m3, int8_code or int4_pair has scales");
  if (!a.finds_scales() || (of_v != a.has_v()))
    return status::invalid(a.finds_scales() ? "v_scales" : "k_scales",
                           "the call finds the scales of k and, if there is a v_new, of v");
  const auto check = [&](const tensor_view<float, 3>& scales, const char* argument) {
    for (int d = 0; d < 3 && scales.data() != nullptr; ++d)
      if (scales.extent(d) != a.cache.k.extent(d))
        return broken(status::invalid(argument, "scales that are found must be (sequences or pages, keys, kv heads)",
                                      bound::exactly, a.cache.k.extent(d), scales.extent(d)));
    return broken(scales.check(argument)) || broken(check_written(scales, argument));
  };
  if (check(a.k_scales, "k_scales") || check(a.v_scales, "v_scales") || broken(a.k_mean.check("k_mean")))
    return broken.state;
  for (int d = 0; d < 2 && a.k_mean.data() != nullptr; ++d)
    if (a.k_mean.extent(d) != a.k.extent(2 + d))
      return status::invalid("k_mean", "must be (kv heads, head size)", bound::exactly, a.k.extent(2 + d),
                             a.k_mean.extent(d));
  if (!a.hadamard) return {};
  constexpr int count = 16 / static_cast<int>(sizeof(T));
  const int64 size = a.k.extent(3);
  if (size < 16 || size > 64 * count || (size & (size - 1)) != 0)
    return status::invalid("hadamard", "the head size must be a power of two from 16 on, up to 512, with fp32 256",
                           bound::at_most, 64 * count, size);
  if ((r.size != 0 && r.size != size) || !append_fits<count>(a, r))
    return status::invalid("hadamard",
                           "all or no elements of a head are rotated, and rows must be aligned to 16 bytes");
  return {};
}

/// No two elements that are written share memory, and none of them is read, but for q where it is q_to.
template <class T, class Element, class Rotary>
status check_append_overlap(const append_views<T, Element>& a, const Rotary& rotary, bool needs_sequences) {
  first_failure broken;
  const tensor_view<Element, 4> no_v, &k = a.cache.k, &v = a.has_v() ? a.cache.v : no_v;
  if (broken(check_written(k, "k")) || broken(check_written(v, "v")) || broken(check_written(a.q_to, "q_to")))
    return broken.state;
  constexpr const char *of_k = "must not overlap k of the cache, which the call writes",
                       *of_v = "must not overlap v of the cache, which the call writes",
                       *of_q = "must not overlap q_to, which the call writes";
  constexpr const char* of_scales = "must not overlap scales that the call finds";
  const auto shares = [&](const auto& input, const char* argument) {
    return broken(check_apart(input, k, argument, of_k)) || broken(check_apart(input, v, argument, of_v)) ||
           broken(check_apart(input, a.k_scales, argument, of_scales)) ||
           broken(check_apart(input, a.v_scales, argument, of_scales)) ||
           (heads_share(input, a.q_to) && broken(status::invalid(argument, of_q)));
  };
  if (any_append_input(a, rotary, needs_sequences, shares)) return broken.state;
  const tensor_view<float, 3> both[2] = {a.k_scales, a.v_scales};
  for (const auto& found : both)
    if (broken(check_apart(k, found, "k", of_scales)) || broken(check_apart(v, found, "v", of_scales)) ||
        broken(check_apart(a.q, found, "q", of_scales)) || broken(check_apart(a.q_to, found, "q_to", of_scales)))
      return broken.state;
  if (broken(check_apart(a.k_scales, a.v_scales, "v_scales", of_scales))) return broken.state;
  if ((heads_share(v, k) && broken(status::invalid("v", of_k))) || broken(check_apart(a.q_to, k, "q_to", of_k)) ||
      broken(check_apart(a.q_to, v, "q_to", of_v)) || broken(check_apart(a.q, k, "q", of_k)) ||
      broken(check_apart(a.q, v, "q", of_v)))
    return broken.state;
  return may_share(a.q, a.q_to) && !same_elements(a.q, a.q_to)
             ? status::invalid("q_to", "q_to overlaps q and is not the same view")
             : status{};
}

/// The first rule that a call breaks. Whether the device can use the pointers is checked elsewhere.
template <class T, class Element, class Rotary>
status check_append(const append_views<T, Element>& a, const Rotary& rotary, int rank, int q_rank, int to_rank) {
  const bool needs_sequences = a.needs_sequences(rotary.size > 0);
  first_failure broken;
  if (broken(check_append_tensors(a)) || broken(check_append_queries(a, rank, q_rank, to_rank)) ||
      broken(check_rotary(rotary, a.k.extent(3), "the rotated elements reach past the head size of k_new")) ||
      broken(check_append_places(a, needs_sequences)) || broken(check_scales(a.cache)) ||
      broken(check_found_scales(a, rotary)))
    return broken.state;
  if constexpr (latent_format<Element>)
    if (rotary.size > 0 && rotary.first < Element::codes)
      return status::invalid("rotary", "only the last numbers of such rows are rotated: the first one", bound::at_least,
                             Element::codes, rotary.first);
  if (codes_of<Element> > 1 && !append_fits<codes_of<Element>>(a, rotary))
    return status::invalid("k_new",
                           "for pairs of integers rows must be aligned to two elements, and the rotated elements must "
                           "begin at an even one and be a multiple of 4");
  return check_append_overlap(a, rotary, needs_sequences);
}

}  // namespace giwa::inline GIWA_ABI::detail

#endif
