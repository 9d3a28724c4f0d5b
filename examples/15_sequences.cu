// SPDX-License-Identifier: MIT
// A batch of sequences of different lengths, stored one after the other without padding.
//
//   nvcc -std=c++20 -O3 -gencode arch=compute_90a,code=sm_90a -Iinclude examples/15_sequences.cu -o 15_sequences
//
// Run from the root of the repository. sm_90a is for an H100 or H200; -arch=native is for the GPU of this machine.
// To copy it, also copy: support/attention_check.cuh, support/attention_compare.hpp, support/place.cuh.
//
// What it teaches: giwa::sequences says where each sequence begins in packed tensors (all rows, heads, head size). The
// offsets are in memory that the kernel reads. The host need not know them, so the call works in a captured graph. A
// sequence may be empty. A sequence gives identical bits alone or in a batch. Alternatively, pad to the longest
// sequence and mask with giwa::prefix{.counts = lengths}: this gives the same results but computes rows that are not
// needed.
//
// Expected output, with the times of your machine:
//   8 sequences of 0 to 2000 tokens, 4213 in all, 8 heads of 64, fp16
//   packed                 … ms    16.5 MB of q, k, v and o
//   padded to the longest  … ms    62.5 MB
//   each sequence alone: the same bits
#include "support/attention_check.cuh"

#include <cstring>

using giwa::fp16, giwa::int64;

template <class Place>
bool run(const Place& place) {
  constexpr int64 heads = 8, head_size = 64, row = heads * head_size;
  const std::vector<int> lengths =
      Place::is_gpu ? std::vector{513, 1, 0, 200, 64, 2000, 35, 1400} : std::vector{129, 1, 0, 50, 16, 500, 9, 350};
  std::vector<int> offsets{0};
  for (const int length : lengths) offsets.push_back(offsets.back() + length);
  const int64 count = static_cast<int64>(lengths.size()), all = offsets.back(), longest = std::ranges::max(lengths);
  const auto offsets_there = place.put(offsets), lengths_there = place.put(lengths);

  example::tensor<fp16, 3, Place> q(place, {all, heads, head_size}, 1), k(place, q.sizes(), 2), v(place, q.sizes(), 3),
      o(place, q.sizes());
  const giwa::sequences packed{offsets_there.data(), offsets_there.data(), count, longest};
  const double packed_ms = place.milliseconds([&] {
    return giwa::attention_forward<64>(place.where(), q.view(), k.view(), v.view(), o.view(), giwa::causal{},
                                       {.sequences = packed});
  });
  const std::vector<fp16> together = o.on_host(place);

  for (std::size_t i = 0; i < lengths.size(); ++i) {
    const auto part = [&](auto& x) {
      return giwa::tensor_view<fp16, 4>(x.view().data() + offsets[i] * row, {1, lengths[i], heads, head_size});
    };
    throw_if_failed(giwa::attention_forward<64>(place.where(), part(q), part(k), part(v), part(o), giwa::causal{}));
  }
  const std::vector<fp16> alone = o.on_host(place);
  const bool same = std::memcmp(together.data(), alone.data(), alone.size() * sizeof(fp16)) == 0;

  // The last sequence against double precision.
  const std::vector<fp16> qs = q.on_host(place), ks = k.on_host(place), vs = v.on_host(place);
  const auto last = [&](const std::vector<fp16>& x) {
    return giwa::tensor_view<const fp16, 4>(x.data() + (all - lengths.back()) * row,
                                            {1, lengths.back(), heads, head_size});
  };
  const bool right = example::compare(last(qs), last(ks), last(vs), last(together), giwa::causal{}).good();

  const giwa::index<4> padded{count, longest, heads, head_size};
  example::tensor<fp16, 4, Place> wide_q(place, padded, 1), wide_k(place, padded, 2), wide_v(place, padded, 3),
      wide_o(place, padded);
  const double padded_ms = place.milliseconds([&] {
    return giwa::attention_forward<64>(place.where(), wide_q.view(), wide_k.view(), wide_v.view(), wide_o.view(),
                                       giwa::causal{} & giwa::prefix{.counts = lengths_there.data()});
  });
  const auto megabytes = [](int64 rows) { return 4.0 * static_cast<double>(rows * row) * sizeof(fp16) / (1 << 20); };
  std::printf("%lld sequences of 0 to %lld tokens, %lld in all, %lld heads of %lld, fp16\n",
              static_cast<long long>(count), static_cast<long long>(longest), static_cast<long long>(all),
              static_cast<long long>(heads), static_cast<long long>(head_size));
  std::printf("packed                %8.3f ms %8.1f MB of q, k, v and o\n", packed_ms, megabytes(all));
  std::printf("padded to the longest %8.3f ms %8.1f MB\n", padded_ms, megabytes(count * longest));
  std::printf("each sequence alone: %s\n", same ? "the same bits" : "OTHER BITS");
  return same && right;
}

int main() {
  return example::run_anywhere([](const auto& place) { return run(place); });
}
