// SPDX-License-Identifier: MIT
// The transpose and the stencil of the examples on the host executor, and the bank conflicts of the transpose's layout.
#include <giwa/host_executor.cuh>

#include <algorithm>
#include <string_view>

#include "bank_model.hpp"
#include "support/environment.hpp"
#include "transpose_cases.cuh"

using namespace giwa_test;

namespace {

struct on_the_host {
  template <class T, class Call>
  bool run(const std::vector<T>& in, std::vector<T>& out, const Call& call) const {
    return call(giwa::host, in.data(), out.data()).ok();
  }
};

// Fewer cases where a sanitizer watches.
int cases(int all) { return small_mode() ? all / 8 : all; }

// The most turns that a warp takes to write the turned squares to the tile, and to read its rows.
template <class Op>
int turns_to_write() {
  using tile = decltype(Op::shared_storage::tile);
  int most = 0;
  for (int first = 0; first < Op::max_threads; first += 32)
    for (int j = 0; j < Op::side; ++j) {
      std::vector<int> offsets;
      for (int rank = first; rank < first + 32; ++rank) {
        const int row = rank / (Op::columns / Op::side) * Op::side, column = rank % (Op::columns / Op::side) * Op::side;
        offsets.push_back(tile::placement::offset(column + j, row) *
                          static_cast<int>(sizeof(typename tile::value_type)));
      }
      most = std::max(most, turns(offsets, 16));
    }
  return most;
}
template <class Op>
int turns_to_read() {
  using tile = decltype(Op::shared_storage::tile);
  int most = 0;
  for (int first = 0; first < tile::rows * tile::columns / Op::side; first += 32) {
    std::vector<int> offsets;
    for (int at = first; at < first + 32; ++at)
      offsets.push_back(tile::placement::offset(at / (Op::rows / Op::side), at % (Op::rows / Op::side) * Op::side) *
                        static_cast<int>(sizeof(typename tile::value_type)));
    most = std::max(most, turns(offsets, 16));
  }
  return most;
}

}  // namespace

TEST_CASE("matrices are transposed on the host executor") {
  check_transpose<giwa::uint32>(on_the_host{}, cases(120), 200);
  check_transpose<unsigned short>(on_the_host{}, cases(120), 300);
}

TEST_CASE("the transpose's tiles are written and read without bank conflicts") {
  CHECK(turns_to_write<tiled::packet_transpose<float, 64, 64>>() == 1);
  CHECK(turns_to_read<tiled::packet_transpose<float, 64, 64>>() == 1);
  CHECK(turns_to_write<tiled::packet_transpose<unsigned short, 128, 128>>() == 1);
  CHECK(turns_to_read<tiled::packet_transpose<unsigned short, 128, 128>>() == 1);
}

TEST_CASE("a transpose refuses sizes that do not agree") {
  float x[64] = {};
  const giwa::tensor_view<const float, 2> in{x, {4, 5}};
  const giwa::status rows = tiled::transpose(giwa::host, in, giwa::tensor_view<float, 2>{x + 32, {4, 4}});
  CHECK((std::string_view(rows.argument) == "out" && rows.expected == 5 && rows.got == 4));
  CHECK_FALSE(tiled::transpose(giwa::host, in, giwa::tensor_view<float, 2>{x + 32, {5, 5}}).ok());
  CHECK_FALSE(tiled::transpose(giwa::host, in, giwa::tensor_view<float, 2>{nullptr, {5, 4}}).ok());
  const giwa::index<2> far{int64{1} << 31, int64{1} << 31}, still{0, 0};
  CHECK_FALSE(tiled::transpose(giwa::host, giwa::tensor_view<const float, 2>{x, far, still},
                               giwa::tensor_view<float, 2>{x + 32, far, still})
                  .ok());  // more tiles than a grid has blocks
}

TEST_CASE("staged sweeps are plain sweeps, bit by bit, on the host executor") {
  check_sweeps<1>(on_the_host{}, cases(40), 150);
  check_sweeps<4>(on_the_host{}, cases(60), 280);
  check_sweeps<8>(on_the_host{}, cases(40), 280);
}

TEST_CASE("a sweep refuses grids that do not agree") {
  float x[64] = {};
  const giwa::status s = tiled::sweep<1>(giwa::host, giwa::tensor_view<const float, 2>{x, {4, 5}},
                                         giwa::tensor_view<float, 2>{x + 32, {4, 6}});
  CHECK((std::string_view(s.argument) == "out" && s.expected == 5 && s.got == 6));
}
