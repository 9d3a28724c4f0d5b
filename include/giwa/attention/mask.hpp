// SPDX-License-Identifier: MIT
// The former place of problem/mask_combinators.hpp, problem/masks.hpp; deprecated.
#ifndef GIWA_ATTENTION_MASK_HPP
#define GIWA_ATTENTION_MASK_HPP

#include <giwa/attention/problem/mask_combinators.hpp>
#include <giwa/attention/problem/masks.hpp>

#endif
