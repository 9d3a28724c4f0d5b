// SPDX-License-Identifier: MIT
// Removes the noise from a picture by attention, in which a pixel's query and key are the pixels around it.
//
//   nvcc -std=c++20 -O3 -gencode arch=compute_90a,code=sm_90a -Iinclude examples/37_denoise.cu -o 37_denoise
//
// Run from the root of the repository. sm_90a is for an H100 or H200; -arch=native is for the GPU of this machine.
// To copy it, also copy: support/place.cuh, support/png.hpp, support/roof.hpp.
//
// What it teaches: non-local means (Buades, Coll and Morel, "A non-local algorithm for image denoising", 2005) is attention.
// A pixel becomes the average of the pixels in a window, with weights exp(-sharpness |a - b|^2), where a and b are the
// patches of 7 x 7 pixels around the two. |a - b|^2 = |a|^2 + |b|^2 - 2 a b, and |a|^2 cancels in the softmax, so the query
// (a, 1) and the key (2 b, -|b|^2) give these weights. The head size is 50, that of v, red, green and blue, is 3.
//   - A custom mask restricts the keys to the window, and classify() skips the tiles outside of it. Tokens are numbered by
//     strips of 8 columns: 64 of them are a square of the picture, so few tiles overlap a window.
//   - A score modifier lowers the score of a pixel with itself, because query and key have the same noise there.
//
// Writes the noisy and the denoised picture, next to each other, to a PNG file: 37_denoise.png, or the first argument; the
// last line to a second one instead. Three loops in float compute the same on the same device, on the CPU with as many threads.
//
// Expected output, with the times of your machine:
//   224 x 144 pixels, each the average of up to 33 x 33, weighted by patches of 7 x 7
//   noisy      16.5 dB
//   denoised   24.9 dB
//   three loops give the same to … of 1
//   wrote …
//   device: NVIDIA H200
//   check:  right
//   picture: attention by giwa … ms, by three loops … ms, both on the …
#include "support/place.cuh"
#include "support/png.hpp"
#include "support/roof.hpp"

#if defined(__CUDACC__)
#include <giwa/attention.cuh>
#endif

#include <cmath>
#include <string>
#include <thread>

using giwa::int64, giwa::throw_if_failed;

constexpr int height = 144, width = 224, tokens = height * width;
constexpr int radius = 3, patch = (2 * radius + 1) * (2 * radius + 1), head_size = patch + 1;
constexpr int strip = 8, reach = 16;  // columns of a strip of tokens; rows and columns to the end of the window
constexpr float noise = 0.15f;        // standard deviation of the noise of each colour
constexpr float bandwidth = 0.48f;    // in standard deviations of the noise; 0.45 to 0.5 are within 0.1 dB
constexpr float sharpness = 1 / (bandwidth * bandwidth * noise * noise * patch);
// What noise adds to |a - b|^2 on average, unless a and b are one patch. Their numbers are averages of three colours.
constexpr float noise_distance = 2 * noise * noise / 3 * patch;

struct pixel {
  int row, column;
};
GIWA_HOST_DEVICE constexpr pixel pixel_of(int token) {
  return {token % (strip * height) / strip, token / (strip * height) * strip + token % strip};
}
GIWA_HOST_DEVICE constexpr int token_of(pixel p) {
  return p.column / strip * (strip * height) + p.row * strip + p.column % strip;
}
GIWA_HOST_DEVICE constexpr int larger(int a, int b) { return a > b ? a : b; }
GIWA_HOST_DEVICE constexpr int smaller(int a, int b) { return a < b ? a : b; }

// A rectangle that contains the pixels of a range of tokens.
struct rectangle {
  int top, bottom, left, right;  // all included

  GIWA_HOST_DEVICE constexpr rectangle(int first_token, int last_token) {
    const pixel first = pixel_of(first_token), last = pixel_of(last_token);
    left = first.column / strip * strip, right = last.column / strip * strip + strip - 1;
    const bool one_strip = right - left < strip;
    top = one_strip ? first.row : 0, bottom = one_strip ? last.row : height - 1;
  }
};

// The mask: a pixel sees those at most `reach` rows and columns away.
struct window {
  static constexpr bool any_range = true;

