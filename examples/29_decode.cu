// SPDX-License-Identifier: MIT
// A decode loop in one CUDA graph: the cache grows by a key for each sequence in every step, without the host's help.
//
//   nvcc -std=c++20 -O3 -gencode arch=compute_90a,code=sm_90a -Iinclude examples/29_decode.cu -o 29_decode
//
// Run from the root of the repository. sm_90a is for an H100 or H200; -arch=native is for the GPU of this machine.
// To copy it, also copy: support/attention_check.cuh, support/attention_compare.hpp, support/graph.cuh,
//                        support/place.cuh.
//
// What it teaches: append_to_cache writes the keys and values of new tokens into pages, rotated by their position, and
// attention_cached reads the cache through a page table. Both read the lengths when they run, so a step that is captured
// once follows sequences that grow: the graph itself increments the lengths. Nothing about a length is on the host, no
// plan is made, and nothing is allocated. The workspace lets a few long sequences use the whole GPU; any size is correct.
// The check computes the last step again: the bits of the whole cache on the CPU, and attention in double precision.
// Without a GPU the steps are fewer, and called one by one.
//
// Expected output, with the times of your machine:
//   32 sequences of 27 to 2993 tokens, 1001 more each; 32 heads of 128 over 8; pages of 64 keys, fp16
//   prompts   … ms
//   decoding  … us a step, … GB/s of keys and values
//   cache: right bits   largest error …, of a plain attention …
#include <giwa/cache.cuh>

#include "support/attention_check.cuh"
#include "support/graph.cuh"

#include <cstring>
#include <numeric>

using giwa::fp16, giwa::int64, giwa::tensor_view;

constexpr int64 heads = 32, kv_heads = 8, head_size = 128, page_size = 64;

/// Stands for the model: q, k or v of the tokens in a step. Row r belongs to `sequence[r]`, at `position[r]`.
struct token_rows {
  fp16* to;  // (rows, width)
  const int *sequence, *position;
  int64 width;
  giwa::uint64 seed;
  GIWA_HOST_DEVICE void operator()(giwa::index<2> at) const {
    const int64 token = int64{sequence[at[0]]} << 32 | position[at[0]];
    const auto i = static_cast<giwa::uint64>(token * width + at[1]);
    to[at[0] * width + at[1]] = giwa::convert<fp16>{}(2 * giwa::philox{2026, seed}.uniform<float>(i) - 1);
  }
};

struct grow {
  int* lengths;
  GIWA_HOST_DEVICE void operator()(int64 i) const { ++lengths[i]; }
};

/// Memory of q, k and v of some tokens.
template <class Place>
struct tokens {
  example::tensor<fp16, 3, Place> q, k, v;  // (rows, heads, head size)
  tokens(const Place& place, int64 rows)
      : q(place, {rows, heads, head_size}),
        k(place, {rows, kv_heads, head_size}),
        v(place, {rows, kv_heads, head_size}) {}

  giwa::status compute(const Place& place, const int* sequence, const int* position) {
    const auto fill = [&](auto& x, giwa::uint64 seed) {
      const auto view = x.view();
      const int64 width = view.extent(1) * head_size;
      return giwa::for_all(place.where(), giwa::extents{view.extent(0), width},
                           token_rows{view.data(), sequence, position, width, seed});
    };
    if (const giwa::status s = fill(q, 1); !s.ok()) return s;
    if (const giwa::status s = fill(k, 2); !s.ok()) return s;
    return fill(v, 3);
  }
};

/// Rows of the tokens [first, first + lengths[b]) of each sequence, packed.
struct packed_tokens {
  std::vector<int> sequence, position, offsets{0};
  void add(int of, int first, int count) {
    for (int i = 0; i < count; ++i) sequence.push_back(of), position.push_back(first + i);
    offsets.push_back(offsets.back() + count);
  }
  int64 rows() const { return offsets.back(); }
};

/// The elements of one sequence in the pages of a cache.
std::vector<fp16> gathered(const std::vector<fp16>& pool, const int* pages, int keys) {
  constexpr std::size_t row = kv_heads * head_size;
  std::vector<fp16> all(static_cast<std::size_t>(keys) * row);
  for (int key = 0; key < keys; ++key) {
    const auto from = static_cast<std::size_t>(pages[key / page_size] * page_size + key % page_size);
    std::copy_n(pool.begin() + static_cast<std::ptrdiff_t>(from * row), row,
                all.begin() + static_cast<std::ptrdiff_t>(static_cast<std::size_t>(key) * row));
  }
  return all;
}

