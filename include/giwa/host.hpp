// SPDX-License-Identifier: MIT
// Public header of the CPU path: for_all, softmax and attention on giwa::host. A host compiler alone compiles it.
#ifndef GIWA_HOST_HPP
#define GIWA_HOST_HPP

#include <giwa/attention/call/forward.hpp>
#include <giwa/attention/cpu/backward.hpp>
#include <giwa/attention/cpu/calls.hpp>
#include <giwa/attention/reference/backward.hpp>
#include <giwa/attention/reference/cached.hpp>
#include <giwa/attention/reference/reference.hpp>
#include <giwa/base/throw.hpp>
#include <giwa/grid/elementwise.hpp>
#include <giwa/grid/host_for_all.hpp>
#include <giwa/grid/host_loop.hpp>
#include <giwa/numeric/philox.hpp>
#include <giwa/numeric/trigonometry.hpp>
#include <giwa/softmax/host_rows.hpp>
#include <giwa/softmax/host_softmax.hpp>

#endif
