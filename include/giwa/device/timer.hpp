// SPDX-License-Identifier: MIT
// time_on: the time of work on a stream, measured by events, as median and spread.
#ifndef GIWA_DEVICE_TIMER_HPP
#define GIWA_DEVICE_TIMER_HPP

#include <giwa/device/stream.hpp>

namespace giwa::inline GIWA_ABI {

/// The time of one call, in milliseconds.
struct timing {
  /// The median, the least and the greatest of the measurements.
  ///@{
  double median = 0, fastest = 0, slowest = 0;
  ///@}
};

/// Measures the time of a call: 15 measurements, each between two events. Synchronises with the stream. Stops at the first
/// failure. Does not flush caches: data that fits in the L2 cache is read from there.
///
/// Parameters:
///   - s: the stream
///   - work: `status work()` enqueues work on the stream
///   - warm_up: calls before the first measurement
///   - repeats: calls of a measurement
///
/// Errors: those of `work`;
/// `warm_up` is negative; `repeats` is less than 1.
template <class Work>
result<timing> time_on(cudaStream_t s, Work&& work, int warm_up = 3, int repeats = 1) {
  constexpr int rounds = 15;
  if (warm_up < 0) return {{}, status::invalid("warm_up", "a count must not be negative", bound::at_least, 0, warm_up)};
  if (repeats < 1)
    return {{}, status::invalid("repeats", "a measurement must have at least one call", bound::at_least, 1, repeats)};
  const result<event> first = event::create(), last = event::create();
  if (!first.ok()) return {{}, first.state};
  if (!last.ok()) return {{}, last.state};
  for (int i = 0; i < warm_up; ++i)
    if (const status state = work(); !state.ok()) return {{}, state};
  double sorted[rounds];
  for (int round = 0; round < rounds; ++round) {
    if (const status state = first.value.record(s); !state.ok()) return {{}, state};
    for (int i = 0; i < repeats; ++i)
      if (const status state = work(); !state.ok()) return {{}, state};
    if (const status state = last.value.record(s); !state.ok()) return {{}, state};
    if (const status state = last.value.synchronize(); !state.ok()) return {{}, state};
    const result<float> ms = milliseconds_between(first.value, last.value);
    if (!ms.ok()) return {{}, ms.state};
    int at = round;
    for (const double t = static_cast<double>(ms.value) / repeats; at >= 0; --at) {
      if (at == 0 || sorted[at - 1] <= t) {
        sorted[at] = t;
        break;
      }
      sorted[at] = sorted[at - 1];
    }
  }
  return {{sorted[rounds / 2], sorted[0], sorted[rounds - 1]}, {}};
}

}  // namespace giwa::inline GIWA_ABI

#endif
