// SPDX-License-Identifier: MIT
// The forms of attention calls: options in every place, two head sizes, ragged rows as an option, bytes of workspace.
#include <giwa/host.hpp>

#include <cmath>
#include <string>
#include <vector>

#include "support/catch.hpp"

using giwa::causal, giwa::fp16, giwa::full, giwa::int64, giwa::plain_score, giwa::softcap, giwa::status,
    giwa::tensor_view;

namespace {

constexpr int size = 8;
constexpr int64 queries = 5, heads = 2, count = queries * heads * size, rows = queries * heads;

/// Tensors (1, 5, 2, 8) or packed (5, 2, 8), and outputs of attention and of its gradients.
struct tensors {
  std::vector<float> in, o, lse, dq, dk, dv;
  int offsets[3] = {0, 2, 5};
  int lengths[1] = {3};

  tensors() : in(4 * count), o(count), lse(rows), dq(count), dk(count), dv(count) {
    const giwa::philox random(5);
    for (std::size_t i = 0; i < in.size(); ++i) in[i] = 2 * random.uniform<float>(i) - 1;
  }
  tensor_view<const float, 4> input(int64 i) const { return {in.data() + i * count, {1, queries, heads, size}}; }
  tensor_view<const float, 3> packed(int64 i) const { return {in.data() + i * count, {queries, heads, size}}; }
  static tensor_view<float, 4> output(std::vector<float>& x) { return {x.data(), {1, queries, heads, size}}; }
  static tensor_view<float, 3> packed_output(std::vector<float>& x) { return {x.data(), {queries, heads, size}}; }
  tensor_view<float, 3> lse_view() { return {lse.data(), {1, heads, queries}}; }
  giwa::kv_cache<const float> cache() const { return {.k = input(1), .v = input(2)}; }
};

/// o and lse after a call; both are NaN before it.
template <class Call>
std::vector<float> result_of(tensors& t, const Call& call) {
  t.o.assign(t.o.size(), NAN), t.lse.assign(t.lse.size(), 77);
  const status s = call();
  CHECK(s.ok());
  std::vector<float> all = t.o;
  all.insert(all.end(), t.lse.begin(), t.lse.end());
  return all;
}

bool given_twice(const status& s) {
  return s.argument == std::string("options") && std::string(s.message).find("more than once") != std::string::npos;
}

}  // namespace

