// SPDX-License-Identifier: MIT
// One handler of XLA's FFI: attention or its gradients, for one element type, pair of head sizes and kind of mask, with
// or without a softcap, all of them macros. giwa_jax.py compiles it, with nvcc for a GPU and with the host compiler for the CPU.
#if defined(__CUDACC__)
#include <giwa/attention.cuh>
#if GIWA_JAX_BACKWARD
#include <giwa/attention_backward.cuh>
#endif
#else
#include <giwa/host.hpp>
#endif

#include <xla/ffi/api/ffi.h>

namespace {

namespace ffi = xla::ffi;
using giwa::int64;
using element = GIWA_JAX_ELEMENT;
constexpr int head_size = GIWA_JAX_HEAD_SIZE, head_size_v = GIWA_JAX_HEAD_SIZE_V;

// The arguments that are not tensors. All are static in a compiled function.
struct settings {
  int left, right;  // keys before and after the diagonal
  float softcap;
  bool bottom_right;
  giwa::alignment align() const { return bottom_right ? giwa::alignment::bottom_right : giwa::alignment::top_left; }
};

#if GIWA_JAX_MASK == 0
giwa::full mask_of(const settings&) { return {}; }
#elif GIWA_JAX_MASK == 1
giwa::causal mask_of(const settings& s) { return {s.align()}; }
#else
auto mask_of(const settings& s) { return giwa::keys_back{s.left, s.align()} & giwa::keys_ahead{s.right, s.align()}; }
#endif

#if GIWA_JAX_SOFTCAP
giwa::softcap score_of(const settings& s) { return giwa::softcap{s.softcap}; }
#else
giwa::plain_score score_of(const settings&) { return {}; }
#endif

// (..., length, heads, head size), row-major: all dimensions before the length are the batch.
template <class T>
giwa::tensor_view<T, 4> rows_of(const ffi::AnyBuffer& buffer) {
  const auto sizes = buffer.dimensions();
  int64 batch = 1;
  for (std::size_t i = 0; i + 3 < sizes.size(); ++i) batch *= sizes[i];
  return {static_cast<T*>(buffer.untyped_data()),
          {batch, sizes[sizes.size() - 3], sizes[sizes.size() - 2], sizes[sizes.size() - 1]}};
}
// lse and its gradient, (..., heads, length).
template <class T>
giwa::tensor_view<T, 3> numbers_of(const ffi::Buffer<ffi::F32>& buffer, const giwa::tensor_view<const element, 4>& q) {
  return {buffer.typed_data(), {q.extent(0), q.extent(2), q.extent(1)}};
}
giwa::sequences sequences_of(const ffi::Buffer<ffi::S32>& q_lengths, const ffi::Buffer<ffi::S32>& k_lengths) {
  const auto all = [](const auto& x) { return x.element_count() == 0 ? nullptr : x.typed_data(); };
  return {.q_lengths = all(q_lengths), .k_lengths = all(k_lengths)};
}

ffi::Error error_of(const giwa::status& s) {
  if (s.ok()) return ffi::Error::Success();
  const auto code = s.code == giwa::status_code::invalid_argument ? ffi::ErrorCode::kInvalidArgument
                    : s.code == giwa::status_code::not_supported  ? ffi::ErrorCode::kUnimplemented
                    : s.code == giwa::status_code::out_of_memory  ? ffi::ErrorCode::kResourceExhausted
                                                                  : ffi::ErrorCode::kInternal;
  return {code, giwa::format_status(s).c_str()};
}

// Where a call runs and takes its workspace from.
struct executor {
#if defined(__CUDACC__)
  cudaStream_t where;
  // Memory that XLA takes back when the handler returns, and gives to later work of the stream.
  ffi::ScratchAllocator scratch;
  giwa::status reserve(int64 bytes, giwa::tensor_view<unsigned char, 1>& workspace) {
    const auto memory = scratch.Allocate(static_cast<std::size_t>(bytes), 16);  // XLA refuses more
    if (!memory) return {.code = giwa::status_code::out_of_memory, .message = "XLA has no memory for the workspace"};
    workspace = {static_cast<unsigned char*>(*memory), {bytes}};
    return {};
  }
#else
  giwa::host_t where = giwa::host;
  static giwa::status reserve(int64, giwa::tensor_view<unsigned char, 1>&) { return {}; }  // the CPU needs none
#endif
};

#if GIWA_JAX_BACKWARD == 0

ffi::Error handle(executor at, ffi::AnyBuffer q_, ffi::AnyBuffer k_, ffi::AnyBuffer v_, ffi::Buffer<ffi::S32> q_lengths,
                  ffi::Buffer<ffi::S32> k_lengths, double scale, int left, int right, float softcap, bool bottom_right,
                  ffi::Result<ffi::AnyBuffer> o, ffi::Result<ffi::Buffer<ffi::F32>> lse) {
  const settings s{left, right, softcap, bottom_right};
  const auto q = rows_of<const element>(q_), k = rows_of<const element>(k_), v = rows_of<const element>(v_);
  giwa::attention_options options;
  options.scale = scale;
  options.lse = numbers_of<float>(*lse, q);
  options.align = s.align();
  options.sequences = sequences_of(q_lengths, k_lengths);
  const auto to = rows_of<element>(*o);
  if (const auto got = at.reserve(giwa::workspace_bytes(q, k, v, to, options), options.workspace); !got.ok())
    return error_of(got);
  return error_of(giwa::attention_forward<giwa::head_sizes<head_size, head_size_v>>(at.where, q, k, v, to, mask_of(s),
                                                                                    score_of(s), options));
}

#else

ffi::Error handle(executor at, ffi::AnyBuffer q_, ffi::AnyBuffer k_, ffi::AnyBuffer v_, ffi::Buffer<ffi::S32> q_lengths,
                  ffi::Buffer<ffi::S32> k_lengths, ffi::AnyBuffer o, ffi::Buffer<ffi::F32> lse, ffi::AnyBuffer dout_,
                  ffi::Buffer<ffi::F32> dlse, double scale, int left, int right, float softcap, bool bottom_right,
                  ffi::Result<ffi::AnyBuffer> dq, ffi::Result<ffi::AnyBuffer> dk, ffi::Result<ffi::AnyBuffer> dv) {
  const settings s{left, right, softcap, bottom_right};
  const auto q = rows_of<const element>(q_), k = rows_of<const element>(k_), v = rows_of<const element>(v_);
  giwa::attention_backward_options options;
  options.scale = scale;
  options.lse = numbers_of<const float>(lse, q);
  options.align = s.align();
  options.sequences = sequences_of(q_lengths, k_lengths);
  options.dlse = numbers_of<const float>(dlse, q);
  const auto output = rows_of<const element>(o), dout = rows_of<const element>(dout_);
  const auto to_q = rows_of<element>(*dq), to_k = rows_of<element>(*dk), to_v = rows_of<element>(*dv);
  const int64 bytes = giwa::workspace_bytes(q, k, v, output, dout, to_q, to_k, to_v, mask_of(s), score_of(s), options);
  if (const auto got = at.reserve(bytes, options.workspace); !got.ok()) return error_of(got);
  return error_of(giwa::attention_backward<giwa::head_sizes<head_size, head_size_v>>(
      at.where, q, k, v, output, dout, to_q, to_k, to_v, mask_of(s), score_of(s), options));
}

#endif

}  // namespace

