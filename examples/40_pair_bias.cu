// SPDX-License-Identifier: MIT
// Trains a bias of pairs of tokens that all rows of an alignment share, next to a mask of each row: Evoformer's attention.
//
//   nvcc -std=c++20 -O3 -gencode arch=compute_90a,code=sm_90a -Iinclude examples/40_pair_bias.cu -o 40_pair_bias
//
// Run from the root of the repository. sm_90a is for an H100 or H200; -arch=native is for the GPU of this machine.
// To copy it, also copy: support/place.cuh.
//
// What it teaches: evoformer_bias(mask, pairs, gradient), whose gradient is the sum over the rows. It must be 0 before the call. In
// fixed order, the default, rows add to an element in turn; with any_order they add as they come, and the last bits change from run to
// run. The task is to find the bias that another layer, with the same q, k and v, has used.
//
// Expected output, with the times of your machine:
//   32 rows of 64 tokens, 2 heads of 32, fp16
//   gradients agree with differences to 8e-03
//   step   loss
//      0   6114.70
//     40   385.57
//     80   129.97
//   backward: fixed order … ms, any order … ms
#include "support/place.cuh"

#if defined(__CUDACC__)
#include <giwa/attention_backward.cuh>
#endif

#include <cmath>

using giwa::fp16, giwa::int64, giwa::throw_if_failed;

constexpr int64 rows = 32, tokens = 64, heads = 2, pairs = heads * tokens * tokens;
constexpr int head_size = 32, steps = 80;

template <class T>
using view = giwa::tensor_view<T, 4>;

// One step of gradient descent with momentum; the next gradient begins as 0.
struct descend {
  float *value, *momentum, *gradient;
  fp16* rounded;
  float rate;
  GIWA_HOST_DEVICE void operator()(int64 i) const {
    momentum[i] = 0.9f * momentum[i] + gradient[i];
    value[i] -= rate * momentum[i];
    rounded[i] = giwa::convert<fp16>{}(value[i]);
    gradient[i] = 0;
  }
};

// Half the squared distance of o from its target, and its gradient, of one row of the alignment.
struct distance_of_row {
  view<fp16> o, target, dout;
  float* loss;
  GIWA_HOST_DEVICE void operator()(int64 row) const {
    const int64 n = tokens * heads * head_size;
    float sum = 0;
    for (int64 i = row * n; i < (row + 1) * n; ++i) {
      const float off = giwa::convert<float>{}(o.data()[i]) - giwa::convert<float>{}(target.data()[i]);
      dout.data()[i] = giwa::convert<fp16>{}(off);
      sum += 0.5f * off * off;
    }
    loss[row] = sum;
  }
};

template <class Place>
class layer {
 public:
  explicit layer(const Place& p) : place_(p) {
    std::vector<fp16> mask(static_cast<std::size_t>(rows * tokens)), hidden(static_cast<std::size_t>(pairs));
    for (int64 i = 0; i < rows * tokens; ++i)  // each row lacks some tokens at its end
      mask[static_cast<std::size_t>(i)] =
          giwa::convert<fp16>{}(i % tokens < tokens - i / tokens % 9 ? 0.0f : -30000.0f);
    for (int64 i = 0; i < pairs; ++i)  // near tokens see each other
      hidden[static_cast<std::size_t>(i)] =
          giwa::convert<fp16>{}(2 - 0.125f * static_cast<float>(std::abs(i % tokens - i / tokens % tokens)));
    mask_ = place_.put(mask), rounded_ = place_.put(hidden);
    const std::vector<float> zeros(static_cast<std::size_t>(pairs));
    value_ = place_.put(zeros), momentum_ = place_.put(zeros), gradient_ = place_.put(zeros);
    attend(target_);
    update(0);
  }

