// SPDX-License-Identifier: MIT
// Ranks that are threads of this process with a GPU each, connected by NCCL: stream_group for machines with several GPUs.
#ifndef GIWA_TEST_SUPPORT_NCCL_GROUP_CUH
#define GIWA_TEST_SUPPORT_NCCL_GROUP_CUH

#include <giwa/base/throw.hpp>
#include <giwa/nccl.hpp>

#include <exception>
#include <mutex>
#include <thread>
#include <vector>

namespace giwa_test {

class nccl_group {
 public:
  using communicator = giwa::nccl_communicator;

  explicit nccl_group(int ranks) : comms_(static_cast<std::size_t>(ranks)) {
    giwa::throw_if_failed(giwa::to_status(ncclCommInitAll(comms_.data(), ranks, nullptr)));
    for (int r = 0; r < ranks; ++r) {
      use_device_of(r);
      ranks_.push_back(giwa::throw_if_failed(communicator::create(comms_[static_cast<std::size_t>(r)])));
    }
    use_device_of(0);
  }
  ~nccl_group() {
    ranks_.clear();
    for (const ncclComm_t c : comms_) ncclCommDestroy(c);
  }
  nccl_group(const nccl_group&) = delete;
  nccl_group& operator=(const nccl_group&) = delete;

  static void use_device_of(int rank) { giwa::throw_if_failed(giwa::to_status(cudaSetDevice(rank))); }

  /// body(communicator) on a thread for each rank, with its GPU current. Rethrows the first exception; the other ranks
  /// may wait for the rank that threw, so a rank that throws aborts all.
  template <class Body>
  void on_each(const Body& body) {
    std::exception_ptr failure;
    std::mutex mutex;
    std::vector<std::thread> threads;
    for (std::size_t r = 0; r < ranks_.size(); ++r)
      threads.emplace_back([&, r] {
        try {
          use_device_of(static_cast<int>(r));
          body(static_cast<const communicator&>(ranks_[r]));
        } catch (...) {
          const std::lock_guard lock(mutex);
          if (failure) return;
          failure = std::current_exception();
          for (const ncclComm_t c : comms_) ncclCommAbort(c);
          comms_.clear();
        }
      });
    for (std::thread& t : threads) t.join();
    if (failure) std::rethrow_exception(failure);
  }

 private:
  std::vector<ncclComm_t> comms_;
  std::vector<communicator> ranks_;
};

}  // namespace giwa_test

#endif
