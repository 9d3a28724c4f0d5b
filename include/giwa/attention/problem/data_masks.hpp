// SPDX-License-Identifier: MIT
// Masks that read one bit for each score, or a length for each block: drafts as a tree, packed bits, and blocks with short ends.
#ifndef GIWA_ATTENTION_PROBLEM_DATA_MASKS_HPP
#define GIWA_ATTENTION_PROBLEM_DATA_MASKS_HPP

#include <giwa/attention/problem/masks.hpp>

namespace giwa::inline GIWA_ABI {

/// Keeps all keys before the drafts, and of the drafts those that each query's bits name: the mask of speculative decoding with a
/// tree of drafts. The queries are the drafts, and the last keys are theirs: draft j is the key on the diagonal of query j.
struct tree {
  const uint64* bits;  ///< (batch, queries, words), readable by the kernel: bit j % 64 of word j / 64 is draft j
  int words = 1;       ///< of a query; a draft beyond them is not kept
  int64 stride = 0;    ///< words from a sequence's bits to the next sequence's; 0: all sequences have the same tree
  alignment align = alignment::bottom_right;  ///< of the diagonal

  /// See attention_mask.
  ///@{
  static constexpr bool any_range = true;
  static constexpr bool any_head = true;
  GIWA_HOST_DEVICE bool operator()(attention_coord c) const {
    const int draft = c.key - (c.diagonal - c.query);
    if (draft < 0) return true;
    if (draft / 64 >= words) return false;
    return (bits[c.batch * stride + int64{c.query} * words + draft / 64] >> draft % 64 & 1) != 0;
  }
  GIWA_HOST_DEVICE uint32 key_bits(attention_coord c) const {
    const int draft = c.key - (c.diagonal - c.query), first = draft < 0 ? 0 : draft, before = first - draft;
    if (before >= 32) return ~uint32{0};
    const uint64* const of_query = bits + (c.batch * stride + int64{c.query} * words);
    const int word = first / 64, bit = first % 64;
    uint64 drafts = word < words ? of_query[word] >> bit : 0;
    if (bit > 32 && word + 1 < words) drafts |= of_query[word + 1] << (64 - bit);
    return static_cast<uint32>(drafts << before) | ((uint32{1} << before) - 1);
  }
  GIWA_HOST_DEVICE constexpr tile_keep classify(const score_tile& t) const {
    return detail::keep_of(t.last_key < t.offset, int64{t.first_key} - t.offset < int64{64} * words);
  }
  GIWA_HOST_DEVICE constexpr status check(const attention_sizes& s) const {
    if (words < 0) return status::invalid("tree", "the number of words is negative", bound::at_least, 0, words);
    return bits == nullptr && words > 0 && s.seq_q != 0 ? status::invalid("tree", "a pointer is null") : status{};
  }
  ///@}
};

/// Keeps the keys whose bit is set, one bit for each query and key: FlashInfer's packed custom mask. Bit i of a sequence is bit
/// i % 8 of byte i / 8, and query q has the bits from q * keys on. Every tile is read score by score: a block_map of the same bits
/// (make_block_map()) lets kernels pass over those that are empty.
struct packed_bits {
  const unsigned char* bits;  ///< readable by the kernel
  const int* keys;            ///< (batch) bits of a query, that is keys of its sequence, readable by the kernel
  const int* queries =
      nullptr;  ///< (batch) queries of each sequence; needed for a map of sequences whose queries differ in number
  const int* offsets = nullptr;  ///< (batch) the first byte of each sequence, readable by the kernel; or null
  int64 stride = 0;              ///< without offsets: bytes from a sequence's bits to the next sequence's

