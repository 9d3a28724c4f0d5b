// EXPECT: giwa::launch: pass the params of the op as one argument of type Op::params
// SPDX-License-Identifier: MIT
// The params of an op have its own type.
#include <giwa/host_executor.cuh>

struct op {
  struct params {
    float* out;
    int n;
  };
  using shared_storage = giwa::no_shared_storage;
  static constexpr int max_threads = 128, min_blocks = 1;
  template <class Block>
  GIWA_HOST_DEVICE void operator()(Block, const params&, shared_storage&) const {}
};
struct other {
  float* out;
  int n;
};
#if defined(GIWA_COMPILE_FAIL)
giwa::status run(other p) { return giwa::launch(giwa::host, {.block = 128}, op{}, p); }
#else
giwa::status run(other p) { return giwa::launch(giwa::host, {.block = 128}, op{}, {p.out, p.n}); }
#endif
