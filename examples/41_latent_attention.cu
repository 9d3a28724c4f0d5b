// SPDX-License-Identifier: MIT
// Decodes with a small layer of multi-head latent attention (MLA) in its absorbed form, from a cache of one row for each token.
//
//   nvcc -std=c++20 -O3 -gencode arch=compute_90a,code=sm_90a -Iinclude examples/41_latent_attention.cu -o 41_latent_attention
//
// Run from the root of the repository. sm_90a is for an H100 or H200; -arch=native is for the GPU of this machine.
// To copy it, also copy: support/place.cuh.
//
// What it teaches: the layer makes k and v of all heads from 512 latent numbers c of a token, k = W_uk c and v = W_uv c, next to 64
// rotated numbers that the heads share. Since (W_uk c) q = c (W_ukᵀ q), the query takes W_ukᵀ before attention, and the output W_uv
// after it: absorbed, attention reads the latent rows themselves, with head sizes 576 and 512, and v is the first columns of k. Rows
// are of bf16, or of rows_656, which append_to_cache rounds: FlashMLA's FP8 format. A step is five products, append_to_cache and
// attention_cached. The products are plain loops here; a model has a library for them, and norms, which are left out. The check
// computes the layer as it is defined, with k and v of each head, in double precision.
//
// Expected output, with the times of your machine:
//   64 sequences of 1000 tokens, 20 more each; 16 heads, 512 latent and 64 rotated numbers, pages of 64 rows
//   a token takes 4224 bytes as k and v of all heads
//   rows of bf16:      1152 bytes a token   attention … us, … GB/s of rows   largest error …
//   rows of 656 bytes:  656 bytes a token   attention … us, … GB/s of rows   largest error …
#include "support/place.cuh"

#if defined(__CUDACC__)
#include <giwa/cache.cuh>
#endif

#include <cmath>
#include <type_traits>

using giwa::bf16, giwa::int64, giwa::rows_656, giwa::tensor_view, giwa::throw_if_failed;

constexpr int64 hidden_size = 256, heads = 16, page_size = 64;
constexpr int latent_size = 512, rope_size = 64, row_size = latent_size + rope_size;
constexpr int nope_size = 64, value_size = 64;  // of a head: numbers of k that are not rotated, and v
constexpr double rotary_base = 10000;
constexpr float softmax_scale = 0.088388348f;  // 1 / sqrt(nope + rope): the head size before W_uk is absorbed

/// Evenly distributed, with variance `size`^2.
struct noise {
  bf16* to;
  giwa::uint64 seed;
  float size;
  GIWA_HOST_DEVICE void operator()(int64 i) const {
    const float x = 2 * giwa::philox{2026, seed}.uniform<float>(static_cast<giwa::uint64>(i)) - 1;
    to[i] = giwa::convert<bf16>{}(1.7320508f * size * x);
  }
};

/// y(row, head, n) = sum over i of w(head, n, i) x(row, head, i).
struct product {
  tensor_view<const bf16, 3> w, x;
  tensor_view<bf16, 3> y;
  GIWA_HOST_DEVICE void operator()(giwa::index<3> at) const {
    float sum = 0;
    for (int64 i = 0; i < w.extent(2); ++i)
      sum += giwa::convert<float>{}(w(at[1], at[2], i)) * giwa::convert<float>{}(x(at[0], at[1], i));
    y(at[0], at[1], at[2]) = giwa::convert<bf16>{}(sum);
  }
};

struct grow {
  int* lengths;
  GIWA_HOST_DEVICE void operator()(int64 i) const { ++lengths[i]; }
};

template <class Place>
using memory = decltype(std::declval<const Place&>().template make<bf16>(0));

/// The weights: of q without and with rotation, of a row, W_uk, and W_uv.
template <class Place>
struct weights {
  memory<Place> q_nope, q_rope, row, uk, uv;
  explicit weights(const Place& place)
      : q_nope(make(place, heads * nope_size * hidden_size, 1, hidden_size)),
        q_rope(make(place, heads * rope_size * hidden_size, 2, hidden_size)),
        row(make(place, row_size * hidden_size, 3, hidden_size)),
        uk(make(place, heads * nope_size * latent_size, 4, latent_size)),
        uv(make(place, heads * value_size * latent_size, 5, latent_size)) {}

