// SPDX-License-Identifier: MIT
// TMA through tensor maps: boxes of 1 to 5 dimensions, every swizzle, any position, loads and stores.
#include <giwa/arch/cluster.cuh>
#include <giwa/arch/tensor_copy.cuh>
#include <giwa/device/tensor_map.hpp>
#include <giwa/tile/shared_tile.hpp>

#include <cstring>

#include "support/hopper.cuh"
#include "support/random.hpp"
#include "support/same_bits.hpp"

using giwa::bf16, giwa::fp16, giwa::int64, giwa::swizzle;
using giwa_test::gpu_array, giwa_test::random_sequence, giwa_test::run_op;
namespace arch = giwa::arch;

namespace {

template <giwa::swizzle Pattern>
struct layout_of {
  using type = giwa::swizzled<Pattern>;
};
template <>
struct layout_of<swizzle::none> {
  using type = giwa::row_major;
};

/// A box of Rank dimensions of T that lies in shared memory as a tile: the last dimension has Columns elements, and the
/// others Rows together.
template <class T, int Rank, swizzle Pattern, int Rows, int Columns>
struct boxed {
  using value = T;
  static constexpr int rank = Rank, rows = Rows, columns = Columns;
  static constexpr swizzle pattern = Pattern;
  using tile = giwa::shared_tile<T, giwa::tile_shape<Rows, Columns>, typename layout_of<Pattern>::type>;
  static_assert(sizeof(T) * Columns <= 256 && sizeof(T) * Columns % 16 == 0);
};

template <class Boxed>
struct box_op {
  static constexpr int max_threads = 64, min_blocks = 1, rank = Boxed::rank, elements = Boxed::rows * Boxed::columns;
  using value = typename Boxed::value;

  // Innermost first, as the instructions take them.
  GIWA_DEVICE static void coordinates(const int* origin, int (&c)[rank]) {
    GIWA_UNROLL
    for (int d = 0; d < rank; ++d) c[d] = origin[rank - 1 - d];
  }
};

/// Block i loads the box at origin i, over tiles full of 0xff.
template <class Boxed>
struct load_op : box_op<Boxed> {
  using base = box_op<Boxed>;
  struct params {
    giwa::tensor_map map;
    const int* origins;         // (blocks, rank), outermost first
    typename base::value* out;  // (blocks, rows, columns)
    arch::l2_policy policy;
  };
  struct shared_storage {
    typename Boxed::tile tile;
    arch::mbarrier full;
  };
  template <class Block>
  GIWA_DEVICE void operator()(Block block, const params& p, shared_storage& s) const {
    constexpr int bytes = Boxed::tile::bytes;
    auto* const raw = reinterpret_cast<unsigned char*>(s.tile.data());
    for (int i = block.rank(); i < bytes; i += block.size()) raw[i] = 0xff;
    arch::fence_async_proxy();
    if (block.rank() == 0) {
      arch::prefetch_tensor_map(p.map);
      s.full.initialize(1);
      arch::mbarriers_initialized();
    }
    block.sync();
    if (block.rank() == 0) {
      s.full.arrive_and_expect(bytes);
      int c[base::rank];
      base::coordinates(p.origins + block.block_rank() * base::rank, c);
      arch::load_box(s.tile.data(), p.map, c, s.full, p.policy);
    }
    s.full.wait(0);
    typename base::value* const out = p.out + block.block_rank() * base::elements;
    for (int i = block.rank(); i < base::elements; i += block.size())
      out[i] = s.tile(i / Boxed::columns, i % Boxed::columns);
  }
};

/// Stores a tile at an origin.
template <class Boxed>
struct store_op : box_op<Boxed> {
  using base = box_op<Boxed>;
  struct params {
    giwa::tensor_map map;
    const int* origin;
    const typename base::value* in;  // (rows, columns)
  };
  struct shared_storage {
    typename Boxed::tile tile;
  };
  template <class Block>
  GIWA_DEVICE void operator()(Block block, const params& p, shared_storage& s) const {
    for (int i = block.rank(); i < base::elements; i += block.size())
      s.tile(i / Boxed::columns, i % Boxed::columns) = p.in[i];
    arch::fence_async_proxy();
    block.sync();
    if (block.rank() != 0) return;
    int c[base::rank];
    base::coordinates(p.origin, c);
    arch::store_box(p.map, c, s.tile.data());
    arch::commit_stores();
    arch::wait_stores<0>();
  }
};

/// A view at random in memory of bytes at random, a box, and what lies where.
template <class Boxed>
struct box_problem {
  using value = typename Boxed::value;
  static constexpr int rank = Boxed::rank;
  giwa::index<rank> extents{}, strides{}, box{};
  int64 first = 0, size = 0;  // of the memory, in elements

