// SPDX-License-Identifier: MIT
// Every public call as the first use of CUDA by its host thread: on device and pinned memory, on streams and under capture.
#include <cuda.h>

#include <giwa/cache.cuh>
#include <giwa/giwa.cuh>

#include <cstring>
#include <functional>
#include <string>
#include <thread>
#include <vector>

#include "support/catch.hpp"
#include "support/gpu.cuh"
#include "support/same_bits.hpp"

using giwa::device_array;
using giwa::fp16;
using giwa::int64;
using giwa::memory_kind;
using giwa::pinned_array;
using giwa::result;
using giwa::status;
using giwa::status_code;
using giwa::tensor_view;
using giwa::throw_if_failed;
using giwa_test::check_cuda;
using giwa_test::device_attribute;
using giwa_test::gpu_array;
using giwa_test::no_error_left;
using giwa_test::same_bits;

namespace {

constexpr int64 rows = 4, columns = 128, size = rows * columns;  // attention: (1, rows, 2, 64)

struct add {
  GIWA_HOST_DEVICE float operator()(float a, float b) const { return a + b; }
};
struct scale_by_three {
  const float* in;
  float* out;
  GIWA_HOST_DEVICE void operator()(int64 i) const { out[i] = 3 * in[i]; }
};
__global__ void __launch_bounds__(128) negate(const float* in, float* out) {
  const int64 i = int64{blockIdx.x} * 128 + threadIdx.x;
  if (i < size) out[i] = -in[i];
}

using context_query = CUresult (*)(CUcontext*);

/// The driver's cuCtxGetCurrent. Called in the main thread, since to look for it may bind a context.
context_query find_context_query() {
  void* entry = nullptr;
  cudaDriverEntryPointQueryResult found{};
  check_cuda(cudaGetDriverEntryPointByVersion("cuCtxGetCurrent", &entry, 12000, cudaEnableDefault, &found));
  REQUIRE(found == cudaDriverEntryPointSuccess);
  return reinterpret_cast<context_query>(entry);
}

/// Runs f in a host thread that has not used CUDA, and returns what f returns. f throws nothing and checks nothing.
template <class F>
status in_fresh_thread(F&& f) {
  const context_query current_context = find_context_query();
  status state = status::invalid("thread", "did not run");
  bool fresh = false, clean = false;
  int device = -1;
  std::thread([&] {
    CUcontext context = nullptr;
    fresh = current_context(&context) == CUDA_SUCCESS && context == nullptr;
    state = f();
    device = giwa::current_device().value;
    clean = no_error_left();
  }).join();
  CHECK(fresh);
  CHECK(device == 0);  // as in every new thread
  CHECK(clean);
  return state;
}

std::vector<float> numbers() {
  std::vector<float> v(size);
  for (std::size_t i = 0; i < v.size(); ++i) v[i] = static_cast<float>(i * 37 % 101) * 0.03125f - 1.5f;
  return v;
}
std::vector<fp16> halves() {
  std::vector<fp16> v;
  for (const float x : numbers()) v.push_back(__float2half_rn(x));
  return v;
}

/// A call that reads `in` and writes `out` on a stream; `name` is for the report.
struct stream_call {
  const char* name;
  std::function<status(cudaStream_t, const float* in, float* out)> run;
};

template <class T>
tensor_view<T, 4> as_heads(T* p) {
  return {p, {1, rows, 2, 64}};
}

const std::vector<stream_call>& stream_calls() {
  static const std::vector<stream_call> calls = {
      {"softmax",
       [](cudaStream_t s, const float* in, float* out) {
         return giwa::softmax(s, tensor_view<const float, 2>{in, {rows, columns}},
                              tensor_view<float, 2>{out, {rows, columns}});
       }},
      {"attention_reference",
       [](cudaStream_t s, const float* in, float* out) {
         return giwa::attention_reference(s, as_heads(in), as_heads(in), as_heads(in), as_heads(out));
       }},
      {"attention_cached",
       [](cudaStream_t s, const float* in, float* out) {
         return giwa::attention_cached<64>(s, giwa::kv_cache<const float>{as_heads(in), as_heads(in)}, as_heads(in),
                                           as_heads(out));
       }},
      {"append_to_cache",  // to k: the new rows are all of the cache
       [](cudaStream_t s, const float* in, float* out) {
         return giwa::append_to_cache(s, giwa::kv_cache<float>{as_heads(out), {}}, as_heads(in), {},
                                      giwa::rotary_base(10000, {64}));
       }},
      {"for_all(elementwise)",
       [](cudaStream_t s, const float* in, float* out) {
         const tensor_view<const float, 1> a{in, {size}};
         return giwa::for_all(s, giwa::elementwise{tensor_view<float, 1>{out, {size}}, a, a}, add{});
       }},
      {"for_all",
       [](cudaStream_t s, const float* in, float* out) {
         return giwa::for_all(s, size, scale_by_three{in, out});
       }},
      {"launch",
       [](cudaStream_t s, const float* in, float* out) {
         return giwa::launch(s, {.grid = giwa::ceil_div(size, 128), .block = 128}, negate, in, out);
       }},
      {"copy",
       [](cudaStream_t s, const float* in, float* out) {
         return giwa::copy(s, tensor_view<const float, 1>{in, {size}}, tensor_view<float, 1>{out, {size}});
       }},
  };
  return calls;
}

}  // namespace

