/* SPDX-License-Identifier: MIT */
/* Calls giwa from C, and checks forward, gradients and a paged cache against loops in double precision.
 *
 *   cc -O2 examples/c_api/from_c.c -L. -lgiwa_c -Wl,-rpath,. -lm -o from_c                                  # after giwa_c.cu
 *   cc -O2 -DWITH_CUDA -I/usr/local/cuda/include examples/c_api/from_c.c -L. -lgiwa_c -Wl,-rpath,. -L/usr/local/cuda/lib64 -lcudart -lm
 *
 * With WITH_CUDA it runs on the GPU if there is one; `from_c cpu` and `from_c gpu` choose.
 */
#include "giwa_c.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#if defined(WITH_CUDA)
#include <cuda_runtime_api.h>
#endif

#if !defined(GIWA_C_HEAD_SIZES)
#define GIWA_C_HEAD_SIZES 64, 128
#endif

static int place = GIWA_CPU, failures = 0;
static char message[512];

/* Memory that the CPU and the place reach, of zeros. */
static void* memory(size_t bytes) {
  void* data = NULL;
#if defined(WITH_CUDA)
  if (place == GIWA_GPU && cudaMallocManaged(&data, bytes, cudaMemAttachGlobal) != cudaSuccess) data = NULL;
#endif
  if (place == GIWA_CPU) data = malloc(bytes);
  if (data == NULL) exit(fprintf(stderr, "no memory\n"));
  return memset(data, 0, bytes);
}
static void release(void* data) {
#if defined(WITH_CUDA)
  if (place == GIWA_GPU) cudaFree(data);
#endif
  if (place == GIWA_CPU) free(data);
}
static void wait_for_gpu(void) {
#if defined(WITH_CUDA)
  if (place == GIWA_GPU && cudaDeviceSynchronize() != cudaSuccess) exit(fprintf(stderr, "a kernel failed\n"));
#endif
}

/* fp16 has 5 bits of exponent, bf16 8. */
static double decoded(uint16_t bits, int dtype) {
  const int mantissa = dtype == GIWA_FP16 ? 10 : 7, bias = dtype == GIWA_FP16 ? 15 : 127;
  const int exponent = (bits & 0x7fff) >> mantissa, rest = bits & ((1 << mantissa) - 1);
  const double size =
      ldexp(exponent == 0 ? rest : rest + (1 << mantissa), (exponent == 0 ? 1 : exponent) - bias - mantissa);
  return bits >> 15 ? -size : size;
}
static double numbers[2][1 << 16]; /* all of them */
static double number(uint16_t bits, int dtype) { return numbers[dtype][bits]; }
static uint16_t bits_of(double x, int dtype) { /* of a number that needs no rounding */
  const int mantissa = dtype == GIWA_FP16 ? 10 : 7, bias = dtype == GIWA_FP16 ? 15 : 127;
  int exponent = 0;
  const double part = frexp(fabs(x), &exponent);
  if (x == 0) return 0;
  return (uint16_t)((x < 0 ? 0x8000 : 0) | (exponent - 1 + bias) << mantissa | (int)ldexp(2 * part - 1, mantissa));
}

/* A tensor (batch, rows, heads, size) whose rows are padded; with `heads_first` its memory is (batch, heads, rows, size). */
static giwa_tensor tensor(int64_t batch, int64_t rows, int64_t heads, int64_t size, int heads_first) {
  const int64_t pitch = size + 8;
  const giwa_tensor t = {
      memory((size_t)(batch * rows * heads * pitch) * 2),
      {batch, rows, heads, size},
      {rows * heads * pitch, heads_first ? pitch : heads * pitch, heads_first ? rows * pitch : pitch, 1}};
  return t;
}
static uint16_t* at(const giwa_tensor* t, int64_t b, int64_t i, int64_t h, int64_t d) {
  return (uint16_t*)t->data + b * t->strides[0] + i * t->strides[1] + h * t->strides[2] + d;
}
static void fill(const giwa_tensor* t, int dtype) {
  static uint32_t state = 2026;
  for (int64_t b = 0; b < t->sizes[0]; ++b)
    for (int64_t i = 0; i < t->sizes[1]; ++i)
      for (int64_t h = 0; h < t->sizes[2]; ++h)
        for (int64_t d = 0; d < t->sizes[3]; ++d) {
          state = state * 1664525u + 1013904223u;
          *at(t, b, i, h, d) = bits_of(((int)(state >> 24) - 128) / 64.0, dtype);
        }
}

/* Rows of one sequence: where they begin in q and k, and how many there are. Key j of a paged cache is in page pages[j / page size]. */
typedef struct {
  int64_t batch, first_q, first_k, queries, keys;
  const int32_t* pages;
} sequence;

