// SPDX-License-Identifier: MIT
// Attention over the ranks of a process group and its gradients, for one way (a ring, or an exchange of heads), element
// type, head size and mask, all of them macros. ring.py compiles it: with nvcc for GPUs, which send by NCCL, and with
// the host compiler for the CPU.
#if defined(__CUDACC__)
#include <giwa/attention.cuh>
#include <giwa/attention_backward.cuh>
#include <giwa/nccl.hpp>
#else
#include <giwa/host.hpp>
#include <giwa/multi.hpp>
#endif

#include <cstring>

namespace {

using element = GIWA_RING_ELEMENT;
using giwa::int64;
constexpr int head_size = GIWA_RING_HEAD_SIZE;

// The tensors of this rank, contiguous: (batch, rows, heads, head size), and lse (batch, heads, rows).
struct call {
  void *q, *k, *v, *o;
  float* lse;
  void *dout, *dq, *dk, *dv;
  int64 batch, rows, heads, kv_heads;
  int64 tokens;  // of the whole sequence
  bool zigzag;
  bool any_order;  // of the sums of dq
  double scale;
  void* stream;
  void* workspace;
  int64 workspace_bytes;
};

#if defined(__CUDACC__)
using communicator = giwa::nccl_communicator;
giwa::result<communicator> communicator_of(void* of_process_group) {
  return communicator::create(static_cast<ncclComm_t>(of_process_group));
}
cudaStream_t where(const call& c) { return static_cast<cudaStream_t>(c.stream); }
#else
// What a process group does for the CPU. The functions return 0 on success.
struct transport {
  int rank, size;
  int (*send)(const void* data, int64 bytes, int to);
  int (*receive)(void* data, int64 bytes, int from);
  int (*wait)();
};
class communicator {
 public:
  communicator() = default;
  explicit communicator(const transport& t) : transport_(t) {}
  int rank() const { return transport_.rank; }
  int size() const { return transport_.size; }
  template <class Body>
  giwa::status exchange(giwa::host_t, const Body& body) const {
    return body(link{transport_});
  }
  giwa::status wait(giwa::host_t) const { return state_of(transport_.wait()); }

