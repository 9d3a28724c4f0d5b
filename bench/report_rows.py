# SPDX-License-Identifier: MIT
"""What a benchmark report is: rows, the runs they come from, its file, its digest; and what the benchmark programs write, as rows.

A row is one figure of one contender, and its ratio to one peer; a contender with two peers has two rows. A ratio above 1 means
that the contender is better: faster, or with a smaller error. Ratios are medians over the rounds of one run, `lowest` and
`highest` their extremes; a ratio without these is one of medians.
"""
import csv
import hashlib
import io
import json
import math
import re
import statistics
from pathlib import Path

FORMAT = "giwa benchmark report 1"
COLUMNS = ("suite", "case", "contender", "metric", "value", "unit", "us", "ratio_to", "ratio", "lowest", "highest")
WORDS = ("suite", "case", "contender", "metric", "unit", "ratio_to")
NUMBERS = ("value", "us", "ratio", "lowest", "highest")
METRICS = {"speed": +1, "time": -1, "memory": -1, "error_all": -1, "error_row": -1, "error_column": -1}  # +1: more is better


class ReportError(ValueError):
    """What is wrong with a report, in a sentence."""


def number(value):
    """Six digits are more than any of them deserves; None if there is no finite number."""
    if value is None or value == "" or not math.isfinite(float(value)):
        return None
    return float(f"{float(value):.6g}")


def row(suite, case, contender, metric, value, unit, **more):
    given = {"suite": suite, "case": case, "contender": contender, "metric": metric, "value": value, "unit": unit, **more}
    return {c: number(given.get(c)) if c in NUMBERS else given.get(c, "") for c in COLUMNS}


def key(r):
    return tuple(r[c] for c in ("suite", "case", "contender", "metric", "ratio_to"))


# ---- the report

def new_report(runs, rows):
    """Of runs of one GPU, oldest first. Their commits are all named."""
    first, last = runs[0], runs[-1]
    for run in runs:
        if run["gpu"] != first["gpu"]:
            raise ReportError(f"runs of different GPUs do not make one report: {first['gpu']} and {run['gpu']}")
    commits = ", ".join(dict.fromkeys(run["commit"] for run in runs))
    gpu = re.sub(r"\W+", "_", re.sub(r"^nvidia\s+", "", last["gpu"].lower()))
    report = {"format": FORMAT, "name": f"{last['date'][:10]}_{gpu}_report", "gpu": last["gpu"], "date": last["date"],
              "commit": commits, "giwa": last["giwa"], "runs": runs, "rows": rows}
    return check(report)


def merge(reports):
    """One report of several: a suite's rows are those of the last report that has it, and no other run says that it ran it."""
    rows, runs = [], []
    for report in reports:
        suites = {r["suite"] for r in report["rows"]}
        rows = [r for r in rows if r["suite"] not in suites] + report["rows"]
        runs = [run for run in runs if not run["suites"] or run["suites"].keys() - suites]
        runs = [{**run, "suites": {s: told for s, told in run["suites"].items() if s not in suites}} for run in runs]
        runs += [run for run in report["runs"] if run not in runs]
    return new_report(sorted(runs, key=lambda run: run["date"]), rows)


def check(report, path=""):
    where = f"{path}: " if path else ""
    if not isinstance(report, dict) or report.get("format") != FORMAT:
        raise ReportError(f"{where}this is no benchmark report: its `format` is not \"{FORMAT}\"")
    for name, kind in (("name", str), ("gpu", str), ("date", str), ("commit", str), ("runs", list), ("rows", list)):
        if not isinstance(report.get(name), kind):
            raise ReportError(f"{where}the report has no `{name}`, or not as a {kind.__name__}")
    seen = set()
    for i, r in enumerate(report["rows"], 1):
        if not isinstance(r, dict) or set(r) != set(COLUMNS):
            raise ReportError(f"{where}row {i} does not have the columns {', '.join(COLUMNS)}: {r}")
        for c in ("suite", "case", "contender", "metric"):
            if not isinstance(r[c], str) or not r[c]:
                raise ReportError(f"{where}row {i} has no `{c}`")
        for c in NUMBERS:
            if r[c] is not None and (isinstance(r[c], bool) or not isinstance(r[c], (int, float)) or not math.isfinite(r[c])):
                raise ReportError(f"{where}row {i}: `{c}` is no finite number: {r[c]!r}")
        if r["metric"] not in METRICS:
            raise ReportError(f"{where}row {i}: the metric {r['metric']!r} is none of {', '.join(METRICS)}")
        if r["ratio"] is not None and not r["ratio_to"]:
            raise ReportError(f"{where}row {i} has a ratio, and no `ratio_to`")
        if key(r) in seen:
            raise ReportError(f"{where}row {i} is there twice: {' | '.join(key(r))}")
        seen.add(key(r))
    return report