/// What the cache of one sequence should hold, and the rotated query of its last token, computed on the CPU.
struct expected {
  std::vector<fp16> k, v, q;
  expected(const giwa::rotary_base& rotary, int sequence, int keys) {
    const example::on_cpu cpu;
    packed_tokens all, last;
    all.add(sequence, 0, keys);
    last.add(sequence, keys - 1, 1);
    tokens<example::on_cpu> of_all(cpu, keys), of_last(cpu, 1);
    throw_if_failed(of_all.compute(cpu, all.sequence.data(), all.position.data()));
    throw_if_failed(of_last.compute(cpu, last.sequence.data(), last.position.data()));
    k.resize(static_cast<std::size_t>(keys * kv_heads * head_size)), v.resize(k.size());
    q.resize(heads * head_size);
    const giwa::index<4> sizes{1, keys, kv_heads, head_size};
    const giwa::kv_cache<fp16> cache{.k = {k.data(), sizes}, .v = {v.data(), sizes}};
    const auto in_batch = [](auto view) {
      return tensor_view<fp16, 4>(view.data(), {1, view.extent(0), view.extent(1), view.extent(2)});
    };
    throw_if_failed(
        giwa::append_to_cache(giwa::host, cache, in_batch(of_all.k.view()), in_batch(of_all.v.view()), rotary));
    throw_if_failed(giwa::append_to_cache(
        giwa::host, cache, in_batch(of_last.k.view()), in_batch(of_last.v.view()), rotary,
        {.q = in_batch(of_last.q.view()), .q_to = tensor_view<fp16, 4>(q.data(), {1, 1, heads, head_size})}));
  }
};

