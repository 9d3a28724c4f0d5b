// SPDX-License-Identifier: MIT
// Two files built for different architectures keep their own launchers, and exchange views and statuses with a .cpp.
#include <giwa/numeric/tensor_view.hpp>
#include <string>

#include "parts.hpp"
#include "support/catch.hpp"

TEST_CASE("the same launch of two architecture lists is not merged by the linker") {
  CHECK(part_80::address_of_launch() != part_90a::address_of_launch());
}

TEST_CASE("a view goes from a .cpp to a .cu, and a status comes back") {
  const float data[6] = {};
  CHECK(part_80::check_square({data, {2, 2}}).ok());
  const giwa::status s = part_90a::check_square({data, {2, 3}});
  CHECK(s.code == giwa::status_code::invalid_argument);
  CHECK(s.argument == std::string("matrix"));
  CHECK(s.expected == 2);
  CHECK(s.got == 3);
}