TEST_CASE("options of attention_forward stand wherever the call may end") {
  tensors t;
  const auto q = t.input(0), k = t.input(1), v = t.input(2);
  const auto o = tensors::output(t.o);
  const auto call = [&](const auto&... last) { return giwa::attention_forward<size>(giwa::host, q, k, v, o, last...); };
  giwa::attention_options options;
  options.scale = 0.5f, options.lse = t.lse_view();

  const auto plain = result_of(t, [&] { return call(full{}, plain_score{}, options); });
  CHECK(result_of(t, [&] { return call(options); }) == plain);
  CHECK(result_of(t, [&] { return call(full{}, options); }) == plain);
  CHECK(result_of(t, [&] {
          return giwa::attention_forward<size>(giwa::host, q, k, v, o, {.scale = 0.5f, .lse = t.lse_view()});
        }) == plain);
  CHECK(result_of(t, [&] {
          return giwa::attention_forward<size>(giwa::host, q, k, v, o, {}, {.scale = 0.5f, .lse = t.lse_view()});
        }) == plain);
  CHECK(result_of(t, [&] {
          return giwa::attention_forward<size>(giwa::host, q, k, v, o, {}, {}, {.scale = 0.5f, .lse = t.lse_view()});
        }) == plain);
  CHECK(result_of(t, [&] {
          return giwa::attention_forward<giwa::head_sizes<size>>(giwa::host, q, k, v, o, options);
        }) == plain);
  CHECK(result_of(t, [&] {
          return giwa::attention_forward<giwa::head_sizes<size, size>, giwa::fp32_exact>(giwa::host, q, k, v, o, {},
                                                                                         options);
        }) == plain);
  CHECK(result_of(t, [&] {
          return giwa::attention_forward<size, giwa::fp32, giwa::tile_shape<64, 64>>(giwa::host, q, k, v, o, options);
        }) == plain);

  const auto masked = result_of(t, [&] { return call(causal{}, softcap{2}, options); });
  CHECK(masked != plain);
  CHECK(result_of(t, [&] {
          return giwa::attention_forward<size>(giwa::host, q, k, v, o, causal{}, softcap{2},
                                               {.scale = 0.5f, .lse = t.lse_view()});
        }) == masked);
  const auto without_score = result_of(t, [&] { return call(causal{}, plain_score{}, options); });
  CHECK(result_of(t, [&] { return call(causal{}, options); }) == without_score);
  CHECK(result_of(t, [&] {
          return giwa::attention_forward<size>(giwa::host, q, k, v, o, causal{}, {.scale = 0.5f, .lse = t.lse_view()});
        }) == without_score);
  // Options in the place of the mask, before a score modifier.
  const auto without_mask = result_of(t, [&] { return call(full{}, softcap{2}, options); });
  CHECK(result_of(t, [&] { return call(options, softcap{2}); }) == without_mask);
  CHECK(result_of(t, [&] { return giwa::attention_forward<size>(giwa::host, q, k, v, o, {}, softcap{2}, options); }) ==
        without_mask);

  CHECK(giwa::attention_forward<size>(giwa::host, q, k, v, o, {}).ok());
  CHECK(giwa::attention_forward<size>(giwa::host, q, k, v, o, causal{}, {}).ok());
  CHECK(given_twice(call(options, options)));
  CHECK(given_twice(call(causal{}, options, options)));
  CHECK(given_twice(call(options, softcap{2}, options)));
  CHECK(given_twice(giwa::attention_forward<size>(giwa::host, q, k, v, o, {.scale = 1}, {.scale = 1})));
  CHECK(given_twice(giwa::attention_forward<size>(giwa::host, q, k, v, o, {.align = giwa::alignment::top_left}, {},
                                                  {.sequences = {.k_lengths = t.lengths}})));
  CHECK(given_twice(giwa::attention_reference(giwa::host, q, k, v, o, options, options)));
}

TEST_CASE("rows of sequences are an option") {
  tensors t;
  const auto q = t.packed(0), k = t.packed(1), v = t.packed(2);
  const auto o = tensors::packed_output(t.o);
  const giwa::sequences sequences{t.offsets, t.offsets, 2, 3};
  const auto both = result_of(t, [&] {
    return giwa::attention_forward<size>(giwa::host, q, k, v, o, causal{},
                                         {.lse = t.lse_view(), .sequences = sequences});
  });
  CHECK(result_of(t, [&] {
          return giwa::attention_forward<giwa::head_sizes<size>>(
              giwa::host, q, k, v, o, causal{}, plain_score{},
              {.lse = t.lse_view(), .sequences = {t.offsets, t.offsets, 2, 3}});
        }) == both);
  const auto no_offsets = giwa::attention_forward<size>(giwa::host, q, k, v, o, causal{});
  CHECK(no_offsets.argument == std::string("q_offsets"));
  CHECK(std::string(no_offsets.message).find("need the offsets of their sequences") != std::string::npos);
  const auto of_rank_4 =
      giwa::attention_forward<size>(giwa::host, t.input(0), t.input(1), t.input(2), tensors::output(t.o),
                                    {.sequences = {.q_offsets = t.offsets, .k_offsets = t.offsets, .count = 2}});
  CHECK(of_rank_4.argument == std::string("q_offsets"));
  CHECK(giwa::attention_forward<size>(giwa::host, t.input(0), t.input(1), t.input(2), tensors::output(t.o),
                                      {.sequences = {.k_lengths = t.lengths}})
            .ok());
}

