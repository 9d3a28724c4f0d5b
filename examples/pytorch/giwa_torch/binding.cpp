// SPDX-License-Identifier: MIT
// giwa's attention as operators of PyTorch: checks, outputs, autograd and autocast. Kernels are libraries that
// kernels.cu makes, which build.py compiles when a call first needs one.
#include <ATen/ATen.h>
#include <ATen/Parallel.h>
#include <ATen/autocast_mode.h>
#include <c10/core/Allocator.h>
#include <c10/core/DeviceGuard.h>
#include <c10/core/impl/VirtualGuardImpl.h>
#include <dlfcn.h>
#include <torch/csrc/autograd/autograd_not_implemented_fallback.h>
#include <torch/csrc/autograd/custom_function.h>
#include <torch/library.h>

#if defined(GIWA_TORCH_CUDA_STREAM)  // build.py: a PyTorch before 2.11 with CUDA
#include <c10/cuda/CUDAStream.h>
#endif

#include <algorithm>
#include <array>
#include <bit>
#include <cstdint>
#include <limits>
#include <mutex>
#include <shared_mutex>
#include <string>
#include <tuple>
#include <unordered_map>
#include <vector>

#include "call.hpp"

namespace {

using at::Tensor;
using optional_tensor = std::optional<Tensor>;
using giwa_torch::call;

// --- Kernel libraries -----------------------------------------------------------------------------------------------------

// Makes the library of a variant: 0 and its path, 1 if there can be none, 2 if that failed; both with what is wrong.
using compiler = int (*)(int pass, int on_gpu, int device, int element, int head_size, int head_size_v, int mask,
                         int score, char* text, std::size_t size);
compiler compile = nullptr;

struct library {
  std::int64_t (*workspace_bytes)(const call*);
  int (*run)(const call*, char* text, std::size_t size);
};

library load(int pass, const at::Device& device, int element, int64_t head_size, int64_t head_size_v, int mask,
             int score) {
  static std::shared_mutex mutex;
  static std::unordered_map<std::uint64_t, library> libraries;
  const bool on_gpu = !device.is_cpu();
  const int index = on_gpu ? device.index() : 0;
  std::uint64_t key = 0;
  const auto add = [&](int64_t value, int bits) { key = key << bits | static_cast<std::uint64_t>(value); };
  add(pass, 3), add(on_gpu, 1), add(index, 8), add(element, 2), add(head_size, 12), add(head_size_v, 12), add(mask, 3);
  add(score, 12);
  {
    const std::shared_lock lock(mutex);
    if (const auto at = libraries.find(key); at != libraries.end()) return at->second;
  }
  char text[4096] = "giwa_torch: import giwa_torch first";
  const int failed = compile == nullptr ? 2
                                        : compile(pass, on_gpu, index, element, static_cast<int>(head_size),
                                                  static_cast<int>(head_size_v), mask, score, text, sizeof text);
  TORCH_CHECK_NOT_IMPLEMENTED(failed != 1, text);
  TORCH_CHECK(failed == 0, text);
  void* const handle = dlopen(text, RTLD_NOW | RTLD_LOCAL);
  TORCH_CHECK(handle != nullptr, "giwa_torch: ", dlerror());
  library found{};
  found.workspace_bytes =
      reinterpret_cast<decltype(found.workspace_bytes)>(dlsym(handle, "giwa_torch_workspace_bytes"));
  found.run = reinterpret_cast<decltype(found.run)>(dlsym(handle, "giwa_torch_run"));
  TORCH_CHECK(found.workspace_bytes != nullptr && found.run != nullptr, "giwa_torch: ", text,
              " is no library of kernels");
  const std::unique_lock lock(mutex);
  return libraries[key] = found;
}

// The cudaStream_t of a stream. c10::Stream gives it since PyTorch 2.11; before that only c10::cuda::CUDAStream does, whose
// header needs the toolkit's. A template, so that the discarded branch may name what a version lacks.
template <class Stream>
void* native_handle(const Stream& stream) {
  if constexpr (requires { stream.native_handle(); }) {
    return stream.native_handle();
  } else {
#if defined(GIWA_TORCH_CUDA_STREAM)
    return c10::cuda::CUDAStream(stream).stream();
#else
    TORCH_CHECK(false, "giwa_torch: this PyTorch has no CUDA streams: ", stream);
#endif
  }
}

// Runs a call on the current stream of its device. The workspace is freed when this returns: to PyTorch's allocator,
// which gives it to later work of the same stream only.
void run(int pass, const Tensor& q, call& c, int64_t head_size, int64_t head_size_v, int mask, int score) {
  const at::Device device = q.device();
  const at::ScalarType type = q.scalar_type();
  const int element = type == at::kHalf ? 0 : type == at::kBFloat16 ? 1 : type == at::kFloat8_e4m3fn ? 3 : 2;
  const int64_t most = pass == giwa_torch::pass_cached ? 576 : 512;  // latent rows
  TORCH_CHECK_VALUE(head_size >= 1 && head_size <= most && head_size_v >= 1 && head_size_v <= 512,
                    "giwa_torch: head sizes must be 1 to ", std::to_string(most), " and 1 to 512, got ",
                    std::to_string(head_size), " and ", std::to_string(head_size_v));
  const library kernels = load(pass, device, element, head_size, head_size_v, mask, score);
  c10::DataPtr workspace;
  if (device.is_cpu()) {
    c.threads = at::get_num_threads();
  } else {
    c.stream = native_handle(c10::impl::VirtualGuardImpl(device.type()).getStream(device));
    c.workspace_bytes = kernels.workspace_bytes(&c);
    if (c.workspace_bytes > 0) {
      workspace = c10::GetAllocator(device.type())->allocate(static_cast<std::size_t>(c.workspace_bytes));
      c.workspace = workspace.get();
    }
  }
  char text[1024];
  const int code = kernels.run(&c, text, sizeof text);
  if (code == 0) return;
  switch (code) {  // giwa::status_code
    case 1: TORCH_CHECK_VALUE(false, text);
    case 2:
    case 6: TORCH_CHECK_NOT_IMPLEMENTED(false, text);
    case 3: TORCH_CHECK_WITH(OutOfMemoryError, false, text);
    default: TORCH_CHECK(false, text);
  }
}

// --- Tensors ---------------------------------------------------------------------------------------------------------------

void check_layout(const Tensor& t, const char* name, const Tensor& q, int64_t dimensions) {
  TORCH_CHECK_VALUE(t.layout() == at::kStrided, "giwa_torch: ", name, " must be a strided tensor");
  TORCH_CHECK_VALUE(t.device() == q.device(), "giwa_torch: ", name, " is on ", t.device(), ", q on ", q.device());
  // std::to_string, because a number written to a stream by the macro crashes in an extension that links libstdc++ statically.
  TORCH_CHECK_VALUE(t.dim() == dimensions, "giwa_torch: ", name, " must have ", std::to_string(dimensions),
                    " dimensions; it has ", std::to_string(t.dim()));
}
void check(const Tensor& t, const char* name, const Tensor& q, int64_t dimensions) {
  check_layout(t, name, q, dimensions);
  TORCH_CHECK_VALUE(t.scalar_type() == q.scalar_type(), "giwa_torch: ", name, " has elements of type ", t.scalar_type(),
                    ", q of type ", q.scalar_type());
}
void check_query(const Tensor& q, bool of_e4m3 = false) {
  const at::ScalarType type = q.scalar_type();
  TORCH_CHECK_NOT_IMPLEMENTED(
      of_e4m3 ? type == at::kFloat8_e4m3fn : type == at::kHalf || type == at::kBFloat16 || type == at::kFloat,
      "giwa_torch: the element type must be ", of_e4m3 ? "float8_e4m3fn" : "float16, bfloat16 or float32", "; it is ",
      type);
  TORCH_CHECK_NOT_IMPLEMENTED(q.is_cuda() || q.is_cpu(), "giwa_torch: q must be on a GPU or the CPU; it is on ",
                              q.device());
}
// A tensor whose last dimension is contiguous: copied only if it is not.
Tensor in_rows(const Tensor& t) { return t.size(-1) <= 1 || t.stride(-1) == 1 ? t : t.contiguous(); }
// Values, which in float8_e4m3fn may be K-major: dimension `length` is contiguous, and TMA addresses the others.
Tensor values_in_rows(const Tensor& t, bool of_e4m3, int64_t length) {
  bool columns =
      of_e4m3 && t.dim() == 4 && t.stride(length) == 1 && reinterpret_cast<std::uintptr_t>(t.data_ptr()) % 16 == 0;
  for (int64_t d = 0; d < t.dim(); ++d) columns = columns && (d == length || t.size(d) <= 1 || t.stride(d) % 16 == 0);
  return columns ? t : in_rows(t);
}

// (batch, length, heads, head size), from (batch, heads, length, head size) if `heads_first`, or from packed (rows,
// heads, head size).
giwa_torch::tensor rows_of(const Tensor& t, bool heads_first) {
  const int64_t column = t.size(-1) <= 1 ? 1 : t.stride(-1);
  if (t.dim() == 3) return {t.data_ptr(), {1, t.size(0), t.size(1), t.size(2)}, {0, t.stride(0), t.stride(1), column}};
  const int l = heads_first ? 2 : 1, h = 3 - l;
  return {t.data_ptr(), {t.size(0), t.size(l), t.size(h), t.size(3)}, {t.stride(0), t.stride(l), t.stride(h), column}};
}

// A tensor with the rows of `like` and so many columns, in the memory order of `like`: its dimensions before the last
// one are sorted by stride, and keep their place where that is 0. functional.py says the same to torch.compile.
Tensor empty_rows(const Tensor& like, int64_t columns, bool zero, std::optional<at::ScalarType> type = {}) {
  const int64_t outer = like.dim() - 1;
  std::array<int64_t, 3> order{0, 1, 2};
  for (int64_t i = 1; i < outer; ++i)
    for (int64_t j = i; j > 0; --j) {
      int64_t &before = order[static_cast<std::size_t>(j - 1)], &here = order[static_cast<std::size_t>(j)];
      if (like.stride(before) < like.stride(here) && like.stride(before) != 0) std::swap(before, here);
    }
  const auto dimensions = static_cast<std::size_t>(like.dim());
  std::array<int64_t, 4> sizes{}, strides{};
  std::copy_n(like.sizes().begin(), dimensions - 1, sizes.begin());
  sizes[dimensions - 1] = columns, strides[dimensions - 1] = 1;
  int64_t rows = columns;
  for (int64_t i = outer; i-- > 0;) {
    const auto d = static_cast<std::size_t>(order[static_cast<std::size_t>(i)]);
    strides[d] = rows, rows *= std::max<int64_t>(sizes[d], 1);
  }
  const Tensor t = at::empty_strided({sizes.data(), dimensions}, {strides.data(), dimensions},
                                     like.options().dtype(type.value_or(like.scalar_type())));
  if (zero) t.zero_();
  return t;
}

const int* numbers(const optional_tensor& t, const char* name, const Tensor& q, int64_t count) {
  if (!t) return nullptr;
  TORCH_CHECK_VALUE(t->device() == q.device() && t->scalar_type() == at::kInt, "giwa_torch: ", name,
                    " must be int32 and on ", q.device(), "; it is ", t->scalar_type(), " and on ", t->device());
  TORCH_CHECK_VALUE(t->dim() == 1 && t->size(0) == count && t->is_contiguous(), "giwa_torch: ", name,
                    " must be contiguous, of shape (", std::to_string(count), ",)");
  return t->const_data_ptr<int>();
}

// Numbers of heads in fp32, which `kept` keeps alive.
const float* of_heads(const Tensor& t, Tensor& kept) {
  kept = t.to(at::kFloat).contiguous();
  return kept.const_data_ptr<float>();
}
void set_sinks(call& c, const optional_tensor& sinks, const Tensor& q, Tensor& kept) {
  if (!sinks) return;
  TORCH_CHECK_VALUE(sinks->device() == q.device() && sinks->dim() == 1 && sinks->size(0) == c.q.sizes[2],
                    "giwa_torch: sinks must be (heads) on ", q.device(), ", with ", std::to_string(c.q.sizes[2]),
                    " heads");
  c.sinks = of_heads(*sinks, kept);
}
void set_slopes(call& c, const optional_tensor& slopes, const Tensor& q, Tensor& kept) {
  if (!slopes) return;
  const int64_t heads = c.q.sizes[2];
  TORCH_CHECK_VALUE(slopes->device() == q.device() && slopes->dim() >= 1 && slopes->dim() <= 2 &&
                        slopes->size(-1) == heads && (slopes->dim() == 1 || slopes->size(0) == c.sequences),
                    "giwa_torch: slopes must be (heads) or (batch, heads) on ", q.device(), ", with ",
                    std::to_string(c.sequences), " sequences and ", std::to_string(heads), " heads");
  c.slopes = of_heads(*slopes, kept);
  if (slopes->dim() == 2) c.slopes_stride = heads;
}

// A tensor that broadcasts to (batch, heads, queries, keys), with sizes of 1 where it does.
giwa_torch::tensor of_scores(const Tensor& t, const char* name, const std::array<int64_t, 4>& sizes, bool expand_rows) {
  TORCH_CHECK_VALUE(t.dim() <= 4, "giwa_torch: ", name, " must broadcast to (batch, heads, queries, keys)");
  giwa_torch::tensor found{t.data_ptr(), {1, 1, 1, 1}, {0, 0, 0, 0}};
  const int64_t first = 4 - t.dim();
  for (int64_t d = first; d < 4; ++d) {
    const int64_t size = t.size(d - first);
    TORCH_CHECK_VALUE(size == 1 || size == sizes[static_cast<std::size_t>(d)], "giwa_torch: ", name,
                      " must broadcast to (batch, heads, queries, keys): dimension ", std::to_string(d), " is ",
                      std::to_string(size), ", not ", std::to_string(sizes[static_cast<std::size_t>(d)]));
    if (size == 1) continue;
    found.sizes[d] = size, found.strides[d] = t.stride(d - first);
  }
  if (expand_rows) found.sizes[2] = sizes[2], found.sizes[3] = sizes[3];
  return found;
}

// Ids of the documents of queries or keys, (length) or (batch, length), and the step from a sequence to the next.
const int* ids(const optional_tensor& t, const char* name, const Tensor& q, int64_t batch, int64_t length,
               int64_t& step) {
  if (!t) return nullptr;
  TORCH_CHECK_VALUE(t->device() == q.device() && t->scalar_type() == at::kInt && t->dim() >= 1 && t->dim() <= 2 &&
                        t->size(-1) == length && (length <= 1 || t->stride(-1) == 1) &&
                        (t->dim() == 1 || t->size(0) == batch),
                    "giwa_torch: ", name, " must be int32, (length) or (batch, length), contiguous, on ", q.device(),
                    ", of ", std::to_string(batch), " sequences and length ", std::to_string(length));
  step = t->dim() == 2 ? t->stride(0) : 0;
  return t->const_data_ptr<int>();
}

int as_int(int64_t window) {  // unlimited below 0
  constexpr int64_t most = std::numeric_limits<int>::max();
  return static_cast<int>(window < 0 ? most : std::min(window, most));
}

// --- The operators ------------------------------------------------------------------------------------------------------

// What the passes share beyond q, k and v.
struct problem {
  optional_tensor mask, bias, slopes, sinks, q_offsets, k_offsets, q_lengths, k_lengths, k_batch_index;
  c10::SymInt max_q = 0;
  int64_t left = -1, right = -1;
  bool bottom_right = true;
  double softcap = 0;
  std::optional<double> scale;
  bool heads_first = false;
  double dropout = 0;
  optional_tensor dropout_seed;
  bool deterministic = false;  // gradients have the same bits in every run, as with torch.use_deterministic_algorithms
  optional_tensor mask_offsets, q_segments, k_segments, block_map;
  std::vector<int64_t> blocks;  // of the map, as in call

