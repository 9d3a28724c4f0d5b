// SPDX-License-Identifier: MIT
// Reads and writes NumPy's .npy files: fp16, fp32 and fp64 arrays in row-major order.
#pragma once

#include <giwa/host.hpp>

#include <charconv>
#include <cstring>
#include <fstream>
#include <stdexcept>
#include <string>
#include <string_view>
#include <vector>

namespace npy {

using giwa::int64;

/// What is wrong with a file, with its name.
struct error : std::runtime_error {
  error(const std::string& path, const std::string& what) : runtime_error(path + ": " + what) {}
};

/// An array, whatever the file's type was; all of fp16 and fp32 fits in fp32.
struct array {
  std::vector<int64> shape;
  std::vector<float> values;  // the last dimension runs fastest
};

namespace detail {

inline constexpr std::string_view magic{"\x93NUMPY", 6};
inline constexpr int64 most_elements = int64{1} << 40;  // no product of sizes below overflows

/// The text after `'key':`, without leading spaces.
inline std::string_view value_of(std::string_view header, std::string_view key, const std::string& path) {
  std::string quoted = "'";  // built up, as g++ 12 warns falsely of the sums of strings
  quoted.append(key).append("'");
  std::size_t at = header.find(quoted);
  if (at != header.npos) at = header.find_first_not_of(' ', at + quoted.size());
  if (at == header.npos || header[at] != ':') throw error(path, "the header has no " + quoted);
  at = header.find_first_not_of(' ', at + 1);
  return at == header.npos ? std::string_view{} : header.substr(at);
}

/// "(2, 3)", "(2,)" or "()".
inline std::vector<int64> parse_shape(std::string_view text, const std::string& path) {
  const std::size_t end = text.find(')');
  if (!text.starts_with('(') || end == text.npos) throw error(path, "the header's shape is no tuple");
  text = text.substr(1, end - 1);
  std::vector<int64> shape;
  int64 size = 1;
  while (true) {
    const std::size_t first = text.find_first_not_of(' ');
    if (first == text.npos) return shape;
    int64 n = -1;
    const auto [rest, fault] = std::from_chars(text.data() + first, text.data() + text.size(), n);
    if (fault != std::errc{} || n < 0) throw error(path, "a size in the header is not a number, or negative");
    if (n > most_elements || (n > 0 && size > most_elements / n)) throw error(path, "the array is too large");
    if (n > 0) size *= n;
    shape.push_back(n);
    text.remove_prefix(static_cast<std::size_t>(rest - text.data()));
    const std::size_t comma = text.find_first_not_of(' ');
    if (comma == text.npos) return shape;
    if (text[comma] != ',') throw error(path, "the header's shape is no tuple of numbers");
    text.remove_prefix(comma + 1);
  }
}

template <class T>
std::vector<float> convert_all(std::string_view bytes, int64 count, const std::string& path) {
  if (static_cast<int64>(bytes.size()) != count * static_cast<int64>(sizeof(T)))
    throw error(path, "the shape asks for " + std::to_string(count * static_cast<int64>(sizeof(T))) +
                          " bytes of data, and there are " + std::to_string(bytes.size()));
  std::vector<float> values(static_cast<std::size_t>(count));
  for (std::size_t i = 0; i < values.size(); ++i) {
    T x;
    std::memcpy(&x, bytes.data() + i * sizeof(T), sizeof(T));
    values[i] = giwa::convert<float>{}(x);
  }
  return values;
}

inline std::string whole_file(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  if (!file) throw error(path, "cannot be opened");
  std::string bytes;
  for (char block[1 << 16]; file.read(block, sizeof block), file.gcount() > 0;)
    bytes.append(block, static_cast<std::size_t>(file.gcount()));
  if (!file.eof()) throw error(path, "cannot be read");
  return bytes;
}

}  // namespace detail

/// The array in a file of version 1, 2 or 3. Throws npy::error.
inline array read(const std::string& path) {
  const std::string bytes = detail::whole_file(path);
  const std::string_view file = bytes;
  if (!file.starts_with(detail::magic)) throw error(path, "is no .npy file");
  const int version = file.size() > 6 ? static_cast<unsigned char>(file[6]) : 0;
  if (version < 1 || version > 3) throw error(path, "is of an unknown version of .npy");
  const std::size_t start = version == 1 ? 10 : 12;  // magic, two bytes of version, the header's size
  if (file.size() < start) throw error(path, "ends before its header");
  std::size_t size = 0;
  for (std::size_t i = start; i-- > 8;) size = size * 256 + static_cast<unsigned char>(file[i]);
  if (size > file.size() - start) throw error(path, "ends inside its header");
  const std::string_view header = file.substr(start, size), data = file.substr(start + size);

  if (!detail::value_of(header, "fortran_order", path).starts_with("False"))
    throw error(path, "is in column-major order; save np.ascontiguousarray(x)");
  array result;
  result.shape = detail::parse_shape(detail::value_of(header, "shape", path), path);
  int64 count = 1;
  for (const int64 n : result.shape) count *= n;
  const std::string_view type = detail::value_of(header, "descr", path).substr(0, 5);
  if (type == "'<f2'")
    result.values = detail::convert_all<giwa::fp16>(data, count, path);
  else if (type == "'<f4'")
    result.values = detail::convert_all<float>(data, count, path);
  else if (type == "'<f8'")
    result.values = detail::convert_all<double>(data, count, path);
  else
    throw error(path, "holds elements of type " + std::string(type) + "; fp16, fp32 and fp64 can be read");
  return result;
}

/// Writes fp32 values. Throws npy::error.
inline void write(const std::string& path, const array& a) {
  std::string header = "{'descr': '<f4', 'fortran_order': False, 'shape': (";
  int64 count = 1;
  for (const int64 n : a.shape) header += std::to_string(n) + ",", count *= n;
  header += "), }";
  if (count != static_cast<int64>(a.values.size())) throw error(path, "the shape does not belong to the values");
  header.append(64 - (10 + header.size() + 1) % 64, ' ');  // the data begins at a multiple of 64
  header += '\n';
  const char version_and_size[4] = {1, 0, static_cast<char>(header.size() % 256),
                                    static_cast<char>(header.size() / 256)};
  std::ofstream file(path, std::ios::binary);
  file.write(detail::magic.data(), static_cast<std::streamsize>(detail::magic.size()));
  file.write(version_and_size, sizeof version_and_size);
  file.write(header.data(), static_cast<std::streamsize>(header.size()));
  file.write(reinterpret_cast<const char*>(a.values.data()),
             static_cast<std::streamsize>(a.values.size() * sizeof(float)));
  if (!file.flush()) throw error(path, "cannot be written");
}

}  // namespace npy