static const uint16_t* key_at(const giwa_tensor* t, const sequence* s, int64_t j, int64_t h, int64_t d) {
  if (s->pages != NULL) return at(t, s->pages[j / t->sizes[1]], j % t->sizes[1], h, d);
  return at(t, s->batch, s->first_k + j, h, d);
}
static int visible(const giwa_attention* c, const sequence* s, int64_t i, int64_t j) {
  const int64_t ahead = j - i - (c->top_left ? 0 : s->keys - s->queries);
  return !(c->causal && ahead > 0) && !(c->window > 0 && (ahead >= c->window || -ahead >= c->window));
}

/* The largest differences from what double precision gives, and the largest numbers there. */
typedef struct {
  double error[5], largest[5]; /* of o, lse, dq, dk, dv */
} verdict;

static void compare(verdict* v, int which, double got, double expected) {
  const double error = fabs(got - expected);
  if (!(error <= v->error[which])) v->error[which] = error; /* NaN too */
  if (fabs(expected) > v->largest[which]) v->largest[which] = fabs(expected);
}

static void check_sequence(const giwa_attention* c, const sequence* s, int gradients, verdict* v) {
  const int64_t heads = c->q.sizes[2], size = c->q.sizes[3], group = heads / c->k.sizes[2];
  const double scale = c->scale != NULL ? *c->scale : 1 / sqrt((double)size);
  const size_t kept = (size_t)(c->k.sizes[2] * s->keys * size);
  double *p = malloc(sizeof(double) * (size_t)(s->keys + 1)), *dk = calloc(kept + 1, 8), *dv = calloc(kept + 1, 8);
#define NUMBER(t, ...) number(*at(&c->t, s->batch, s->first_q + i, h, __VA_ARGS__), c->dtype)
#define KEY(t, d) number(*key_at(&c->t, s, j, h / group, d), c->dtype)
  for (int64_t h = 0; h < heads; ++h)
    for (int64_t i = 0; i < s->queries; ++i) {
      double most = -INFINITY, sum = 0, delta = 0;
      for (int64_t j = 0; j < s->keys; ++j) {
        p[j] = 0;
        for (int64_t d = 0; d < size; ++d) p[j] += scale * NUMBER(q, d) * KEY(k, d);
        if (!visible(c, s, i, j)) p[j] = -INFINITY;
        if (p[j] > most) most = p[j];
      }
      for (int64_t j = 0; j < s->keys; ++j) sum += p[j] = most > -INFINITY ? exp(p[j] - most) : 0;
      for (int64_t j = 0; j < s->keys; ++j) p[j] /= sum > 0 ? sum : 1;
      for (int64_t d = 0; d < size; ++d) {
        double o = 0;
        for (int64_t j = 0; j < s->keys; ++j) o += p[j] * KEY(v, d);
        compare(v, 0, NUMBER(o, d), o);
        if (gradients) delta += o * NUMBER(dout, d);
      }
      if (sum > 0) compare(v, 1, c->lse[(s->batch * heads + h) * c->q.sizes[1] + s->first_q + i], most + log(sum));
      if (!gradients) continue;
      for (int64_t j = 0; j < s->keys; ++j) {
        double slope = -delta;
        for (int64_t d = 0; d < size; ++d) slope += NUMBER(dout, d) * KEY(v, d);
        for (int64_t d = 0; d < size; ++d) {
          dv[(h / group * s->keys + j) * size + d] += p[j] * NUMBER(dout, d);
          dk[(h / group * s->keys + j) * size + d] += p[j] * slope * scale * NUMBER(q, d);
        }
        p[j] *= slope * scale;
      }
      for (int64_t d = 0; d < size; ++d) {
        double dq = 0;
        for (int64_t j = 0; j < s->keys; ++j) dq += p[j] * KEY(k, d);
        compare(v, 2, NUMBER(dq, d), dq);
      }
    }
  for (int64_t h = 0; gradients && h < heads; h += group)
    for (int64_t j = 0; j < s->keys; ++j)
      for (int64_t d = 0; d < size; ++d) {
        compare(v, 3, KEY(dk, d), dk[(h / group * s->keys + j) * size + d]);
        compare(v, 4, KEY(dv, d), dv[(h / group * s->keys + j) * size + d]);
      }
  free(p), free(dk), free(dv);
}