TEST_CASE(
    "calls on a stream work in a fresh host thread as in this one, on device and pinned memory, and are captured") {
  const giwa::stream s = giwa_test::new_stream();
  const gpu_array<float> device_in(numbers());
  pinned_array<float> pinned_in = throw_if_failed(pinned_array<float>::allocate(size));
  std::memcpy(pinned_in.data(), numbers().data(), size * sizeof(float));
  gpu_array<float> out(size);
  for (const stream_call& call : stream_calls()) {
    out.fill(0xff);
    REQUIRE(call.run(s, device_in.data(), out.data()).ok());
    const std::vector<float> expected = out.to_host();
    for (const bool pinned : {false, true}) {
      CAPTURE(call.name, pinned);
      const float* const in = pinned ? pinned_in.data() : device_in.data();
      const auto work = [&] { return call.run(s, in, out.data()); };
      out.fill(0xff);
      const status state = in_fresh_thread(work);
      INFO(giwa::format_status(state).c_str());
      CHECK(state.ok());
      CHECK(same_bits(out.to_host(), expected));

      // The capture begins and ends here; the call is made by a thread whose first use of CUDA it is.
      out.fill(0xff);
      const status captured = giwa_test::capture_and_replay(s, 1, [&] { return in_fresh_thread(work); });
      INFO(giwa::format_status(captured).c_str());
      CHECK(captured.ok());
      CHECK(same_bits(out.to_host(), expected));
    }
  }
  CHECK(no_error_left());
}

TEST_CASE("attention_forward works in a fresh host thread as in this one") {
  const giwa::stream s = giwa_test::new_stream();
  const gpu_array<fp16> device_in(halves());
  pinned_array<fp16> pinned_in = throw_if_failed(pinned_array<fp16>::allocate(size));
  std::memcpy(pinned_in.data(), halves().data(), size * sizeof(fp16));
  gpu_array<fp16> out(size);
  const auto call = [&](const fp16* in) {
    return giwa::attention_forward<64>(cudaStream_t{s}, as_heads(in), as_heads(in), as_heads(in), as_heads(out.data()));
  };
  REQUIRE(call(device_in.data()).ok());
  const std::vector<fp16> expected = out.to_host();
  REQUIRE(call(pinned_in.data()).ok());
  REQUIRE(same_bits(out.to_host(), expected));
  for (const fp16* in : {static_cast<const fp16*>(device_in.data()), static_cast<const fp16*>(pinned_in.data())}) {
    CAPTURE(in == pinned_in.data());
    out.fill(0xff);
    const status state = in_fresh_thread([&] { return call(in); });
    INFO(giwa::format_status(state).c_str());
    CHECK(state.ok());
    CHECK(same_bits(out.to_host(), expected));
    out.fill(0xff);
    CHECK(giwa_test::capture_and_replay(s, 1, [&] { return in_fresh_thread([&] { return call(in); }); }).ok());
    CHECK(same_bits(out.to_host(), expected));
  }
  CHECK(no_error_left());
}

