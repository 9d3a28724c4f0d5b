// SPDX-License-Identifier: MIT
// Out of memory: attention to keys and values that no GPU can hold at once, in parts that are merged by their lse.
//
//   nvcc -std=c++20 -O3 -gencode arch=compute_90a,code=sm_90a -Iinclude examples/21_out_of_memory.cu -o 21_out_of_memory
//
// Run from the root of the repository. sm_90a is for an H100 or H200; -arch=native is for the GPU of this machine.
// To copy it, also copy: support/attention_check.cuh, support/attention_compare.hpp, support/place.cuh.
//
// What it teaches: a failed allocation returns a status with the bytes asked for and the bytes free; format_memory()
// gives the whole account. memory_advice() computes, on any machine, what a call needs and which smaller calls fit.
// Attention over parts of the keys is exact: each part gives o_i and lse_i, and merge_attention() computes
// lse = log(sum exp(lse_i)), o = sum exp(lse_i - lse) o_i.
//
// Expected output on an H200, with the numbers of your machine:
//   in three parts: error 2.1e-04 against double precision, at most 9.3e-04 allowed
//   giwa: out of memory `size`: 174.8 GiB asked for, 138.4 GiB free of 139.8 GiB; this process's pool holds 32.0 MiB, 0 bytes of it in use
//   attention needs 174.8 GiB (q 8.0 MiB, k 87.4 GiB, v 87.4 GiB, o 8.0 MiB, workspace 8 bytes), 131.4 GiB free of 139.8 GiB: does not fit
//     the batch halved: 87.4 GiB, fits; the largest batch that fits is 48
//     the keys halved, two calls that are merged: 87.4 GiB, fits; the fewest parts that fit are 2
//       (calls with lse; lse = log sum exp(lse_i), o = sum exp(lse_i - lse) o_i; a mask must count the keys before)
//   2 parts of 87.4 GiB: 45.6 ms, 4114 GB/s of keys and values; the mean of ones is one
//   device: NVIDIA H200
//   check:  right
#include "support/attention_check.cuh"

using giwa::fp16, giwa::int64, giwa::tensor_view;

struct ones {
  GIWA_HOST_DEVICE fp16 operator()() const { return giwa::convert<fp16>{}(1.0f); }
};

// Attention of queries over keys that come in parts: o and lse of each part, and in the end of all keys.
template <class Place>
struct parts_of_attention {
  const Place& place;
  example::tensor<fp16, 4, Place>& q;
  int64 parts;
  giwa::index<4> sizes = q.sizes();
  example::tensor<fp16, 5, Place> o{place, {parts, sizes[0], sizes[1], sizes[2], sizes[3]}};
  example::tensor<float, 4, Place> lse{place, {parts, sizes[0], sizes[2], sizes[1]}};  // (parts, batch, heads, queries)

  void add(int64 part, const tensor_view<fp16, 4>& k, const tensor_view<fp16, 4>& v) {
    const tensor_view<fp16, 4> part_o(o.view().data() + part * o.view().stride(0), sizes);
    const tensor_view<float, 3> part_lse(lse.view().data() + part * lse.view().stride(0),
                                         {sizes[0], sizes[2], sizes[1]});
    throw_if_failed(giwa::attention_forward<128>(place.where(), q.view(), k, v, part_o, {.lse = part_lse}));
  }
  void merge(const tensor_view<fp16, 4>& all) {
    throw_if_failed(giwa::merge_attention(place.where(), o.view(), lse.view(), all));
  }
};