def load(path):
    try:
        report = json.loads(Path(path).read_text(encoding="utf-8"))
    except OSError as error:
        raise ReportError(f"{path}: {error.strerror}") from error
    except ValueError as error:
        raise ReportError(f"{path}: this is no JSON: {error}") from error
    columns = report.get("columns") if isinstance(report, dict) else None
    if isinstance(columns, list) and isinstance(report.get("rows"), list):
        report["rows"] = [dict(zip(columns, r)) if isinstance(r, list) and len(r) == len(columns) else r for r in report["rows"]]
        del report["columns"]
    return check(report, path)


def csv_text(rows):
    text = io.StringIO()
    writer = csv.DictWriter(text, COLUMNS, lineterminator="\n")
    writer.writeheader()
    writer.writerows({c: "" if r[c] is None else f"{r[c]:.6g}" if c in NUMBERS else r[c] for c in COLUMNS} for r in rows)
    return text.getvalue()


def save(report, folder):
    """Writes NAME.json, a row a line in the order of its `columns`, and NAME.csv; answers the first's path."""
    head = {k: v for k, v in report.items() if k != "rows"} | {"columns": COLUMNS}
    lines = [json.dumps([r[c] for c in COLUMNS], separators=(",", ":")) for r in report["rows"]]
    text = json.dumps(head, indent=1)[:-2] + ',\n "rows": [\n  ' + ",\n  ".join(lines) + "\n ]\n}\n"
    folder = Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    (folder / f"{report['name']}.csv").write_text(csv_text(report["rows"]), encoding="utf-8")
    path = folder / f"{report['name']}.json"
    path.write_text(text, encoding="utf-8")
    return path


def digest(report):
    """Of all rows: what a plot carries, to tell which rows it was drawn from."""
    return hashlib.sha256(csv_text(report["rows"]).encode()).hexdigest()[:16]


def cells(report, suite):
    """{case: {contender: its rows}} of a suite, in the report's order."""
    found = {}
    for r in report["rows"]:
        if r["suite"] == suite:
            found.setdefault(r["case"], {}).setdefault(r["contender"], []).append(r)
    return found


def geometric_mean(ratios):
    return math.exp(sum(map(math.log, ratios)) / len(ratios))


def summary(rows):
    """A line for each pair of a contender of giwa's and a peer: the geometric mean of the ratios, the lowest, the highest."""
    pairs = {}
    for r in rows:
        if r["ratio"] and r["contender"].startswith(("giwa", "wgmma", "fp32_by_fp16")) and not r["ratio_to"].startswith("giwa"):
            pairs.setdefault((r["contender"], r["metric"], r["ratio_to"]), []).append(r["ratio"])
    for (contender, metric, peer), ratios in pairs.items():
        yield f"{contender}, {metric}: {geometric_mean(ratios):.2f} x {peer} ({min(ratios):.2f} to {max(ratios):.2f}, {len(ratios)} cases)"


# ---- what the programs write

def read_csv(path):
    with open(path, encoding="utf-8", newline="") as file:
        return list(csv.DictReader(file))


def of_rows(suite, path):
    """A CSV of these columns."""
    return [row(**{**{k: v for k, v in r.items() if v != ""}, "suite": suite}) for r in read_csv(path)]


