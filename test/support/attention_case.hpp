// SPDX-License-Identifier: MIT
// A problem of attention in host memory, made from a seed: tensors of many layouts with NaN all around them.
#ifndef GIWA_TEST_SUPPORT_ATTENTION_CASE_HPP
#define GIWA_TEST_SUPPORT_ATTENTION_CASE_HPP

#include <giwa/attention/call/forward.hpp>
#include <giwa/numeric/philox.hpp>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstring>
#include <sstream>
#include <string>
#include <vector>

#include "support/call_options.hpp"
#include "support/random.hpp"

namespace giwa_test {

using giwa::int64;
using giwa::tensor_view;
using giwa::uint64;

/// How a tensor (batch, length, heads, head size) lies in memory.
enum class case_layout : int {
  contiguous,
  heads_first,  // (batch, heads, length, head size) in memory
  padded,       // 3 elements more a row, 5 more a head, and so on: no stride is a multiple of a vector
  reversed,     // all strides but the last are negative
  odd_ones,     // contiguous, with absurd strides where a size is 1
  broadcast,    // the same for all sequences; of an output: contiguous
  count,
  k_major =
      count  // (batch, heads, head size, length) in memory, each column of a head at a multiple of 16 elements: v of e4m3 alone
};
inline const char* name_of(case_layout l) {
  constexpr const char* names[] = {"contiguous", "heads_first", "padded", "reversed",
                                   "odd_ones",   "broadcast",   "k_major"};
  return names[static_cast<int>(l)];
}

/// A tensor in memory of its own, every byte 0xff (NaN) until something is written.
template <class T, int Rank>
struct case_buffer {
  std::vector<T> memory;
  int64 origin = 0;  // where element (0, …, 0) lies in it
  giwa::index<Rank> extents{}, strides{};

  /// The view of a copy of `memory` that begins at `copy`, on a GPU for instance.
  tensor_view<T, Rank> at(T* copy) const {
    return copy == nullptr ? tensor_view<T, Rank>() : tensor_view<T, Rank>(copy + origin, extents, strides);
  }
  tensor_view<T, Rank> view() { return at(memory.data()); }

  /// f(offset in memory) for every element, in row-major order.
  template <class Function>
  void for_each(const Function& f) const {
    giwa::index<Rank> i{};
    for (int d = 0; d < Rank; ++d)
      if (extents[d] <= 0) return;
    for (;;) {
      int64 offset = origin;
      for (int d = 0; d < Rank; ++d) offset += i[d] == 0 ? 0 : i[d] * strides[d];
      f(static_cast<std::size_t>(offset));
      int d = Rank - 1;
      while (d >= 0 && ++i[d] == extents[d]) i[d--] = 0;
      if (d < 0) return;
    }
  }
  /// The elements in row-major order.
  template <class U>
  std::vector<U> elements() const {
    std::vector<U> all;
    for_each([&](std::size_t at) { all.push_back(giwa::convert<U>{}(memory[at])); });
    return all;
  }
  void fill(int byte) {
    if (!memory.empty()) std::memset(static_cast<void*>(memory.data()), byte, memory.size() * sizeof(T));
  }
  /// Bytes outside the view that are no longer 0xff.
  int64 written_outside() const {
    std::vector<bool> inside(memory.size());
    for_each([&](std::size_t at) { inside[at] = true; });
    int64 written = 0;
    for (std::size_t i = 0; i < memory.size(); ++i) {
      unsigned char bytes[sizeof(T)];
      std::memcpy(bytes, static_cast<const void*>(&memory[i]), sizeof(T));
      for (const unsigned char b : bytes) written += !inside[i] && b != 0xff;
    }
    return written;
  }
  /// Bytes, anywhere, that are no longer 0xff.
  int64 written() const {
    const auto* bytes = reinterpret_cast<const unsigned char*>(memory.data());
    int64 count = 0;
    for (std::size_t i = 0; i < memory.size() * sizeof(T); ++i) count += bytes[i] != 0xff;
    return count;
  }
};

/// Memory for a tensor whose dimensions lie in `order`, the slowest first, with `gap[d]` elements more a step of d; the first
/// element `offset` elements from the first that may be aligned.
template <class T, int Rank>
case_buffer<T, Rank> new_buffer(const giwa::index<Rank>& extents, case_layout layout, int offset, bool written) {
  constexpr int64 guard = 64;  // elements of NaN on both sides
  case_buffer<T, Rank> b;
  b.extents = extents;
  int order[Rank];
  for (int d = 0; d < Rank; ++d) order[d] = d;
  if (layout == case_layout::heads_first && Rank == 4) std::swap(order[1], order[2]);
  if constexpr (Rank == 4)
    if (layout == case_layout::k_major) order[1] = 2, order[2] = 3, order[3] = 1;
  int64 stride = 1;
  for (int i = Rank - 1; i >= 0; --i) {
    const int d = order[i];
    b.strides[d] = stride;
    stride *= std::max<int64>(1, extents[d]);
    if (layout == case_layout::padded) stride += 2 * (Rank - i) + 1;
    if (layout == case_layout::k_major) stride = giwa::round_up(stride, int64{16});
  }
  if (layout == case_layout::broadcast && !written) b.strides[0] = 0;
  b.origin = guard + offset;
  for (int d = 0; d + 1 < Rank; ++d)
    if (layout == case_layout::reversed) {
      b.origin += std::max<int64>(0, extents[d] - 1) * b.strides[d];
      b.strides[d] = -b.strides[d];
    }
  if (layout == case_layout::odd_ones)
    for (int d = 0; d < Rank; ++d)
      if (extents[d] == 1) b.strides[d] = (int64{1} << (40 + 5 * d)) + 1;
  b.memory.resize(static_cast<std::size_t>(2 * guard + offset + stride));
  b.fill(0xff);
  return b;
}

struct case_options {
  uint64 seed = 1;
  int64 batch = 1, heads = 1, kv_heads = 1, seq_q = 1, seq_k = 1, head_size = 1, head_size_v = 1;
  std::vector<int64> q_lengths, k_lengths;   // of packed sequences, instead of batch, seq_q and seq_k
  std::vector<int> q_used, k_used, k_index;  // giwa::sequences::q_lengths, k_lengths and k_batch_index, or empty
  int64 k_batch = 0;                         // of k and v where there is a k_index
  std::array<case_layout, 4> layout{};       // of q, k, v, o
  int offset = 0;                            // of each tensor's first element, in elements
  double spread = 1;                         // standard deviation of q and k: scores of spread^2
  bool lse = true, sinks = false;
  giwa::attention_scale scale{};
  giwa::alignment align{};

