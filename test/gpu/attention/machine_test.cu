// SPDX-License-Identifier: MIT
// Attention on a GPU: strides beyond 2^31 elements, what is refused, what is empty, and tiles by name.
#include <array>
#include <cmath>
#include <type_traits>
#include <vector>

#include <giwa/cache.cuh>

#include "gpu/attention/gpu_place.cuh"
#include "gpu/attention/instance.hpp"
#include "gpu/attention/plain_tensors.cuh"
#include "support/catch.hpp"

using namespace giwa_test;
using namespace giwa_test::attention;
using giwa::attention_forward;
using giwa::status;

TEST_CASE("rows, heads and sequences more than 2^31 elements apart") {
  std::size_t free = 0, total = 0;
  check_cuda(cudaMemGetInfo(&free, &total));
  if (small_mode() || free < std::size_t{24} << 30) return;
  const giwa::stream s = new_stream();
  const plain_tensors<fp16> t(2, 2, 2, 2, 2, 64);
  REQUIRE(attention_forward<64>(s, t.q_view(), t.k_view(), t.v_view(), t.o_view()).ok());
  const auto expected = t.o.to_host();
  constexpr int64 far = (int64{1} << 31) + 64;
  const auto reach = static_cast<std::size_t>(far + 8192);
  const gpu_array<fp16> q(reach), k(reach), v(reach), o(reach);
  for (int d = 0; d < 3; ++d) {
    giwa::index<4> strides{4096, 1024, 128, 1};
    strides[d] = far;
    const giwa::index<4> shape{2, 2, 2, 64};
    bool same = true;
    const auto each_row = [&](auto&& f) {
      for (int64 i = 0; i < 8; ++i) f(i / 4 * strides[0] + i / 2 % 2 * strides[1] + i % 2 * strides[2], i * 64);
    };
    each_row([&](int64 to, int64 from) {
      const auto copy = [&](const gpu_array<fp16>& a, const gpu_array<fp16>& b) {
        check_cuda(cudaMemcpy(a.data() + to, b.data() + from, 128, cudaMemcpyDeviceToDevice));
      };
      copy(q, t.q), copy(k, t.k), copy(v, t.v);
    });
    check_cuda(cudaDeviceSynchronize());
    REQUIRE(attention_forward<64>(s, view_4<const fp16>(q.data(), shape, strides),
                                  view_4<const fp16>(k.data(), shape, strides),
                                  view_4<const fp16>(v.data(), shape, strides), view_4<fp16>(o.data(), shape, strides))
                .ok());
    REQUIRE(giwa::synchronize(s).ok());
    each_row([&](int64 at, int64 expected_at) {
      std::array<fp16, 64> row;
      check_cuda(cudaMemcpy(row.data(), o.data() + at, 128, cudaMemcpyDeviceToHost));
      same = same && std::memcmp(row.data(), &expected[static_cast<std::size_t>(expected_at)], 128) == 0;
    });
    CAPTURE(d);
    CHECK(same);
  }
}

TEST_CASE("what is refused is named, and nothing is written") {
  const giwa::stream s = new_stream();
  const plain_tensors<fp16> t(1, 4, 6, 2, 1, 64);
  const auto refused = [&](const status& state, const char* argument) {
    INFO(giwa::format_status(state).c_str());
    const auto o = t.o.to_host();
    const std::vector<fp16> untouched = gpu_array<fp16>(o.size()).to_host();
    return state.code == giwa::status_code::invalid_argument && state.argument == std::string(argument) &&
           same_bits(o, untouched) && no_error_left();
  };
  CHECK(refused(attention_forward<64>(s, t.q_view(), t.k_view(), t.v_view(), t.o_view(), giwa::causal{}), "mask"));
  CHECK(refused(attention_forward<64>(s, part(t.q_view(), 0, 1, 0, 3, 0, 2), t.k_view(), t.v_view(), t.o_view()), "o"));
  CHECK(refused(attention_forward<64>(s, t.q_view(), t.k_view(), part(t.v_view(), 0, 1, 0, 5, 0, 1), t.o_view()), "v"));
  const auto attend = [&](auto size) {
    return attention_forward<size>(s, t.q_view(), t.k_view(), t.v_view(), t.o_view());
  };
  CHECK(refused(giwa::choose_head_size<32, 128>(64, attend), "q"));
  if (device_attribute(cudaDevAttrPageableMemoryAccess) == 0) {
    std::vector<fp16> host(t.q.size());
    CHECK(refused(attention_forward<64>(s, view_4<const fp16>(host.data(), t.q_view().extents()), t.k_view(),
                                        t.v_view(), t.o_view()),
                  "q"));
    CHECK(refused(
        attention_forward<64>(s, t.q_view(), t.k_view(), t.v_view(), view_4<fp16>(host.data(), t.o_view().extents())),
        "o"));
  }
  CHECK(giwa::choose_head_size<32, 64>(64, attend).ok());
  CHECK(giwa::synchronize(s).ok());
}

TEST_CASE("nothing to do, and no keys") {
  const giwa::stream s = new_stream();
  const plain_tensors<float> t(2, 5, 3, 2, 2, 64);
  const auto whole_q = t.q_view();
  REQUIRE(attention_forward<64>(s, part(whole_q, 0, 0, 0, 5, 0, 2), part(t.k_view(), 0, 0, 0, 3, 0, 2),
                                part(t.v_view(), 0, 0, 0, 3, 0, 2), part(t.o_view(), 0, 0, 0, 5, 0, 2))
              .ok());
  REQUIRE(attention_forward<64>(s, part(whole_q, 0, 2, 0, 0, 0, 2), t.k_view(), t.v_view(),
                                part(t.o_view(), 0, 2, 0, 0, 0, 2))
              .ok());
  CHECK(same_bits(t.o.to_host(), gpu_array<float>(t.o.size()).to_host()));
  giwa::attention_options options;
  options.lse = t.lse_view();
  REQUIRE(attention_forward<64>(s, whole_q, part(t.k_view(), 0, 2, 0, 0, 0, 2), part(t.v_view(), 0, 2, 0, 0, 0, 2),
                                t.o_view(), giwa::full{}, giwa::plain_score{}, options)
              .ok());
  CHECK(t.o.to_host() == std::vector<float>(t.o.size(), 0.0f));
  CHECK(t.lse.to_host() == std::vector<float>(t.lse.size(), -HUGE_VALF));
}

