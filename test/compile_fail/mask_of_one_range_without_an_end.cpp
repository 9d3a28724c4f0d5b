// EXPECT: giwa: a mask that is one_range has first_key(giwa::attention_coord) const
// SPDX-License-Identifier: MIT
// A mask whose keys are one range says where that begins or ends.
#include <giwa/attention/reference/reference.hpp>

struct first_keys {
  static constexpr bool one_range = true;
  int count;
#if !defined(GIWA_COMPILE_FAIL)
  int last_key(giwa::attention_coord) const { return count - 1; }
#endif
  bool operator()(giwa::attention_coord c) const { return c.key < count; }
};

giwa::status attend(const giwa::tensor_view<float, 4>& x) {
  return giwa::attention_reference(giwa::host, x, x, x, x, first_keys{5});
}
