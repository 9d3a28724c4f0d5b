// SPDX-License-Identifier: MIT
// The end of a row of attention, with a sink and with earlier keys, compared with its formula, and over hostile values.
#include <giwa/attention/sums/row_end.hpp>

#include <algorithm>
#include <cmath>
#include <limits>

#include "support/catch.hpp"
#include "support/random.hpp"

namespace {

template <class T>
constexpr T inf = std::numeric_limits<T>::infinity();
template <class T>
constexpr T eps = std::numeric_limits<T>::epsilon();

template <class T>
bool close(T a, T b, T units) {
  return std::abs(a - b) <= units * eps<T> * std::max(std::abs(a), std::abs(b));
}

}  // namespace

TEMPLATE_TEST_CASE("the end of a row, with a sink and with earlier keys", "", float, double) {
  using T = TestType;
  using giwa::detail::finish_row;
  const auto finish = [](T of_m, T of_l, T of_sink, T of_prior = -inf<T>) {
    return finish_row<T>({of_m, of_l}, of_sink, of_prior);
  };
  const T m = T(1.5), l = T(3.25), sink = T(2.5), prior = T(-0.75);

  const auto plain = finish(m, l, -inf<T>);
  CHECK(plain.factor == T(1) / l);
  CHECK(plain.prior_factor == 0);
  CHECK(plain.lse == (giwa::softmax_state<T>{m, l}.lse()));

  const T total = l * std::exp(m) + std::exp(sink) + std::exp(prior);
  const auto all = finish(m, l, sink, prior);
  CHECK(close(all.factor, std::exp(m) / total, T(8)));
  CHECK(close(all.prior_factor, std::exp(prior) / total, T(8)));
  CHECK(close(all.lse, std::log(total), T(8)));

  const auto nothing = finish(-inf<T>, T(0), -inf<T>);
  CHECK((nothing.factor == 0 && nothing.prior_factor == 0 && nothing.lse == -inf<T>));
  const auto sink_alone = finish(-inf<T>, T(0), sink);
  CHECK((sink_alone.factor == 0 && sink_alone.lse == sink));
  const auto prior_alone = finish(-inf<T>, T(0), -inf<T>, prior);
  CHECK((prior_alone.factor == 0 && prior_alone.prior_factor == 1 && prior_alone.lse == prior));
  const auto far_sink = finish(T(-1000), T(2), T(1000));
  CHECK((far_sink.factor == 0 && far_sink.lse == 1000));
  const auto far_row = finish(T(1000), T(2), T(-1000), T(-1000));
  CHECK((far_row.factor == T(0.5) && far_row.prior_factor == 0));

  const T nan = std::numeric_limits<T>::quiet_NaN();
  for (const T bad : {nan, inf<T>}) {
    for (const auto& end :
         {finish(m, l, bad), finish(m, l, sink, bad), finish(-inf<T>, T(0), bad), finish(m, nan, sink)})
      CHECK((std::isnan(end.factor) && std::isnan(end.lse)));
  }
}

TEMPLATE_TEST_CASE("more keys for a finished row", "", float, double) {
  using T = TestType;
  using giwa::detail::with_prior;
  giwa_test::random_sequence random(17);
  double worst = 0;
  for (int i = 0; i < 100'000; ++i) {
    const auto number = [&](double range) {
      return static_cast<T>(range * (static_cast<double>(random.below(giwa::int64{1} << 40)) * 0x1p-39 - 1));
    };
    const T size = i % 3 == 0 ? T(1) : i % 3 == 1 ? T(30) : T(1e4);
    const T factor = number(1) + T(1.5), lse = number(size), prior = i % 7 == 0 ? lse : number(size);
    const auto end = with_prior(T(1), factor, lse, prior);
    const double difference = static_cast<double>(prior) - static_cast<double>(lse);
    const double share = 1 / (1 + std::exp(difference)), other = 1 / (1 + std::exp(-difference));
    const double total =
        std::max(static_cast<double>(lse), static_cast<double>(prior)) + std::log1p(std::exp(-std::abs(difference)));
    // exp() gives 0 where its result would be subnormal; before that the rounded difference counts.
    const auto error = [&](T got, double truth) {
      if (truth < 2 * static_cast<double>(std::numeric_limits<T>::min()))
        return got < 4 * std::numeric_limits<T>::min() ? 0. : 1e9;
      return std::abs(static_cast<double>(got) / truth - 1) /
             ((4 + std::abs(difference)) * static_cast<double>(eps<T>));
    };
    worst = std::max(
        {worst, error(end.factor, static_cast<double>(factor) * share), error(end.prior_factor, other),
         std::abs(static_cast<double>(end.lse) - total) / ((1 + std::abs(total)) * static_cast<double>(eps<T>))});
  }
  CHECK(worst < 1.5);
  CHECK(worst > 0.1);

  for (const T row : {-inf<T>, T(-1e30), T(0), T(1e30)}) {  // a row without keys has factor 0
    const T factor = row == -inf<T> ? T(0) : T(0.25);
    const auto alone = with_prior(T(1), factor, row, -inf<T>);
    CHECK((alone.factor == factor && alone.prior_factor == 0 && alone.lse == row));
    for (const T bad : {std::numeric_limits<T>::quiet_NaN(), inf<T>}) {
      const auto end = with_prior(T(1), factor, row, bad);
      CHECK((std::isnan(end.factor) && std::isnan(end.prior_factor) && std::isnan(end.lse)));
    }
  }
}
