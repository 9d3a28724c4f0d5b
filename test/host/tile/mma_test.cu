// SPDX-License-Identifier: MIT
// Products of shared tiles on the host executor, and the bank conflicts of their reads.
#include <algorithm>

#include <giwa/host_executor.cuh>

#include "bank_model.hpp"
#include "mma_cases.cuh"

using namespace giwa_test;

namespace {

struct on_the_host {
  template <class Op>
  bool run(const Op& op, const std::vector<float>& a, const std::vector<float>& b, std::vector<float>& d) const {
    return giwa::launch(giwa::host, {.block = Op::max_threads}, op, {a.data(), b.data(), d.data()}).ok();
  }
};

// The most turns of a warp that reads `bytes` bytes of each of its threads' rows of a, or runs of b.
template <class Multiplied>
int turns_of_a(int bytes) {
  using map = typename Multiplied::map;
  int most = 0;
  for (int first = 0; first < map::threads; first += 32)
    for (int slot = 0; slot < map::rows; ++slot) {
      std::vector<int> offsets;
      for (int thread = first; thread < first + 32; ++thread)
        offsets.push_back(Multiplied::tile_a::placement::offset(map::row(thread, slot), 0) *
                          static_cast<int>(sizeof(typename Multiplied::left)));
      most = std::max(most, turns(offsets, bytes));
    }
  return most;
}
template <class Multiplied>
int turns_of_b(int run) {
  using map = typename Multiplied::map;
  constexpr int size = static_cast<int>(sizeof(typename Multiplied::right));
  int most = 0;
  for (int first = 0; first < map::threads; first += 32)
    for (int i = 0; i < map::columns; i += run) {
      std::vector<int> offsets;
      for (int thread = first; thread < first + 32; ++thread)
        offsets.push_back(Multiplied::tile_b::placement::offset(0, map::column(thread, i)) * size);
      most = std::max(most, turns(offsets, run * size));
    }
  return most;
}

// The same of a warp that reads 8 bytes of each of its threads' rows of b, whose rows and columns are exchanged.
template <class Multiplied>
int turns_of_rows_of_b() {
  using map = typename Multiplied::map;
  int most = 0;
  for (int first = 0; first < map::threads; first += 32)
    for (int i = 0; i < map::columns; ++i) {
      std::vector<int> offsets;
      for (int thread = first; thread < first + 32; ++thread)
        offsets.push_back(Multiplied::tile_b::placement::offset(map::column(thread, i), 0) *
                          static_cast<int>(sizeof(typename Multiplied::right)));
      most = std::max(most, turns(offsets, 8));
    }
  return most;
}

}  // namespace

TEMPLATE_LIST_TEST_CASE("tiles are multiplied on the host executor", "", all_multiplied) {
  check_products<TestType>(on_the_host{});
}

TEST_CASE("the matrix product's tiles are read without bank conflicts") {
  using large_fp32 = std::tuple_element_t<0, all_multiplied>;
  using large_fp16 = std::tuple_element_t<1, all_multiplied>;
  using small_bf16 = std::tuple_element_t<2, all_multiplied>;
  using small_fp32 = std::tuple_element_t<3, all_multiplied>;
  CHECK(turns_of_a<large_fp32>(8) == 1);
  CHECK(turns_of_b<large_fp32>(4) == 1);
  CHECK(turns_of_a<large_fp16>(8) == 1);
  CHECK(turns_of_b<large_fp16>(8) == 1);
  CHECK(turns_of_a<small_bf16>(8) == 1);
  CHECK(turns_of_b<small_bf16>(2) == 1);
  CHECK(turns_of_a<small_fp32>(8) == 1);
  CHECK(turns_of_b<small_fp32>(2) == 1);
  using eight_rows = std::tuple_element_t<9, all_multiplied>;
  using sixteen_rows = std::tuple_element_t<10, all_multiplied>;
  CHECK(turns_of_a<eight_rows>(8) == 1);
  CHECK(turns_of_rows_of_b<eight_rows>() == 1);
  CHECK(turns_of_a<sixteen_rows>(8) == 1);
  CHECK(turns_of_rows_of_b<sixteen_rows>() == 1);
  // This one is read with conflicts: so the model sees them.
  using narrow = multiplied<float, float, threads_of<64, 64, 16, 4, 4>, 32>;
  CHECK(turns_of_a<narrow>(8) == 4);
}