template <class Place>
bool run(const Place& place) {
  const int64 sequences = Place::is_gpu ? 32 : 3, room = Place::is_gpu ? 4096 : 128, steps = Place::is_gpu ? 1000 : 40;
  const int64 pages_each = room / page_size, pages = sequences * pages_each;
  packed_tokens prompts;
  std::vector<int> lengths;
  for (int b = 0; b < sequences; ++b) {
    lengths.push_back(static_cast<int>(1 + (b * 941 + 41) % (room - steps - 2)));
    prompts.add(b, 0, lengths.back());
  }
  // Any page may belong to any sequence: their order is that of a permutation.
  std::vector<int> table(static_cast<std::size_t>(pages)), numbers(static_cast<std::size_t>(sequences));
  for (int64 i = 0; i < pages; ++i) table[static_cast<std::size_t>(i)] = static_cast<int>((i * 4099 + 17) % pages);
  std::iota(numbers.begin(), numbers.end(), 0);

  example::tensor<fp16, 4, Place> k(place, {pages, page_size, kv_heads, head_size}, 8), v(place, k.sizes(), 9);
  auto lengths_there = place.put(lengths);
  const auto table_there = place.put(table), numbers_there = place.put(numbers);
  const giwa::kv_cache<fp16> cache{.k = k.view(),
                                   .v = v.view(),
                                   .pages = {.indices = table_there.data(), .stride = pages_each, .most = pages_each},
                                   .lengths = lengths_there.data(),
                                   .sequences = sequences};
  const giwa::rotary_base rotary(10000.0, {.size = head_size});

  // All tokens of the prompts in one call. Their attention is left out here.
  const auto sequence_of = place.put(prompts.sequence), position_of = place.put(prompts.position),
             offsets = place.put(prompts.offsets);
  tokens<Place> prompt(place, prompts.rows());
  throw_if_failed(prompt.compute(place, sequence_of.data(), position_of.data()));
  const double prompt_ms = place.milliseconds([&] {
    return giwa::append_to_cache(place.where(), cache, prompt.k.view(), prompt.v.view(), rotary,
                                 {.sequences = {.q_offsets = offsets.data(), .count = sequences, .max_q = room}});
  });

  tokens<Place> next(place, sequences);
  example::tensor<fp16, 4, Place> o(place, {sequences, 1, heads, head_size});
  const auto one_each = [&](auto view) {
    return tensor_view<fp16, 4>(view.data(), {sequences, 1, view.extent(1), head_size});
  };
  const auto q = one_each(next.q.view()), k_new = one_each(next.k.view()), v_new = one_each(next.v.view());
  int64 bytes = 0;
  if constexpr (Place::is_gpu) {  // the largest workspace that a call for one new token of each sequence uses
    const auto properties = throw_if_failed(giwa::properties_of(throw_if_failed(giwa::current_device())));
    bytes = giwa::workspace_bytes(cache, q, o.view(), {}, {}, {}, {.multiprocessors = properties.multiprocessors});
  }
  auto workspace = place.template make<unsigned char>(bytes);
  const auto step = [&]() -> giwa::status {
    if (const giwa::status s = next.compute(place, numbers_there.data(), lengths_there.data()); !s.ok()) return s;
    if (const giwa::status s = giwa::for_all(place.where(), sequences, grow{lengths_there.data()}); !s.ok()) return s;
    if (const giwa::status s = giwa::append_to_cache(place.where(), cache, k_new, v_new, rotary, {.q = q, .q_to = q});
        !s.ok())
      return s;
    return giwa::attention_cached<head_size>(place.where(), cache, q, o.view(),
                                             {.workspace = {workspace.data(), {bytes}}});
  };

  throw_if_failed(
      step());  // CUDA loads kernels at their first launch, which is not to happen while a graph is captured
  double seconds = 0;
  const auto decode = [&](const auto& one) {
    place.wait();
    const auto start = std::chrono::steady_clock::now();
    for (int64 i = 0; i < steps; ++i) throw_if_failed(one());
    place.wait();
    seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  };
  if constexpr (Place::is_gpu) {
    example::graph recorded(place.where(), step);
    decode([&] { return recorded.start(place.where()); });
  } else {
    decode(step);
  }

  double read = 0;  // bytes of keys and values in all steps
  for (const int length : lengths)
    for (int64 i = 2; i <= steps + 1; ++i)
      read += 2.0 * static_cast<double>((length + i) * kv_heads * head_size) * sizeof(fp16);
  std::printf("%d sequences of %d to %d tokens, %d more each; %d heads of %d over %d; pages of %d keys, fp16\n",
              static_cast<int>(sequences), std::ranges::min(lengths), std::ranges::max(lengths),
              static_cast<int>(steps), static_cast<int>(heads), static_cast<int>(head_size), static_cast<int>(kv_heads),
              static_cast<int>(page_size));
  std::printf("prompts  %9.3f ms\n", prompt_ms);
  std::printf("decoding %9.1f us a step, %.1f GB/s of keys and values\n", 1e6 * seconds / static_cast<double>(steps),
              1e-9 * read / seconds);

  const std::vector<int> now = place.get(lengths_there);
  const std::vector<fp16> ks = k.on_host(place), vs = v.on_host(place), os = o.on_host(place);
  bool same = true, good = true;
  example::comparison worst;
  for (const int b : {0, 1, static_cast<int>(sequences) - 1}) {
    const auto i = static_cast<std::size_t>(b);
    const int keys = lengths[i] + static_cast<int>(steps) + 1;
    const int* const of_sequence = table.data() + b * pages_each;
    const expected right(rotary, b, keys);
    const auto equal = [](const std::vector<fp16>& x, const std::vector<fp16>& y) {
      return std::memcmp(x.data(), y.data(), y.size() * sizeof(fp16)) == 0;
    };
    same = same && now[i] == keys && equal(gathered(ks, of_sequence, keys), right.k) &&
           equal(gathered(vs, of_sequence, keys), right.v);
    using view = tensor_view<const fp16, 4>;
    const giwa::index<4> q_sizes{1, 1, heads, head_size}, k_sizes{1, keys, kv_heads, head_size};
    const example::comparison c =
        example::compare(view(right.q.data(), q_sizes), view(right.k.data(), k_sizes), view(right.v.data(), k_sizes),
                         view(os.data() + b * heads * head_size, q_sizes));
    good = good && c.good();
    worst.error = std::max(worst.error, c.error), worst.plain = std::max(worst.plain, c.plain);
  }
  std::printf("cache: %s bits   largest error %.1e, of a plain attention %.1e\n", same ? "right" : "WRONG", worst.error,
              worst.plain);
  return same && good;
}

int main() {
  return example::run_anywhere([](const auto& place) { return run(place); });
}
