// SPDX-License-Identifier: MIT
// Calls in a CUDA graph, one after the other, and the time of one of them.
#pragma once

#include "alternate.hpp"

namespace bench {

/// A graph of `count` calls: call(stream, i) captures call number i.
class graph {
 public:
  template <class Call>
  graph(int count, const Call& call) {
    const giwa::stream s = require(giwa::stream::create());
    cudaGraph_t captured = nullptr;
    require(cudaStreamBeginCapture(s, cudaStreamCaptureModeThreadLocal));
    for (int i = 0; i < count; ++i) call(static_cast<cudaStream_t>(s), i);
    require(cudaStreamEndCapture(s, &captured));
    require(cudaGraphInstantiate(&executable_, captured, 0));
    require(cudaGraphDestroy(captured));
  }
  graph(const graph&) = delete;
  graph& operator=(const graph&) = delete;
  ~graph() {
    cudaDeviceSynchronize();  // a graph of dependent launches must not be destroyed while it runs (docs/conventions.md)
    cudaGraphExecDestroy(executable_);
  }
  void launch() const { require(cudaGraphLaunch(executable_, nullptr)); }

 private:
  cudaGraphExec_t executable_ = nullptr;
};

/// Device time of one of the calls of a graph.
inline stopwatch graph_seconds(int calls_of_graph) {
  return [calls_of_graph](const std::function<void()>& launch, int launches) {
    return device_seconds(launch, launches) / calls_of_graph;
  };
}

}  // namespace bench
