// EXPECT: giwa::launch: give the op params, shared_storage, max_threads and min_blocks
// SPDX-License-Identifier: MIT
// A function of a thread is not an op.
#include <giwa/host_executor.cuh>

struct body {
#if !defined(GIWA_COMPILE_FAIL)
  static constexpr int max_threads = 128, min_blocks = 1;
  using params = int;
  using shared_storage = giwa::no_shared_storage;
#endif
  template <class Block, class... Arguments>
  void operator()(Block, const Arguments&...) const {}
};
giwa::status run() { return giwa::launch(giwa::host, {.block = 128}, body{}, 8); }
