// SPDX-License-Identifier: MIT
// Whether this program, this driver and this GPU fit each other, in plain words; and the GPU to use, else the CPU.
#ifndef GIWA_DEVICE_ENVIRONMENT_CUH
#define GIWA_DEVICE_ENVIRONMENT_CUH

#include <giwa/base/arch.hpp>
#include <giwa/device/host.hpp>
#include <giwa/device/properties.hpp>

#include <cstdio>

namespace giwa::inline GIWA_ABI {

/// The machine code that this program would run on the current GPU.
struct device_code {
  int architecture = 0;  ///< 90 for sm_90 or sm_90a; of the code that runs, which may be older than the GPU
  int ptx = 0;           ///< the architecture of the PTX it comes from
  bool architecture_specific = false;  ///< holds the instructions of sm_90a
};

namespace detail::inline GIWA_ARCH_TAG {

/// Tells by its static shared memory which of its bodies runs: host code cannot see whether a build for 90 is one for
/// 90a, and cudaFuncGetAttributes answers for the body that the driver has chosen.
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

/// Which code of this file's build the current GPU would run; no_kernel_image if there is none. Launches nothing.
inline result<device_code> code_for_current_device() {
  cudaFuncAttributes f{};
  const void* probe = reinterpret_cast<const void*>(&detail::architecture_probe<void>);
  if (const status s = detail::consume(cudaFuncGetAttributes(&f, probe)); !s.ok()) return {{}, s};
  return {{f.binaryVersion, f.ptxVersion, f.sharedSizeBytes == 0}, {}};
}

/// What a bug report should begin with.
struct environment {
  int toolkit = CUDART_VERSION;    ///< 13000 for CUDA 13.0: what this file was compiled with
  int runtime = 0;                 ///< the CUDA runtime library in this program
  int driver = 0;                  ///< the newest CUDA that the driver supports, 0 without a driver
  int devices = 0;                 ///< how many GPUs the driver shows
  device_properties properties{};  ///< of the GPU asked about
  device_code code{};              ///< what that GPU would run of this program
  status verdict{};                ///< success, or the first thing that is in the way
  char advice[512] = {};           ///< a sentence: what holds, or what to do; never empty
};

/// Looks at GPU number `device` (-1: the current one) and at this program. Never fails: what is wrong is the verdict.
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
    return conclude(counted, "The driver shows no GPU (%s): giwa runs on the CPU. Is CUDA_VISIBLE_DEVICES right?",
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
                    "This program holds no code for %s (compute capability %d.%d): build it with "
                    "-DCMAKE_CUDA_ARCHITECTURES=%d or nvcc -arch=sm_%d.",
                    e.properties.name, e.properties.capability.major, e.properties.capability.minor, capability,
                    capability);
  if (!code.ok()) return conclude(code.state, "%s cannot be used: %s.", e.properties.name, code.state.message);
  e.code = code.value;
  if (capability == 90 && !e.code.architecture_specific)
    return conclude({},
                    "%s runs code for sm_%d: right, but without its fastest instructions. Add -gencode "
                    "arch=compute_90a,code=sm_90a (CMake: 90a-real).",
                    e.properties.name, e.code.architecture);
  if (e.code.architecture < capability)
    return conclude({},
                    "%s runs code for the older sm_%d: right, but not tuned for it. Add sm_%d to the architectures.",
                    e.properties.name, e.code.architecture, capability);
  return conclude({}, "%s runs code made for it.", e.properties.name);
}

/// Prints the report, some ten lines, for people.
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

/// Where to run: a GPU, or the CPU and why.
struct device_choice {
  int device = -1;      ///< the GPU's number, or -1 for the CPU
  environment found{};  ///< what was found; found.advice says why in a sentence

  /// Whether a GPU was chosen.
  bool on_gpu() const { return device >= 0; }
  /// f(cudaStream_t{}) for the GPU's default stream, or f(giwa::host): `choice.visit([&](auto where) { … });`
  template <class F>
  auto visit(F&& f) const {
    return on_gpu() ? f(cudaStream_t{}) : f(host);
  }
};

/// Prints "device: NVIDIA H200"; or "device: CPU", and in a second line why.
inline void print(const device_choice& choice, std::FILE* to = stdout) {
  std::fprintf(to, "device: %s\n", choice.on_gpu() ? choice.found.properties.name : "CPU");
  if (!choice.on_gpu()) std::fprintf(to, "        %s\n", choice.found.advice);
}

/// The current GPU if this program has code for it, else the first GPU for which it has, else the CPU. A GPU chosen is
/// made current. Never fails.
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
