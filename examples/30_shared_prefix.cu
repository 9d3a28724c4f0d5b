// SPDX-License-Identifier: MIT
// Sequences that share a prefix: one call reads it for all of them, and a second one merges what each has besides.
//
//   nvcc -std=c++20 -O3 -gencode arch=compute_90a,code=sm_90a -Iinclude examples/30_shared_prefix.cu -o 30_shared_prefix
//
// Run from the root of the repository. sm_90a is for an H100 or H200; -arch=native is for the GPU of this machine.
// To copy it, also copy: support/attention_check.cuh, support/attention_compare.hpp, support/place.cuh.
//
// What it teaches: page tables may list the same pages for several sequences, so a prefix is stored once, and the plain
// call reads it once for each sequence. Instead, one call takes the queries of all sequences as queries of one sequence
// whose keys are the prefix: these are views of the same memory with other sizes. Its o and lse are the `prior` of a second
// call, for the separate keys of each sequence. The second call reads the prior and writes the result in place.
// Its page table is the plain call's without the first columns. Every query sees all of the prefix, so no mask is needed.
//
// Expected output, with the times of your machine:
//   64 sequences: 8192 shared keys and 193 to 256 separate ones, 32 heads of 128 over 8, fp16
//   plain call          … ms   2206.3 MB of keys and values
//   prefix and separate … ms     92.4 MB
//   largest error …, plain call …, of a plain attention …
#include <giwa/cache.cuh>

#include "support/attention_check.cuh"

using giwa::fp16, giwa::int64, giwa::kv_cache, giwa::tensor_view;

constexpr int64 heads = 32, kv_heads = 8, head_size = 128, page_size = 64, row_elements = kv_heads * head_size;

