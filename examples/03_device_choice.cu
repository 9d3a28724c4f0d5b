// SPDX-License-Identifier: MIT
// Which devices exist, which one is used, in which memory a pointer points, and how errors are reported.
//
//   nvcc -std=c++20 -O3 -gencode arch=compute_90a,code=sm_90a -Iinclude examples/03_device_choice.cu -o 03_device_choice
//
// Run from the root of the repository. sm_90a is for an H100 or H200; -arch=native is for the GPU of this machine.
//
// What it teaches: choose_device() returns a GPU, otherwise the CPU, and says why. A bug report starts with the environment
// report. A device_guard makes a GPU current in a scope. location_of() returns the kind of memory of a pointer. A status
// is a value with the argument, the limit and the value seen; throw_if_failed() throws it.
//
// Expected output, on a machine without a GPU, with the time of your machine:
//   giwa                 0.3.0
//   built with CUDA      13.0
//   CUDA runtime         13.0
//   driver               none
//   GPUs                 0
//   No NVIDIA driver is installed: giwa runs on the CPU (giwa::host). For the GPU install a driver for CUDA 13.0.
//
//   a std::vector lies in pageable host memory
//   printed: giwa: invalid argument `block.x`: the number of threads is out of range (at most 1024, got 2048)
//   thrown:  giwa: no driver: no NVIDIA driver is installed, or it is older than … [cudaError 35]
//   device:  CPU
//   check:   the squares of 1000 numbers are right, both mistakes were refused
//   measured: choose_device took 0.13 ms
#include <giwa/giwa.cuh>
#include <giwa/host.hpp>

#include <chrono>
#include <cstdio>
#include <vector>

using giwa::int64;
using giwa::throw_if_failed;

void print_location(const char* what, const void* pointer) {
  const giwa::pointer_location found = throw_if_failed(giwa::location_of(pointer));
  std::printf("%s lies in %s", what, name_of(found.kind));
  if (found.device >= 0) std::printf(" of GPU %d", found.device);
  std::printf("\n");
}

struct square {
  int64* out;
  GIWA_HOST_DEVICE void operator()(int64 i) const { out[i] = i * i; }
};

// One overload for each device. This one works in GPU memory and copies the result to the host.
giwa::status squares(cudaStream_t stream, std::vector<int64>& out) {
  auto on_device = giwa::device_array<int64>::allocate(stream, std::ssize(out));
  if (!on_device.ok()) return on_device.state;
  print_location("a device_array", on_device.value.data());
  if (const giwa::status s = giwa::for_all(stream, out.size(), square{on_device.value.data()}); !s.ok()) return s;
  return giwa::to_host(stream, on_device.value, out);
}

// This one works in host memory.
giwa::status squares(giwa::host_t, std::vector<int64>& out) {
  return giwa::for_all(giwa::host, out.size(), square{out.data()});
}

__global__ void __launch_bounds__(1024) does_nothing() {}

// A status is a value: inspect it, print it, continue. This error is found before any CUDA call, on every machine.
bool print_a_mistake() {
  const giwa::status s = giwa::launch(cudaStreamPerThread, {.grid = 1, .block = 2048}, does_nothing);
  std::printf("printed: %s\n", giwa::format_status(s).c_str());
  return s.code == giwa::status_code::invalid_argument && s.expected == 1024 && s.got == 2048;
}

// Or throw it: the exception has the status, and its text as what().
bool throw_a_mistake() try {
  const giwa::device_guard guard = throw_if_failed(giwa::device_guard::activate(giwa::device_count()));  // one too far
  return false;
} catch (const giwa::status_error& error) {
  std::printf("thrown:  %s\n", error.what());
  const giwa::status_code code = error.state().code;
  return code == giwa::status_code::no_device || code == giwa::status_code::no_driver;
}

int main() try {
  const auto start = std::chrono::steady_clock::now();
  const giwa::device_choice choice = giwa::choose_device();
  const std::chrono::duration<double, std::milli> time = std::chrono::steady_clock::now() - start;

  giwa::print(choice.found);
  for (int device = 0; device < giwa::device_count(); ++device) {
    const giwa::device_guard guard = throw_if_failed(giwa::device_guard::activate(device));  // current until the brace
    const giwa::result<giwa::device_code> code = giwa::code_for_current_device();
    std::printf("GPU %d: %s, %s\n", device, throw_if_failed(giwa::properties_of(device)).name,
                code.ok() ? "usable" : code.state.message);
  }
  std::printf("\n");

  std::vector<int64> numbers(1000);
  print_location("a std::vector", numbers.data());
  throw_if_failed(choice.visit([&](auto where) { return squares(where, numbers); }));
  bool right = true;
  for (int64 i = 0; i < 1000; ++i) right = right && numbers[i] == i * i;

  const bool refused = print_a_mistake() && throw_a_mistake();
  std::printf("device:  %s\n", choice.on_gpu() ? choice.found.properties.name : "CPU");
  std::printf("check:   the squares of 1000 numbers are %s, %s\n", right ? "right" : "WRONG",
              refused ? "both mistakes were refused" : "a mistake was NOT REFUSED");
  std::printf("measured: choose_device took %.2f ms\n", time.count());
  return right && refused ? 0 : 1;
} catch (const giwa::status_error& error) {
  std::fprintf(stderr, "%s\n", error.what());
  return 1;
}