TEST_CASE("ordinary host memory is refused in a fresh host thread as in this one") {
  const giwa::stream s = giwa_test::new_stream();
  const std::vector<float> on_host = numbers();
  gpu_array<float> out(size);
  for (const char* name :
       {"softmax", "attention_reference", "attention_cached", "append_to_cache", "for_all(elementwise)"})
    for (const stream_call& call : stream_calls())
      if (call.name == std::string(name)) {
        CAPTURE(name);
        const status here = call.run(s, on_host.data(), out.data());
        const status there = in_fresh_thread([&] { return call.run(s, on_host.data(), out.data()); });
        CHECK(here.ok() == (device_attribute(cudaDevAttrPageableMemoryAccess) != 0));
        CHECK(there.code == here.code);
        CHECK(there.argument == std::string(here.argument));
        CHECK(there.message == std::string(here.message));
      }
  REQUIRE(giwa::synchronize(s).ok());
  CHECK(no_error_left());
}

TEST_CASE("memory is allocated, copied and freed by fresh host threads") {
  const giwa::stream s = giwa_test::new_stream();
  const std::vector<float> source = numbers();
  std::vector<float> back(source.size());
  device_array<float> array;
  CHECK(in_fresh_thread([&] {
          result<device_array<float>> made = giwa::to_device(s, source);
          array = std::move(made.value);
          return made.state;
        }).ok());
  CHECK(array.device() == throw_if_failed(giwa::current_device()));
  CHECK(in_fresh_thread([&] { return giwa::to_host(s, array, back); }).ok());
  CHECK(same_bits(back, source));
  CHECK(in_fresh_thread([&] {
          result<device_array<float>> alike = giwa::like(s, array);
          if (!alike.ok()) return alike.state;
          const status copied = giwa::copy(s, array, alike.value);
          if (!copied.ok()) return copied;
          return giwa::copy(s, alike.value, back);
        }).ok());
  CHECK(in_fresh_thread([&] {
          array = {};  // the last owner is a thread that has not used CUDA
          return status{};
        }).ok());
  CHECK(in_fresh_thread([&] { return device_array<float>::allocate(s, size).state; }).ok());

  pinned_array<float> pinned;
  CHECK(in_fresh_thread([&] {
          result<pinned_array<float>> made = pinned_array<float>::allocate(size);
          pinned = std::move(made.value);
          return made.state;
        }).ok());
  CHECK(throw_if_failed(giwa::location_of(pinned.data())).kind == memory_kind::pinned);
  CHECK(in_fresh_thread([&] { return giwa::copy(s, source, pinned); }).ok());
  REQUIRE(giwa::synchronize(s).ok());
  CHECK(std::memcmp(pinned.data(), source.data(), size * sizeof(float)) == 0);
  CHECK(in_fresh_thread([&] { return giwa::copy(giwa::host, pinned, back); }).ok());
  CHECK(in_fresh_thread([&] {
          pinned = {};
          return status{};
        }).ok());
  CHECK(no_error_left());
}

TEST_CASE("pointers have one location, whichever host thread asks") {
  const gpu_array<float> device(16);
  const pinned_array<float> pinned = throw_if_failed(pinned_array<float>::allocate(16));
  const std::vector<float> pageable(16);
  const auto location_from_fresh_thread = [](const void* p) {
    result<giwa::pointer_location> found;
    CHECK(in_fresh_thread([&] {
            found = giwa::location_of(p);
            return found.state;
          }).ok());
    return found.value;
  };
  for (const void* p : {static_cast<const void*>(device.data()), static_cast<const void*>(pinned.data()),
                        static_cast<const void*>(pageable.data())}) {
    const giwa::pointer_location here = throw_if_failed(giwa::location_of(p)), there = location_from_fresh_thread(p);
    CAPTURE(name_of(here.kind), name_of(there.kind));
    CHECK(there.kind == here.kind);
    CHECK(there.device == here.device);
    CHECK(in_fresh_thread([&] { return giwa::check_device_pointer(p, "p"); }).code ==
          giwa::check_device_pointer(p, "p").code);
    CHECK(in_fresh_thread([&] { return giwa::check_host_pointer(p, "p"); }).code ==
          giwa::check_host_pointer(p, "p").code);
  }
  for (int other = 1; other < giwa::device_count(); ++other) {
    result<giwa::device_guard> guard = giwa::device_guard::activate(other);
    REQUIRE(guard.ok());
    const giwa::stream s = giwa_test::new_stream();
    const auto array = throw_if_failed(device_array<float>::allocate(s, 16));
    CHECK(location_from_fresh_thread(array.data()).device == other);
    const status refused = in_fresh_thread([&] { return giwa::check_device_pointer(array.data(), "p"); });
    CHECK(refused.code == status_code::invalid_argument);  // the pool of another GPU is closed to GPU 0
    CHECK(refused.expected == 0);
    CHECK(refused.got == other);
    std::vector<float> back(16);
    CHECK(in_fresh_thread([&] { return giwa::copy(giwa::host, array, back); }).argument == std::string("from"));
  }
  CHECK(no_error_left());
}

