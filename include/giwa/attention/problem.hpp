// SPDX-License-Identifier: MIT
// The former place of problem/checks.hpp, problem/mask_combinators.hpp, problem/masks.hpp, problem/problem.hpp,
// problem/score.hpp; deprecated.
#ifndef GIWA_ATTENTION_PROBLEM_HPP
#define GIWA_ATTENTION_PROBLEM_HPP

#include <giwa/attention/problem/checks.hpp>
#include <giwa/attention/problem/mask_combinators.hpp>
#include <giwa/attention/problem/masks.hpp>
#include <giwa/attention/problem/problem.hpp>
#include <giwa/attention/problem/score.hpp>

#endif
