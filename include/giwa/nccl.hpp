// SPDX-License-Identifier: MIT
// Public header that binds NCCL: nccl_communicator, for attention on several GPUs. No other header includes it.
#ifndef GIWA_NCCL_HPP
#define GIWA_NCCL_HPP

#include <giwa/device/stream.hpp>
#include <giwa/multi.hpp>

#include <nccl.h>

namespace giwa::inline GIWA_ABI {

/// Converts a result of NCCL: communication_error with NCCL's words, which are static strings.
inline status to_status(ncclResult_t r) {
  if (r == ncclSuccess) return {};
  return {status_code::communication_error, bound::none, 0, ncclGetErrorString(r), "NCCL", 0, 0};
}

/// A rank of an NCCL communicator, for calls on a stream such as ring_attention_forward(). Borrows the ncclComm_t, and owns a
/// stream on which messages travel, and two events. One call at a time may use it: calls that follow each other on one
/// stream, or on streams that wait for each other. Create it with the GPU of the communicator current. Each rank needs a host
/// thread: when ranks first meet, NCCL waits for the others on the host. NCCL's kernel takes a multiprocessor for each channel;
/// rings of two GPUs with long sequences are faster with 4 to 8 (ncclConfig_t::maxCTAs, see docs/several_gpus.md).
class nccl_communicator {
 public:
  nccl_communicator() = default;
  /// Creates the stream and the events. The stream has the highest priority, so that messages start before the blocks of a
  /// kernel that is ready at the same time take all multiprocessors. Errors: those of NCCL and of the CUDA runtime.
  static result<nccl_communicator> create(ncclComm_t comm) {
    result<nccl_communicator> r;
    nccl_communicator& c = r.value;
    c.comm_ = comm;
    int least = 0, greatest = 0;
    if (r.state = to_status(ncclCommUserRank(comm, &c.rank_)); !r.ok()) return r;
    if (r.state = to_status(ncclCommCount(comm, &c.size_)); !r.ok()) return r;
    if (r.state = detail::consume(cudaDeviceGetStreamPriorityRange(&least, &greatest)); !r.ok()) return r;
    cudaStream_t handle = nullptr;
    r.state = detail::consume(cudaStreamCreateWithPriority(&handle, cudaStreamNonBlocking, greatest));
    c.stream_ = owned_stream(handle);
    for (event* e : {&c.ready_, &c.done_}) {
      if (!r.ok()) return r;
      result<event> made = event::create(/*timed=*/false);
      *e = static_cast<event&&>(made.value);
      r.state = made.state;
    }
    return r;
  }

  /// See communicator.
  ///@{
  int rank() const { return rank_; }
  int size() const { return size_; }
  template <class Body>
  status exchange(cudaStream_t where, const Body& body) const {
    status s = check();
    if (s.ok()) s = ready_.record(where);
    if (s.ok()) s = ready_.hold(stream_);
    if (!s.ok()) return s;
    if (s = to_status(ncclGroupStart()); !s.ok()) return s;
    s = body(link{comm_, stream_});
    const status sent = finish(ncclGroupEnd());
    if (s.ok()) s = sent;
    return s.ok() ? done_.record(stream_) : s;
  }
  status wait(cudaStream_t where) const { return done_.hold(where); }
  ///@}

  /// Returns the error that NCCL has met since the last call, if any: another rank that died, or an abort. exchange()
  /// asks first.
  status check() const {
    ncclResult_t state = ncclSuccess;
    if (const status s = to_status(ncclCommGetAsyncError(comm_, &state)); !s.ok()) return s;
    return to_status(state);
  }

 private:
  struct owned_stream : detail::unique_handle<cudaStream_t, cudaStreamDestroy> {
    owned_stream() = default;
    explicit owned_stream(cudaStream_t s) : unique_handle(s) {}
  };
  struct link {
    ncclComm_t comm;
    cudaStream_t stream;
    status send(const void* data, int64 bytes, int to) const {
      return started(ncclSend(data, static_cast<std::size_t>(bytes), ncclUint8, to, comm, stream));
    }
    status receive(void* data, int64 bytes, int from) const {
      return started(ncclRecv(data, static_cast<std::size_t>(bytes), ncclUint8, from, comm, stream));
    }
  };
  // A communicator of ncclCommInitRankConfig with blocking = 0 is done later.
  static status started(ncclResult_t r) { return r == ncclInProgress ? status{} : to_status(r); }
  status finish(ncclResult_t r) const {
    while (r == ncclInProgress)
      if (const ncclResult_t asked = ncclCommGetAsyncError(comm_, &r); asked != ncclSuccess) return to_status(asked);
    return to_status(r);
  }

  ncclComm_t comm_ = nullptr;
  int rank_ = 0, size_ = 1;
  owned_stream stream_;
  event ready_, done_;
};

}  // namespace giwa::inline GIWA_ABI

#endif
