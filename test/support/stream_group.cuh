// SPDX-License-Identifier: MIT
// Ranks that are threads and streams of one GPU: NCCL refuses several ranks on one, so tests of one GPU exchange by copies.
#ifndef GIWA_TEST_SUPPORT_STREAM_GROUP_CUH
#define GIWA_TEST_SUPPORT_STREAM_GROUP_CUH

#include <giwa/base/throw.hpp>
#include <giwa/device/stream.hpp>
#include <giwa/multi/communicator.hpp>

#include <condition_variable>
#include <deque>
#include <exception>
#include <memory>
#include <mutex>
#include <thread>
#include <vector>

namespace giwa_test {

class stream_group;

/// One rank, for the thread that on_each() gives it.
class stream_communicator {
 public:
  stream_communicator(stream_group& group, int rank) : group_(&group), rank_(rank) {}

  int rank() const { return rank_; }
  int size() const;
  template <class Body>
  giwa::status exchange(cudaStream_t where, const Body& body) const {
    giwa::status s = ready_.record(where);
    if (s.ok()) s = ready_.hold(stream_);
    if (s.ok()) s = body(link{this});
    return s.ok() ? done_.record(stream_) : s;
  }
  giwa::status wait(cudaStream_t where) const;

 private:
  friend class stream_group;
  /// Ready when `ready` is; its memory may be reused when `copied` is.
  struct message {
    const void* data = nullptr;
    giwa::int64 bytes = 0;
    giwa::event ready = giwa::throw_if_failed(giwa::event::create(false)),
                copied = giwa::throw_if_failed(giwa::event::create(false));
    bool taken = false;
  };
  struct link {
    const stream_communicator* own;
    giwa::status send(const void* data, giwa::int64 bytes, int to) const;
    giwa::status receive(void* data, giwa::int64 bytes, int from) const;
  };

  stream_group* group_;
  int rank_;
  giwa::stream stream_ = giwa::throw_if_failed(giwa::stream::create());
  giwa::event ready_ = giwa::throw_if_failed(giwa::event::create(false)),
              done_ = giwa::throw_if_failed(giwa::event::create(false));
  mutable std::vector<message*> sent_;
};

/// Connects the ranks. One of them calls CUDA at a time, so that all may be captured in one graph.
class stream_group {
 public:
  using communicator = stream_communicator;

  explicit stream_group(int ranks) : boxes_(static_cast<std::size_t>(ranks * ranks)) {
    for (int r = 0; r < ranks; ++r) ranks_.push_back(std::make_unique<stream_communicator>(*this, r));
  }
  int size() const { return static_cast<int>(ranks_.size()); }
  static void use_device_of(int) {}

  /// body(communicator) on a thread for each rank. Rethrows the first exception.
  template <class Body>
  void on_each(const Body& body) {
    std::exception_ptr failure;
    std::vector<std::thread> threads;
    used_ = 0;
    for (const auto& rank : ranks_)
      threads.emplace_back([&, own = rank.get()] {
        {
          std::unique_lock lock(mutex_);
          try {
            body(static_cast<const stream_communicator&>(*own));
          } catch (...) {
            if (!failure) failure = std::current_exception();
            aborted_ = true;
          }
        }
        changed_.notify_all();
      });
    for (std::thread& t : threads) t.join();
    if (failure) std::rethrow_exception(failure);
  }

 private:
  friend class stream_communicator;
  using message = stream_communicator::message;

  std::deque<message*>& box(int from, int to) { return boxes_[static_cast<std::size_t>(from * size() + to)]; }
  message* new_message() {
    if (used_ == messages_.size()) messages_.push_back(std::make_unique<message>());
    message* const m = messages_[used_++].get();
    m->taken = false;
    return m;
  }
  /// Lets other ranks run until the condition is met; called with the mutex held.
  template <class Condition>
  giwa::status wait_until(const Condition& met) {
    std::unique_lock lock(mutex_, std::adopt_lock);
    changed_.notify_all();
    changed_.wait(lock, [&] { return aborted_ || met(); });
    lock.release();  // the thread of the rank still holds it
    if (!aborted_) return {};
    return {giwa::status_code::communication_error, giwa::bound::none, 0, "a rank aborted", "communicator", 0, 0};
  }

  std::mutex mutex_;
  std::condition_variable changed_;
  std::vector<std::deque<message*>> boxes_;  // (from, to)
  std::vector<std::unique_ptr<message>> messages_;
  std::size_t used_ = 0;
  bool aborted_ = false;
  std::vector<std::unique_ptr<stream_communicator>> ranks_;
};

inline int stream_communicator::size() const { return group_->size(); }
inline giwa::status stream_communicator::wait(cudaStream_t where) const {
  for (const message* m : sent_) {
    if (const giwa::status s = group_->wait_until([&] { return m->taken; }); !s.ok()) return s;
    if (const giwa::status s = m->copied.hold(where); !s.ok()) return s;
  }
  sent_.clear();
  return done_.hold(where);
}
inline giwa::status stream_communicator::link::send(const void* data, giwa::int64 bytes, int to) const {
  message* const m = own->group_->new_message();
  m->data = data, m->bytes = bytes;
  own->sent_.push_back(m);
  const giwa::status s = m->ready.record(own->stream_);
  own->group_->box(own->rank_, to).push_back(m);
  return s;
}
inline giwa::status stream_communicator::link::receive(void* data, giwa::int64 bytes, int from) const {
  auto& box = own->group_->box(from, own->rank_);
  if (const giwa::status s = own->group_->wait_until([&] { return !box.empty(); }); !s.ok()) return s;
  message* const m = box.front();
  box.pop_front();
  if (m->bytes != bytes) return giwa::status::invalid("bytes", "sizes differ", giwa::bound::exactly, m->bytes, bytes);
  giwa::status s = m->ready.hold(own->stream_);
  if (s.ok())
    s = giwa::to_status(
        cudaMemcpyAsync(data, m->data, static_cast<std::size_t>(bytes), cudaMemcpyDeviceToDevice, own->stream_));
  if (s.ok()) s = m->copied.record(own->stream_);
  m->taken = true;
  return s;
}

}  // namespace giwa_test

#endif
