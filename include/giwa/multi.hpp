// SPDX-License-Identifier: MIT
// Public header of attention on several ranks: GPUs, processes or threads that each have a part of the sequence.
#ifndef GIWA_MULTI_HPP
#define GIWA_MULTI_HPP

#include <giwa/base/throw.hpp>
#include <giwa/multi/head_backward.hpp>
#include <giwa/multi/head_forward.hpp>
#include <giwa/multi/host_group.hpp>
#include <giwa/multi/ring_backward.hpp>
#include <giwa/multi/ring_forward.hpp>
#include <giwa/multi/slice_tokens.hpp>
#if defined(__CUDACC__)
#include <giwa/grid/for_all.cuh>
#else
#include <giwa/grid/host_loop.hpp>
#endif

#endif
