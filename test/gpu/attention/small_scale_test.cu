// SPDX-License-Identifier: MIT
// Scales of the scores that are subnormal: weights are equal, and rows without keys are zeros.
#include <giwa/cache.cuh>

#include <cmath>
#include <string>

#include "gpu/attention/plain_tensors.cuh"
#include "support/catch.hpp"

using namespace giwa_test;
using namespace giwa_test::attention;

namespace {

constexpr int64 batch = 2, queries = 90, keys = 20, heads = 4, kv_heads = 2, size = 64;

/// What is wrong with the means of the values that each query sees, under a causal mask to the last key, or nothing.
template <class T>
std::string fault_of(const plain_tensors<T>& t) {
  const auto v = t.v.to_host(), o = t.o.to_host();
  const auto lse = t.lse.to_host();
  const auto value = [&](int64 b, int64 key, int64 h, int64 d) {
    return giwa::convert<double>{}(v[static_cast<std::size_t>(((b * keys + key) * kv_heads + h) * size + d)]);
  };
  for (int64 b = 0; b < batch; ++b)
    for (int64 i = 0; i < queries; ++i)
      for (int64 h = 0; h < heads; ++h) {
        const int64 seen = std::max(int64{0}, i + 1 + keys - queries);
        const double of_lse = static_cast<double>(lse[static_cast<std::size_t>((b * heads + h) * queries + i)]);
        if (!(seen == 0 ? of_lse == -HUGE_VAL : std::fabs(of_lse - std::log(seen)) < 1e-5))
          return "lse of row " + std::to_string(i) + ": " + std::to_string(of_lse);
        for (int64 d = 0; d < size; ++d) {
          double sum = 0;
          for (int64 key = 0; key < seen; ++key) sum += value(b, key, h / (heads / kv_heads), d);
          const double want = seen == 0 ? 0 : sum / static_cast<double>(seen);
          const double got =
              giwa::convert<double>{}(o[static_cast<std::size_t>(((b * queries + i) * heads + h) * size + d)]);
          if (!(std::fabs(got - want) <= 0.01)) return "row " + std::to_string(i) + ": " + std::to_string(got);
        }
      }
  return "";
}

template <class T, class Call>
std::string first_fault(const Call& call) {
  plain_tensors<T> t(batch, queries, keys, heads, kv_heads, size);
  for (const float scale : {0x1p-149f, 1e-40f, -1e-40f, 0x1p-127f, 0x1p-126f}) {
    const giwa::stream s = new_stream();
    t.o.fill(0xff), t.lse.fill(0xff);
    check_cuda(cudaDeviceSynchronize());
    const giwa::status state = call(static_cast<cudaStream_t>(s), t, scale);
    if (!state.ok()) return giwa::format_status(state).c_str();
    giwa::throw_if_failed(giwa::synchronize(s));
    if (const std::string fault = fault_of(t); !fault.empty()) return "scale " + std::to_string(scale) + ", " + fault;
  }
  return "";
}

struct forward {
  template <class T>
  giwa::status operator()(cudaStream_t s, const plain_tensors<T>& t, float scale) const {
    const giwa::attention_options options{.scale = scale, .lse = t.lse_view(), .align = giwa::alignment::bottom_right};
    return giwa::attention_forward<size>(s, t.q_view(), t.k_view(), t.v_view(), t.o_view(), giwa::causal{},
                                         giwa::plain_score{}, options);
  }
};
/// The keys are a cache. All queries at once, or 6 in each call.
template <class T>
struct cached {
  int64 at_once;
  giwa::status operator()(cudaStream_t s, const plain_tensors<T>& t, float scale) const {
    for (int64 i = 0; i < queries; i += at_once) {
      const giwa::status state = giwa::attention_cached<size>(
          s, giwa::kv_cache<const T>{.k = t.k_view(), .v = t.v_view()},
          part(t.q_view(), 0, batch, i, at_once, 0, heads), part(t.o_view(), 0, batch, i, at_once, 0, heads),
          giwa::causal{}, giwa::plain_score{},
          {.scale = scale,
           .lse = {t.lse.data() + i, {batch, heads, at_once}, {heads * queries, queries, 1}},

           .align = giwa::alignment::offset(i + keys - queries)});
      if (!state.ok()) return state;
    }
    return {};
  }
};

}  // namespace

TEST_CASE("rows without keys are zeros at subnormal scales") {
  CHECK(first_fault<fp16>(forward{}) == "");
  CHECK(first_fault<float>(forward{}) == "");
  CHECK(first_fault<bf16>(cached<bf16>{queries}) == "");
  CHECK(first_fault<bf16>(cached<bf16>{6}) == "");
}
