// SPDX-License-Identifier: MIT
// A CUDA graph of what a stream is given, captured once.
#pragma once

#include <giwa/giwa.cuh>

namespace example {

/// What a stream is given by `work`, to be started as often as one likes.
class graph {
 public:
  template <class Work>
  graph(cudaStream_t stream, Work work) {
    using giwa::throw_if_failed, giwa::to_status;
    throw_if_failed(to_status(cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal)));
    const giwa::status recorded = work();
    cudaGraph_t what = nullptr;
    throw_if_failed(to_status(cudaStreamEndCapture(stream, &what)));
    throw_if_failed(recorded);
    throw_if_failed(to_status(cudaGraphInstantiate(&graph_, what, 0)));
    throw_if_failed(to_status(cudaGraphDestroy(what)));
  }
  graph(const graph&) = delete;
  /// Waits for the last start, because a graph of dependent launches must not be destroyed while it runs
  /// (docs/conventions.md, Graph capture). The stream must still be there.
  ~graph() {
    if (is_started_) static_cast<void>(cudaStreamSynchronize(stream_));
    static_cast<void>(cudaGraphExecDestroy(graph_));
  }

  giwa::status start(cudaStream_t stream) {
    stream_ = stream, is_started_ = true;
    return giwa::to_status(cudaGraphLaunch(graph_, stream));
  }

 private:
  cudaGraphExec_t graph_ = nullptr;
  cudaStream_t stream_ = nullptr;  // of the last start
  bool is_started_ = false;
};

}  // namespace example
