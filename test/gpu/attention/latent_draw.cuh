// SPDX-License-Identifier: MIT
// Problems of attention_cached with head sizes 576 and 512, whose v is the first columns of k.
#ifndef GIWA_TEST_GPU_ATTENTION_LATENT_DRAW_CUH
#define GIWA_TEST_GPU_ATTENTION_LATENT_DRAW_CUH

#include "gpu/attention/cached_bits.cuh"
#include "gpu/attention/cached_draw.hpp"

namespace giwa_test {

inline constexpr int latent_size = 576, latent_size_v = 512;

/// Changes a drawn problem to one for the kernel for many rows, with lengths about the ends of its leaves.
inline void draw_many_rows(int number, cached_case_options& c) {
  constexpr int leaf = giwa::detail::latent_wide_leaf_keys;
  random_sequence random(static_cast<uint64>(number) + 900000);
  const int64 heads[] = {33, 40, 64, 65, 100, 127, 128};
  c.kv_heads = 1 + random.below(2);
  c.heads = c.kv_heads * heads[random.below(7)];
  c.keys = 1 + random.below(random.below(3) == 0 ? 3 * leaf : 300);
  if (c.paged()) c.most = giwa::ceil_div(c.keys, c.page_size);
  const int64 sequences = 1 + random.below(3), most = std::max<int64>(1, 300000 / (c.heads * c.keys));
  c.queries.assign(static_cast<std::size_t>(sequences), 1 + random.below(std::min<int64>(most, 4)));
  if (c.packed) c.queries[0] = random.below(2);
  if (random.below(3) == 0) c.division = giwa::division::by_batch;
  c.lengths.clear();
  for (int64 b = 0; b < sequences; ++b) {
    const int64 edges[] = {0, 1, 63, 64, 65, 127, 128, leaf - 1, leaf, leaf + 1, leaf + 64, 2 * leaf, c.keys};
    const int64 n = random.below(2) == 0 ? edges[random.below(13)] : random.below(c.keys + 1);
    c.lengths.push_back(static_cast<int>(n));
  }
}

/// Empty, or what is wrong with problem `number` in this form.
template <class T, class Element = T, class O = T, class Mask = giwa::full, class Score = giwa::plain_score>
std::string latent_fault_of(int number, const Mask& mask = {}, const Score& score = {}) {
  cached_case_options c = cached_drawer(number, giwa::detail::latent_leaf_keys).draw(false);
  if (number % 2 == 1) draw_many_rows(number, c);
  c.latent = true;
  if (number % 5 == 4) c.latent_tile = number % 2 == 0 ? giwa::latent_tile::rows_64 : giwa::latent_tile::rows_16;
  if (giwa::detail::row_format<Element>) c.offset = 0, c.layout[1] = c.layout[2] = case_layout::contiguous;
  const std::string fault = cached_fault_on_gpu_of<T, latent_size, latent_size_v, Element, O>(c, mask, score);
  return fault.empty() ? "" : "draw " + std::to_string(number) + ": " + fault;
}
/// Sequences with none to many queries, and 0 to 600 keys. `group`: heads that share a head of keys. 5 make few rows, or with 7 and
/// 8 packed queries many; 40 always make many, in leaves of more keys.
inline cached_case_options mixed_case(int64 page_size, bool packed, int group = 5) {
  cached_case_options c = bits_case_of(page_size, packed);
  c.latent = true;
  c.heads = group * c.kv_heads;
  c.head_size = latent_size, c.head_size_v = latent_size_v;
  c.keys = group == 5 ? 600 : 4500;
  c.most = page_size == 0 ? 0 : giwa::ceil_div(c.keys, page_size);
  c.lengths = {600, 130, 5, 0, 400, 64};
  if (group > 5) c.lengths = {4500, 130, 2049, 0, 2048, 64};
  return c;
}

/// Sequences with one head of keys and one tile of rows.
inline cached_case_options one_head_case(const std::vector<int>& lengths, int64 heads, int64 queries, int64 page_size) {
  cached_case_options c = mixed_case(page_size, false);
  c.heads = heads, c.kv_heads = 1;
  c.queries.assign(lengths.size(), queries);
  c.lengths = lengths;
  c.keys = 64;
  for (const int n : lengths) c.keys = std::max<int64>(c.keys, n == 2147483647 ? 5000 : n + 30);
  c.most = page_size == 0 ? 0 : giwa::ceil_div(c.keys, page_size);
  return c;
}
/// Few sequences, whose partials are merged level by level: splits of one leaf, of whole nodes of the tree, and of neither. 9 sequences
/// are merged in another way.
template <class T, class Element>
void check_few_sequences() {
  std::vector<std::vector<int>> cases{{20000},
                                      {8192},
                                      {70, 700, 9000},
                                      {300},
                                      {8192, 0, 8192, 8191},
                                      {-5, 2147483647, 4097},
                                      {1000, 1001, 64, 65, 3000, 128, 1, 2500},
                                      {1000, 1001, 64, 65, 3000, 128, 1, 2500, 900}};
  if (small_mode()) cases.resize(3);
  for (const std::vector<int>& lengths : cases)
    for (const int heads : {2, 16}) {
      bits<T, Element, latent_size, latent_size_v> x(one_head_case(lengths, heads, heads == 2 ? 3 : 1, 64));
      CAPTURE(x.on_host.options.text());
      for (const int64 bytes : {0, 8 << 20, 5 << 20, 2 << 20, 700 << 10, 300 << 10, 90 << 10}) {
        CAPTURE(bytes);
        x.run(x.gpu.views(), x.gpu.call_options(bytes));
        CHECK(x.same());
      }
      if (lengths.size() > 1) run_alone(x, 1, 1 << 20);
      if (small_mode()) return;
    }
}

}  // namespace giwa_test

#endif