  GIWA_HOST_DEVICE bool operator()(giwa::attention_coord c) const {
    const pixel a = pixel_of(c.query), b = pixel_of(c.key);
    const int down = a.row - b.row, across = a.column - b.column;
    return -reach <= down && down <= reach && -reach <= across && across <= reach;
  }
  GIWA_HOST_DEVICE giwa::tile_keep classify(const giwa::score_tile& t) const {
    const rectangle q(t.first_query, t.last_query), k(t.first_key, t.last_key);
    const int least = larger(larger(k.top - q.bottom, q.top - k.bottom), larger(k.left - q.right, q.left - k.right));
    const int most = larger(larger(k.bottom - q.top, q.bottom - k.top), larger(k.right - q.left, q.right - k.left));
    return least > reach ? giwa::tile_keep::none : most <= reach ? giwa::tile_keep::all : giwa::tile_keep::some;
  }
};

// The score modifier: the same noise in query and key makes a pixel too similar to itself.
struct less_of_itself {
  GIWA_HOST_DEVICE float operator()(float score, giwa::attention_coord c) const {
    return c.query == c.key ? score - sharpness * noise_distance : score;
  }
};

struct add_noise {
  float* picture;
  GIWA_HOST_DEVICE void operator()(int64 i) const {
    picture[i] += noise * giwa::philox{37}.normal<float>(static_cast<giwa::uint64>(i));
  }
};

// A token of q, k and v. The numbers of a patch are the brightness of its pixels, less 1/2, so that sums are small.
struct make_token {
  const float* picture;  // (height, width, 3)
  float *q, *k, *v;      // (tokens, head_size), the same, (tokens, 3)

  GIWA_HOST_DEVICE void operator()(int64 token) const {
    const pixel p = pixel_of(static_cast<int>(token));
    float *const a = q + token * head_size, *const b = k + token * head_size, squares = 0;
    for (int n = 0; n < patch; ++n) {
      const int row = smaller(larger(p.row + n / (2 * radius + 1) - radius, 0), height - 1);
      const int column = smaller(larger(p.column + n % (2 * radius + 1) - radius, 0), width - 1);
      const float* const rgb = picture + 3 * (row * width + column);
      a[n] = (rgb[0] + rgb[1] + rgb[2]) / 3 - 0.5f;
      b[n] = 2 * a[n];
      squares += a[n] * a[n];
    }
    a[patch] = 1;
    b[patch] = -squares;
    for (int c = 0; c < 3; ++c) v[3 * token + c] = picture[3 * (p.row * width + p.column) + c];
  }
};

// The same in three loops, over pixels, the keys of a window and the numbers of a patch; it skips what the mask drops.
struct three_loops {
  const float *q, *v;
  float* o;

  GIWA_HOST_DEVICE void operator()(int64 query) const {
    const pixel p = pixel_of(static_cast<int>(query));
    float weights = 0, sum[3] = {0, 0, 0};
    for (int row = larger(p.row - reach, 0); row <= smaller(p.row + reach, height - 1); ++row)
      for (int column = larger(p.column - reach, 0); column <= smaller(p.column + reach, width - 1); ++column) {
        const int64 key = token_of({row, column});
        float distance = key == query ? noise_distance : 0.0f;
        for (int n = 0; n < patch; ++n) {
          const float difference = q[query * head_size + n] - q[key * head_size + n];
          distance += difference * difference;
        }
        const float weight = ::expf(-sharpness * distance);
        weights += weight;
        for (int c = 0; c < 3; ++c) sum[c] += weight * v[3 * key + c];
      }
    for (int c = 0; c < 3; ++c) o[3 * query + c] = sum[c] / weights;
  }
};

// (tokens, 3) as (height, width, 3).
std::vector<float> as_picture(const std::vector<float>& of_tokens) {
  std::vector<float> picture;
  for (int row = 0; row < height; ++row)
    for (int column = 0; column < width; ++column) {
      const auto at = of_tokens.begin() + 3 * token_of({row, column});
      picture.insert(picture.end(), at, at + 3);
    }
  return picture;
}

