// SPDX-License-Identifier: MIT
// Whether this program, the driver and a GPU work together, in plain words; and the choice of a GPU, or the CPU.
#ifndef GIWA_DEVICE_ENVIRONMENT_CUH
#define GIWA_DEVICE_ENVIRONMENT_CUH

#include <giwa/base/arch.hpp>
#include <giwa/device/host.hpp>
#include <giwa/device/properties.hpp>

#include <cstdio>

namespace giwa::inline GIWA_ABI {

/// The machine code of this program that a GPU runs.
struct device_code {
  int architecture = 0;                ///< 90 for sm_90 or sm_90a: that of the code, which may be older than the GPU
  int ptx = 0;                         ///< the architecture of the PTX that the code comes from
  bool architecture_specific = false;  ///< contains the instructions of sm_90a
};

namespace detail::inline GIWA_ARCH_TAG {

/// A kernel that is never launched, whose static shared memory tells which of its bodies the driver has chosen. Host
/// code cannot distinguish a build for 90 from one for 90a, but cudaFuncGetAttributes reports the shared memory of the
/// chosen body.
template <class>
__global__ void __launch_bounds__(32, 1) architecture_probe(int* never) {
#if defined(__CUDA_ARCH__) && !GIWA_ARCH_HAS_SM90A
  __shared__ int marker[16];
  marker[threadIdx.x % 16] = *never;
  __syncthreads();
  *never = marker[(threadIdx.x + 1) % 16];
#else
  static_cast<void>(never);
#endif
}

}  // namespace detail::inline GIWA_ARCH_TAG

inline namespace GIWA_ARCH_TAG {

/// Returns which code of this file the current GPU runs. Launches nothing. Errors: no_kernel_image if the file has no
/// code for it.
inline result<device_code> code_for_current_device() {
  cudaFuncAttributes f{};
  const void* probe = reinterpret_cast<const void*>(&detail::architecture_probe<void>);
  if (const status s = detail::consume(cudaFuncGetAttributes(&f, probe)); !s.ok()) return {{}, s};
  return {{f.binaryVersion, f.ptxVersion, f.sharedSizeBytes == 0}, {}};
}

/// What check_environment() finds: what a bug report should begin with.
struct environment {
  int toolkit = CUDART_VERSION;    ///< of the compilation: 13000 for CUDA 13.0
  int runtime = 0;                 ///< the CUDA runtime library in this program
  int driver = 0;                  ///< the newest CUDA that the driver supports, 0 without a driver
  int devices = 0;                 ///< how many GPUs the driver finds
  device_properties properties{};  ///< of the GPU in question
  device_code code{};              ///< the code of this program that the GPU runs
  status verdict{};                ///< success, or the first obstacle
  char advice[512] = {};           ///< what was found, or what to do; never empty
};

/// Checks whether this program runs on GPU number `device` (-1: the current one). Never fails: an error is the verdict.
/// Launches nothing, and leaves the current device as it is.
inline environment check_environment(int device = -1) {
  environment e;
  const auto conclude = [&](const status& verdict, const char* format, auto... values) {
    e.verdict = verdict;
    std::snprintf(e.advice, sizeof e.advice, format, values...);
    return e;
  };
  static_cast<void>(detail::consume(cudaRuntimeGetVersion(&e.runtime)));
  if (!detail::consume(cudaDriverGetVersion(&e.driver)).ok()) e.driver = 0;
  if (e.driver == 0)
    return conclude(
        to_status(cudaErrorInsufficientDriver),
        "No NVIDIA driver is installed: giwa runs on the CPU (giwa::host). For the GPU install a driver for CUDA "
        "%d.%d.",
        e.runtime / 1000, e.runtime % 1000 / 10);
  int count = 0;
  const status counted = detail::consume(cudaGetDeviceCount(&count));
  if (counted.code == status_code::no_driver)
    return conclude(counted,
                    "The driver supports CUDA up to %d.%d and this program uses %d.%d: update the driver, or build "
                    "with the older toolkit.",
                    e.driver / 1000, e.driver % 1000 / 10, e.runtime / 1000, e.runtime % 1000 / 10);
  if (!counted.ok())
    return conclude(counted, "The driver finds no GPU (%s): giwa runs on the CPU. Check CUDA_VISIBLE_DEVICES.",
                    counted.message);
  e.devices = count;
  if (device < 0) device = current_device().value;
  const result<device_properties> properties = properties_of(device);
  if (!properties.ok())
    return conclude(properties.state, "GPU %d cannot be used: %s; there are %d, numbered from 0.", device,
                    properties.state.message, e.devices);
  e.properties = properties.value;
  const result<device_guard> guard = device_guard::activate(device);
  const result<device_code> code = guard.ok() ? code_for_current_device() : result<device_code>{{}, guard.state};
  const int capability = e.properties.capability.value();
  if (code.state.code == status_code::no_kernel_image)
    return conclude(code.state,
                    "This program contains no code for %s (compute capability %d.%d): build it with "
                    "-DCMAKE_CUDA_ARCHITECTURES=%d or nvcc -arch=sm_%d.",
                    e.properties.name, e.properties.capability.major, e.properties.capability.minor, capability,
                    capability);
  if (!code.ok()) return conclude(code.state, "%s cannot be used: %s.", e.properties.name, code.state.message);
  e.code = code.value;
  if (capability == 90 && !e.code.architecture_specific)
    return conclude({},
                    "%s runs code for sm_%d, without its fastest instructions. Results are right. Add -gencode "
                    "arch=compute_90a,code=sm_90a (CMake: 90a-real).",
                    e.properties.name, e.code.architecture);
  if (e.code.architecture < capability)
    return conclude({},
                    "%s runs code for the older sm_%d, which is not tuned for it. Results are right. Add sm_%d to the "
                    "architectures.",
                    e.properties.name, e.code.architecture, capability);
  return conclude({}, "%s runs code that was compiled for it.", e.properties.name);
}

/// Prints the environment in about ten lines.
inline void print(const environment& e, std::FILE* to = stdout) {
  const auto version = [&](const char* what, int v) {
    std::fprintf(to, "%-20s %d.%d\n", what, v / 1000, v % 1000 / 10);
  };
  std::fprintf(to, "%-20s %d.%d.%d\n", "giwa", GIWA_VERSION_MAJOR, GIWA_VERSION_MINOR, GIWA_VERSION_PATCH);
  version("built with CUDA", e.toolkit);
  version("CUDA runtime", e.runtime);
  if (e.driver != 0)
    version("driver supports CUDA", e.driver);
  else
    std::fprintf(to, "%-20s none\n", "driver");
  std::fprintf(to, "%-20s %d\n", "GPUs", e.devices);
  if (const device_properties& p = e.properties; p.device >= 0) {
    std::fprintf(to, "%-20s %s, compute capability %d.%d\n", "GPU", p.name, p.capability.major, p.capability.minor);
    std::fprintf(to, "%-20s %d, %d threads each, %.0f MHz\n", "multiprocessors", p.multiprocessors,
                 p.threads_per_multiprocessor, static_cast<double>(p.clock_khz) * 1e-3);
    std::fprintf(to, "%-20s %.1f GiB, %.0f GB/s, L2 %.0f MiB\n", "memory",
                 static_cast<double>(p.memory_bytes) / (1 << 30), static_cast<double>(p.memory_bytes_per_second) * 1e-9,
                 static_cast<double>(p.l2_bytes) / (1 << 20));
    std::fprintf(to, "%-20s %.0f KiB a block\n", "shared memory", static_cast<double>(p.shared_bytes_per_block) / 1024);
  }
  if (e.code.architecture != 0)
    std::fprintf(to, "%-20s sm_%d%s\n", "code in this program", e.code.architecture,
                 e.code.architecture == 90 && e.code.architecture_specific ? "a" : "");
  std::fprintf(to, "%s\n", e.advice);
}

/// A choice between a GPU and the CPU, with the reason.
struct device_choice {
  int device = -1;      ///< the GPU's number, or -1 for the CPU
  environment found{};  ///< found.advice states the reason in a sentence

  /// Returns whether a GPU was chosen.
  bool on_gpu() const { return device >= 0; }
  /// Calls f(cudaStream_t{}), the default stream of the GPU, or f(giwa::host): `choice.visit([&](auto where) { ...
  /// });`.
  template <class F>
  auto visit(F&& f) const {
    return on_gpu() ? f(cudaStream_t{}) : f(host);
  }
};

/// Prints "device: NVIDIA H200", or "device: CPU" and the reason in a second line.
inline void print(const device_choice& choice, std::FILE* to = stdout) {
  std::fprintf(to, "device: %s\n", choice.on_gpu() ? choice.found.properties.name : "CPU");
  if (!choice.on_gpu()) std::fprintf(to, "        %s\n", choice.found.advice);
}

/// Chooses the current GPU if this program has code for it, else the first GPU for which it has code, else the CPU.
/// Makes the chosen GPU current. Never fails.
inline device_choice choose_device() {
  device_choice choice;
  choice.found = check_environment();
  if (choice.found.verdict.ok()) {
    choice.device = choice.found.properties.device;
    return choice;
  }
  for (int device = 0; device < choice.found.devices; ++device) {
    const environment other = check_environment(device);
    if (other.verdict.ok() && detail::consume(cudaSetDevice(device)).ok()) return {device, other};
  }
  return choice;
}

}  // namespace GIWA_ARCH_TAG
}  // namespace giwa::inline GIWA_ABI

#endif
