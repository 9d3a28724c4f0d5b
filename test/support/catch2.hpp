// SPDX-License-Identifier: MIT
// All of Catch2, whichever version is installed, 2.13 or 3.x: for tests with GENERATE or matchers, host compiler only.
#ifndef GIWA_TEST_SUPPORT_CATCH2_HPP
#define GIWA_TEST_SUPPORT_CATCH2_HPP

#if __has_include(<catch2/catch_all.hpp>)
#include <catch2/catch_all.hpp>
#else
#include <catch2/catch.hpp>
#endif

#endif
