#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""Turns the JSON of the benchmark programs into one CSV and prints it as a table: table.py out.csv in.json ..."""
import csv
import json
import sys


def main(out, *inputs):
    rows = []
    for path in inputs:
        with open(path, encoding="utf-8") as file:
            report = json.load(file)
        for b in report["benchmarks"]:
            cell, contender = b["name"].split("/iterations")[0].rsplit("/", 1)
            rows.append({
                "cell": cell, "contender": contender, "median_us": f"{b['median_us']:.3f}",
                "gbs": f"{b['GB/s']:.0f}" if "GB/s" in b else "", "peer": b["label"],
                "speed_ratio": f"{b['speed_ratio']:.3f}",
                "tflops": f"{b['TFLOP/s']:.1f}" if "TFLOP/s" in b else "",
            })
        context = report["context"]
        print("#", path, context["date"], {k: context[k] for k in ("gpu", "cuda", "code") if k in context})
    with open(out, "w", encoding="utf-8", newline="") as file:
        writer = csv.DictWriter(file, rows[0].keys(), lineterminator="\n")
        writer.writeheader()
        writer.writerows(rows)
    for r in rows:
        print(f"{r['cell']:<24}{r['contender']:<36}{r['median_us']:>12} us {r['gbs'] or r['tflops']:>6} {'GB/s' if r['gbs'] else 'TFLOP/s' if r['tflops'] else '':<7} "
              f"{r['speed_ratio']:>7} x {r['peer']}")


if __name__ == "__main__":
    if len(sys.argv) < 3:
        sys.exit(__doc__)
    main(*sys.argv[1:])
