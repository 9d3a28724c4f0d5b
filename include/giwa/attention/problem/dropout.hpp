// SPDX-License-Identifier: MIT
// Dropout of attention weights: which weights a call drops, as a function of a seed and their coordinates alone.
#ifndef GIWA_ATTENTION_PROBLEM_DROPOUT_HPP
#define GIWA_ATTENTION_PROBLEM_DROPOUT_HPP

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
  static_assert(!detail::rotates_queries<Score> && !detail::hides_rotation<Score>,
                "giwa::dropout: only attention_cached takes rotated_queries, and it takes no dropout.");
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
      : seed(seed_), score(score_), offset(offset_), probability_(p), dropped_(of_256(p)) {
    for (int i = 0; i < 8; ++i) kept_bits_[i] = (256 - dropped_) >> i & 1 ? ~0u : 0;
    kept_scale_ = 256.0f / static_cast<float>(256 - dropped_);
  }

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
  /// The number of 256 that keep a weight, of eight bits: each of them 32 times, from the lowest. And the factor of the weights
  /// that are kept. The constructor computes both: a kernel that does so divides.
  ///@{
  GIWA_HOST_DEVICE constexpr const uint32* kept_bits() const { return kept_bits_; }
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
  float kept_scale_ = 1;
  uint32 kept_bits_[8] = {};
};

namespace detail {

template <class Score>
inline constexpr bool is_plain_score<dropout<Score>> = is_plain_score<Score>;
template <class Score>
inline constexpr bool drops_weights<dropout<Score>> = true;

/// The decisions for one head of one sequence. Two calls of Philox serve a group of 32 weights: those of 8 queries and 4 keys
/// that differ in bits 0, 1 and 3, and in bits 0 and 3. A warp with 16 rows of an accumulator of the tensor cores has whole
/// groups, be its rows queries or keys (kept_tile).
class dropout_bits {
 public:
  template <class Score>
  GIWA_HOST_DEVICE constexpr dropout_bits(const dropout<Score>& of, uint64 key, int batch, int head)
      : key_(key),
        batch_(static_cast<uint64>(static_cast<uint32>(of.first_batch) + static_cast<uint32>(batch)) << 32),
        head_(static_cast<uint64>(static_cast<uint32>(of.first_head) + static_cast<uint32>(head)) << 32),
        kept_bits_(of.kept_bits()) {}

  /// Whether the weight is kept. The probability must not be 0.
  GIWA_HOST_DEVICE constexpr bool operator()(int query, int key) const {
    return (of_group(query, key) >> bit(query, key) & 1) != 0;
  }

  /// The decisions of a group: one bit for each weight, 1 if it is kept. Each of the eight words has one bit of the numbers of
  /// all 32 weights, the first the lowest. A weight is kept if its number and the number of 256 that keep are 256 at least
  /// together: carries from bit to bit, one instruction for a word.
  GIWA_HOST_DEVICE constexpr uint32 of_group(int query, int key) const {
    constexpr uint32 same_query = ~11u, same_key = ~9u;
    const uint64 column = batch_ | (static_cast<uint32>(key) & same_key);
    const uint64 row = head_ | (static_cast<uint32>(query) & same_query);
    const philox random(key_, column);
    uint32 kept = 0;
    GIWA_UNROLL
    for (uint32 half = 0; half < 2; ++half) {
      const random_words words = random.rounds<7>(row | half);
      GIWA_UNROLL
      for (uint32 i = 0; i < 4; ++i) {
        const uint32 word = words.word[i], number = kept_bits_[4 * half + i];
        kept = (word & kept) | (number & (word | kept));
      }
    }
    return kept;
  }
  /// The bit of a weight in its group. Its own bits, from the highest: 1 and 0 of the query, 3 of the key, 3 of the query, 0
  /// of the key.
  GIWA_HOST_DEVICE static constexpr int bit(int query, int key) {
    return (query & 3) << 3 | (key & 8) >> 1 | (query & 8) >> 2 | (key & 1);
  }

 private:
  uint64 key_, batch_, head_;  // the last two in their upper halves
  const uint32* kept_bits_;
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
    const int groups = (rows + 15) / 16 * (Tile::columns / 16) * 8;
    const uint32 scale_bits = __builtin_bit_cast(uint32, scale);
    for (int g = block.rank(); g < groups; g += block.size()) {
      const int row = g / 8 / (Tile::columns / 16) * 16, column = g / 8 % (Tile::columns / 16) * 16;
      const int of_query = g % 8 / 4 * 4, of_key = g % 4 * 2;  // in the 16 x 16 weights
      const int query = (RowsAreKeys ? first_column + column : first_row + row) + of_query,
                key = (RowsAreKeys ? first_row + row : first_column + column) + of_key;
      const uint32 kept = bits.of_group(query, key);
      for (int j = 0; j < 32; ++j) {
        const int m = of_query + (j & 3) + (j & 4) * 2, n = of_key + (j >> 3 & 1) + (j >> 4) * 8;
        to(row + (RowsAreKeys ? n : m), column + (RowsAreKeys ? m : n)) =
            __builtin_bit_cast(float, scale_bits & (0u - (kept >> dropout_bits::bit(m, n) & 1)));  // no branch
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
  GIWA_HOST_DEVICE constexpr weight_factors(const dropout<Score>& of, int batch, int head)
      : bits_(of, of.key(), batch, head), scale_(1 / (1 - static_cast<double>(of.rounded_probability()))) {}
  GIWA_HOST_DEVICE constexpr double operator()(int query, int key) {
    if (scale_ == 1) return 1;
    // A row of 16 keys has four groups.
    const int group = key / 2 % 4;
    if (query != query_ || key / 16 != sixteen_[group]) {
      if (query != query_)
        for (int& sixteen : sixteen_) sixteen = -1;
      query_ = query, sixteen_[group] = key / 16, kept_[group] = bits_.of_group(query, key);
    }
    return (kept_[group] >> dropout_bits::bit(query, key) & 1) != 0 ? scale_ : 0;
  }

 private:
  dropout_bits bits_;
  double scale_;
  int query_ = -1, sixteen_[4] = {-1, -1, -1, -1};
  uint32 kept_[4] = {};
};

/// The part of dropout that a kernel reads once; nothing without dropout.
template <class Score>
GIWA_HOST_DEVICE constexpr auto dropout_key([[maybe_unused]] const Score& score) {
  if constexpr (drops_weights<Score>)
    return score.key();
  else
    return nothing{};
}
/// The same, in a form that shows the compiler that all threads of a warp agree.
template <class Block, class Score>
GIWA_HOST_DEVICE constexpr auto dropout_key([[maybe_unused]] const Block& block, const Score& score) {
  if constexpr (drops_weights<Score>)
    return block.shuffle(score.key(), 0);
  else
    return dropout_key(score);
}

}  // namespace detail

}  // namespace giwa::inline GIWA_ABI

#endif
