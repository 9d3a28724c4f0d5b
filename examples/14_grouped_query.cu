// SPDX-License-Identifier: MIT
// Grouped-query attention: several heads of queries read one head of keys and values, which is stored once.
//
//   nvcc -std=c++20 -O3 -gencode arch=compute_90a,code=sm_90a -Iinclude examples/14_grouped_query.cu -o 14_grouped_query
//
// Run from the root of the repository. sm_90a is for an H100 or H200; -arch=native is for the GPU of this machine.
// To copy it, also copy: support/attention_check.cuh, support/attention_compare.hpp, support/place.cuh.
//
// What it teaches: k and v have fewer heads than q. Head h of q reads head h / (heads / kv heads). Any number that
// divides the heads works: all heads (multi-head), 8, 7 or 1 (multi-query). This reduces the memory of keys and values,
// which is most of what text generation reads. The result has the same bits as a call in which they are repeated for
// every head.
//
// Expected output, with the times of your machine:
//   1 x 2048 tokens, 28 heads of 64, bf16
//   kv heads   ms      keys and values
//   28         …       14.0 MB
//   4          …        2.0 MB   the bits of repeated heads
//   1          …        0.5 MB   the bits of repeated heads
#include "support/attention_check.cuh"

#include <cstring>

using giwa::bf16, giwa::int64;

// Element at (row, head, i) of a tensor whose heads are each repeated.
struct repeat_heads {
  giwa::tensor_view<const bf16, 3> from;  // (rows, few heads, head size)
  giwa::tensor_view<bf16, 3> to;          // (rows, heads, head size)
  GIWA_HOST_DEVICE void operator()(giwa::index<3> at) const {
    to[at] = from(at[0], at[1] / (to.extent(1) / from.extent(1)), at[2]);
  }
};

template <class Place>
bool run(const Place& place) {
  const int64 tokens = Place::is_gpu ? 2048 : 256, heads = 28, head_size = 64;
  using tensor = example::tensor<bf16, 4, Place>;
  tensor q(place, {1, tokens, heads, head_size}, 1), o(place, q.sizes());
  const auto attention = [&](tensor& k, tensor& v) {
    return giwa::attention_forward<64>(place.where(), q.view(), k.view(), v.view(), o.view(), giwa::causal{});
  };
  const auto repeated = [&](tensor& few) {
    tensor all(place, q.sizes());
    throw_if_failed(giwa::for_all(place.where(), giwa::extents{tokens, heads, head_size},
                                  repeat_heads{{few.view().data(), {tokens, few.sizes()[2], head_size}},
                                               {all.view().data(), {tokens, heads, head_size}}}));
    return all;
  };
  std::printf("1 x %lld tokens, %lld heads of %lld, bf16\n", static_cast<long long>(tokens),
              static_cast<long long>(heads), static_cast<long long>(head_size));
  std::printf("kv heads   ms        keys and values\n");
  bool right = true;
  for (const int64 kv_heads : {28, 4, 1}) {
    tensor k(place, {1, tokens, kv_heads, head_size}, 2), v(place, k.sizes(), 3);
    const double ms = place.milliseconds([&] { return attention(k, v); });
    const std::vector<bf16> grouped = o.on_host(place);
    const example::comparison c = example::compare(place, q, k, v, o, giwa::causal{});
    tensor all_k = repeated(k), all_v = repeated(v);
    throw_if_failed(attention(all_k, all_v));
    const std::vector<bf16> one_by_one = o.on_host(place);
    const bool same = std::memcmp(grouped.data(), one_by_one.data(), grouped.size() * sizeof(bf16)) == 0;
    std::printf("%-8lld %8.3f %11.1f MB   %s\n", static_cast<long long>(kv_heads), ms,
                2.0 * static_cast<double>(k.view().size()) * sizeof(bf16) / (1 << 20),
                same ? "the bits of repeated heads" : "NOT THE BITS of repeated heads");
    right = right && same && c.good();
  }
  return right;
}

int main() {
  return example::run_anywhere([](const auto& place) { return run(place); });
}
