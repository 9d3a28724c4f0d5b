// SPDX-License-Identifier: MIT
// giwa::attention_forward with and without a workspace, with no-op functors, and the host time of calls compared with a launch.
// The comparison with cuDNN, FlashAttention-2 and FlexAttention is bench/torch/attention.py.
#include "alternate.hpp"
#include "random.hpp"

#include <giwa/attention.cuh>

#include <cmath>

namespace {

using giwa::fp16, giwa::int64;

/// A no-op score modifier and a no-op custom mask.
struct same_score {
  GIWA_HOST_DEVICE float operator()(float score, giwa::attention_coord) const { return score; }
};
struct every_key {
  GIWA_HOST_DEVICE bool operator()(giwa::attention_coord) const { return true; }
  GIWA_HOST_DEVICE giwa::tile_keep classify(const giwa::score_tile&) const { return giwa::tile_keep::all; }
};

struct buffers {
  giwa::index<4> sizes;  // (batch, length, heads, head size)
  giwa::device_array<fp16> q, k, v, o;
  giwa::device_array<unsigned char> workspace;

  giwa::tensor_view<fp16, 4> view(giwa::device_array<fp16>& x) const { return {x.data(), sizes}; }
};
using buffer_sets = std::vector<buffers>;
using run_function = std::function<void(int set)>;

std::shared_ptr<buffer_sets> make_buffers(const giwa::index<4>& sizes, int sets) {
  const auto data = std::make_shared<buffer_sets>();
  const int64 n = sizes[0] * sizes[1] * sizes[2] * sizes[3];
  for (int s = 0; s < sets; ++s) {
    buffers b{sizes, {}, {}, {}, {}, {}};
    giwa::uint64 stream = 0;
    for (giwa::device_array<fp16>* const x : {&b.q, &b.k, &b.v, &b.o}) {
      *x = bench::require(giwa::device_array<fp16>::allocate(nullptr, n));
      const giwa::philox random(static_cast<giwa::uint64>(s), stream++);
      bench::require(giwa::for_all(nullptr, n, bench::fill_normal<fp16>{x->data(), random}));
    }
    b.workspace = bench::require(giwa::device_array<unsigned char>::allocate(nullptr, giwa::workspace_bytes({})));
    data->push_back(std::move(b));
  }
  return data;
}

template <int HeadSize, class Mask, class Score = giwa::plain_score>
run_function attention(buffer_sets& sets, bool workspace) {
  return [&sets, workspace](int set) {
    buffers& b = sets[static_cast<std::size_t>(set)];
    giwa::attention_options options;
    if (workspace) options.workspace = b.workspace;
    bench::require(giwa::attention_forward<HeadSize>(cudaStream_t{}, b.view(b.q), b.view(b.k), b.view(b.v), b.view(b.o),
                                                     Mask{}, Score{}, options));
  };
}

/// The last 64 queries of the last head and sequence against attention in double.
template <class Mask>
void require_right(buffers& b, const run_function& run, const Mask& mask) {
  const auto [batch, length, heads, head_size] = b.sizes;
  const int64 step = heads * head_size, rows = 64, elements = rows * head_size;
  const int64 first_key = (batch - 1) * length * step + (heads - 1) * head_size;
  const int64 first_query = first_key + (length - rows) * step;
  const auto head = [&](giwa::device_array<fp16>& x, int64 first, int64 count) {
    return giwa::tensor_view<fp16, 4>(x.data() + first, {1, count, 1, head_size}, {count * step, step, head_size, 1});
  };
  bench::require(cudaMemsetAsync(b.o.data(), 0xff, static_cast<std::size_t>(b.o.size()) * sizeof(fp16), nullptr));
  run(0);
  auto exact = bench::require(giwa::device_array<float>::allocate(nullptr, elements));
  bench::require(giwa::attention_reference(cudaStream_t{}, head(b.q, first_query, rows), head(b.k, first_key, length),
                                           head(b.v, first_key, length),
                                           giwa::tensor_view<float, 4>(exact.data(), {1, rows, 1, head_size}), mask));
  std::vector<float> expected(static_cast<std::size_t>(elements));
  std::vector<fp16> got(expected.size());
  bench::require(giwa::to_host(nullptr, exact, expected));
  const std::size_t row_bytes = static_cast<std::size_t>(head_size) * sizeof(fp16);
  bench::require(cudaMemcpy2D(got.data(), row_bytes, b.o.data() + first_query,
                              static_cast<std::size_t>(step) * sizeof(fp16), row_bytes, rows, cudaMemcpyDeviceToHost));
  double worst = 0;
  for (std::size_t i = 0; i < got.size(); ++i) {
    const double off = std::abs(giwa::convert<double>{}(got[i]) - static_cast<double>(expected[i]));
    worst = std::max(worst, std::isnan(off) ? 1e9 : off);
  }
  if (!(worst < 1e-3)) {
    std::fprintf(stderr, "attention: %lld x %lld tokens, %lld heads of %lld are off by %g\n",
                 static_cast<long long>(batch), static_cast<long long>(length), static_cast<long long>(heads),
                 static_cast<long long>(head_size), worst);
    std::exit(1);
  }
}

constexpr int sets = 2;

/// `make` gives every contender its run, all of which answer what `mask` says.
template <class Mask>
void add_contest(const std::string& kind, const giwa::index<4>& sizes,
                 std::vector<bench::contest::contender> contenders, const Mask& mask,
                 const std::function<std::vector<run_function>(buffer_sets&)>& make) {
  const auto [batch, length, heads, head_size] = sizes;
  const auto text = [](int64 x) { return std::to_string(x); };
  const double whole = 4.0 * static_cast<double>(batch * heads * head_size) * static_cast<double>(length * length);
  bench::contest::add(std::make_shared<bench::contest>(
      kind + "/D" + text(head_size) + "/" + text(batch) + "x" + text(heads) + "x" + text(length), std::move(contenders),
      sets, 10, bench::work::of_flops(std::is_same_v<Mask, giwa::full> ? whole : whole / 2), bench::device_seconds,
      [sizes, mask, make](std::vector<bench::contest::contender>& c) {
        const auto data = make_buffers(sizes, sets);
        const std::vector<run_function> runs = make(*data);
        for (std::size_t i = 0; i < c.size(); ++i) {
          c[i].run = runs[i];
          require_right(data->front(), runs[i], mask);
        }
        return data;
      }));
}

template <int HeadSize, class Mask>
void add_attention(const char* name, const Mask& mask) {
  for (const int64 length : {512, 4096})
    add_contest(std::string("attention/") + name, {16384 / length, length, 2048 / HeadSize, HeadSize},
                {{"giwa_attention", "giwa_attention"}, {"giwa_attention_workspace", "giwa_attention"}}, mask,
                [](buffer_sets& d) {
                  return std::vector{attention<HeadSize, Mask>(d, false), attention<HeadSize, Mask>(d, true)};
                });
}

void add_functors() {
  add_contest("functor", {4, 4096, 16, 128},
              {{"plain", "plain"}, {"own_score", "plain"}, {"own_mask", "plain"}, {"own_mask_workspace", "plain"}},
              giwa::full{}, [](buffer_sets& d) {
                return std::vector{attention<128, giwa::full>(d, false),
                                   attention<128, giwa::full, same_score>(d, false),
                                   attention<128, every_key>(d, false), attention<128, every_key>(d, true)};
              });
}

template <int Bytes>
struct payload {
  char bytes[Bytes];
};
template <class Payload>
__global__ void nothing(const __grid_constant__ Payload) {}

/// The host time of a call, prepared or not, compared with a launch with the parameters of its kernel on Hopper.
void add_call() {
  using policy = giwa::detail::sm90_policy_of<64, 64, giwa::automatic_tile>::type;
  using op = giwa::detail::sm90_attention_op<fp16, fp16, policy, giwa::full, giwa::plain_score>;
  using parameters = payload<int{sizeof(op::params)}>;
  const std::string bare = "bare_" + std::to_string(sizeof(parameters)) + "_bytes";
  bench::contest::add(std::make_shared<bench::contest>(
      "call/full/D64/1x1x128",
      std::vector<bench::contest::contender>{{bare, bare}, {"giwa_attention", bare}, {"giwa_attention_plan", bare}}, 1,
      200, 0.0, bench::host_seconds, [](std::vector<bench::contest::contender>& c) {
        const auto data = make_buffers({1, 128, 1, 64}, 1);
        c[0].run = [](int) { nothing<<<1, op::max_threads, 0, nullptr>>>(parameters{}); };
        c[1].run = attention<64, giwa::full>(*data, false);
        require_right(data->front(), c[1].run, giwa::full{});
        buffers& b = data->front();
        const auto plan =
            bench::require(giwa::make_attention_plan<64>(b.view(b.q), b.view(b.k), b.view(b.v), b.view(b.o)));
        c[2].run = [plan](int) { bench::require(plan.launch(nullptr)); };
        require_right(b, c[2].run, giwa::full{});
        return data;
      }));
}

}  // namespace

int main(int argc, char** argv) {
  return bench::run(argc, argv, [] {
    add_attention<64>("full", giwa::full{});
    add_attention<64>("causal", giwa::causal::bottom_right);
    add_attention<128>("full", giwa::full{});
    add_attention<128>("causal", giwa::causal::bottom_right);
    add_attention<256>("full", giwa::full{});
    add_attention<256>("causal", giwa::causal::bottom_right);
    add_functors();
    add_call();
  });
}