  // What may be out of the ordinary, each kind with all before it.
  enum kind_of { dense, padded, anywhere, at_edges, reordered };
  kind_of kind;

  box_problem(random_sequence& random, const giwa::index<rank>& box_, bool writing, int which)
      : box(box_), kind(static_cast<kind_of>(which)) {
    constexpr int64 step = 16 / sizeof(value) > 0 ? 16 / sizeof(value) : 1;
    first = step * random.below(4);
    // The dimensions may lie in any order, with gaps; the last has a unit stride, the others multiples of 16 bytes.
    int order[rank];
    for (int d = 0; d < rank; ++d) order[d] = d;
    if (kind >= reordered)
      for (int d = rank - 2; d > 0; --d) std::swap(order[d], order[random.below(d + 1)]);
    int64 reach = 0;
    for (int i = rank - 1; i >= 0; --i) {
      const int d = order[i];
      extents[d] = 1 + random.below(2 * box[d] + 2);
      if (kind < at_edges) extents[d] = box[d] + random.below(box[d] + 2);
      // A store writes whole chunks of 16 bytes.
      if ((kind < at_edges || writing) && d == rank - 1) extents[d] = (extents[d] + step - 1) / step * step;
      if (d == rank - 1)
        strides[d] = 1, reach = extents[d];
      else {
        strides[d] = (reach + step - 1) / step * step + (kind >= padded ? step * random.below(3) : 0);
        reach = strides[d] * (extents[d] - 1) + reach;
      }
    }
    for (int d = 0; d < rank - 1 && kind >= reordered; ++d) {
      if (extents[d] == 1) strides[d] = random.below(1000);  // means nothing
    }
    size = first + reach + 40;
  }
  giwa::tensor_view<value, rank> view(value* memory) const { return {memory + first, extents, strides}; }
  // What is stored begins at no negative coordinate.
  std::vector<int> random_origin(random_sequence& random, bool writing) const {
    std::vector<int> origin(rank);
    for (int d = 0; d < rank; ++d) {
      const auto extent = static_cast<int>(extents[d]), extent_of_box = static_cast<int>(box[d]);
      constexpr int step = 16 / sizeof(value) > 0 ? 16 / sizeof(value) : 1;
      int& o = origin[static_cast<std::size_t>(d)];
      if (kind < at_edges) {
        o = static_cast<int>(random.below(extent - extent_of_box + 1));
        if (d == rank - 1) o -= o % step;  // TMA begins at multiples of 16 bytes
        continue;
      }
      switch (random.below(10)) {
        case 0: o = d == 0 ? -2000000000 : -1000; break;
        case 1: o = 2000000000; break;
        case 2: o = extent; break;
        case 3:
        case 4: o = 0; break;
        default: o = static_cast<int>(random.below(extent + 2 * extent_of_box)) - extent_of_box;
      }
      if (writing && o < 0) o = 0;
      if (d == rank - 1) o -= (o % step + step) % step;
    }
    return origin;
  }
  /// Calls visit(i, offset) for each element of the box in the order of the tile; the offset is -1 outside the view.
  template <class Visit>
  void for_each(const int* origin, const Visit& visit) const {
    for (int i = 0; i < Boxed::rows * Boxed::columns; ++i) {
      int64 offset = first, rest = i;
      for (int d = rank - 1; d >= 0; --d) {
        const int64 at = origin[d] + rest % box[d];
        rest /= box[d];
        offset = offset < 0 || at < 0 || at >= extents[d] ? -1 : offset + at * strides[d];
      }
      visit(static_cast<std::size_t>(i), offset);
    }
  }
};

template <class T>
std::vector<T> random_bytes(random_sequence& random, int64 count) {
  std::vector<T> values(static_cast<std::size_t>(count));
  for (T& v : values) {
    const giwa::uint64 bits = random.bits();
    std::memcpy(static_cast<void*>(&v), &bits, sizeof v);
  }
  return values;
}
// The boxes of each rank, whose last dimensions are given by the tile.
template <class Boxed>
giwa::index<Boxed::rank> random_box(random_sequence& random) {
  giwa::index<Boxed::rank> box;
  box[Boxed::rank - 1] = Boxed::columns;
  int64 rest = Boxed::rows;
  for (int d = Boxed::rank - 2; d > 0; --d) {
    box[d] = 1;
    while (rest % 2 == 0 && random.below(2) == 0) box[d] *= 2, rest /= 2;
    rest = rest > 1 ? rest : 1;
  }
  if (Boxed::rank > 1) box[0] = rest;
  return box;
}

}  // namespace

