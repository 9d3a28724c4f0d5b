#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""Counts the bank conflicts of bank_conflicts.cu with Nsight Compute: bank_conflicts.py PROGRAM

Each kernel must have none, but for those whose name begins with CONFLICTS, which must have some.
"""
import csv
import io
import subprocess
import sys

METRIC = "l1tex__data_bank_conflicts_pipe_lsu_mem_shared.sum"


def main(program):
    names = subprocess.run([program], check=True, capture_output=True, text=True).stdout.split("\n")
    report = subprocess.run(
        ["ncu", "--csv", "--metrics", METRIC, "--kernel-name", "access", program],
        check=True, capture_output=True, text=True).stdout
    table = report[report.index('"ID"'):]
    counts = [int(row["Metric Value"].replace(",", "")) for row in csv.DictReader(io.StringIO(table))
              if row["Metric Name"] == METRIC]
    names = [name for name in names if name]
    if len(counts) != len(names):
        sys.exit(f"{len(names)} kernels, but {len(counts)} counts:\n{report}")
    wrong = 0
    for name, count in zip(names, counts):
        right = (count > 0) == name.startswith("CONFLICTS")
        wrong += not right
        print(f"{'ok   ' if right else 'WRONG'} {count:>6} bank conflicts: {name}")
    sys.exit(wrong > 0)


if __name__ == "__main__":
    if len(sys.argv) != 2:
        sys.exit(__doc__)
    main(sys.argv[1])
