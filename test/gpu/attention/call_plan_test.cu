// SPDX-License-Identifier: MIT
// Plans of attention_cached and attention_backward: the bits of the calls, again and again, in graphs and copies; what they refuse.
#include <giwa/attention_backward.cuh>
#include <giwa/cache.cuh>

#include "gpu/attention/plain_tensors.cuh"
#include "support/catch.hpp"

#include <vector>

using namespace giwa_test;
using namespace giwa_test::attention;
using giwa::fp16;
using giwa::make_attention_plan;

namespace {

using workspace_view = giwa::tensor_view<unsigned char, 1>;
workspace_view view_of(const gpu_array<unsigned char>& workspace) {
  return {workspace.data(), {static_cast<int64>(workspace.size())}};
}

/// Decoding of `queries` tokens from caches of up to `keys` rows, whose lengths the device knows.
struct cached_call {
  plain_tensors<fp16> x;
  gpu_array<int> lengths;
  gpu_array<unsigned char> workspace{std::size_t{1} << 22};

  cached_call(int64 sequences, int64 queries, int64 keys)
      : x(sequences, queries, keys, 4, 2, 64), lengths(static_cast<std::size_t>(sequences)) {
    set_lengths(static_cast<int>(keys));
  }
  void set_lengths(int first) {
    std::vector<int> host(lengths.size());
    for (std::size_t i = 0; i < host.size(); ++i) host[i] = first - 3 * static_cast<int>(i);
    check_cuda(cudaMemcpy(lengths.data(), host.data(), sizeof(int) * host.size(), cudaMemcpyHostToDevice));
    check_cuda(cudaDeviceSynchronize());
  }
  giwa::kv_cache<const fp16> cache() const { return {.k = x.k_view(), .v = x.v_view(), .lengths = lengths.data()}; }
  giwa::cached_options options() const { return {.lse = x.lse_view(), .workspace = view_of(workspace)}; }
  giwa::status run(cudaStream_t s) const {
    return giwa::attention_cached<64>(s, cache(), x.q_view(), x.o_view(), giwa::causal::bottom_right, options());
  }
  auto plan() const {
    return giwa::throw_if_failed(
        make_attention_plan<64>(cache(), x.q_view(), x.o_view(), giwa::causal::bottom_right, options()));
  }
  struct result {
    std::vector<fp16> o;
    std::vector<float> lse;
    friend bool operator==(const result& a, const result& b) { return same_bits(a.o, b.o) && same_bits(a.lse, b.lse); }
  };
  /// What is there, which is then overwritten.
  result take() {
    check_cuda(cudaDeviceSynchronize());
    result r{x.o.to_host(), x.lse.to_host()};
    x.o.fill(0xff), x.lse.fill(0xff);
    return r;
  }
};

/// A plan gives the bits of the call for the lengths at each launch.
void compare(cached_call& c, int other_length) {
  const giwa::stream s = new_stream();
  const auto plan = c.plan();
  const auto copy = plan;
  std::vector<cached_call::result> expected;
  const int lengths[] = {static_cast<int>(c.x.seq_k), other_length};
  for (const int length : lengths) {
    c.set_lengths(length);
    giwa::throw_if_failed(c.run(s));
    expected.push_back(c.take());
  }
  CHECK(!(expected[0] == expected[1]));
  for (int i = 0; i < 4; ++i) {
    c.set_lengths(lengths[i % 2]);
    giwa::throw_if_failed(i < 2 ? plan.launch(s) : copy.launch(s));
    CHECK(c.take() == expected[static_cast<std::size_t>(i % 2)]);
  }
  c.set_lengths(lengths[1]);
  giwa::throw_if_failed(capture_and_replay(s, 2, [&] { return plan.launch(s); }));
  CHECK(c.take() == expected[1]);
  CHECK(no_error_left());
}

}  // namespace

TEST_CASE("a plan of attention_cached gives the bits of the call for the lengths of each launch") {
  cached_call few(3, 1, 3000), many(2, 90, 1500);
  compare(few, 1234);  // few queries: one launch, and one that merges
  compare(many, 700);  // many
}

