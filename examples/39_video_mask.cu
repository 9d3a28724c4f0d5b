// SPDX-License-Identifier: MIT
// A mask from data: each token of a video sees its neighbourhood in space and time, and a map of blocks says where anything is.
//
//   nvcc -std=c++20 -O3 -gencode arch=compute_90a,code=sm_90a -Iinclude examples/39_video_mask.cu -o 39_video_mask
//
// Run from the root of the repository. sm_90a is for an H100 or H200; -arch=native is for the GPU of this machine.
// To copy it, also copy: support/attention_check.cuh, support/attention_compare.hpp, support/place.cuh, support/png.hpp.
//
// What it teaches: a formula without classify() is asked for every score. make_block_map asks it once, and attention with the
// map skips the blocks in which nothing is visible; in the others the formula is asked where a block is not full. How many
// blocks are empty depends on the order of the tokens: in cubes of 4 x 4 x 4 a block of 64 tokens has few neighbours.
//
// Writes the two maps to 39_video_mask.png, or the first argument: dark blocks are full, lighter ones partial.
//
// Expected output, with the times of your machine:
//   4096 tokens, 4 frames of 16 x 64, each sees up to 3 x 9 x 9; 2 heads of 64, fp16
//   the formula alone                     … ms   largest error …, of a plain attention …
//   a map, tokens row after row           … ms   largest error …, of a plain attention …
//     30 % of the blocks are visible
//   a map, tokens in cubes of 4 x 4 x 4   … ms   largest error …, of a plain attention …
//     11 % of the blocks are visible
#include "support/attention_check.cuh"
#include "support/png.hpp"

#if defined(__CUDACC__)
#include <giwa/block_map.cuh>
#endif

using giwa::fp16, giwa::int64;

constexpr int frames = 4, rows = 16, columns = 64, tokens = frames * rows * columns, block = 64;

struct place_in_video {
  int frame, row, column;
};
/// Where a token is: row after row, or cube after cube.
GIWA_HOST_DEVICE constexpr place_in_video place_of(int token, bool in_cubes) {
  if (!in_cubes) return {token / (rows * columns), token / columns % rows, token % columns};
  constexpr int across = columns / 4, down = rows / 4;
  const int cube = token / 64, i = token % 64;
  return {cube / (across * down) * 4 + i / 16, cube / across % down * 4 + i / 4 % 4, cube % across * 4 + i % 4};
}

struct neighbourhood {
  bool in_cubes;

  GIWA_HOST_DEVICE static bool near(int a, int b, int reach) { return a - b <= reach && b - a <= reach; }
  GIWA_HOST_DEVICE bool operator()(giwa::attention_coord c) const {
    const place_in_video a = place_of(c.query, in_cubes), b = place_of(c.key, in_cubes);
    return near(a.frame, b.frame, 1) && near(a.row, b.row, 4) && near(a.column, b.column, 4);
  }
};

/// Two maps next to each other, 4 x 4 pixels a block.
struct picture {
  static constexpr int side = tokens / block, scale = 4, gap = 16, width = 2 * side * scale + gap,
                       height = side * scale;
  std::vector<unsigned char> rgb = std::vector<unsigned char>(std::size_t{3} * width * height, 255);

  /// Returns the share of the blocks that are visible.
  double add(const giwa::block_map& map, int number) {
    int visible = 0;
    for (int y = 0; y < height; ++y)
      for (int x = 0; x < side * scale; ++x) {
        const giwa::block_word& w = map.row(0, 0, y / scale)[x / scale / 32];
        const bool some = (w.visible >> x / scale % 32 & 1) != 0, all = (w.full >> x / scale % 32 & 1) != 0;
        visible += some ? 1 : 0;
        const auto at = static_cast<std::ptrdiff_t>(3) * (y * width + number * (side * scale + gap) + x);
        const unsigned char color[] = {static_cast<unsigned char>(all    ? 20
                                                                  : some ? 86
                                                                         : 240),
                                       static_cast<unsigned char>(all    ? 60
                                                                  : some ? 150
                                                                         : 240),
                                       static_cast<unsigned char>(all    ? 100
                                                                  : some ? 200
                                                                         : 238)};
        std::copy(color, color + 3, rgb.begin() + at);
      }
    return double(visible) / (height * side * scale);
  }
};

template <class Place>
bool run(const Place& place, const char* file_name) {
  example::tensor<fp16, 4, Place> q(place, {1, tokens, 2, 64}, 1), k(place, q.sizes(), 2), v(place, q.sizes(), 3),
      o(place, q.sizes());
  bool right = true;
  const auto show = [&](const char* name, const auto& mask, const neighbourhood& formula) {
    const double ms = place.milliseconds(
        [&] { return giwa::attention_forward<64>(place.where(), q.view(), k.view(), v.view(), o.view(), mask); });
    const example::comparison c = example::compare(place, q, k, v, o, formula);
    right = right && c.good();
    std::printf("%-36s %8.3f ms   largest error %.1e, of a plain attention %.1e\n", name, ms, c.error, c.plain);
  };
  std::printf("%d tokens, %d frames of %d x %d, each sees up to 3 x 9 x 9; 2 heads of 64, fp16\n", tokens, frames, rows,
              columns);
  show("the formula alone", neighbourhood{false}, {false});
  picture maps;
  for (const bool in_cubes : {false, true}) {
    giwa::block_map map{
        .queries = tokens, .keys = tokens, .block_queries = block, .block_keys = block, .by_keys = false};
    auto words = place.template make<giwa::block_word>(map.bytes() / int64{sizeof(giwa::block_word)});
    map.words = words.data();
    const neighbourhood mask{in_cubes};
    throw_if_failed(make_block_map(place.where(), mask, map));
    show(in_cubes ? "a map, tokens in cubes of 4 x 4 x 4" : "a map, tokens row after row",
         giwa::block_sparse{map, mask}, mask);
    auto back = place.get(words);
    map.words = back.data();
    std::printf("  %.0f %% of the blocks are visible\n", 100 * maps.add(map, in_cubes ? 1 : 0));
  }
  if (!example::write_png(file_name, picture::height, picture::width, maps.rgb)) {
    std::printf("%s cannot be written\n", file_name);
    return false;
  }
  std::printf("wrote %s\n", file_name);
  return right;
}

int main(int count, char** arguments) {
  const char* const file_name = count > 1 ? arguments[1] : "39_video_mask.png";
  return example::run_anywhere([&](const auto& place) { return run(place, file_name); });
}
