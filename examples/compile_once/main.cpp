// SPDX-License-Identifier: MIT
// Calls the attention that attend.cu compiles. A host compiler compiles this file, in a second or two.
#include <giwa/device.hpp>

#include <cmath>
#include <cstdio>
#include <vector>

#include "attend.hpp"

int main() try {
  constexpr giwa::int64 tokens = 100, heads = 2, head_size = 64;
  std::vector<giwa::fp16> x(tokens * heads * head_size), o;
  for (std::size_t i = 0; i < x.size(); ++i) x[i] = giwa::convert<giwa::fp16>{}(std::sin(0.1f * static_cast<float>(i)));

  const giwa::result<giwa::stream> stream = giwa::stream::create();
  if (!stream.ok()) {
    std::printf("compiled and linked, but not run: %s\n", giwa::format_status(stream.state).c_str());
    return 0;
  }
  const giwa::stream& s = stream.value;
  auto in = giwa::throw_if_failed(giwa::to_device(s, x)), out = giwa::throw_if_failed(giwa::to_device(s, x));
  const tensor q(in.data(), {1, tokens, heads, head_size}), to(out.data(), q.extents());
  giwa::throw_if_failed(attend<head_size, giwa::full>(s, q, q, q, to));
  giwa::throw_if_failed(attend<head_size, giwa::causal>(s, q, q, q, to));
  o = x;
  giwa::throw_if_failed(giwa::to_host(s, out, o));

  // The first query sees only the first key, so its o is the first v, which is x; the second one is a mean of two.
  const giwa::convert<float> number{};
  bool right = number(o[heads * head_size]) != number(x[heads * head_size]);
  for (std::size_t i = 0; i < heads * head_size; ++i) right = right && number(o[i]) == number(x[i]);
  std::printf("%s\n", right ? "right on the GPU" : "WRONG");
  return right ? 0 : 1;
} catch (const giwa::status_error& error) {
  std::fprintf(stderr, "%s\n", error.what());
  return 1;
}
