// SPDX-License-Identifier: MIT
// Solves Laplace's equation on a square by Jacobi sweeps, with several sweeps for each pass over memory.
//
//   nvcc -std=c++20 -O3 -gencode arch=compute_90a,code=sm_90a -Iinclude examples/05_stencil.cu -o 05_stencil
//
// Run from the root of the repository. sm_90a is for an H100 or H200; -arch=native is for the GPU of this machine.
// To copy it, also copy: stencil.cuh.
//
// What it teaches, in stencil.cuh: a tile with a halo is loaded from an origin that may lie outside the grid. In shared memory
// each point is read by its neighbours without another global access. Several sweeps on each loaded tile beat the limit of
// memory bandwidth. A solver is checked against a known solution, u = sin(pi x) sinh(pi y) / sinh(pi), and bit by bit
// against the plain sweep.
//
// Expected output, with the figures of an H200, 2026-11-21:
//   solution: 65 x 65, 12000 sweeps, residual 5.2e-08, error 6.4e-05, 0.26 of the spacing squared
//   speed:    16384 x 16384; a sweep by itself moves 8 bytes a point
//     plain sweep, for_all         1.160 ms a sweep,  231.32 points a ns, 0.38 of what the memory's peak allows
//     1 sweep a tile               0.736 ms a sweep,  364.66 points a ns, 0.61 of what the memory's peak allows
//     4 sweeps a tile              0.317 ms a sweep,  848.11 points a ns, 1.41 of what the memory's peak allows
//     8 sweeps a tile              0.296 ms a sweep,  906.99 points a ns, 1.51 of what the memory's peak allows
//   same:     4099 x 5003, 4 sweeps: all bits agree
//   device:   NVIDIA H200
//   check:    the solver is right
#include "stencil.cuh"

#include <giwa/giwa.cuh>
#include <giwa/host.hpp>
#include <giwa/host_executor.cuh>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdio>
#include <numbers>
#include <vector>

using giwa::int64;
using giwa::throw_if_failed;
using grid = std::vector<float>;  // of size x size points on the unit square, or (rows, columns) of anything

double solution(double x, double y) {
  constexpr double pi = std::numbers::pi;
  return std::sin(pi * x) * std::sinh(pi * y) / std::sinh(pi);
}

// The grid with the solution on its border and zeros inside.
grid border(int64 size) {
  grid u(static_cast<std::size_t>(size * size), 0.0f);
  const double h = 1.0 / static_cast<double>(size - 1);
  for (int64 row = 0; row < size; ++row)
    for (int64 column = 0; column < size; ++column)
      if (!tiled::is_inner(row, column, {size, size}))
        u[static_cast<std::size_t>(row * size + column)] =
            static_cast<float>(solution(static_cast<double>(column) * h, static_cast<double>(row) * h));
  return u;
}

struct noise {
  float* to;
  GIWA_HOST_DEVICE void operator()(int64 i) const {
    to[i] = giwa::philox{2026}.uniform<float>(static_cast<giwa::uint64>(i));
  }
};

// Two grids in the memory of the device, and the sweeps on them.
struct on_gpu {
  giwa::stream stream = throw_if_failed(giwa::stream::create());
  cudaStream_t where() const { return stream; }
  giwa::device_array<float> make(int64 size) {
    return throw_if_failed(giwa::device_array<float>::allocate(stream, size));
  }
  giwa::device_array<float> put(const grid& from) { return throw_if_failed(giwa::to_device(stream, from)); }
  void get(const giwa::device_array<float>& from, grid& to) { throw_if_failed(giwa::to_host(stream, from, to)); }
  template <class Work>
  double milliseconds(Work work) {
    return throw_if_failed(giwa::time_on(stream, work)).median;
  }
};
struct on_cpu {
  giwa::host_t where() const { return giwa::host; }
  grid make(int64 size) { return grid(static_cast<std::size_t>(size)); }
  grid put(const grid& from) { return from; }
  void get(const grid& from, grid& to) { to = from; }
  template <class Work>
  double milliseconds(Work work) {
    const auto start = std::chrono::steady_clock::now();
    throw_if_failed(work());
    return std::chrono::duration<double, std::milli>(std::chrono::steady_clock::now() - start).count();
  }
};