  /// See attention_mask.
  ///@{
  static constexpr bool any_range = true;
  static constexpr bool any_head = true;
  GIWA_HOST_DEVICE bool operator()(attention_coord c) const {
    const int count = keys[c.batch];
    if (c.key >= count || (queries != nullptr && c.query >= queries[c.batch])) return false;
    const int64 first = offsets != nullptr ? int64{offsets[c.batch]} : c.batch * stride,
                bit = int64{c.query} * count + c.key;
    return (bits[first + bit / 8] >> bit % 8 & 1) != 0;
  }
  GIWA_HOST_DEVICE uint32 key_bits(attention_coord c) const {
    const int count = keys[c.batch];
    if (c.key >= count || (queries != nullptr && c.query >= queries[c.batch])) return 0;
    const int64 bit = int64{c.query} * count + c.key;
    const int left = count - c.key < 32 ? count - c.key : 32, shift = static_cast<int>(bit % 8);
    const unsigned char* const from =
        bits + ((offsets != nullptr ? int64{offsets[c.batch]} : c.batch * stride) + bit / 8);
    uint64 found = 0;
    GIWA_UNROLL
    for (int i = 0; i < 5; ++i)
      if (8 * i < shift + left) found |= uint64{from[i]} << 8 * i;
    return static_cast<uint32>(found >> shift) & (left < 32 ? (uint32{1} << left) - 1 : ~uint32{0});
  }
  GIWA_HOST_DEVICE constexpr tile_keep classify(const score_tile&) const { return tile_keep::some; }
  GIWA_HOST_DEVICE constexpr status check(const attention_sizes& s) const {
    const bool missing = (bits == nullptr || keys == nullptr) && s.seq_q != 0 && s.seq_k != 0;
    return missing ? status::invalid("packed_bits", "a pointer is null") : status{};
  }
  ///@}
};

/// Keeps the first keys of each block of keys, as many as its length says: blocks that were filled up to one size, as in video
/// attention. `block_sparse{map} & block_lengths{lengths, 64}`.
struct block_lengths {
  const int* lengths;      ///< (batch, heads, blocks of keys) keys of each block, readable by the kernel
  int block_keys;          ///< keys of a block, a power of two
  int64 batch_stride = 0;  ///< elements from a sequence's lengths to the next sequence's
  int64 head_stride = 0;   ///< elements from a head's lengths to the next head's

  /// See attention_mask.
  ///@{
  static constexpr bool any_range = true;
  GIWA_HOST_DEVICE int length(int batch, int head, int block) const {
    return lengths[batch * batch_stride + head * head_stride + block];
  }
  GIWA_HOST_DEVICE bool operator()(attention_coord c) const {
    return (c.key & (block_keys - 1)) < length(c.batch, c.head, block_of(c.key));
  }
  GIWA_HOST_DEVICE tile_keep classify(const score_tile& t) const {
    const int block = block_of(t.first_key);
    if (block != block_of(t.last_key)) return tile_keep::some;
    const int n = length(t.batch, t.head, block);
    return detail::keep_of((t.last_key & (block_keys - 1)) < n, (t.first_key & (block_keys - 1)) < n);
  }
  GIWA_HOST_DEVICE constexpr status check(const attention_sizes& s) const {
    if (!is_power_of_two(block_keys)) return status::invalid("block_lengths", "block_keys must be a power of two");
    return lengths == nullptr && s.seq_k != 0 ? status::invalid("block_lengths", "a pointer is null") : status{};
  }
  ///@}

 private:
  GIWA_HOST_DEVICE int block_of(int key) const { return key >> popcount(static_cast<uint32>(block_keys) - 1); }
};

/// Which parts of the queries see which parts of the keys, at most eight of each, passed by value. The host knows it, so a ring sends no
/// keys that a part hides: `block_sparse{map} & parts_of(copy)`, with a copy of the map in host memory.
struct visible_parts {
  uint64 bits;  ///< bit 8 i + j: part i of the queries sees part j of the keys
  int queries;  ///< of a part, at least 1; the last part has the rest
  int keys;     ///< of a part, at least 1; the last part has the rest

  /// See attention_mask.
  ///@{
  static constexpr bool any_range = true;
  static constexpr bool any_head = true;
  GIWA_HOST_DEVICE static constexpr bool known_on_host() { return true; }
  GIWA_HOST_DEVICE constexpr bool operator()(attention_coord c) const {
    return (bits >> (8 * part(c.query, queries) + part(c.key, keys)) & 1) != 0;
  }
  GIWA_HOST_DEVICE constexpr tile_keep classify(const score_tile& t) const {
    const int first = part(t.first_key, keys), last = part(t.last_key, keys);
    const uint64 of_keys = ((uint64{2} << last) - 1) >> first << first;
    bool any = false, all = true;
    for (int i = part(t.first_query, queries); i <= part(t.last_query, queries); ++i) {
      const uint64 seen = bits >> (8 * i) & of_keys;
      any = any || seen != 0, all = all && seen == of_keys;
    }
    return detail::keep_of(all, any);
  }
  GIWA_HOST_DEVICE constexpr status check(const attention_sizes&) const {
    const int least = queries < keys ? queries : keys;
    if (least >= 1) return {};
    return status::invalid("visible_parts", "a part must have queries and keys", bound::at_least, 1, least);
  }
  ///@}

 private:
  GIWA_HOST_DEVICE static constexpr int part(int at, int size) { return at / size < 7 ? at / size : 7; }
};

}  // namespace giwa::inline GIWA_ABI

#endif