  bool partial() const { return q_offsets || q_lengths; }  // rows of q may belong to no sequence
  bool partial_keys() const { return partial() || k_lengths || k_batch_index; }
};

// A call with all that both passes have, and the tensors that it keeps alive.
struct prepared {
  call c{};
  Tensor q, k, v, slopes, sinks, bit_keys;
  int mask = 0, score = 0;

  prepared(const Tensor& q_, const Tensor& k_, const Tensor& v_, const problem& p, bool bias_gradient,
           bool of_e4m3 = false) {
    check_query(q_, of_e4m3);
    const int64_t dimensions = p.q_offsets ? 3 : 4;
    check(q_, "q", q_, dimensions), check(k_, "k", q_, dimensions), check(v_, "v", q_, dimensions);
    q = in_rows(q_), k = in_rows(k_), v = values_in_rows(v_, of_e4m3, p.heads_first ? 2 : 1);
    c.q = rows_of(q, p.heads_first), c.k = rows_of(k, p.heads_first), c.v = rows_of(v, p.heads_first);
    c.left = as_int(p.left), c.right = as_int(p.right), c.bottom_right = p.bottom_right;
    const int64_t heads = c.q.sizes[2];
    const std::array<int64_t, 4> sizes{c.q.sizes[0], heads, c.q.sizes[1], c.k.sizes[1]};
    const bool window = p.left >= 0 || p.right >= 0;
    // On the CPU one library serves all masks.
    mask = p.mask || q.is_cpu()         ? giwa_torch::mask_tensor
           : !window                    ? giwa_torch::mask_full
           : p.left < 0 && p.right == 0 ? giwa_torch::mask_causal
                                        : giwa_torch::mask_band;
    const bool packed = p.mask && p.mask->scalar_type() == at::kByte;
    if (p.mask && !packed) {
      TORCH_CHECK_VALUE(p.mask->scalar_type() == at::kBool && p.mask->device() == q.device(),
                        "giwa_torch: mask must be of bool and on ", q.device());
      TORCH_CHECK_NOT_IMPLEMENTED(!p.q_offsets, "giwa_torch: mask with packed sequences");
      c.mask = of_scores(*p.mask, "mask", sizes, false);
    }
    if (p.bias) {
      const bool wide = p.bias->scalar_type() == at::kFloat && q.scalar_type() != at::kFloat;
      TORCH_CHECK_VALUE((wide || p.bias->scalar_type() == q.scalar_type()) && p.bias->device() == q.device(),
                        "giwa_torch: bias must have the type of q, or float32, and be on ", q.device(), "; it is ",
                        p.bias->scalar_type());
      TORCH_CHECK_NOT_IMPLEMENTED(!p.q_offsets, "giwa_torch: bias with packed sequences");
      c.bias = of_scores(*p.bias, "bias", sizes, bias_gradient);
      if (sizes[3] > 0)  // without keys there is nothing to add it to
        score |= (bias_gradient ? giwa_torch::score_bias_gradient : giwa_torch::score_bias) |
                 (wide ? giwa_torch::score_bias_float : 0);
    }
    if (p.softcap != 0) c.softcap = static_cast<float>(p.softcap), score |= giwa_torch::score_softcap;
    c.has_scale = p.scale.has_value(), c.scale = p.scale.value_or(0);
    const int64_t count = p.q_offsets ? p.q_offsets->numel() - 1 : q.size(0);
    TORCH_CHECK_VALUE(count >= 0, "giwa_torch: q_offsets is empty");
    c.sequences = count, c.max_q = p.max_q.expect_int();
    set_slopes(c, p.slopes, q, slopes);
    if (p.slopes) score |= giwa_torch::score_alibi;
    set_sinks(c, p.sinks, q, sinks);
    TORCH_CHECK_VALUE(p.dropout >= 0 && p.dropout < 1,
                      "giwa_torch: the probability of dropout must be at least 0 and less than 1");
    if (p.dropout > 0) {
      TORCH_CHECK_VALUE(p.dropout_seed && p.dropout_seed->device() == q.device() &&
                            p.dropout_seed->scalar_type() == at::kLong && p.dropout_seed->numel() == 1,
                        "giwa_torch: dropout_seed must be a number of int64 on ", q.device());
      c.dropout = static_cast<float>(p.dropout);
      c.dropout_seed = static_cast<const std::uint64_t*>(p.dropout_seed->const_data_ptr());
      score |= giwa_torch::score_dropout;
    }
    TORCH_CHECK_VALUE(p.q_offsets.has_value() == p.k_offsets.has_value(),
                      "giwa_torch: q_offsets and k_offsets go together");
    c.q_offsets = numbers(p.q_offsets, "q_offsets", q, count + 1);
    c.k_offsets = numbers(p.k_offsets, "k_offsets", q, count + 1);
    c.q_lengths = numbers(p.q_lengths, "q_lengths", q, count);
    c.k_lengths = numbers(p.k_lengths, "k_lengths", q, count);
    c.k_batch_index = numbers(p.k_batch_index, "k_batch_index", q, count);
    if (packed) set_bits(p, sizes);
    if (p.block_map) set_blocks(p, sizes);
  }

