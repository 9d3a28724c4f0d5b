// SPDX-License-Identifier: MIT
// store: writes a register tile to shared or global memory, rounded to the type of the target.
#ifndef GIWA_TILE_REGISTER_COPY_CUH
#define GIWA_TILE_REGISTER_COPY_CUH

#include <giwa/base/assert.hpp>
#include <giwa/numeric/precision.hpp>
#include <giwa/numeric/tensor_view.hpp>
#include <giwa/tile/copy_checks.hpp>
#include <giwa/tile/instructions.cuh>
#include <giwa/tile/register_tile.hpp>
#include <giwa/tile/shared_tile.hpp>

namespace giwa::inline GIWA_ABI {

namespace detail {

/// Whether a map is that of a tensor-core accumulator, whose registers are pairs of neighbouring columns.
template <class Map>
inline constexpr bool is_accumulator_map = false;
template <int Rows, int Columns>
inline constexpr bool is_accumulator_map<warp_map<Rows, Columns>> = true;
template <int Columns>
inline constexpr bool is_accumulator_map<warpgroup_map<Columns>> = true;

template <class T>
GIWA_HOST_DEVICE uint32 packed_word(float low, float high) {
  const auto two = pack<T>(low, high);
  uint32 word;
  __builtin_memcpy(&word, &two, 4);
  return word;
}
template <class T>
GIWA_DEVICE float2 unpacked_word(uint32 word) {
  typename packed_pair<T>::type two;
  __builtin_memcpy(&two, &word, 4);
  if constexpr (stdlib::same_as<T, fp16>)
    return __half22float2(two);
  else
    return __bfloat1622float2(two);
}

}  // namespace detail

/// Writes columns of a register tile, rounded to T, to rows of a shared tile. All threads of the group that holds the registers
/// call it. Accumulators are written to 16-bit tiles by stmatrix on sm_90 and later, without bank conflicts if the tile has a
/// 128-byte swizzle.
///
/// Parameters:
///   - thread: the rank in the group
///   - from: the register tile
///   - first_column: of `from`, from which the columns of `to` are written; a multiple of 8, and a constant after unrolling
///   - to: the shared tile
///   - first_row: of `to`
template <class Map, class T, class Shape, class Layout>
GIWA_HOST_DEVICE void store(int thread, const register_tile<float, Map>& from, int first_column,
                            shared_tile<T, Shape, Layout>& to, int first_row = 0) {
  static_assert(
      Map::shape::columns % Shape::columns == 0 && Shape::rows % Map::shape::rows == 0,
      "giwa::store: the columns of the shared tile must divide those of the register tile, and its rows must be "
      "a multiple of the rows of the register tile.");
  GIWA_ASSERT(first_column % 8 == 0 && first_column >= 0 && first_column + Shape::columns <= Map::shape::columns,
              "the register tile must have the columns from first_column on, a multiple of 8");
  using tile = shared_tile<T, Shape, Layout>;
  constexpr bool by_matrices = GIWA_ARCH_CAPABILITY >= 90 && detail::is_accumulator_map<Map> && sizeof(T) == 2 &&
                               tile::has_chunks && Shape::columns % 16 == 0;
  if constexpr (by_matrices) {
    constexpr int per_row = Map::shape::columns / 2;  // registers of 16 rows
    const int lane = thread % 32, row = first_row + Map::row(thread - lane, 0) + lane % 16;
    GIWA_UNROLL
    for (int block = 0; block < Map::registers / per_row; ++block) {
      GIWA_UNROLL
      for (int column = 0; column < Shape::columns; column += 16) {
        const float* const v = from.value + block * per_row + (first_column + column) / 2;
        const uint32 words[4] = {detail::packed_word<T>(v[0], v[1]), detail::packed_word<T>(v[2], v[3]),
                                 detail::packed_word<T>(v[4], v[5]), detail::packed_word<T>(v[6], v[7])};
        arch::store_matrices(arch::shared_address(to.chunk(row + 16 * block, column + lane / 16 * 8)), words);
      }
    }
  } else {
    GIWA_UNROLL
    for (int i = 0; i < Map::registers; ++i) {
      const int column = Map::column(thread, i) - first_column;
      if (0 <= column && column < Shape::columns)
        to(first_row + Map::row(thread, Map::slot(i)), column) = convert<T>{}(from.value[i]);
    }
  }
}

/// Writes a register tile, rounded to T, to a view. All threads of the group that holds the registers may call it, in any order.
/// Two neighbouring elements of an accumulator are written at once if both are in the view and aligned.
///
/// Parameters:
///   - thread: the rank in the group
///   - from: the register tile
///   - to: the view; elements outside it are not written
///   - origin: row and column in the view of the tile's first element
template <class Map, class T>
GIWA_HOST_DEVICE void store(int thread, const register_tile<float, Map>& from, const tensor_view<T, 2>& to,
                            const giwa::index<2>& origin) {
  detail::require_output<T>();
  constexpr bool pairs = detail::is_accumulator_map<Map>;
  struct alignas(2 * sizeof(T)) pair {
    T element[2];
  };
  const bool aligned = pairs && to.stride(1) == 1 && (to.stride(0) | origin[1]) % 2 == 0 &&
                       reinterpret_cast<uint64>(to.data()) % sizeof(pair) == 0;
  const auto inside = [](int64 i, int64 extent) { return 0 <= i && i < extent; };
  GIWA_UNROLL
  for (int i = 0; i < Map::registers; i += pairs ? 2 : 1) {
    const int64 row = origin[0] + Map::row(thread, Map::slot(i)), column = origin[1] + Map::column(thread, i);
    if (!inside(row, to.extent(0))) continue;
    T* const at = to.data() + row * to.stride(0) + column * to.stride(1);
    if constexpr (pairs) {
      const pair both = {convert<T>{}(from.value[i]), convert<T>{}(from.value[i + 1])};
      if (aligned && inside(column, to.extent(1) - 1)) {
        *reinterpret_cast<pair*>(at) = both;
        continue;
      }
      if (inside(column + 1, to.extent(1))) at[to.stride(1)] = both.element[1];
    }
    if (inside(column, to.extent(1))) *at = convert<T>{}(from.value[i]);
  }
}

namespace detail {

/// Returns whether 0 <= i < extent.
GIWA_HOST_DEVICE constexpr bool is_inside(int64 i, int64 extent) {
  return static_cast<uint64>(i) < static_cast<uint64>(extent);
}

/// 8 bytes that are written at once.
struct alignas(8) pair_of_words {
  uint32 word[2];
};

/// Each of four lanes holds a word of two chunks of 16 bytes. Returns the halves of the first chunk in lanes 0 and 2, and
/// those of the second in lanes 1 and 3. All lanes of the warp call it.
template <class Block>
GIWA_HOST_DEVICE pair_of_words exchange_words(const Block& block, uint32 first, uint32 second) {
  const bool odd = (block.lane() & 1) != 0;
  const uint32 other = block.shuffle_xor(odd ? first : second, 1);
  return {odd ? other : first, odd ? second : other};
}

}  // namespace detail

/// Writes an accumulator as store() does, to a view whose last dimension is contiguous. If T has 16 bits and the rows of the
/// view are aligned to 8 bytes and a multiple of them, lanes exchange elements so that four of them write 32 bytes. All lanes
/// of the warp call it.
///
/// Parameters:
///   - block: of the op
///   - thread, from, to, origin: as for store()
template <class Block, class Map, class T>
GIWA_HOST_DEVICE void store_rows(const Block& block, int thread, const register_tile<float, Map>& from,
                                 const tensor_view<T, 2>& to, const giwa::index<2>& origin) {
  detail::require_output<T>();
  static_assert(
      detail::is_accumulator_map<Map>,
      "giwa::store_rows: pass an accumulator of the tensor cores, a warp_tile or warpgroup_tile; use store() for "
      "others.");
  constexpr int columns = Map::shape::columns, per_row = columns / 2;  // registers of 16 rows
  if constexpr (sizeof(T) == 2 && columns % 16 == 0) {
    constexpr int piece = 4;
    const bool pieces = (to.stride(0) | to.extent(1) | origin[1]) % piece == 0 && origin[1] >= 0 &&
                        reinterpret_cast<uint64>(to.data()) % 8 == 0;
    if (block.all(pieces)) {  // a vote, because all lanes must take part in the exchange
      const int lane = thread % 4, own = lane % 2 * 8 + lane / 2 * piece;
      const int64 left = to.extent(1) - origin[1] - own;
      const int valid_columns = left < 0 ? 0 : left < columns ? static_cast<int>(left) : columns;
      GIWA_UNROLL
      for (int slot = 0; slot < Map::rows; ++slot) {
        const int64 row = origin[0] + Map::row(thread, slot);
        const int end = detail::is_inside(row, to.extent(0)) ? valid_columns : 0;
        T* const at = to.data() + (row * to.stride(0) + origin[1] + own);
        GIWA_UNROLL
        for (int first = 0; first < columns; first += 16) {
          const float* const two = from.value + slot / 2 * per_row + slot % 2 * 2 + first / 2;
          const auto words = detail::exchange_words(block, detail::packed_word<T>(two[0], two[1]),
                                                    detail::packed_word<T>(two[4], two[5]));
          if (first < end) *reinterpret_cast<detail::pair_of_words*>(at + first) = words;
        }
      }
      return;
    }
  }
  GIWA_UNROLL
  for (int slot = 0; slot < Map::rows; ++slot) {
    const int64 row = origin[0] + Map::row(thread, slot), first = origin[1] + Map::column(thread, 0);
    if (!detail::is_inside(row, to.extent(0))) continue;
    T* const at = to.data() + row * to.stride(0);
    GIWA_UNROLL
    for (int i = 0; i < Map::registers; ++i)
      if (Map::slot(i) == slot && detail::is_inside(first + Map::column(0, i), to.extent(1)))
        at[first + Map::column(0, i)] = convert<T>{}(from.value[i]);
  }
}

#if !defined(GIWA_DOXYGEN)  // calls that do not compile, and the reason
template <class Map, class To>
  requires(!detail::matrix_view<To> && !stdlib::integral<To>)
GIWA_HOST_DEVICE void store(int, const register_tile<float, Map>&, const To&, const giwa::index<2>&) {
  detail::require_matrix_view<To>();
}
template <class Group, class Map, class... Arguments>
  requires requires(const Group& group) { group.rank(); }
GIWA_HOST_DEVICE void store(const Group&, const register_tile<float, Map>&, const Arguments&...) {
  static_assert(detail::always_false<Group>,
                "giwa::store: pass the rank of the thread, block.lane() or block.rank(), as the first argument for a "
                "register tile.");
}
#endif

}  // namespace giwa::inline GIWA_ABI

#endif