TEST_CASE("options of attention_backward stand wherever the call may end, and have its lse") {
  tensors t;
  const auto q = t.input(0), k = t.input(1), v = t.input(2), dout = t.input(3),
             o = tensor_view<const float, 4>(tensors::output(t.o));
  const auto dq = tensors::output(t.dq), dk = tensors::output(t.dk), dv = tensors::output(t.dv);
  REQUIRE(
      giwa::attention_forward<size>(giwa::host, q, k, v, tensors::output(t.o), causal{}, {.lse = t.lse_view()}).ok());
  const giwa::attention_backward_options options{.lse = t.lse_view()};
  const auto gradients = [&](const auto& call) {
    t.dq.assign(t.dq.size(), NAN), t.dk.assign(t.dk.size(), NAN), t.dv.assign(t.dv.size(), NAN);
    CHECK(call().ok());
    std::vector<float> all = t.dq;
    all.insert(all.end(), t.dk.begin(), t.dk.end()), all.insert(all.end(), t.dv.begin(), t.dv.end());
    return all;
  };
  const auto expected = gradients([&] {
    return giwa::attention_backward<size>(giwa::host, q, k, v, o, dout, dq, dk, dv, causal{}, plain_score{}, options);
  });
  CHECK(gradients([&] {
          return giwa::attention_backward<size>(giwa::host, q, k, v, o, dout, dq, dk, dv, causal{}, options);
        }) == expected);
  CHECK(gradients([&] {
          return giwa::attention_backward<size>(giwa::host, q, k, v, o, dout, dq, dk, dv, causal{},
                                                {.lse = t.lse_view()});
        }) == expected);
  CHECK(gradients([&] {
          return giwa::attention_backward<giwa::head_sizes<size>, giwa::tf32>(giwa::host, q, k, v, o, dout, dq, dk, dv,
                                                                              causal{}, {}, {.lse = t.lse_view()});
        }) == expected);
  CHECK(giwa::attention_backward<size>(giwa::host, q, k, v, o, dout, dq, dk, dv, {.lse = t.lse_view()}).ok());
  CHECK(giwa::attention_backward<size>(giwa::host, q, k, v, o, dout, dq, dk, dv, options).ok());
  CHECK(giwa::attention_backward<size>(giwa::host, q, k, v, o, dout, dq, dk, dv, causal{}).argument ==
        std::string("lse"));
  CHECK(given_twice(
      giwa::attention_backward<size>(giwa::host, q, k, v, o, dout, dq, dk, dv, options, {}, {.any_order = true})));
  CHECK(given_twice(giwa::attention_backward<size>(giwa::host, q, k, v, o, dout, dq, dk, dv, causal{},
                                                   {.accumulate = true}, options)));
}

TEST_CASE("options of attention_cached stand wherever the call may end") {
  tensors t;
  const auto cache = t.cache();
  const auto q = t.input(0);
  const auto o = tensors::output(t.o);
  const giwa::cached_options options{.scale = 0.5f, .lse = t.lse_view()};
  const auto plain = result_of(
      t, [&] { return giwa::attention_cached<size>(giwa::host, cache, q, o, full{}, plain_score{}, options); });
  CHECK(result_of(t, [&] { return giwa::attention_cached<size>(giwa::host, cache, q, o, options); }) == plain);
  CHECK(result_of(t, [&] {
          return giwa::attention_cached<size, giwa::few_queries>(giwa::host, cache, q, o,
                                                                 {.scale = 0.5f, .lse = t.lse_view()});
        }) == plain);
  CHECK(result_of(t, [&] {
          return giwa::attention_cached<giwa::head_sizes<size>>(giwa::host, cache, q, o, {}, {},
                                                                {.scale = 0.5f, .lse = t.lse_view()});
        }) == plain);
  CHECK(result_of(t, [&] { return giwa::attention_cached<size>(giwa::host, cache, q, o, full{}, options); }) == plain);
  CHECK(given_twice(giwa::attention_cached<size>(giwa::host, cache, q, o, causal{}, options, {.scale = 2})));
  CHECK(given_twice(giwa::attention_cached_reference(giwa::host, cache, q, o, options, {}, options)));

  // Packed queries; and members that only other calls have.
  giwa::kv_cache<const float> two = cache;
  two.k = two.v = {t.in.data(), {2, 2, heads, size}};
  const auto packed = [&](const giwa::sequences& sequences) {
    return giwa::attention_cached<size>(giwa::host, two, t.packed(0), tensors::packed_output(t.o),
                                        {.sequences = sequences});
  };
  CHECK(packed({.q_offsets = t.offsets, .count = 2, .max_q = 3}).ok());
  CHECK(packed({}).argument == std::string("q_offsets"));
  const giwa::sequences wrong[] = {{.q_offsets = t.offsets, .k_offsets = t.offsets, .count = 2},
                                   {.q_offsets = t.offsets, .count = 2, .q_lengths = t.lengths},
                                   {.q_offsets = t.offsets, .count = 2, .k_lengths = t.lengths},
                                   {.q_offsets = t.offsets, .count = 2, .k_batch_index = t.lengths}};
  const std::string names[] = {"k_offsets", "q_lengths", "k_lengths", "k_batch_index"};
  for (std::size_t i = 0; i < 4; ++i) CHECK(packed(wrong[i]).argument == names[i]);
  CHECK(giwa::attention_cached<size>(giwa::host, cache, q, o, {.sequences = {.q_offsets = t.offsets, .count = 1}})
            .argument == std::string("q_offsets"));
}

