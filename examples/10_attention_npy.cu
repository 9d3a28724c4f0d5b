// SPDX-License-Identifier: MIT
// Computes attention of queries, keys and values from .npy files, checks it in double precision, times it, writes it.
//
//   nvcc -std=c++20 -O3 -gencode arch=compute_90a,code=sm_90a -Iinclude examples/10_attention_npy.cu -o 10_attention_npy
//   ./10_attention_npy --in examples/data/layer_0 --out /tmp/result
//
// Run from the root of the repository. sm_90a is for an H100 or H200; -arch=native is for the GPU of this machine.
// To copy it, also copy: npy.hpp, support/attention_check.cuh, support/attention_compare.hpp, support/place.cuh.
// examples/data holds queries, keys and values of a language model (see its README.md). Without --in the numbers are random;
// run() below lists the options.
//
// What it teaches: a complete call. choose_head_size<…> lists the head sizes to compile if only the files know the size. One
// template serves three precisions. A wrong argument returns giwa's sentence before anything is written. A result is
// judged by its error against double precision, compared with the error of unfused attention in the same precision.
//
// Expected output, with the times of your machine:
//   layer_0: 1 x 108 queries of 12 heads of 32, 108 keys of 12 heads, mask full
//            error    plain's  ms       TFLOP/s  MB moved at least: fused, unfused
//     fp32   …        …        …        …        …
//     fp16   …        …        …        …        …
//     bf16   …        …        …        …        …
//   device: NVIDIA H200
//   check:  right
#include "npy.hpp"
#include "support/attention_check.cuh"

using giwa::int64;

/// The keys from `back` before the diagonal to `ahead` after it: one kernel for every mask that the options can ask for.
using window = decltype(giwa::keys_back{0} & giwa::keys_ahead{0});
window window_of(int back, int ahead) {
  constexpr giwa::alignment align = giwa::alignment::bottom_right;
  return giwa::keys_back{back, align} & giwa::keys_ahead{ahead, align};
}
constexpr int everything = 1 << 30;

struct options {
  std::vector<std::string> in;
  std::string out, precision = "all", device = "auto", mask = "full";
  window chosen = window_of(everything, everything);
};

/// Queries, keys and values in host memory, (batch, length, heads, head size).
struct problem {
  std::string name;
  npy::array q, k, v;
};

giwa::index<4> sizes_of(const npy::array& a) { return {a.shape[0], a.shape[1], a.shape[2], a.shape[3]}; }

problem read(const std::string& prefix) {
  problem p{prefix.substr(prefix.find_last_of('/') + 1), npy::read(prefix + "_q.npy"), npy::read(prefix + "_k.npy"),
            npy::read(prefix + "_v.npy")};
  for (const npy::array* a : {&p.q, &p.k, &p.v})
    if (a->shape.size() != 4) throw npy::error(prefix + "_*.npy", "each array is (batch, length, heads, head size)");
  return p;
}

problem random_problem() {
  const auto make = [](const std::vector<int64>& shape, giwa::uint64 seed) {
    npy::array a{shape, std::vector<float>(static_cast<std::size_t>(shape[0] * shape[1] * shape[2] * shape[3]))};
    for (std::size_t i = 0; i < a.values.size(); ++i)
      example::fill<float>{a.values.data(), seed}(static_cast<int64>(i));
    return a;
  };
  return {"random", make({2, 200, 8, 64}, 1), make({2, 200, 2, 64}, 2), make({2, 200, 2, 64}, 3)};
}

/// Scores that count, of all heads.
int64 pairs(const giwa::index<4>& q, int64 keys, const window& mask) {
  int64 one_head = 0;
  for (int query = 0; query < q[1]; ++query)
    for (int key = 0; key < keys; ++key)
      one_head += mask({0, 0, query, key, static_cast<int>(query + keys - q[1])}) ? 1 : 0;
  return q[0] * q[2] * one_head;
}