static void expect(int code, int expected, const char* part, const char* what) {
  if (code == expected && strstr(message, part) != NULL) return;
  ++failures, printf("FAILED %s: code %d, \"%s\"\n", what, code, message);
}
static void run(int pass, giwa_attention* c, const char* what) {
  int (*const calls[])(const giwa_attention*, char*, size_t) = {giwa_attention_forward, giwa_attention_backward,
                                                                giwa_attention_cached};
  expect(giwa_attention_workspace_bytes(pass, c, &c->workspace_bytes, message, sizeof message), 0, "", what);
  c->workspace = c->workspace_bytes > 0 ? memory((size_t)c->workspace_bytes) : NULL;
  expect(calls[pass](c, message, sizeof message), 0, "", what);
  wait_for_gpu();
  if (c->workspace != NULL) release(c->workspace);
  c->workspace = NULL, c->workspace_bytes = 0;
}
static void judge(const giwa_attention* c, const verdict* v, const char* what) {
  static const char* const names[] = {"o", "lse", "dq", "dk", "dv"};
  const double bits = c->dtype == GIWA_FP16 ? ldexp(1, -11) : ldexp(1, -8); /* half a unit in the last place of 1 */
  for (int n = 0; n < 5; ++n)
    if (!(v->error[n] <= (n == 1 ? 1e-4 : 3 * bits) * v->largest[n]))
      ++failures, printf("FAILED %s, %s: %g away, of at most %g\n", what, names[n], v->error[n], v->largest[n]);
}

static void check_attention(int dtype, int64_t size, int causal, int window, int top_left, int packed) {
  const int64_t batch = packed ? 1 : 2, queries = 67, keys = packed ? 67 : 83, heads = 4, kv_heads = 2;
  int32_t* const offsets = memory(3 * sizeof *offsets);
  char what[100];
  float scale = 0.1f;
  giwa_attention c = {.place = place, .dtype = dtype, .causal = causal, .window = window, .top_left = top_left};
  giwa_tensor* const tensors[] = {&c.q, &c.k, &c.v, &c.o, &c.dout, &c.dq, &c.dk, &c.dv};
  verdict v = {{0}, {0}};
  snprintf(what, sizeof what, "%s, head size %d, causal %d, window %d, top left %d, packed %d",
           dtype == GIWA_FP16 ? "fp16" : "bf16", (int)size, causal, window, top_left, packed);
  for (int n = 0; n < 8; ++n) {
    const int of_keys = n == 1 || n == 2 || n > 5;
    *tensors[n] = tensor(batch, of_keys ? keys : queries, of_keys ? kv_heads : heads, size, !packed && n % 2 == 1);
    if (n < 3 || n == 4) fill(tensors[n], dtype);
  }
  c.lse = memory((size_t)(batch * heads * queries) * sizeof *c.lse);
  if (window > 0) c.scale = &scale;
  offsets[1] = 20, offsets[2] = 67;
  if (packed) c.q_offsets = c.k_offsets = offsets, c.sequences = 2, c.max_q = 47;
  run(GIWA_FORWARD, &c, what);
  run(GIWA_BACKWARD, &c, what);
  for (int64_t b = 0; b < 2; ++b) {
    const int64_t first = packed ? offsets[b] : 0;
    const sequence s = {packed ? 0 : b,
                        first,
                        first,
                        packed ? offsets[b + 1] - first : queries,
                        packed ? offsets[b + 1] - first : keys,
                        NULL};
    check_sequence(&c, &s, 1, &v);
  }
  judge(&c, &v, what);
  for (int n = 0; n < 8; ++n) release(tensors[n]->data);
  release(c.lse), release(offsets);
}

/* Three sequences of 5, 100 and 64 keys in pages of 16 that lie in another order. */
static void check_cached(int dtype, int64_t size) {
  const int64_t pages_each = 8, page_size = 16, queries = 2, heads = 8, kv_heads = 2;
  int32_t *const lengths = memory(3 * sizeof *lengths), *const pages = memory(3 * (size_t)pages_each * sizeof *pages);
  giwa_attention c = {.place = place,
                      .dtype = dtype,
                      .causal = 1,
                      .lengths = lengths,
                      .pages = pages,
                      .pages_per_sequence = pages_each};
  verdict v = {{0}, {0}};
  c.q = tensor(3, queries, heads, size, 0), c.o = tensor(3, queries, heads, size, 0);
  c.k = tensor(3 * pages_each, page_size, kv_heads, size, 0),
  c.v = tensor(3 * pages_each, page_size, kv_heads, size, 1);
  c.lse = memory((size_t)(3 * heads * queries) * sizeof *c.lse);
  fill(&c.q, dtype), fill(&c.k, dtype), fill(&c.v, dtype);
  lengths[0] = 5, lengths[1] = 100, lengths[2] = 64;
  for (int n = 0; n < 3 * pages_each; ++n) pages[n] = (int32_t)((n * 7 + 3) % (3 * pages_each));
  run(GIWA_CACHED, &c, "cached");
  for (int64_t b = 0; b < 3; ++b) {
    const sequence s = {b, 0, 0, queries, lengths[b], pages + b * pages_each};
    check_sequence(&c, &s, 0, &v);
  }
  judge(&c, &v, "cached");
  release(c.q.data), release(c.o.data), release(c.k.data), release(c.v.data), release(c.lse), release(lengths),
      release(pages);
}

