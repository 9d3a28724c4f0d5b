// EXPECT: giwa::launch: give the op params, shared_storage, max_threads and min_blocks
// SPDX-License-Identifier: MIT
// An op states its launch bounds.
#include <giwa/grid/op.hpp>

struct op {
  struct params {};
  using shared_storage = giwa::no_shared_storage;
#if !defined(GIWA_COMPILE_FAIL)
  static constexpr int max_threads = 128;
#endif
  static constexpr int min_blocks = 1;
  template <class Block>
  GIWA_HOST_DEVICE void operator()(Block, const params&, shared_storage&) const {}
};

void check() { giwa::detail::require_op<op>(); }
