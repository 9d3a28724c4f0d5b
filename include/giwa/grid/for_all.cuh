// SPDX-License-Identifier: MIT
// for_all on a stream: calls a function for every index, and chooses the launch from the sizes alone.
#ifndef GIWA_GRID_FOR_ALL_CUH
#define GIWA_GRID_FOR_ALL_CUH

#include <giwa/grid/launch.cuh>
#include <giwa/numeric/extents.hpp>
#include <giwa/numeric/fast_division.hpp>

namespace giwa::inline GIWA_ABI {

namespace detail::inline GIWA_ARCH_TAG {

/// From the rank of an index to the index: delinearize with the divisions prepared on the host.
template <int Rank>
struct index_of_rank {
  fast_divisor divisor[Rank - 1];  // the sizes of dimensions 1 … Rank - 1

  GIWA_HOST_DEVICE index<Rank> operator()(int64 linear) const {
    index<Rank> i;
    for (int d = Rank - 1; d > 0; --d) {
      const int64 quotient = linear / divisor[d - 1];
      i[d] = linear - quotient * divisor[d - 1].divisor();
      linear = quotient;
    }
    i[0] = linear;
    return i;
  }
};
template <>
struct index_of_rank<1> {
  GIWA_HOST_DEVICE index<1> operator()(int64 linear) const { return {linear}; }
};
/// For a plain count the rank is the index.
struct rank_itself {
  GIWA_HOST_DEVICE int64 operator()(int64 linear) const { return linear; }
};

/// Calls f(to_index(i)) for the i in [first, n) that are this grid's, each once.
template <class F, class ToIndex>
struct for_all_op {
  struct params {
    int64 first, n;
    F f;
    ToIndex to_index;
  };
  using shared_storage = no_shared_storage;
  static constexpr bool params_go_as_bytes = goes_as_bytes<F>;
  // 256 threads with 4 indices each, a block apart. c = a + b at 2^28 … 2^30 elements, H200, 2026-11-20, GB/s for fp16,
  // fp32, fp64: 256 x 4 2617 3778 4397; 256 x 1 2129 3489 4373; 256 x 8 2707 3778 4356; 128 x 4 2693 3822 4374;
  // 512 x 4 2511 3674 4390. Two adjacent indices a thread reach 3275 in fp16, but cost fp64 20 %.
  static constexpr int max_threads = 256, min_blocks = 1, items = 4;
  static constexpr int tile = max_threads * items;

  template <class Block>
  GIWA_HOST_DEVICE void operator()(Block block, const params& p, shared_storage&) const {
    const int64 tile_begin = p.first + block.block_index()[2] * tile;
    const int64 mine = tile_begin + block.thread_index()[2];
    const int64 left = p.n - mine;  // compared by what is left: a sum could pass the largest index
    if (p.n - tile_begin >= tile) {
      for (int i = 0; i < items; ++i) p.f(p.to_index(mine + i * max_threads));
    } else {
      for (int i = 0; i < items; ++i)
        if (i * max_threads < left) p.f(p.to_index(mine + i * max_threads));
    }
  }
};

/// Runs an op over [0, n) in tiles of Op::tile; a count beyond one grid's 2^31 - 1 blocks takes several launches.
template <class Op, class MakeParams>
status launch_tiles(cudaStream_t s, int64 n, const MakeParams& make_params) {
  for (int64 first = 0; first < n;) {
    const int64 tiles = ceil_div(n - first, Op::tile);
    const int64 blocks = tiles < launch_limits::grid_x ? tiles : launch_limits::grid_x;
    if (const status state = launch(s, {.grid = blocks, .block = Op::max_threads}, Op{}, make_params(first));
        !state.ok())
      return state;
    if (blocks == tiles) break;
    first += blocks * Op::tile;
  }
  return {};
}

template <class F>
constexpr void require_device_body() {
  static_assert(
      !stdlib::is_pointer_v<F>,
      "giwa::for_all: a function pointer made on the host leads nowhere on the GPU; pass a functor or a lambda.");
  static_assert(
      goes_as_bytes<F>,
      "giwa::for_all: the function goes to the GPU byte by byte: capture pointers, views and numbers by value, "
      "not vectors or device_arrays.");
}

template <class F, class ToIndex>
status for_all_ranks(cudaStream_t s, int64 n, F f, const ToIndex& to_index) {
  require_device_body<F>();
  using op = for_all_op<F, ToIndex>;
  return launch_tiles<op>(s, n, [&](int64 first) { return typename op::params{first, n, f, to_index}; });
}

}  // namespace detail::inline GIWA_ARCH_TAG

inline namespace GIWA_ARCH_TAG {

/// Calls f(i) on the GPU for every i in [0, n), each once, in no particular order; `f(int64) const`.
/// Asynchronous on `s`, a stream of the current device; allocates nothing; may be captured. Nothing is launched for n = 0.
/// Errors: a negative n, and those of launch().
template <stdlib::integral Size, class F>
status for_all(cudaStream_t s, Size n, const F& f) {
  const result<int64> size = detail::checked_count(n);
  if (!size.ok()) return size.state;
  return detail::for_all_ranks(s, size.value, f, detail::rank_itself{});
}

/// Calls f(i) for every index i inside the extents, an index<Rank>, the last dimension fastest among neighbouring threads.
/// Any sizes whose product fits in 64 bits: no dimension is bound to a grid limit.
template <int64... Sizes, class F>
status for_all(cudaStream_t s, const extents<Sizes...>& e, const F& f) {
  const result<int64> size = e.checked_size();
  if (!size.ok()) return size.state;
  if (size.value == 0) return {};  // before a divisor is made of a size of zero
  constexpr int rank = sizeof...(Sizes);
  detail::index_of_rank<rank> to_index;
  if constexpr (rank > 1)
    for (int d = 1; d < rank; ++d) to_index.divisor[d - 1] = fast_divisor(e[d]);
  return detail::for_all_ranks(s, size.value, f, to_index);
}

}  // namespace GIWA_ARCH_TAG
}  // namespace giwa::inline GIWA_ABI

#endif
