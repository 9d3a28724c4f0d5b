// SPDX-License-Identifier: MIT
// The attention shapes of text-to-image models: pixels to pixels, pixels to a prompt, and one head of 512.
//
//   nvcc -std=c++20 -O3 -gencode arch=compute_90a,code=sm_90a -Iinclude examples/16_text_to_image.cu -o 16_text_to_image
//
// Run from the root of the repository. sm_90a is for an H100 or H200; -arch=native is for the GPU of this machine.
// To copy it, also copy: support/attention_check.cuh, support/attention_compare.hpp, support/place.cuh.
//
// What it teaches: head sizes need not be powers of two (Stable Diffusion 1 has 40, 80 and 160). Lengths need not be
// multiples of anything (a prompt has 77 tokens), and the numbers of queries and keys may differ. A head may be as wide
// as 512 (the autoencoder). The head size is a template argument, and each is compiled, so list those that you need.
//
// Expected output, with the times of your machine; on a CPU there are fewer pixels:
//   2 images, fp16             queries   keys  heads x size         ms   TFLOP/s   error, of a plain one
//   SD 1, 64 x 64 pixels          4096   4096      8 x  40           …         …         …, …
//   …
#include "support/attention_check.cuh"

using giwa::fp16, giwa::int64;

struct layer {
  const char* name;
  int64 queries, keys, heads, head_size;
};

constexpr int64 prompt = 77;  // tokens
constexpr layer layers[] = {
    {"SD 1, 64 x 64 pixels", 4096, 4096, 8, 40},
    {"SD 1, 64 x 64, prompt", 4096, prompt, 8, 40},
    {"SD 1, 32 x 32", 1024, 1024, 8, 80},
    {"SD 1, 32 x 32, prompt", 1024, prompt, 8, 80},
    {"SD 1, 16 x 16", 256, 256, 8, 160},
    {"SD 1, 16 x 16, prompt", 256, prompt, 8, 160},
    {"SD 1, 8 x 8", 64, 64, 8, 160},
    {"SD XL, 64 x 64", 4096, 4096, 10, 64},
    {"SD XL, 32 x 32", 1024, 1024, 20, 64},
    {"SD XL, 32 x 32, prompt", 1024, prompt, 20, 64},
    {"autoencoder, 64 x 64", 4096, 4096, 1, 512},
};

template <class Place>
bool run(const Place& place) {
  bool right = true;
  std::printf("2 images, fp16             queries   keys  heads x size         ms   TFLOP/s   error, of a plain one\n");
  for (layer a : layers) {
    if (!Place::is_gpu) a.queries = std::min(a.queries, int64{256}), a.keys = std::min(a.keys, int64{256});
    example::tensor<fp16, 4, Place> q(place, {2, a.queries, a.heads, a.head_size}, 1),
        k(place, {2, a.keys, a.heads, a.head_size}, 2), v(place, k.sizes(), 3), o(place, q.sizes());
    const double ms = place.milliseconds([&] {
      return giwa::choose_head_size<40, 64, 80, 160, 512>(a.head_size, [&](auto head_size) {
        return giwa::attention_forward<head_size>(place.where(), q.view(), k.view(), v.view(), o.view());
      });
    });
    const example::comparison c = example::compare(place, q, k, v, o);
    std::printf("%-25s %8lld %6lld %6lld x %3lld %11.4f %9.3g   %.1e, %.1e%s\n", a.name,
                static_cast<long long>(a.queries), static_cast<long long>(a.keys), static_cast<long long>(a.heads),
                static_cast<long long>(a.head_size), ms,
                example::flops(2 * a.heads * a.queries * a.keys, a.head_size, a.head_size) / ms * 1e-9, c.error,
                c.plain, c.good() ? "" : "   WRONG");
    right = right && c.good();
  }
  return right;
}

int main() {
  return example::run_anywhere([](const auto& place) { return run(place); });
}
