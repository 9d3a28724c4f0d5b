// SPDX-License-Identifier: MIT
// The former place of problem/score.hpp; deprecated.
#ifndef GIWA_ATTENTION_SCORE_HPP
#define GIWA_ATTENTION_SCORE_HPP

#include <giwa/attention/problem/score.hpp>

#endif
