// SPDX-License-Identifier: MIT
// attention_plan: the bits of attention_forward on every path, with other pointers, in graphs and copies; and what it refuses.
#include "gpu/attention/plain_tensors.cuh"
#include "support/call_options.hpp"
#include "support/catch.hpp"

using namespace giwa_test;
using namespace giwa_test::attention;
using giwa::attention_forward;
using giwa::attention_options;
using giwa::bf16;
using giwa::fp16;
using giwa::make_attention_plan;

namespace {

/// Tensors, and the options that refer to them.
template <class T>
struct call : plain_tensors<T> {
  gpu_array<unsigned char> workspace;
  bool with_workspace;
  call(int64 batch_, int64 seq_q_, int64 seq_k_, int64 heads_, int64 kv_heads_, int64 head_size_, bool workspace_,
       uint64 seed)
      : plain_tensors<T>(batch_, seq_q_, seq_k_, heads_, kv_heads_, head_size_),
        workspace(static_cast<std::size_t>(giwa::workspace_bytes(problem()))),
        with_workspace(workspace_) {
    fill_normal(this->q, seed), fill_normal(this->k, seed + 1), fill_normal(this->v, seed + 2);
  }
  giwa::attention_problem problem() const {
    return {this->batch,    this->seq_q,     this->seq_k,     this->heads,
            this->kv_heads, this->head_size, this->head_size, int64{sizeof(T)}};
  }
  attention_options options() const {
    attention_options with{.lse = this->lse_view()};
    if (with_workspace) with.workspace = {workspace.data(), {static_cast<int64>(workspace.size())}};
    return with;
  }
  giwa::attention_pointers<T, T> pointers() const {
    return {.q = this->q.data(),
            .k = this->k.data(),
            .v = this->v.data(),
            .o = this->o.data(),
            .lse = this->lse.data(),
            .workspace = with_workspace ? workspace.data() : nullptr};
  }
  struct result {
    std::vector<T> o;
    std::vector<float> lse;
    friend bool operator==(const result& a, const result& b) { return same_bits(a.o, b.o) && same_bits(a.lse, b.lse); }
  };
  /// What is there, which is then overwritten.
  result take() {
    check_cuda(cudaDeviceSynchronize());
    result r{this->o.to_host(), this->lse.to_host()};
    this->o.fill(0xff), this->lse.fill(0xff);
    return r;
  }
};

/// A plan made for one set of tensors and bound to another gives the bits of plain calls, also in a copy and in a graph.
template <int HeadSize, class Tile = giwa::automatic_tile, class T, class Mask>
void compare(call<T>& first, call<T>& second, const Mask& mask) {
  const giwa::stream s = new_stream();
  const auto plain = [&](call<T>& c) {
    giwa::throw_if_failed(attention_forward<HeadSize, giwa_test::accuracy_of<Tile>, giwa_test::tile_of<Tile>>(
        s, c.q_view(), c.k_view(), c.v_view(), c.o_view(), mask, giwa::plain_score{}, c.options()));
    return c.take();
  };
  const auto expected_first = plain(first), expected_second = plain(second);
  CHECK(!(expected_first == expected_second));

  auto plan =
      giwa::throw_if_failed(make_attention_plan<HeadSize, giwa_test::accuracy_of<Tile>, giwa_test::tile_of<Tile>>(
          first.q_view(), first.k_view(), first.v_view(), first.o_view(), mask, giwa::plain_score{}, first.options()));
  for (int i = 0; i < 3; ++i) {
    giwa::throw_if_failed(plan.launch(s));
    CHECK(first.take() == expected_first);
  }
  const auto of_first = plan;
  giwa::throw_if_failed(plan.rebind(second.pointers()));
  giwa::throw_if_failed(plan.launch(s));
  CHECK(second.take() == expected_second);
  giwa::throw_if_failed(capture_and_replay(s, 2, [&] {
    const giwa::status state = plan.launch(s);
    return state.ok() ? of_first.launch(s) : state;
  }));
  CHECK(second.take() == expected_second);
  CHECK(first.take() == expected_first);
  CHECK(no_error_left());
}

}  // namespace

