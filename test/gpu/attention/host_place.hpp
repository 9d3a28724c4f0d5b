// SPDX-License-Identifier: MIT
// The host as a place for drawn problems: what tests the tests.
#ifndef GIWA_TEST_GPU_ATTENTION_HOST_PLACE_HPP
#define GIWA_TEST_GPU_ATTENTION_HOST_PLACE_HPP

#include <algorithm>
#include <cstring>
#include <memory>

#include "gpu/attention/row_check.hpp"

namespace giwa_test::attention {

class host_place {
 public:
  explicit host_place(int64 bytes) : size_(bytes), memory_(new double[static_cast<std::size_t>(bytes) / 8]) {}

  void clear() { used_ = 0; }
  /// Memory at a multiple of 256 bytes; null where there is no more.
  void* take(int64 bytes) {
    const int64 first = giwa::round_up(used_, int64{256});
    if (first + bytes > size_) return nullptr;
    used_ = first + bytes;
    return reinterpret_cast<char*>(memory_.get()) + first;
  }
  void poison() { std::memset(memory_.get(), 0xff, static_cast<std::size_t>(used_)); }
  void upload(int* to, const std::vector<int>& from) { std::memcpy(to, from.data(), from.size() * sizeof(int)); }
  template <class F>
  void for_all(int64 n, const F& f) {
    for (int64 i = 0; i < n; ++i) f(i);
  }
  std::string check(const located_problem& p, int64 rows, int64 keys, std::vector<row_finding>& found) {
    std::vector<key_score> scores(static_cast<std::size_t>(keys));
    for (int64 r = 0; r < rows; ++r) {
      const auto check = [&]<class T>(T) { found.push_back(check_row<T>(one_lane{}, p, r, scores.data())); };
      p.types.input == element::of_fp32   ? check(float{})
      : p.types.input == element::of_fp16 ? check(fp16{})
                                          : check(bf16{});
    }
    return "";
  }
  /// Bytes that are not 0xff.
  int64 written(const void* from, int64 bytes) const {
    return std::count_if(static_cast<const unsigned char*>(from), static_cast<const unsigned char*>(from) + bytes,
                         [](unsigned char b) { return b != 0xff; });
  }

 private:
  int64 size_, used_ = 0;
  std::unique_ptr<double[]> memory_;
};

}  // namespace giwa_test::attention

#endif
