// SPDX-License-Identifier: MIT
// Copies of tiles for the tests on the host executor and on a GPU: ops that copy, and images that say what is right.
#ifndef GIWA_TEST_HOST_TILE_COPY_CASES_CUH
#define GIWA_TEST_HOST_TILE_COPY_CASES_CUH

#include <giwa/grid.cuh>
#include <giwa/tile/copy.cuh>

#include <algorithm>
#include <cstring>
#include <limits>
#include <vector>

#include "support/catch.hpp"
#include "support/random.hpp"

namespace giwa_test {

using giwa::int64;
using byte_array = std::vector<unsigned char>;

/// What is copied: tiles of T in shared memory, views of V in memory.
template <class T, class V, int Rows, int Columns, class Layout>
struct copied {
  using element = T;
  using value = V;
  using tile = giwa::shared_tile<T, giwa::tile_shape<Rows, Columns>, Layout>;
  static constexpr int rows = Rows, columns = Columns;
};

/// A tile between two guards.
template <class Tile>
struct guarded_tile {
  unsigned char before[16];
  Tile tile;
  unsigned char after[16];
};

struct copy_op {
  static constexpr int max_threads = 1024, min_blocks = 1;
};

/// Calls f with the block, of a size that is a constant if it has 128 or 32 threads: copies then have unrolled code.
template <class Block, class F>
GIWA_HOST_DEVICE void with_known_size(const Block& block, const F& f) {
  if (block.size() == 128)
    f(giwa::with_threads<128>(block));
  else if (block.size() == 32)
    f(giwa::with_threads<32>(block));
  else
    f(block);
}

/// Loads a tile over memory full of 0xff, and writes out every byte of it and of the guards.
template <class Copied, bool Async>
struct load_op : copy_op {
  using value = typename Copied::value;
  struct params {
    giwa::tensor_view<const value, 2> from;
    giwa::index<2> origin;
    value fill;
    unsigned char* out;
  };
  using shared_storage = guarded_tile<typename Copied::tile>;
  template <class Block>
  GIWA_HOST_DEVICE void operator()(Block block, const params& p, shared_storage& shared) const {
    with_known_size(block, [&](const auto& group) { run(group, p, shared); });
  }
  template <class Block>
  GIWA_HOST_DEVICE static void run(const Block& block, const params& p, shared_storage& shared) {
    auto* const all = reinterpret_cast<unsigned char*>(&shared);
    const int size = static_cast<int>(sizeof shared);
    for (int i = block.rank(); i < size; i += block.size()) all[i] = 0xff;
    block.sync();
    if constexpr (Async) {
      giwa::load_async(block, p.from, p.origin, shared.tile, p.fill);
      giwa::copy_commit();
      giwa::copy_wait();
    } else {
      giwa::load(block, p.from, p.origin, shared.tile, p.fill);
    }
    block.sync();
    for (int i = block.rank(); i < size; i += block.size()) p.out[i] = all[i];
  }
};

/// Stores a tile whose elements it takes from `in`, row by row.
template <class Copied>
struct store_op : copy_op {
  struct params {
    giwa::tensor_view<typename Copied::value, 2> to;
    giwa::index<2> origin;
    const typename Copied::element* in;
  };
  struct shared_storage {
    typename Copied::tile tile;
  };
  template <class Block>
  GIWA_HOST_DEVICE void operator()(Block block, const params& p, shared_storage& shared) const {
    with_known_size(block, [&](const auto& group) { run(group, p, shared); });
  }
  template <class Block>
  GIWA_HOST_DEVICE static void run(const Block& block, const params& p, shared_storage& shared) {
    for (int i = block.rank(); i < Copied::rows * Copied::columns; i += block.size())
      shared.tile(i / Copied::columns, i % Copied::columns) = p.in[i];
    block.sync();
    giwa::store(block, shared.tile, p.to, p.origin);
  }
};

/// A view in memory of `size` elements, of which it begins at element `first`.
struct copy_case {
  int64 extent[2], stride[2], origin[2];
  int64 first, size;
  int threads;
};

/// Sizes, places, strides and alignments of all kinds for tiles of (rows, columns). Strides 0 only for reading.
inline copy_case random_case(random_sequence& random, int rows, int columns, bool reading) {
  copy_case c{};
  const auto extent = [&](int size) {
    switch (random.below(4)) {
      case 0: return static_cast<int64>(size);
      case 1: return random.below(3);
      default: return random.below(2 * size + 2);
    }
  };
  c.extent[0] = extent(rows);
  c.extent[1] = extent(columns);
  const auto origin = [&](int64 extent_, int size) {
    switch (random.below(6)) {
      case 0:
      case 1: return int64{0};
      case 2: return 8 * (random.below(2 * size / 8 + 1) - size / 8);
      case 3: return extent_ - size;
      default: return random.below(extent_ + 2 * size + 1) - size - 1;
    }
  };
  c.origin[0] = origin(c.extent[0], rows);
  c.origin[1] = origin(c.extent[1], columns);
  const int64 pads[] = {0, 0, 1, 2, 4, 8, 16};
  const int64 pad = pads[random.below(7)], unit = random.below(8);
  const int inner = unit < 5 ? 1 : unit < 7 ? 0 : static_cast<int>(random.below(2));
  c.stride[inner] = unit == 7 ? 2 + random.below(3) : 1;
  c.stride[1 - inner] = std::max<int64>(1, c.extent[inner]) * c.stride[inner] + pad;
  if (random.below(3) == 0) c.stride[1 - inner] = giwa::round_up(c.stride[1 - inner], 8);
  for (int64& stride : c.stride) {
    if (random.below(12) == 0) stride = -stride;
    if (reading && random.below(16) == 0) stride = 0;
  }
  int64 low = 0, high = 0;
  for (int d = 0; d < 2; ++d) {
    const int64 reach = std::max<int64>(0, c.extent[d] - 1) * c.stride[d];
    (reach < 0 ? low : high) += reach;
    // The stride of a single row or column says nothing.
    if (c.extent[d] == 1 && random.below(2) == 0) c.stride[d] = random.any_magnitude() - random.any_magnitude();
  }
  const int64 shifts[] = {0, 0, 0, 1, 2, 4, 8};
  c.first = 64 - low + shifts[random.below(7)];
  c.first += random.below(2) == 0 ? -c.first % 8 : 0;
  c.size = c.first + high + 64;
  const int threads[] = {32, 64, 96, 128, 256, 1024};
  c.threads = threads[random.below(random.below(8) == 0 ? 6 : 5)];
  return c;
}

/// A finite value of any sign and size that V holds; the same bits on every machine, converted or not.
template <class V>
V random_value(random_sequence& random) {
  if constexpr (giwa::floating_element<V>) {
    return giwa::convert<V>{}(static_cast<double>(random.below(1 << 20) - (1 << 19)) / 128);
  } else {
    V value;
    const giwa::uint64 words[2] = {random.bits(), random.bits()};
    static_assert(sizeof(V) <= sizeof words);
    std::memcpy(&value, words, sizeof value);
    return value;
  }
}

template <class To, class From>
To expected_value(const From& value) {
  if constexpr (std::is_same_v<To, From>)
    return value;
  else
    return giwa::convert<To>{}(value);
}

/// Where views begin in memory that is aligned to more: an element with an alignment below its size gets no more than that.
template <class V>
inline constexpr std::size_t shift = alignof(V) < sizeof(V) ? alignof(V) : 0;

/// A row or column of a tile in the view; far origins wrap to negative numbers.
inline int64 past(int64 origin, int n) {
  return static_cast<int64>(static_cast<giwa::uint64>(origin) + static_cast<giwa::uint64>(n));
}

/// Runs a case: Machine runs an op on memory that it copies to where the op runs, and back.
template <class Copied, bool Async, class Machine>
bool load_is_right(const Machine& machine, const copy_case& c, random_sequence& random) {
  using value = typename Copied::value;
  using element = typename Copied::element;
  using op = load_op<Copied, Async>;
  using shared = typename op::shared_storage;

  byte_array memory(static_cast<std::size_t>(c.size) * sizeof(value) + shift<value>, 0xff);
  const auto put = [&](int64 place, const value& v) {
    std::memcpy(memory.data() + shift<value> + static_cast<std::size_t>(place) * sizeof(value), &v, sizeof v);
  };
  const auto get = [&](int64 place) {
    value v;
    std::memcpy(&v, memory.data() + shift<value> + static_cast<std::size_t>(place) * sizeof(value), sizeof v);
    return v;
  };
  const auto place_of = [&](int64 row, int64 column) {
    return c.first + (c.extent[0] > 1 ? row * c.stride[0] : 0) + (c.extent[1] > 1 ? column * c.stride[1] : 0);
  };
  for (int64 row = 0; row < c.extent[0]; ++row)
    for (int64 column = 0; column < c.extent[1]; ++column) put(place_of(row, column), random_value<value>(random));
  const value fill = random.below(2) == 0 ? value{} : random_value<value>(random);

  byte_array image(sizeof(shared), 0xff), out(sizeof(shared), 0);
  for (int row = 0; row < Copied::rows; ++row)
    for (int column = 0; column < Copied::columns; ++column) {
      const int64 y = past(c.origin[0], row), x = past(c.origin[1], column);
      const bool inside = 0 <= y && y < c.extent[0] && 0 <= x && x < c.extent[1];
      const element e = expected_value<element>(inside ? get(place_of(y, x)) : fill);
      std::memcpy(image.data() + offsetof(shared, tile) +
                      static_cast<std::size_t>(Copied::tile::placement::offset(row, column)) * sizeof(element),
                  &e, sizeof e);
    }
  const bool ran =
      machine.run({.block = c.threads}, op{}, memory, out, [&](unsigned char* data, unsigned char* result) {
        const value* const first = reinterpret_cast<const value*>(data + shift<value>) + c.first;
        return typename op::params{
            {first, {c.extent[0], c.extent[1]}, {c.stride[0], c.stride[1]}}, {c.origin[0], c.origin[1]}, fill, result};
      });
  return ran && out == image;
}

template <class Copied, class Machine>
bool store_is_right(const Machine& machine, const copy_case& c, random_sequence& random) {
  using value = typename Copied::value;
  using element = typename Copied::element;
  using op = store_op<Copied>;
  byte_array tile(static_cast<std::size_t>(Copied::rows * Copied::columns) * sizeof(element));
  byte_array memory(static_cast<std::size_t>(c.size) * sizeof(value) + shift<value>, 0xff), image = memory;
  for (int row = 0; row < Copied::rows; ++row)
    for (int column = 0; column < Copied::columns; ++column) {
      const element e = random_value<element>(random);
      std::memcpy(tile.data() + static_cast<std::size_t>(row * Copied::columns + column) * sizeof(element), &e,
                  sizeof e);
      const int64 y = past(c.origin[0], row), x = past(c.origin[1], column);
      if (y < 0 || y >= c.extent[0] || x < 0 || x >= c.extent[1]) continue;
      const int64 place = c.first + (c.extent[0] > 1 ? y * c.stride[0] : 0) + (c.extent[1] > 1 ? x * c.stride[1] : 0);
      const value v = expected_value<value>(e);
      std::memcpy(image.data() + shift<value> + static_cast<std::size_t>(place) * sizeof(value), &v, sizeof v);
    }
  const bool ran = machine.run({.block = c.threads}, op{}, tile, memory, [&](unsigned char* in, unsigned char* data) {
    value* const first = reinterpret_cast<value*>(data + shift<value>) + c.first;
    return typename op::params{{first, {c.extent[0], c.extent[1]}, {c.stride[0], c.stride[1]}},
                               {c.origin[0], c.origin[1]},
                               reinterpret_cast<const element*>(in)};
  });
  return ran && memory == image;
}

struct twelve_bytes {
  int a, b, c;
};
struct two_floats {
  float a, b;
};
struct two_doubles {
  double a, b;
};

using giwa::bf16;
using giwa::fp16;
using all_copied =
    std::tuple<copied<fp16, fp16, 32, 64, giwa::swizzled<giwa::swizzle::bytes_128>>,
               copied<fp16, fp16, 24, 96, giwa::swizzled<giwa::swizzle::bytes_64>>,
               copied<fp16, fp16, 16, 40, giwa::padded<8>>,       //
               copied<fp16, fp16, 64, 64, giwa::paired>,          // 128 bytes of a row by 8 threads
               copied<bf16, bf16, 32, 80, giwa::paired>,          //
               copied<bf16, bf16, 19, 12, giwa::row_major>,       // runs of 8 bytes
               copied<fp16, fp16, 9, 7, giwa::padded<1>>,         // single elements
               copied<float, float, 32, 32, giwa::transposable>,  // runs of 16 bytes, of 4 in the tile
               copied<fp16, fp16, 40, 48, giwa::transposable>,    //
               copied<float, float, 1, 200, giwa::row_major>,     // more columns than threads
               copied<float, float, 150, 1, giwa::row_major>,     //
               copied<double, double, 8, 16, giwa::swizzled<giwa::swizzle::bytes_128>>,
               copied<unsigned char, unsigned char, 16, 128, giwa::swizzled<giwa::swizzle::bytes_128>>,
               copied<twelve_bytes, twelve_bytes, 5, 8, giwa::row_major>,
               copied<two_floats, two_floats, 5, 9, giwa::row_major>,    // 8 bytes that are aligned to 4
               copied<two_doubles, two_doubles, 6, 7, giwa::row_major>,  // 16 bytes that are aligned to 8
               copied<fp16, float, 16, 64, giwa::swizzled<giwa::swizzle::bytes_128>>,
               copied<float, bf16, 16, 32, giwa::swizzled<giwa::swizzle::bytes_128>>,
               copied<bf16, fp16, 12, 24, giwa::row_major>,   //
               copied<fp16, double, 8, 16, giwa::row_major>,  // rounded once
               copied<float, fp16, 16, 36, giwa::padded<1>>>;

/// Random cases of all three copies.
template <class Copied, class Machine>
void check_copies(const Machine& machine, int cases) {
  random_sequence random(2026);
  for (int i = 0; i < cases; ++i) {
    const int kind = i % 3;
    const copy_case c = random_case(random, Copied::rows, Copied::columns, kind < 2);
    CAPTURE(i, kind, c.extent[0], c.extent[1], c.stride[0], c.stride[1], c.origin[0], c.origin[1], c.first, c.threads);
    const bool right = kind == 0   ? load_is_right<Copied, false>(machine, c, random)
                       : kind == 1 ? load_is_right<Copied, true>(machine, c, random)
                                   : store_is_right<Copied>(machine, c, random);
    REQUIRE(right);
  }
}

/// Places that no sum of origin and size can hold.
template <class Copied, class Machine>
void check_far_origins(const Machine& machine) {
  random_sequence random(1);
  constexpr int64 far = std::numeric_limits<int64>::max(), low = std::numeric_limits<int64>::min();
  for (const int64 origin : {far, far - 1, int64{1} << 40, int64{100}, -int64{100}, -(int64{1} << 40), low + 1, low})
    for (const int d : {0, 1})
      for (const int threads : {32, 256}) {
        copy_case c{{10, 20}, {24, 1}, {0, 0}, 64, 400, threads};
        c.origin[d] = origin;
        CAPTURE(origin, d, threads);
        REQUIRE(load_is_right<Copied, false>(machine, c, random));
        REQUIRE(load_is_right<Copied, true>(machine, c, random));
        REQUIRE(store_is_right<Copied>(machine, c, random));
      }
}

}  // namespace giwa_test

#endif
