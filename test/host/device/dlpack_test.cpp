// SPDX-License-Identifier: MIT
// from_dlpack: the elements of the view, and each tensor that is refused, with the numbers of the status.
#include <giwa/device.hpp>
#include <giwa/numeric/precision.hpp>

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "support/catch.hpp"

using giwa::from_dlpack;
using giwa::int64;
using giwa::status;

namespace {

// Structs laid out as DLPack's specification has them.
enum device_kind : std::int32_t { cpu = 1, cuda = 2, cuda_host = 3, opencl = 4, rocm = 10, cuda_managed = 13 };
struct device_of_tensor {
  device_kind device_type;
  std::int32_t device_id;
};
struct data_type {
  std::uint8_t code, bits;
  std::uint16_t lanes;
};
struct tensor_struct {
  void* data;
  device_of_tensor device;
  std::int32_t ndim;
  data_type dtype;
  std::int64_t* shape;
  std::int64_t* strides;
  std::uint64_t byte_offset;
};
static_assert(sizeof(tensor_struct) == 48 && offsetof(tensor_struct, byte_offset) == 40);
struct managed_tensor {
  tensor_struct dl_tensor;
  void* manager_ctx;
  void (*deleter)(managed_tensor*);
};
struct versioned_tensor {
  struct {
    std::uint32_t major, minor;
  } version;
  void* manager_ctx;
  void (*deleter)(versioned_tensor*);
  std::uint64_t flags;
  tensor_struct dl_tensor;
};
static_assert(giwa::detail::dlpack_tensor<tensor_struct> && giwa::detail::dlpack_tensor<managed_tensor> &&
              giwa::detail::dlpack_tensor<versioned_tensor> && !giwa::detail::dlpack_tensor<data_type>);

constexpr data_type float_32{2, 32, 1};

struct rows {  // 3 x 4 floats, 0 to 11
  std::vector<float> numbers = {0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11};
  std::int64_t shape[2] = {3, 4}, strides[2] = {4, 1};
  tensor_struct tensor() { return {numbers.data(), {cpu, 0}, 2, float_32, shape, nullptr, 0}; }
};

void refused(const status& s, const std::string& part, int64 expected, int64 got) {
  CHECK(s.code == giwa::status_code::invalid_argument);
  CHECK(std::string(s.argument) == "tensor");
  CHECK(std::string(s.message).find(part) != std::string::npos);
  CHECK(s.expected == expected);
  CHECK(s.got == got);
}

template <class T>
bool takes(int code, int bits) {
  int64 zero = 0;
  std::int64_t size = 1;
  const data_type type{static_cast<std::uint8_t>(code), static_cast<std::uint8_t>(bits), 1};
  return from_dlpack<T, 1>(giwa::host, tensor_struct{&zero, {cpu, 0}, 1, type, &size, nullptr, 0}).ok();
}

}  // namespace

TEST_CASE("a view leads to the tensor's elements", "[dlpack]") {
  rows own;
  tensor_struct t = own.tensor();
  auto view = giwa::throw_if_failed(from_dlpack<const float, 2>(giwa::host, t));
  CHECK(view.data() == own.numbers.data());
  CHECK(view.contiguous());
  CHECK(view(2, 1) == 9);

  std::int64_t columns[] = {1, 4}, sizes[] = {4, 3};  // transposed
  t.strides = columns;
  t.shape = sizes;
  CHECK(giwa::throw_if_failed(from_dlpack<float, 2>(giwa::host, t))(1, 2) == 9);

  t = own.tensor();
  std::int64_t tail[] = {2, 2};  // the last two rows, without the first column; every third number
  std::int64_t steps[] = {4, 3};
  t.byte_offset = 4 * sizeof(float);
  t.shape = tail;
  t.strides = steps;
  CHECK(giwa::throw_if_failed(from_dlpack<float, 2>(giwa::host, t))(1, 1) == 11);

  std::int64_t back[] = {-4, -1};
  t.byte_offset = 11 * sizeof(float);
  t.strides = back;
  CHECK(giwa::throw_if_failed(from_dlpack<float, 2>(giwa::host, t))(1, 1) == 6);

  t = {nullptr, {cpu, 0}, 2, float_32, own.shape, nullptr, 0};
  CHECK_FALSE(from_dlpack<float, 2>(giwa::host, t).ok());  // elements, and no memory
  own.shape[0] = 0;
  CHECK(giwa::throw_if_failed(from_dlpack<float, 2>(giwa::host, t)).size() == 0);
}

