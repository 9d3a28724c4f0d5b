// SPDX-License-Identifier: MIT
// Answers of problems in files, for programs with faults, which all run the same problems.
#ifndef GIWA_TEST_FUZZ_KNOWN_ANSWERS_HPP
#define GIWA_TEST_FUZZ_KNOWN_ANSWERS_HPP

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

#include "fuzz/fuzz.hpp"
#include "support/environment.hpp"

namespace giwa_test::fuzz {

#if !defined(GIWA_FUZZ_PART)
#define GIWA_FUZZ_PART_NUMBER (-1)
#else
#define GIWA_FUZZ_PART_NUMBER GIWA_FUZZ_PART
#endif

/// Returns what compute() returns. In the folder GIWA_FUZZ_ANSWERS, if that is set, it leaves a file for this problem, and reads it the next
/// time. each(answers, visit) calls visit(vector) for all vectors that compute() writes.
template <class Answers, class Compute, class Each>
Answers known_answers(const char* call, uint64 seed, const Compute& compute, const Each& each) {
  const char* const folder = std::getenv("GIWA_FUZZ_ANSWERS");
  if (folder == nullptr) return compute();
  const std::string name = std::string(folder) + '/' + call + '_' + std::to_string(GIWA_FUZZ_PART_NUMBER) + '_' +
                           (is_set("GIWA_FUZZ_STRANGE") ? "strange_" : "") + std::to_string(seed);
  if (std::ifstream file(name, std::ios::binary); file) {
    Answers answers;
    each(answers, [&](auto& v) {
      uint64 size = 0;
      file.read(reinterpret_cast<char*>(&size), sizeof size);
      v.resize(size);
      file.read(reinterpret_cast<char*>(v.data()), static_cast<std::streamsize>(size * sizeof v[0]));
    });
    if (!file) throw std::runtime_error("the file of answers is damaged: " + name);
    return answers;
  }
  Answers answers = compute();
  const std::string unfinished =
      name + '.' + std::to_string(std::hash<std::thread::id>{}(std::this_thread::get_id())) + ".part";
  {
    std::ofstream file(unfinished, std::ios::binary);
    each(answers, [&](const auto& v) {
      const uint64 size = v.size();
      file.write(reinterpret_cast<const char*>(&size), sizeof size);
      file.write(reinterpret_cast<const char*>(v.data()), static_cast<std::streamsize>(size * sizeof v[0]));
    });
  }
  std::filesystem::rename(unfinished, name);
  return answers;
}

}  // namespace giwa_test::fuzz

#endif
