// SPDX-License-Identifier: MIT
// The examples' reader of .npy files: what it writes it reads, and what is no array it refuses with a sentence.
#include "../../../examples/npy.hpp"

#include <filesystem>

#include "support/catch.hpp"

namespace {

std::string in_folder(const char* name) { return (std::filesystem::temp_directory_path() / name).string(); }

/// A file of version 1 with this header and as many bytes of data.
std::string file_of(const std::string& header, std::size_t bytes) {
  std::string file("\x93NUMPY\x01\x00", 8);
  file += static_cast<char>(header.size() % 256);
  file += static_cast<char>(header.size() / 256);
  return file + header + std::string(bytes, '\0');
}

/// What read() says to a file of these bytes, or "" where it reads it.
std::string refusal(const std::string& bytes) {
  const std::string path = in_folder("giwa_npy_test.npy");
  std::ofstream(path, std::ios::binary) << bytes;
  std::string text;
  try {
    static_cast<void>(npy::read(path));
  } catch (const npy::error& e) {
    text = std::string(e.what()).substr(path.size() + 2);
  }
  std::filesystem::remove(path);
  return text;
}

const std::string good = "{'descr': '<f2', 'fortran_order': False, 'shape': (2, 3), }";

}  // namespace

TEST_CASE("an array comes back as it was written", "[npy]") {
  const std::string path = in_folder("giwa_npy_round_trip.npy");
  for (const std::vector<giwa::int64>& shape : {std::vector<giwa::int64>{}, {6}, {2, 3}, {1, 2, 3, 1}, {4, 0}}) {
    npy::array a{shape, {}};
    std::size_t count = 1;
    for (const giwa::int64 n : shape) count *= static_cast<std::size_t>(n);
    for (std::size_t i = 0; i < count; ++i) a.values.push_back(static_cast<float>(i) - 0.5f);
    npy::write(path, a);
    const npy::array b = npy::read(path);
    CHECK(b.shape == a.shape);
    CHECK(b.values == a.values);
    CHECK((std::filesystem::file_size(path) - 4 * count) % 64 == 0);
  }
  std::filesystem::remove(path);
}

TEST_CASE("what is no array is refused", "[npy]") {
  CHECK(refusal(file_of(good, 12)) == "");
  CHECK(refusal("") == "is no .npy file");
  CHECK(refusal("PK") == "is no .npy file");
  CHECK(refusal(std::string("\x93NUMPY\x07\x00", 8)) == "is of an unknown version of .npy");
  CHECK(refusal(std::string("\x93NUMPY\x01\x00\xff", 9)) == "ends before its header");
  CHECK(refusal(std::string("\x93NUMPY\x01\x00\xff\xff{", 11)) == "ends inside its header");
  CHECK(refusal(file_of(good, 11)) == "the shape asks for 12 bytes of data, and there are 11");
  CHECK(refusal(file_of(good, 13)) == "the shape asks for 12 bytes of data, and there are 13");
  const auto with_shape = [](const std::string& shape) {
    return refusal(file_of("{'descr': '<f4', 'fortran_order': False, 'shape': " + shape + "}", 0));
  };
  CHECK(with_shape("(0, 7)") == "");
  CHECK(with_shape("7") == "the header's shape is no tuple");
  CHECK(with_shape("(2 3)") == "the header's shape is no tuple of numbers");
  CHECK(with_shape("(-1,)") == "a size in the header is not a number, or negative");
  CHECK(with_shape("(99999999999999999999,)") == "a size in the header is not a number, or negative");
  CHECK(with_shape("(9223372036854775807, 2)") == "the array is too large");
  CHECK(with_shape("(1048576, 1048576, 2)") == "the array is too large");
  CHECK(refusal(file_of("{'descr': '<f4', 'fortran_order': True, 'shape': (1,)}", 4)) ==
        "is in column-major order; save np.ascontiguousarray(x)");
  CHECK(refusal(file_of("{'descr': '<i4', 'fortran_order': False, 'shape': (1,)}", 4)) ==
        "holds elements of type '<i4'; fp16, fp32 and fp64 can be read");
  CHECK(refusal(file_of("{}", 0)) == "the header has no 'fortran_order'");
}

TEST_CASE("every prefix of a file, and every byte changed, is read or refused", "[npy]") {
  const std::string file = file_of(good, 12);
  bool all = true;
  for (std::size_t n = 0; n < file.size(); ++n) all = all && !refusal(file.substr(0, n)).empty();
  CHECK(all);
  for (std::size_t at = 0; at < file.size(); ++at)
    for (const char other : {'\0', '\xff', '(', ')', ',', '9', '\''}) {
      std::string changed = file;
      changed[at] = other;
      static_cast<void>(refusal(changed));
    }
}
