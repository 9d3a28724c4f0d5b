// SPDX-License-Identifier: MIT
// Ranks that are threads, each with its slice of a case: what the tests of attention on several ranks are made of.
#ifndef GIWA_TEST_HOST_MULTI_RING_CASE_HPP
#define GIWA_TEST_HOST_MULTI_RING_CASE_HPP

#include <giwa/host.hpp>
#include <giwa/multi.hpp>

#include <chrono>
#include <cstring>
#include <string>
#include <thread>
#include <vector>

#include "support/attention.hpp"
#include "support/rank_mesh.hpp"
#include "support/rank_rows.hpp"

namespace giwa_test {

/// A host_communicator that sleeps for a random time before it exchanges, and before it waits.
struct late_communicator {
  giwa::host_communicator inner;
  uint64 seed = 0;        // 0: never late
  int64* sent = nullptr;  // counts the bytes that this rank sends
  mutable uint64 calls = 0;

  int rank() const { return inner.rank(); }
  int size() const { return inner.size(); }
  template <class Body>
  giwa::status exchange(giwa::host_t where, const Body& body) const {
    sleep();
    return inner.exchange(where, [&](const auto& link) { return body(counted<decltype(link)>{link, sent}); });
  }
  giwa::status wait(giwa::host_t where) const {
    sleep();
    return inner.wait(where);
  }

 private:
  template <class Link>
  struct counted {
    Link& link;
    int64* sent;
    giwa::status send(const void* data, int64 bytes, int to) const {
      if (sent != nullptr) *sent += bytes;
      return link.send(data, bytes, to);
    }
    giwa::status receive(void* data, int64 bytes, int from) const { return link.receive(data, bytes, from); }
  };
  void sleep() const {
    if (seed == 0) return;
    const auto n = giwa::philox(seed)(static_cast<uint64>(rank()) * 1000 + calls++).word[0] % 400;
    std::this_thread::sleep_for(std::chrono::microseconds(n));
  }
};

/// Runs `body(communicator)` on a thread for each rank; the first failure in words, or empty.
template <class Body>
std::string on_ranks(int ranks, uint64 delays, const Body& body) {
  giwa::host_group group(ranks);
  std::vector<giwa::status> states(static_cast<std::size_t>(ranks));
  std::vector<std::thread> threads;
  for (int r = 0; r < ranks; ++r)
    threads.emplace_back([&, r] {
      states[static_cast<std::size_t>(r)] = body(late_communicator{group.communicator(r), delays});
      if (!states[static_cast<std::size_t>(r)].ok()) group.abort();
    });
  for (std::thread& t : threads) t.join();
  for (const giwa::status& s : states)
    if (!s.ok() && s.code != giwa::status_code::communication_error) return giwa::format_status(s).c_str();
  for (const giwa::status& s : states)
    if (!s.ok()) return giwa::format_status(s).c_str();
  return "";
}

}  // namespace giwa_test

#endif
