// SPDX-License-Identifier: MIT
// Catch2 for the tests, whichever version is installed: 2.13 or 3.x.
#ifndef GIWA_TEST_SUPPORT_CATCH_HPP
#define GIWA_TEST_SUPPORT_CATCH_HPP

#if __has_include(<catch2/catch_test_macros.hpp>)
#include <catch2/catch_template_test_macros.hpp>
#include <catch2/catch_test_macros.hpp>
#include <catch2/generators/catch_generators.hpp>
#include <catch2/generators/catch_generators_range.hpp>
#include <catch2/matchers/catch_matchers.hpp>
#include <catch2/matchers/catch_matchers_floating_point.hpp>
#include <catch2/matchers/catch_matchers_string.hpp>
#else
#include <catch2/catch.hpp>
#endif

#endif