  static memory<Place> make(const Place& place, int64 size, giwa::uint64 seed, double inner) {
    memory<Place> made = place.template make<bf16>(size);
    throw_if_failed(
        giwa::for_all(place.where(), size, noise{made.data(), seed, static_cast<float>(1 / std::sqrt(inner))}));
    return made;
  }
};

/// Row by row a matrix of each head.
tensor_view<const bf16, 3> matrices(const bf16* from, int64 of_heads, int64 outputs, int64 inputs) {
  return {from, {of_heads, outputs, inputs}};
}

/// The layer as it is defined: k and v of each token and head, in double precision. x: (tokens, hidden size), the last one asks.
std::vector<double> defined(const weights<example::on_cpu>& w, const bf16* x, int64 tokens) {
  const auto at = [](const std::vector<bf16>& m, int64 i) {
    return double{giwa::convert<float>{}(m[static_cast<std::size_t>(i)])};
  };
  const auto times = [&](const std::vector<bf16>& m, int64 first, int64 outputs, const auto& in) {
    std::vector<double> out;
    const int64 inner = static_cast<int64>(in.size());
    for (int64 n = 0; n < outputs; ++n) {
      double sum = 0;
      for (int64 i = 0; i < inner; ++i) sum += at(m, (first + n) * inner + i) * in[static_cast<std::size_t>(i)];
      out.push_back(sum);
    }
    return out;
  };
  const auto rotate = [](std::vector<double>& numbers, int64 position) {
    constexpr std::size_t pairs = rope_size / 2;
    double* const last = numbers.data() + numbers.size() - rope_size;
    for (std::size_t i = 0; i < pairs; ++i) {
      const double angle =
          static_cast<double>(position) * std::pow(rotary_base, -static_cast<double>(i) / static_cast<double>(pairs));
      const double a = last[i], b = last[i + pairs];
      last[i] = a * std::cos(angle) - b * std::sin(angle), last[i + pairs] = b * std::cos(angle) + a * std::sin(angle);
    }
  };
  const auto state = [&](int64 token) {
    std::vector<double> s;
    for (int64 i = 0; i < hidden_size; ++i) s.push_back(double{giwa::convert<float>{}(x[token * hidden_size + i])});
    return s;
  };
  std::vector<std::vector<double>> rows;
  for (int64 token = 0; token < tokens; ++token) {
    rows.push_back(times(w.row, 0, row_size, state(token)));
    rotate(rows.back(), token);
  }
  std::vector<double> out;
  for (int64 h = 0; h < heads; ++h) {
    const std::vector<double> q = times(w.q_nope, h * nope_size, nope_size, state(tokens - 1));
    std::vector<double> q_rotated = times(w.q_rope, h * rope_size, rope_size, state(tokens - 1)), sums(value_size);
    rotate(q_rotated, tokens - 1);
    double total = 0;
    for (const std::vector<double>& row : rows) {
      const std::vector<double> c(row.begin(), row.begin() + latent_size);
      const std::vector<double> k = times(w.uk, h * nope_size, nope_size, c),
                                v = times(w.uv, h * value_size, value_size, c);
      double score = 0;
      for (std::size_t i = 0; i < nope_size; ++i) score += q[i] * k[i];
      for (std::size_t i = 0; i < rope_size; ++i) score += q_rotated[i] * row[latent_size + i];
      const double weight = std::exp(double{softmax_scale} * score);
      total += weight;
      for (std::size_t i = 0; i < value_size; ++i) sums[i] += weight * v[i];
    }
    for (const double sum : sums) out.push_back(sum / total);
  }
  return out;
}