TEST_CASE("element types are DLPack's", "[dlpack]") {
  CHECK(takes<float>(2, 32));
  CHECK(takes<double>(2, 64));
  CHECK(takes<giwa::fp16>(2, 16));
  CHECK(takes<giwa::bf16>(4, 16));
  CHECK(takes<bool>(6, 8));
  CHECK(takes<std::int8_t>(0, 8));
  CHECK(takes<const int64>(0, 64));
  CHECK(takes<std::uint32_t>(1, 32));
  CHECK_FALSE(takes<giwa::fp16>(4, 16));
  CHECK_FALSE(takes<giwa::bf16>(2, 16));
  CHECK_FALSE(takes<int>(1, 32));
  CHECK_FALSE(takes<unsigned char>(6, 8));

  rows own;
  tensor_struct t = own.tensor();
  refused(from_dlpack<int, 2>(giwa::host, t).state, "kind", 0, 2);
  refused(from_dlpack<double, 2>(giwa::host, t).state, "bits", 64, 32);
  refused(from_dlpack<float, 3>(giwa::host, t).state, "dimensions", 3, 2);
  t.dtype.lanes = 4;
  refused(from_dlpack<float, 2>(giwa::host, t).state, "lane", 1, 4);
}

TEST_CASE("the memory must be that of the requested device", "[dlpack]") {
  rows own;
  tensor_struct t = own.tensor();
  for (const device_kind type : {cpu, cuda, cuda_host, opencl, rocm, cuda_managed}) {
    t.device = {type, type == cuda || type == cuda_managed ? 1 : 0};
    CAPTURE(type);
    CHECK(from_dlpack<float, 2>(giwa::host, t).ok() == (type == cpu || type == cuda_host || type == cuda_managed));
    CHECK(from_dlpack<float, 2>(1, t).ok() == (type == cuda || type == cuda_host || type == cuda_managed));
  }
  t.device = {cuda, 1};
  refused(from_dlpack<float, 2>(0, t).state, "memory of this GPU", 0, 1);
  refused(from_dlpack<float, 2>(giwa::host, t).state, "memory of the CPU", 1, 2);
  t.device = {cpu, 0};
  refused(from_dlpack<float, 2>(0, t).state, "memory of CUDA", 2, 1);
}

TEST_CASE("sizes, strides and offsets are checked", "[dlpack]") {
  rows own;
  tensor_struct t = own.tensor();
  t.byte_offset = 2;
  refused(from_dlpack<float, 2>(giwa::host, t).state, "aligned", 0, 0);
  t.byte_offset = ~std::uint64_t{0} - 3;
  refused(from_dlpack<float, 2>(giwa::host, t).state, "address space", 0, 0);
  t = own.tensor();
  t.shape = nullptr;
  refused(from_dlpack<float, 2>(giwa::host, t).state, "shape must not be null", 0, 0);
  t = own.tensor();
  own.shape[1] = -1;
  refused(from_dlpack<float, 2>(giwa::host, t).state, "negative", 0, -1);
  own.shape[1] = giwa::max_int64 / 2;
  CHECK_FALSE(from_dlpack<float, 2>(giwa::host, t).ok());
  own.shape[1] = 4;
  own.strides[0] = giwa::max_int64 / 4;
  t.strides = own.strides;
  CHECK_FALSE(from_dlpack<float, 2>(giwa::host, t).ok());
}

TEST_CASE("managed tensors are accepted, and a read-only one only as const", "[dlpack]") {
  rows own;
  const managed_tensor managed{own.tensor(), nullptr, nullptr};
  CHECK(giwa::throw_if_failed(from_dlpack<float, 2>(giwa::host, managed))(2, 3) == 11);
  versioned_tensor versioned{{1, 1}, nullptr, nullptr, 0, own.tensor()};
  CHECK(giwa::throw_if_failed(from_dlpack<float, 2>(giwa::host, versioned))(2, 3) == 11);
  versioned.flags = 1;
  CHECK(from_dlpack<const float, 2>(giwa::host, versioned).ok());
  refused(from_dlpack<float, 2>(giwa::host, versioned).state, "read-only", 0, 0);
  versioned.version.major = 2;
  refused(from_dlpack<const float, 2>(giwa::host, versioned).state, "version", 1, 2);
}