/// One line of the table.
template <class T, class Place>
bool attend(const Place& place, const problem& p, const options& o, const char* precision) {
  if (o.precision != "all" && o.precision != precision) return true;
  const auto narrow = [](const npy::array& a) {
    std::vector<T> values(a.values.size());
    std::ranges::transform(a.values, values.begin(), giwa::convert<T>{});
    return values;
  };
  const std::vector<T> q = narrow(p.q), k = narrow(p.k), v = narrow(p.v);
  giwa::index<4> q_sizes = sizes_of(p.q), o_sizes = q_sizes;
  o_sizes[3] = p.v.shape[3];
  const giwa::index<3> rows{q_sizes[0], q_sizes[2], q_sizes[1]};
  const auto q_there = place.put(q), k_there = place.put(k), v_there = place.put(v);
  example::tensor<T, 4, Place> out(place, o_sizes);
  auto lse_there = place.template make<float>(rows[0] * rows[1] * rows[2]);

  using view = giwa::tensor_view<const T, 4>;
  // Without a workspace fp32 is multiplied by ordinary arithmetic. Who says so compiles no other kernel.
  using accuracy = std::conditional_t<std::is_same_v<T, float>, giwa::fp32_exact, giwa::fp32>;
  const double ms = place.milliseconds([&] {
    // The head sizes of your model: each costs two seconds of compilation for each precision.
    return giwa::choose_head_size<32, 64>(q_sizes[3], [&](auto head_size) {
      return giwa::attention_forward<head_size, accuracy>(
          place.where(), view(q_there.data(), q_sizes), view(k_there.data(), sizes_of(p.k)),
          view(v_there.data(), sizes_of(p.v)), out.view(), o.chosen, {.lse = {lse_there.data(), rows}});
    });
  });

  const std::vector<T> result = out.on_host(place);
  const std::vector<float> lse = place.get(lse_there);
  const double work = example::flops(pairs(q_sizes, p.k.shape[1], o.chosen), q_sizes[3], o_sizes[3]);
  const int64 all_rows = work < 2e9 ? q_sizes[1] : 8;  // double precision takes its time
  const example::comparison c =
      example::compare(view(q.data(), q_sizes), view(k.data(), sizes_of(p.k)), view(v.data(), sizes_of(p.v)),
                       view(result.data(), o_sizes), o.chosen, giwa::plain_score{}, all_rows,
                       giwa::tensor_view<const float, 3>(lse.data(), rows));

  const double fused = static_cast<double>(q.size() + k.size() + v.size() + result.size()) * sizeof(T);
  const double scores = static_cast<double>(rows[0] * rows[1] * rows[2] * p.k.shape[1]) * sizeof(T);
  std::printf("  %s   %.1e  %.1e  %-8.4f %-8.3g %.2f, %.2f%s\n", precision, c.error, c.plain, ms, work / ms * 1e-9,
              fused / (1 << 20), (fused + 4 * scores) / (1 << 20), c.good() ? "" : "   WRONG");
  if (!o.out.empty()) {
    std::vector<float> wide(result.size());
    std::ranges::transform(result, wide.begin(), giwa::convert<float>{});
    const std::string name = o.out + p.name + "_" + precision;
    npy::write(name + "_o.npy", {{o_sizes[0], o_sizes[1], o_sizes[2], o_sizes[3]}, wide});
    npy::write(name + "_lse.npy", {{rows[0], rows[1], rows[2]}, lse});
  }
  return c.good();
}

template <class Place>
bool attend(const Place& place, const problem& p, const options& o) {
  const giwa::index<4> q = sizes_of(p.q), k = sizes_of(p.k);
  std::printf("%s: %lld x %lld queries of %lld heads of %lld, %lld keys of %lld heads, mask %s\n", p.name.c_str(),
              static_cast<long long>(q[0]), static_cast<long long>(q[1]), static_cast<long long>(q[2]),
              static_cast<long long>(q[3]), static_cast<long long>(k[1]), static_cast<long long>(k[2]), o.mask.c_str());
  std::printf("         error    plain's  ms       TFLOP/s  MB moved at least: fused, unfused\n");
  const bool fp32 = attend<float>(place, p, o, "fp32"), fp16 = attend<giwa::fp16>(place, p, o, "fp16");
  return attend<giwa::bf16>(place, p, o, "bf16") && fp32 && fp16;
}

template <class Place>
bool attend(const Place& place, const options& o) {
  if (o.in.empty()) return attend(place, random_problem(), o);
  bool right = true;
  for (const std::string& prefix : o.in) right = attend(place, read(prefix), o) && right;
  return right;
}

constexpr const char* usage =
    "  --in <prefix>                     reads <prefix>_q.npy, _k.npy and _v.npy; may be repeated\n"
    "  --out <prefix>                    writes <prefix><name>_<precision>_o.npy and _lse.npy\n"
    "  --mask full|causal|<n>            n: the n keys up to the query, itself among them\n"
    "  --precision fp32|fp16|bf16|all    what the inputs are rounded to\n"
    "  --device auto|gpu|cpu\n";

/// Whether the arguments make sense.
bool parse(int count, char** words, options& o) {
  const auto one_of = [](const std::string& word, std::initializer_list<const char*> list) {
    return std::ranges::any_of(list, [&](const char* x) { return word == x; });
  };
  for (int i = 1; i < count; i += 2) {
    const std::string name = words[i], value = i + 1 < count ? words[i + 1] : "";
    if (value.empty()) return false;
    if (name == "--in") {
      o.in.push_back(value);
    } else if (name == "--out") {
      o.out = value;
    } else if (name == "--precision" && one_of(value, {"fp32", "fp16", "bf16", "all"})) {
      o.precision = value;
    } else if (name == "--device" && one_of(value, {"auto", "gpu", "cpu"})) {
      o.device = value;
    } else if (name == "--mask") {
      const char* const end = value.data() + value.size();
      int keys = everything;
      if (!one_of(value, {"full", "causal"}) && (std::from_chars(value.data(), end, keys).ptr != end || keys < 1))
        return false;
      o.mask = value;
      o.chosen = window_of(keys == everything ? everything : keys - 1, value == "full" ? everything : 0);
    } else {
      return false;
    }
  }
  return true;
}

int main(int count, char** words) try {
  options o;
  if (!parse(count, words, o)) {
    std::fputs(usage, stderr);
    return 2;
  }
  const auto choice = example::choose_device();
  if (o.device == "gpu" && !choice.on_gpu()) throw npy::error("--device gpu", choice.found.advice);
  const bool gpu = choice.on_gpu() && o.device != "cpu";
  const bool right = gpu ? attend(example::on_gpu{}, o) : attend(example::on_cpu{}, o);
  std::printf("device: %s\n", gpu ? choice.found.properties.name : "CPU");
  if (o.device == "auto" && !gpu) std::printf("        %s\n", choice.found.advice);
  std::printf("check:  %s\n", right ? "right" : "FAILED");
  return right ? 0 : 1;
} catch (const std::exception& error) {  // giwa::status_error or npy::error
  std::fprintf(stderr, "%s\n", error.what());
  return 1;
}