 private:
  static giwa::status state_of(int error) {
    if (error == 0) return {};
    return {.code = giwa::status_code::communication_error, .message = "the process group failed"};
  }
  struct link {
    const transport& t;
    giwa::status send(const void* data, int64 bytes, int to) const { return state_of(t.send(data, bytes, to)); }
    giwa::status receive(void* data, int64 bytes, int from) const { return state_of(t.receive(data, bytes, from)); }
  };
  transport transport_{};
};
giwa::result<communicator> communicator_of(void* of_process_group) {
  giwa::result<communicator> r;
  r.value = communicator(*static_cast<const transport*>(of_process_group));
  return r;
}
giwa::host_t where(const call&) { return giwa::host; }
#endif

#if GIWA_RING_CAUSAL
constexpr giwa::causal mask;
#else
constexpr giwa::full mask;
#endif

giwa::sequence_slices slices_of(int64 tokens, bool zigzag) {
  return {.tokens = tokens, .order = zigzag ? giwa::slicing::zigzag : giwa::slicing::contiguous};
}
giwa::tensor_view<unsigned char, 1> workspace_of(const call& c) {
  return {static_cast<unsigned char*>(c.workspace), {c.workspace_bytes}};
}
template <class T>
giwa::tensor_view<T, 4> view_of(const call& c, void* data, int64 heads) {
  return {static_cast<T*>(data), {c.batch, c.rows, heads, head_size}};
}
template <class T>
giwa::tensor_view<T, 3> lse_of(const call& c) {
  return {c.lse, {c.batch, c.heads, c.rows}};
}

int64 bytes_of(const communicator& comm, const call& c, bool backward) {
  const giwa::attention_problem p{.batch = c.batch,
                                  .heads = c.heads,
                                  .kv_heads = c.kv_heads,
                                  .head_size = head_size,
                                  .head_size_v = head_size,
                                  .element_bytes = sizeof(element)};
  const giwa::sequence_slices slices = slices_of(c.tokens, c.zigzag);
  const int rank = comm.rank(), ranks = comm.size();
#if GIWA_RING_HEADS
  return backward
             ? giwa::head_parallel_backward_workspace_bytes(p, slices, rank, ranks, sizeof(element), sizeof(element))
             : giwa::head_parallel_workspace_bytes(p, slices, rank, ranks, sizeof(element));
#else
  return backward ? giwa::ring_backward_workspace_bytes(p, slices, rank, ranks)
                  : giwa::ring_workspace_bytes(p, slices, rank, ranks);
#endif
}

giwa::status forward(const communicator& comm, const call& c) {
  giwa::attention_options options;
  options.scale = c.scale;
  options.lse = lse_of<float>(c);
  options.workspace = workspace_of(c);
  const auto slices = slices_of(c.tokens, c.zigzag);
  const auto q = view_of<const element>(c, c.q, c.heads), k = view_of<const element>(c, c.k, c.kv_heads),
             v = view_of<const element>(c, c.v, c.kv_heads);
  const auto o = view_of<element>(c, c.o, c.heads);
#if GIWA_RING_HEADS
  return giwa::head_parallel_attention_forward<head_size>(where(c), comm, slices, q, k, v, o, mask, {}, options);
#else
  return giwa::ring_attention_forward<head_size>(where(c), comm, slices, q, k, v, o, mask, {}, options);
#endif
}

giwa::status backward(const communicator& comm, const call& c) {
  giwa::attention_backward_options options;
  options.scale = c.scale;
  options.lse = lse_of<const float>(c);
  options.any_order = c.any_order;
  options.workspace = workspace_of(c);
  const auto slices = slices_of(c.tokens, c.zigzag);
  const auto q = view_of<const element>(c, c.q, c.heads), k = view_of<const element>(c, c.k, c.kv_heads),
             v = view_of<const element>(c, c.v, c.kv_heads), o = view_of<const element>(c, c.o, c.heads),
             dout = view_of<const element>(c, c.dout, c.heads);
  const auto dq = view_of<element>(c, c.dq, c.heads), dk = view_of<element>(c, c.dk, c.kv_heads),
             dv = view_of<element>(c, c.dv, c.kv_heads);
#if GIWA_RING_HEADS
  return giwa::head_parallel_attention_backward<head_size>(where(c), comm, slices, q, k, v, o, dout, dq, dk, dv, mask,
                                                           {}, options);
#else
  return giwa::ring_attention_backward<head_size>(where(c), comm, slices, q, k, v, o, dout, dq, dk, dv, mask, {},
                                                  options);
#endif
}

// Returns a status_code of giwa, and writes what is wrong to `text`.
int code_of(const giwa::status& s, char* text, std::size_t size) {
  if (!s.ok()) {
    std::strncpy(text, giwa::format_status(s).c_str(), size - 1);
    text[size - 1] = '\0';
  }
  return static_cast<int>(s.code);
}

}  // namespace

#pragma GCC visibility push(default)
extern "C" {

// `of_process_group`: an ncclComm_t of the current GPU, which must outlive the communicator, or on the CPU a transport.
int giwa_ring_open(void* of_process_group, void** comm, char* text, std::size_t size) {
  auto made = communicator_of(of_process_group);
  if (made.ok()) *comm = new communicator(static_cast<communicator&&>(made.value));
  return code_of(made.state, text, size);
}
void giwa_ring_close(void* comm) { delete static_cast<communicator*>(comm); }
int64 giwa_ring_workspace_bytes(const void* comm, const call* c, bool of_gradients) {
  return bytes_of(*static_cast<const communicator*>(comm), *c, of_gradients);
}
int giwa_ring_run(const void* comm, const call* c, bool of_gradients, char* text, std::size_t size) {
  const communicator& ranks = *static_cast<const communicator*>(comm);
  return code_of(of_gradients ? backward(ranks, *c) : forward(ranks, *c), text, size);
}
}
#pragma GCC visibility pop
