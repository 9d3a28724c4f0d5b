// SPDX-License-Identifier: MIT
// Trains a small language model, on the GPU and on the CPU, to the same loss, and lets it write.
//
//   nvcc -std=c++20 -O3 -gencode arch=compute_90a,code=sm_90a -Iinclude examples/35_language_model.cu -o 35_language_model
//
// Run from the root of the repository. sm_90a is for an H100 or H200; -arch=native is for the GPU of this machine.
// To copy it, also copy: support/place.cuh.
//
// What it teaches: attention_forward and attention_backward between other layers. The model is one transformer layer: vectors
// of letters; queries, keys and values by one product, slices of one tensor, as are their gradients; causal attention with
// ALiBi, whose slopes are trained too; a product back, added to the vectors of letters; scores of the next letter. The
// products are one functor, an element of the result per thread, which is short, not fast: 06_matmul.cu has fast ones. All
// sums have a fixed order, so a second run gives the same bits.
//
// Expected output, once more for the CPU where there is a GPU, and then the two losses:
//   CPU
//   step   loss     what it writes after "this is the"
//      0   3.8729   …
//     50   0.2175   …
//    100   0.2061   …
//    150   0.1109   …
//    200   0.1040   …
#include "support/place.cuh"

#if defined(__CUDACC__)
#include <giwa/attention_backward.cuh>
#endif

#include <array>
#include <cmath>
#include <string>
#include <string_view>

using giwa::int64, giwa::throw_if_failed;

constexpr std::string_view corpus =
    "this is the roof that the mason laid. this is the tile that lies on the roof that the mason laid. this is the "
    "rain "
    "that falls on the tile that lies on the roof that the mason laid. this is the wind that drives the rain that "
    "falls "
    "on the tile that lies on the roof that the mason laid. this is the cat that hears the wind that drives the rain "
    "that "
    "falls on the tile that lies on the roof that the mason laid. this is the child that holds the cat that hears the "
    "wind that drives the rain that falls on the tile that lies on the roof that the mason laid. ";

constexpr int alphabet = 28, width = 64, heads = 4, depth = width / heads;  // a to z, space and full stop
constexpr int64 batch = 8, seq_length = 48, all_rows = batch * seq_length, steps = 200;

using view1 = giwa::tensor_view<float, 1>;
using view2 = giwa::tensor_view<float, 2>;
using view4 = giwa::tensor_view<float, 4>;

constexpr int letter_of(char c) { return c == ' ' ? 26 : c == '.' ? 27 : c == ',' ? 26 : c - 'a'; }
constexpr char char_of(int letter) { return letter == 26 ? ' ' : letter == 27 ? '.' : static_cast<char>('a' + letter); }

// to(i, j) = sum over k of a(i, k) b(k, j), added to what is there if `add`. A view with exchanged strides is transposed.
struct product {
  view2 a, b, to;
  bool add = false;
  GIWA_HOST_DEVICE void operator()(giwa::index<2> at) const {
    const float *x = a.data() + at[0] * a.stride(0), *y = b.data() + at[1] * b.stride(1);
    const int64 step_x = a.stride(1), step_y = b.stride(0);
    float sum = 0;
    for (int64 k = 0; k < a.extent(1); ++k) sum += x[k * step_x] * y[k * step_y];
    float& c = to.data()[at[0] * to.stride(0) + at[1] * to.stride(1)];
    c = add ? c + sum : sum;
  }
};

// The vectors of the letters, as x, and as what the attention is added to.
struct look_up {
  const int* ids;      // (batch, seq_length + 1): the letters, and the one after them
  const float* table;  // (alphabet, width)
  view2 x, h;          // (all_rows, width)
  GIWA_HOST_DEVICE void operator()(giwa::index<2> at) const {
    x[at] = h[at] = table[ids[at[0] / seq_length * (seq_length + 1) + at[0] % seq_length] * width + at[1]];
  }
};

// The loss of a row, -log of the probability of the next letter, and its gradient in the place of the scores.
struct loss_of_row {
  const int* ids;
  view2 scores;  // (all_rows, alphabet)
  float* loss;   // (all_rows)
  GIWA_HOST_DEVICE void operator()(int64 row) const {
    float* const s = scores.data() + row * alphabet;
    const int next = ids[row / seq_length * (seq_length + 1) + row % seq_length + 1];
    float most = s[0], sum = 0;
    for (int i = 1; i < alphabet; ++i) most = s[i] > most ? s[i] : most;
    for (int i = 0; i < alphabet; ++i) sum += ::expf(s[i] - most);
    loss[row] = (most + ::logf(sum) - s[next]) / static_cast<float>(all_rows);
    for (int i = 0; i < alphabet; ++i)
      s[i] = (::expf(s[i] - most) / sum - (i == next ? 1.0f : 0.0f)) / static_cast<float>(all_rows);
  }
};