def of_ring_attention(suite, path):
    """What bench_ring_attention prints of `one` and `time`: each pass by several ranks, and by one GPU."""
    rows = []
    for line in Path(path).read_text(encoding="utf-8").splitlines():
        match = re.fullmatch(r" *(\d+) tokens, (\d+) heads, (\d+) of k and v, (\w+), (\w+), (\w+) +1 GPU +([\d.]+) ms \( *(\d+) TFLOP/s\), "
                             r"(.*?) +([\d.]+) ms: ([\d.]+)", line)
        if match:
            tokens, heads, kv_heads, mask, order, which, one, tflops, what, ms, ratio = match.groups()
            of_kv = f"({kv_heads})" if kv_heads != heads else ""
            case = f"fp16/{mask}/D128/1x{heads}{of_kv}x{tokens}/{order}/{which}"
            speed = float(tflops) * float(one) / float(ms)
            rows.append(row(suite, case, f"giwa_on_{re.sub(r'[^A-Za-z0-9]+', '_', what)}", "speed", speed, "TFLOP/s", us=float(ms) * 1e3,
                            ratio_to="giwa_on_one_gpu", ratio=float(ratio)))
            if not any(r["case"] == case and r["contender"] == "giwa_on_one_gpu" for r in rows):
                rows.append(row(suite, case, "giwa_on_one_gpu", "speed", tflops, "TFLOP/s", us=float(one) * 1e3))
    return rows


def of_google_benchmark(suite, path):
    """bench_NAME's JSON. Contests (support/alternate.hpp) have a median and a peer; bench_attention_host has plain times."""
    rows = []
    with open(path, encoding="utf-8") as file:
        benchmarks = json.load(file)["benchmarks"]
    for b in benchmarks:
        name = b["name"].split("/iterations")[0]
        if "median_us" in b:
            case, contender = name.rsplit("/", 1)
            unit = next((u for u in ("GB/s", "TFLOP/s") if u in b), "")
            beside = {"ratio_to": b["label"], "ratio": b["speed_ratio"]} if b["label"] != contender else {}
            value = {"metric": "speed", "value": b[unit], "unit": unit} if unit else {
                "metric": "time", "value": b["median_us"], "unit": "us"}
            rows.append(row(suite, case, contender, **value, us=b["median_us"], **beside))
        elif match := re.fullmatch(r"(?:naive|attention<(\d+), giwa::(\w+)>)/(\d+)(?:/(\d+))?/real_time", name):
            case = f"fp32/{match[2] or 'full'}/D{match[1] or match[4]}/1x8x{match[3]}"
            us = b["real_time"] * {"ns": 1e-3, "us": 1, "ms": 1e3, "s": 1e6}[b["time_unit"]]
            rows.append(row(suite, case, "giwa_host" if match[1] else "three_loops", "speed", b["flop/s"] * 1e-9, "GFLOP/s",
                            us=us))
        else:
            raise ReportError(f"{path}: {name} is of no known kind")
    loops = {r["case"]: r["us"] for r in rows if r["contender"] == "three_loops"}
    for r in rows:
        if r["contender"] == "giwa_host" and r["case"] in loops:
            r.update(ratio_to="three_loops", ratio=number(loops[r["case"]] / r["us"]))
    return rows


def of_attention(suite, path):
    """torch/attention.py's CSV: the first contender has its ratios round by round; giwa's others get theirs of medians."""
    rows = []
    for r in read_csv(path):
        names = [k.removesuffix("_tflops") for k in r if k.endswith("_tflops") and r[k]]
        ours = [n for n in names if n in ("giwa", "fp32", "tf32", "fp32_exact")]
        called = {n: f"giwa_{n}" if n in ours and n != "giwa" else n for n in names}
        for n in names:
            figure = {"metric": "speed", "value": r[f"{n}_tflops"], "unit": "TFLOP/s", "us": r[f"{n}_us"]}
            peers = []
            if n == names[0]:
                peers = [{"ratio_to": called[p], "ratio": r[f"speed_of_{p}"], "lowest": r[f"lowest_{p}"],
                          "highest": r[f"highest_{p}"]} for p in names[1:]]
            elif n in ours:
                peers = [{"ratio_to": p, "ratio": float(r[f"{p}_us"]) / float(r[f"{n}_us"])} for p in names if p not in ours]
            rows += [row(suite, r["case"], called[n], **figure, **peer) for peer in peers or [{}]]
    return rows


def of_compare(suite, path):
    """torch/compare.py's CSV."""
    rows = []
    for r in read_csv(path):
        figure = lambda n, **more: row(suite, r["case"], n, "speed", r[f"{n}_gbs"], "GB/s", us=r[f"{n}_us"], **more)
        rows += [figure("giwa", ratio_to=p, ratio=r[f"speed_of_{p}"]) for p in ("torch", "copy")]
        rows += [figure("torch"), figure("copy")]
    return rows


