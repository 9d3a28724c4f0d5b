// SPDX-License-Identifier: MIT
// Writes a picture as a PNG file, uncompressed, so that no library is needed.
#pragma once

#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <string>
#include <string_view>
#include <vector>

namespace example {

using bytes = std::string;

/// Appends a number of four bytes, the highest first, as PNG has them.
inline void append_number(bytes& to, std::uint32_t number) {
  for (int shift = 24; shift >= 0; shift -= 8) to += static_cast<char>(number >> shift & 255);
}

/// Appends a chunk: length, name, content, and the CRC-32 of name and content.
inline void append_chunk(bytes& to, const bytes& name, const bytes& content) {
  std::uint32_t crc = ~0u;
  for (const char c : name + content) {
    crc ^= static_cast<unsigned char>(c);
    for (int bit = 0; bit < 8; ++bit) crc = crc >> 1 ^ (crc & 1 ? 0xedb88320u : 0u);
  }
  append_number(to, static_cast<std::uint32_t>(content.size()));
  to += name + content;
  append_number(to, ~crc);
}

/// Returns a zlib stream of stored blocks (RFC 1950, RFC 1951).
inline bytes stored(std::string_view content) {
  bytes to = "\x78\x01";
  std::uint32_t a = 1, b = 0;  // Adler-32
  for (const char c : content) a = (a + static_cast<unsigned char>(c)) % 65521, b = (b + a) % 65521;
  do {
    const std::size_t length = std::min<std::size_t>(content.size(), 65535);
    to += static_cast<char>(length == content.size());  // the last block?
    for (const std::size_t n : {length, ~length}) to += {static_cast<char>(n & 255), static_cast<char>(n >> 8 & 255)};
    to += content.substr(0, length);
    content.remove_prefix(length);
  } while (!content.empty());
  append_number(to, b << 16 | a);
  return to;
}

/// Writes a picture, (height, width, 3) bytes of red, green and blue, as a PNG file. Returns whether that worked.
inline bool write_png(const char* file_name, int height, int width, const std::vector<unsigned char>& rgb) {
  bytes header, rows, png = "\x89PNG\r\n\x1a\n";
  append_number(header, static_cast<std::uint32_t>(width));
  append_number(header, static_cast<std::uint32_t>(height));
  header += {8, 2, 0, 0, 0};  // 8 bits, RGB, and the only compression, filter and order without interlacing
  for (auto row = rgb.begin(); row != rgb.end(); row += 3 * width) (rows += '\0').append(row, row + 3 * width);
  append_chunk(png, "IHDR", header);
  append_chunk(png, "IDAT", stored(rows));
  append_chunk(png, "IEND", "");
  std::FILE* const file = std::fopen(file_name, "wb");
  if (file == nullptr) return false;
  const bool written = std::fwrite(png.data(), 1, png.size(), file) == png.size();
  return std::fclose(file) == 0 && written;
}

}  // namespace example