 private:
  // Packed bits, which begin at each sequence's byte of mask_offsets, or serve all sequences.
  void set_bits(const problem& p, const std::array<int64_t, 4>& sizes) {
    const Tensor& bits = *p.mask;
    TORCH_CHECK_VALUE(bits.device() == q.device() && bits.dim() == 1 && bits.is_contiguous(),
                      "giwa_torch: a mask of packed bits must be contiguous, of one dimension, and on ", q.device());
    if (p.mask_offsets) {  // FlashInfer's have one more, which is not read
      const int64_t given = p.mask_offsets->numel();
      c.bit_offsets = numbers(p.mask_offsets, "mask_offsets", q, given == c.sequences ? given : c.sequences + 1);
    } else {
      const int64_t bytes = (sizes[2] * sizes[3] + 7) / 8;
      TORCH_CHECK_VALUE(!p.q_offsets && bits.numel() == bytes,
                        "giwa_torch: a mask of packed bits must have a bit for each query and key, here ",
                        std::to_string(bytes), " bytes, which serve all sequences, or mask_offsets; it has ",
                        std::to_string(bits.numel()), " bytes");
    }
    bit_keys = p.k_lengths   ? *p.k_lengths
               : p.k_offsets ? p.k_offsets->slice(0, 1) - p.k_offsets->slice(0, 0, -1)
                             : at::full({c.sequences}, sizes[3], q.options().dtype(at::kInt));
    c.bits = bits.const_data_ptr<unsigned char>(), c.bit_keys = bit_keys.const_data_ptr<int>();
    mask = giwa_torch::mask_data;
  }
  void set_blocks(const problem& p, const std::array<int64_t, 4>& sizes) {
    TORCH_CHECK_VALUE(p.blocks.size() == 7 && p.block_map->device() == q.device(),
                      "giwa_torch: block_map must be what make_block_map returned, on ", q.device());
    std::copy(p.blocks.begin(), p.blocks.end(), c.blocks);
    c.block_words = p.block_map->data_ptr();
    c.q_segments = ids(p.q_segments, "segment_ids of queries", q, sizes[0], sizes[2], c.q_segment_stride);
    c.k_segments = ids(p.k_segments, "segment_ids of keys", q, sizes[0], sizes[3], c.k_segment_stride);
    mask = giwa_torch::mask_blocks;
  }
};

// Makes a block_map of FlexAttention's lists, (batch, heads, rows of blocks) and (batch, heads, rows of blocks, capacity).
// `blocks` are the numbers of the map, as in call.
Tensor make_block_map(const Tensor& counts, const Tensor& indices, const optional_tensor& full_counts,
                      const optional_tensor& full_indices, at::IntArrayRef blocks) {
  const c10::OptionalDeviceGuard guard(counts.device());
  call c{};
  TORCH_CHECK_VALUE(blocks.size() == 7, "giwa_torch: a block_map has 7 numbers");
  std::copy(blocks.begin(), blocks.end(), c.blocks);
  const auto list = [&](const Tensor& t, int64_t dimensions) {
    TORCH_CHECK_VALUE(t.device() == counts.device() && t.scalar_type() == at::kInt && t.dim() == dimensions,
                      "giwa_torch: the lists of a BlockMask must be int32, (batch, heads, rows of blocks) and (batch, "
                      "heads, rows of blocks, capacity), and on one device");
    giwa_torch::tensor found{t.data_ptr(), {1, 1, 1, 1}, {}};
    for (int64_t d = 0; d < dimensions; ++d) found.sizes[d] = t.size(d), found.strides[d] = t.stride(d);
    return found;
  };
  const auto set = [&](int i, const Tensor& of_counts, const Tensor& of_indices) {
    const giwa_torch::tensor both[] = {list(of_counts, 3), list(of_indices, 4)};
    if (of_indices.numel() > 0) c.counts[i] = both[0], c.indices[i] = both[1];  // else there are no blocks
  };
  set(1, counts, indices);
  if (full_counts && full_indices) set(0, *full_counts, *full_indices);
  const library kernels = load(giwa_torch::pass_block_map, counts.device(), 2, 1, 1, 0, 0);
  const Tensor map = at::empty({kernels.workspace_bytes(&c) / 4}, counts.options());
  c.block_words = map.data_ptr();
  run(giwa_torch::pass_block_map, map, c, 1, 1, 0, 0);
  return map;
}

Tensor empty_lse(const call& c, const Tensor& q, bool fill) {
  const auto options = q.options().dtype(at::kFloat);
  const Tensor lse = q.dim() == 3 ? at::empty({c.q.sizes[2], c.q.sizes[1]}, options)
                                  : at::empty({c.q.sizes[0], c.q.sizes[2], c.q.sizes[1]}, options);
  if (fill) lse.fill_(-std::numeric_limits<float>::infinity());
  return lse;
}

std::tuple<Tensor, Tensor> attend(const Tensor& q, const Tensor& k, const Tensor& v, const problem& p) {
  const c10::OptionalDeviceGuard guard(q.device());
  prepared ready(q, k, v, p, false);
  call& c = ready.c;
  const Tensor o = empty_rows(q, v.size(-1), p.partial()), lse = empty_lse(c, q, p.partial());
  c.o = rows_of(o, p.heads_first), c.lse = lse.data_ptr<float>();
  run(giwa_torch::pass_forward, ready.q, c, q.size(-1), v.size(-1), ready.mask, ready.score);
  return {o, lse};
}

enum input { of_q, of_k, of_v, of_bias, of_slopes, of_sinks, inputs };

// The gradients that are wanted, in the order of `input`.
std::vector<Tensor> differentiate(const Tensor& dout_, const optional_tensor& dlse, const Tensor& q, const Tensor& k,
                                  const Tensor& v, const Tensor& o_, const Tensor& lse, const problem& p,
                                  const std::array<bool, inputs>& wanted) {
  const c10::OptionalDeviceGuard guard(q.device());
  prepared ready(q, k, v, p, wanted[of_bias]);
  call& c = ready.c;
  const Tensor o = in_rows(o_), dout = in_rows(dout_);
  const Tensor lse_rows = lse.contiguous();
  check(o, "o", q, q.dim()), check(dout, "the gradient of o", q, q.dim());
  TORCH_CHECK_VALUE(lse.scalar_type() == at::kFloat && lse.numel() == c.q.sizes[0] * c.q.sizes[1] * c.q.sizes[2],
                    "giwa_torch: lse must be what attention returned");
  c.o = rows_of(o, p.heads_first), c.dout = rows_of(dout, p.heads_first), c.lse = lse_rows.data_ptr<float>();
  Tensor dlse_rows;
  if (dlse) dlse_rows = dlse->to(at::kFloat).contiguous(), c.dlse = dlse_rows.const_data_ptr<float>();

  std::array<Tensor, inputs> gradients;
  const std::array<const Tensor*, 3> tensors{&q, &k, &v};
  const std::array<giwa_torch::tensor*, 3> outputs{&c.dq, &c.dk, &c.dv};
  for (std::size_t i = 0; i < 3; ++i) {
    if (!wanted[i]) continue;
    gradients[i] = empty_rows(*tensors[i], tensors[i]->size(-1), i == of_q ? p.partial() : p.partial_keys());
    *outputs[i] = rows_of(gradients[i], p.heads_first);
  }
  const auto fp32 = q.options().dtype(at::kFloat);
  if (wanted[of_bias]) {  // of the expanded rows; sequences and heads that share the bias share its gradient
    gradients[of_bias] = at::zeros({c.bias.sizes[0], c.bias.sizes[1], c.bias.sizes[2], c.bias.sizes[3]}, fp32);
    const Tensor& d = gradients[of_bias];
    c.dbias = {d.data_ptr(),
               {d.size(0), d.size(1), d.size(2), d.size(3)},
               {d.stride(0), d.stride(1), d.stride(2), d.stride(3)}};
  }
  if (wanted[of_slopes]) {
    TORCH_CHECK_NOT_IMPLEMENTED(p.slopes->dim() == 1,
                                "giwa_torch: the gradient of slopes (batch, heads); only that of (heads)");
    gradients[of_slopes] = at::zeros({c.q.sizes[2]}, fp32);
    c.dslopes = gradients[of_slopes].data_ptr<float>();
    ready.score += giwa_torch::score_alibi_gradient - giwa_torch::score_alibi;
  }
  if (wanted[of_sinks]) {
    gradients[of_sinks] = at::zeros({c.q.sizes[2]}, fp32);
    c.dsinks = gradients[of_sinks].data_ptr<float>();
  }
  c.any_order = !p.deterministic && !at::globalContext().deterministicAlgorithms();
  run(giwa_torch::pass_backward, ready.q, c, q.size(-1), v.size(-1), ready.mask, ready.score);

  if (wanted[of_bias]) gradients[of_bias] = gradients[of_bias].sum_to_size(p.bias->sizes()).to(p.bias->scalar_type());
  if (wanted[of_slopes]) gradients[of_slopes] = gradients[of_slopes].to(p.slopes->scalar_type());
  if (wanted[of_sinks]) gradients[of_sinks] = gradients[of_sinks].to(p.sinks->scalar_type());
  std::vector<Tensor> found;
  for (std::size_t i = 0; i < inputs; ++i)
    if (wanted[i]) found.push_back(gradients[i]);
  return found;
}

// The arguments of both operators after q, k and v (and o), as the schema has them.
#define GIWA_TORCH_PARAMETERS                                                                                         \
  const optional_tensor &mask, const optional_tensor &bias, const optional_tensor &slopes,                            \
      const optional_tensor &sinks, const optional_tensor &q_offsets, const optional_tensor &k_offsets,               \
      const optional_tensor &q_lengths, const optional_tensor &k_lengths, const optional_tensor &k_batch_index,       \
      c10::SymInt max_q, int64_t left, int64_t right, bool bottom_right, double softcap, std::optional<double> scale, \
      bool heads_first, double dropout, const optional_tensor &dropout_seed, bool deterministic,                      \
      const optional_tensor &mask_offsets, const optional_tensor &q_segments, const optional_tensor &k_segments,      \
      const optional_tensor &block_map, at::IntArrayRef blocks
#define GIWA_TORCH_ARGUMENTS                                                                                     \
  mask, bias, slopes, sinks, q_offsets, k_offsets, q_lengths, k_lengths, k_batch_index, max_q, left, right,      \
      bottom_right, softcap, scale, heads_first, dropout, dropout_seed, deterministic, mask_offsets, q_segments, \
      k_segments, block_map, blocks.vec()
#define GIWA_TORCH_MEMBERS(p)                                                                                         \
  p.mask, p.bias, p.slopes, p.sinks, p.q_offsets, p.k_offsets, p.q_lengths, p.k_lengths, p.k_batch_index, p.max_q,    \
      p.left, p.right, p.bottom_right, p.softcap, p.scale, p.heads_first, p.dropout, p.dropout_seed, p.deterministic, \
      p.mask_offsets, p.q_segments, p.k_segments, p.block_map, p.blocks
constexpr auto schema_of_arguments =
    "Tensor? mask, Tensor? bias, Tensor? slopes, Tensor? sinks, Tensor? q_offsets, Tensor? k_offsets, Tensor? "
    "q_lengths, "
    "Tensor? k_lengths, Tensor? k_batch_index, SymInt max_q, int left, int right, bool bottom_right, float softcap, "
    "float? scale, bool heads_first, float dropout=0.0, Tensor? dropout_seed=None, bool "
    "deterministic=False, Tensor? mask_offsets=None, Tensor? q_segments=None, Tensor? k_segments=None, Tensor? "
    "block_map=None, int[] blocks=[]";

std::tuple<Tensor, Tensor> attention(const Tensor& q, const Tensor& k, const Tensor& v, GIWA_TORCH_PARAMETERS) {
  return attend(q, k, v, {GIWA_TORCH_ARGUMENTS});
}
std::vector<Tensor> attention_backward(const Tensor& dout, const optional_tensor& dlse, const Tensor& q,
                                       const Tensor& k, const Tensor& v, const Tensor& o, const Tensor& lse,
                                       GIWA_TORCH_PARAMETERS, std::array<bool, inputs> wanted) {
  return differentiate(dout, dlse, q, k, v, o, lse, {GIWA_TORCH_ARGUMENTS}, wanted);
}

std::tuple<Tensor, Tensor> call_attention(const Tensor& q, const Tensor& k, const Tensor& v, const problem& p) {
  static const auto op =
      c10::Dispatcher::singleton().findSchemaOrThrow("giwa::attention", "").typed<decltype(attention)>();
  return op.call(q, k, v, GIWA_TORCH_MEMBERS(p));
}

// --- Autograd ------------------------------------------------------------------------------------------------------------

struct Attention : torch::autograd::Function<Attention> {
  using variables = torch::autograd::variable_list;

