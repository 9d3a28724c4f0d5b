#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""Times giwa and other libraries of attention in one process on one GPU: cuDNN, FlashAttention-2, -3 and -4, FlashInfer, FlexAttention.

All sides of a cell are CUDA graphs of several calls that are replayed in alternating order on the same inputs, new ones each round.
Results are compared before anything is timed. A figure is the median of the rounds, a ratio the median of the rounds' ratios; above 1
giwa is faster. A library that is not there, or does not take a cell, is left out with a line. prepare.py and unpack.py make the folder
of the libraries that PyTorch does not have; bench/report.py --only-build makes those of giwa. --giwa NAME=FOLDER, as often as wanted,
compares builds of giwa in the same run; the tables have the ratios of all of them.

--compile-ahead calls the sides that compile at their first call, FlashAttention-4 and FlashInfer, in several processes, and measures
nothing. The folder keeps what they compile. Each cell is appended to --out, a new file, when it is done; --summary prints the tables of such
files.
"""
import argparse
import ctypes
import gc
import json
import os
import re
import statistics
import subprocess
import sys
import tempfile
import time
import traceback
from pathlib import Path

import tables

BEGIN = time.time()
SECTIONS = {"forward": "fp16, 36 cells", "backward": "gradients in fp16, 36 cells", "decode": "one query a sequence, caches in fp16",
            "gqa": "grouped queries", "chunk": "fewer queries than keys", "window": "a sliding window", "packed": "packed sequences",
            "head_sizes": "40 to 512", "backward_more": "gradients of grouped heads, head sizes 96 and 192, packed sequences",
            "forward_bf16": "36 cells", "backward_bf16": "36 cells", "decode_e4m3": "caches in e4m3",
            "latent": "latent rows of 16 bits and of 656 bytes, and lists of keys",
            "e4m3": "q, k and v in e4m3, next to giwa in fp16", "flex": "score modifiers and masks, with FlexAttention",
            "backward_flex": "their gradients"}
NEEDS_NO_COMPILER = r"(?!fa4|flashinfer).*"  # --compile-ahead leaves these out


def note(*what):
    print(f"[{time.time() - BEGIN:5.1f}]", *what, flush=True)


class Bench:
    note = staticmethod(note)

    def __init__(self, arguments):
        self.arguments, self.cells, self.wrong, self.loaded = arguments, [], [], {}
        self.builds = tables.builds_of(arguments.giwa)
        sys.path.append(str(tables.BENCH / "torch"))
        global sections, sides, torch  # not needed to print tables
        import torch

        import sections
        import sides
        is_decode = [x.startswith(("decode", "latent")) for x in arguments.sections]
        wanted = {"frontend": True, "fa3": True, "fa4": not all(is_decode), "flashinfer": any(is_decode),
                  "fa3_e4m3": any("e4m3" in x for x in arguments.sections)}
        sides_of = {"frontend": "cudnn"}  # where the name of the side is another one
        names = [x for x, is_used in wanted.items() if is_used and self.chosen([sides_of.get(x, x)])]
        self.peers = sides.Peers(arguments.peers, note, names)

    def wanted(self, section, case):
        if not tables.is_wanted(f"{section}/{case}", self.arguments.sizes, self.arguments.cells):
            return False
        if late := time.time() - BEGIN > self.arguments.seconds:
            note("# left out, no time:", section, case)
        return not late

    def chosen(self, names):
        return [x for x in names if not re.fullmatch(self.arguments.without, x)]

    def libraries(self, part):
        """{build: library}; a build without this library takes no part."""
        found = {}
        for name, folder in self.builds.items():
            path = folder / f"{part}.so"
            if path not in self.loaded:
                self.loaded[path] = ctypes.CDLL(str(path)) if path.exists() else None
                if not self.loaded[path] and self.arguments.rounds:
                    note(f"# without {path}")
            if self.loaded[path]:
                found[name] = self.loaded[path]
        return found

    def is_ours(self, side):
        return re.sub(r", (any order|heads split)$|_page_\d+$", "", side) in self.builds

    def attempt(self, section, case, side, call, what="has no answer"):
        """Calls, and says if it throws; ends the program if that made the GPU unusable, as what is measured is saved."""
        try:
            result = call()
            torch.cuda.synchronize()
            return result
        except Exception as error:
            note(f"# {section} {case}: {side} {what}: {sides.first_line(error)}")
        for last in (False, True):  # an error of a capture is reported once more, a lost context each time
            try:
                torch.cuda.synchronize()
                break
            except Exception as error:
                if last:
                    note(f"# ended by {side}: {sides.first_line(error)}")
                    os._exit(3)  # what is destroyed on the way out would wait for the GPU
        return None

    def report(self, section, case, work, unit, seconds, aside=()):
        """work: flop or bytes of a call. aside: sides that are in no comparison with the best other one."""
        if not seconds:
            return
        us = {x: [round(t * 1e6, 3) for t in some] for x, some in seconds.items()}
        scale = {"TFLOP/s": 1e-6, "GB/s": 1e-3}[unit]
        cell = {"section": section, "case": case, "work": work * scale, "unit": unit, "us": us,
                "ours": [x for x in us if self.is_ours(x)], "aside": [x for x in us if x in aside]}
        self.cells.append(cell)
        with open(self.arguments.out, "a", encoding="utf-8") as f:
            f.write(json.dumps(cell) + "\n")
        ours = next(iter(cell["ours"]), None)
        ratios = {x: f" ({tables.ratio(cell, ours, x):.3f})" if ours and x != ours else "" for x in us}
        best = tables.best(cell, ours)
        note(f"{section} {case:<30}", *(f"{x} {cell['work'] / statistics.median(us[x]):.4g}{ratios[x]}" for x in us),
             f"| best other {best:.3f}" if best else "")

    def measure(self, section, case, work, unit, renew, calls_of, tolerance, aside=()):
        self.report(section, case, work, unit, self.alternate(section, case, renew, calls_of, tolerance, aside=aside), aside)

    def alternate(self, section, case, renew, calls_of, tolerance, calls=20, sets=1, aside=(), warm=False, reference=None):
        """Seconds of a call in each round, of calls_of, {side: call(set) -> result}. tolerance: relative to the largest number of the
        reference, which is a peer's result unless `reference` computes it. sets: the calls of a graph alternate among so many.
        aside: sides of another precision, which are not compared. warm: a graph runs once untimed before it is timed."""
        calls_of = {x: calls_of[x] for x in self.chosen(calls_of)}
        renew()
        results, graphs = {}, {}

        def first(call):
            side = torch.cuda.Stream()
            side.wait_stream(torch.cuda.current_stream())
            with torch.cuda.stream(side):
                result = call(0)
            torch.cuda.current_stream().wait_stream(side)
            return result

        for name, call in calls_of.items():
            if (result := self.attempt(section, case, name, lambda call=call: first(call))) is not None:
                results[name] = result
            elif self.is_ours(name):
                self.wrong.append(f"{section} {case} {name}")
        if not self.arguments.rounds:
            return {}
        checked = [x for x in results if x not in aside]
        compared_with = next((x for x in checked if not self.is_ours(x)), next(iter(checked), None))
        expected = self.attempt(section, case, "the reference", reference) if reference else results.get(compared_with)
        for name in checked if expected is not None else ():
            x, y = results[name].float(), expected.float()
            far, largest = (x.reshape(-1) - y.reshape(-1)).abs().max().item(), y.abs().max().item()
            if not far <= tolerance * largest:  # NaN fails too
                note(f"# {section} {case}: {name} is WRONG, {far:.3g} from {'the reference' if reference else compared_with}, "
                     f"whose largest number is {largest:.3g}: not timed")
                self.wrong += [f"{section} {case} {name}"] * self.is_ours(name)
                del results[name]
        for name in results:
            def capture(name=name):
                graph = torch.cuda.CUDAGraph()
                with torch.cuda.graph(graph):
                    for i in range(calls):
                        calls_of[name](i % sets)
                return graph
            if graph := self.attempt(section, case, name, capture, "cannot be captured"):
                graphs[name] = graph
        del results, expected
        seconds = {x: [] for x in graphs}
        for round_ in range(self.arguments.rounds + 1):  # one to warm up
            renew()
            for name in (list(graphs) if round_ % 2 else list(graphs)[::-1]):
                begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
                if warm:
                    graphs[name].replay()
                begin.record()
                graphs[name].replay()
                end.record()
                end.synchronize()
                if round_:
                    seconds[name].append(begin.elapsed_time(end) * 1e-3 / calls)
        return seconds

    def run(self):
        gc.freeze()  # what the libraries loaded stays; collecting a cell's tensors, which are in cycles, is quick then
        for section in self.arguments.sections:
            begin = time.time()
            for case, run in sections.cells(section):
                if not self.wanted(section, case):
                    continue
                try:
                    run(self, section, case)
                except Exception as error:
                    note(f"# {section} {case}: {sides.first_line(error)}")
                    traceback.print_exc(limit=-3, file=sys.stdout)
                    self.wrong += [f"{section} {case}"] * isinstance(error, AssertionError)
                gc.collect()
                torch.cuda.empty_cache()
            note(f"{section} took {time.time() - begin:.1f} s")


def compile_ahead(arguments):
    """Runs this program without rounds in several processes, each with some of the cells: one of those with the same kernels. Returns
    whether all ended in time."""
    sys.path.append(str(tables.BENCH / "torch"))
    import sections
    found = {tables.kernel_of(section, case): f"{section}/{case}" for section in arguments.sections for case, _ in sections.cells(section)
             if tables.is_wanted(f"{section}/{case}", arguments.sizes, arguments.cells)}
    cells = sorted(found.values(), key=lambda x: ("backward" not in x, x))  # gradients have most kernels
    count = min(arguments.processes, len(cells))
    note(f"{len(cells)} cells in {count} processes")
    command = [sys.executable, __file__, "--peers", arguments.peers, "--sections", ",".join(arguments.sections), "--rounds", "0",
               "--without", NEEDS_NO_COMPILER, "--out", os.devnull, *(["--fixed"] if arguments.fixed else [])]
    running = [subprocess.Popen([*command, "--cells", f"^({'|'.join(map(re.escape, cells[i::count]))})$"],
                                stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True) for i in range(count)]
    in_time = True
    for process in running:
        try:
            out = process.communicate(timeout=max(1, arguments.seconds - (time.time() - BEGIN)))[0]
        except subprocess.TimeoutExpired:
            process.kill()
            in_time = False
            out = process.communicate()[0] + "\n# too slow"
        print(*[x for x in out.splitlines() if "# " in x or "Error" in x], sep="\n", flush=True)
    note("compiled")
    return in_time


def parse(given=None):
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter,
                                     epilog="sections: " + "; ".join(f"{name}: {about}" for name, about in SECTIONS.items()))
    numbers = lambda text: [int(x) for x in text.split(",")]
    parser.add_argument("--sections", type=lambda x: x.split(","), default=list(SECTIONS), metavar="NAMES", help="with commas; default: all")
    parser.add_argument("--sizes", type=numbers, default=[], metavar="64,128", help="head sizes of q and k; default: all")
    parser.add_argument("--cells", default="", metavar="REGEX", help="cells, as 'causal/D128/4x16x4096$'; matched with section/cell")
    parser.add_argument("--without", default="", metavar="REGEX", help="sides to leave out, as 'flash|fa4|.*any order' (whole names)")
    parser.add_argument("--rounds", type=int, default=9, help="0 calls each side once; default: %(default)s")
    parser.add_argument("--giwa", action="append", metavar="NAME=FOLDER", help="a build; the first is the one that ratios in brackets are "
                        "of. Default: giwa=build/report, which bench/report.py writes")
    parser.add_argument("--fixed", action="store_true",
                        help="also the deterministic gradients of FlashAttention-3 and -4 (not in 'best other')")
    parser.add_argument("--splits", action="store_true", help="decode: also FlashAttention-3 with fixed numbers of splits")
    parser.add_argument("--seconds", type=float, default=86400, help="start no cell later than this")
    parser.add_argument("--peers", type=Path, default=tables.PEERS, metavar="FOLDER",
                        help="of unpack.py; default: $GIWA_PEERS, else giwa_peers in the temporary folder")
    parser.add_argument("--out", type=Path, default=Path("peers.jsonl"), metavar="FILE",
                        help="microseconds of all rounds; default: %(default)s")
    parser.add_argument("--compile-ahead", action="store_true", help="only compile what compiles at its first call")
    parser.add_argument("--processes", type=int, default=max(1, (os.cpu_count() or 4) - 3),
                        help="for --compile-ahead; default: %(default)s")
    parser.add_argument("--summary", nargs="+", metavar="FILE", help="only print the tables of these files")
    parser.add_argument("--csv", type=Path, metavar="FILE", help="--summary also writes them as docs/results has them, for bench/plot.py")
    arguments = parser.parse_args(given)
    if unknown := [x for x in arguments.sections if x not in SECTIONS]:
        parser.error(f"no section {', '.join(unknown)}; there are {', '.join(SECTIONS)}")
    return arguments


def main():
    arguments = parse()
    if arguments.summary:
        cells = [json.loads(line) for x in arguments.summary for line in Path(x).read_text(encoding="utf-8").splitlines()]
        for section in dict.fromkeys(c["section"] for c in cells):
            print(f"\n{section}\n", *tables.cell_table([c for c in cells if c["section"] == section]), sep="\n")
        print("\n".join(tables.summary(cells)))
        if arguments.csv:
            arguments.csv.write_text(tables.csv_of(cells), encoding="utf-8")
        return 0
    tables.activate(arguments.peers)
    if arguments.compile_ahead:
        return 0 if compile_ahead(arguments) else 1
    if arguments.out.exists() and arguments.out.stat().st_size > 0:
        sys.exit(f"measure: {arguments.out} has the cells of another run: move it, or name another --out")
    arguments.out.write_text("", encoding="utf-8")
    bench = Bench(arguments)
    with tempfile.TemporaryFile("w+") as samples:
        watch = subprocess.Popen(["nvidia-smi", "-i", "0", "--query-gpu=timestamp,clocks.sm,clocks.mem,power.draw,temperature.gpu",
                                  "--format=csv,noheader,nounits", "-lms", "500"], stdout=samples, stderr=subprocess.DEVNULL)
        try:
            bench.run()
        finally:
            watch.terminate()
            watch.wait()
        samples.seek(0)
        print(tables.clocks(samples.read()))
    print("\n".join(tables.summary(bench.cells)), flush=True)
    if bench.wrong:
        print("giwa has no answer or a wrong one:", *bench.wrong, sep="\n  ")
    return 1 if bench.wrong else 0


if __name__ == "__main__":
    sys.exit(main())
