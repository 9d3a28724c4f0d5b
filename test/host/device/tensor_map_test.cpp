// SPDX-License-Identifier: MIT
// Tensor maps without a GPU: what the driver's encoder is given for a view, and which views are refused, with the reason.
#include <cuda.h>
#include <cuda_runtime_api.h>

#include <cstdint>
#include <cstring>
#include <string>
#include <vector>

#include "support/catch.hpp"

namespace {

/// What the driver was asked for, in its order: innermost first.
struct encoder_call {
  CUtensorMapDataType type;
  void* address;
  std::vector<cuuint64_t> sizes, strides;  // elements; bytes, without the innermost
  std::vector<cuuint32_t> box, steps;      // elements
  CUtensorMapSwizzle swizzle;
};
encoder_call seen;
CUresult encoder_answer = CUDA_SUCCESS;
enum { has_encoder, lacks_encoder, has_no_driver } driver = has_encoder;

CUresult record(CUtensorMap* map, CUtensorMapDataType type, cuuint32_t rank, void* address, const cuuint64_t* sizes,
                const cuuint64_t* strides, const cuuint32_t* box, const cuuint32_t* steps,
                CUtensorMapInterleave interleave, CUtensorMapSwizzle swizzle, CUtensorMapL2promotion,
                CUtensorMapFloatOOBfill fill) {
  seen = {
      type,   address, {sizes, sizes + rank}, {strides, strides + rank - 1}, {box, box + rank}, {steps, steps + rank},
      swizzle};
  CHECK(reinterpret_cast<std::uintptr_t>(map) % 64 == 0);
  CHECK(interleave == CU_TENSOR_MAP_INTERLEAVE_NONE);
  CHECK(fill == CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE);
  std::memset(static_cast<void*>(map), 0x5a, sizeof *map);
  return encoder_answer;
}

/// In place of the runtime's function of that name.
cudaError_t look_up(const char* symbol, void** function, unsigned, unsigned long long,
                    cudaDriverEntryPointQueryResult* found) {
  CHECK(std::string(symbol) == "cuTensorMapEncodeTiled");
  *function = driver == has_encoder ? reinterpret_cast<void*>(&record) : nullptr;
  *found = driver == has_encoder ? cudaDriverEntryPointSuccess : cudaDriverEntryPointSymbolNotFound;
  return driver == has_no_driver ? cudaErrorInsufficientDriver : cudaSuccess;
}

}  // namespace

#define cudaGetDriverEntryPointByVersion look_up
#include <giwa/device/tensor_map.hpp>
#include <giwa/tile/tile_map.hpp>
#undef cudaGetDriverEntryPointByVersion

using giwa::bf16, giwa::fp16, giwa::int64, giwa::status_code, giwa::swizzle, giwa::tensor_view;

namespace {

alignas(16) unsigned char memory[64];
template <class T>
T* data(int byte = 0) {
  return reinterpret_cast<T*>(memory + byte);
}

template <class T, int Rank>
giwa::status refusal(const giwa::index<Rank>& extents, const giwa::index<Rank>& strides, int byte = 0) {
  const tensor_view<T, Rank> view{data<T>(byte), extents, strides};
  const giwa::status checked = giwa::check_tensor_map(view, "q");
  giwa::index<Rank> box;
  for (int d = 0; d < Rank; ++d) box[d] = 8;
  seen = {};
  const giwa::result<giwa::tensor_map> map = giwa::make_tensor_map(view, box, swizzle::none, "q");
  CHECK(map.state.code == checked.code);
  CHECK((checked.ok() || seen.sizes.empty()));  // the driver is not asked for what is refused
  if (!checked.ok()) CHECK(std::string(checked.argument) == "q");
  return checked;
}

}  // namespace

