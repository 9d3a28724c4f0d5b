// SPDX-License-Identifier: MIT
// Compiles each header named on the command line with NVRTC, in this process: `-I` options, then headers. Those after --together
// are compiled in one program.
#include <nvrtc.h>

#include <cstdio>
#include <string>
#include <vector>

namespace {

std::string include(const std::string& header) { return "#include <" + header + ">\n"; }

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
  std::string all;
  int compiled = 0;
  int failed = 0;
  for (int i = 1; i < argc; ++i) {
    const std::string argument = argv[i];
    if (argument == "--together") {
      together = true;
    } else if (argument.starts_with("-")) {
      options.push_back(argv[i]);
    } else if (together) {
      all += include(argument);
    } else {
      ++(compiles(argument, include(argument) + include(argument), options) ? compiled : failed);
    }
  }
  if (!all.empty()) ++(compiles("headers together", all, options) ? compiled : failed);
  std::printf("%d programs compile with NVRTC, %d do not\n", compiled, failed);
  return failed == 0 && compiled > 0 ? 0 : 1;
}
