// SPDX-License-Identifier: MIT
// What the compiler says about architectures: the features of this pass, and a tag for the list of the whole file.
#ifndef GIWA_BASE_ARCH_HPP
#define GIWA_BASE_ARCH_HPP

#include <giwa/base/macros.hpp>

// The compute capability of this compiler pass times ten: 90 for compute_90 and compute_90a, 0 in the host pass.
#if defined(__CUDA_ARCH__)
#define GIWA_ARCH_CAPABILITY (__CUDA_ARCH__ / 10)
#else
#define GIWA_ARCH_CAPABILITY 0
#endif

// 1 in a device pass that may use the instructions of compute_90a (wgmma, setmaxnreg), else 0. A pass for plain
// compute_90 has __CUDA_ARCH__ == 900 too, but cannot assemble them.
#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
#define GIWA_ARCH_HAS_SM90A 1
#else
#define GIWA_ARCH_HAS_SM90A 0
#endif

// GIWA_ARCH_TAG names the architecture list of this translation unit: archs_800900 for 80 and 90, archs_none without
// nvcc. Everything that launches is in an inline namespace of that name, so that two files compiled for different lists
// keep their own launchers. With one name the linker would keep only one of them, which might launch code that the
// other file does not contain. The compiler's list does not distinguish 90 from 90a, nor machine code from PTX. A
// program that mixes such files gives each kind its own tag: -DGIWA_ARCH_TAG=any_name. A file that is compiled with
// GIWA_ONLY_TMA_LAYOUTS (docs/install.md) contains fewer kernels, and needs a separate tag too: that of the list has it.
#if defined(GIWA_ONLY_TMA_LAYOUTS)
#define GIWA_DETAIL_TAG_(a, b, c, d, e, f, g, h, i, j, k, l, m, n, o, p, ...) \
  tma_archs_##a##b##c##d##e##f##g##h##i##j##k##l##m##n##o##p
#else
#define GIWA_DETAIL_TAG_(a, b, c, d, e, f, g, h, i, j, k, l, m, n, o, p, ...) \
  archs_##a##b##c##d##e##f##g##h##i##j##k##l##m##n##o##p
#endif
#define GIWA_DETAIL_TAG(...) GIWA_DETAIL_TAG_(__VA_ARGS__, , , , , , , , , , , , , , , , )
#if defined(GIWA_ARCH_TAG)
// given by the build
#elif defined(__CUDA_ARCH_LIST__)
#define GIWA_ARCH_TAG GIWA_DETAIL_TAG(__CUDA_ARCH_LIST__)
#else
#define GIWA_ARCH_TAG archs_none
#endif

namespace giwa::inline GIWA_ABI::detail::inline GIWA_ARCH_TAG {

/// Whether this file is compiled for an architecture in [first, last), 900 for 90 and 90a. False without nvcc.
GIWA_HOST_DEVICE constexpr bool compiled_for(int first, int last) {
  constexpr int list[] = {
#if defined(__CUDA_ARCH_LIST__)
    __CUDA_ARCH_LIST__
#else
    0
#endif
  };
  for (const int a : list)
    if (first <= a && a < last) return true;
  return false;
}

}  // namespace giwa::inline GIWA_ABI::detail::inline GIWA_ARCH_TAG

#endif