  bool packed() const { return !q_lengths.empty(); }
  /// The case in a line.
  std::string text() const {
    std::ostringstream s;
    s << "seed " << seed << ", batch " << batch << ", heads " << heads << '/' << kv_heads << ", queries " << seq_q
      << ", keys " << seq_k << ", head size " << head_size << '/' << head_size_v;
    for (std::size_t i = 0; i < q_lengths.size(); ++i)
      s << (i == 0 ? ", packed " : " ") << q_lengths[i] << 'x' << k_lengths[i];
    for (const auto& [name, list] :
         {std::pair{", used q", &q_used}, std::pair{", used k", &k_used}, std::pair{", k of", &k_index}})
      for (std::size_t i = 0; i < list->size(); ++i) s << (i == 0 ? name : "") << ' ' << (*list)[i];
    for (const case_layout l : layout) s << ", " << name_of(l);
    s << ", offset " << offset << ", spread " << spread << (lse ? ", lse" : "") << (sinks ? ", sinks" : "");
    if (scale.given) s << ", scale " << scale.value;
    if (align.is_bottom_right()) s << ", bottom_right";
    if (align.is_set() && !align.is_bottom_right()) s << ", diagonal offset " << align.fixed_offset();
    return s.str();
  }
};

/// A standard normal number for element i.
inline double normal_at(const giwa::philox& random, uint64 i) {
  const double u = random.uniform<double>(2 * i), v = random.uniform<double>(2 * i + 1);
  return std::sqrt(-2 * std::log(1 - u)) * std::cos(6.283185307179586 * v);
}

/// The tensors of a case; of packed sequences the views have a batch of 1, as in giwa::detail::attention_views.
template <class T, class O = T>
struct attention_case {
  case_options options;
  case_buffer<T, 4> q, k, v;
  case_buffer<O, 4> o;
  case_buffer<float, 3> lse;              // (batch, heads, queries)
  case_buffer<float, 1> sinks;            // (heads)
  std::vector<int> q_offsets, k_offsets;  // of packed sequences

