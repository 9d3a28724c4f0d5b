// SPDX-License-Identifier: MIT
// Attention on a GPU: strides beyond 2^31 elements, what is refused, what is empty, and tiles by name.
#include <array>

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
  CHECK(refused(attention_forward<giwa::head_sizes<32, 128>>(s, t.q_view(), t.k_view(), t.v_view(), t.o_view()), "q"));
  if (device_attribute(cudaDevAttrPageableMemoryAccess) == 0) {
    std::vector<fp16> host(t.q.size());
    CHECK(refused(attention_forward<64>(s, view_4<const fp16>(host.data(), t.q_view().extents()), t.k_view(),
                                        t.v_view(), t.o_view()),
                  "q"));
    CHECK(refused(
        attention_forward<64>(s, t.q_view(), t.k_view(), t.v_view(), view_4<fp16>(host.data(), t.o_view().extents())),
        "o"));
  }
  CHECK(attention_forward<giwa::head_sizes<32, 64>>(s, t.q_view(), t.k_view(), t.v_view(), t.o_view()).ok());
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
