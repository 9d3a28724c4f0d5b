// SPDX-License-Identifier: MIT
// for_all over whole arrays: every element right and nothing else written, for all widths, sizes and alignments.
#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include <giwa/device.hpp>
#include <giwa/grid.cuh>

#include <cstring>
#include <span>
#include <string>
#include <tuple>
#include <vector>

#include "support/catch.hpp"
#include "support/gpu.cuh"

using giwa::elementwise;
using giwa::for_all;
using giwa::int64;
using giwa::status;
using giwa::tensor_view;
using giwa_test::gpu_array;

namespace {

struct triple {  // 12 bytes: never moved in packets
  int a, b, c;
};
struct pixel {  // 4 bytes, aligned to 1
  signed char r, g, b, a;
};

// The sum of the inputs and 1, in the type Sum. Inputs are small integers, so it is exact in every type.
template <class Sum>
struct sum_and_one {
  template <class... T>
  GIWA_HOST_DEVICE Sum operator()(const T&... x) const {
    Sum sum = 1;
    ((sum += static_cast<Sum>(x)), ...);
    return sum;
  }
};
struct add_triples {
  GIWA_HOST_DEVICE triple operator()(triple x, triple y) const { return {x.a + y.a, x.b + y.b, x.c + y.c}; }
};
struct to_pixel {
  GIWA_HOST_DEVICE pixel operator()(pixel p, float x) const {
    return {p.a, p.b, p.g, static_cast<signed char>(static_cast<int>(x) + p.r)};
  }
};

template <class T>
T element(int64 i, int which) {
  return static_cast<T>(static_cast<float>((i * (7 + 2 * which) + which) % 29));
}
template <>
triple element<triple>(int64 i, int which) {
  return {static_cast<int>(i), which, static_cast<int>(7 * i)};
}
template <>
pixel element<pixel>(int64 i, int) {
  const auto at = [&](int64 k) { return static_cast<signed char>((i + k) % 50); };
  return {at(0), at(7), at(20), at(33)};
}

// An array of n elements somewhere in device memory, with room around it that nobody may touch.
constexpr std::size_t room = 64;
template <class T>
class guarded {
 public:
  guarded(std::size_t n, std::size_t offset) : n_(n), offset_(offset), memory_(n + offset + 2 * room, 0xee) {}
  void set(const std::vector<T>& values) {
    giwa_test::check_cuda(cudaMemcpy(begin(), values.data(), n_ * sizeof(T), cudaMemcpyHostToDevice));
    giwa_test::check_cuda(cudaDeviceSynchronize());
  }
  T* begin() const { return memory_.data() + room + offset_; }
  tensor_view<T, 1> view() const { return {begin(), {n_}}; }

  /// Whether the elements are these, bit for bit, and all the bytes around are as they were.
  bool holds(const std::vector<T>& values) const {
    const std::vector<T> all = memory_.to_host();
    const auto* bytes = reinterpret_cast<const unsigned char*>(all.data());
    const std::size_t first = (room + offset_) * sizeof(T), last = first + n_ * sizeof(T);
    for (std::size_t i = 0; i < all.size() * sizeof(T); ++i)
      if ((i < first || i >= last) && bytes[i] != 0xee) return false;
    return n_ == 0 || std::memcmp(bytes + first, values.data(), n_ * sizeof(T)) == 0;
  }

