// SPDX-License-Identifier: MIT
// A custom score modifier: the learned relative positions of T5, after a softcap, in the registers of the kernel.
//
//   nvcc -std=c++20 -O3 -gencode arch=compute_90a,code=sm_90a -Iinclude examples/12_score_modifier.cu -o 12_score_modifier
//
// Run from the root of the repository. sm_90a is for an H100 or H200; -arch=native is for the GPU of this machine.
// To copy it, also copy: support/attention_check.cuh, support/attention_compare.hpp, support/place.cuh.
//
// What it teaches: a score modifier is a small struct that is called with (score, coordinates) after the scale and
// before the mask. Its pointers must lead to memory that the kernel can read. It costs a few instructions per score.
// The same positions as a bias tensor, giwa::bias, must be computed, stored and read: (1, heads, queries, keys), which
// at long lengths is larger than all other tensors together. `then` joins two modifiers.
//
// Expected output, with the times of your machine:
//   1 x 2048 tokens, 8 heads of 64, fp16
//   plain                      … ms
//   the same as a bias tensor  … ms   and 64.0 MB of tensor
//   own modifier               … ms   and 1.0 KB of table
//   largest error …, of a plain attention …
#include "support/attention_check.cuh"

using giwa::fp16, giwa::int64;

// score + table[head][how far the key is behind the query, at most 31]
struct relative_position {
  const float* table;  // (heads, 32)
  GIWA_HOST_DEVICE float operator()(float score, giwa::attention_coord c) const {
    const int distance = c.diagonal - c.key;
    return score + table[c.head * 32 + (distance < 0 ? 0 : distance > 31 ? 31 : distance)];
  }
};

// The tensor that says the same: element i of (heads, queries, keys).
struct make_bias {
  fp16* to;
  const float* table;
  int64 tokens;
  GIWA_HOST_DEVICE void operator()(giwa::index<3> at) const {
    const auto [head, query, key] = at;
    const int64 distance = query - key;
    to[(head * tokens + query) * tokens + key] = giwa::convert<fp16>{}(table[head * 32 + (distance < 0    ? 0
                                                                                          : distance > 31 ? 31
                                                                                                          : distance)]);
  }
};

template <class Place>
bool run(const Place& place) {
  const int64 tokens = Place::is_gpu ? 2048 : 512, heads = 8, head_size = 64;
  example::tensor<fp16, 4, Place> q(place, {1, tokens, heads, head_size}, 1), k(place, q.sizes(), 2),
      v(place, q.sizes(), 3), o(place, q.sizes());
  std::vector<float> numbers(static_cast<std::size_t>(heads * 32));
  for (std::size_t i = 0; i < numbers.size(); ++i) numbers[i] = -0.0625f * static_cast<float>(i % 32);
  const auto table = place.put(numbers);
  auto positions = place.template make<fp16>(heads * tokens * tokens);
  throw_if_failed(giwa::for_all(place.where(), giwa::extents{heads, tokens, tokens},
                                make_bias{positions.data(), table.data(), tokens}));
  const giwa::tensor_view<const fp16, 4> tensor(positions.data(), {1, heads, tokens, tokens});

  const auto milliseconds = [&](const auto& score) {
    return place.milliseconds([&] {
      return giwa::attention_forward<64>(place.where(), q.view(), k.view(), v.view(), o.view(), giwa::causal{}, score);
    });
  };
  const giwa::softcap cap{30};
  std::printf("1 x %lld tokens, %lld heads of %lld, fp16\n", static_cast<long long>(tokens),
              static_cast<long long>(heads), static_cast<long long>(head_size));
  std::printf("plain                      %8.3f ms\n", milliseconds(giwa::plain_score{}));
  std::printf("the same as a bias tensor  %8.3f ms   and %.1f MB of tensor\n",
              milliseconds(giwa::then(cap, giwa::bias(tensor))), static_cast<double>(tensor.size()) * 2 / (1 << 20));
  const auto score = giwa::then(cap, relative_position{table.data()});
  std::printf("own modifier               %8.3f ms   and %.1f KB of table\n", milliseconds(score),
              static_cast<double>(numbers.size()) * 4 / (1 << 10));

  const auto on_host = giwa::then(cap, relative_position{numbers.data()});
  const example::comparison c = example::compare(place, q, k, v, o, giwa::causal{}, on_host);
  std::printf("largest error %.1e, of a plain attention %.1e\n", c.error, c.plain);
  return c.good();
}

int main() {
  return example::run_anywhere([](const auto& place) { return run(place); });
}
