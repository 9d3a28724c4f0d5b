// SPDX-License-Identifier: MIT
// Dropout of attention weights: which weights a call drops, as a function of a seed and their coordinates alone.
#ifndef GIWA_ATTENTION_PROBLEM_DROPOUT_HPP
#define GIWA_ATTENTION_PROBLEM_DROPOUT_HPP

#include <giwa/arch/byte_signs.hpp>
#include <giwa/attention/problem/score.hpp>
#include <giwa/numeric/philox.hpp>

namespace giwa::inline GIWA_ABI {

/// Drops weights of the softmax at random, for training: `dropout(0.1f, seed)` in the place of the score modifier, or
/// `dropout(0.1f, seed, softcap{30})` together with one. With D = 0 for a dropped weight and 1 / (1 - p) for another,
/// attention_forward computes o = (P D) v. lse is that of P, and the value of a sink is 0 either way. attention_backward
/// with the same object gives the gradients of that o.
///
/// A decision is a function of the seed, the number of the sequence, the head of q, and the query and the key within
/// their sequence: Philox4x32 with 7 rounds, 8 bits of it. So attention_forward and attention_backward drop the same
/// weights on every GPU and on the CPU, for all element types, head sizes, tiles and masks, and in every run. Packed
/// sequences and those of a tensor of rank 4 drop the same ones, if they have the same number. The bits are not those
/// of PyTorch.
///
/// The probability is rounded to a multiple of 1/256, but not to 0 or 1; rounded_probability() is p of the formula
/// above, so that the mean of D is 1. With the probability 0 a call does exactly what it does without dropout.
/// attention_cached and the calls on several GPUs take no dropout.
template <score_modifier Score = plain_score>
class dropout {
 public:
  static_assert(!detail::drops_weights<Score> && !detail::hides_dropout<Score>,
                "giwa::dropout: the score modifier in a dropout must not have another one.");
  uint64 seed;  ///< another one for each layer and each step of training
  Score score;  ///< changes the scores before the softmax
  /// Or null: a number in memory that the kernels read when they run, so that the replays of a CUDA graph may drop
  /// other weights each time. Each number gives other weights. It must be the same for attention_forward and
  /// attention_backward.
  const uint64* offset = nullptr;
  int first_batch = 0;  ///< the number of the call's first sequence: not 0 where a batch is cut into several calls
  int first_head = 0;   ///< the number of the call's first head of q: not 0 where the heads are

  /// The probability of a weight to be dropped, the seed, the score modifier and the number in memory.
  GIWA_HOST_DEVICE constexpr dropout(float p, uint64 seed_, const Score& score_ = {}, const uint64* offset_ = nullptr)
      : seed(seed_), score(score_), offset(offset_), probability_(p), dropped_(of_256(p)) {}

  /// The probability, and the one that a call uses, a multiple of 1/256.
  ///@{
  GIWA_HOST_DEVICE constexpr float probability() const { return probability_; }
  GIWA_HOST_DEVICE constexpr float rounded_probability() const { return static_cast<float>(dropped_) / 256; }
  ///@}

  /// See score_modifier.
  ///@{
  GIWA_HOST_DEVICE constexpr float operator()(float x, attention_coord c) const { return score(x, c); }
  template <detail::dual_number Number>
    requires requires(const Score& f, Number x, attention_coord c) { f(x, c); }
  GIWA_HOST_DEVICE constexpr Number operator()(Number x, attention_coord c) const {
    return score(x, c);
  }
  GIWA_HOST_DEVICE constexpr dual<float> value_and_slope(float x, attention_coord c) const
    requires detail::has_slope<Score>
  {
    return detail::value_and_slope(score, x, c);
  }
  GIWA_HOST_DEVICE constexpr detail::alignment_request requested_alignment() const { return detail::request_of(score); }
  GIWA_HOST_DEVICE constexpr status check(const attention_sizes& s) const {
    const status own = check_numbers();
    return own.ok() ? detail::check_callable(score, s) : own;
  }
  ///@}
  /// The rules for the numbers of this object.
  GIWA_HOST_DEVICE constexpr status check_numbers() const {
    if (!(probability_ >= 0 && probability_ < 1))
      return status::invalid("dropout", "the probability must be at least 0 and less than 1");
    if (first_batch < 0 || first_head < 0)
      return status::invalid("dropout", "the numbers of the first sequence and of the first head must not be negative");
    return {};
  }

  /// The score modifier.
  GIWA_HOST_DEVICE constexpr operator const Score&() const { return score; }
  /// How many of 256 equally likely bytes keep a weight, modulo 256, in each byte; and the factor of the weights that are
  /// kept. The constructor computes them, because a kernel that does so divides.
  ///@{
  GIWA_HOST_DEVICE constexpr uint32 kept_bytes() const { return kept_bytes_; }
  GIWA_HOST_DEVICE constexpr float kept_scale() const { return kept_scale_; }
  ///@}
  /// The key of Philox. Reads `offset`.
  GIWA_HOST_DEVICE constexpr uint64 key() const {
    // An odd number without small multiples: seeds and offsets that count up do not meet.
    return offset == nullptr ? seed : seed + *offset * 0x9e3779b97f4a7c15u;
  }

