// SPDX-License-Identifier: MIT
// Duals: the slope of each operation is that of central differences, and corners have the slope of one side.
#include <giwa/numeric/dual.hpp>

#include <cmath>

#include "support/catch.hpp"

using dual = giwa::dual<double>;

namespace {

/// Whether f has at x the value and, within differences, the slope that its dual says.
template <class F>
bool agrees(const F& f, double x) {
  const dual got = f(dual(x, 1));
  const double step = 1e-6, slope = (f(dual(x + step, 0)).value - f(dual(x - step, 0)).value) / (2 * step);
  return got.value == f(dual(x, 0)).value && std::abs(got.slope - slope) < 1e-7 * (1 + std::abs(slope));
}

}  // namespace

TEST_CASE("slopes of arithmetic and functions are those of differences") {
  for (const double x : {-2.25, -0.5, 0.75, 3.0}) {
    CAPTURE(x);
    CHECK(agrees([](const dual& d) { return -d; }, x));
    CHECK(agrees([](const dual& d) { return 3 + d * d + d; }, x));
    CHECK(agrees([](const dual& d) { return (d * d) * (2 * d); }, x));
    CHECK(agrees([](const dual& d) { return 2 - d - d * d; }, x));
    CHECK(agrees([](const dual& d) { return (1 + d) / (d * d + 1); }, x));
    CHECK(agrees([](const dual& d) { return fabs(d); }, x));
    CHECK(agrees([](const dual& d) { return fmin(d * d, 1 - d) + 2 * fmax(d * d, 1 - d); }, x));
    CHECK(agrees([](const dual& d) { return copysign(d * d, d) + copysign(d, 1 - d); }, x));
    CHECK(agrees([](const dual& d) { return exp(d) + exp2(d) + tanh(d) + sin(d) + cos(d); }, x));
    CHECK(agrees([](const dual& d) { return log(d * d) + sqrt(d * d + 1); }, x));
    dual d(x, 1), e = d;
    d += 2, d *= e, d -= e, d /= 4;
    CHECK((d.value == ((x + 2) * x - x) / 4 && d.slope == (2 * x + 1) / 4));
  }
}

TEST_CASE("duals compare by their values, and corners have the slope of one side") {
  const dual a(1, 2), same(1, -3), more(2, 0);
  CHECK((a == same && a <= same && a >= same && !(a < same) && !(a > same)));
  CHECK((a < more && more > a && a <= more && !(a >= more) && !(a == more)));
  for (const dual& d : {fmin(a, same), fmax(a, same)}) CHECK((d.value == 1 && (d.slope == 2 || d.slope == -3)));
  CHECK(std::abs(fabs(dual(0, 5)).slope) == 5);
  for (const double x : {2.0, -2.0}) CHECK(copysign(dual(x, 1), dual(0, 1)).value == 2);
}
