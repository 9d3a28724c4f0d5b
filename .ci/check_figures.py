#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""Checks that the tables of measurements in README.md and docs/ say what the CSV files in docs/results say; --write puts them there.

A table stands between `<!-- begin table: FILE.csv KIND -->` and `<!-- end table -->`; KIND is a function in TABLES.
"""
import csv
import pathlib
import re
import sys

ROOT = pathlib.Path(__file__).resolve().parent.parent
SIZES = {10_000_000: "10 000 000", 1 << 28: "2^28", 1 << 29: "2^29", 1 << 30: "2^30"}


def read(path):
    """The rows of a CSV by cell, in its order, and in each by contender."""
    cells = {}
    with open(path, encoding="utf-8", newline="") as file:
        for row in csv.DictReader(file):
            cells.setdefault(row["cell"], {})[row["contender"]] = row
    return cells


def ratio(row):
    return f"{float(row['speed_ratio']):.2f}"


def lines(*rows):
    head = rows[0].count("|") - 1
    return "\n".join([rows[0], "|" + "---|" * head, *rows[1:]])


def for_all(path):
    """The benchmark for_all, a line for each type and size: both forms of giwa with their ratios."""
    rows = ["| type | elements | `for_all`, by index | against `cub::DeviceFor::Bulk` | `for_all`, elementwise "
            "| against `cub::DeviceTransform` |"]
    for cell, contenders in read(path).items():
        match = re.fullmatch(r"add/(\w+)/(\d+)", cell)
        if match is None:
            continue
        by_index, elementwise = contenders["giwa_for_all_index"], contenders["giwa_for_all_elementwise"]
        rows.append(f"| {match[1]} | {SIZES[int(match[2])]} | {by_index['gbs']} | {ratio(by_index)} "
                    f"| {elementwise['gbs']} | {ratio(elementwise)} |")
    return lines(*rows)


def by_columns(values):
    """A line for each number of columns, a column for each type; values: {(type, columns): text}."""
    types = list(dict.fromkeys(t for t, _ in values))
    columns = dict.fromkeys(c for _, c in values)
    return lines("| columns | " + " | ".join(types) + " |",
                 *(f"| {c} | " + " | ".join(values[t, c] for t in types) + " |" for c in columns))


def softmax(path):
    values = {}
    for cell, contenders in read(path).items():
        if match := re.fullmatch(r"softmax/(\w+)/\d+x(\d+)", cell):
            row = contenders["giwa_softmax"]
            values[match[1], match[2]] = f"{row['gbs']} ({ratio(row)})"
    return by_columns(values)


def softmax_torch(path):
    values = {}
    with open(path, encoding="utf-8", newline="") as file:
        for row in csv.DictReader(file):
            if match := re.fullmatch(r"softmax/(\w+)/\d+x(\d+)", row["case"]):
                values[match[1], match[2]] = f"{float(row['speed_of_torch']):.2f}"
    return by_columns(values)


def transpose(path):
    rows = ["| type | rows x columns | GB/s | against a copy |"]
    for cell, contenders in read(path).items():
        if match := re.fullmatch(r"transpose/(\w+)/(\d+)x(\d+)", cell):
            row = contenders["giwa_transpose"]
            rows.append(f"| {match[1]} | {match[2]} x {match[3]} | {row['gbs']} | {ratio(row)} |")
    return lines(*rows)


def transpose_torch(path):
    rows = ["| type | rows x columns | GB/s | against PyTorch |"]
    with open(path, encoding="utf-8", newline="") as file:
        for row in csv.DictReader(file):
            if match := re.fullmatch(r"transpose/(\w+)/(\d+)x(\d+)", row["case"]):
                rows.append(f"| {match[1]} | {match[2]} x {match[3]} | {row['giwa_gbs']} "
                            f"| {float(row['speed_of_torch']):.2f} |")
    return lines(*rows)


def matmul(path):
    """Each step in TFLOP/s, and in brackets beside cuBLAS."""
    cells = read(path)
    steps = [s for s in ("register_tile", "mma", "wgmma", "fp32_by_fp16") if any(s in c for c in cells.values())]
    rows = ["| type | m x n x k | cuBLAS | " + " | ".join(f"`{s}`" for s in steps) + " |"]
    for cell, contenders in cells.items():
        if match := re.fullmatch(r"matmul/(\w+)/(\d+)x(\d+)x(\d+)", cell):
            found = [contenders.get(s) for s in steps]
            rows.append(f"| {match[1]} | {match[2]} x {match[3]} x {match[4]} | {contenders['cublas']['tflops']} | "
                        + " | ".join(f"{r['tflops']} ({ratio(r)})" if r else "" for r in found) + " |")
    return lines(*rows)


def attention(path):
    """A line for each head size and length, full and causal: giwa's TFLOP/s, and in brackets beside the other columns' owners."""
    values = {}
    with open(path, encoding="utf-8", newline="") as file:
        for row in csv.DictReader(file):
            if match := re.fullmatch(r"(\w+)/(\w+)/D(\d+)/(\d+)x(\d+)x(\d+)", row["case"]):
                beside = ", ".join(f"{float(row[k]):.2f}" for k in row if k.startswith("speed_of_") and row[k])
                values[match[3], match[5], f"{match[4]} x {match[6]}", match[2]] = (
                    f"{float(row['giwa_tflops']):.0f} ({beside})")
    cases = [c for c in dict.fromkeys(key[:3] for key in values) if all((*c, m) in values for m in ("full", "causal"))]
    return lines("| head size | heads | batch x tokens | full | causal |",
                 *(f"| {d} | {h} | {n} | {values[d, h, n, 'full']} | {values[d, h, n, 'causal']} |" for d, h, n in cases))


def attention_fp32(path):
    """A line for each head size and length: each accuracy in TFLOP/s, fp32's with its speed beside PyTorch's memory-efficient."""
    values = {}
    with open(path, encoding="utf-8", newline="") as file:
        for row in csv.DictReader(file):
            if match := re.fullmatch(r"fp32/(\w+)/D(\d+)/(\d+)x(\d+)x(\d+)", row["case"]):
                tflops = [f"{float(row[f'{name}_tflops']):.0f}" for name in ("fp32", "tf32", "fp32_exact")]
                tflops[0] += f" ({float(row['speed_of_efficient']):.2f})"
                values[match[2], match[4], f"{match[3]} x {match[5]}", match[1]] = " | ".join(tflops)
    cases = [c for c in dict.fromkeys(key[:3] for key in values) if all((*c, m) in values for m in ("full", "causal"))]
    return lines("| head size | heads | batch x tokens | full: fp32 | tf32 | fp32_exact | causal: fp32 | tf32 | fp32_exact |",
                 *(f"| {d} | {h} | {n} | {values[d, h, n, 'full']} | {values[d, h, n, 'causal']} |" for d, h, n in cases))


def accuracy(path):
    """A line for each family and length, head size 128, full: relative errors in units of 10^-7, of all / worst row / worst column."""
    names = ("fp32", "fp32_exact", "unfused", "tf32", "fp16")
    rows = ["| inputs | keys | " + " | ".join(names).replace("unfused", "PyTorch, unfused") + " |"]
    with open(path, encoding="utf-8", newline="") as file:
        for row in csv.DictReader(file):
            if match := re.fullmatch(r"(\w+)/full/D128/(1024|65536)", row["case"]):
                of = [" / ".join(f"{float(row[f'{n}_{what}']) * 1e7:.3g}" for what in ("all", "row", "column")) for n in names]
                rows.append(f"| {match[1]} | {match[2]} | " + " | ".join(of) + " |")
    return lines(*rows)


TABLES = {f.__name__: f for f in (accuracy, attention, attention_fp32, for_all, softmax, softmax_torch, transpose,
                                  transpose_torch, matmul)}


def main(write):
    found = 0
    for page in (ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))):
        name, text, here = page.relative_to(ROOT), page.read_text(encoding="utf-8"), 0

        def replace(match):
            nonlocal found, here
            found, here = found + 1, here + 1
            if match[3] not in TABLES:
                sys.exit(f"{name} asks for a table of an unknown kind: {match[3]}")
            return f"{match[1]}\n\n{TABLES[match[3]](ROOT / 'docs' / 'results' / match[2])}\n\n{match[5]}"

        wanted = re.sub(r"(<!-- begin table: (\S+\.csv) (\w+) -->)\n(.*?)(<!-- end table -->)", replace, text, flags=re.DOTALL)
        if here != text.count("begin table"):
            sys.exit(f"{name} has a table whose marks are not as they should be")
        if write:
            page.write_text(wanted, encoding="utf-8")
        elif wanted != text:
            sys.exit(f"{name} does not say what docs/results says: run .ci/check_figures.py --write")
    if found == 0:
        sys.exit("no page has a table of measurements")
    print(f"figures: {found} table(s) agree with docs/results")


if __name__ == "__main__":
    main("--write" in sys.argv[1:])
