// SPDX-License-Identifier: MIT
// append_to_cache: a prefill compared with a device-to-device copy of as many bytes, and decode batches in a graph.
#include <giwa/cache.cuh>
#include <giwa/host.hpp>

#include <cmath>
#include <cstring>
#include <numeric>

#include "graph.hpp"

namespace {

using giwa::bf16;
using giwa::int64;
using giwa::tensor_view;

constexpr int64 kv_heads = 8, size = 128;

/// A call: new rows of each sequence, at the end of `length` keys; pages of 16 in random order.
struct shape {
  int64 sequences, rows, length, heads;  // heads of q, or 0
  static constexpr int64 page = 16;

  int64 all_rows() const { return sequences * rows; }
  int64 most() const { return giwa::ceil_div(length, page); }
  int64 pages() const { return sequences * most(); }
  int64 new_elements() const { return all_rows() * kv_heads * size; }
  int64 q_elements() const { return all_rows() * heads * size; }
  int64 cache_elements() const { return pages() * page * kv_heads * size; }
  /// Read and written.
  double bytes(int64 of_cache) const {
    return static_cast<double>(2 * new_elements() * (2 + of_cache) + q_elements() * 4);
  }
};

/// The memory of a call: vectors on the host, arrays on the device.
template <class Element, template <class> class Memory>
struct buffers {
  Memory<bf16> k_new, v_new, q;
  Memory<Element> k, v;
  Memory<int> indices, lengths;
  Memory<float> cos, sin, scale;
};
template <class T>
using host_memory = std::vector<T>;

template <class Element>
buffers<Element, host_memory> make(const shape& s) {
  buffers<Element, host_memory> b;
  const giwa::philox random(2026);
  const auto fill = [&](std::vector<bf16>& x, int64 n) {
    x.resize(static_cast<std::size_t>(n));
    for (std::size_t i = 0; i < x.size(); ++i) x[i] = giwa::convert<bf16>{}(4 * random.uniform<float>(i) - 2);
  };
  fill(b.k_new, s.new_elements());
  fill(b.v_new, s.new_elements());
  fill(b.q, s.q_elements());
  b.k.resize(static_cast<std::size_t>(s.cache_elements()));
  b.v.resize(b.k.size());
  std::memset(static_cast<void*>(b.k.data()), 0, b.k.size() * sizeof(Element));
  std::memset(static_cast<void*>(b.v.data()), 0, b.v.size() * sizeof(Element));
  b.indices.resize(static_cast<std::size_t>(s.pages()));
  std::iota(b.indices.begin(), b.indices.end(), 0);
  for (std::size_t i = b.indices.size(); i > 1; --i) std::swap(b.indices[i - 1], b.indices[random(i).word[0] % i]);
  b.lengths.assign(static_cast<std::size_t>(s.sequences), static_cast<int>(s.length));
  for (int64 position = 0; position < s.length; ++position)
    for (int pair = 0; pair < size / 2; ++pair) {
      const double angle = static_cast<double>(position) * std::pow(10000.0, -2.0 * pair / size);
      b.cos.push_back(static_cast<float>(std::cos(angle)));
      b.sin.push_back(static_cast<float>(std::sin(angle)));
    }
  b.scale.assign(1, 0.05f);
  return b;
}
template <class Element>
buffers<Element, giwa::device_array> on_device(const buffers<Element, host_memory>& b) {
  const auto copy = [](const auto& x) { return bench::require(giwa::to_device(nullptr, x)); };
  return {copy(b.k_new),   copy(b.v_new),   copy(b.q),   copy(b.k),   copy(b.v),
          copy(b.indices), copy(b.lengths), copy(b.cos), copy(b.sin), copy(b.scale)};
}

enum class rotation_by { nothing, base, table };

template <class Element, template <class> class Memory, class Where>
giwa::status append(const Where& where, const shape& s, buffers<Element, Memory>& b, rotation_by how) {
  giwa::kv_cache<Element> cache{.k = {b.k.data(), {s.pages(), s.page, kv_heads, size}},
                                .v = {b.v.data(), {s.pages(), s.page, kv_heads, size}},
                                .pages = {.indices = b.indices.data(), .stride = s.most(), .most = s.most()},
                                .lengths = b.lengths.data(),
                                .sequences = s.sequences};
  if constexpr (sizeof(Element) == 1) cache.scales.k = cache.scales.v = {b.scale.data(), {1, 1, 1}};
  const giwa::index<4> sizes{s.sequences, s.rows, kv_heads, size};
  const tensor_view<const bf16, 4> k_new(b.k_new.data(), sizes), v_new(b.v_new.data(), sizes);
  giwa::append_options<bf16> options;
  if (s.heads > 0) {
    const tensor_view<bf16, 4> q(b.q.data(), {s.sequences, s.rows, s.heads, size});
    options.q = q;
    options.q_to = q;
  }
  const giwa::index<2> table{s.length, size / 2};
  switch (how) {
    case rotation_by::nothing: return giwa::append_to_cache(where, cache, k_new, v_new, giwa::no_rotary{}, options);
    case rotation_by::base:
      return giwa::append_to_cache(where, cache, k_new, v_new, giwa::rotary_base(10000, {size}), options);
    default:
      return giwa::append_to_cache(where, cache, k_new, v_new,
                                   giwa::rotary_table(tensor_view<const float, 2>(b.cos.data(), table),
                                                      tensor_view<const float, 2>(b.sin.data(), table)),
                                   options);
  }
}

/// Ends the program unless a call on the device writes what a call on the host does.
template <class Element>
void verify(const shape& s, buffers<Element, host_memory> host, rotation_by how) {
  auto device = on_device(host);
  bench::require(append(giwa::host, s, host, how));
  bench::require(append(cudaStream_t{nullptr}, s, device, how));
  const auto same = [](const auto& expected, const auto& array) {
    auto got = expected;
    bench::require(giwa::to_host(nullptr, array, got));
    return std::memcmp(got.data(), expected.data(), got.size() * sizeof got[0]) == 0;
  };
  if (same(host.k, device.k) && same(host.v, device.v) && same(host.q, device.q)) return;
  std::fprintf(stderr, "append: the device does not write what the host does\n");
  std::exit(1);
}

constexpr rotation_by kinds[] = {rotation_by::nothing, rotation_by::base, rotation_by::table};

template <class Element>
std::shared_ptr<void> prepare_prefill(std::vector<bench::contest::contender>& contenders, const shape& s, int sets) {
  using arrays = buffers<Element, giwa::device_array>;
  struct set_of_buffers {
    arrays b;
    giwa::device_array<char> from, to;
  };
  shape part = s;  // of which the CPU does as much in a moment
  part.rows = 128;
  for (const rotation_by how : kinds) verify(part, make<Element>(part), how);
  const auto host = make<Element>(s);
  const auto bytes = static_cast<std::size_t>(s.bytes(sizeof(Element)) / 2);
  const auto data = std::make_shared<std::vector<set_of_buffers>>();
  for (int i = 0; i < sets; ++i) {
    data->push_back({on_device(host), bench::require(giwa::device_array<char>::allocate(nullptr, bytes)),
                     bench::require(giwa::device_array<char>::allocate(nullptr, bytes))});
    bench::require(cudaMemsetAsync(data->back().from.data(), 1, bytes, nullptr));
  }
  std::vector<set_of_buffers>& d = *data;
  contenders[0].run = [&d, bytes](int set) {
    auto& own = d[static_cast<std::size_t>(set)];
    bench::require(cudaMemcpyAsync(own.to.data(), own.from.data(), bytes, cudaMemcpyDeviceToDevice, nullptr));
  };
  for (std::size_t i = 0; i < 3; ++i)
    contenders[i + 1].run = [&d, s, how = kinds[i]](int set) {
      bench::require(append(cudaStream_t{nullptr}, s, d[static_cast<std::size_t>(set)].b, how));
    };
  return data;
}

template <class Element>
void add_prefill(const char* type, const shape& s) {
  bench::contest::add(std::make_shared<bench::contest>(
      "append/prefill/" + std::string(type) + "/" + std::to_string(s.all_rows()) + "x" + std::to_string(s.heads) + "q",
      std::vector<bench::contest::contender>{
          {"copy", "copy"}, {"giwa_plain", "copy"}, {"giwa_base", "copy"}, {"giwa_table", "copy"}},
      2, 4, s.bytes(sizeof(Element)), bench::device_seconds,
      [s](std::vector<bench::contest::contender>& c) { return prepare_prefill<Element>(c, s, 2); }));
}

__global__ void __launch_bounds__(256) nothing() {}

constexpr int calls_of_graph = 20;

template <class Element>
std::shared_ptr<void> prepare_decode(std::vector<bench::contest::contender>& contenders, const shape& s) {
  struct everything {
    buffers<Element, giwa::device_array> b;
    std::vector<std::unique_ptr<bench::graph>> graphs;
  };
  const auto host = make<Element>(s);
  for (const rotation_by how : kinds) verify(s, host, how);
  const auto data = std::make_shared<everything>(everything{on_device(host), {}});
  data->graphs.push_back(std::make_unique<bench::graph>(calls_of_graph, [](cudaStream_t stream, int) {
    bench::require(giwa::launch(stream, {.grid = 1, .block = 256}, nothing));
  }));
  for (const rotation_by how : kinds)
    data->graphs.push_back(std::make_unique<bench::graph>(
        calls_of_graph, [&](cudaStream_t stream, int) { bench::require(append(stream, s, data->b, how)); }));
  for (std::size_t i = 0; i < contenders.size(); ++i)
    contenders[i].run = [g = data->graphs[i].get()](int) { g->launch(); };
  return data;
}

/// Times of a call in a graph of 20; new rows and cache are in the L2 cache, as after the product that makes them.
template <class Element>
void add_decode(const char* type, const shape& s) {
  bench::contest::add(std::make_shared<bench::contest>(
      "append/decode/" + std::string(type) + "/" + std::to_string(s.sequences) + "/in_a_graph",
      std::vector<bench::contest::contender>{{"empty_kernel", "empty_kernel"},
                                             {"giwa_plain", "empty_kernel"},
                                             {"giwa_base", "empty_kernel"},
                                             {"giwa_table", "empty_kernel"}},
      1, 10, 0.0, bench::graph_seconds(calls_of_graph),
      [s](std::vector<bench::contest::contender>& c) { return prepare_decode<Element>(c, s); }));
}

}  // namespace

int main(int argc, char** argv) {
  return bench::run(argc, argv, [] {
    add_prefill<bf16>("bf16", {4, 4096, 4096, 0});
    add_prefill<bf16>("bf16", {4, 4096, 4096, 32});
    add_prefill<giwa::e4m3>("e4m3", {4, 4096, 4096, 0});
    add_prefill<giwa::e4m3>("e4m3", {4, 4096, 4096, 32});
    for (const int64 batch : {1, 64, 256}) {
      add_decode<bf16>("bf16", {batch, 1, 1024, 32});
      add_decode<giwa::e4m3>("e4m3", {batch, 1, 1024, 32});
    }
  });
}
