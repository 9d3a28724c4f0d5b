// EXPECT: giwa::for_all: f is called with one element of each input array of elementwise
// SPDX-License-Identifier: MIT
// f has a parameter for each input.
#include <giwa/host.hpp>

#include <vector>

struct sum {
#if defined(GIWA_COMPILE_FAIL)
  float operator()(float a, float b) const { return a + b; }
#else
  float operator()(float a) const { return a; }
#endif
};
giwa::status run(std::vector<float>& c, const std::vector<float>& a) {
  return giwa::for_all(giwa::host, giwa::elementwise{c, a}, sum{});
}
