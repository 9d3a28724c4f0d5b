#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""Reads uncompressed RGB pictures: check_png.py [FILE WIDTH HEIGHT]... Fails where a size, a checksum or the number of bytes is wrong."""
import struct
import sys
import zlib


def check(name, width, height):
    with open(name, "rb") as file:
        data = file.read()
    assert data[:8] == b"\x89PNG\r\n\x1a\n", "not a PNG file"
    chunks, at = {}, 8
    while at < len(data):
        length, = struct.unpack_from(">I", data, at)
        chunk = data[at + 4:at + 8 + length]
        crc, = struct.unpack_from(">I", data, at + 8 + length)
        assert zlib.crc32(chunk) == crc, f"checksum of {chunk[:4]}"
        chunks[chunk[:4]] = chunk[4:]
        at += 12 + length
    assert list(chunks) == [b"IHDR", b"IDAT", b"IEND"], f"chunks {list(chunks)}"
    assert chunks[b"IHDR"] == struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0), "size or format"
    rows = zlib.decompress(chunks[b"IDAT"])  # checks Adler-32
    assert len(rows) == height * (1 + 3 * width), f"{len(rows)} bytes"
    assert not any(rows[::1 + 3 * width]), "a filter"
    colors = len({rows[i:i + 3] for row in range(height) for i in range(row * (1 + 3 * width) + 1, (row + 1) * (1 + 3 * width), 3)})
    assert colors > 100, f"only {colors} colours"
    print(f"{name}: {width} x {height}, {colors} colours")


arguments = sys.argv[1:]
while arguments:
    file_name, columns, lines, *arguments = arguments
    check(file_name, int(columns), int(lines))
