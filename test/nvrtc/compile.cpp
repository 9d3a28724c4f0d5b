// SPDX-License-Identifier: MIT
// Compiles each header named on the command line with NVRTC, in this process: `-I` options, then headers. Those after
// --pch FILE share a precompiled header of libcu++ in that file; those after --together are compiled in one program, without it.
#include <nvrtc.h>

#include <cstdio>
#include <string>
#include <vector>

namespace {

std::string include(const std::string& header) { return "#include <" + header + ">\n"; }

// What giwa/base/std.hpp includes, which takes 0.9 of the 1.1 s of a header. Programs without it show whether that header does.
constexpr const char* standard_headers =
    "#include <cuda/std/concepts>\n#include <cuda/std/cstddef>\n#include <cuda/std/cstdint>\n"
    "#include <cuda/std/limits>\n#include <cuda/std/type_traits>\n#include <cuda/std/utility>\n#pragma nv_hdrstop\n";

// Whether NVRTC writes the precompiled header. Where it cannot, headers are compiled without; NVRTC has them from 12.8 on.
#ifdef WITHOUT_PCH
bool creates_pch(const std::string&, const std::vector<const char*>&) { return false; }
#else
bool creates_pch(const std::string& file, std::vector<const char*> options) {
  const std::string option = "--create-pch=" + file;
  options.push_back(option.c_str());
  nvrtcProgram program = nullptr;
  nvrtcCreateProgram(&program, standard_headers, "standard_headers.cu", 0, nullptr, nullptr);
  const nvrtcResult outcome = nvrtcCompileProgram(program, static_cast<int>(options.size()), options.data());
  const bool created = outcome == NVRTC_SUCCESS && nvrtcGetPCHCreateStatus(program) == NVRTC_SUCCESS;
  nvrtcDestroyProgram(&program);
  return created;
}
#endif

// True if a program compiles; else prints what NVRTC says.
bool compiles(const std::string& header, const std::string& source, const std::vector<const char*>& options) {
  nvrtcProgram program = nullptr;
  nvrtcCreateProgram(&program, source.c_str(), "header_alone.cu", 0, nullptr, nullptr);
  const nvrtcResult outcome = nvrtcCompileProgram(program, static_cast<int>(options.size()), options.data());
  if (outcome != NVRTC_SUCCESS) {
    std::size_t size = 0;
    nvrtcGetProgramLogSize(program, &size);
    std::string log(size, '\0');
    nvrtcGetProgramLog(program, log.data());
    std::printf("%s: %s\n%s\n", header.c_str(), nvrtcGetErrorString(outcome), log.c_str());
  }
  nvrtcDestroyProgram(&program);
  return outcome == NVRTC_SUCCESS;
}

}  // namespace

int main(int argc, char** argv) {
  std::vector<const char*> options{"--std=c++20", "--gpu-architecture=compute_90a"};
  bool together = false;
  std::string all, pch, use_pch, prefix;
  std::vector<const char*> with_pch;
  int compiled = 0;
  int failed = 0;
  for (int i = 1; i < argc; ++i) {
    const std::string argument = argv[i];
    if (argument == "--together") {
      together = true;
    } else if (argument == "--pch" && i + 1 < argc) {
      pch = argv[++i];
      if (creates_pch(pch, options)) {
        prefix = standard_headers;
        use_pch = "--use-pch=" + pch;
        with_pch = options;
        with_pch.push_back(use_pch.c_str());
      } else {
        std::printf("NVRTC writes no precompiled header; the headers are compiled without\n");
        with_pch = options;
      }
    } else if (argument.starts_with("-")) {
      options.push_back(argv[i]);
    } else if (together) {
      all += include(argument);
    } else {
      const std::string source = prefix + include(argument) + include(argument);
      ++(compiles(argument, source, pch.empty() ? options : with_pch) ? compiled : failed);
    }
  }
  if (!all.empty()) ++(compiles("headers together", all, options) ? compiled : failed);
  if (!pch.empty()) std::remove(pch.c_str());
  std::printf("%d programs compile with NVRTC, %d do not\n", compiled, failed);
  return failed == 0 && compiled > 0 ? 0 : 1;
}