TEST_CASE("options of append_to_cache may follow v_new") {
  tensors t;
  std::vector<float> to(2 * count), again(2 * count);
  const auto cache_of = [&](std::vector<float>& x) {
    return giwa::kv_cache<float>{.k = tensors::output(x), .v = {x.data() + count, {1, queries, heads, size}}};
  };
  const int slots[queries] = {4, 3, 2, 1, 0};
  const auto k = t.packed(1), v = t.packed(2);
  const giwa::append_options<float> options{.slots = tensor_view<const int, 1>(slots, {queries})};
  REQUIRE(giwa::append_to_cache(giwa::host, cache_of(to), k, v, giwa::no_rotary{}, options).ok());
  CHECK(giwa::append_to_cache(giwa::host, cache_of(again), k, v, options).ok());
  CHECK(to == again);
  again.assign(again.size(), 0);
  CHECK(giwa::append_to_cache(giwa::host, cache_of(again), k, v, {.slots = tensor_view<const int, 1>(slots, {queries})})
            .ok());
  CHECK(to == again);
  CHECK(given_twice(giwa::append_to_cache(giwa::host, cache_of(again), k, v, options, options)));
  CHECK(giwa::append_to_cache(giwa::host, cache_of(again), k, v, {.sequences = {.k_lengths = t.lengths}}).argument ==
        std::string("k_lengths"));
  const int offsets[2] = {0, queries};
  CHECK(
      giwa::append_to_cache(giwa::host, cache_of(again), k, v, {.sequences = {.q_offsets = offsets, .count = 1}}).ok());
}

TEST_CASE("choose_head_size calls with one of its sizes") {
  tensors t;
  const auto call = [&](auto head_size) {
    return giwa::attention_forward<head_size>(giwa::host, t.input(0), t.input(1), t.input(2), tensors::output(t.o));
  };
  CHECK(giwa::choose_head_size<4, 8>(size, call).ok());
  const status s = giwa::choose_head_size<4, 16>(size, call);
  CHECK(std::string(s.message).find("the head size is not in the list") != std::string::npos);
}

// Sizes count alone, so the bytes are known where the sizes are.
namespace {
template <class T>
constexpr tensor_view<T, 4> of(int64 length, int64 of_heads, int64 head_size) {
  return {nullptr, {2, length, of_heads, head_size}};
}
template <class T>
constexpr giwa::attention_problem sizes_of_problem() {
  return {2, 100, 200, 8, 2, 128, 64, int64{sizeof(T)}};
}
template <class T>
constexpr int64 forward_bytes() {
  return giwa::workspace_bytes(of<const T>(100, 8, 128), of<const T>(200, 2, 128), of<const T>(200, 2, 64),
                               of<T>(100, 8, 64), causal{}, {.scale = 2});
}
template <class T>
constexpr int64 backward_bytes(bool any_order, int capability, bool split_heads = false) {
  const auto q = of<T>(100, 8, 128), k = of<T>(200, 2, 128), v = of<T>(200, 2, 64), o = of<T>(100, 8, 64);
  return giwa::workspace_bytes(q, k, v, o, o, q, k, v, {}, {}, {.any_order = any_order, .split_heads = split_heads},
                               {.capability = capability});
}
template <class T>
constexpr int64 least_bytes() {
  const auto q = of<T>(100, 8, 128), k = of<T>(200, 2, 128), v = of<T>(200, 2, 64), o = of<T>(100, 8, 64);
  return giwa::least_workspace_bytes(q, k, v, o, o, q, k, v, causal{});
}
}  // namespace

