// SPDX-License-Identifier: MIT
// What compare.py calls: C functions over giwa, on raw pointers and the caller's stream. Built as a shared library.
#include "transpose.cuh"

#include <giwa/softmax.cuh>

#include <cstdio>

namespace {

int answer(const giwa::status& s) {
  if (!s.ok()) std::fprintf(stderr, "%s\n", giwa::format_status(s).c_str());
  return static_cast<int>(s.code);
}

template <class T>
int softmax_of(const void* in, void* out, giwa::int64 rows, giwa::int64 columns, cudaStream_t stream) {
  const giwa::status s =
      giwa::softmax(stream, giwa::tensor_view<const T, 2>(static_cast<const T*>(in), {rows, columns}),
                    giwa::tensor_view<T, 2>(static_cast<T*>(out), {rows, columns}));
  return answer(s);
}

template <class T>
int transpose_of(const void* in, void* out, giwa::int64 rows, giwa::int64 columns, cudaStream_t stream) {
  return answer(tiled::transpose(stream, giwa::tensor_view<const T, 2>(static_cast<const T*>(in), {rows, columns}),
                                 giwa::tensor_view<T, 2>(static_cast<T*>(out), {columns, rows})));
}

}  // namespace

// The element: 0 is fp32, 1 fp16, 2 bf16. Answers 0 for success.
extern "C" int giwa_softmax(int element, const void* in, void* out, long long rows, long long columns,
                            cudaStream_t stream) {
  switch (element) {
    case 0: return softmax_of<float>(in, out, rows, columns, stream);
    case 1: return softmax_of<giwa::fp16>(in, out, rows, columns, stream);
    case 2: return softmax_of<giwa::bf16>(in, out, rows, columns, stream);
    default: return -1;
  }
}

// out (columns, rows) is in (rows, columns) transposed.
extern "C" int giwa_transpose(int element, const void* in, void* out, long long rows, long long columns,
                              cudaStream_t stream) {
  switch (element) {
    case 0: return transpose_of<float>(in, out, rows, columns, stream);
    case 1: return transpose_of<giwa::fp16>(in, out, rows, columns, stream);
    case 2: return transpose_of<giwa::bf16>(in, out, rows, columns, stream);
    default: return -1;
  }
}
