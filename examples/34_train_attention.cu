// SPDX-License-Identifier: MIT
// Trains one attention layer by its gradients, on the GPU and on the CPU, to the same loss.
//
//   nvcc -std=c++20 -O3 -gencode arch=compute_90a,code=sm_90a -Iinclude examples/34_train_attention.cu -o 34_train_attention
//
// Run from the root of the repository. sm_90a is for an H100 or H200; -arch=native is for the GPU of this machine.
// To copy it, also copy: support/place.cuh.
//
// What it teaches: a forward call that keeps lse, attention_backward with the same mask and score modifier, how its dq, dk
// and dv become the gradients of tables of weights, and a custom score modifier with a parameter that is trained, a
// temperature for each head. The task is to repeat the token before: in each position, o must be the one-hot vector of
// the previous token. Queries and keys are vectors of positions, shared by all sequences (a batch stride of 0), so the
// layer must learn where to look; values are vectors of tokens, so it must also learn what they mean. Query 0 sees no
// key: its o and its gradients are 0. All sums have a fixed order, so a second run gives the same bits.
//
// Expected output, once more for the CPU where there is a GPU, and then the two losses:
//   CPU: gradients agree with differences to 3.4e-04
//   step   loss
//      0   4.55944
//     50   0.24579
//    100   0.00045
//    150   0.00002
#include "support/place.cuh"

#if defined(__CUDACC__)
#include <giwa/attention_backward.cuh>
#endif

#include <array>
#include <cmath>

using giwa::int64, giwa::throw_if_failed;

constexpr int64 batch = 16, seq_length = 24, heads = 2, tokens = 16;
constexpr int depth = 16, width = static_cast<int>(tokens);  // head sizes of q and k, and of v
constexpr int steps = 150;

using view4 = giwa::tensor_view<float, 4>;

// A custom score modifier: the score times a temperature of its head, which attention_backward gives the gradient of.
struct temperature {
  static constexpr int parameters = 1;              // of each head
  const float* values;                              // (heads)
  giwa::tensor_view<float, 2> parameter_gradients;  // (heads, 1)

  // Templated on the number: giwa calls it with a dual number too, which carries the slope.
  template <class Number>
  GIWA_HOST_DEVICE Number operator()(Number score, giwa::attention_coord c) const {
    return score * values[c.head];
  }
  GIWA_HOST_DEVICE void parameter_slopes(float score, giwa::attention_coord, float (&slopes)[1]) const {
    slopes[0] = score;
  }
};

// Token i of sequence b, another one in each step.
GIWA_HOST_DEVICE inline int64 token_at(int step, int64 b, int64 i) {
  return giwa::philox{7, static_cast<giwa::uint64>(step)}(static_cast<giwa::uint64>(b * seq_length + i)).word[0] %
         tokens;
}

// v: the vector of the token at each position.
struct look_up {
  const float* table;  // (tokens, heads, width)
  view4 v;             // (batch, seq_length, heads, width)
  int step;
  GIWA_HOST_DEVICE void operator()(giwa::index<4> at) const {
    v[at] = table[(token_at(step, at[0], at[1]) * heads + at[2]) * width + at[3]];
  }
};

// The loss of one sequence, half the mean squared error, and its gradient with respect to o.
struct loss_of_sequence {
  view4 o, dout;  // (batch, seq_length, heads, width)
  float* loss;    // (batch)
  int step;
  GIWA_HOST_DEVICE void operator()(int64 b) const {
    constexpr float share = 1.0f / static_cast<float>(batch * seq_length * heads);
    float sum = 0;
    for (int64 i = 0; i < seq_length; ++i)
      for (int64 h = 0; h < heads; ++h)
        for (int64 d = 0; d < width; ++d) {
          const float target = i > 0 && token_at(step, b, i - 1) == d ? 1.0f : 0.0f, off = o(b, i, h, d) - target;
          dout(b, i, h, d) = off * share;
          sum += 0.5f * off * off * share;
        }
    loss[b] = sum;
  }
};

// Weights with their gradient and the two averages of Adam (Kingma and Ba 2015).
struct weights {
  float *value, *gradient, *first, *second;
};