TEST_CASE("timers, reports, tensor maps, streams and several GPUs work in a fresh host thread") {
  const giwa::stream s = giwa_test::new_stream();
  const gpu_array<float> in(numbers());
  gpu_array<float> out(size);
  double milliseconds = -1;
  CHECK(in_fresh_thread([&] {
          const result<giwa::timing> t = giwa::time_on(s, [&] {
            return giwa::for_all(s, size, scale_by_three{in.data(), out.data()});
          });
          milliseconds = t.value.median;
          return t.state;
        }).ok());
  CHECK(milliseconds > 0);

  giwa::memory_report report;
  CHECK(in_fresh_thread([&] {
          const result<giwa::memory_report> r = giwa::memory_of(0);
          report = r.value;
          return r.state;
        }).ok());
  CHECK(report.total > 0);
  CHECK(in_fresh_thread([&] { return giwa::keep_memory(0, 0); }).ok());
  CHECK(in_fresh_thread([&] { return giwa::trim(0); }).ok());

  giwa::environment found;
  CHECK(in_fresh_thread([&] {
          found = giwa::check_environment();
          return found.verdict;
        }).ok());
  CHECK(found.properties.device == 0);
  CHECK(in_fresh_thread([&] { return giwa::properties_of(0).state; }).ok());
  CHECK(in_fresh_thread([&] { return giwa::code_for_current_device().state; }).ok());
  bool on_gpu = false;
  CHECK(in_fresh_thread([&] {
          on_gpu = giwa::choose_device().on_gpu();
          return status{};
        }).ok());
  CHECK(on_gpu);

  CHECK(in_fresh_thread([&] {
          const result<giwa::stream> made = giwa::stream::create();
          if (!made.ok()) return made.state;
          const result<giwa::event> event = giwa::event::create();
          if (!event.ok()) return event.state;
          if (const status recorded = event.value.record(made.value); !recorded.ok()) return recorded;
          return giwa::synchronize(made.value);
        }).ok());
  CHECK(in_fresh_thread([&] { return giwa::synchronize(s); }).ok());

  if (giwa_test::capability() >= 90) {
    const tensor_view<const float, 2> view{in.data(), {rows, columns}};
    const giwa::index<2> box{rows, 16};
    giwa::tensor_map here{}, there{};
    const auto make = [&](giwa::tensor_map& map) {
      const result<giwa::tensor_map> r = giwa::make_tensor_map(view, box, giwa::swizzle::bytes_64);
      map = r.value;
      return r.state;
    };
    const status state = in_fresh_thread([&] { return make(there); });
    INFO(giwa::format_status(state).c_str());
    CHECK(state.ok());
    REQUIRE(make(here).ok());
    CHECK(std::memcmp(&here, &there, sizeof here) == 0);
  }

  const int devices[] = {0};
  out.fill(0xff);
  CHECK(in_fresh_thread([&] {
          return giwa::for_each_device(tensor_view<const int, 1>{devices, {1}}, {}, 1,
                                       [&](cudaStream_t part_stream, const giwa::batch_part&) {
                                         return giwa::for_all(part_stream, size, scale_by_three{in.data(), out.data()});
                                       })
              .state;
        }).ok());
  const std::vector<float> got = out.to_host();
  CHECK(got[5] == 3 * numbers()[5]);
  CHECK(no_error_left());
}
