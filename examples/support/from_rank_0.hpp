// SPDX-License-Identifier: MIT
// A value that rank 0 of several processes gives the others through files, such as the id of an NCCL group.
#ifndef GIWA_EXAMPLES_SUPPORT_FROM_RANK_0_HPP
#define GIWA_EXAMPLES_SUPPORT_FROM_RANK_0_HPP

#include <array>
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <optional>
#include <random>
#include <string>
#include <thread>
#include <type_traits>
#include <vector>

namespace example {

/// What the ranks write. Files of earlier runs may lie at the same paths: of runs that crashed, say. So a rank takes only a
/// value that comes with a number which it drew itself, and rank 0 goes on only when each rank has answered its value, which
/// no earlier run had.
template <class T>
class files_of_ranks {
  static_assert(std::is_trivially_copyable_v<T> && std::has_unique_object_representations_v<T>);
  using token = std::array<std::uint64_t, 2>;
  struct answer {  // in the file of a rank: its number, and the value that it has taken
    token drawn{};
    T taken{};
  };

 public:
  files_of_ranks(std::string path, int rank, int ranks, std::chrono::milliseconds patience)
      : path_(std::move(path)), rank_(rank), ranks_(ranks), end_(std::chrono::steady_clock::now() + patience) {}

  /// Rank 0's value, which must differ in each run; nothing if a rank does not come in time. Removes all files.
  bool give(const T& value) const {
    std::vector<answer> seen(others()), written;
    for (;; wait()) {
      bool all = true;
      for (int r = 1; r < ranks_; ++r) {
        answer& of = seen[static_cast<std::size_t>(r - 1)];
        const auto read = read_file(file_of(r), sizeof(answer));
        if (read) std::memcpy(&of, read->data(), sizeof of);
        all = all && read && same(of.taken, value);
      }
      if (all || is_late()) {
        std::remove(path_.c_str());
        for (int r = 1; r < ranks_; ++r) std::remove(file_of(r).c_str());
        return all;
      }
      if (!written.empty() && std::memcmp(written.data(), seen.data(), seen.size() * sizeof(answer)) == 0) continue;
      std::vector<char> bytes(sizeof value + others() * sizeof(token));
      std::memcpy(bytes.data(), &value, sizeof value);
      for (std::size_t i = 0; i < others(); ++i)
        std::memcpy(bytes.data() + sizeof value + i * sizeof(token), &seen[i].drawn, sizeof(token));
      if (write_file(path_, bytes)) written = seen;
    }
  }

  /// Another rank's: nothing if there is no value of this run in time.
  std::optional<T> take() const {
    answer own;
    std::random_device random;
    for (std::uint64_t& word : own.drawn) word = std::uint64_t{random()} << 32 | random();
    const std::size_t at = sizeof(T) + static_cast<std::size_t>(rank_ - 1) * sizeof(token);
    for (bool written = false; !is_late(); wait()) {
      written = written || write_file(file_of(rank_), bytes_of(own));
      const auto read = read_file(path_, sizeof(T) + others() * sizeof(token));
      if (!written || !read || std::memcmp(read->data() + at, &own.drawn, sizeof(token)) != 0) continue;
      std::memcpy(&own.taken, read->data(), sizeof(T));
      if (write_file(file_of(rank_), bytes_of(own))) return own.taken;
    }
    return {};
  }

 private:
  std::size_t others() const { return static_cast<std::size_t>(ranks_ - 1); }
  std::string file_of(int rank) const { return path_ + "." + std::to_string(rank); }
  bool is_late() const { return std::chrono::steady_clock::now() > end_; }
  static void wait() { std::this_thread::sleep_for(std::chrono::milliseconds(20)); }
  static bool same(const T& a, const T& b) { return std::memcmp(&a, &b, sizeof a) == 0; }
  static std::vector<char> bytes_of(const answer& of) {
    const auto* const first = reinterpret_cast<const char*>(&of);
    return {first, first + sizeof of};
  }

  /// The file's bytes, if it has so many.
  static std::optional<std::vector<char>> read_file(const std::string& path, std::size_t size) {
    std::FILE* const file = std::fopen(path.c_str(), "rb");
    if (file == nullptr) return {};
    std::vector<char> bytes(size + 1);
    const std::size_t count = std::fread(bytes.data(), 1, size + 1, file);
    std::fclose(file);
    if (count != size) return {};
    bytes.pop_back();
    return bytes;
  }
  /// Writes a file as a whole: no rank reads half of it.
  bool write_file(const std::string& path, const std::vector<char>& bytes) const {
    const std::string unfinished = path + ".part" + std::to_string(rank_);
    std::FILE* const file = std::fopen(unfinished.c_str(), "wb");
    if (file == nullptr) return false;
    const bool whole = std::fwrite(bytes.data(), 1, bytes.size(), file) == bytes.size();
    return std::fclose(file) == 0 && whole && std::rename(unfinished.c_str(), path.c_str()) == 0;
  }

  std::string path_;
  int rank_, ranks_;
  std::chrono::steady_clock::time_point end_;
};

/// The value of rank 0, which calls make(); nothing if not all ranks come within a minute. The path is one that all ranks
/// see; files there, `path` and `path.RANK`, are overwritten and removed.
template <class T, class Make>
std::optional<T> from_rank_0(int rank, int ranks, const std::string& path, const Make& make,
                             std::chrono::milliseconds patience = std::chrono::minutes(1)) {
  const files_of_ranks<T> files(path, rank, ranks, patience);
  if (rank != 0) return files.take();
  const T value = make();
  return files.give(value) ? std::optional<T>(value) : std::nullopt;
}

}  // namespace example

#endif