// The gradient of a table of positions: the sum over the sequences that share it.
struct sum_of_sequences {
  view4 from;  // (batch, seq_length, heads, depth)
  weights to;  // (seq_length, heads, depth)
  GIWA_HOST_DEVICE void operator()(int64 n) const {
    float sum = 0;
    for (int64 b = 0; b < batch; ++b) sum += from.data()[b * from.stride(0) + n];
    to.gradient[n] = sum;
  }
};

// The gradient of the table of tokens: the sum over all places of a token.
struct sum_of_tokens {
  view4 from;  // (batch, seq_length, heads, width)
  weights to;  // (tokens, heads, width)
  int step;
  GIWA_HOST_DEVICE void operator()(giwa::index<3> at) const {
    float sum = 0;
    for (int64 b = 0; b < batch; ++b)
      for (int64 i = 0; i < seq_length; ++i)
        if (token_at(step, b, i) == at[0]) sum += from(b, i, at[1], at[2]);
    to.gradient[(at[0] * heads + at[1]) * width + at[2]] = sum;
  }
};

struct adam {
  weights w;
  float first_left, second_left;  // 1 - 0.9^t, 1 - 0.99^t
  GIWA_HOST_DEVICE void operator()(int64 n) const {
    const float g = w.gradient[n];
    w.first[n] = 0.9f * w.first[n] + 0.1f * g;
    w.second[n] = 0.99f * w.second[n] + 0.01f * g * g;
    w.value[n] -= 0.1f * (w.first[n] / first_left) / (::sqrtf(w.second[n] / second_left) + 1e-8f);
  }
};

struct set {
  float* to;
  float value;
  GIWA_HOST_DEVICE void operator()(int64 i) const { to[i] = value; }
};

template <class Place>
class layer {
 public:
  explicit layer(const Place& p) : place_(p) {
    for (auto* memory : tables())
      throw_if_failed(giwa::for_all(place_.where(), size_of(*memory) * 4, set{memory->data(), 0}));
    giwa::uint64 seed = 0;
    for (auto& memory : {&q_, &k_, &v_})
      throw_if_failed(giwa::for_all(place_.where(), size_of(*memory), example::fill<float>{memory->data(), ++seed}));
    throw_if_failed(giwa::for_all(place_.where(), heads, set{temperatures_.data(), 1}));
  }

  // One batch forward; its loss.
  double forward(int step) {
    throw_if_failed(giwa::for_all(place_.where(), giwa::extents{batch, seq_length, heads, width},
                                  look_up{v_.data(), values_.view(), step}));
    throw_if_failed(giwa::attention_forward<giwa::head_sizes<depth, width>, giwa::fp32_exact>(
        place_.where(), positions(q_), positions(k_), values_.view(), o_.view(), mask, score(), {.lse = lse_.view()}));
    throw_if_failed(
        giwa::for_all(place_.where(), batch, loss_of_sequence{o_.view(), dout_.view(), loss_.view().data(), step}));
    double loss = 0;
    for (const float x : loss_.on_host(place_)) loss += static_cast<double>(x);
    return loss;
  }

  // The gradients of all weights, after forward(step).
  void backward(int step) {
    throw_if_failed(giwa::attention_backward<giwa::head_sizes<depth, width>>(
        place_.where(), positions(q_), positions(k_), values_.view(), o_.view(), dout_.view(), dq_.view(), dk_.view(),
        dv_.view(), mask, score(), {.lse = lse_.view(), .workspace = {workspace_.data(), {workspace_bytes()}}}));
    const int64 n = seq_length * heads * depth;
    throw_if_failed(giwa::for_all(place_.where(), n, sum_of_sequences{dq_.view(), of(q_)}));
    throw_if_failed(giwa::for_all(place_.where(), n, sum_of_sequences{dk_.view(), of(k_)}));
    throw_if_failed(
        giwa::for_all(place_.where(), giwa::extents{tokens, heads, width}, sum_of_tokens{dv_.view(), of(v_), step}));
  }

  void update(int step) {
    const adam rule{
        {}, 1 - std::pow(0.9f, static_cast<float>(step + 1)), 1 - std::pow(0.99f, static_cast<float>(step + 1))};
    for (auto* memory : tables()) {
      adam each = rule;
      each.w = of(*memory);
      throw_if_failed(giwa::for_all(place_.where(), size_of(*memory), each));
    }
  }

