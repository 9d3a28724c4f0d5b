// SPDX-License-Identifier: MIT
// The value that rank 0 gives the others through files: with ranks that come in any order, and files that earlier runs left.
#include "../../../examples/support/from_rank_0.hpp"

#include <filesystem>
#include <fstream>

#include "support/catch.hpp"

namespace {

using value = std::array<std::uint64_t, 3>;
using namespace std::chrono_literals;

struct folder {
  std::filesystem::path path = std::filesystem::temp_directory_path() / "giwa_from_rank_0";
  folder() { std::filesystem::remove_all(path), std::filesystem::create_directory(path); }
  ~folder() { std::filesystem::remove_all(path); }
  std::string id() const { return (path / "id").string(); }
  std::size_t files() const {
    std::size_t n = 0;
    for ([[maybe_unused]] const auto& file : std::filesystem::directory_iterator(path)) ++n;
    return n;
  }
};

/// What each rank gets. Rank r begins after delays[r] milliseconds; one below 0 does not come.
std::vector<std::optional<value>> run(const folder& at, const value& of_rank_0, const std::vector<int>& delays,
                                      std::chrono::milliseconds patience = 10s) {
  const int ranks = static_cast<int>(delays.size());
  std::vector<std::optional<value>> got(delays.size());
  std::vector<std::thread> threads;
  for (int r = 0; r < ranks; ++r)
    threads.emplace_back([&, r] {
      const int delay = delays[static_cast<std::size_t>(r)];
      if (delay < 0) return;
      std::this_thread::sleep_for(std::chrono::milliseconds(delay));
      got[static_cast<std::size_t>(r)] = example::from_rank_0<value>(
          r, ranks, at.id(), [&] { return of_rank_0; }, patience);
    });
  for (std::thread& t : threads) t.join();
  return got;
}

}  // namespace

TEST_CASE("every rank gets the value, whoever comes first, and no file stays") {
  const folder at;
  for (const std::vector<int>& delays :
       {std::vector<int>{0}, {0, 0}, {0, 0, 0, 0}, {200, 0, 0}, {0, 200, 100}, {100, 0, 200}}) {
    const auto got = run(at, {1, 2, 3}, delays);
    for (const auto& x : got) CHECK(x == value{1, 2, 3});
    CHECK(at.files() == 0);
  }
}

TEST_CASE("what earlier runs left is not taken") {
  const folder at;
  // Runs that crash: their rank 0 has written a value, other ranks have answered it or have only asked.
  const auto keep = at.path / "kept";
  for (const std::vector<int>& crashed : {std::vector<int>{0, 0, -1}, {-1, 0, 0}, {0, -1, -1}}) {
    std::vector<std::thread> threads;
    std::filesystem::create_directory(keep);
    std::thread copy([&] {  // as they are before a rank gives up, which removes them
      std::this_thread::sleep_for(250ms);
      for (const char* name : {"id", "id.1", "id.2"})
        if (std::filesystem::exists(at.path / name)) std::filesystem::copy(at.path / name, keep / name);
    });
    for (const auto& x : run(at, {9, 9, 9}, crashed, 500ms)) CHECK((x == std::nullopt || x == value{9, 9, 9}));
    copy.join();
    for (const auto& file : std::filesystem::directory_iterator(keep))
      std::filesystem::copy(file.path(), at.path / file.path().filename(),
                            std::filesystem::copy_options::overwrite_existing);
    std::filesystem::remove_all(keep);
    CHECK(at.files() > 0);
    for (const std::vector<int>& delays : {std::vector<int>{0, 100, 200}, {200, 100, 0}}) {
      const auto got = run(at, {4, 5, 6}, delays);
      for (const auto& x : got) CHECK(x == value{4, 5, 6});
      CHECK(at.files() == 0);
    }
  }
  std::ofstream(at.id()) << "what another program wrote";
  CHECK(run(at, {7, 8, 9}, {100, 0}) == std::vector<std::optional<value>>(2, value{7, 8, 9}));
}

TEST_CASE("a rank that does not come is told after the time") {
  const folder at;
  for (const auto& x : run(at, {1, 2, 3}, {-1, 0}, 200ms)) CHECK(!x);
  CHECK(!run(at, {1, 2, 3}, {0, 0, -1}, 200ms)[0]);
}
