// SPDX-License-Identifier: MIT
// Who a thread is, at every scope from its warp to the grid, and the loops that share work out over a scope.
#ifndef GIWA_GRID_SCOPE_CUH
#define GIWA_GRID_SCOPE_CUH

#include <giwa/numeric/stride_range.hpp>

namespace giwa::inline GIWA_ABI {

/// The levels of a launch, each made of the one before. Below compute capability 9.0 a cluster is one block.
enum class scope : int { thread, warp, block, cluster, grid };

namespace detail {

// A size or position along x, y, z as CUDA's built-in variables have it, in 64 bits.
struct xyz {
  int64 x, y, z;
};

template <class Dim3>
GIWA_DEVICE constexpr xyz to_xyz(const Dim3& d) {
  return {static_cast<int64>(d.x), static_cast<int64>(d.y), static_cast<int64>(d.z)};
}
GIWA_DEVICE constexpr int64 count_of(const xyz& n) { return n.x * n.y * n.z; }
GIWA_DEVICE constexpr int64 rank_of(const xyz& i, const xyz& n) { return i.x + n.x * (i.y + n.y * i.z); }

// The sizes of one Level in Units, and the position of this Unit in its Level. Warps lie along the rank of their
// threads, so they have a rank in every scope, but a position in none.
template <scope Unit, scope Level>
GIWA_DEVICE xyz extents_in() {
  static_assert(Unit < Level, "giwa: a scope is counted in smaller scopes: thread < warp < block < cluster < grid.");
  static_assert(Unit != scope::warp && Level != scope::warp,
                "giwa: a warp is a line of 32 threads; it has rank() and count(), and no position in x, y and z.");
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

// (z, y, x) cut to N dimensions: the first one takes in whatever the launch has beyond N.
template <int Rank>
GIWA_DEVICE index<Rank> fold(const xyz& i, const xyz& n) {
  static_assert(1 <= Rank && Rank <= 3, "giwa: a launch has 1, 2 or 3 dimensions.");
  if constexpr (Rank == 1)
    return {(i.z * n.y + i.y) * n.x + i.x};
  else if constexpr (Rank == 2)
    return {i.z * n.y + i.y, i.x};
  else
    return {i.z, i.y, i.x};
}

}  // namespace detail

/// How many Units one Level has: count<scope::warp, scope::block>(). A warp counts 32 threads, also the last of a block.
template <scope Unit, scope Level>
GIWA_DEVICE int64 count() {
  static_assert(Unit < Level, "giwa: a scope is counted in smaller scopes: thread < warp < block < cluster < grid.");
  if constexpr (Unit == scope::thread && Level == scope::warp)
    return 32;
  else if constexpr (Unit == scope::warp && Level == scope::block)
    return ceil_div(count<scope::thread, scope::block>(), 32);
  else if constexpr (Unit == scope::warp)
    return count<scope::block, Level>() * count<scope::warp, scope::block>();
  else
    return detail::count_of(detail::extents_in<Unit, Level>());
}

/// The rank of this thread's Unit in its Level, x fastest, a block's threads together: rank<scope::warp, scope::grid>().
template <scope Unit, scope Level>
GIWA_DEVICE int64 rank() {
  static_assert(Unit < Level, "giwa: a scope ranks in a larger one: thread < warp < block < cluster < grid.");
  if constexpr (Unit == scope::thread && Level == scope::warp)
    return rank<scope::thread, scope::block>() % 32;
  else if constexpr (Unit == scope::warp && Level == scope::block)
    return rank<scope::thread, scope::block>() / 32;
  else if constexpr (Unit < scope::block && Level > scope::block)
    return rank<scope::block, Level>() * count<Unit, scope::block>() + rank<Unit, scope::block>();
  else
    return detail::rank_of(detail::position_in<Unit, Level>(), detail::extents_in<Unit, Level>());
}

/// The position of this thread's Unit in its Level in N dimensions, (z, y, x) order. With N < 3 the first coordinate
/// takes in the dimensions of the launch that are left over, so that no two Units share a position in any launch.
template <int Rank, scope Unit, scope Level>
GIWA_DEVICE index<Rank> position() {
  return detail::fold<Rank>(detail::position_in<Unit, Level>(), detail::extents_in<Unit, Level>());
}

/// The sizes of the Level in Units, so that position() lies inside them.
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

/// This thread's position among all threads of the grid; what Numba calls cuda.grid(N), but in (z, y, x) order.
template <int Rank>
GIWA_DEVICE index<Rank> global_index() {
  return position<Rank, scope::thread, scope::grid>();
}

/// The number of threads of the grid along each dimension; what Numba calls cuda.gridsize(N), but in (z, y, x) order.
template <int Rank>
GIWA_DEVICE index<Rank> global_size() {
  return sizes<Rank, scope::thread, scope::grid>();
}

/// A position that may be outside the data: `if (auto i = index_in(extents{rows, columns})) use((*i)[0], (*i)[1]);`
template <int Rank>
struct checked_index {
  index<Rank> value;  ///< inside or not
  bool inside;        ///< whether it may be used
  /// Whether it is inside.
  GIWA_DEVICE explicit operator bool() const { return inside; }
  /// The index, which is inside.
  GIWA_DEVICE const index<Rank>& operator*() const {
    GIWA_ASSERT(inside, "test the index before you use it: it is outside the extents");
    return value;
  }
};

/// This thread's global_index, and whether it is inside the extents.
template <int64... Sizes>
GIWA_DEVICE checked_index<sizeof...(Sizes)> index_in(const extents<Sizes...>& e) {
  const auto i = global_index<sizeof...(Sizes)>();
  return {i, e.contains(i)};
}

/// The same for one dimension.
template <stdlib::integral Size>
GIWA_DEVICE checked_index<1> index_in(Size n) {
  return index_in(extents{n});
}

/// `for (auto i : stride_in<scope::block>(n))`: the indices [0, n) shared out over the threads of the Level.
template <scope Level, stdlib::integral Size>
GIWA_DEVICE stride_range stride_in(Size n) {
  return {rank<scope::thread, Level>(), static_cast<int64>(n), count<scope::thread, Level>()};
}

/// The same in 1 to 3 dimensions, along the threads' positions: neighbours in x take neighbours in the last dimension.
template <scope Level, int64... Sizes>
GIWA_DEVICE stride_range_nd<sizeof...(Sizes)> stride_in(const extents<Sizes...>& e) {
  constexpr int rank = sizeof...(Sizes);
  static_assert(rank <= 3,
                "giwa: stride loops have at most 3 dimensions; use for_all, or delinearize a 1-D loop's index.");
  index<rank> end;
  for (int d = 0; d < rank; ++d) end[d] = e[d];
  return {position<rank, scope::thread, Level>(), end, sizes<rank, scope::thread, Level>()};
}

/// `for (auto i : grid_stride(n))`: each of [0, n) is some thread's, whatever the grid, for n = 0 and n > 2^32 too.
template <stdlib::integral Size>
GIWA_DEVICE stride_range grid_stride(Size n) {
  return stride_in<scope::grid>(n);
}
/// The same for every index inside the extents, in 1 to 3 dimensions.
template <int64... Sizes>
GIWA_DEVICE stride_range_nd<sizeof...(Sizes)> grid_stride(const extents<Sizes...>& e) {
  return stride_in<scope::grid>(e);
}

/// The same over the threads of this block: each block visits all of [0, n).
template <stdlib::integral Size>
GIWA_DEVICE stride_range block_stride(Size n) {
  return stride_in<scope::block>(n);
}
/// The same for every index inside the extents, in 1 to 3 dimensions.
template <int64... Sizes>
GIWA_DEVICE stride_range_nd<sizeof...(Sizes)> block_stride(const extents<Sizes...>& e) {
  return stride_in<scope::block>(e);
}

/// The same over the lanes of this warp; the block's size must be a multiple of 32.
template <stdlib::integral Size>
GIWA_DEVICE stride_range warp_stride(Size n) {
  return stride_in<scope::warp>(n);
}

}  // namespace giwa::inline GIWA_ABI

#endif