// The gradient of the table of letters: the sum over all places of a letter.
struct sum_of_places {
  const int* ids;
  view2 dx, to;
  GIWA_HOST_DEVICE void operator()(giwa::index<2> at) const {
    float sum = 0;
    for (int64 row = 0; row < all_rows; ++row)
      if (ids[row / seq_length * (seq_length + 1) + row % seq_length] == at[0]) sum += dx(row, at[1]);
    to[at] = sum;
  }
};

// A step of Adam (Kingma and Ba 2015).
struct adam {
  float *value, *gradient, *first, *second;
  float first_left, second_left;  // 1 - 0.9^t, 1 - 0.99^t
  GIWA_HOST_DEVICE void operator()(int64 n) const {
    const float g = gradient[n];
    first[n] = 0.9f * first[n] + 0.1f * g;
    second[n] = 0.99f * second[n] + 0.01f * g * g;
    value[n] -= 0.01f * (first[n] / first_left) / (::sqrtf(second[n] / second_left) + 1e-8f);
  }
};

struct start {
  float* to;
  float scale;
  giwa::uint64 seed;
  GIWA_HOST_DEVICE void operator()(int64 i) const {
    to[i] = scale * giwa::philox{35, seed}.normal<float>(static_cast<giwa::uint64>(i));
  }
};

template <class Place>
class model {
 public:
  explicit model(const Place& p) : place_(p) {
    giwa::uint64 seed = 0;
    for (table* t : tables()) {
      throw_if_failed(giwa::fill(p.where(), t->memory, 0.0f));
      throw_if_failed(giwa::for_all(p.where(), t->count(), start{t->value().data(), t->scale, ++seed}));
    }
  }

  // The scores of the letters that follow those of a batch.
  void forward(const std::vector<int>& ids) {
    ids_ = place_.put(ids);
    throw_if_failed(giwa::for_all(place_.where(), giwa::extents{all_rows, width},
                                  look_up{ids_.data(), letters_.value().data(), x_.view(), h_.view()}));
    multiply(x_.view(), qkv_weights_.value(), qkv_.view());
    throw_if_failed(giwa::attention_forward<depth, giwa::fp32_exact>(place_.where(), part(qkv_, 0), part(qkv_, 1),
                                                                     part(qkv_, 2), heads_of(a_), giwa::causal{},
                                                                     alibi(), {.lse = lse_.view()}));
    multiply(a_.view(), out_weights_.value(), h_.view(), true);
    multiply(h_.view(), next_weights_.value(), scores_.view());
  }

  // The loss of the batch, after forward(); its gradient takes the place of the scores.
  double loss() {
    throw_if_failed(
        giwa::for_all(place_.where(), all_rows, loss_of_row{ids_.data(), scores_.view(), loss_.view().data()}));
    double sum = 0;
    for (const float x : loss_.on_host(place_)) sum += static_cast<double>(x);
    return sum;
  }

  // The gradients of all tables, after loss().
  void backward() {
    multiply(h_.view().transposed(), scores_.view(), next_weights_.gradient());
    multiply(scores_.view(), next_weights_.value().transposed(), dh_.view());
    multiply(a_.view().transposed(), dh_.view(), out_weights_.gradient());
    multiply(dh_.view(), out_weights_.value().transposed(), da_.view());
    throw_if_failed(giwa::attention_backward<depth>(
        place_.where(), part(qkv_, 0), part(qkv_, 1), part(qkv_, 2), heads_of(a_), heads_of(da_), part(dqkv_, 0),
        part(dqkv_, 1), part(dqkv_, 2), giwa::causal{}, alibi(),
        {.lse = lse_.view(), .workspace = {workspace_.data(), {workspace_bytes()}}}));
    multiply(x_.view().transposed(), dqkv_.view(), qkv_weights_.gradient());
    multiply(dqkv_.view(), qkv_weights_.value().transposed(), dh_.view(), true);  // now with respect to x
    throw_if_failed(giwa::for_all(place_.where(), giwa::extents{alphabet, width},
                                  sum_of_places{ids_.data(), dh_.view(), letters_.gradient()}));
  }

  void update(int64 step) {
    const auto t = static_cast<float>(step + 1);
    for (table* w : tables()) {
      float* const first = w->value().data();
      const int64 n = w->count();
      throw_if_failed(giwa::for_all(
          place_.where(), n,
          adam{first, first + n, first + 2 * n, first + 3 * n, 1 - std::pow(0.9f, t), 1 - std::pow(0.99f, t)}));
    }
  }