TEST_CASE("the driver is told of a view from the innermost dimension on") {
  const tensor_view<fp16, 4> view{data<fp16>(), {3, 5, 7, 72}, {100000, 160, 1600, 1}};
  const auto map = giwa::make_tensor_map(view, {1, 2, 4, 64}, swizzle::bytes_128);
  REQUIRE(map.ok());
  CHECK(map.value.words[0] == 0x5a5a5a5a5a5a5a5au);
  CHECK(map.value.words[15] == 0x5a5a5a5a5a5a5a5au);
  CHECK(seen.type == CU_TENSOR_MAP_DATA_TYPE_FLOAT16);
  CHECK(seen.address == memory);
  CHECK(seen.sizes == std::vector<cuuint64_t>{72, 7, 5, 3});
  CHECK(seen.strides == std::vector<cuuint64_t>{3200, 320, 200000});
  CHECK(seen.box == std::vector<cuuint32_t>{64, 4, 2, 1});
  CHECK(seen.steps == std::vector<cuuint32_t>(4, 1));
  CHECK(seen.swizzle == CU_TENSOR_MAP_SWIZZLE_128B);
}

TEST_CASE("every element type, swizzle and number of dimensions has its code") {
  const auto encode = [](auto element, swizzle pattern) {
    using element_type = decltype(element);
    const tensor_view<const element_type, 1> view{data<const element_type>(), {64}};
    REQUIRE(giwa::make_tensor_map(view, {16}, pattern).ok());
    CHECK(seen.sizes == std::vector<cuuint64_t>{64});
    CHECK(seen.strides.empty());
  };
  encode(fp16{}, swizzle::none);
  CHECK((seen.type == CU_TENSOR_MAP_DATA_TYPE_FLOAT16 && seen.swizzle == CU_TENSOR_MAP_SWIZZLE_NONE));
  encode(bf16{}, swizzle::bytes_32);
  CHECK((seen.type == CU_TENSOR_MAP_DATA_TYPE_BFLOAT16 && seen.swizzle == CU_TENSOR_MAP_SWIZZLE_32B));
  encode(float{}, swizzle::bytes_64);
  CHECK((seen.type == CU_TENSOR_MAP_DATA_TYPE_FLOAT32 && seen.swizzle == CU_TENSOR_MAP_SWIZZLE_64B));
  encode(double{}, swizzle::bytes_128);
  CHECK((seen.type == CU_TENSOR_MAP_DATA_TYPE_FLOAT64 && seen.swizzle == CU_TENSOR_MAP_SWIZZLE_128B));
  using byte = unsigned char;
  encode(byte{}, swizzle::none);
  CHECK(seen.type == CU_TENSOR_MAP_DATA_TYPE_UINT8);
  const tensor_view<float, 5> view{data<float>(), {2, 3, 4, 5, 8}};
  REQUIRE(giwa::make_tensor_map(view, {1, 1, 2, 2, 8}, swizzle::none).ok());
  CHECK(seen.sizes == std::vector<cuuint64_t>{8, 5, 4, 3, 2});
  CHECK(seen.strides == std::vector<cuuint64_t>{32, 160, 640, 1920});
}

TEST_CASE("a tile's map copies the whole tile at once, or fewer rows") {
  using tile = giwa::shared_tile<fp16, giwa::tile_shape<32, 64>, giwa::swizzled<swizzle::bytes_128>>;
  const tensor_view<fp16, 3> view{data<fp16>(), {2, 100, 64}};
  REQUIRE(giwa::make_tile_map<tile>(view, "view", {}).ok());
  CHECK(seen.box == std::vector<cuuint32_t>{64, 32, 1});
  REQUIRE(giwa::make_tile_map<tile>(view, "view", {}, 4).ok());
  CHECK(seen.box == std::vector<cuuint32_t>{64, 4, 1});
  for (const int rows : {0, -1, 33}) {
    const giwa::status refused = giwa::make_tile_map<tile>(view, "view", {}, rows).state;
    CHECK(refused.code == status_code::invalid_argument);
    CHECK((std::string(refused.argument) == "rows" && refused.got == rows));
  }
}

TEST_CASE("dimensions of size 1 may have any stride") {
  const tensor_view<float, 3> view{data<float>(), {1, 4, 8}, {-77, 8, 1}};
  REQUIRE(giwa::make_tensor_map(view, {1, 4, 8}, swizzle::none).ok());
  CHECK(seen.strides.at(0) == 32);
  CHECK(seen.strides.at(1) % 16 == 0);
  CHECK(seen.strides.at(1) > 0);
  CHECK_FALSE(refusal<float, 2>({4, 8}, {0, 1}).ok());  // the same row again and again
  const tensor_view<float, 2> column{data<float>(), {5, 1}, {4, -3}};
  CHECK(giwa::make_tensor_map(column, {5, 4}, swizzle::none).ok());
}

