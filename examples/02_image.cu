// SPDX-License-Identifier: MIT
// Draws the Mandelbrot set with a two-dimensional index on the GPU and on the CPU, with the same bits.
//
//   nvcc -std=c++20 -O3 -gencode arch=compute_90a,code=sm_90a -Iinclude examples/02_image.cu -o 02_image
//
// Run from the root of the repository. sm_90a is for an H100 or H200; -arch=native is for the GPU of this machine.
// To copy it, also copy: support/png.hpp.
//
// What it teaches: for_all over extents{height, width} calls the body with an index<2>, (row, column). A tensor_view
// addresses pixels by row and column. A body in integer arithmetic gives the same result everywhere. (In floating point a
// compiler may fuse a product and a sum on one side and not on the other.)
//
// Writes the picture in colours to a PNG file: 02_image.png, or the first argument.
//
// Expected output, with the figures of an H200 and its host, 2026-11-20:
//   GPU: 0.096 ms, 6370 million pixels a second, checksum b9294b21e3b223b7
//   CPU: 30.100 ms, 20 million pixels a second, checksum b9294b21e3b223b7
//   wrote 02_image.png
//   device: NVIDIA H200
//   check:  960 x 640 pixels, the checksum is as it should be
#include "support/png.hpp"

#include <giwa/giwa.cuh>
#include <giwa/host.hpp>

#include <chrono>
#include <cmath>
#include <cstdio>
#include <vector>

using giwa::int64;
using giwa::throw_if_failed;
using pixel = unsigned char;

constexpr int64 height = 640, width = 960;
constexpr giwa::uint64 expected_checksum = 0xb9294b21e3b223b7;

// The value of one pixel: after how many steps z = z^2 + c leaves the circle of radius 2, where c is the position of the
// pixel in the plane. Fixed point with 28 fractional bits: |z| < 8, so that a product fits in 64 bits.
struct mandelbrot {
  giwa::tensor_view<pixel, 2> image;  // (rows, columns)

  GIWA_HOST_DEVICE void operator()(giwa::index<2> at) const {
    const auto [row, column] = at;
    constexpr int64 one = int64{1} << 28;
    const int64 c_x = column * one * 63 / (image.extent(1) * 20) - one * 9 / 4;  // [-2.25, 0.9)
    const int64 c_y = row * one * 21 / (image.extent(0) * 10) - one * 21 / 20;   // [-1.05, 1.05)
    int64 x = 0, y = 0;
    int steps = 0;
    for (; steps < 255; ++steps) {
      const int64 x_squared = x * x / one, y_squared = y * y / one;
      if (x_squared + y_squared > 4 * one) break;
      y = 2 * x * y / one + c_y;
      x = x_squared - y_squared + c_x;
    }
    image[at] = static_cast<pixel>(steps == 255 ? 0 : 255 - 6 * steps % 256);
  }
};

// FNV-1a of all the pixels, row after row.
giwa::uint64 checksum(const std::vector<pixel>& image) {
  giwa::uint64 hash = 0xcbf29ce484222325;
  for (const pixel p : image) hash = (hash ^ p) * 0x100000001b3;
  return hash;
}

bool report(const char* where, double ms, const std::vector<pixel>& image) {
  const giwa::uint64 sum = checksum(image);
  std::printf("%s: %.3f ms, %.0f million pixels a second, checksum %016llx\n", where, ms,
              static_cast<double>(height * width) * 1e-3 / ms, static_cast<unsigned long long>(sum));
  return sum == expected_checksum;
}

bool draw_on_gpu(std::vector<pixel>& image) {
  const giwa::stream stream = throw_if_failed(giwa::stream::create());
  giwa::device_array<pixel> pixels = throw_if_failed(giwa::device_array<pixel>::allocate(stream, height * width));
  const mandelbrot body{{pixels.data(), {height, width}}};
  const giwa::timing t = throw_if_failed(giwa::time_on(stream, [&] {
    return giwa::for_all(stream, giwa::extents{height, width}, body);
  }));
  throw_if_failed(giwa::to_host(stream, pixels, image));
  return report("GPU", static_cast<double>(t.median), image);
}

bool draw_on_cpu(std::vector<pixel>& image) {
  const mandelbrot body{{image.data(), {height, width}}};
  const auto start = std::chrono::steady_clock::now();
  throw_if_failed(giwa::for_all(giwa::host, giwa::extents{height, width}, body));
  const std::chrono::duration<double, std::milli> time = std::chrono::steady_clock::now() - start;
  return report("CPU", time.count(), image);
}

// Blue far from the set, then white and orange; black where no step leaves the circle.
bool write(const std::vector<pixel>& image, const char* file_name) {
  std::vector<unsigned char> rgb;
  for (const pixel p : image)
    for (const float phase : {-0.1f, 0.0f, 0.1f}) {
      const float wave = std::sin(6.2831853f * (static_cast<float>(p) / 256 + phase));
      rgb.push_back(static_cast<unsigned char>(p == 0 ? 0 : 127.5f + 127.4f * wave));
    }
  return example::write_png(file_name, height, width, rgb);
}

int main(int argc, char** argv) try {
  const giwa::device_choice choice = giwa::choose_device();
  std::vector<pixel> image(height * width);
  const bool gpu_right = !choice.on_gpu() || draw_on_gpu(image);
  std::vector<pixel> again(height * width);
  const bool cpu_right = draw_on_cpu(again);
  if (!choice.on_gpu()) image = again;

  const char* const file_name = argc > 1 ? argv[1] : "02_image.png";
  const bool written = write(image, file_name);
  std::printf("%s %s\n", written ? "wrote" : "could not write", file_name);
  std::printf("device: %s\n", choice.on_gpu() ? choice.found.properties.name : "CPU");
  if (!choice.on_gpu()) std::printf("        %s\n", choice.found.advice);
  std::printf("check:  %lld x %lld pixels, %s\n", static_cast<long long>(width), static_cast<long long>(height),
              gpu_right && cpu_right ? "the checksum is as it should be" : "FAILED, the checksum is wrong");
  return gpu_right && cpu_right && written ? 0 : 1;
} catch (const giwa::status_error& error) {
  std::fprintf(stderr, "%s\n", error.what());
  return 1;
}