 private:
  GIWA_HOST_DEVICE static constexpr int of_256(float p) {
    if (!(p > 0)) return 0;
    const int rounded = p < 1 ? static_cast<int>(p * 256 + 0.5f) : 255;
    return rounded < 1 ? 1 : rounded > 255 ? 255 : rounded;
  }

  float probability_;
  int dropped_;  // of 256
  uint32 kept_bytes_ = static_cast<uint32>(256 - dropped_) % 256 * 0x01010101u;
  float kept_scale_ = 256.0f / static_cast<float>(256 - dropped_);
};

namespace detail {

template <class Score>
inline constexpr bool is_plain_score<dropout<Score>> = is_plain_score<Score>;
template <class Score>
inline constexpr bool drops_weights<dropout<Score>> = true;

/// The decisions for one head of one sequence. One call of Philox serves 16 weights: queries q and keys k that differ in
/// bits 0 and 3 alone. Of these a thread has 8 in an accumulator of the tensor cores, be its rows queries or keys, because
/// it has two rows at a distance of 8 and two neighbouring columns of every 8.
class dropout_bits {
 public:
  template <class Score>
  GIWA_HOST_DEVICE constexpr dropout_bits(const dropout<Score>& of, uint64 key, int batch, int head)
      : random_(key, static_cast<uint64>(static_cast<uint32>(of.first_batch + batch)) << 32 |
                         static_cast<uint32>(of.first_head + head)),
        kept_(of.kept_bytes()) {}

  /// Whether the weight is kept.
  GIWA_HOST_DEVICE constexpr bool operator()(int query, int key) const {
    return is_kept(of_group(query, key), query, key);
  }

  /// The bits of a group. Byte (query & 8) / 4 + (key & 8) / 8 of word (query & 1) * 2 + (key & 1) belongs to a weight.
  GIWA_HOST_DEVICE constexpr random_words of_group(int query, int key) const {
    constexpr uint32 others = ~9u;
    const uint64 row = static_cast<uint32>(query) & others, column = static_cast<uint32>(key) & others;
    return random_.rounds<7>(column << 32 | row);
  }
  /// Bit 7 of each byte: whether the weight of that byte is kept, because the sum with the byte of kept_ is 256 at least.
  /// Three instructions for four of them. The probability must not be 0.
  GIWA_HOST_DEVICE constexpr uint32 kept(uint32 word) const {
    constexpr uint32 low = 0x7f7f7f7fu;
    const uint32 sum = (word & low) + (kept_ & low);
    return (word & kept_) | ((word | kept_) & sum);
  }

  /// Whether a weight of a group is kept.
  GIWA_HOST_DEVICE constexpr bool is_kept(const random_words& group, int query, int key) const {
    const int byte = (query & 8) / 4 + (key & 8) / 8;
    return kept_ == 0 || (kept(group.word[(query & 1) * 2 + (key & 1)]) >> (8 * byte + 7) & 1) != 0;
  }

 private:
  philox random_;
  uint32 kept_;  // of 256, in each byte; 0 for all
};

/// The decisions for registers [i, i + 8) of a thread's accumulator of the tensor cores (warp_map, warpgroup_map), i being a
/// multiple of 8: two rows and twice two columns.
template <bool RowsAreKeys>
class kept_registers {
 public:
  kept_registers() = default;
  /// `row` and `column` are those of register i, counted in their sequence; the tile begins at multiples of 16.
  GIWA_HOST_DEVICE kept_registers(const dropout_bits& bits, int row, int column) {
    const random_words group = RowsAreKeys ? bits.of_group(column, row) : bits.of_group(row, column);
    const bool odd = (row & 1) != 0;
    constexpr int step = RowsAreKeys ? 1 : 2, next = RowsAreKeys ? 2 : 1;
    of_columns_[0] = bits.kept(odd ? group.word[step] : group.word[0]);
    of_columns_[1] = bits.kept(odd ? group.word[step + next] : group.word[next]);
  }

  /// Whether the weight in register i is kept.
  GIWA_HOST_DEVICE bool operator[](int i) const { return (of_columns_[i % 2] >> (8 * byte_of(i) + 7) & 1) != 0; }
  /// The mask of registers i and i + 1, i even, as two 16-bit numbers.
  GIWA_HOST_DEVICE uint32 pair(int i) const {
    return arch::halves_of_signs(of_columns_[0], of_columns_[1], byte_of(i));
  }

 private:
  // Registers 0, 1 and 4, 5 are in the first row, 4 to 7 in the second pair of columns.
  GIWA_HOST_DEVICE static constexpr int byte_of(int i) {
    const int row = i / 2 % 2, columns = i / 4 % 2;
    return RowsAreKeys ? 2 * columns + row : 2 * row + columns;
  }

