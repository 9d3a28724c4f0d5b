#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""Checks that the tables of measurements in README.md say what the CSV files in docs/results say; --write puts them there.

A table stands between `<!-- begin table: FILE.csv -->` and `<!-- end table -->`.
"""
import csv
import pathlib
import re
import sys

ROOT = pathlib.Path(__file__).resolve().parent.parent
SIZES = {10_000_000: "10 000 000", 1 << 28: "2^28", 1 << 29: "2^29", 1 << 30: "2^30"}


def table(path):
    """The rows of the benchmark for_all, one for each type and size: both forms of giwa with their ratios."""
    cells = {}
    with open(path, encoding="utf-8", newline="") as file:
        for row in csv.DictReader(file):
            cells.setdefault(row["cell"], {})[row["contender"]] = row
    lines = [
        "| type | elements | `for_all`, by index | against `cub::DeviceFor::Bulk` | `for_all`, elementwise "
        "| against `cub::DeviceTransform` |",
        "|---|---|---|---|---|---|",
    ]
    for cell, contenders in cells.items():
        match = re.fullmatch(r"add/(\w+)/(\d+)", cell)
        if match is None:
            continue
        by_index, elementwise = contenders["giwa_for_all_index"], contenders["giwa_for_all_elementwise"]
        lines.append(
            f"| {match[1]} | {SIZES[int(match[2])]} | {by_index['gbs']} | {float(by_index['speed_ratio']):.2f} "
            f"| {elementwise['gbs']} | {float(elementwise['speed_ratio']):.2f} |"
        )
    return "\n".join(lines)


def main(write):
    readme = ROOT / "README.md"
    text = readme.read_text(encoding="utf-8")
    found = 0

    def replace(match):
        nonlocal found
        found += 1
        return f"{match[1]}\n\n{table(ROOT / 'docs' / 'results' / match[2])}\n\n{match[4]}"

    wanted = re.sub(r"(<!-- begin table: (\S+\.csv) -->)\n(.*?)\n(<!-- end table -->)", replace, text, flags=re.DOTALL)
    if found == 0:
        sys.exit("README.md has no table of measurements")
    if write:
        readme.write_text(wanted, encoding="utf-8")
    elif wanted != text:
        sys.exit("README.md does not say what docs/results says: run .ci/check_figures.py --write")
    print(f"figures: {found} table(s) in README.md agree with docs/results")


if __name__ == "__main__":
    main("--write" in sys.argv[1:])