  double loss() {
    attend(o_);
    throw_if_failed(
        giwa::for_all(place_.where(), rows, distance_of_row{o_.view(), target_.view(), dout_.view(), loss_.data()}));
    double sum = 0;
    for (const float x : place_.get(loss_)) sum += static_cast<double>(x);
    return sum;
  }
  giwa::status backward(bool any_order) {
    return giwa::attention_backward<head_size>(
        place_.where(), q_.view(), k_.view(), v_.view(), o_.view(), dout_.view(), dq_.view(), dk_.view(), dv_.view(),
        giwa::full{}, score(),
        {.lse = lse_.view(), .workspace = {workspace_.data(), {workspace_.size()}}, .any_order = any_order});
  }
  void update(float rate) {
    throw_if_failed(giwa::for_all(place_.where(), pairs,
                                  descend{value_.data(), momentum_.data(), gradient_.data(), rounded_.data(), rate}));
  }
  // The largest distance of gradients from differences of the loss, relative to the largest gradient.
  double error() {
    loss();
    throw_if_failed(backward(false));
    const std::vector<float> found = place_.get(gradient_), values = place_.get(value_);
    double worst = 0, largest = 0;
    for (const int64 i : {int64{0}, tokens + 5, pairs / 2 + 7, pairs - 9}) {
      const auto at = [&](float step) {
        std::vector<fp16> moved(values.size());
        for (std::size_t n = 0; n < values.size(); ++n)
          moved[n] = giwa::convert<fp16>{}(values[n] + (static_cast<int64>(n) == i ? step : 0));
        rounded_ = place_.put(moved);
        return loss();
      };
      const double slope = 2 * (at(0.25f) - at(-0.25f));
      const double gradient = static_cast<double>(found[static_cast<std::size_t>(i)]);
      worst = std::max(worst, std::abs(slope - gradient)), largest = std::max(largest, std::abs(gradient));
    }
    update(0);
    return worst / largest;
  }

 private:
  auto score() {
    const giwa::tensor_view<const fp16, 2> mask(mask_.data(), {rows, tokens});
    const giwa::tensor_view<const fp16, 3> values(rounded_.data(), {heads, tokens, tokens});
    return giwa::evoformer_bias(mask, values, giwa::tensor_view<float, 3>(gradient_.data(), {heads, tokens, tokens}));
  }
  void attend(example::tensor<fp16, 4, Place>& to) {
    throw_if_failed(giwa::attention_forward<head_size>(place_.where(), q_.view(), k_.view(), v_.view(), to.view(),
                                                       giwa::full{}, score(), {.lse = lse_.view()}));
  }

  const Place& place_;
  static constexpr giwa::index<4> sizes{rows, tokens, heads, head_size};
  using tensor = example::tensor<fp16, 4, Place>;
  tensor q_{place_, sizes, 1}, k_{place_, sizes, 2}, v_{place_, sizes, 3}, o_{place_, sizes}, target_{place_, sizes},
      dout_{place_, sizes}, dq_{place_, sizes}, dk_{place_, sizes}, dv_{place_, sizes};
  example::tensor<float, 3, Place> lse_{place_, {rows, heads, tokens}};
  using floats = decltype(place_.template make<float>(0));
  using halves = decltype(place_.template make<fp16>(0));
  halves mask_ = place_.template make<fp16>(0), rounded_ = place_.template make<fp16>(pairs);
  floats value_ = place_.template make<float>(0), momentum_ = place_.template make<float>(0),
         gradient_ = place_.template make<float>(pairs), loss_ = place_.template make<float>(rows);
  decltype(place_.template make<unsigned char>(0)) workspace_ = place_.template make<unsigned char>(
      giwa::workspace_bytes(q_.view(), k_.view(), v_.view(), o_.view(), dout_.view(), dq_.view(), dk_.view(),
                            dv_.view(), giwa::full{}, score(), {.any_order = true}));
};

template <class Place>
bool run(const Place& place) {
  std::printf("%lld rows of %lld tokens, %lld heads of %d, fp16\n", static_cast<long long>(rows),
              static_cast<long long>(tokens), static_cast<long long>(heads), head_size);
  layer<Place> l(place);
  const double error = l.error();
  std::printf("gradients agree with differences to %.0e\nstep   loss\n", error);
  double first = 0, last = 0;
  for (int step = 0; step <= steps; ++step) {
    last = l.loss();
    if (step == 0) first = last;
    if (step % 40 == 0) std::printf("%4d   %.2f\n", step, last);
    throw_if_failed(l.backward(true));
    l.update(0.004f);
  }
  const auto time = [&](bool any_order) { return place.milliseconds([&] { return l.backward(any_order); }); };
  const double in_order = time(false), in_any_order = time(true);
  std::printf("backward: fixed order %.3f ms, any order %.3f ms\n", in_order, in_any_order);
  return error < 0.05 && last < 0.1 * first;
}

int main() {
  return example::run_anywhere([](const auto& place) { return run(place); });
}