TEST_CASE("workspace_bytes takes the arguments of a call") {
  STATIC_REQUIRE(forward_bytes<fp16>() == giwa::workspace_bytes(sizes_of_problem<fp16>()));
  STATIC_REQUIRE(forward_bytes<float>() == giwa::workspace_bytes(sizes_of_problem<float>()));
  STATIC_REQUIRE(least_bytes<fp16>() == 2 * 100 * 8 * 8 + 16);
  for (const bool any_order : {false, true})
    for (const int capability : {0, 80, 90}) {
      CHECK(backward_bytes<fp16>(any_order, capability) ==
            giwa::detail::backward_workspace_bytes(sizes_of_problem<fp16>(), capability, any_order));
      CHECK(backward_bytes<fp16>(any_order, capability, true) ==
            giwa::detail::backward_workspace_bytes(sizes_of_problem<fp16>(), capability, any_order, true));
      CHECK(backward_bytes<float>(any_order, capability) ==
            giwa::detail::backward_workspace_bytes(sizes_of_problem<float>(), capability, any_order));
    }
  int offsets[3] = {};  // not read
  const tensor_view<const float, 3> q(nullptr, {300, 8, 128}), k(nullptr, {500, 2, 128}), v(nullptr, {500, 2, 64});
  const tensor_view<float, 3> o(nullptr, {300, 8, 64});
  CHECK(giwa::workspace_bytes(q, k, v, o, {.sequences = {offsets, offsets, 2, 0}}) ==
        giwa::workspace_bytes({2, -1, -1, 8, 2, 128, 64, 4, 300, 500}));
  // Offsets that do not exist yet make no difference; without the number of sequences no call takes the tensors.
  CHECK(giwa::workspace_bytes(q, k, v, o, {.sequences = {.count = 2}}) ==
        giwa::workspace_bytes({2, -1, -1, 8, 2, 128, 64, 4, 300, 500}));
  CHECK(giwa::workspace_bytes(q, k, v, o) == 8);
  const tensor_view<const float, 3> dout(nullptr, {300, 8, 64});
  const tensor_view<float, 3> dq(nullptr, {300, 8, 128}), dk(nullptr, {500, 2, 128}), dv(nullptr, {500, 2, 64});
  CHECK(giwa::workspace_bytes(q, k, v, dout, dout, dq, dk, dv, {.sequences = {.count = 2}}) ==
        giwa::workspace_bytes(q, k, v, dout, dout, dq, dk, dv, {.sequences = {offsets, offsets, 2, 0}}));
  CHECK(giwa::least_workspace_bytes(q, k, v, dout, dout, dq, dk, dv, {.sequences = {.count = 2}}) ==
        giwa::least_workspace_bytes(q, k, v, dout, dout, dq, dk, dv, {.sequences = {offsets, offsets, 2, 0}}));
  CHECK(giwa::workspace_bytes(q, k, v, dout, dout, dq, dk, dv) == 0);

  const giwa::kv_cache<const fp16> cache{.k = of<const fp16>(8192, 2, 128), .v = of<const fp16>(8192, 2, 128)};
  const giwa::cached_problem sizes{
      .sequences = 2, .queries = 1, .keys = 8192, .heads = 8, .kv_heads = 2, .head_size = 128, .head_size_v = 128};
  CHECK(giwa::workspace_bytes(cache, of<const fp16>(1, 8, 128), of<fp16>(1, 8, 128), {}, {}, {},
                              {.multiprocessors = 132}) == giwa::workspace_bytes(sizes, {.multiprocessors = 132}));
  CHECK(giwa::workspace_bytes(cache, of<const fp16>(1, 8, 128), of<fp16>(1, 8, 128)) >=
        giwa::workspace_bytes(sizes, {.multiprocessors = 132}));
  const tensor_view<const fp16, 3> rows(nullptr, {50, 8, 128});
  const tensor_view<fp16, 3> out(nullptr, {50, 8, 128});
  CHECK(giwa::workspace_bytes(cache, rows, out, {.sequences = {.count = 2, .max_q = 40}}) ==
        giwa::workspace_bytes(cache, rows, out, {.sequences = {.q_offsets = offsets, .count = 2, .max_q = 40}}));
  CHECK(giwa::workspace_bytes(cache, rows, out) == 0);
}