// The ratio of 1, the largest value, and the root of the mean squared error.
double decibels(const std::vector<float>& clean, const std::vector<float>& picture) {
  double squares = 0;
  for (std::size_t i = 0; i < clean.size(); ++i) squares += std::pow(static_cast<double>(clean[i] - picture[i]), 2);
  return -10 * std::log10(squares / static_cast<double>(clean.size()));
}

bool write(const std::vector<float>& left, const std::vector<float>& right, const char* file_name) {
  constexpr int gap = 8;
  std::vector<unsigned char> both;
  for (int row = 0; row < height; ++row) {
    const auto append = [&](const std::vector<float>& picture) {
      for (int i = 3 * row * width; i < 3 * (row + 1) * width; ++i)
        both.push_back(
            static_cast<unsigned char>(255 * std::clamp(picture[static_cast<std::size_t>(i)], 0.0f, 1.0f) + 0.5f));
    };
    append(left);
    both.insert(both.end(), 3 * gap, 255);
    append(right);
  }
  return example::write_png(file_name, height, 2 * width + gap, both);
}

template <class Place>
bool run(const Place& place, const char* file_name, std::string& summary) {
  std::printf("%d x %d pixels, each the average of up to %d x %d, weighted by patches of %d x %d\n", width, height,
              2 * reach + 1, 2 * reach + 1, 2 * radius + 1, 2 * radius + 1);
  const std::vector<float> clean = example::draw_roof(height, width);
  auto noisy = place.put(clean);
  throw_if_failed(giwa::for_all(place.where(), int64{3} * tokens, add_noise{noisy.data()}));

  example::tensor<float, 4, Place> q(place, {1, tokens, 1, head_size}), k(place, q.sizes()),
      v(place, {1, tokens, 1, 3}), o(place, v.sizes()), expected(place, v.sizes());
  throw_if_failed(giwa::for_all(place.where(), int64{tokens},
                                make_token{noisy.data(), q.view().data(), k.view().data(), v.view().data()}));
  const double giwa_ms = place.milliseconds([&] {
    return giwa::attention_forward<giwa::head_sizes<head_size, 3>, giwa::fp32_exact>(
        place.where(), q.view(), k.view(), v.view(), o.view(), window{}, less_of_itself{}, {.scale = sharpness});
  });
  const double loops_ms = place.milliseconds([&] {
    return giwa::for_all(place.where(), int64{tokens},
                         three_loops{q.view().data(), v.view().data(), expected.view().data()});
  });

  const std::vector<float> before = place.get(noisy), after = as_picture(o.on_host(place)),
                           loops = as_picture(expected.on_host(place));
  float largest = 0;
  for (std::size_t i = 0; i < after.size(); ++i) largest = std::fmax(largest, std::fabs(after[i] - loops[i]));
  const double noisy_db = decibels(clean, before), denoised_db = decibels(clean, after);
  std::printf("noisy      %.1f dB\ndenoised   %.1f dB\nthree loops give the same to %.0e of 1\n", noisy_db, denoised_db,
              static_cast<double>(largest));
  const std::string cpu = "CPU's " + std::to_string(std::thread::hardware_concurrency()) + " threads";
  char line[200];
  std::snprintf(line, sizeof(line), "picture: attention by giwa %.2f ms, by three loops %.2f ms, both on the %s\n",
                giwa_ms, loops_ms, Place::is_gpu ? "GPU" : cpu.c_str());
  summary = line;
  const bool written = write(before, after, file_name);
  std::printf("%s %s\n", written ? "wrote" : "could not write", file_name);
  return written && denoised_db > noisy_db + 8 && largest < 1e-4f;
}

int main(int argc, char** argv) {
  std::string summary;
  const int failed = example::run_anywhere(
      [&](const auto& place) { return run(place, argc > 1 ? argv[1] : "37_denoise.png", summary); });
  std::FILE* const file = argc > 2 ? std::fopen(argv[2], "w") : stdout;
  const bool written = file != nullptr && std::fputs(summary.c_str(), file) >= 0 && std::fflush(file) == 0;
  if (argc > 2 && file != nullptr) std::fclose(file);
  return written ? failed : 1;
}