  // The largest distance of a gradient from its difference quotient, relative to the largest gradient of the table.
  double gradient_error() {
    forward(0);
    backward(0);
    double worst = 0;
    for (auto* memory : tables()) {
      const std::vector<float> before = place_.get(*memory);
      const auto n = static_cast<std::size_t>(size_of(*memory));
      double largest = 0, off = 0;
      for (std::size_t i = 0; i < n; ++i) largest = std::max(largest, std::abs(static_cast<double>(before[n + i])));
      for (std::size_t i = 5 % n; i < n; i += n / 4 + 1) {
        constexpr float step = 1.0f / 64;
        double loss[2];
        for (const int side : {0, 1}) {
          std::vector<float> moved = before;
          moved[i] += side == 0 ? -step : step;
          *memory = place_.put(moved);
          loss[side] = forward(0);
        }
        const double quotient = (loss[1] - loss[0]) / (2 * static_cast<double>(step));
        off = std::max(off, std::abs(quotient - static_cast<double>(before[n + i])));
      }
      *memory = place_.put(before);
      worst = std::max(worst, off / largest);
    }
    return worst;
  }

 private:
  static constexpr giwa::causal mask{giwa::alignment::offset(-1)};  // query i sees the keys before i
  using table_memory = decltype(std::declval<const Place&>().template make<float>(0));
  using tensor4 = example::tensor<float, 4, Place>;

  // A table: its values, gradients and averages, one after the other.
  table_memory table(int64 size) const { return place_.template make<float>(4 * size); }
  static int64 size_of(const table_memory& m) { return static_cast<int64>(m.size()) / 4; }
  static weights of(table_memory& m) {
    const int64 n = size_of(m);
    return {m.data(), m.data() + n, m.data() + 2 * n, m.data() + 3 * n};
  }
  std::array<table_memory*, 4> tables() { return {&q_, &k_, &v_, &temperatures_}; }
  temperature score() { return {temperatures_.data(), {of(temperatures_).gradient, {heads, 1}}}; }
  // The same positions for all sequences.
  static view4 positions(table_memory& m) {
    return {m.data(), {batch, seq_length, heads, depth}, {0, heads * depth, depth, 1}};
  }
  int64 workspace_bytes() {
    return giwa::workspace_bytes(positions(q_), positions(k_), values_.view(), o_.view(), dout_.view(), dq_.view(),
                                 dk_.view(), dv_.view(), mask, score());
  }

  const Place& place_;
  table_memory q_ = table(seq_length * heads * depth), k_ = table(seq_length * heads * depth),
               v_ = table(tokens * heads * width), temperatures_ = table(heads);
  tensor4 values_{place_, {batch, seq_length, heads, width}}, o_{place_, values_.sizes()},
      dout_{place_, values_.sizes()};
  tensor4 dq_{place_, {batch, seq_length, heads, depth}}, dk_{place_, dq_.sizes()}, dv_{place_, values_.sizes()};
  example::tensor<float, 3, Place> lse_{place_, {batch, heads, seq_length}};
  example::tensor<float, 1, Place> loss_{place_, {batch}};
  decltype(std::declval<const Place&>().template make<unsigned char>(0)) workspace_ =
      place_.template make<unsigned char>(workspace_bytes());
};

// The loss of the last step; a gradient that differs from its difference quotient makes it NaN.
template <class Place>
double train(const Place& place) {
  layer<Place> l(place);
  const double error = l.gradient_error();
  std::printf("%s: gradients agree with differences to %.1e\n", Place::is_gpu ? "GPU" : "CPU", error);
  std::printf("step   loss\n");
  double loss = 0;
  for (int step = 0; step <= steps; ++step) {
    loss = l.forward(step);
    if (step % 50 == 0) std::printf("%4d   %.5f\n", step, loss);
    l.backward(step);
    l.update(step);
  }
  return error < 0.01 ? loss : std::nan("");
}

int main() {
  return example::run_anywhere([](const auto& place) {
    const double here = train(place);
    if (!std::remove_cvref_t<decltype(place)>::is_gpu) return here < 0.02;
    const double on_cpu = train(example::on_cpu{});
    std::printf("GPU and CPU end with losses %.6f and %.6f\n", here, on_cpu);
    return here < 0.02 && std::abs(here - on_cpu) < 0.001;
  });
}
