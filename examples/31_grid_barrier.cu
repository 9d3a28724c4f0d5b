// SPDX-License-Identifier: MIT
// Solves Laplace's equation on a line by Jacobi sweeps, all in one launch, with a barrier for the whole grid.
//
//   nvcc -std=c++20 -O3 -gencode arch=compute_90a,code=sm_90a -Iinclude examples/31_grid_barrier.cu -o 31_grid_barrier
//
// Run from the root of the repository. sm_90a is for an H100 or H200; -arch=native is for the GPU of this machine.
// To copy it, also copy: support/place.cuh.
//
// What it teaches: a Jacobi sweep replaces each point by the mean of its two neighbours. It reads what other blocks wrote
// in the last sweep, so all blocks must be done with one sweep before any begins the next. A launch for each sweep does
// that. Inside one launch block.sync_grid() does it: the op points to a grid_barrier, and the launch is cooperative. Such a
// launch is refused if the GPU cannot run all blocks at once; blocks_at_once() says how many it can. The result is checked
// against the solution, a straight line, and bit by bit against a plain loop.
//
// On an H200 the barrier is slower than a launch for each sweep. It can pay where blocks keep data in shared memory or
// registers from one step to the next. 05_stencil.cu solves the equation on a square.
//
// Expected output; the times are those of your machine, and on a CPU, where threads are simulated, a line is shorter:
//   solution: 65 points, 20000 sweeps, largest error 2.2e-11
//   1048576 points, 1000 sweeps       ms   us a sweep
//   a launch for each sweep        4.352        4.352
//   a barrier for the grid         5.271        5.271
//   device: NVIDIA H200
//   check:  right
#include "support/place.cuh"

#include <giwa/host_executor.cuh>

#include <cmath>
#include <utility>

using giwa::int64, giwa::throw_if_failed;

// One sweep at point i; the ends keep their values.
GIWA_HOST_DEVICE inline double swept(const double* u, int64 n, int64 i) {
  return i == 0 || i == n - 1 ? u[i] : (u[i - 1] + u[i + 1]) / 2;
}

// All sweeps in one launch; afterwards `u` holds the result if their number is even, `next` if it is odd.
struct jacobi {
  struct params {
    double *u, *next;  // (n)
    int64 n;
    int sweeps;
    giwa::grid_barrier* barrier;
  };
  using shared_storage = giwa::no_shared_storage;
  static constexpr int max_threads = 256, min_blocks = 1;

  template <class Block>
  GIWA_HOST_DEVICE void operator()(Block block, const params& p, shared_storage&) const {
    double *from = p.u, *to = p.next;
    for (int sweep = 0; sweep < p.sweeps; ++sweep) {
      for (const int64 i : giwa::grid_stride(block, p.n)) to[i] = swept(from, p.n, i);
      block.sync_grid(*p.barrier);  // all blocks have written `to` and read `from`
      double* const read = from;
      from = to;
      to = read;
    }
  }
};

// One sweep, for a launch for each.
struct sweep {
  const double* u;
  double* next;
  int64 n;
  GIWA_HOST_DEVICE void operator()(int64 i) const { next[i] = swept(u, n, i); }
};

// A line from 0 to 1 whose inner points are still 0.
std::vector<double> line_to_solve(int64 n) {
  std::vector<double> u(static_cast<std::size_t>(n), 0.0);
  u.back() = 1;
  return u;
}

template <class Place>
struct solver {
  const Place& place;
  giwa::grid_barrier zero{};
  decltype(place.put(std::vector{zero})) barrier = place.put(std::vector{zero});

  // As many blocks as have work and run at once.
  int64 blocks(int64 n) const {
    int64 most = 4;
    if constexpr (Place::is_gpu) most = throw_if_failed(giwa::blocks_at_once<jacobi>());
    return std::min(most, giwa::ceil_div(n, jacobi::max_threads));
  }
  template <class Array>
  giwa::status operator()(Array& u, Array& next, int64 n, int sweeps) {
    return giwa::launch(place.where(), {.grid = blocks(n), .block = jacobi::max_threads, .cooperative = true}, jacobi{},
                        {u.data(), next.data(), n, sweeps, barrier.data()});
  }
};

template <class Place>
bool run(const Place& place) {
  solver<Place> solve{place};

  constexpr int64 n = 65;
  constexpr int sweeps = 20000;
  std::vector<double> expected = line_to_solve(n), other(expected);
  auto u = place.put(expected), next = place.put(expected);
  throw_if_failed(solve(u, next, n, sweeps));
  const std::vector<double> solved = place.get(u);
  for (int i = 0; i < sweeps; ++i) {
    for (int64 at = 0; at < n; ++at) other[static_cast<std::size_t>(at)] = swept(expected.data(), n, at);
    std::swap(expected, other);
  }
  double error = 0;
  for (int64 i = 0; i < n; ++i) {
    const double e = std::abs(solved[static_cast<std::size_t>(i)] - static_cast<double>(i) / (n - 1));
    error = e <= error ? error : e;  // also keeps a NaN
  }
  std::printf("solution: %lld points, %d sweeps, largest error %.1e\n", static_cast<long long>(n), sweeps, error);
  bool right = solved == expected && error < 1e-10;

  const int64 points = Place::is_gpu ? 1 << 20 : 1 << 12;
  const int timed = Place::is_gpu ? 1000 : 100;  // an even number
  const std::vector<double> start = line_to_solve(points);
  std::printf("%lld points, %d sweeps       ms   us a sweep\n", static_cast<long long>(points), timed);
  const auto row = [&](const char* name, const auto& all_sweeps) {
    auto a = place.put(start), b = place.put(start);
    throw_if_failed(all_sweeps(a, b));
    const std::vector<double> result = place.get(a);
    const double ms = place.milliseconds([&] { return all_sweeps(a, b); });
    std::printf("%-24s  %10.3f  %11.3f\n", name, ms, 1e3 * ms / timed);
    return result;
  };
  const std::vector<double> by_launches = row("a launch for each sweep", [&](auto& a, auto& b) {
    for (int i = 0; i < timed; ++i) {
      const sweep one{i % 2 == 0 ? a.data() : b.data(), i % 2 == 0 ? b.data() : a.data(), points};
      if (const giwa::status s = giwa::for_all(place.where(), points, one); !s.ok()) return s;
    }
    return giwa::status{};
  });
  const std::vector<double> by_barrier =
      row("a barrier for the grid", [&](auto& a, auto& b) { return solve(a, b, points, timed); });
  right = right && by_barrier == by_launches;
  return right;
}

int main() {
  return example::run_anywhere([](const auto& place) { return run(place); });
}