  // What the model writes after a text. Each letter is drawn with a probability proportional to e^(2 score): that with the
  // largest 2 score - ln(-ln(u)), where u is uniformly distributed.
  std::string write(std::string s, int more) {
    const std::size_t begin = s.size();
    for (int i = 0; i < more; ++i) {
      const std::size_t seen = std::min(s.size(), static_cast<std::size_t>(seq_length));
      std::vector<int> ids(static_cast<std::size_t>(batch * (seq_length + 1)), 0);
      for (std::size_t n = 0; n < seen; ++n) ids[n] = letter_of(s[s.size() - seen + n]);
      forward(ids);
      const std::vector<float> all = scores_.on_host(place_);
      const auto last = all.begin() + static_cast<std::ptrdiff_t>(seen - 1) * alphabet;
      std::array<float, alphabet> drawn{};
      for (std::size_t n = 0; n < alphabet; ++n) {
        const float u = giwa::philox{36, n}.uniform<float>(s.size()) + 1e-9f;  // not 0
        drawn[n] = 2 * last[static_cast<std::ptrdiff_t>(n)] - std::log(-std::log(u));
      }
      s += char_of(static_cast<int>(std::max_element(drawn.begin(), drawn.end()) - drawn.begin()));
    }
    return s.substr(begin);
  }

 private:
  using memory_type = decltype(std::declval<const Place&>().template make<float>(0));
  using matrix = example::tensor<float, 2, Place>;

  // Weights, their gradients and the two averages of Adam, one after the other.
  struct table {
    int64 table_rows, columns;
    float scale;  // of the first values
    memory_type memory;
    int64 count() const { return table_rows * columns; }
    view2 value() { return {memory.data(), {table_rows, columns}}; }
    view2 gradient() { return {memory.data() + count(), {table_rows, columns}}; }
  };
  table make(int64 r, int64 c, float scale) const { return {r, c, scale, place_.template make<float>(4 * r * c)}; }
  std::array<table*, 5> tables() { return {&letters_, &qkv_weights_, &out_weights_, &next_weights_, &slopes_}; }

  void multiply(view2 a, view2 b, view2 to, bool add = false) {
    throw_if_failed(giwa::for_all(place_.where(), giwa::extents{to.extent(0), to.extent(1)}, product{a, b, to, add}));
  }
  giwa::alibi_with_gradient alibi() { return {slopes_.value().data(), view1(slopes_.gradient().data(), {heads})}; }
  static view4 heads_of(matrix& m) { return {m.view().data(), {batch, seq_length, heads, depth}}; }
  // q, k or v: slices of a tensor (all_rows, 3 width).
  static view4 part(matrix& m, int64 which) {
    return {m.view().data() + which * width,
            {batch, seq_length, heads, depth},
            {seq_length * 3 * width, 3 * width, depth, 1}};
  }
  int64 workspace_bytes() {
    return giwa::workspace_bytes(part(qkv_, 0), part(qkv_, 1), part(qkv_, 2), heads_of(a_), heads_of(da_),
                                 part(dqkv_, 0), part(dqkv_, 1), part(dqkv_, 2), giwa::causal{}, alibi());
  }

  const Place& place_;
  table letters_ = make(alphabet, width, 0.5f), qkv_weights_ = make(width, 3 * width, 0.2f),
        out_weights_ = make(width, width, 0.2f), next_weights_ = make(width, alphabet, 0.2f),
        slopes_ = make(heads, 1, 0.1f);
  matrix x_{place_, {all_rows, width}}, h_{place_, {all_rows, width}}, a_{place_, {all_rows, width}},
      dh_{place_, {all_rows, width}}, da_{place_, {all_rows, width}}, qkv_{place_, {all_rows, 3 * width}},
      dqkv_{place_, {all_rows, 3 * width}}, scores_{place_, {all_rows, alphabet}};
  example::tensor<float, 3, Place> lse_{place_, {batch, heads, seq_length}};
  example::tensor<float, 1, Place> loss_{place_, {all_rows}};
  decltype(std::declval<const Place&>().template make<int>(0)) ids_ = place_.template make<int>(1);
  decltype(std::declval<const Place&>().template make<unsigned char>(0)) workspace_ =
      place_.template make<unsigned char>(workspace_bytes());
};

// The loss of the last step.
template <class Place>
double train(const Place& place) {
  model<Place> m(place);
  std::printf("%s\nstep   loss     what it writes after \"this is the\"\n", Place::is_gpu ? "GPU" : "CPU");
  double loss = 0;
  for (int64 step = 0; step <= steps; ++step) {
    std::vector<int> ids;
    for (int64 b = 0; b < batch; ++b) {
      const auto from = giwa::philox{7, static_cast<giwa::uint64>(step)}(static_cast<giwa::uint64>(b)).word[0] %
                        (corpus.size() - seq_length);
      for (std::size_t i = 0; i <= seq_length; ++i) ids.push_back(letter_of(corpus[from + i]));
    }
    m.forward(ids);
    loss = m.loss();
    m.backward();
    m.update(step);
    if (step % 50 == 0)
      std::printf("%4d   %.4f   %s\n", static_cast<int>(step), loss, m.write("this is the", 70).c_str());
  }
  return loss;
}

int main() {
  return example::run_anywhere([](const auto& place) {
    const double here = train(place);
    if (!std::remove_cvref_t<decltype(place)>::is_gpu) return here < 0.5;
    const double on_cpu = train(example::on_cpu{});
    std::printf("GPU and CPU end with losses %.6f and %.6f\n", here, on_cpu);
    return here < 0.5 && std::abs(here - on_cpu) < 0.01;
  });
}
