// SPDX-License-Identifier: MIT
// host_group: ranks that are threads of one process, for calls on giwa::host.
#ifndef GIWA_MULTI_HOST_GROUP_HPP
#define GIWA_MULTI_HOST_GROUP_HPP

#include <giwa/device/host.hpp>
#include <giwa/multi/communicator.hpp>

#include <condition_variable>
#include <cstddef>
#include <cstring>
#include <deque>
#include <mutex>
#include <vector>

namespace giwa::inline GIWA_ABI {

class host_communicator;

/// Connects ranks that are threads of one process. It must outlive the communicators that it gives.
class host_group {
 public:
  /// A group of this many ranks, at least 1.
  explicit host_group(int ranks)
      : ranks_(ranks), boxes_(static_cast<std::size_t>(ranks) * static_cast<std::size_t>(ranks)) {}
  host_group(const host_group&) = delete;
  host_group& operator=(const host_group&) = delete;

  /// Returns the communicator of a rank, for the thread that is that rank.
  host_communicator communicator(int rank);

  /// Ends all exchanges, those under way too, with status_code::communication_error: for a rank that cannot go on.
  void abort() {
    const std::lock_guard lock(mutex_);
    aborted_ = true;
    arrived_.notify_all();
  }

 private:
  friend class host_communicator;
  using message = std::vector<unsigned char>;

  std::deque<message>& box(int from, int to) {
    return boxes_[static_cast<std::size_t>(from) * static_cast<std::size_t>(ranks_) + static_cast<std::size_t>(to)];
  }
  static status aborted() {
    return {status_code::communication_error, bound::none, 0, "a rank aborted the group", "communicator", 0, 0};
  }
  status send(const void* data, int64 bytes, int from, int to) {
    message m(static_cast<std::size_t>(bytes));
    if (bytes > 0) std::memcpy(m.data(), data, m.size());
    const std::lock_guard lock(mutex_);
    if (aborted_) return aborted();
    box(from, to).push_back(static_cast<message&&>(m));
    arrived_.notify_all();
    return {};
  }
  status receive(void* data, int64 bytes, int from, int to) {
    std::unique_lock lock(mutex_);
    std::deque<message>& mine = box(from, to);
    arrived_.wait(lock, [&] { return aborted_ || !mine.empty(); });
    if (aborted_) return aborted();
    const message m = static_cast<message&&>(mine.front());
    mine.pop_front();
    lock.unlock();
    const auto sent = static_cast<int64>(m.size());
    if (sent != bytes)
      return {status_code::communication_error,
              bound::exactly,
              0,
              "the sender's message has another size",
              "communicator",
              bytes,
              sent};
    if (bytes > 0) std::memcpy(data, m.data(), m.size());
    return {};
  }

  int ranks_;
  std::mutex mutex_;
  std::condition_variable arrived_;
  std::vector<std::deque<message>> boxes_;  // (from, to)
  bool aborted_ = false;
};

/// One rank of a host_group. A send copies the data and returns, a receive waits for its message.
class host_communicator {
 public:
  /// See communicator.
  ///@{
  int rank() const { return rank_; }
  int size() const { return group_->ranks_; }
  template <class Body>
  status exchange(host_t, const Body& body) const {
    return body(link{group_, rank_});
  }
  status wait(host_t) const { return {}; }
  ///@}

 private:
  friend class host_group;
  host_communicator(host_group* group, int rank) : group_(group), rank_(rank) {}

  struct link {
    host_group* group;
    int rank;
    status send(const void* data, int64 bytes, int to) const { return group->send(data, bytes, rank, to); }
    status receive(void* data, int64 bytes, int from) const { return group->receive(data, bytes, from, rank); }
  };
  host_group* group_;
  int rank_;
};

inline host_communicator host_group::communicator(int rank) { return {this, rank}; }

}  // namespace giwa::inline GIWA_ABI

#endif
