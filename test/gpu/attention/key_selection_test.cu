// SPDX-License-Identifier: MIT
// attention_cached on a GPU with lists of keys, in rows of 16 bits and of 656 bytes, against the reference. GIWA_TEST_DRAWS is how many
// problems are drawn, from GIWA_TEST_FIRST_DRAW on.
#include "gpu/attention/cached_gpu.cuh"
#include "gpu/attention/late_copies.cuh"
#include "support/catch.hpp"
#include "support/selection_case.hpp"

using namespace giwa_test;
using giwa::bf16;
using giwa::fp16;

namespace {

/// A case in a GPU's memory.
template <class T, class Element, class O>
struct selection_on_gpu {
  selection_case<T, Element, O>& on_host;
  cached_on_gpu<T, Element, O> keys{on_host.keys};
  gpu_array<int> indices{on_host.indices}, counts{on_host.counts}, table{on_host.table}, lengths{on_host.lengths},
      q_offsets{on_host.q_offsets};

  explicit selection_on_gpu(selection_case<T, Element, O>& c) : on_host(c) {}
  template <int HeadSize, int HeadSizeV>
  giwa::status run(cudaStream_t s, int64 workspace_bytes) const {
    return on_host.template run<HeadSize, HeadSizeV>(
        s, keys.views(), keys.call_options(workspace_bytes),
        {indices.data(), counts.data(), table.data(), lengths.data(), q_offsets.data()});
  }
};

template <class T, int HeadSize, int HeadSizeV, class Element = T, class O = T>
std::string fault_of(const selection_options& options) {
  using plain = plain_type<T, Element>;
  selection_case<T, Element, O> c(options, HeadSize, HeadSizeV);
  const attention_answers answers = answers_of<plain>(c.keys, giwa::full{}, giwa::plain_score{});
  selection_on_gpu<T, Element, O> gpu(c);
  const giwa::stream s = new_stream();
  std::vector<O> o;
  for (const int64 bytes : {int64{8} << 20, int64{0}, int64{100} << 10}) {
    gpu.keys.clear_outputs();
    const giwa::status state = gpu.template run<HeadSize, HeadSizeV>(s, bytes);
    if (!state.ok()) return giwa::format_status(state).c_str() + ("; " + c.keys.options.text());
    gpu.keys.read_back();
    if (!o.empty() && !same_bits(c.keys.o.memory, o))
      return "other bits with a workspace of " + std::to_string(bytes) + " bytes; " + c.keys.options.text();
    if (o.empty())
      if (const std::string failure = judge<plain>(c.keys, answers).failure; !failure.empty())
        return failure + ", page " + std::to_string(options.page_size);
    o = c.keys.o.memory;
  }
  return "";
}

selection_options drawn(int i) {
  selection_options c;
  random_sequence random(static_cast<uint64>(i) + 4000);
  const int64 heads[] = {1, 3, 8, 9, 16, 17, 32, 33, 63, 64, 100, 128};
  c.seed = static_cast<uint64>(i);
  c.heads = heads[random.below(12)];
  if (i % 5 == 3) c.kv_heads = 2, c.heads = 2 * c.heads;
  c.sequences = 1 + random.below(4), c.queries = 1 + random.below(3);
  const int64 most[] = {1, 63, 64, 65, 128, 200, 500, 2048, 2100};
  c.most = most[random.below(small_mode() ? 6 : 9)];
  if (c.most > 1000) c.sequences = 1, c.queries = 1 + random.below(2);
  const int64 rows = c.sequences * c.queries * c.most + 2, pool = i % 2 == 1 ? c.most + 2 : rows;
  for (const int64 page : {64, 16, 13, 7, 5, 3, 2})
    if (pool % page == 0 && random.below(3) != 0) c.page_size = page;
  c.names = random.below(2) == 0 ? giwa::key_numbers::pool_rows : giwa::key_numbers::sequence_keys;
  c.packed = random.below(3) == 0;
  c.sinks = random.below(4) == 0;
  c.lse = random.below(5) != 0;
  c.counts = random.below(3) != 0;
  c.strange = random.below(4) == 0 ? 0 : random.below(8) == 0 ? 1 : 3;
  return c;
}
std::string fault_of_draw(int i) {
  const selection_options c = drawn(i);
  std::string fault;
  switch (i % 4) {
    case 0: fault = fault_of<bf16, 576, 512>(c); break;
    case 1: fault = fault_of<bf16, 576, 512, giwa::rows_656>(c); break;
    case 2: fault = fault_of<fp16, 576, 512, giwa::rows_656, float>(c); break;
    default: fault = fault_of<fp16, 128, 128>(c);
  }
  return fault.empty() ? "" : "draw " + std::to_string(i) + ": " + fault;
}

}  // namespace

TEST_CASE("drawn lists of keys") {
  const int first = number_of("GIWA_TEST_FIRST_DRAW", 0), count = number_of("GIWA_TEST_DRAWS", small_mode() ? 12 : 64);
  int faults = 0;
  for (int i = first; i < first + count && faults < 5; ++i) {
    const std::string fault = fault_of_draw(i);
    CHECK(fault == "");
    faults += fault.empty() ? 0 : 1;
  }
}

TEST_CASE("lists that the kernel before the call writes late") {
  for (const int64 heads : {16, 128}) {
    selection_options options;
    options.heads = heads, options.most = 200, options.queries = 2;
    options.names = heads == 16 ? giwa::key_numbers::sequence_keys : giwa::key_numbers::pool_rows;
    selection_case<bf16> c(options, 576, 512);
    selection_on_gpu<bf16, bf16, bf16> gpu(c);
    const giwa::stream s = new_stream();
    gpu.keys.clear_outputs();
    giwa::throw_if_failed(gpu.run<576, 512>(s, int64{8} << 20));
    const std::vector<bf16> o = gpu.keys.o.to_host();
    const gpu_array<int> indices(c.indices), counts(c.counts), table(c.table), lengths(c.lengths);
    for (const int before : {0, -1, 2147483647}) {
      for (const gpu_array<int>* x : {&gpu.indices, &gpu.counts, &gpu.table, &gpu.lengths}) {
        const std::vector<int> other(x->bytes() / 4, before);
        check_cuda(cudaMemcpy(x->data(), other.data(), x->bytes(), cudaMemcpyHostToDevice));
      }
      gpu.keys.clear_outputs();
      check_cuda(cudaDeviceSynchronize());
      launch_late_copies(s, {{late(gpu.indices, indices), late(gpu.counts, counts), late(gpu.table, table),
                              late(gpu.lengths, lengths)}});
      giwa::throw_if_failed(gpu.run<576, 512>(s, int64{8} << 20));
      CHECK(same_bits(gpu.keys.o.to_host(), o));
    }
  }
}
