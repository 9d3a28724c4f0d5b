// SPDX-License-Identifier: MIT
// Thread coordinates at every scope from the warp to the grid, and loops that distribute work over a scope.
#ifndef GIWA_GRID_SCOPE_CUH
#define GIWA_GRID_SCOPE_CUH

#include <giwa/numeric/stride_range.hpp>

namespace giwa::inline GIWA_ABI {

/// The levels of a launch, each composed of the one before. Below compute capability 9.0 a cluster is one block.
enum class scope : int { thread, warp, block, cluster, grid };

namespace detail {

// A size or position along x, y, z, as in CUDA's built-in variables, in 64 bits.
struct xyz {
  int64 x, y, z;
};

template <class Dim3>
GIWA_DEVICE constexpr xyz to_xyz(const Dim3& d) {
  return {static_cast<int64>(d.x), static_cast<int64>(d.y), static_cast<int64>(d.z)};
}
GIWA_DEVICE constexpr int64 count_of(const xyz& n) { return n.x * n.y * n.z; }
GIWA_DEVICE constexpr int64 rank_of(const xyz& i, const xyz& n) { return i.x + n.x * (i.y + n.y * i.z); }

// The sizes of a Level in Units, and the position of this Unit in its Level. A warp is 32 threads of consecutive rank, so it
// has a rank in every scope but no position.
template <scope Unit, scope Level>
GIWA_DEVICE xyz extents_in() {
  static_assert(Unit < Level, "giwa: Unit must be a smaller scope than Level: thread < warp < block < cluster < grid.");
  static_assert(Unit != scope::warp && Level != scope::warp,
                "giwa: a warp has no position in x, y and z: use rank() and count().");
  if constexpr (Unit == scope::thread && Level == scope::block) {
    return to_xyz(blockDim);
  } else if constexpr (Unit == scope::block && Level == scope::grid) {
    return to_xyz(gridDim);
  } else if constexpr (Unit == scope::thread) {
    const xyz blocks = extents_in<scope::block, Level>(), threads = to_xyz(blockDim);
    return {blocks.x * threads.x, blocks.y * threads.y, blocks.z * threads.z};
  } else {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
    if constexpr (Unit == scope::block)
      return to_xyz(__clusterDim());
    else
      return to_xyz(__clusterGridDimInClusters());
#else
    if constexpr (Unit == scope::block)
      return {1, 1, 1};
    else
      return to_xyz(gridDim);
#endif
  }
}

template <scope Unit, scope Level>
GIWA_DEVICE xyz position_in() {
  if constexpr (Unit == scope::thread && Level == scope::block) {
    return to_xyz(threadIdx);
  } else if constexpr (Unit == scope::block && Level == scope::grid) {
    return to_xyz(blockIdx);
  } else if constexpr (Unit == scope::thread) {
    const xyz block = position_in<scope::block, Level>(), size = to_xyz(blockDim), thread = to_xyz(threadIdx);
    return {block.x * size.x + thread.x, block.y * size.y + thread.y, block.z * size.z + thread.z};
  } else {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
    if constexpr (Unit == scope::block)
      return to_xyz(__clusterRelativeBlockIdx());
    else
      return to_xyz(__clusterIdx());
#else
    if constexpr (Unit == scope::block)
      return {0, 0, 0};
    else
      return to_xyz(blockIdx);
#endif
  }
}

// (z, y, x) reduced to Rank dimensions: the first one linearises the dimensions of the launch that are left over.
template <int Rank>
GIWA_DEVICE index<Rank> fold(const xyz& i, const xyz& n) {
  static_assert(1 <= Rank && Rank <= 3, "giwa: a launch has 1 to 3 dimensions: choose a Rank of 1, 2 or 3.");
  if constexpr (Rank == 1)
    return {(i.z * n.y + i.y) * n.x + i.x};
  else if constexpr (Rank == 2)
    return {i.z * n.y + i.y, i.x};
  else
    return {i.z, i.y, i.x};
}

}  // namespace detail

/// Returns the number of Units in a Level: `count<scope::warp, scope::block>()`. Every warp counts 32 threads, also an
/// incomplete last warp of a block.
template <scope Unit, scope Level>
GIWA_DEVICE int64 count() {
  static_assert(Unit < Level, "giwa: Unit must be a smaller scope than Level: thread < warp < block < cluster < grid.");
  if constexpr (Unit == scope::thread && Level == scope::warp)
    return 32;
  else if constexpr (Unit == scope::warp && Level == scope::block)
    return ceil_div(count<scope::thread, scope::block>(), 32);
  else if constexpr (Unit == scope::warp)
    return count<scope::block, Level>() * count<scope::warp, scope::block>();
  else
    return detail::count_of(detail::extents_in<Unit, Level>());
}

/// Returns the rank of this thread's Unit in its Level: `rank<scope::warp, scope::grid>()`. x is the fastest dimension, and
/// the threads of a block have consecutive ranks.
template <scope Unit, scope Level>
GIWA_DEVICE int64 rank() {
  static_assert(Unit < Level, "giwa: Unit must be a smaller scope than Level: thread < warp < block < cluster < grid.");
  if constexpr (Unit == scope::thread && Level == scope::warp)
    return rank<scope::thread, scope::block>() % 32;
  else if constexpr (Unit == scope::warp && Level == scope::block)
    return rank<scope::thread, scope::block>() / 32;
  else if constexpr (Unit < scope::block && Level > scope::block)
    return rank<scope::block, Level>() * count<Unit, scope::block>() + rank<Unit, scope::block>();
  else
    return detail::rank_of(detail::position_in<Unit, Level>(), detail::extents_in<Unit, Level>());
}

/// Returns the position of this thread's Unit in its Level in Rank dimensions, in (z, y, x) order. With Rank < 3 the first
/// coordinate linearises the other dimensions of the launch, so that no two Units share a position in any launch.
template <int Rank, scope Unit, scope Level>
GIWA_DEVICE index<Rank> position() {
  return detail::fold<Rank>(detail::position_in<Unit, Level>(), detail::extents_in<Unit, Level>());
}

/// Returns the sizes of the Level in Units, in (z, y, x) order; position() is inside them.
template <int Rank, scope Unit, scope Level>
GIWA_DEVICE index<Rank> sizes() {
  const detail::xyz n = detail::extents_in<Unit, Level>();
  if constexpr (Rank == 1)
    return {n.z * n.y * n.x};
  else if constexpr (Rank == 2)
    return {n.z * n.y, n.x};
  else
    return {n.z, n.y, n.x};
}

/// Returns this thread's position among all threads of the grid, in (z, y, x) order; Numba's cuda.grid(N) has (x, y, z).
template <int Rank>
GIWA_DEVICE index<Rank> global_index() {
  return position<Rank, scope::thread, scope::grid>();
}

/// Returns the number of threads of the grid along each dimension, in (z, y, x) order; Numba's cuda.gridsize(N) has (x, y,
/// z).
template <int Rank>
GIWA_DEVICE index<Rank> global_size() {
  return sizes<Rank, scope::thread, scope::grid>();
}

/// An index that may be outside the data: `if (auto i = index_in(extents{rows, columns})) use((*i)[0], (*i)[1]);`
template <int Rank>
struct checked_index {
  index<Rank> value;  ///< The index, inside the extents or not.
  bool inside;        ///< Whether it is inside the extents.
  /// Returns whether the index is inside the extents.
  GIWA_DEVICE explicit operator bool() const { return inside; }
  /// Returns the index, which must be inside the extents; checked in checked builds.
  GIWA_DEVICE const index<Rank>& operator*() const {
    GIWA_ASSERT(inside, "the index is outside the extents; test it before use");
    return value;
  }
};

/// Returns this thread's global_index() and whether it is inside the extents.
template <int64... Sizes>
GIWA_DEVICE checked_index<sizeof...(Sizes)> index_in(const extents<Sizes...>& e) {
  const auto i = global_index<sizeof...(Sizes)>();
  return {i, e.contains(i)};
}

/// Returns this thread's global_index() and whether it is less than n.
template <stdlib::integral Size>
GIWA_DEVICE checked_index<1> index_in(Size n) {
  return index_in(extents{n});
}

/// Returns the indices of [0, n) that this thread takes when the threads of its Level share them:
/// `for (auto i : stride_in<scope::block>(n))`. Thread r takes r, r + count, r + 2 count, and so on.
template <scope Level, stdlib::integral Size>
GIWA_DEVICE stride_range stride_in(Size n) {
  return {rank<scope::thread, Level>(), static_cast<int64>(n), count<scope::thread, Level>()};
}

/// Returns the indices inside the extents that this thread takes, in 1 to 3 dimensions, by the position of the thread:
/// neighbouring threads in x take neighbouring indices of the last dimension.
template <scope Level, int64... Sizes>
GIWA_DEVICE stride_range_nd<sizeof...(Sizes)> stride_in(const extents<Sizes...>& e) {
  constexpr int rank = sizeof...(Sizes);
  static_assert(rank <= 3,
                "giwa: a stride loop has at most 3 dimensions: use for_all, or delinearize the index of a 1-D loop.");
  index<rank> end;
  for (int d = 0; d < rank; ++d) end[d] = e[d];
  return {position<rank, scope::thread, Level>(), end, sizes<rank, scope::thread, Level>()};
}

/// Returns the indices of [0, n) that this thread of the grid takes: `for (auto i : grid_stride(n))`. The threads of the
/// grid together visit each index once, for any grid and any n >= 0, also above 2^32.
template <stdlib::integral Size>
GIWA_DEVICE stride_range grid_stride(Size n) {
  return stride_in<scope::grid>(n);
}
/// Returns the indices inside the extents that this thread of the grid takes, in 1 to 3 dimensions.
template <int64... Sizes>
GIWA_DEVICE stride_range_nd<sizeof...(Sizes)> grid_stride(const extents<Sizes...>& e) {
  return stride_in<scope::grid>(e);
}

/// Returns the indices of [0, n) that this thread of the block takes. Each block visits all of [0, n).
template <stdlib::integral Size>
GIWA_DEVICE stride_range block_stride(Size n) {
  return stride_in<scope::block>(n);
}
/// Returns the indices inside the extents that this thread of the block takes, in 1 to 3 dimensions.
template <int64... Sizes>
GIWA_DEVICE stride_range_nd<sizeof...(Sizes)> block_stride(const extents<Sizes...>& e) {
  return stride_in<scope::block>(e);
}

/// Returns the indices of [0, n) that this lane of the warp takes. The size of the block must be a multiple of 32.
template <stdlib::integral Size>
GIWA_DEVICE stride_range warp_stride(Size n) {
  return stride_in<scope::warp>(n);
}

}  // namespace giwa::inline GIWA_ABI

#endif
