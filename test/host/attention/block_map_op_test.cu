// SPDX-License-Identifier: MIT
// The kernels of make_block_map on the host executor, against loops over the scores.
#include <giwa/block_map.cuh>
#include <giwa/host_executor.cuh>

#include "host/attention/block_map_cases.hpp"
#include "support/catch.hpp"

using namespace giwa_test;

namespace {

struct on_executor {
  template <class Source>
  giwa::status operator()(const Source& source, const giwa::block_map& map) const {
    if (const giwa::status s = run<giwa::detail::write_block_bits>(source, map); !s.ok()) return s;
    if (const giwa::status s = run<giwa::detail::write_block_columns>(source, map); !s.ok()) return s;
    return run<giwa::detail::write_column_counts>(source, map);
  }

 private:
  template <class Step, class Source>
  static giwa::status run(const Source& source, const giwa::block_map& map) {
    using op = giwa::detail::block_map_op<Source, Step>;
    // Fewer warps than tasks: some go round more than once.
    return giwa::launch(giwa::host, {.grid = 2, .block = op::max_threads}, op{}, {map, source});
  }
};

}  // namespace

TEST_CASE("the kernels of make_block_map write the blocks of each source") {
  CHECK(block_map_failures(on_executor{}) == "");
}

TEST_CASE("warps count the entries of lists that are out of range") {
  block_case c({.queries = 20, .keys = 40, .block_queries = 4, .block_keys = 4}, 2);
  std::vector<int> counts{3, -2, 90, 0, 40}, indices(5 * 40, 10);
  indices[0] = 3, indices[40] = 1, indices[80 + 39] = 9, indices[160 + 35] = -1, indices[160 + 36] = 0;
  int errors = 0;
  c.map.errors = &errors;
  const giwa::block_list list{giwa::tensor_view<const int, 3>(counts.data(), {1, 1, 5}),
                              giwa::tensor_view<const int, 4>(indices.data(), {1, 1, 5, 40})};
  REQUIRE(on_executor{}(giwa::block_lists{.partial = list}, c.map).ok());
  CHECK(errors == 2 + 1 + (1 + 39) + 39);
  const giwa::uint32 right[] = {8u, 0, 512u, 0, 1u};
  for (int r = 0; r < 5; ++r) CHECK(c.map.row(0, 0, r)[0].visible == right[r]);
  CHECK(c.map.row(0, 0, 2)[0].full == 0);
}