template <class Place>
bool run(const Place& place) {
  const int64 sequences = Place::is_gpu ? 64 : 4, prefix_pages = Place::is_gpu ? 128 : 4, own_pages = 4;
  const int64 stride = prefix_pages + own_pages, pages = prefix_pages + sequences * own_pages;
  std::vector<int> table, own_lengths, lengths;
  for (int b = 0; b < sequences; ++b) {
    for (int64 i = 0; i < prefix_pages; ++i) table.push_back(static_cast<int>(i));
    for (int64 i = 0; i < own_pages; ++i) table.push_back(static_cast<int>(prefix_pages + b * own_pages + i));
    own_lengths.push_back(static_cast<int>(own_pages * page_size) - b % 64);
    lengths.push_back(static_cast<int>(prefix_pages * page_size) + own_lengths.back());
  }
  const auto table_there = place.put(table), lengths_there = place.put(lengths), own_there = place.put(own_lengths);
  const auto prefix_there = place.put(std::vector<int>{static_cast<int>(prefix_pages * page_size)});

  example::tensor<fp16, 4, Place> q(place, {sequences, 1, heads, head_size}, 1), o(place, q.sizes()),
      plain_o(place, q.sizes()), k(place, {pages, page_size, kv_heads, head_size}, 2), v(place, k.sizes(), 3);
  auto lse = place.template make<float>(heads * sequences);
  const auto cache_of = [&](const int* indices, int64 most, const auto& keys, int64 count) {
    return kv_cache<const fp16>{.k = k.view(),
                                .v = v.view(),
                                .pages = {.indices = indices, .stride = stride, .most = most},
                                .lengths = keys.data(),
                                .sequences = count};
  };
  const kv_cache<const fp16> whole = cache_of(table_there.data(), stride, lengths_there, sequences),
                             prefix = cache_of(table_there.data(), prefix_pages, prefix_there, 1),
                             own = cache_of(table_there.data() + prefix_pages, own_pages, own_there, sequences);

  // (1, sequences, heads, head size): one sequence with a query of each.
  const giwa::index<4> as_one{1, sequences, heads, head_size};
  const tensor_view<fp16, 4> q_as_one(q.view().data(), as_one), o_as_one(o.view().data(), as_one);

  // A workspace that is large enough for each of the calls.
  int64 bytes = 0;
  if constexpr (Place::is_gpu) {
    const auto properties = throw_if_failed(giwa::properties_of(throw_if_failed(giwa::current_device())));
    const giwa::workspace_gpu gpu{.multiprocessors = properties.multiprocessors};
    bytes = std::max(giwa::workspace_bytes(whole, q.view(), plain_o.view(), {}, {}, {}, gpu),
                     giwa::workspace_bytes(prefix, q_as_one, o_as_one, {}, {}, {}, gpu));
  }
  auto memory = place.template make<unsigned char>(bytes);
  const tensor_view<unsigned char, 1> workspace(memory.data(), {bytes});

  const auto plain = [&] {
    return giwa::attention_cached<head_size>(place.where(), whole, q.view(), plain_o.view(), {.workspace = workspace});
  };
  const auto shared = [&] {
    if (const giwa::status s =
            giwa::attention_cached<head_size>(place.where(), prefix, q_as_one, o_as_one,
                                              {.lse = {lse.data(), {1, heads, sequences}}, .workspace = workspace});
        !s.ok())
      return s;
    // The same lse, (sequences, heads, 1).
    const tensor_view<const float, 3> of_prefix(lse.data(), {sequences, heads, 1}, {1, sequences, 1});
    return giwa::attention_cached<head_size>(place.where(), own, q.view(), o.view(),
                                             {.workspace = workspace, .prior = {.o = o.view(), .lse = of_prefix}});
  };
  const double plain_ms = place.milliseconds(plain), shared_ms = place.milliseconds(shared);

  int64 all_keys = 0, own_keys = 0;
  for (const int n : lengths) all_keys += n;
  for (const int n : own_lengths) own_keys += n;
  const auto megabytes = [](int64 keys) { return 1e-6 * 2 * static_cast<double>(keys * row_elements) * sizeof(fp16); };
  std::printf("%d sequences: %d shared keys and %d to %d separate ones, %d heads of %d over %d, fp16\n",
              static_cast<int>(sequences), static_cast<int>(prefix_pages * page_size), std::ranges::min(own_lengths),
              std::ranges::max(own_lengths), static_cast<int>(heads), static_cast<int>(head_size),
              static_cast<int>(kv_heads));
  std::printf("plain call          %9.3f ms %8.1f MB of keys and values\n", plain_ms, megabytes(all_keys));
  std::printf("prefix and separate %9.3f ms %8.1f MB\n", shared_ms, megabytes(prefix_pages * page_size + own_keys));

  // Some sequences against double precision.
  const std::vector<fp16> qs = q.on_host(place), ks = k.on_host(place), vs = v.on_host(place), os = o.on_host(place),
                          plain_os = plain_o.on_host(place);
  bool right = true;
  example::comparison merged, in_one;
  for (const int64 b : {int64{0}, sequences / 2, sequences - 1}) {
    const int64 keys = lengths[static_cast<std::size_t>(b)];
    const auto gathered = [&](const std::vector<fp16>& pool) {
      std::vector<fp16> all;
      for (int64 i = 0; i < stride; ++i) {
        const auto from = pool.begin() + table[static_cast<std::size_t>(b * stride + i)] * page_size * row_elements;
        all.insert(all.end(), from, from + page_size * row_elements);
      }
      return all;
    };
    using view = tensor_view<const fp16, 4>;
    const std::vector<fp16> of_k = gathered(ks), of_v = gathered(vs);
    const auto compared = [&](const std::vector<fp16>& out, example::comparison& worst) {
      const giwa::index<4> q_sizes{1, 1, heads, head_size}, k_sizes{1, keys, kv_heads, head_size};
      const example::comparison c =
          example::compare(view(qs.data() + b * heads * head_size, q_sizes), view(of_k.data(), k_sizes),
                           view(of_v.data(), k_sizes), view(out.data() + b * heads * head_size, q_sizes));
      worst.error = std::max(worst.error, c.error), worst.plain = std::max(worst.plain, c.plain);
      right = right && c.good();
    };
    compared(os, merged);
    compared(plain_os, in_one);
  }
  std::printf("largest error %.1e, plain call %.1e, of a plain attention %.1e\n", merged.error, in_one.error,
              merged.plain);
  return right;
}

int main() {
  return example::run_anywhere([](const auto& place) { return run(place); });
}