  // The tensors of a problem, those that may have gradients first.
  template <class Problem>
  static auto tensors_of(Problem& p) {
    return std::array{&p.bias,         &p.slopes,     &p.sinks,      &p.mask,          &p.q_offsets,
                      &p.k_offsets,    &p.q_lengths,  &p.k_lengths,  &p.k_batch_index, &p.dropout_seed,
                      &p.mask_offsets, &p.q_segments, &p.k_segments, &p.block_map};
  }

  // Saves what is there in few objects, because each costs host time: q, k, v, o, lse and tensors, and one list of numbers.
  static variables forward(torch::autograd::AutogradContext* ctx, const Tensor& q, const Tensor& k, const Tensor& v,
                           const optional_tensor&, const optional_tensor&, const optional_tensor&, const problem& p) {
    const at::AutoDispatchBelowADInplaceOrView guard;
    auto [o, lse] = call_attention(q, k, v, p);
    variables saved{q, k, v, o, lse};
    int64_t present = 0;
    const auto tensors = tensors_of(p);
    for (std::size_t i = 0; i < tensors.size(); ++i)
      if (*tensors[i]) present |= int64_t{1} << i, saved.push_back(**tensors[i]);
    ctx->save_for_backward(std::move(saved));
    const auto bits = [](double x) { return std::bit_cast<int64_t>(x); };
    c10::List<int64_t> numbers({present, p.left, p.right, p.bottom_right, p.heads_first, p.scale.has_value(),
                                bits(p.scale.value_or(0)), bits(p.softcap), bits(p.dropout), p.deterministic});
    for (const int64_t n : p.blocks) numbers.push_back(n);
    ctx->saved_data["numbers"] = std::move(numbers);
    if (p.q_offsets) ctx->saved_data["max_q"] = p.max_q;
    ctx->set_materialize_grads(false);
    return {o, lse};
  }

