// SPDX-License-Identifier: MIT
// location_of and check_device_pointer by a runtime that answers as CUDA's does, also to a host thread without a context.
#include <cuda_runtime_api.h>

#include <string>

#include "support/catch.hpp"

namespace {

/// A host thread of a machine with two GPUs.
struct machine {
  bool driver = true;
  bool context = true;  // bound to this host thread
  int current = 0;
  bool reads_pageable = false;
  int events_created = 0, events_destroyed = 0;
  bool context_fails = false;
};
machine now;

/// An allocation: what the runtime answers of it where a context is bound.
struct memory {
  cudaMemoryType type;
  int owner;
  bool accessible[2];  // by a kernel on that GPU
};
memory pageable{cudaMemoryTypeUnregistered, -1, {false, false}}, pinned{cudaMemoryTypeHost, 0, {true, true}},
    managed{cudaMemoryTypeManaged, 0, {true, true}}, first_gpu{cudaMemoryTypeDevice, 0, {true, false}},
    second_gpu{cudaMemoryTypeDevice, 1, {false, true}}, shared_by_second{cudaMemoryTypeDevice, 1, {true, true}};

cudaError_t get_attributes(cudaPointerAttributes* a, const void* pointer) {
  if (!now.driver) return cudaErrorInsufficientDriver;
  const memory& m = *static_cast<const memory*>(pointer);
  *a = {};
  a->type = m.type;
  a->device = now.context ? m.owner : 0;
  if (m.type != cudaMemoryTypeUnregistered && now.context && m.accessible[now.current])
    a->devicePointer = const_cast<void*>(pointer);
  return cudaSuccess;
}
cudaError_t get_device(int* device) {
  *device = now.current;
  return now.driver ? cudaSuccess : cudaErrorInsufficientDriver;
}
cudaError_t get_attribute(int* value, cudaDeviceAttr which, int device) {
  CHECK(which == cudaDevAttrPageableMemoryAccess);
  CHECK(device == now.current);
  *value = now.reads_pageable;
  return cudaSuccess;
}
cudaError_t create_event(cudaEvent_t* event, unsigned) {
  if (!now.driver) return cudaErrorInsufficientDriver;
  if (now.context_fails) return cudaErrorMemoryAllocation;
  now.context = true;
  ++now.events_created;
  *event = reinterpret_cast<cudaEvent_t>(&now);
  return cudaSuccess;
}
cudaError_t destroy_event(cudaEvent_t event) {
  CHECK(event == reinterpret_cast<cudaEvent_t>(&now));
  ++now.events_destroyed;
  return cudaSuccess;
}

}  // namespace

#define cudaPointerGetAttributes get_attributes
#define cudaGetDevice get_device
#define cudaDeviceGetAttribute get_attribute
#define cudaEventCreateWithFlags create_event
#define cudaEventDestroy destroy_event
#include <giwa/device/pointer.hpp>
#undef cudaPointerGetAttributes
#undef cudaGetDevice
#undef cudaDeviceGetAttribute
#undef cudaEventCreateWithFlags
#undef cudaEventDestroy

using giwa::memory_kind, giwa::pointer_location, giwa::result, giwa::status, giwa::status_code;

namespace {

bool refused(const status& s, const char* part_of_message) {
  CAPTURE(s.argument, s.message);
  CHECK(s.argument == std::string("in"));
  CHECK(std::string(s.message).find(part_of_message) != std::string::npos);
  return s.code == status_code::invalid_argument;
}

}  // namespace

TEST_CASE("a kernel may use memory that the current GPU can read, also from a host thread that has no context yet") {
  for (const bool context : {true, false}) {
    CAPTURE(context);
    for (memory* m : {&pinned, &managed, &first_gpu, &shared_by_second}) {
      now = {};
      now.context = context;
      CHECK(giwa::check_device_pointer(m, "in").ok());
      CHECK(now.events_created == (context ? 0 : 1));  // nothing but the question where a context is bound
      CHECK(now.events_destroyed == now.events_created);
    }
    now = {};
    now.context = context;
    now.reads_pageable = true;
    CHECK(giwa::check_device_pointer(&pageable, "in").ok());
    CHECK(now.events_created == 0);
    CHECK(now.context == context);
  }
}

TEST_CASE("memory that the current GPU cannot read is refused, with the GPU whose it is") {
  for (const bool context : {true, false})
    for (const int current : {0, 1}) {
      CAPTURE(context, current);
      now = {};
      now.context = context;
      now.current = current;
      CHECK(refused(giwa::check_device_pointer(&pageable, "in"), "host memory"));
      now.context = context;
      const status other = giwa::check_device_pointer(current == 0 ? &second_gpu : &first_gpu, "in");
      CHECK(refused(other, "another GPU"));
      CHECK(other.expected == current);
      CHECK(other.got == 1 - current);
      now.context = context;
      CHECK(giwa::check_device_pointer(current == 0 ? &first_gpu : &second_gpu, "in").ok());
      CHECK(now.current == current);
    }
}

TEST_CASE("the location of memory does not depend on the host thread that asks") {
  const auto is = [](memory* m, memory_kind kind, int device) {
    const result<pointer_location> found = giwa::location_of(m);
    return found.ok() && found.value.kind == kind && found.value.device == device;
  };
  for (const bool context : {true, false}) {
    CAPTURE(context);
    now = {};
    now.context = context;
    CHECK(is(&pageable, memory_kind::pageable, -1));
    CHECK(now.events_created == 0);
    CHECK(is(&second_gpu, memory_kind::device, 1));
    now.context = context;
    CHECK(is(&first_gpu, memory_kind::device, 0));
    now.context = context;
    CHECK(is(&pinned, memory_kind::pinned, -1));
    now.context = context;
    CHECK(is(&managed, memory_kind::managed, 0));
    now.context = context;
    CHECK(giwa::check_host_pointer(&pinned, "in").ok());
    CHECK(refused(giwa::check_host_pointer(&second_gpu, "in"), "the CPU cannot read"));
  }
}

TEST_CASE("without a driver, and where no context can be had, the status says so") {
  now = {};
  now.driver = false;
  CHECK(giwa::check_device_pointer(&pinned, "in").code == status_code::no_driver);
  CHECK(giwa::location_of(&pinned).ok());
  CHECK(giwa::check_host_pointer(&pinned, "in").ok());
  now = {};
  now.context = false;
  now.context_fails = true;
  CHECK(giwa::check_device_pointer(&first_gpu, "in").code == status_code::out_of_memory);
  CHECK(giwa::location_of(&first_gpu).state.code == status_code::out_of_memory);
  CHECK(giwa::check_device_pointer(&pageable, "in").code == status_code::out_of_memory);
}
