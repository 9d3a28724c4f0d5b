// SPDX-License-Identifier: MIT
// wgmma's descriptor, field by field.
#include <giwa/arch/matrix_descriptor.hpp>

#include "support/catch.hpp"

using giwa::swizzle, giwa::uint32, giwa::uint64;
namespace arch = giwa::arch;

namespace {
constexpr uint64 field(uint64 descriptor, int first, int last) {
  return descriptor >> first & ((uint64{1} << (last - first + 1)) - 1);
}
}  // namespace

TEST_CASE("the fields of a descriptor lie where the PTX ISA has them") {
  struct {
    giwa::swizzle pattern;
    uint64 mode;
  } const modes[] = {{swizzle::none, 0}, {swizzle::bytes_128, 1}, {swizzle::bytes_64, 2}, {swizzle::bytes_32, 3}};
  for (const auto& m : modes)
    for (const int leading : {16, 1024, 32768, 16 * 16383})
      for (const int stride : {256, 512, 1024, 16 * 16383}) {
        const uint64 d = arch::matrix_descriptor(m.pattern, leading, stride);
        CAPTURE(span_of(m.pattern), leading, stride);
        CHECK(field(d, 62, 63) == m.mode);
        CHECK(field(d, 16, 29) == static_cast<uint64>(leading / 16));
        CHECK(field(d, 32, 45) == static_cast<uint64>(stride / 16));
        CHECK(field(d, 0, 15) == 0);
        CHECK(field(d, 30, 31) == 0);
        CHECK(field(d, 46, 61) == 0);  // with the base offset, 0 for tiles at a multiple of eight rows
      }
}

TEST_CASE("a descriptor is placed at an address and moved on") {
  constexpr uint64 shape = arch::matrix_descriptor(swizzle::bytes_128, 16, 1024);
  for (const uint32 address : {0u, 1024u, 0x38000u, 227u * 1024 - 1024}) {
    const uint64 d = arch::descriptor_at(shape, address);
    CAPTURE(address);
    CHECK(field(d, 0, 13) == address / 16);
    CHECK((d & ~uint64{0x3fff}) == shape);
    CHECK(field(arch::advance(d, 32), 0, 13) == address / 16 + 2);
    CHECK(field(arch::advance(d, 512), 14, 63) == field(shape, 14, 63));
    CHECK(arch::advance_by_64_bits(d, 512) == arch::advance(d, 512));
    CHECK(arch::advance_by_64_bits(arch::advance(d, 512), -480) == arch::advance(d, 32));
  }
  // An address in a cluster's window has the block's rank above the 24 bits of shared memory: it is no part of the field.
  CHECK(arch::descriptor_at(shape, 0x03000400u) == arch::descriptor_at(shape, 0x400u));
}
