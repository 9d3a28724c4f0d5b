// SPDX-License-Identifier: MIT
// A program that uses giwa as a package: runs a kernel where there is a GPU, and the same on the host.
#include <giwa/grid.cuh>
#include <giwa/host.hpp>

#include <cstdio>

struct square {
  int* out;
  GIWA_HOST_DEVICE void operator()(giwa::int64 i) const { out[i] = static_cast<int>(i * i); }
};

// True if `run` filled the array with squares.
template <class Run>
bool fills(int* out, Run run) {
  out[99] = -1;
  const giwa::status s = run();
  std::printf("%s: %d\n", giwa::name_of(s.code), out[99]);
  return s.ok() && out[99] == 99 * 99;
}

int main() {
  int on_host[100];
  bool ok = fills(on_host, [&] { return giwa::for_all(giwa::host, 100, square{on_host}); });

  int* managed = nullptr;
  if (cudaMallocManaged(&managed, sizeof on_host) != cudaSuccess) {
    std::printf("no GPU: the kernel was built, not run\n");
    return ok ? 0 : 1;
  }
  ok = ok && fills(managed, [&] {
         const giwa::status s = giwa::for_all(cudaStreamPerThread, 100, square{managed});
         return cudaStreamSynchronize(cudaStreamPerThread) == cudaSuccess ? s : giwa::status::invalid("", "failed");
       });
  return ok ? 0 : 1;
}