template <>
struct xla::ffi::CtxDecoding<executor> {
  using Type = executor;
  static std::optional<executor> Decode([[maybe_unused]] const XLA_FFI_Api* api,
                                        [[maybe_unused]] XLA_FFI_ExecutionContext* context,
                                        [[maybe_unused]] DiagnosticEngine& diagnostic) {
#if defined(__CUDACC__)
    const auto stream = CtxDecoding<PlatformStream<cudaStream_t>>::Decode(api, context, diagnostic);
    auto scratch = CtxDecoding<ScratchAllocator>::Decode(api, context, diagnostic);
    if (!stream || !scratch) return std::nullopt;
    return executor{*stream, *std::move(scratch)};
#else
    return executor{};
#endif
  }
};

namespace {

// The inputs of both passes: q, k, v and the lengths of queries and keys.
auto inputs() {
  return ffi::Ffi::Bind()
      .Ctx<executor>()
      .Arg<ffi::AnyBuffer>()
      .Arg<ffi::AnyBuffer>()
      .Arg<ffi::AnyBuffer>()
      .Arg<ffi::Buffer<ffi::S32>>()
      .Arg<ffi::Buffer<ffi::S32>>();
}
template <class Binding>
auto with_settings(Binding&& binding) {
  return std::move(binding)
      .template Attr<double>("scale")
      .template Attr<int>("left")
      .template Attr<int>("right")
      .template Attr<float>("softcap")
      .template Attr<bool>("bottom_right");
}

}  // namespace

// One file is one library, so its one handler needs no other name.
#pragma GCC visibility push(default)
#if GIWA_JAX_BACKWARD == 0
XLA_FFI_DEFINE_HANDLER_SYMBOL(giwa_jax_handler, handle,
                              with_settings(inputs()).Ret<ffi::AnyBuffer>().Ret<ffi::Buffer<ffi::F32>>());
#else
XLA_FFI_DEFINE_HANDLER_SYMBOL(
    giwa_jax_handler, handle,
    with_settings(
        inputs().Arg<ffi::AnyBuffer>().Arg<ffi::Buffer<ffi::F32>>().Arg<ffi::AnyBuffer>().Arg<ffi::Buffer<ffi::F32>>())
        .Ret<ffi::AnyBuffer>()
        .Ret<ffi::AnyBuffer>()
        .Ret<ffi::AnyBuffer>());
#endif
#pragma GCC visibility pop
