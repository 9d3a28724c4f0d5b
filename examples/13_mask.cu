// SPDX-License-Identifier: MIT
// A custom mask: each pixel sees its neighbours, and classify() skips the tiles in which no pixel sees another.
//
//   nvcc -std=c++20 -O3 -gencode arch=compute_90a,code=sm_90a -Iinclude examples/13_mask.cu -o 13_mask
//
// Run from the root of the repository. sm_90a is for an H100 or H200; -arch=native is for the GPU of this machine.
// To copy it, also copy: support/attention_check.cuh, support/attention_compare.hpp, support/place.cuh.
//
// What it teaches: a mask is a small struct that says whether a score is kept. With classify(tile) it also says which
// tiles of scores need no work; those are not even loaded. The answers `none` and `all` must be true; `some` is always
// correct, so classify() may be coarse. Masks combine by &, | and !: below, neighbours & !same_pixel.
//
// Expected output, with the times of your machine:
//   4096 pixels, 64 x 64, each sees 15 x 15; 8 heads of 64, fp16
//   every pixel sees every other       … ms   largest error …, of a plain attention …
//   neighbours, without the hint       … ms
//   neighbours, with it                … ms
//   neighbours, but not the pixel      … ms
#include "support/attention_check.cuh"

using giwa::fp16, giwa::int64;
using giwa::operator!, giwa::operator&;  // for masks that are not giwa's own

// Pixels row after row; a query sees what is at most `reach` away in each direction.
struct near {
  int width, reach;
  bool hint = true;  // for the measurement; a mask without classify is asked score by score

  GIWA_HOST_DEVICE bool operator()(giwa::attention_coord c) const {
    const int down = c.key / width - c.diagonal / width, across = c.key % width - c.diagonal % width;
    return -reach <= down && down <= reach && -reach <= across && across <= reach;
  }
  // What it leaves of a tile: the rows of the picture that the tile covers tell.
  GIWA_HOST_DEVICE giwa::tile_keep classify(const giwa::score_tile& t) const {
    const bool above = t.last_key / width < t.first_diagonal() / width - reach;
    const bool below = t.first_key / width > t.last_diagonal() / width + reach;
    return hint && (above || below) ? giwa::tile_keep::none : giwa::tile_keep::some;
  }
};

struct same_pixel {
  GIWA_HOST_DEVICE bool operator()(giwa::attention_coord c) const { return c.key == c.diagonal; }
};

template <class Place>
bool run(const Place& place) {
  const int width = Place::is_gpu ? 64 : 32, reach = 7;
  const int64 pixels = int64{width} * width;
  example::tensor<fp16, 4, Place> q(place, {1, pixels, 8, 64}, 1), k(place, q.sizes(), 2), v(place, q.sizes(), 3),
      o(place, q.sizes());
  bool right = true;
  const auto show = [&](const char* name, const auto& mask) {
    const double ms = place.milliseconds(
        [&] { return giwa::attention_forward<64>(place.where(), q.view(), k.view(), v.view(), o.view(), mask); });
    const example::comparison c = example::compare(place, q, k, v, o, mask);
    right = right && c.good();
    std::printf("%-32s %8.3f ms   largest error %.1e, of a plain attention %.1e\n", name, ms, c.error, c.plain);
  };
  std::printf("%lld pixels, %d x %d, each sees %d x %d; 8 heads of 64, fp16\n", static_cast<long long>(pixels), width,
              width, 2 * reach + 1, 2 * reach + 1);
  show("every pixel sees every other", giwa::full{});
  show("neighbours, without the hint", near{width, reach, false});
  const near neighbours{width, reach};
  show("neighbours, with it", neighbours);
  show("neighbours, but not the pixel", neighbours & !same_pixel{});
  return right;
}

int main() {
  return example::run_anywhere([](const auto& place) { return run(place); });
}
