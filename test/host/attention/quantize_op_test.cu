// SPDX-License-Identifier: MIT
// The kernels of quantize on the host executor: against double precision, by vectors and by elements.
#include <giwa/host.hpp>
#include <giwa/host_executor.cuh>
#include <giwa/quantize.cuh>

#include "host/attention/quantize_cases.hpp"
#include "support/catch.hpp"

using namespace giwa_test;
using giwa::bf16;
using giwa::e4m3;
using giwa::fast_divisor;

namespace {

// Fewer blocks than there is work for: each goes round more than once.
template <class Op>
std::string run(const typename Op::params& p) {
  const giwa::status s = giwa::launch(giwa::host, {.grid = 2, .block = 64}, Op{}, p);
  return s.ok() ? "" : giwa::format_status(s).c_str();
}

template <int Count>
struct on_executor {
  int* calls;

  template <class T, class Code>
  std::string operator()(quantize_data<T, Code>& data) const {
    using namespace giwa::detail;
    const tensor_view<const T, 4> x = data.x.view();
    const auto codes = data.codes.view();
    const bool k_major = codes_of<Code> == 1 && data.options.k_major && data.options.offset % 4 == 0;
    if (!rows_are_aligned(x, Count * int64{sizeof(T)}) ||
        !(k_major || rows_are_aligned(codes, Count / codes_of<Code>))) {
      const giwa::status s = data.call(giwa::host, data.x.memory.data(), data.codes.memory.data(),
                                       data.scales.memory.data(), data.channel.memory.data());
      return s.ok() ? "" : giwa::format_status(s).c_str();
    }
    *calls += 1;
    const int runs = static_cast<int>(x.extent(3)) / Count;
    if (data.options.rows == channels) {
      using first = quantize_channels_op<T, Code, Count, false>;
      using second = quantize_channels_op<T, Code, Count, true>;
      const clear_scales<2> clear{data.channel.view()};
      for (int64 head = 0; head < x.extent(2); ++head)
        for (int64 i = 0; i < x.extent(3); ++i) clear({head, i});
      auto of = first::params_of({x, codes, data.channel.view(), fast_divisor(runs)});
      of.chunk = 16, of.chunks = fast_divisor(giwa::ceil_div(x.extent(1), of.chunk));  // several for each run
      if (const std::string error = run<first>(of); !error.empty()) return error;
      if constexpr (codes_of<Code> == 1) {
        using columns = quantize_k_major_op<head_channels<T, Code>, T, Code, Count>;
        if (k_major) return run<columns>(columns::params_of(of.call));
      }
      return run<second>({of.call, of.tiles, of.chunks, of.chunk});
    }
    const int all = static_cast<int>(x.extent(1));
    const int rows = data.options.rows == 0 ? all : std::min(data.options.rows, all);
    row_groups<T, Code> p{
        x,    codes, data.scales.view(), rows, runs, fast_divisor(x.extent(2)), fast_divisor(giwa::ceil_div(all, rows)),
        rows, {}};
    // Every kernel takes groups of every size.
    if (*calls % 3 == 0 && !k_major) return run<quantize_rows_op<T, Code, Count, 2>>(p);
    if (*calls % 3 == 1 && !k_major) return run<quantize_blocks_op<T, Code, Count, 4, quantize_pass::all>>(p);
    p.chunk_rows = 3, p.chunks = fast_divisor(giwa::ceil_div(rows, 3));
    const clear_scales<3> clear{data.scales.view()};
    for (int64 b = 0; b < x.extent(0); ++b)
      for (int64 group = 0; group < p.groups.divisor(); ++group)
        for (int64 head = 0; head < x.extent(2); ++head) clear({b, group, head});
    if (const std::string error = run<quantize_blocks_op<T, Code, Count, 4, quantize_pass::raise_scale>>(p);
        !error.empty())
      return error;
    if constexpr (codes_of<Code> == 1) {
      using columns = quantize_k_major_op<row_groups<T, Code>, T, Code, Count>;
      if (k_major) return run<columns>(columns::params_of(p));
    }
    return run<quantize_blocks_op<T, Code, Count, 4, quantize_pass::write_codes>>(p);
  }
};

}  // namespace

TEST_CASE("the kernels of quantize find scales and write codes") {
  int vectors = 0, elements = 0;
  CHECK(quantize_fault<bf16, e4m3>(on_executor<8>{&vectors}) == "");
  ++vectors;  // another kernel for each case
  CHECK(quantize_fault<bf16, int8_code>(on_executor<8>{&vectors}) == "");
  CHECK(quantize_fault<bf16, int4_pair>(on_executor<8>{&vectors}) == "");
  CHECK(quantize_fault<float, e4m3>(on_executor<4>{&vectors}) == "");
  CHECK(vectors > 80);  // the others have sizes or gaps that vectors do not fit
  CHECK(quantize_fault<bf16, e4m3>(on_executor<1>{&elements}) == "");
  CHECK(elements == static_cast<int>(quantize_cases().size()));
}