/* Bad calls return a sentence. */
static void check_refusals(int64_t size) {
  giwa_attention good = {.place = place, .dtype = GIWA_BF16}, c;
  int64_t bytes = 0;
  const float not_a_number = NAN;
  good.q = tensor(1, 8, 4, size, 0), good.k = tensor(1, 8, 2, size, 0), good.v = tensor(1, 8, 2, size, 0),
  good.o = tensor(1, 8, 4, size, 0);
#define REFUSED(change, part)     \
  c = good, change, *message = 0; \
  expect(giwa_attention_forward(&c, message, sizeof message), GIWA_INVALID_ARGUMENT, part, #change)
  REFUSED(c.dtype = 7, "dtype");
  REFUSED(c.place = 2, "place");
  REFUSED(c.window = -1, "window");
  REFUSED(c.workspace_bytes = -1, "workspace_bytes");
  REFUSED(c.q.sizes[1] = -8, "`q`: sizes must not be negative");
  REFUSED(c.q.sizes[3] = 63, "head size");
  REFUSED(c.k.sizes[2] = 3, "");
  REFUSED(c.v.sizes[1] = 7, "");
  REFUSED(c.k.strides[3] = 2, "stride");
  REFUSED(c.o.data = NULL, "`o`");
  REFUSED(c.q.data = (char*)c.q.data + 1, "`q`");
  REFUSED(c.scale = &not_a_number, "scale");
  REFUSED(memset(&c, 0, sizeof c), "");
  REFUSED((c.q_offsets = (const int32_t*)c.q.data, c.q.sizes[0] = 2), "the batch of packed sequences must be 1");
#if !defined(WITH_CUDA) /* the library was compiled for the CPU alone */
  c = good, c.place = GIWA_GPU;
  expect(giwa_attention_forward(&c, message, sizeof message), GIWA_NOT_SUPPORTED, "CPU alone", "on a GPU");
#endif
  expect(giwa_attention_forward(NULL, message, sizeof message), GIWA_INVALID_ARGUMENT, "call", "no call");
  expect(giwa_attention_backward(&good, message, sizeof message), GIWA_INVALID_ARGUMENT, "",
         "backward without gradients");
  expect(giwa_attention_cached(&good, NULL, 0), 0, "", "no message is asked for");
  expect(giwa_attention_workspace_bytes(3, &good, &bytes, message, sizeof message), GIWA_INVALID_ARGUMENT, "pass",
         "pass 3");
  expect(giwa_attention_workspace_bytes(0, &good, NULL, message, sizeof message), GIWA_INVALID_ARGUMENT, "bytes",
         "no bytes");
  wait_for_gpu();
  release(good.q.data), release(good.k.data), release(good.v.data), release(good.o.data);
}

int main(int count, char** arguments) {
  static const int head_sizes[] = {GIWA_C_HEAD_SIZES};
#if defined(WITH_CUDA)
  int devices = 0;
  if (cudaGetDeviceCount(&devices) == cudaSuccess && devices > 0) place = GIWA_GPU;
#endif
  if (count > 1 && strcmp(arguments[1], "cpu") == 0) place = GIWA_CPU;
  if (count > 1 && strcmp(arguments[1], "gpu") == 0 && place == GIWA_CPU)
    return fprintf(stderr, "there is no GPU\n"), 1;
  for (int bits = 0; bits < 1 << 16; ++bits)
    for (int dtype = GIWA_FP16; dtype <= GIWA_BF16; ++dtype) numbers[dtype][bits] = decoded((uint16_t)bits, dtype);
  for (size_t n = 0; n < sizeof head_sizes / sizeof *head_sizes; ++n) {
    for (int dtype = GIWA_FP16; dtype <= GIWA_BF16; ++dtype) {
      check_attention(dtype, head_sizes[n], 0, 0, 0, 0);
      check_attention(dtype, head_sizes[n], 1, 0, 0, 0);
      check_attention(dtype, head_sizes[n], 1, 0, 1, 0);
      check_attention(dtype, head_sizes[n], 1, 9, 0, 0);
      check_attention(dtype, head_sizes[n], 0, 9, 0, 0);
      check_attention(dtype, head_sizes[n], 1, 0, 0, 1);
      check_cached(dtype, head_sizes[n]);
    }
    check_refusals(head_sizes[n]);
  }
  printf("from C, on the %s: %s\n", place == GIWA_GPU ? "GPU" : "CPU", failures == 0 ? "right" : "FAILED");
  return failures == 0 ? 0 : 1;
}