 private:
  std::size_t n_, offset_;
  gpu_array<T> memory_;
};

template <class T>
std::vector<T> input(std::size_t n, int which) {
  std::vector<T> values(n);
  for (std::size_t i = 0; i < n; ++i) values[i] = element<T>(static_cast<int64>(i), which);
  return values;
}

// One call; `offsets` are in elements, the output's first. Expected values come from f on the host.
template <class Out, class... In, class F, std::size_t... Which>
void check_one(const F& f, std::size_t n, const std::size_t (&offsets)[sizeof...(In) + 1],
               std::index_sequence<Which...>) {
  const giwa::stream s = giwa_test::new_stream();
  std::tuple<std::vector<In>...> in{input<In>(n, static_cast<int>(Which))...};
  std::tuple<guarded<In>...> in_gpu{guarded<In>(n, offsets[Which + 1])...};
  (std::get<Which>(in_gpu).set(std::get<Which>(in)), ...);
  std::vector<Out> expected(n);
  for (std::size_t i = 0; i < n; ++i) expected[i] = static_cast<Out>(f(std::get<Which>(in)[i]...));
  const guarded<Out> out(n, offsets[0]);

  const status state = for_all(s, elementwise{out.view(), std::get<Which>(in_gpu).view()...}, f);
  INFO(giwa::format_status(state).c_str());
  REQUIRE(state.ok());
  REQUIRE(giwa::synchronize(s).ok());
  REQUIRE(out.holds(expected));
  REQUIRE((std::get<Which>(in_gpu).holds(std::get<Which>(in)) && ...));
}

template <class Out, class... In, class F>
void check(const F& f) {
  constexpr auto which = std::index_sequence_for<In...>{};
  constexpr std::size_t arrays = sizeof...(In) + 1;
  constexpr std::size_t tile = giwa::detail::elementwise_op<F, Out, In...>::tile;
  CAPTURE(sizeof(Out), arrays, tile);
  for (const std::size_t n : {std::size_t{0}, std::size_t{1}, std::size_t{2}, std::size_t{15}, std::size_t{17},
                              tile - 1, tile, tile + 1, 3 * tile - 1, 3 * tile + 5}) {
    CAPTURE(n);
    check_one<Out, In...>(f, n, {}, which);
  }
  // One array after the other off its alignment, then all of them alike.
  const std::size_t most = giwa_test::small_mode() ? 2 : 15;
  for (std::size_t offset = 1; offset <= most; ++offset)
    for (std::size_t array = 0; array <= arrays; ++array) {
      std::size_t offsets[arrays] = {};
      for (std::size_t a = 0; a < arrays; ++a)
        if (a == array || array == arrays) offsets[a] = offset;
      CAPTURE(offset, array);
      check_one<Out, In...>(f, 2 * tile + 37, offsets, which);
    }
}

}  // namespace

TEST_CASE("one type: fp16, bf16, float, double, int8, int64") {
  check<__half, __half, __half>(sum_and_one<float>{});
  check<__nv_bfloat16, __nv_bfloat16, __nv_bfloat16>(sum_and_one<float>{});
  check<float, float, float>(sum_and_one<float>{});
  check<double, double, double>(sum_and_one<double>{});
  check<signed char, signed char, signed char>(sum_and_one<int>{});
  check<int64, int64, int64>(sum_and_one<int64>{});
}

TEST_CASE("types of different widths") {
  check<__half, float>(sum_and_one<float>{});
  check<float, __half>(sum_and_one<float>{});
  check<double, double, char>(sum_and_one<double>{});
  check<signed char, double>(sum_and_one<int>{});
  check<double, float, __half, signed char>(sum_and_one<double>{});
}

TEST_CASE("no input, one, three") {
  check<float>(sum_and_one<float>{});
  check<__half>(sum_and_one<float>{});
  check<short, short>(sum_and_one<int>{});
  check<float, float, float, float>(sum_and_one<float>{});
}

TEST_CASE("structures") {
  check<triple, triple, triple>(add_triples{});
  check<pixel, pixel, float>(to_pixel{});
}

TEST_CASE("in place") {
  const giwa::stream s = giwa_test::new_stream();
  for (const std::size_t n : {1u, 4096u, 10007u})
    for (const std::size_t offset : {0u, 1u}) {
      CAPTURE(n, offset);
      const std::vector<float> a = input<float>(n, 0), b = input<float>(n, 1);
      guarded<float> x(n, offset), y(n, 0);
      x.set(a);
      y.set(b);
      REQUIRE(for_all(s, elementwise{x.view(), x.view(), y.view()}, sum_and_one<float>{}).ok());
      REQUIRE(for_all(s, elementwise{x.view(), y.view(), x.view(), x.view()}, sum_and_one<float>{}).ok());
      REQUIRE(giwa::synchronize(s).ok());
      std::vector<float> expected(n);
      for (std::size_t i = 0; i < n; ++i) expected[i] = 2 * (a[i] + b[i] + 1) + b[i] + 1;
      CHECK(x.holds(expected));
      CHECK(y.holds(b));
    }
}

TEST_CASE("views of any rank, and device arrays") {
  const giwa::stream s = giwa_test::new_stream();
  std::vector<float> host(24);
  for (std::size_t i = 0; i < host.size(); ++i) host[i] = static_cast<float>(i);
  auto a = giwa::throw_if_failed(giwa::to_device(s, host));
  auto c = giwa::throw_if_failed(giwa::device_array<double>::allocate(s, 24));
  const tensor_view<float, 3> cube(a.data(), {2, 3, 4});
  REQUIRE(for_all(s, elementwise{c, a, cube}, sum_and_one<double>{}).ok());
  std::vector<double> back(24);
  REQUIRE(giwa::to_host(s, c, back).ok());
  for (std::size_t i = 0; i < back.size(); ++i) CHECK(back[i] == 2.0 * static_cast<double>(i) + 1);
}

