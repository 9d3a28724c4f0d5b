// SPDX-License-Identifier: MIT
// Public header of the device layer: GPUs, streams, events, memory, copies and timing; with nvcc also the environment.
#ifndef GIWA_DEVICE_HPP
#define GIWA_DEVICE_HPP

#include <giwa/device/host.hpp>
#if !defined(__CUDACC_RTC__)
#include <giwa/base/throw.hpp>
#include <giwa/device/array.hpp>
#include <giwa/device/copy.hpp>
#include <giwa/device/dlpack.hpp>
#include <giwa/device/for_each_device.hpp>
#include <giwa/device/memory.hpp>
#include <giwa/device/named_range.hpp>
#include <giwa/device/pinned_array.hpp>
#include <giwa/device/pointer.hpp>
#include <giwa/device/properties.hpp>
#include <giwa/device/split_batch.hpp>
#include <giwa/device/stream.hpp>
#include <giwa/device/timer.hpp>
#if defined(__CUDACC__)  // asks a kernel of this build which code it is
#include <giwa/device/environment.cuh>
#endif
#endif

#endif