def of_accuracy(suite, path):
    """torch/accuracy.py's CSV: relative errors, compared with those of PyTorch's unfused attention."""
    rows = []
    for r in read_csv(path):
        names = [k.removesuffix("_all") for k in r if k.endswith("_all") and r[k]]
        for n in names:
            ours = n in ("fp32", "tf32", "fp32_exact", "fp16")
            for what in ("all", "row", "column"):
                error, peer = float(r[f"{n}_{what}"]), float(r[f"unfused_{what}"])
                beside = {"ratio_to": "unfused", "ratio": peer / error} if n != "unfused" and error > 0 else {}
                rows.append(row(suite, r["case"], f"giwa_{n}" if ours else n, f"error_{what}", error, "relative", **beside))
    return rows


# ---- several libraries in one process: a cell has `us`, {side: microseconds of each round}, `ours`, the sides of giwa, and `aside`,
# ---- the sides that do other work, such as another precision

def ratios(cell, ours, theirs):
    """How many times as fast as theirs ours is, round by round."""
    return [t / o for o, t in zip(cell["us"][ours], cell["us"][theirs], strict=True)]


def ratio(cell, ours, theirs):
    return statistics.median(ratios(cell, ours, theirs))


def best_other(cell, ours):
    """The fastest side that is not of giwa, compared with ours; None if there is none."""
    others = [x for x in cell["us"] if x not in cell["ours"] and x not in cell["aside"]]
    return min(others, key=lambda x: ratio(cell, ours, x), default=None)


def of_peers(suite, path):
    """torch/peers/measure.py's cells, a line each: each side of giwa compared with every other library, with the best of them
    (`best_other`), and with the first build of giwa."""
    rows = []
    name = lambda side: re.sub(r"\W+", "_", side)
    for cell in map(json.loads, Path(path).read_text(encoding="utf-8").splitlines()):
        if any(r["case"] == cell["case"] for r in rows):
            raise ReportError(f"{path}: {cell['case']} is there twice")
        first = next(x for x in (*cell["ours"], *cell["us"]) if x in cell["us"])
        for side, us in cell["us"].items():
            typical = statistics.median(us)
            figure = {"value": cell["work"] / typical, "unit": cell["unit"], "us": typical}
            peers = {}
            if side in cell["ours"]:
                peers = {name(x): x for x in cell["us"] if x not in cell["ours"] or x == first != side}
                peers |= {"best_other": x for x in [best_other(cell, side)] if x}
            found = {peer: ratios(cell, side, x) for peer, x in peers.items()}
            rows += [row(suite, cell["case"], name(side), "speed", **figure, ratio_to=peer, ratio=statistics.median(x), lowest=min(x),
                         highest=max(x)) for peer, x in found.items()] or [row(suite, cell["case"], name(side), "speed", **figure)]
    return rows


def peer_cases(path, section):
    """{case: {side: giwa's speed relative to it}} of the 36 usual cases, forward or backward: of a CSV of peers, or of the report's suite
    peers_SECTION. `fastest` is the fastest other side: not another form of giwa, another precision, or the deterministic mode of a side
    (`fa3_fixed`)."""
    path, found = Path(path), {}
    if path.suffix == ".json":
        told = [(r["case"], r["ratio_to"], r["ratio"]) for r in load(path)["rows"]
                if r["suite"] == f"peers_{section}" and r["contender"] == "giwa" and r["ratio"]]
    else:
        told = [(r["case"], r["side"], float(r["giwa_over"])) for r in read_csv(path) if r["section"] == section]
    for case, side, ratio_to_it in told:
        if re.fullmatch(r"fp16/(full|causal)/D(64|128|256)/\d+x\d+x\d+", case):
            found.setdefault(case, {})[side] = ratio_to_it
    for sides in found.values():
        sides["fastest"] = min(over for side, over in sides.items()
                               if not side.startswith("giwa") and side != "fa3_fixed" and not side.endswith("e4m3"))
    if not found:
        raise ReportError(f"{path.name} has no section {section} with the usual cases")
    return found