TEST_CASE("a view that TMA cannot address is refused with the reason") {
  CHECK(refusal<float, 2>({4, 8}, {8, 1}).ok());
  const giwa::status misaligned = refusal<float, 2>({4, 8}, {8, 1}, 4);
  CHECK(misaligned.code == status_code::invalid_argument);
  CHECK(std::string(misaligned.message).find("address") != std::string::npos);
  const giwa::status apart = refusal<float, 2>({4, 8}, {8, 2});
  CHECK(apart.code == status_code::invalid_argument);
  CHECK((apart.expected == 1 && apart.got == 2));
  CHECK(refusal<float, 2>({4, 8}, {9, 1}).code == status_code::invalid_argument);
  CHECK(refusal<fp16, 2>({4, 8}, {12, 1}).code == status_code::invalid_argument);
  CHECK(refusal<float, 2>({4, 8}, {-8, 1}).code == status_code::invalid_argument);
  CHECK(refusal<float, 3>({2, 4, 8}, {10, 8, 1}).code == status_code::invalid_argument);
  CHECK(refusal<float, 2>({4, 8}, {int64{1} << 38, 1}).code == status_code::invalid_argument);
  CHECK(refusal<float, 2>({4, 8}, {(int64{1} << 38) - 4, 1}).ok());
}

TEST_CASE("a view whose rows end inside 16 bytes is not written to") {
  const tensor_view<fp16, 2> ragged{data<fp16>(), {4, 12}, {16, 1}};
  CHECK(giwa::check_tensor_map(ragged, "c").ok());
  const giwa::status refused = giwa::check_store_map(ragged, "c");
  CHECK(refused.code == status_code::invalid_argument);
  CHECK((refused.expected == 16 && refused.got == 12));
  CHECK(giwa::check_store_map(tensor_view<fp16, 2>{data<fp16>(), {4, 16}}, "c").ok());
  CHECK_FALSE(giwa::check_store_map(tensor_view<fp16, 2>{data<fp16>(), {4, 16}, {12, 1}}, "c").ok());
}

TEST_CASE("an empty view has no tensor map") {
  const giwa::status empty = refusal<float, 2>({0, 8}, {8, 1});
  CHECK(empty.code == status_code::invalid_argument);
  CHECK((empty.expected == 1 && empty.got == 0));
}

TEST_CASE("a view is refused where a coordinate of 32 bits does not reach its end") {
  constexpr int64 limit = int64{1} << 31;
  CHECK(refusal<float, 2>({limit, 8}, {8, 1}).ok());
  const giwa::status long_rows = refusal<float, 2>({limit + 1, 8}, {8, 1});
  CHECK(long_rows.code == status_code::invalid_argument);
  CHECK((long_rows.expected == limit && long_rows.got == limit + 1));
  CHECK(refusal<float, 1>({limit + 1}, {1}).code == status_code::invalid_argument);
}

TEST_CASE("what the driver lacks or refuses becomes a status") {
  const tensor_view<float, 2> view{data<float>(), {4, 8}};
  driver = lacks_encoder;
  CHECK(giwa::make_tensor_map(view, {4, 8}, swizzle::none).state.code == status_code::not_supported);
  driver = has_no_driver;
  CHECK(giwa::make_tensor_map(view, {4, 8}, swizzle::none).state.code == status_code::no_driver);
  driver = has_encoder;
  encoder_answer = CUDA_ERROR_INVALID_VALUE;
  const giwa::status refused = giwa::make_tensor_map(view, {4, 300}, swizzle::none, "k").state;
  encoder_answer = CUDA_SUCCESS;
  CHECK(refused.code == status_code::invalid_argument);
  CHECK(refused.cuda_code == CUDA_ERROR_INVALID_VALUE);
  CHECK(std::string(refused.argument) == "k");
}

TEST_CASE("a box that is no box reaches the driver as nothing, which it refuses, and not cut to 32 bits") {
  const tensor_view<float, 2> view{data<float>(), {4, 8}};
  for (const int64 rows : {int64{-8}, int64{257}, (int64{1} << 32) + 8, giwa::max_int64}) {
    static_cast<void>(giwa::make_tensor_map(view, {rows, 8}, swizzle::none));
    CHECK(seen.box == std::vector<cuuint32_t>{8, 0});
  }
}
