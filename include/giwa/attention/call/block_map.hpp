// SPDX-License-Identifier: MIT
// make_block_map: writes a block_map from lists, a matrix of booleans, scores of blocks, or a mask.
#ifndef GIWA_ATTENTION_CALL_BLOCK_MAP_HPP
#define GIWA_ATTENTION_CALL_BLOCK_MAP_HPP

#include <giwa/attention/blocks/rows.hpp>
#include <giwa/attention/call/forward_types.hpp>
#include <giwa/attention/problem/data_masks.hpp>
#include <giwa/attention/problem/mask_combinators.hpp>

namespace giwa::inline GIWA_ABI {

namespace detail {

template <class Source>
struct host_block_map;  // defined by <giwa/host.hpp>

inline namespace GIWA_ARCH_TAG {
template <class Source>
struct stream_block_map;  // defined by <giwa/block_map.cuh>
}

}  // namespace detail

inline namespace GIWA_ARCH_TAG {

/// Writes which blocks of scores are visible: `make_block_map(stream, block_lists{.full = {counts, indices}}, map)`. Then
/// `block_sparse{map}` is a mask of attention_forward(), attention_backward() and attention_cached().
///
/// Parameters:
///   - where: a stream of the current device, or giwa::host
///   - source: what says which blocks are visible, one of the kinds below. Views have batch and heads of the map; a stride of 0
///     repeats them. Any strides
///   - map: its sizes, and `words` of map.bytes() bytes, aligned to 16, which are overwritten
///
/// Kinds of sources:
/// - block_lists: numbers of columns of blocks for each row of blocks, full and partial. Entries that are no column, and counts
///   below 0 or above the capacity, are left out, and added to `*map.errors`.
/// - block_rows: the same as rows of a sparse matrix. A row whose offsets are not in order within `indices` has no blocks, and
///   counts as one error.
/// - `tensor_view<const bool, 4>`: (batch, heads, queries, keys), true is visible. A block is full where all its scores are, so
///   that of a partial block `block_sparse` must ask a mask that reads the same scores.
/// - score_threshold, score_top: scores of blocks; see there.
/// - any mask: full and empty blocks are found by classify(), and where it does not know, by all scores of the block.
///   `block_sparse{map, mask}` is then the same mask, if the mask is the same for all sequences and heads that share a part of the
///   map, and its diagonal does not depend on lengths that differ: it is asked with the queries and keys of the map, and with
///   head and sequence 0 where the map has one for all.
///
/// On a stream of the current device: asynchronous, two launches, allocates nothing, may be captured; sources are read when the
/// kernels run. With giwa::host: done when it returns (`#include <giwa/host.hpp>`). The result is deterministic, and the same bits
/// on host and device. Errors: sizes that do not fit together, too little alignment, a source that overlaps the map, memory that
/// the GPU cannot use, those of launch(). Nothing is written then. Source of the formats: He et al. 2024, "FlexAttention"; Ye et
/// al. 2025, "FlashInfer".
template <detail::attention_place Where, class Source>
status make_block_map(const Where& where, const Source& source, const block_map& map) {
  static_assert(detail::block_map_source<Source>,
                "giwa::make_block_map: the source must be giwa::block_lists, block_rows, score_threshold, score_top, "
                "tensor_view<const bool, 4> or a mask.");
  static_assert(goes_as_bytes<Source>,
                "giwa::make_block_map: a mask is copied to the device as bytes: make it trivially copyable.");
  if (const status s = map.check(); !s.ok()) return s;
  if (const status s = detail::block_source<Source>::check(map, source); !s.ok()) return s;
  if constexpr (stdlib::same_as<Where, host_t>) {
    static_assert(detail::defined<detail::host_block_map<Source>>,
                  "giwa::make_block_map(giwa::host, ...) needs #include <giwa/host.hpp>.");
    return detail::host_block_map<Source>::run(map, source);
  } else {
    static_assert(
        detail::defined<detail::stream_block_map<Source>>,
        "giwa::make_block_map on a stream needs #include <giwa/block_map.cuh>, in a file that nvcc compiles.");
    return detail::stream_block_map<Source>::run(static_cast<cudaStream_t>(where), map, source);
  }
}

}  // namespace GIWA_ARCH_TAG

}  // namespace giwa::inline GIWA_ABI

#endif