  static variables backward(torch::autograd::AutogradContext* ctx, const variables& gradients) {
    const variables saved = ctx->get_saved_variables();
    const c10::List<int64_t> numbers = ctx->saved_data["numbers"].toIntList();
    problem p;
    const int64_t present = numbers[0];
    const auto tensors = tensors_of(p);
    for (std::size_t i = 0, next = 5; i < tensors.size(); ++i)
      if ((present >> i & 1) != 0) *tensors[i] = saved[next++];
    p.left = numbers[1], p.right = numbers[2], p.bottom_right = numbers[3] != 0, p.heads_first = numbers[4] != 0;
    if (numbers[5] != 0) p.scale = std::bit_cast<double>(int64_t{numbers[6]});
    p.softcap = std::bit_cast<double>(int64_t{numbers[7]}), p.dropout = std::bit_cast<double>(int64_t{numbers[8]});
    p.deterministic = numbers[9] != 0;
    for (std::size_t i = 10; i < numbers.size(); ++i) p.blocks.push_back(numbers[i]);
    if (p.q_offsets) p.max_q = ctx->saved_data["max_q"].toSymInt();
    variables found(inputs + 1);  // and of the problem
    std::array<bool, inputs> wanted{};
    for (std::size_t i = 0, edge = 0; i < inputs; ++i)  // tensors that are not there have no edge
      if (i < 3 || *tensors[i - 3]) wanted[i] = ctx->needs_input_grad(edge++);
    if (!gradients[0].defined() && !gradients[1].defined()) return found;
    const Tensor dout = gradients[0].defined() ? gradients[0] : at::zeros_like(saved[3]);
    static const auto op = c10::Dispatcher::singleton()
                               .findSchemaOrThrow("giwa::attention_backward", "")
                               .typed<decltype(attention_backward)>();
    const std::vector<Tensor> computed =
        op.call(dout, gradients[1].defined() ? optional_tensor(gradients[1]) : std::nullopt, saved[0], saved[1],
                saved[2], saved[3], saved[4], GIWA_TORCH_MEMBERS(p), wanted);
    for (std::size_t i = 0, next = 0; i < inputs; ++i)
      if (wanted[i]) found[i] = computed[next++];
    return found;
  }
};

std::tuple<Tensor, Tensor> attention_autograd(const Tensor& q, const Tensor& k, const Tensor& v,
                                              GIWA_TORCH_PARAMETERS) {
  const problem p{GIWA_TORCH_ARGUMENTS};
  const auto needs = [](const optional_tensor& t) { return t && t->requires_grad(); };
  const auto has_tangent = [](const optional_tensor& t) { return t && t->_fw_grad(0).defined(); };
  TORCH_CHECK_NOT_IMPLEMENTED(!has_tangent(q) && !has_tangent(k) && !has_tangent(v) && !has_tangent(bias) &&
                                  !has_tangent(slopes) && !has_tangent(sinks),
                              "giwa_torch: forward-mode differentiation");
  if (!at::GradMode::is_enabled() ||
      !(q.requires_grad() || k.requires_grad() || v.requires_grad() || needs(bias) || needs(slopes) || needs(sinks))) {
    const at::AutoDispatchBelowADInplaceOrView guard;
    return call_attention(q, k, v, p);
  }
  const auto found = Attention::apply(q, k, v, bias, slopes, sinks, p);
  return {found[0], found[1]};
}

template <at::DeviceType Device>
std::tuple<Tensor, Tensor> attention_autocast(const Tensor& q, const Tensor& k, const Tensor& v,
                                              GIWA_TORCH_PARAMETERS) {
  const c10::impl::ExcludeDispatchKeyGuard guard(
      c10::DispatchKeySet(Device == at::kCPU ? c10::DispatchKey::AutocastCPU : c10::DispatchKey::AutocastCUDA));
  const at::ScalarType type = at::autocast::get_autocast_dtype(Device);
  const auto cast = [&](const auto& t) { return at::autocast::cached_cast(type, t, Device); };
  problem p{GIWA_TORCH_ARGUMENTS};
  p.bias = cast(bias);
  return call_attention(cast(q), cast(k), cast(v), p);
}

// --- A cache of keys and values --------------------------------------------------------------------------------------------

// The scales of an 8-bit cache, with a stride of 0 in dimensions of size 1 that are repeated.
giwa_torch::tensor scales_of(const optional_tensor& t, const char* name, const Tensor& cache) {
  if (!t) return {};
  const auto fits = [&](int64_t d) { return t->size(d) == 1 || t->size(d) == cache.size(d); };
  TORCH_CHECK_VALUE(
      t->device() == cache.device() && t->scalar_type() == at::kFloat && t->dim() == 3 && fits(0) && fits(1) && fits(2),
      "giwa_torch: ", name, " must be float32 on ", cache.device(),
      ", with the first three dimensions of the cache or 1 for any of them");
  giwa_torch::tensor found{t->data_ptr(), {1, 1, 1, 1}, {0, 0, 0, 0}};
  for (int64_t d = 0; d < 3; ++d)
    if (t->stride(d) != 0) found.sizes[d] = t->size(d), found.strides[d] = t->stride(d);
  return found;
}

// Attention of float8_e4m3fn, whose o is bfloat16. An element stands for its value times its scale: (batch or 1, 1, heads).
std::tuple<Tensor, Tensor> attention_e4m3(const Tensor& q, const Tensor& k, const Tensor& v,
                                          const optional_tensor& q_scales, const optional_tensor& k_scales,
                                          const optional_tensor& v_scales, const optional_tensor& slopes,
                                          const optional_tensor& sinks, const optional_tensor& q_offsets,
                                          const optional_tensor& k_offsets, int64_t max_q, int64_t left, int64_t right,
                                          bool bottom_right, double softcap, std::optional<double> scale) {
  const c10::OptionalDeviceGuard guard(q.device());
  problem p;
  p.slopes = slopes, p.sinks = sinks, p.q_offsets = q_offsets, p.k_offsets = k_offsets, p.max_q = max_q;
  p.left = left, p.right = right, p.bottom_right = bottom_right, p.softcap = softcap, p.scale = scale;
  prepared ready(q, k, v, p, false, true);
  call& c = ready.c;
  const auto set = [&](const optional_tensor& t, const char* name, int64_t heads) -> giwa_torch::tensor {
    if (!t) return {};
    TORCH_CHECK_VALUE(t->device() == q.device() && t->scalar_type() == at::kFloat && t->dim() == 3 &&
                          (t->size(0) == 1 || t->size(0) == c.q.sizes[0]) && t->size(1) == 1 &&
                          (t->size(2) == 1 || t->size(2) == heads),
                      "giwa_torch: ", name, " must be float32 on ", q.device(), ", (batch or 1, 1, heads or 1)");
    return {t->data_ptr(), {t->size(0), 1, t->size(2), 1}, {t->stride(0), 1, t->stride(2), 1}};
  };
  c.q_scales = set(q_scales, "q_scales", c.q.sizes[2]);
  c.k_scales = set(k_scales, "k_scales", c.k.sizes[2]), c.v_scales = set(v_scales, "v_scales", c.k.sizes[2]);
  const Tensor o = empty_rows(q, v.size(-1), p.partial(), at::kBFloat16), lse = empty_lse(c, q, p.partial());
  c.o = rows_of(o, false), c.lse = lse.data_ptr<float>();
  run(giwa_torch::pass_forward, ready.q, c, q.size(-1), v.size(-1), ready.mask, ready.score);
  return {o, lse};
}

// Sets what both calls have of a cache, and returns its cache_flag, or 0.
int set_cache(call& c, const Tensor& k_cache, const Tensor& v_cache, const optional_tensor& k_scales,
              const optional_tensor& v_scales, const optional_tensor& lengths, const optional_tensor& pages,
              const Tensor& first, int64_t sequences) {
  const at::ScalarType type = k_cache.scalar_type();
  const int flag = type == at::kFloat8_e4m3fn                     ? giwa_torch::cache_e4m3
                   : type == at::kChar                            ? giwa_torch::cache_int8
                   : type == at::kByte && k_cache.size(-1) == 656 ? giwa_torch::cache_rows_656
                   : type == at::kByte                            ? giwa_torch::cache_int4
                                                                  : 0;
  check_layout(k_cache, "k_cache", first, 4), check_layout(v_cache, "v_cache", first, 4);
  TORCH_CHECK_VALUE(flag != 0 || type == first.scalar_type(), "giwa_torch: k_cache has elements of type ", type,
                    "; it must be q's, ", first.scalar_type(), ", or float8_e4m3fn, int8 or uint8");
  TORCH_CHECK_VALUE(v_cache.scalar_type() == type, "giwa_torch: v_cache has elements of type ", v_cache.scalar_type(),
                    ", k_cache of type ", type);
  TORCH_CHECK_VALUE(flag != 0 || (!k_scales && !v_scales),
                    "giwa_torch: k_scales and v_scales are of a cache of float8_e4m3fn, int8 or uint8");
  c.k_scales = scales_of(k_scales, "k_scales", k_cache), c.v_scales = scales_of(v_scales, "v_scales", v_cache);
  c.k_cache = rows_of(k_cache, false), c.v_cache = rows_of(v_cache, false);
  for (const Tensor& t : {k_cache, v_cache})
    TORCH_CHECK_VALUE(t.size(3) <= 1 || t.stride(3) == 1,
                      "giwa_torch: the last dimension of a cache must be contiguous");
  c.sequences = sequences;
  c.k_lengths = numbers(lengths, "lengths", first, sequences);
  if (!pages) return flag;
  TORCH_CHECK_VALUE(pages->device() == first.device() && pages->scalar_type() == at::kInt && pages->dim() == 2 &&
                        pages->size(0) == sequences && pages->size(1) > 0 &&
                        (pages->size(1) <= 1 || pages->stride(1) == 1),
                    "giwa_torch: pages must be int32, (batch, pages of a sequence), on ", first.device(),
                    ", and its last dimension contiguous");
  c.pages = pages->const_data_ptr<int>(), c.pages_stride = pages->stride(0), c.pages_most = pages->size(1);
  return flag;
}

std::tuple<Tensor, Tensor> attention_cached(const Tensor& q_, const Tensor& k_cache, const Tensor& v_cache,
                                            const optional_tensor& lengths, const optional_tensor& pages,
                                            const optional_tensor& q_offsets, const optional_tensor& slopes,
                                            const optional_tensor& sinks, const optional_tensor& k_scales,
                                            const optional_tensor& v_scales, int64_t max_q, int64_t left, int64_t right,
                                            bool bottom_right, double softcap, std::optional<double> scale,
                                            const optional_tensor& indices, const optional_tensor& counts,
                                            bool of_sequences, bool heads_first) {
  const c10::OptionalDeviceGuard guard(q_.device());
  check_query(q_);
  check(q_, "q", q_, q_offsets ? 3 : 4);
  const Tensor q = in_rows(q_);
  call c{};
  c.q = rows_of(q, heads_first);
  const int64_t count = q_offsets ? q_offsets->numel() - 1 : q.size(0);
  TORCH_CHECK_VALUE(count >= 0, "giwa_torch: q_offsets is empty");
  const int flag = set_cache(c, k_cache, v_cache, k_scales, v_scales, lengths, pages, q, count);
  c.q_offsets = numbers(q_offsets, "q_offsets", q, count + 1);
  c.max_q = max_q;
  c.left = as_int(left), c.right = as_int(right), c.bottom_right = bottom_right;
  c.has_scale = scale.has_value(), c.scale = scale.value_or(0), c.softcap = static_cast<float>(softcap);
  Tensor kept_slopes, kept_sinks;
  set_slopes(c, slopes, q, kept_slopes);
  set_sinks(c, sinks, q, kept_sinks);
  const int64_t size_v =
      flag == giwa_torch::cache_rows_656 ? 512 : v_cache.size(3) * (flag == giwa_torch::cache_int4 ? 2 : 1);
  if (indices) {
    const int64_t batch = c.q.sizes[0], queries = c.q.sizes[1], rows = batch * queries, dims = indices->dim();
    const bool of_queries = dims == 3   ? indices->size(0) == batch && indices->size(1) == queries
                            : dims == 2 ? indices->size(0) == rows
                                        : false;
    TORCH_CHECK_VALUE(
        indices->device() == q.device() && indices->scalar_type() == at::kInt && of_queries &&
            indices->is_contiguous() && indices->size(-1) > 0,
        "giwa_torch: indices must be int32 and contiguous, (batch, queries, keys) or (rows, keys), here (",
        std::to_string(batch), ", ", std::to_string(queries), ", keys), on ", q.device());
    TORCH_CHECK_VALUE(left < 0 && right < 0 && softcap == 0 && !slopes,
                      "giwa_torch: with indices there is no causal, window, softcap or alibi_slopes");
    c.selected = indices->const_data_ptr<int>(), c.selected_most = indices->size(-1);
    c.selected_counts = numbers(counts, "counts", q, rows);
    c.selects_of_sequences = of_sequences;
  }
  const Tensor o = empty_rows(q_, size_v, q_offsets.has_value()), lse = empty_lse(c, q, q_offsets.has_value());
  c.o = rows_of(o, heads_first), c.lse = lse.data_ptr<float>();
  if (count == 0) return {o, lse};  // no pages then, and the call would take them for a contiguous cache
  const int mask = indices                  ? giwa_torch::mask_keys
                   : q.is_cpu()             ? giwa_torch::mask_band
                   : left < 0 && right < 0  ? giwa_torch::mask_full
                   : left < 0 && right == 0 ? giwa_torch::mask_causal
                                            : giwa_torch::mask_band;
  const int score = (softcap != 0 ? giwa_torch::score_softcap : 0) | (slopes ? giwa_torch::score_alibi : 0) | flag;
  run(giwa_torch::pass_cached, q, c, q.size(-1), size_v, mask, score);
  return {o, lse};
}

// Returns the rotated q; an empty tensor if there is no q.
Tensor append(bool find_scales, const Tensor& k_, const Tensor& v_, Tensor k_cache, Tensor v_cache,
              const optional_tensor& lengths, const optional_tensor& pages, const optional_tensor& q_,
              const optional_tensor& cos, const optional_tensor& sin, bool interleaved,
              const optional_tensor& positions, const optional_tensor& slots, bool heads_first,
              const optional_tensor& k_scales, const optional_tensor& v_scales) {
  const c10::OptionalDeviceGuard guard(k_.device());
  check_query(k_);
  check(k_, "k", k_, 4), check(v_, "v", k_, 4);
  const Tensor k = in_rows(k_), v = in_rows(v_), q = q_ ? in_rows(*q_) : Tensor();
  call c{};
  c.k = rows_of(k, heads_first), c.v = rows_of(v, heads_first);
  const int flag = set_cache(c, k_cache, v_cache, k_scales, v_scales, lengths, pages, k, k.size(0));
  c.finds_scales = find_scales;
  Tensor rotated = at::empty({0}, k.options());
  if (q_) {
    check(q, "q", k, 4);
    rotated = empty_rows(*q_, q.size(3), false);
    c.q = rows_of(q, heads_first), c.o = rows_of(rotated, heads_first);
  }
  if (k.size(0) == 0) return rotated;
  const int64_t rows = c.k.sizes[0] * c.k.sizes[1];
  c.positions = numbers(positions, "positions", k, rows), c.slots = numbers(slots, "slots", k, rows);
  TORCH_CHECK_VALUE(cos.has_value() == sin.has_value(), "giwa_torch: cos and sin must be given together");
  bool floats = false;
  if (cos) {
    floats = cos->scalar_type() == at::kFloat;
    for (const Tensor& t : {*cos, *sin})
      TORCH_CHECK_VALUE(t.device() == k.device() && t.scalar_type() == cos->scalar_type() && t.dim() == 2 &&
                            (floats || t.scalar_type() == k.scalar_type()) && t.sizes() == cos->sizes() &&
                            (t.size(1) <= 1 || t.stride(1) == 1),
                        "giwa_torch: cos and sin must be (positions, pairs) of float32 or the type of k, on ",
                        k.device());
    c.cos = cos->data_ptr(), c.sin = sin->data_ptr(), c.interleaved = interleaved;
    c.table_sizes[0] = cos->size(0), c.table_sizes[1] = cos->size(1);
    c.cos_strides[0] = cos->stride(0), c.sin_strides[0] = sin->stride(0), c.cos_strides[1] = c.sin_strides[1] = 1;
  }
  // One library serves all head sizes.
  run(giwa_torch::pass_append, k, c, 1, 1, 0,
      (floats && k.scalar_type() != at::kFloat ? giwa_torch::append_tables_of_float : 0) | flag);
  for (const Tensor& t : {k_cache, v_cache})  // autograd refuses gradients that need what the cache was
    if (!t.is_inference()) t.unsafeGetTensorImpl()->bump_version();
  if (find_scales)
    for (const optional_tensor& t : {k_scales, v_scales})
      if (t && !t->is_inference()) t->unsafeGetTensorImpl()->bump_version();
  return rotated;
}
Tensor append_to_cache(const Tensor& k, const Tensor& v, Tensor k_cache, Tensor v_cache, const optional_tensor& lengths,
                       const optional_tensor& pages, const optional_tensor& q, const optional_tensor& cos,
                       const optional_tensor& sin, bool interleaved, const optional_tensor& positions,
                       const optional_tensor& slots, bool heads_first, const optional_tensor& k_scales,
                       const optional_tensor& v_scales) {
  return append(false, k, v, k_cache, v_cache, lengths, pages, q, cos, sin, interleaved, positions, slots, heads_first,
                k_scales, v_scales);
}
Tensor append_with_scales(const Tensor& k, const Tensor& v, Tensor k_cache, Tensor v_cache, Tensor k_scales,
                          const optional_tensor& v_scales, const optional_tensor& lengths, const optional_tensor& pages,
                          const optional_tensor& q, const optional_tensor& cos, const optional_tensor& sin,
                          bool interleaved, const optional_tensor& positions, const optional_tensor& slots,
                          bool heads_first) {
  return append(true, k, v, k_cache, v_cache, lengths, pages, q, cos, sin, interleaved, positions, slots, heads_first,
                k_scales, v_scales);
}

}  // namespace

