// EXPECT: giwa::launch: pass a stream or giwa::host as the first argument
// SPDX-License-Identifier: MIT
// A launch says where it runs.
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
#if defined(GIWA_COMPILE_FAIL)
giwa::status run(op::params p) { return giwa::launch({.block = 128}, op{}, p); }
#else
giwa::status run(op::params p) { return giwa::launch(giwa::host, {.block = 128}, op{}, p); }
#endif