  explicit attention_case(const case_options& given) : options(given) {
    case_options& c = options;
    if (c.packed()) {
      const auto sum = [](const std::vector<int64>& lengths, std::vector<int>& offsets) {
        offsets.assign(1, 0);
        for (const int64 n : lengths) offsets.push_back(offsets.back() + static_cast<int>(n));
        return int64{offsets.back()};
      };
      c.batch = 1;
      c.seq_q = sum(c.q_lengths, q_offsets);
      c.seq_k = sum(c.k_lengths, k_offsets);
    }
    q = new_buffer<T, 4>({c.batch, c.seq_q, c.heads, c.head_size}, c.layout[0], c.offset, false);
    const int64 k_batch = c.k_index.empty() || c.packed() ? c.batch : c.k_batch;
    k = new_buffer<T, 4>({k_batch, c.seq_k, c.kv_heads, c.head_size}, c.layout[1], c.offset, false);
    v = new_buffer<T, 4>({k_batch, c.seq_k, c.kv_heads, c.head_size_v}, c.layout[2], c.offset, false);
    o = new_buffer<O, 4>({c.batch, c.seq_q, c.heads, c.head_size_v}, c.layout[3], c.offset, true);
    lse = new_buffer<float, 3>({c.batch, c.heads, c.seq_q}, c.layout[3], c.offset, true);
    sinks = new_buffer<float, 1>({c.heads}, case_layout::contiguous, c.offset, false);
    randomize(q, 0, c.spread);
    randomize(k, 1, c.spread);
    randomize(v, 2, 1);
    randomize(sinks, 3, 2);
  }

  bool packed() const { return options.packed(); }
  int64 sequence_count() const { return packed() ? static_cast<int64>(options.q_lengths.size()) : options.batch; }
  /// Of the longest packed sequence.
  int64 max_q() const {
    int64 most = 0;
    for (const int64 n : options.q_lengths) most = std::max(most, n);
    return most;
  }

  giwa::detail::attention_views<T, O> views() {
    giwa::detail::attention_views<T, O> a{q.view(), k.view(), v.view(), o.view()};
    const auto given = [](const std::vector<int>& list) { return list.empty() ? nullptr : list.data(); };
    a.packed.q_lengths = given(options.q_used), a.packed.k_lengths = given(options.k_used);
    a.packed.k_batch_index = given(options.k_index);
    if (!packed()) return a;
    a.packed.q_offsets = q_offsets.data(), a.packed.k_offsets = k_offsets.data();
    a.packed.count = sequence_count(), a.packed.max_q = max_q();
    return a;
  }
  giwa::attention_options call_options() {
    giwa::attention_options a{};
    a.scale = options.scale;
    a.align = options.align;
    if (options.lse) a.lse = lse.view();
    if (options.sinks) a.sinks = sinks.view();
    return a;
  }
  void clear_outputs() {
    o.fill(0xff);
    lse.fill(0xff);
  }

 private:
  template <class E, int Rank>
  void randomize(case_buffer<E, Rank>& b, uint64 stream, double spread) const {
    const giwa::philox random(options.seed, stream);
    uint64 i = 0;
    b.for_each([&](std::size_t at) { b.memory[at] = giwa::convert<E>{}(spread * normal_at(random, i++)); });
  }
};

/// The three-dimensional views of packed sequences.
template <class T>
tensor_view<T, 3> without_batch(const tensor_view<T, 4>& v) {
  return {v.data(), {v.extent(1), v.extent(2), v.extent(3)}, {v.stride(1), v.stride(2), v.stride(3)}};
}

/// attention_forward on views that lie where `where` runs.
template <int HeadSize, int HeadSizeV, class Tile = giwa::automatic_tile, class Where, class T, class O, class Mask,
          class Score>
giwa::status forward_of(const Where& where, const giwa::detail::attention_views<T, O>& a, const Mask& mask,
                        const Score& score, const giwa::attention_options& options) {
  if (a.is_packed())
    return giwa::attention_forward<giwa::head_sizes<HeadSize, HeadSizeV>, giwa_test::accuracy_of<Tile>,
                                   giwa_test::tile_of<Tile>>(where, without_batch(a.q), without_batch(a.k),
                                                             without_batch(a.v), without_batch(a.o), mask, score,
                                                             giwa_test::with(options, a.packed));
  if (a.is_ragged())
    return giwa::attention_forward<giwa::head_sizes<HeadSize, HeadSizeV>, giwa_test::accuracy_of<Tile>,
                                   giwa_test::tile_of<Tile>>(where, a.q, a.k, a.v, a.o, mask, score,
                                                             giwa_test::with(options, a.packed));
  return giwa::attention_forward<giwa::head_sizes<HeadSize, HeadSizeV>, giwa_test::accuracy_of<Tile>,
                                 giwa_test::tile_of<Tile>>(where, a.q, a.k, a.v, a.o, mask, score, options);
}

}  // namespace giwa_test

#endif