namespace {

// How many rows of o are not v of the key whose scores are 3e11 where others have 1e11 or less: by attention_forward, with a
// workspace or without, or by attention_cached.
template <class T, int HeadSize, class Mask>
int far_from_value(int64 queries, const Mask& mask, bool cached, bool has_workspace = true) {
  const giwa::stream s = new_stream();
  const int64 keys = 300, heads = 4, key = queries >= 300 ? 0 : 171;
  plain_tensors<T> t(2, queries, keys, heads, 2, HeadSize);
  const auto fill = [](const gpu_array<T>& to, int64 first, int64 count, float value) {
    const std::vector<T> all(static_cast<std::size_t>(count), giwa::convert<T>{}(value));
    check_cuda(cudaMemcpy(to.data() + first, all.data(), all.size() * sizeof(T), cudaMemcpyHostToDevice));
  };
  const float size = sizeof(T) == 2 && std::is_same_v<T, fp16> ? 60000.f : 133120.f;
  fill(t.q, 0, static_cast<int64>(t.q.size()), size);
  fill(t.k, 0, static_cast<int64>(t.k.size()), size / 4);
  const int64 row = 2 * HeadSize;  // of k
  for (int64 b = 0; b < 2; ++b) fill(t.k, (b * keys + key) * row, row, size);
  const giwa::attention_options options{.scale = 1.f};
  if (cached) {
    const gpu_array<unsigned char> workspace(std::size_t{8} << 20);
    giwa::throw_if_failed(giwa::attention_cached<HeadSize>(
        s, giwa::kv_cache<const T>{t.k_view(), t.v_view()}, t.q_view(), t.o_view(), mask, giwa::plain_score{},
        {.scale = 1.f, .workspace = {workspace.data(), {static_cast<int64>(workspace.size())}}}));
  } else {
    const int64 bytes = giwa::workspace_bytes({2, queries, keys, heads, 2, HeadSize, HeadSize, int64{sizeof(T)}});
    const gpu_array<unsigned char> workspace(static_cast<std::size_t>(bytes));
    giwa::attention_options with = options;
    if (has_workspace) with.workspace = {workspace.data(), {bytes}};
    giwa::throw_if_failed(giwa::attention_forward<HeadSize>(s, t.q_view(), t.k_view(), t.v_view(), t.o_view(), mask,
                                                            giwa::plain_score{}, with));
  }
  check_cuda(cudaStreamSynchronize(s));
  const std::vector<T> o = t.o.to_host(), v = t.v.to_host();
  int far = 0;
  for (int64 i = 0; i < 2 * queries * heads; ++i) {
    const int64 b = i / (queries * heads), head = i % heads / 2;
    bool equal = true;
    for (int64 d = 0; d < HeadSize; ++d) {
      const float got = giwa::convert<float>{}(o[static_cast<std::size_t>(i * HeadSize + d)]);
      const float is =
          giwa::convert<float>{}(v[static_cast<std::size_t>((b * keys + key) * row + head * HeadSize + d)]);
      equal = equal && std::abs(got - is) <= 1e-5f * std::abs(is);
    }
    far += equal ? 0 : 1;
  }
  return far;
}

}  // namespace

TEST_CASE("scores far beyond 2^27 give their softmax") {
  CHECK(far_from_value<bf16, 64>(300, giwa::causal{}, false) == 0);
  CHECK(far_from_value<bf16, 128>(200, giwa::full{}, false) == 0);
  CHECK(far_from_value<fp16, 128>(300, giwa::causal{}, false) == 0);
  CHECK(far_from_value<bf16, 256>(200, giwa::full{}, false) == 0);
  CHECK(far_from_value<float, 64>(200, giwa::full{}, false) == 0);
  CHECK(far_from_value<float, 64>(200, giwa::full{}, false, false) == 0);
  CHECK(far_from_value<bf16, 128>(1, giwa::full{}, true) == 0);
  CHECK(far_from_value<bf16, 128>(200, giwa::full{}, true) == 0);
  CHECK(far_from_value<float, 64>(1, giwa::full{}, true) == 0);
}

TEST_CASE("tiles of the caller's choice") {
  using M = mask_kind;
  using S = score_kind;
  const auto list = list_of<cudaStream_t, instance<fp16, fp16, 64, 64, M::causal, S::plain, giwa::tile_shape<64, 32>>,
                            instance<bf16, bf16, 128, 128, M::window, S::plain, giwa::tile_shape<128, 128>>>();
  gpu_place place(int64{192} << 20);
  std::string failures;
  int failed = 0;
  for (int i = 0; i < (small_mode() ? 8 : 300); ++i) {
    const auto& one = list[static_cast<std::size_t>(i) % list.size()];
    const attention_draw d = draw_problem(2'000'000 + static_cast<uint64>(i), one.types, {.work = 1 << 22});
    const outcome result = run_problem(place, d, [&](const call_arguments& a) { return one.call(place.stream(), a); });
    if (!result.ok() && ++failed <= 5) failures += result.failure + "\n";
  }
  INFO(failures);
  CHECK(failed == 0);
}