/// Decodes with one kind of rows, prints a line, and returns the outputs of the last step, (sequences, heads, value size).
template <class Element, class Place>
std::vector<bf16> decode(const Place& place, const weights<Place>& w, const bf16* x, int64 sequences, int64 prompt,
                         int64 steps) {
  constexpr bool is_row = std::is_same_v<Element, rows_656>;
  const int64 room = giwa::ceil_div(prompt + steps, page_size) * page_size, pages = room / page_size;
  // w.uk is (heads, nope, latent), and a query takes the transpose.
  const tensor_view<const bf16, 3> absorb(w.uk.data(), {heads, latent_size, nope_size},
                                          {nope_size * latent_size, 1, latent_size});
  std::vector<int> table;  // pages in another order
  for (int64 i = 0; i < sequences * pages; ++i) table.push_back(static_cast<int>(sequences * pages - 1 - i));
  const auto table_there = place.put(table);
  auto lengths = place.put(std::vector<int>(static_cast<std::size_t>(sequences), static_cast<int>(prompt)));
  auto pool = place.template make<Element>(sequences * room * (is_row ? 656 : row_size));
  giwa::kv_cache<Element> cache{.k = {pool.data(), {sequences * pages, page_size, 1, is_row ? 656 : row_size}},
                                .pages = {.indices = table_there.data(), .stride = pages, .most = pages},
                                .lengths = lengths.data(),
                                .sequences = sequences};
  if constexpr (!is_row) cache.v = {pool.data(), {sequences * pages, page_size, 1, latent_size}, cache.k.strides()};
  const giwa::rotary_base rotary(rotary_base, {.size = rope_size, .first = latent_size});  // of the last 64 numbers

  auto new_rows = place.template make<bf16>(sequences * prompt * row_size);
  const auto run = [&](const product& p) {
    return giwa::for_all(place.where(), giwa::extents{p.y.extent(0), p.y.extent(1), p.y.extent(2)}, p);
  };
  // The prompts: rows of all tokens in one call. What their queries see is left out here.
  for (int64 b = 0; b < sequences; ++b)
    throw_if_failed(run({matrices(w.row.data(), 1, row_size, hidden_size),
                         {x + b * (prompt + steps) * hidden_size, {prompt, 1, hidden_size}},
                         {new_rows.data() + b * prompt * row_size, {prompt, 1, row_size}}}));
  throw_if_failed(giwa::append_to_cache(place.where(), cache,
                                        tensor_view<bf16, 4>(new_rows.data(), {sequences, prompt, 1, row_size}),
                                        tensor_view<bf16, 4>(), rotary));

  auto q_heads = place.template make<bf16>(sequences * heads * nope_size),
       q_all = place.template make<bf16>(sequences * heads * row_size),
       o_latent = place.template make<bf16>(sequences * heads * latent_size),
       out = place.template make<bf16>(sequences * heads * value_size);
  const tensor_view<bf16, 4> q(q_all.data(), {sequences, 1, heads, row_size}),
      o(o_latent.data(), {sequences, 1, heads, latent_size});
  int64 bytes = 0;
  if constexpr (Place::is_gpu) {
    const auto properties = throw_if_failed(giwa::properties_of(throw_if_failed(giwa::current_device())));
    bytes = giwa::workspace_bytes(cache, q, o, {}, {}, {}, {.multiprocessors = properties.multiprocessors});
  }
  auto workspace = place.template make<unsigned char>(bytes);
  const auto attend = [&] {
    return giwa::attention_cached<giwa::head_sizes<row_size, latent_size>>(
        place.where(), cache, q, o, {.scale = softmax_scale, .workspace = {workspace.data(), {bytes}}});
  };
  for (int64 step = 0; step < steps; ++step) {
    const bf16* const token = x + (prompt + step) * hidden_size;  // all heads have the same x
    const tensor_view<const bf16, 3> input(token, {sequences, heads, hidden_size},
                                           {(prompt + steps) * hidden_size, 0, 1});
    const tensor_view<bf16, 3> q_nope(q_heads.data(), {sequences, heads, nope_size});
    throw_if_failed(run({matrices(w.q_nope.data(), heads, nope_size, hidden_size), input, q_nope}));
    throw_if_failed(
        run({absorb, q_nope, {q.data(), {sequences, heads, latent_size}, {heads * row_size, row_size, 1}}}));
    throw_if_failed(run({matrices(w.q_rope.data(), heads, rope_size, hidden_size),
                         input,
                         {q.data() + latent_size, {sequences, heads, rope_size}, {heads * row_size, row_size, 1}}}));
    throw_if_failed(run({matrices(w.row.data(), 1, row_size, hidden_size),
                         {token, {sequences, 1, hidden_size}, {(prompt + steps) * hidden_size, 0, 1}},
                         {new_rows.data(), {sequences, 1, row_size}}}));
    throw_if_failed(giwa::for_all(place.where(), sequences, grow{lengths.data()}));
    throw_if_failed(giwa::append_to_cache(place.where(), cache,
                                          tensor_view<bf16, 4>(new_rows.data(), {sequences, 1, 1, row_size}),
                                          tensor_view<bf16, 4>(), rotary, {.q = q, .q_to = q}));
    throw_if_failed(attend());
    throw_if_failed(run({matrices(w.uv.data(), heads, value_size, latent_size),
                         {o_latent.data(), {sequences, heads, latent_size}},
                         {out.data(), {sequences, heads, value_size}}}));
  }
  const double us = 1000 * place.milliseconds(attend);
  const int64 bytes_of_token = is_row ? 656 : row_size * int64{sizeof(bf16)};
  std::printf("rows of %s %4d bytes a token   attention %8.1f us, %6.1f GB/s of rows",
              is_row ? "656 bytes:" : "bf16:     ", static_cast<int>(bytes_of_token), us,
              1e-3 * static_cast<double>(sequences * (prompt + steps) * bytes_of_token) / us);
  return place.get(out);
}

