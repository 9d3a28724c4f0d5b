// EXPECT: needs #include <giwa/host_executor.cuh>
// SPDX-License-Identifier: MIT
// To run an op on the host needs the host executor's header, and the message says which that is.
#include <giwa/grid/op.hpp>

struct op {
  struct params {};
  using shared_storage = giwa::no_shared_storage;
  static constexpr int max_threads = 128;
  static constexpr int min_blocks = 1;
  template <class Block>
  GIWA_HOST_DEVICE void operator()(Block, const params&, shared_storage&) const {}
};

#if defined(GIWA_COMPILE_FAIL)
giwa::status run() { return giwa::launch(giwa::host, giwa::launch_config{}, op{}, {}); }
#endif