extern "C" __attribute__((visibility("default"))) void giwa_torch_set_compiler(compiler c) { compile = c; }

TORCH_LIBRARY(giwa, m) {
  const std::string both = schema_of_arguments, q_k_v = "Tensor q, Tensor k, Tensor v, ";
  const std::string forward = "attention(" + q_k_v + both + ") -> (Tensor, Tensor)";
  const std::string backward = "attention_backward(Tensor dout, Tensor? dlse, " + q_k_v + "Tensor o, Tensor lse, " +
                               both + ", *, bool[6] wanted) -> Tensor[]";
  m.def(forward.c_str());
  m.def(backward.c_str());
  m.def(
      "make_block_map(Tensor counts, Tensor indices, Tensor? full_counts, Tensor? full_indices, int[] blocks) -> "
      "Tensor");
  m.def(
      "attention_cached(Tensor q, Tensor k_cache, Tensor v_cache, Tensor? lengths, Tensor? pages, Tensor? q_offsets, "
      "Tensor? slopes, Tensor? sinks, Tensor? k_scales, Tensor? v_scales, int max_q, int left, int right, bool "
      "bottom_right, float softcap, float? scale, Tensor? indices, Tensor? counts, bool of_sequences, "
      "bool heads_first) -> (Tensor, Tensor)");
  m.def(
      "append_to_cache(Tensor k, Tensor v, Tensor(a!) k_cache, Tensor(b!) v_cache, Tensor? lengths, Tensor? pages, "
      "Tensor? q, "
      "Tensor? cos, Tensor? sin, bool interleaved, Tensor? positions, Tensor? slots, bool heads_first, Tensor? "
      "k_scales, "
      "Tensor? v_scales) -> Tensor");
  m.def(
      "append_with_scales(Tensor k, Tensor v, Tensor(a!) k_cache, Tensor(b!) v_cache, Tensor(c!) k_scales, Tensor(d!)? "
      "v_scales, Tensor? lengths, Tensor? pages, Tensor? q, Tensor? cos, Tensor? sin, bool interleaved, Tensor? "
      "positions, Tensor? slots, bool heads_first) -> Tensor");
  m.def(
      "attention_e4m3(Tensor q, Tensor k, Tensor v, Tensor? q_scales, Tensor? k_scales, Tensor? v_scales, Tensor? "
      "slopes, Tensor? sinks, Tensor? q_offsets, Tensor? k_offsets, int max_q, int left, int right, bool bottom_right, "
      "float softcap, float? scale) -> (Tensor, Tensor)");
}
namespace {
void implement(torch::Library& m) {
  m.impl("attention", &attention);
  m.impl("attention_backward", &attention_backward);
  m.impl("make_block_map", &make_block_map);
  m.impl("attention_cached", &attention_cached);
  m.impl("append_to_cache", &append_to_cache);
  m.impl("append_with_scales", &append_with_scales);
  m.impl("attention_e4m3", &attention_e4m3);
}
}  // namespace
TORCH_LIBRARY_IMPL(giwa, CPU, m) { implement(m); }
TORCH_LIBRARY_IMPL(giwa, CUDA, m) { implement(m); }
TORCH_LIBRARY_IMPL(giwa, AutocastCPU, m) { m.impl("attention", &attention_autocast<at::kCPU>); }
TORCH_LIBRARY_IMPL(giwa, AutocastCUDA, m) { m.impl("attention", &attention_autocast<at::kCUDA>); }
TORCH_LIBRARY_IMPL(giwa, Autograd, m) {
  m.impl("attention", &attention_autograd);
  // Refuse gradients of gradients, and of what reads a cache.
  for (const char* name :
       {"attention_backward", "attention_cached", "append_to_cache", "append_with_scales", "attention_e4m3"})
    m.impl(name, torch::autograd::autogradNotImplementedFallback());
}
