// SPDX-License-Identifier: MIT
// Ranks that are threads, each with its slice of a case: what the tests of attention on several ranks are made of.
#ifndef GIWA_TEST_HOST_MULTI_RING_CASE_HPP
#define GIWA_TEST_HOST_MULTI_RING_CASE_HPP

#include <giwa/host.hpp>
#include <giwa/multi.hpp>

#include <chrono>
#include <cstring>
#include <memory>
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
  int failing_wait = 0;   // the number of the wait that fails, from 1 on; 0: none
  mutable uint64 calls = 0;
  mutable int waits = 0;

  int rank() const { return inner.rank(); }
  int size() const { return inner.size(); }
  template <class Body>
  giwa::status exchange(giwa::host_t where, const Body& body) const {
    sleep();
    return inner.exchange(where, [&](const auto& link) { return body(counted<decltype(link)>{link, sent}); });
  }
  giwa::status wait(giwa::host_t where) const {
    sleep();
    return ++waits == failing_wait ? giwa::status::invalid("communicator", "a wait that fails") : inner.wait(where);
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

/// A map for all heads of a sequence of `tokens`, with the words in memory of its own: of the scores that `sees(query, key)` keeps, in
/// square blocks.
struct block_map_of {
  std::vector<giwa::block_word> words;
  giwa::block_map map;

  template <class Sees>
  block_map_of(int64 tokens, int block, const Sees& sees)
      : map{.queries = static_cast<int>(tokens),
            .keys = static_cast<int>(tokens),
            .block_queries = block,
            .block_keys = block} {
    words.resize(static_cast<std::size_t>(map.bytes()) / sizeof(giwa::block_word));
    map.words = words.data();
    const auto kept = std::make_unique<bool[]>(static_cast<std::size_t>(tokens * tokens));
    for (int64 i = 0; i < tokens * tokens; ++i) kept[static_cast<std::size_t>(i)] = sees(i / tokens, i % tokens);
    const giwa::tensor_view<const bool, 4> visible(kept.get(), {1, 1, tokens, tokens});
    if (!make_block_map(giwa::host, visible, map).ok()) map = {};
  }
  block_map_of(const block_map_of&) = delete;
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

/// Exactly `bytes` of workspace, aligned as calls demand it, before bytes that no call may write.
class exact_workspace {
 public:
  explicit exact_workspace(int64 bytes) : bytes_(bytes), memory_(static_cast<std::size_t>(bytes) + 16 + 64, 0xff) {}
  giwa::tensor_view<unsigned char, 1> view() { return {begin(), {bytes_}}; }
  giwa::status check() {
    for (int64 i = bytes_; i < bytes_ + 64 - 16; ++i)
      if (begin()[i] != 0xff) return giwa::status::invalid("workspace", "the call wrote past its end");
    return {};
  }

 private:
  unsigned char* begin() { return memory_.data() + (16 - reinterpret_cast<std::uintptr_t>(memory_.data()) % 16) % 16; }
  int64 bytes_;
  std::vector<unsigned char> memory_;
};

/// Calls by_ring(communicator), or with head_ranks by_heads(communicator or mesh): so many ranks exchange heads, all,
/// or those of a row of a mesh.
template <class ByRing, class ByHeads>
giwa::status by_ring_or_heads(const late_communicator& comm, int head_ranks, const ByRing& by_ring,
                              const ByHeads& by_heads) {
  return head_ranks == 0             ? by_ring(comm)
         : head_ranks == comm.size() ? by_heads(comm)
                                     : on_mesh(comm, head_ranks, by_heads);
}

inline case_options case_of(int64 tokens, uint64 seed) {
  case_options c;
  c.seed = seed;
  c.batch = 2, c.heads = 4, c.kv_heads = 2;
  c.seq_q = c.seq_k = tokens;
  c.head_size = c.head_size_v = 8;
  return c;
}

/// Calls fault(slices, ranks) for 1 to 8 ranks, both orders, even and uneven slices. Returns how many are wrong and the first, or
/// nothing.
template <class Fault>
std::string on_all_slices(int64 tokens, const Fault& fault_of) {
  std::string first;
  int wrong = 0, cases = 0;
  for (int ranks = 1; ranks <= 8; ++ranks)
    for (const giwa::slicing order : {giwa::slicing::contiguous, giwa::slicing::zigzag})
      for (const bool uneven : {false, true}) {
        giwa::sequence_slices slices{.tokens = tokens, .order = order};
        std::vector<int64> ends;  // one long piece, empty ones, and the rest by one token
        for (int64 i = 0, n = slices.pieces(ranks); i < n; ++i)
          ends.push_back(i + 1 == n ? tokens : i < n / 2 ? tokens / 3 : tokens / 3 + i);
        if (uneven) slices.ends = {ends.data(), {slices.pieces(ranks)}};
        const std::string fault = fault_of(slices, ranks);
        ++cases;
        if (!fault.empty() && wrong++ == 0)
          first = fault + "; " + std::to_string(ranks) + (order == giwa::slicing::zigzag ? " zigzag" : " contiguous") +
                  (uneven ? ", uneven" : "");
      }
  return wrong == 0 && cases == 32 ? "" : std::to_string(wrong) + " of " + std::to_string(cases) + ": " + first;
}

}  // namespace giwa_test

#endif