// Solves on size x size points and returns whether the result is the solution.
template <class Machine>
bool solve(Machine& machine, int64 size, int sweeps) {
  grid u = border(size);
  auto a = machine.put(u), b = machine.put(u);
  const giwa::index<2> extents{size, size};
  for (int i = 0; i < sweeps; i += 8) {
    throw_if_failed(tiled::sweep<4>(machine.where(), {a.data(), extents}, {b.data(), extents}));
    throw_if_failed(tiled::sweep<4>(machine.where(), {b.data(), extents}, {a.data(), extents}));
  }
  machine.get(a, u);

  const double h = 1.0 / static_cast<double>(size - 1);
  double residual = 0, error = 0;
  const auto at = [&](int64 row, int64 column) -> double { return u[static_cast<std::size_t>(row * size + column)]; };
  const auto keep_larger = [](double& largest, double x) { largest = x <= largest ? largest : x; };  // also keeps a NaN
  for (int64 row = 1; row < size - 1; ++row)
    for (int64 column = 1; column < size - 1; ++column) {
      const double neighbours = at(row - 1, column) + at(row + 1, column) + at(row, column - 1) + at(row, column + 1);
      keep_larger(residual, std::abs(neighbours / 4 - at(row, column)));
      keep_larger(error,
                  std::abs(at(row, column) - solution(static_cast<double>(column) * h, static_cast<double>(row) * h)));
    }
  std::printf("solution: %lld x %lld, %d sweeps, residual %.1e, error %.1e, %.2f of the spacing squared\n",
              static_cast<long long>(size), static_cast<long long>(size), sweeps, residual, error, error / (h * h));
  return residual < 1e-6 && error < 0.5 * h * h;
}

// Runs four sweeps over random numbers in both ways, on a grid whose sizes are not multiples of a tile.
template <class Machine>
bool same_as_plain(Machine& machine, int64 rows, int64 columns) {
  const giwa::index<2> extents{rows, columns};
  auto a = machine.make(rows * columns), b = machine.make(rows * columns), c = machine.make(rows * columns);
  throw_if_failed(giwa::for_all(machine.where(), rows * columns, noise{a.data()}));
  throw_if_failed(tiled::sweep<4>(machine.where(), {a.data(), extents}, {c.data(), extents}));
  grid staged(static_cast<std::size_t>(rows * columns)), plain(staged);
  machine.get(c, staged);
  for (int i = 0; i < 2; ++i) {
    throw_if_failed(giwa::for_all(machine.where(), giwa::extents{rows, columns},
                                  tiled::plain_sweep{{a.data(), extents}, {b.data(), extents}}));
    throw_if_failed(giwa::for_all(machine.where(), giwa::extents{rows, columns},
                                  tiled::plain_sweep{{b.data(), extents}, {a.data(), extents}}));
  }
  machine.get(a, plain);
  const bool same = staged == plain;  // there is no NaN
  std::printf("same:     %lld x %lld, 4 sweeps: %s\n", static_cast<long long>(rows), static_cast<long long>(columns),
              same ? "all bits agree" : "they DIFFER");
  return same;
}

template <class Machine>
void measure(Machine& machine, int64 size, double peak) {
  const giwa::index<2> extents{size, size};
  const double points = static_cast<double>(size * size);
  auto a = machine.make(size * size), b = machine.make(size * size);
  throw_if_failed(giwa::for_all(machine.where(), size * size, noise{a.data()}));
  std::printf("speed:    %lld x %lld; a sweep by itself moves 8 bytes a point\n", static_cast<long long>(size),
              static_cast<long long>(size));
  const auto row = [&](const char* what, int sweeps, auto work) {
    const double ms = machine.milliseconds(work) / sweeps;
    std::printf("  %-24s %9.3f ms a sweep, %7.2f points a ns", what, ms, points * 1e-6 / ms);
    if (peak > 0) std::printf(", %.2f of what the memory's peak allows", points * 8 / (ms * 1e-3) / peak);
    std::printf("\n");
  };
  row("plain sweep, for_all", 1, [&] {
    return giwa::for_all(machine.where(), giwa::extents{size, size},
                         tiled::plain_sweep{{a.data(), extents}, {b.data(), extents}});
  });
  row("1 sweep a tile", 1, [&] { return tiled::sweep<1>(machine.where(), {a.data(), extents}, {b.data(), extents}); });
  row("4 sweeps a tile", 4, [&] { return tiled::sweep<4>(machine.where(), {a.data(), extents}, {b.data(), extents}); });
  row("8 sweeps a tile", 8, [&] { return tiled::sweep<8>(machine.where(), {a.data(), extents}, {b.data(), extents}); });
}

int main() try {
  const giwa::device_choice choice = giwa::choose_device();
  bool right = true;
  if (choice.on_gpu()) {
    on_gpu machine;
    right = solve(machine, 65, 12000);
    measure(machine, 16384, static_cast<double>(choice.found.properties.memory_bytes_per_second));
    right = same_as_plain(machine, 4099, 5003) && right;
  } else {
    on_cpu machine;
    right = solve(machine, 33, 4000);
    measure(machine, 512, 0);
    right = same_as_plain(machine, 301, 407) && right;
  }
  std::printf("device:   %s\n", choice.on_gpu() ? choice.found.properties.name : "CPU");
  if (!choice.on_gpu()) std::printf("          %s\n", choice.found.advice);
  std::printf("check:    %s\n", right ? "the solver is right" : "FAILED");
  return right ? 0 : 1;
} catch (const giwa::status_error& error) {
  std::fprintf(stderr, "%s\n", error.what());
  return 1;
}