TEST_CASE("a plan gives the bits of a call: full and causal, with and without a workspace") {
  for (const bool workspace : {false, true}) {
    call<fp16> a(2, 200, 200, 4, 2, 64, workspace, 10), b(2, 200, 200, 4, 2, 64, workspace, 20);
    compare<64>(a, b, giwa::full{});
    compare<64>(a, b, giwa::causal{});
  }
  call<fp16> a(70, 129, 300, 4, 4, 64, true, 30), b(70, 129, 300, 4, 4, 64, true, 40);  // more work tiles than blocks
  compare<64>(a, b, giwa::causal::bottom_right);
}

TEST_CASE("a plan for a head size above 256, and for fp32 with and without tensor cores") {
  call<bf16> a(1, 70, 90, 2, 1, 264, false, 10), b(1, 70, 90, 2, 1, 264, false, 20);
  compare<264>(a, b, giwa::full{});
  for (const bool workspace : {false, true}) {
    call<float> c(2, 130, 200, 2, 1, 64, workspace, 10), d(2, 130, 200, 2, 1, 64, workspace, 20);
    compare<64>(c, d, giwa::causal::bottom_right);
  }
}

TEST_CASE("a plan for addresses that TMA does not take keeps its kernel") {
  call<fp16> a(2, 140, 140, 2, 2, 64, false, 10);
  const giwa::stream s = new_stream();
  const auto at = [&](const auto& array, int shift) {
    using element = std::remove_pointer_t<decltype(array.data())>;
    return view_4<element>(array.data() + shift, {1, 140, 2, 64});
  };
  const auto plain = [&](int shift) {
    giwa::throw_if_failed(
        attention_forward<64>(s, at(a.q, shift), at(a.k, shift), at(a.v, shift), at(a.o, shift), giwa::causal{}));
    return a.take();
  };
  const auto expected_1 = plain(1), expected_3 = plain(3);
  auto plan =
      giwa::throw_if_failed(make_attention_plan<64>(at(a.q, 1), at(a.k, 1), at(a.v, 1), at(a.o, 1), giwa::causal{}));
  giwa::throw_if_failed(plan.launch(s));
  CHECK(a.take() == expected_1);
  giwa::throw_if_failed(
      plan.rebind({.q = a.q.data() + 3, .k = a.k.data() + 3, .v = a.v.data() + 3, .o = a.o.data() + 3}));
  giwa::throw_if_failed(plan.launch(s));
  CHECK(a.take() == expected_3);
}

TEST_CASE("a plan of packed sequences follows their offsets, and new ones") {
  call<fp16> a(1, 300, 300, 2, 2, 64, true, 10);
  const gpu_array<int> two(std::vector<int>{0, 100, 300}), other(std::vector<int>{0, 250, 300});
  const auto rows = [](const auto& v) {
    using view = giwa::tensor_view<typename std::remove_cvref_t<decltype(v)>::element_type, 3>;
    return view{v.data(), {v.extent(1), v.extent(2), v.extent(3)}};
  };
  const giwa::stream s = new_stream();
  const auto plain = [&](const gpu_array<int>& offsets) {
    giwa::throw_if_failed(attention_forward<64>(
        s, rows(a.q_view()), rows(a.k_view()), rows(a.v_view()), rows(a.o_view()), giwa::causal{}, giwa::plain_score{},
        giwa_test::with(a.options(), giwa::sequences{offsets.data(), offsets.data(), 2, 300})));
    return a.take();
  };
  const auto expected_two = plain(two), expected_other = plain(other);
  auto plan = giwa::throw_if_failed(make_attention_plan<64>(
      rows(a.q_view()), rows(a.k_view()), rows(a.v_view()), rows(a.o_view()), giwa::causal{}, giwa::plain_score{},
      giwa_test::with(a.options(), giwa::sequences{two.data(), two.data(), 2, 300})));
  giwa::throw_if_failed(plan.launch(s));
  CHECK(a.take() == expected_two);
  CHECK(plan.rebind({.q_offsets = other.data()}).argument == std::string("mask"));  // lengths may differ now
  CHECK(plan.rebind({.q_lengths = other.data()}).argument == std::string("q_lengths"));
  giwa::throw_if_failed(plan.rebind({.q_offsets = other.data(), .k_offsets = other.data()}));
  giwa::throw_if_failed(plan.launch(s));
  CHECK(a.take() == expected_other);
}