TEMPLATE_TEST_CASE("a box is loaded from anywhere", "", (boxed<fp16, 2, swizzle::bytes_128, 16, 64>),
                   (boxed<float, 2, swizzle::bytes_64, 24, 16>), (boxed<bf16, 2, swizzle::bytes_32, 8, 16>),
                   (boxed<double, 2, swizzle::none, 5, 6>), (boxed<float, 1, swizzle::none, 1, 40>),
                   (boxed<fp16, 3, swizzle::bytes_128, 32, 64>), (boxed<float, 4, swizzle::bytes_128, 16, 32>),
                   (boxed<bf16, 4, swizzle::none, 12, 24>), (boxed<fp16, 5, swizzle::bytes_64, 32, 32>),
                   (boxed<fp16, 5, swizzle::bytes_32, 16, 16>)) {
  using op = load_op<TestType>;
  using value = typename TestType::value;
  if (!giwa_test::has_tensor_copies()) return;
  random_sequence random(11);
  bool right = true;
  const int rounds = giwa_test::small_mode() ? 5 : 50;
  for (int round = 0; round < rounds; ++round) {
    const box_problem<TestType> problem(random, random_box<TestType>(random), false, 5 * round / rounds);
    CAPTURE(round, problem.kind);
    const std::vector<value> memory = random_bytes<value>(random, problem.size);
    const gpu_array<value> memory_gpu(memory);
    constexpr int blocks = 32;
    std::vector<int> origins;
    for (int i = 0; i < blocks; ++i) {
      const std::vector<int> origin = problem.random_origin(random, false);
      origins.insert(origins.end(), origin.begin(), origin.end());
    }
    const gpu_array<int> origins_gpu(origins);
    const gpu_array<value> out(static_cast<std::size_t>(blocks * op::elements));
    const auto map = giwa::make_tensor_map(problem.view(memory_gpu.data()), problem.box, TestType::pattern);
    REQUIRE(map.ok());
    const arch::l2_policy policies[] = {arch::l2_policy::normal, arch::l2_policy::evict_first,
                                        arch::l2_policy::evict_last};
    run_op<op>({.grid = blocks, .block = 64}, {map.value, origins_gpu.data(), out.data(), policies[round % 3]});
    std::vector<value> expected(out.size());
    for (int b = 0; b < blocks; ++b)
      problem.for_each(&origins[static_cast<std::size_t>(b * TestType::rank)], [&](std::size_t i, int64 offset) {
        value& e = expected[static_cast<std::size_t>(b * op::elements) + i];
        e = offset < 0 ? value{} : memory[static_cast<std::size_t>(offset)];
      });
    right = right && giwa_test::same_bits(out.to_host(), expected);
  }
  CHECK(right);
}

TEMPLATE_TEST_CASE("a box is stored where the view is, and nowhere else", "",
                   (boxed<fp16, 2, swizzle::bytes_128, 16, 64>), (boxed<float, 3, swizzle::bytes_64, 16, 16>),
                   (boxed<bf16, 4, swizzle::bytes_32, 8, 16>), (boxed<float, 1, swizzle::none, 1, 40>),
                   (boxed<fp16, 5, swizzle::none, 12, 24>)) {
  using op = store_op<TestType>;
  using value = typename TestType::value;
  if (!giwa_test::has_tensor_copies()) return;
  random_sequence random(13);
  bool right = true;
  const int rounds = giwa_test::small_mode() ? 5 : 100;
  for (int round = 0; round < rounds; ++round) {
    const box_problem<TestType> problem(random, random_box<TestType>(random), true, 5 * round / rounds);
    CAPTURE(round, problem.kind);
    const std::vector<value> in = random_bytes<value>(random, op::elements);
    const std::vector<int> origin = problem.random_origin(random, true);
    const gpu_array<value> in_gpu(in), memory(static_cast<std::size_t>(problem.size));  // NaN all over
    const gpu_array<int> origin_gpu(origin);
    const auto map = giwa::make_tensor_map(problem.view(memory.data()), problem.box, TestType::pattern);
    REQUIRE(map.ok());
    std::vector<value> expected = memory.to_host();
    run_op<op>({.block = 64}, {map.value, origin_gpu.data(), in_gpu.data()});
    problem.for_each(origin.data(), [&](std::size_t i, int64 offset) {
      if (offset >= 0) expected[static_cast<std::size_t>(offset)] = in[i];
    });
    right = right && giwa_test::same_bits(memory.to_host(), expected);
  }
  CHECK(right);
}
