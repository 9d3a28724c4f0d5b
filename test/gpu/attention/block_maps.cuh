// SPDX-License-Identifier: MIT
// Makes maps of blocks on a GPU from sources in host memory.
#ifndef GIWA_TEST_GPU_ATTENTION_BLOCK_MAPS_CUH
#define GIWA_TEST_GPU_ATTENTION_BLOCK_MAPS_CUH

#include <giwa/block_map.cuh>

#include <algorithm>
#include <vector>

#include "host/attention/block_map_cases.hpp"
#include "support/gpu.cuh"

namespace giwa_test {

/// Makes maps on the GPU: sources are copied there, and the words back.
class on_gpu {
 public:
  template <class Source>
  giwa::status operator()(const Source& source, const giwa::block_map& map) const {
    gpu_array<giwa::block_word> words(static_cast<std::size_t>(map.bytes()) / sizeof(giwa::block_word));
    return (*this)(source, map, words);
  }
  /// In `words`, which stay on the GPU.
  template <class Source>
  giwa::status operator()(const Source& source, const giwa::block_map& map, gpu_array<giwa::block_word>& words) const {
    copies_.clear();
    giwa::block_map there = map;
    words.fill(0xff);
    there.words = words.data();
    const giwa::stream s = new_stream();
    if (const giwa::status state = make_block_map(s, copy(source), there); !state.ok()) return state;
    giwa::throw_if_failed(giwa::synchronize(s));
    const std::vector<giwa::block_word> back = words.to_host();
    std::copy(back.begin(), back.end(), map.words);
    return {};
  }

 private:
  template <class T, int Rank>
  giwa::tensor_view<const T, Rank> copy(const giwa::tensor_view<const T, Rank>& v) const {
    if (v.size() == 0) return v;
    giwa::int64 last = 0;
    for (int d = 0; d < Rank; ++d) last += (v.extent(d) - 1) * v.stride(d);
    const auto* const first = reinterpret_cast<const unsigned char*>(v.data());
    copies_.emplace_back(std::vector<unsigned char>(first, first + (last + 1) * static_cast<giwa::int64>(sizeof(T))));
    return {reinterpret_cast<const T*>(copies_.back().data()), v.extents(), v.strides()};
  }
  giwa::block_list copy(const giwa::block_list& l) const { return {copy(l.counts), copy(l.indices)}; }
  giwa::block_lists copy(const giwa::block_lists& l) const { return {copy(l.full), copy(l.partial)}; }
  giwa::block_rows copy(const giwa::block_rows& r) const { return {copy(r.offsets), copy(r.indices)}; }
  giwa::score_threshold copy(const giwa::score_threshold& s) const { return {copy(s.scores), s.least}; }
  giwa::score_top copy(const giwa::score_top& s) const { return {copy(s.scores), s.count}; }
  template <class Mask>
  Mask copy(const Mask& mask) const {
    return mask;
  }

  mutable std::vector<gpu_array<unsigned char>> copies_;
};

}  // namespace giwa_test

#endif