// Three parts are views of one tensor, and are compared with double precision.
template <class Place>
bool small(const Place& place) {
  example::tensor<fp16, 4, Place> q(place, {2, 40, 4, 128}, 1), k(place, {2, 1000, 4, 128}, 2), v(place, k.sizes(), 3),
      o(place, q.sizes());
  parts_of_attention<Place> attention{place, q, 3};
  for (const int64 begin : {0, 400, 800}) {
    const giwa::index<4> sizes{2, begin < 800 ? 400 : 200, 4, 128};
    const auto part = [&](tensor_view<fp16, 4> all) {
      return tensor_view<fp16, 4>(all.data() + begin * all.stride(1), sizes, all.strides());
    };
    attention.add(begin / 400, part(k.view()), part(v.view()));
  }
  attention.merge(o.view());
  const example::comparison c = example::compare(place, q, k, v, o);
  std::printf("in three parts: error %.1e against double precision, at most %.1e allowed\n", c.error,
              2 * c.plain + c.ulp);
  return c.good();
}

template <class Place>
bool run(const Place& place) {
  const bool right = small(place);
  constexpr int64 gib = int64{1} << 30;
  // The CPU looks at a GPU that is not there.
  const giwa::memory_report memory = Place::is_gpu
                                         ? throw_if_failed(giwa::memory_of(throw_if_failed(giwa::current_device())))
                                         : giwa::memory_report{.total = 24 * gib, .free = 22 * gib};
  // 16 queries in each of 64 sequences, and keys and values of 1.25 times the whole memory.
  constexpr int64 batch = 64, queries = 16, heads = 32, bytes_of_key = 2 * batch * heads * 128 * 2;
  const int64 keys = memory.total / 4 * 5 / bytes_of_key;
  const giwa::attention_problem problem{batch, queries, keys, heads, heads, 128, 128, sizeof(fp16)};
  if constexpr (Place::is_gpu) {
    const auto both = giwa::device_array<fp16>::allocate(place.stream, keys * (bytes_of_key / 2));
    std::printf("%s\n", format_memory(both.state, memory).c_str());
    if (both.ok()) return false;
  }
  // Of what is free, a twentieth stays so: memory is given out in larger pieces than one asks for.
  const auto advice = throw_if_failed(giwa::memory_advice(problem, memory.free / 20 * 19, memory.total));
  print(advice);
  if (!Place::is_gpu || advice.key_parts == 0) return right;

  const int64 most = giwa::ceil_div(keys, advice.key_parts);
  example::tensor<fp16, 4, Place> q(place, {batch, queries, heads, 128}, 1), o(place, q.sizes()),
      k(place, {batch, most, heads, 128}), v(place, k.sizes());
  throw_if_failed(giwa::for_all(place.where(), giwa::elementwise{v.view()}, ones{}));
  parts_of_attention<Place> attention{place, q, advice.key_parts};
  double ms = 0;
  for (int64 done = 0; done < keys; done += most) {  // new keys each time, as they would come from the host
    const giwa::index<4> sizes{batch, std::min(most, keys - done), heads, 128};
    throw_if_failed(giwa::for_all(place.where(), k.view().size(),
                                  example::fill<fp16>{k.view().data(), static_cast<giwa::uint64>(done)}));
    place.wait();
    const auto start = std::chrono::steady_clock::now();
    attention.add(done / most, {k.view().data(), sizes}, {v.view().data(), sizes});
    if (done + most >= keys) attention.merge(o.view());
    place.wait();
    ms += std::chrono::duration<double, std::milli>(std::chrono::steady_clock::now() - start).count();
  }
  // All values are 1, so every mean of them is.
  bool one = true;
  for (const fp16 x : o.on_host(place)) one = one && std::abs(giwa::convert<float>{}(x)-1) < 0x1p-9f;
  std::printf("%lld parts of %s: %.1f ms, %.0f GB/s of keys and values; the mean of ones is %s\n",
              static_cast<long long>(advice.key_parts), giwa::format_bytes(most * bytes_of_key).c_str(), ms,
              static_cast<double>(keys * bytes_of_key) / ms * 1e-6, one ? "one" : "NOT ONE");
  return right && one;
}

int main() {
  return example::run_anywhere([](const auto& place) { return run(place); });
}