template <class Place>
bool run(const Place& place) {
  const int64 sequences = Place::is_gpu ? 64 : 2, prompt = Place::is_gpu ? 1000 : 60, steps = Place::is_gpu ? 20 : 3;
  const int64 tokens = prompt + steps;
  std::printf("%d sequences of %d tokens, %d more each; %d heads, %d latent and %d rotated numbers, pages of %d rows\n",
              static_cast<int>(sequences), static_cast<int>(prompt), static_cast<int>(steps), static_cast<int>(heads),
              latent_size, rope_size, static_cast<int>(page_size));
  std::printf("a token takes %d bytes as k and v of all heads\n",
              static_cast<int>(2 * (heads * (nope_size + value_size) + rope_size)));
  const weights<Place> w(place);
  const weights<example::on_cpu> on_cpu{example::on_cpu{}};
  memory<Place> x = place.template make<bf16>(sequences * tokens * hidden_size);
  throw_if_failed(giwa::for_all(place.where(), sequences * tokens * hidden_size, noise{x.data(), 9, 1}));
  const int64 checked = sequences - 1;
  const std::vector<bf16> states = place.get(x);
  const std::vector<double> exact = defined(on_cpu, states.data() + checked * tokens * hidden_size, tokens);
  double largest = 0;
  for (const double number : exact) largest = std::max(largest, std::abs(number));

  const auto is_right = [&](const std::vector<bf16>& out, double tolerance) {
    double error = 0;
    for (std::size_t i = 0; i < exact.size(); ++i) {
      const auto row = static_cast<std::size_t>(checked) * exact.size();
      error = std::max(error, std::abs(double{giwa::convert<float>{}(out[row + i])} - exact[i]));
    }
    std::printf("   largest error %.1e\n", error / largest);
    return error < tolerance * largest;
  };
  const bool wide = is_right(decode<bf16>(place, w, x.data(), sequences, prompt, steps), 0.02);
  const bool narrow = is_right(decode<rows_656>(place, w, x.data(), sequences, prompt, steps), 0.06);
  return wide && narrow;
}

int main() {
  return example::run_anywhere([](const auto& place) { return run(place); });
}
