// EXPECT: giwa::for_all: the first argument is a result: giwa::throw_if_failed(s) is its stream
// SPDX-License-Identifier: MIT
// A result may hold an error instead of a stream.
#include <giwa/base/throw.hpp>
#include <giwa/device/stream.hpp>
#include <giwa/grid/for_all.cuh>

struct nothing {
  GIWA_DEVICE void operator()(giwa::int64) const {}
};
giwa::status run(const giwa::result<giwa::stream>& s) {
#if defined(GIWA_COMPILE_FAIL)
  return giwa::for_all(s, 100, nothing{});
#else
  return giwa::for_all(giwa::throw_if_failed(s), 100, nothing{});
#endif
}