TEST_CASE("fill sets every element and no other") {
  const giwa::stream s = giwa_test::new_stream();
  for (const std::size_t n : {0, 1, 7, 1000003}) {
    const guarded<__half> x(n, 3);
    REQUIRE(giwa::fill(s, x.view(), __float2half(-1.5f)).ok());
    REQUIRE(giwa::synchronize(s).ok());
    CHECK(x.holds(std::vector<__half>(n, __float2half(-1.5f))));
  }
  auto array = giwa::throw_if_failed(giwa::device_array<double>::allocate(s, 24));
  REQUIRE(giwa::fill(s, array, 3).ok());
  std::vector<double> back(24);
  REQUIRE(giwa::to_host(s, array, back).ok());
  CHECK(back == std::vector<double>(24, 3));
  float of_host[4] = {};
  CHECK_FALSE(giwa::fill(s, tensor_view<float, 1>(of_host, {4}), 1).ok());
}

TEST_CASE("arrays that the GPU cannot use are refused by name") {
  const giwa::stream s = giwa_test::new_stream();
  const gpu_array<float> memory(100);
  const tensor_view<float, 1> x(memory.data(), {50}), shifted(memory.data() + 1, {50}), rest(memory.data() + 50, {50});
  const tensor_view<float, 2> strided(memory.data(), {5, 10}, {20, 1});
  const auto refused = [&](const status& state, const char* argument) {
    INFO(giwa::format_status(state).c_str());
    const bool next_works = for_all(s, elementwise{x, rest}, sum_and_one<float>{}).ok();
    return state.code == giwa::status_code::invalid_argument && state.argument == std::string(argument) && next_works &&
           giwa_test::no_error_left();
  };
  const auto f = sum_and_one<float>{};
  CHECK(refused(for_all(s, elementwise{x, shifted}, f), "in"));
  CHECK(refused(for_all(s, elementwise{strided, rest}, f), "out"));
  CHECK(refused(for_all(s, elementwise{rest, strided}, f), "in"));
  CHECK(refused(for_all(s, elementwise{x, tensor_view<float, 1>(memory.data() + 50, {49})}, f), "in"));
  CHECK(refused(for_all(s, elementwise{tensor_view<float, 1>(nullptr, {50}), x}, f), "out"));

  std::vector<float> on_host(50, 2.0f);
  if (giwa_test::device_attribute(cudaDevAttrPageableMemoryAccess) == 0) {
    CHECK(refused(for_all(s, elementwise{on_host, x}, f), "out"));
    CHECK(refused(for_all(s, elementwise{x, on_host}, f), "in"));
    CHECK(refused(for_all(s, elementwise{x, rest, on_host}, f), "in"));
    CHECK(on_host == std::vector<float>(50, 2.0f));
  } else if (!giwa_test::small_mode()) {  // memory of the host that compute-sanitizer need not know
    REQUIRE(for_all(s, elementwise{x, on_host}, f).ok());
    REQUIRE(for_all(s, elementwise{on_host, x}, f).ok());
    REQUIRE(giwa::synchronize(s).ok());
    CHECK(on_host == std::vector<float>(50, 4.0f));
  }

  // Pinned memory has an address on the device.
  float* pinned = nullptr;
  giwa_test::check_cuda(cudaMallocHost(&pinned, 50 * sizeof(float)));
  for (int i = 0; i < 50; ++i) pinned[i] = static_cast<float>(i);
  REQUIRE(for_all(s, elementwise{x, std::span<const float>(pinned, 50)}, f).ok());
  REQUIRE(giwa::synchronize(s).ok());
  CHECK(memory.to_host()[49] == 50.0f);
  giwa_test::check_cuda(cudaFreeHost(pinned));
}

TEST_CASE("more than 2^31 elements in one call") {
  if (giwa_test::small_mode()) return;
  const giwa::stream s = giwa_test::new_stream();
  const int64 n = (int64{1} << 31) + 12345;
  const gpu_array<signed char> x(static_cast<std::size_t>(n), 3);
  REQUIRE(for_all(s,
                  elementwise{tensor_view<signed char, 1>(x.data(), {n}), tensor_view<signed char, 1>(x.data(), {n})},
                  sum_and_one<int>{})
              .ok());
  const std::vector<signed char> back = x.to_host();
  int64 wrong = 0;
  for (const signed char value : back) wrong += value != 4 ? 1 : 0;
  CHECK(wrong == 0);
}
