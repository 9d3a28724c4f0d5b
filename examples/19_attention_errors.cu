// SPDX-License-Identifier: MIT
// The accuracy of attention: its errors against double precision, compared with those of unfused attention, as a table.
//
//   nvcc -std=c++20 -O3 -gencode arch=compute_90a,code=sm_90a -Iinclude examples/19_attention_errors.cu -o 19_attention_errors
//   ./19_attention_errors    on the GPU if there is one, else on the CPU; ./19_attention_errors cpu    on the CPU
//
// Run from the root of the repository. sm_90a is for an H100 or H200; -arch=native is for the GPU of this machine.
// To copy it, also copy: support/attention_check.cuh, support/attention_compare.hpp, support/place.cuh.
//
// What it teaches: the online softmax loses no accuracy. Unfused kernels write scores and probabilities to memory as
// 16-bit numbers and round each of them. A fused kernel keeps the scores in registers in fp32, so it is more accurate
// too. The last column has the ratio that the tests bound: at most twice the error of unfused attention, plus one unit
// in the last place.
//
// Expected output, one line for each precision, length and size of the inputs:
//   | precision | keys | deviation of the scores | largest error | plain attention's | ratio |
//   |---|---|---|---|---|---|
//   | fp16 | 128 | 1.3 | 4.8e-04 | 9.1e-04 | 0.53 |
//   …
#include "support/attention_check.cuh"

#include <cstring>

using giwa::int64;

/// Queries in [-2 factor, 2 factor): what they are multiplied with has a deviation of 2 / sqrt(3), so the scores have one of
/// factor 4 / 3.
template <class T>
struct times {
  float factor;
  GIWA_HOST_DEVICE T operator()(T x) const { return giwa::convert<T>{}(factor * giwa::convert<float>{}(x)); }
};

template <class T, class Place>
bool lines(const Place& place, const char* precision) {
  // Without a workspace fp32 is multiplied by ordinary arithmetic. Who says so compiles no other kernel.
  using accuracy = std::conditional_t<std::is_same_v<T, float>, giwa::fp32_exact, giwa::fp32>;
  bool right = true;
  for (const int64 keys : {128, 1024, 8192})
    for (const float factor : {1.0f, 4.0f}) {
      // No more queries than the comparison looks at.
      example::tensor<T, 4, Place> q(place, {1, 8, 4, 64}, 1), k(place, {1, keys, 4, 64}, 2), v(place, k.sizes(), 3),
          o(place, q.sizes());
      const giwa::tensor_view<T, 1> all(q.view().data(), {q.view().size()});
      throw_if_failed(giwa::for_all(place.where(), giwa::elementwise{all, all}, times<T>{factor}));
      throw_if_failed(giwa::attention_forward<64, accuracy>(place.where(), q.view(), k.view(), v.view(), o.view()));
      const example::comparison c = example::compare(place, q, k, v, o);
      std::printf("| %s | %lld | %.1f | %.1e | %.1e | %.2f |%s\n", precision, static_cast<long long>(keys),
                  static_cast<double>(factor) * 4 / 3, c.error, c.plain, c.error / c.plain, c.good() ? "" : " WRONG");
      right = right && c.good();
    }
  return right;
}

template <class Place>
bool table(const Place& place) {
  std::printf("| precision | keys | deviation of the scores | largest error | plain attention's | ratio |\n");
  std::printf("|---|---|---|---|---|---|\n");
  const bool fp32 = lines<float>(place, "fp32"), fp16 = lines<giwa::fp16>(place, "fp16");
  return lines<giwa::bf16>(place, "bf16") && fp32 && fp16;
}

int main(int argc, char** argv) {
  const bool cpu = argc > 1 && std::strcmp(argv[1], "cpu") == 0;
  return example::run_anywhere([](const auto& place) { return table(place); }, cpu);
}
