// SPDX-License-Identifier: MIT
// The sizes of an attention problem: their limits, the workspace that they need, and which kernel runs them.
#ifndef GIWA_ATTENTION_PROBLEM_PROBLEM_HPP
#define GIWA_ATTENTION_PROBLEM_PROBLEM_HPP

#include <giwa/attention/problem/traits.hpp>
#include <giwa/attention/split_fp16/layout.hpp>
#include <giwa/base/status.hpp>
#include <giwa/numeric/integer.hpp>

namespace giwa::inline GIWA_ABI {

/// The sizes of a problem, for supports() and workspace_bytes().
struct attention_problem {
  int64 batch = 0;          ///< number of sequences
  int64 seq_q = 0;          ///< queries of each sequence; -1 if only the device knows, as with packed sequences
  int64 seq_k = 0;          ///< keys of each sequence; -1 if only the device knows
  int64 heads = 0;          ///< heads of q
  int64 kv_heads = 0;       ///< heads of k and v; divides heads
  int64 head_size = 0;      ///< of q and k
  int64 head_size_v = 0;    ///< of v and o
  int64 element_bytes = 2;  ///< of q, k and v: 4 for fp32, 1 for e4m3
  int64 rows_q = 0;         ///< queries of all sequences together, where seq_q is -1
  int64 rows_k = 0;         ///< keys of all sequences together, where seq_k is -1
};

/// The largest sizes that attention takes, on every path.
namespace attention_limits {
inline constexpr int64 head_size = 512;                       ///< of q and k, and of v and o
inline constexpr int64 cached_head_size = 576;                ///< of q and k in attention_cached()
inline constexpr int64 length = (int64{1} << 31) - 1 - 4096;  ///< rows of a tensor: the end of a tile is still an int
inline constexpr int64 heads = (int64{1} << 31) - 1;          ///< of q
}  // namespace attention_limits

/// Which kernel runs a problem.
enum class attention_path : int {
  simt,  ///< FMA in fp32: every GPU, and the host executor
  sm80,  ///< mma.sync and cp.async: capability 8.0 and newer
  sm90,  ///< wgmma and TMA, for layouts that TMA takes: capability 9.0, in a program built for 90a
};

namespace detail {

/// The first rule that the sizes break, on a GPU of this compute capability; 0 for the CPU. The head size of q and k is at most
/// `most_head_size`.
GIWA_HOST_DEVICE constexpr status check_sizes(const attention_problem& p, int capability,
                                              int64 most_head_size = attention_limits::head_size) {
  struct rule {
    int64 value, least, most;
    const char *argument, *message;
  };
  constexpr int64 any = (int64{1} << 31) - 1;
  const rule rules[] = {
      {p.head_size, 1, most_head_size, "q", "the head size is out of range"},
      {p.head_size_v, 1, attention_limits::head_size, "v", "the head size is out of range"},
      {p.batch, 0, any, "q", "the number of sequences is out of range"},
      {p.seq_q, -1, attention_limits::length, "q", "a length is out of range"},
      {p.seq_k, -1, attention_limits::length, "k", "a length is out of range"},
      {p.heads, 0, attention_limits::heads, "q", "the number of heads is out of range"},
      {p.kv_heads, 0, attention_limits::heads, "k", "the number of heads is out of range"},
      {p.rows_q, 0, max_int64, "q", "the number of rows of all sequences is negative"},
      {p.rows_k, 0, max_int64, "k", "the number of rows of all sequences is negative"},
  };
  for (const rule& r : rules) {
    if (r.value < r.least) return status::invalid(r.argument, r.message, bound::at_least, r.least, r.value);
    if (r.value > r.most) return status::invalid(r.argument, r.message, bound::at_most, r.most, r.value);
  }
  if (p.element_bytes != 1 && p.element_bytes != 2 && p.element_bytes != 4)
    return status::invalid("q", "an element must have 1, 2 or 4 bytes", bound::exactly,
                           p.element_bytes < 2   ? 1
                           : p.element_bytes < 4 ? 2
                                                 : 4,
                           p.element_bytes);
  if (p.heads > 0 && p.kv_heads == 0)
    return status::invalid("k", "q has heads but k and v have none", bound::at_least, 1, 0);
  if (p.kv_heads > 0 && p.heads % p.kv_heads != 0)
    return status::invalid("q", "the number of heads must be a multiple of that of k and v", bound::multiple_of,
                           p.kv_heads, p.heads);
  if (capability != 0 && capability < 75)
    return {status_code::not_supported,
            bound::at_least,
            0,
            "giwa needs compute capability 7.5 or newer",
            "capability",
            75,
            capability};
  return {};
}

}  // namespace detail

/// A GPU that a workspace is for: `workspace_bytes(…, {.capability = 90})`. 0 means that the number is not known.
struct workspace_gpu {
  int capability = 0;       ///< compute capability, 90 for 9.0
  int multiprocessors = 0;  ///< counts for attention_cached() alone
};

/// Returns the bytes of workspace that a call of attention_forward() can use: a work counter of 8 bytes, and for fp32
/// with head sizes up to 256 the split fp16 copies of q, k and v, about as large as these tensors with head sizes
/// rounded up to 64. The largest int64 where no 64-bit number holds the size, 8 for sizes that supports() refuses.
GIWA_HOST_DEVICE constexpr int64 workspace_bytes(const attention_problem& p) {
  if (!detail::are_split(p.element_bytes) || p.head_size > 256 || p.head_size_v > 256)
    return sizeof(detail::work_counter);
  if (!detail::check_sizes(p, 0).ok()) return sizeof(detail::work_counter);
  const auto rows = [&](int64 length, int64 packed) {
    return length < 0 ? packed : detail::saturating_product(p.batch, length);
  };
  return detail::split_tensors::bytes(
      {p.batch, rows(p.seq_q, p.rows_q), rows(p.seq_k, p.rows_k), p.heads, p.kv_heads, p.head_size, p.head_size_v});
}

/// Returns which kernel runs a problem of these sizes, or the first rule that the sizes break. Layouts are not known here:
/// tensors that TMA cannot address run on sm80 where the answer is sm90, those of e4m3 on simt. Needs no GPU.
/// Parameters:
///   - p: the sizes
///   - capability: of the GPU, 90 for 9.0, or 0 for the CPU; the program is taken to hold code for it
///   - workspace: bytes that the call gets: fp32 with fewer than workspace_bytes() runs without tensor cores
GIWA_HOST_DEVICE constexpr result<attention_path> supports(const attention_problem& p, int capability,
                                                           int64 workspace = max_int64) {
  if (const status s = detail::check_sizes(p, capability); !s.ok()) return {attention_path::simt, s};
  const bool narrow = p.head_size <= 256 && p.head_size_v <= 256;
  const bool splits = detail::are_split(p.element_bytes) && narrow && workspace >= workspace_bytes(p);
  const detail::gpu_traits gpu = detail::gpu_traits::of(capability);
  if (p.element_bytes == detail::element_traits<e4m3>::bytes)
    return {gpu.wgmma && narrow ? attention_path::sm90 : attention_path::simt, {}};
  if (!gpu.mma || !(splits || detail::are_on_tensor_cores(p.element_bytes))) return {attention_path::simt, {}};
  return {gpu.wgmma ? attention_path::sm90 : attention_path::sm80, {}};
}

}  // namespace giwa::inline GIWA_ABI

#endif