TEST_CASE("a plan of attention_backward gives the bits of the call, one kernel or several") {
  const giwa::stream s = new_stream();
  const plain_tensors<fp16> x(2, 300, 300, 4, 2, 64);
  gpu_array<fp16> dout(x.o.size()), dq(x.q.size()), dk(x.k.size()), dv(x.v.size());
  fill_normal(dout, 4);
  giwa::throw_if_failed(giwa::attention_forward<64>(s, x.q_view(), x.k_view(), x.v_view(), x.o_view(), giwa::causal{},
                                                    {.lse = x.lse_view()}));
  const view_4<const fp16> q = x.q_view(), k = x.k_view(), v = x.v_view(),
                           o(x.o.data(), {x.batch, x.seq_q, x.heads, x.head_size}), of_dout(dout.data(), o.extents());
  const view_4<fp16> to_q(dq.data(), q.extents()), to_k(dk.data(), k.extents()), to_v(dv.data(), v.extents());
  for (const int64 bytes : {giwa::workspace_bytes(q, k, v, o, of_dout, to_q, to_k, to_v),
                            giwa::least_workspace_bytes(q, k, v, o, of_dout, to_q, to_k, to_v)}) {
    const gpu_array<unsigned char> workspace(static_cast<std::size_t>(bytes));
    const giwa::attention_backward_options options{.lse = x.lse_view(), .workspace = view_of(workspace)};
    const auto take = [&] {
      check_cuda(cudaDeviceSynchronize());
      const std::vector<std::vector<fp16>> all{dq.to_host(), dk.to_host(), dv.to_host()};
      dq.fill(0xff), dk.fill(0xff), dv.fill(0xff);
      return all;
    };
    const auto same = [](const auto& a, const auto& b) {
      return same_bits(a[0], b[0]) && same_bits(a[1], b[1]) && same_bits(a[2], b[2]);
    };
    giwa::throw_if_failed(
        giwa::attention_backward<64>(s, q, k, v, o, of_dout, to_q, to_k, to_v, giwa::causal{}, options));
    const auto expected = take();
    const auto plan =
        giwa::throw_if_failed(make_attention_plan<64>(q, k, v, o, of_dout, to_q, to_k, to_v, giwa::causal{}, options));
    for (int i = 0; i < 3; ++i) {
      giwa::throw_if_failed(plan.launch(s));
      CHECK(same(take(), expected));
    }
    giwa::throw_if_failed(capture_and_replay(s, 2, [&] { return plan.launch(s); }));
    CHECK(same(take(), expected));
  }
  // With dropout, whose modifier is of another type where nothing is dropped.
  const gpu_array<unsigned char> workspace(
      static_cast<std::size_t>(giwa::workspace_bytes(q, k, v, o, of_dout, to_q, to_k, to_v)));
  const giwa::attention_backward_options options{.lse = x.lse_view(), .workspace = view_of(workspace)};
  giwa::throw_if_failed(giwa::attention_backward<64>(s, q, k, v, o, of_dout, to_q, to_k, to_v, giwa::causal{},
                                                     giwa::dropout(0.2f, 7), options));
  check_cuda(cudaDeviceSynchronize());
  const auto expected = dq.to_host();
  dq.fill(0xff);
  const auto plan = giwa::throw_if_failed(make_attention_plan<giwa::head_sizes<64>>(
      q, k, v, o, of_dout, to_q, to_k, to_v, giwa::causal{}, giwa::dropout(0.2f, 7), options));
  giwa::throw_if_failed(plan.launch(s));
  check_cuda(cudaDeviceSynchronize());
  CHECK(same_bits(dq.to_host(), expected));
  const auto without =
      make_attention_plan<64>(q, k, v, o, of_dout, to_q, to_k, to_v, giwa::causal{}, giwa::dropout(0.f, 7), options);
  CHECK(without.state.argument == std::string("dropout"));
  CHECK(no_error_left());
}

TEST_CASE("plans of calls refuse what the calls refuse, and an empty plan") {
  cached_call c(2, 1, 200);
  giwa::kv_cache<const fp16> wrong = c.cache();
  wrong.v = {wrong.v.data(), {2, 100, 2, 64}};
  CHECK(make_attention_plan<64>(wrong, c.x.q_view(), c.x.o_view()).state.argument == std::string("v"));
  CHECK(make_attention_plan<128>(c.cache(), c.x.q_view(), c.x.o_view()).state.argument == std::string("q"));
  const auto of_128 = make_attention_plan<128>(c.cache(), c.x.q_view(), c.x.o_view());
  CHECK(of_128.value.launch(nullptr).argument == std::string("plan"));
  // No sequence: nothing to launch.
  const view_4<const fp16> none(nullptr, {0, 1, 4, 64});
  const giwa::kv_cache<const fp16> no_keys{.k = view_4<const fp16>(nullptr, {0, 200, 2, 64}),
                                           .v = view_4<const fp16>(nullptr, {0, 200, 2, 64})};
  const auto empty = make_attention_plan<64>(no_keys, none, view_4<fp16>(nullptr, {0, 1, 4, 64}));
  REQUIRE(empty.ok());
  CHECK(empty.value.launch(nullptr).ok());
}
