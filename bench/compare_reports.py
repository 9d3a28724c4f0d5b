#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""What moved between two benchmark reports: compare_reports.py OLD.json NEW.json [--threshold PERCENT] [--regression PERCENT]

First the ratios to a peer, which one run measured together; then the figures themselves, which also move with the machine's
clocks: the peers' say by how much. Below that what is new, what is gone, and which versions differ. The largest changes come first;
+ is better. The exit status is 2 for a file that is no report, and 1 if with --regression a ratio to a peer is lower by so much, or
a case that had one has none. Otherwise it is 0, whatever moved. Figures alone are no regression, because clocks move them.
"""
import argparse
import math
import statistics
import sys

import report_rows


def text(r):
    return f"{r['suite']} {r['case']} {r['contender']}" + (f" {r['metric']}" if r["metric"] != "speed" else "")


def moves(pairs, threshold, sense=lambda r: 1):
    """[(percent for the better, old, new, row)] beyond the threshold, largest first; pairs: (old, new, row)."""
    found = []
    for old, new, r in pairs:
        if old and new and old > 0 and new > 0:
            better = sense(r) * math.log(new / old)
            if abs(better) >= math.log1p(threshold / 100):
                found.append((math.expm1(better) * 100, old, new, r))
    return sorted(found, key=lambda m: (-abs(math.log1p(m[0] / 100)), text(m[3])))


def regressions(old, new, percent):
    """The lines for ratios to peers that are lower by `percent` or more, or gone, the largest losses first. The suites of `new` count."""
    after = {report_rows.key(r): r for r in new["rows"]}
    suites = {r["suite"] for r in new["rows"]}
    before = {k: r for k, r in ((report_rows.key(r), r) for r in old["rows"]) if r["ratio"] and r["suite"] in suites}
    pairs = [(r["ratio"], after[k]["ratio"], after[k]) for k, r in before.items() if k in after and after[k]["ratio"]]
    for loss, a, b, r in moves(pairs, 0):
        if loss <= -percent:
            yield f"  {loss:+7.1f} %  {a:.3f} -> {b:.3f} of {r['ratio_to']}: {text(r)}"
    yield from (f"  gone: {text(r)}, {r['ratio']:.3f} of {r['ratio_to']}" for k, r in before.items()
                if not (k in after and after[k]["ratio"]))


def compare(old, new, threshold):
    """The lines to print."""
    before, after = ({report_rows.key(r): r for r in report["rows"]} for report in (old, new))
    both = [(before[k], after[k]) for k in after if k in before]
    yield f"old: {old['name']}, {old['gpu']}, commit {old['commit']}; new: {new['name']}, {new['gpu']}, commit {new['commit']}"
    if old["gpu"] != new["gpu"]:
        yield "The GPUs differ: only ratios to peers say something about the code."

    ratios = [(a["ratio"], b["ratio"], b) for a, b in both if a["ratio"] and b["ratio"]]
    moved = moves(ratios, threshold)
    yield f"\nRatio to the peer: {len(moved)} of {len(ratios)} moved by {threshold:g} % or more"
    for percent, a, b, r in moved:
        yield f"  {percent:+7.1f} %  {a:.3f} -> {b:.3f} of {r['ratio_to']}: {text(r)}"

    alone = {report_rows.key(b)[:4]: (a["value"], b["value"], b) for a, b in both if a["unit"] == b["unit"]}
    sense = lambda r: report_rows.METRICS[r["metric"]]
    moved = moves(alone.values(), threshold, sense)
    peers = {(r["suite"], r["ratio_to"]) for report in (old, new) for r in report["rows"]}
    drift = [p for p, _, _, r in moves(alone.values(), 0, sense)
             if r["metric"] in ("speed", "time") and (r["suite"], r["contender"]) in peers and not r["contender"].startswith("giwa")]
    yield (f"\nFigures: {len(moved)} of {len(alone)} moved by {threshold:g} % or more"
           + (f"; the peers' own by {round(statistics.median(drift), 1) + 0.0:+.1f} % in the median" if drift else ""))
    for percent, a, b, r in moved:
        yield f"  {percent:+7.1f} %  {a:.4g} -> {b:.4g} {r['unit']}: {text(r)}"

    for title, only, other in (("New", after, before), ("Gone", before, after)):
        others = {k[:4] for k in other}
        missing = list(dict.fromkeys(text(r) for k, r in only.items() if k[:4] not in others))
        if missing:
            yield f"\n{title}: {len(missing)}"
            yield from (f"  {x}" for x in missing)

    last = lambda report: {**report["runs"][-1].get("versions", {}), "giwa": report.get("giwa", ""),
                           "driver": report["runs"][-1].get("machine", {}).get("driver_version", "")}
    a, b = last(old), last(new)
    differ = [f"  {k}: {a.get(k) or 'none'} -> {b.get(k) or 'none'}" for k in dict.fromkeys([*a, *b]) if a.get(k) != b.get(k)]
    if differ:
        yield "\nVersions that differ"
        yield from differ


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("old")
    parser.add_argument("new")
    parser.add_argument("--threshold", type=float, default=3, help="per cent (%(default)s)")
    parser.add_argument("--regression", type=float, metavar="PERCENT", help="fail where a ratio to a peer is lower by so much")
    arguments = parser.parse_args()
    try:
        old, new = report_rows.load(arguments.old), report_rows.load(arguments.new)
        print("\n".join(compare(old, new, arguments.threshold)))
        worse = [] if arguments.regression is None else list(regressions(old, new, arguments.regression))
        if worse:
            print(f"\nRegressions: {len(worse)}", *worse, sep="\n")
            sys.exit(1)
    except report_rows.ReportError as error:
        print(f"compare_reports: {error}", file=sys.stderr)
        sys.exit(2)


if __name__ == "__main__":
    main()