  uint32 of_columns_[2];  // the first and the second of each pair
};

/// The decisions for all registers of a thread's accumulator `Map` of the tensor cores.
template <class Map, bool RowsAreKeys>
class kept_tile {
 public:
  static constexpr int count = Map::registers / 8;

  /// The tile begins at `first_row` and `first_column`, multiples of 16.
  GIWA_HOST_DEVICE void find(const dropout_bits& bits, int thread, int first_row, int first_column) {
    GIWA_UNROLL
    for (int i = 0; i < count; ++i)
      of_[i] = {bits, first_row + Map::row(thread, Map::slot(8 * i)), first_column + Map::column(thread, 8 * i)};
  }
  /// Whether the weight in register i is kept.
  GIWA_HOST_DEVICE bool operator[](int i) const { return of_[i / 8][i % 8]; }
  /// Clears the dropped weights of a left operand, as to_operand() makes it, in all its parts.
  template <stdlib::size_t Parts>
  GIWA_HOST_DEVICE void clear(uint32 (&operand)[Parts][stdlib::size_t{Map::registers} / 2]) const {
    GIWA_UNROLL
    for (int i = 0; i < Map::registers; i += 2) {
      const uint32 mask = of_[i / 8].pair(i % 8);
      GIWA_UNROLL
      for (stdlib::size_t part = 0; part < Parts; ++part) operand[part][i / 2] &= mask;
    }
  }

 private:
  kept_registers<RowsAreKeys> of_[stdlib::size_t{count}];
};

/// A thread of the CPU as a block.
struct lone_thread {
  GIWA_HOST_DEVICE static constexpr int rank() { return 0; }
  GIWA_HOST_DEVICE static constexpr int size() { return 1; }
};

/// Writes what each weight of a tile is multiplied by, `scale` or 0, to a tile in shared memory of (queries, keys), or (keys,
/// queries), which begins at multiples of 16; to its first `rows` rows at least. All threads of the block call it. Without
/// dropout it does nothing.
template <bool RowsAreKeys, class Block, class Score, class Head, class Tile>
GIWA_HOST_DEVICE void put_weight_factors([[maybe_unused]] const Block& block, [[maybe_unused]] const Score& score,
                                         [[maybe_unused]] const Head& h, [[maybe_unused]] int first_row,
                                         [[maybe_unused]] int first_column, [[maybe_unused]] float scale,
                                         [[maybe_unused]] Tile& to, [[maybe_unused]] int rows = Tile::rows) {
  if constexpr (drops_weights<Score>) {
    const dropout_bits bits(score, score.key(), h.batch, h.head);
    static_assert(Tile::rows % 16 == 0 && Tile::columns % 16 == 0);
    constexpr int columns = Tile::columns / 4;
    const int groups = (rows + 15) / 16 * 4 * columns;
    const auto begin = [](int group) { return group / 4 * 16 + group % 4 * 2; };
    for (int g = block.rank(); g < groups; g += block.size()) {
      const int row = begin(g / columns), column = begin(g % columns);
      const int query = RowsAreKeys ? first_column + column : first_row + row,
                key = RowsAreKeys ? first_row + row : first_column + column;
      const random_words group = bits.of_group(query, key);
      for (int j = 0; j < 16; ++j) {
        const int m = j / 8 * 8 + j / 4 % 2, n = j / 2 % 2 * 8 + j % 2;
        to(row + m, column + n) =
            bits.is_kept(group, query + (RowsAreKeys ? n : m), key + (RowsAreKeys ? m : n)) ? scale : 0.0f;
      }
    }
  }
}

/// 1 / (1 - p): the factor of weights that are kept.
template <class Score>
GIWA_HOST_DEVICE constexpr float kept_scale([[maybe_unused]] const Score& score) {
  if constexpr (drops_weights<Score>)
    return score.kept_scale();
  else
    return 1;
}

/// What the weight of each query and key is multiplied by, for the reference: 1 without dropout.
template <class Score>
struct weight_factors {
  GIWA_HOST_DEVICE constexpr weight_factors(const Score&, int, int) {}
  GIWA_HOST_DEVICE constexpr double operator()(int, int) const { return 1; }
};
template <class Score>
struct weight_factors<dropout<Score>> {
  dropout_bits bits;
  double scale;
  GIWA_HOST_DEVICE constexpr weight_factors(const dropout<Score>& of, int batch, int head)
      : bits(of, of.key(), batch, head), scale(1 / (1 - static_cast<double>(of.rounded_probability()))) {}
  GIWA_HOST_DEVICE constexpr double operator()(int query, int key) const { return bits(query, key) ? scale : 0; }
};

/// The part of dropout that a kernel reads once; nothing without dropout.
template <class Score>
GIWA_HOST_DEVICE constexpr auto dropout_key([[maybe_unused]] const Score& score) {
  if constexpr (drops_weights<Score>)
    return score.key();
  else
    return nothing{};
}

}  // namespace detail

}  // namespace giwa::inline GIWA_ABI

#endif