TEST_CASE("a plan refuses what a call refuses, and stays as it was") {
  call<fp16> a(1, 256, 256, 2, 2, 64, false, 10);
  const giwa::stream s = new_stream();
  using plan_type = decltype(make_attention_plan<64>(a.q_view(), a.k_view(), a.v_view(), a.o_view()).value);
  plan_type plan;
  CHECK(plan.launch(s).argument == std::string("plan"));
  CHECK(plan.rebind({.q = a.q.data()}).argument == std::string("plan"));

  std::vector<fp16> host(a.q.size());
  const auto fails = [&](const giwa::attention_pointers<fp16, fp16>& to) { return plan.rebind(to); };
  CHECK(!make_attention_plan<64>(a.q_view(), a.k_view(), a.v_view(), view_4<fp16>(a.q.data(), a.q_view().extents()))
             .ok());
  plan = giwa::throw_if_failed(make_attention_plan<64>(a.q_view(), a.k_view(), a.v_view(), a.o_view()));
  giwa::throw_if_failed(plan.launch(s));
  const auto expected = a.take();
  CHECK(fails({.o = a.q.data()}).argument == std::string("o"));
  CHECK(fails({.k = reinterpret_cast<const fp16*>(reinterpret_cast<std::uintptr_t>(a.k.data()) + 1)}).argument ==
        std::string("k"));
  CHECK(fails({.lse = a.lse.data()}).argument == std::string("lse"));
  CHECK(fails({.sinks = a.lse.data()}).argument == std::string("sinks"));
  CHECK(fails({.workspace = a.workspace.data()}).argument == std::string("workspace"));
  if (device_attribute(cudaDevAttrPageableMemoryAccess) == 0)
    CHECK(fails({.v = host.data()}).argument == std::string("v"));
  if (capability() == 90 && giwa::throw_if_failed(giwa::code_for_current_device()).architecture_specific) {
    const giwa::status s90 = fails({.k = a.k.data() + 1});  // the kernel of TMA
    CHECK(s90.argument == std::string("k"));
    CHECK(std::string(s90.message).find("16 bytes") != std::string::npos);
  }
  giwa::throw_if_failed(plan.launch(s));
  CHECK(a.take() == expected);
  CHECK(no_error_left());

  // No queries: nothing to launch, or to bind.
  const view_4<const fp16> none(nullptr, {1, 0, 2, 64});
  plan_type empty = giwa::throw_if_failed(
      make_attention_plan<64>(none, a.k_view(), a.v_view(), view_4<fp16>(nullptr, {1, 0, 2, 64})));
  CHECK(empty.rebind({.k = a.v.data()}).ok());
  CHECK(empty.launch(s).ok());
}

TEST_CASE("a plan is launched on its GPU only") {
  if (giwa::device_count() < 2) return;
  call<fp16> a(1, 100, 100, 2, 2, 64, false, 10);
  auto plan = giwa::throw_if_failed(make_attention_plan<64>(a.q_view(), a.k_view(), a.v_view(), a.o_view()));
  const auto guard = giwa::throw_if_failed(giwa::device_guard::activate(1));
  const giwa::status state = plan.launch(nullptr);
  CHECK(state.argument == std::string("plan"));
  CHECK(state.got == 1);
  CHECK(plan.rebind({.q = a.k.data()}).argument == std::string("plan"));
}
