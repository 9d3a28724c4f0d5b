// EXPECT: giwa::attention_backward: a score modifier with parameters also has void parameter_slopes(float score,
// SPDX-License-Identifier: MIT
// A score modifier that says that it has parameters gives the derivatives with respect to all of them.
#include <giwa/host.hpp>

struct temperature {
  static constexpr int parameters = 1;
  const float* values;
  giwa::tensor_view<float, 2> parameter_gradients;

  template <class Number>
  Number operator()(Number score, giwa::attention_coord c) const {
    return score * values[c.head];
  }
#if defined(GIWA_COMPILE_FAIL)
  void parameter_slopes(float score, giwa::attention_coord, float (&slopes)[2]) const { slopes[0] = slopes[1] = score; }
#else
  void parameter_slopes(float score, giwa::attention_coord, float (&slopes)[1]) const { slopes[0] = score; }
#endif
};

giwa::status gradients(const giwa::tensor_view<float, 4>& x, const giwa::tensor_view<float, 3>& lse,
                       const temperature& score) {
  return giwa::attention_backward<64>(giwa::host, x, x, x, x, x, x, x, x, giwa::full{}, score, {.lse = lse});
}
