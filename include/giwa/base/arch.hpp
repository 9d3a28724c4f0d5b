// SPDX-License-Identifier: MIT
// What the compiler says of the architecture: the features of this pass, and a tag that names this file's list.
#ifndef GIWA_BASE_ARCH_HPP
#define GIWA_BASE_ARCH_HPP

#include <giwa/base/macros.hpp>

// The compute capability of this pass times ten: 90 in one for compute_90 or compute_90a, 0 in the host's.
#if defined(__CUDA_ARCH__)
#define GIWA_ARCH_CAPABILITY (__CUDA_ARCH__ / 10)
#else
#define GIWA_ARCH_CAPABILITY 0
#endif

// 1 in a device pass that may use the instructions of compute_90a (wgmma, setmaxnreg), else 0. A build for plain
// compute_90 has __CUDA_ARCH__ == 900 as well, and cannot assemble them.
#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
#define GIWA_ARCH_HAS_SM90A 1
#else
#define GIWA_ARCH_HAS_SM90A 0
#endif

// GIWA_ARCH_TAG names the architecture list of this translation unit: archs_800900 for 80 and 90, archs_none without
// nvcc. It is an inline namespace around all that launches, so that two files built for different lists keep their own
// launchers. Under one name the linker would keep either, and it might launch code that its file was never built for.
// The compiler's list does not tell 90 from 90a, nor machine code from PTX: a program that mixes files built for either
// gives each kind a tag of its own, -DGIWA_ARCH_TAG=any_name.
#define GIWA_DETAIL_TAG_(a, b, c, d, e, f, g, h, i, j, k, l, m, n, o, p, ...) \
  archs_##a##b##c##d##e##f##g##h##i##j##k##l##m##n##o##p
#define GIWA_DETAIL_TAG(...) GIWA_DETAIL_TAG_(__VA_ARGS__, , , , , , , , , , , , , , , , )
#if defined(GIWA_ARCH_TAG)
// given by the build
#elif defined(__CUDA_ARCH_LIST__)
#define GIWA_ARCH_TAG GIWA_DETAIL_TAG(__CUDA_ARCH_LIST__)
#else
#define GIWA_ARCH_TAG archs_none
#endif

#endif
