#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""Runs the benchmarks of giwa and their peers on a machine with a GPU, and writes one dated report.

  bench/report.py OUT_DIR                                   all suites: builds first, then times, one suite after the other
  bench/report.py OUT_DIR --suites matmul,softmax           these
  bench/report.py OUT_DIR --minutes 9 --into PART.json      with a limit, and with the rows of an earlier report
  bench/report.py OUT_DIR --suites none --into A.json B.json   runs nothing: makes one report of two
  bench/report.py OUT_DIR --peers FOLDER                    also FlashAttention-3 and -4 and others that PyTorch does not have
  bench/report.py OUT_DIR --regression 5 --publish          fails where a ratio to a peer fell; puts the report into docs/
  bench/report.py OUT_DIR --only-build --work LIBRARIES     builds the libraries of the suites, for which no GPU is needed
  bench/report.py --list

Writes OUT_DIR/<date>_<gpu>_report.json and .csv (report_rows.py says what is in them), anew after each suite, and report.log with
what the programs printed. A suite that fails is named, the others go on, and the exit status is 1. Suites that need PyTorch are
left out, with a line, where it is missing; so are the suites peers_... without --peers, the folder that bench/torch/peers/unpack.py
fills. Clocks and power are read, never set. --regression compares the suites that ran with the newest report of this GPU in
docs/results, and exits with 1 if a ratio to a peer is lower by so many per cent, or gone. --publish puts the report there instead,
draws the plots (matplotlib) and writes the tables of the pages.
"""
import argparse
import hashlib
import json
import os
import re
import shutil
import signal
import statistics
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from datetime import datetime, timezone
from pathlib import Path
from typing import Callable

import compare_reports
import report_rows

ROOT = Path(__file__).resolve().parent.parent
TORCH = "bench/torch"
USUAL = r"/D(64|128|256)/\d+x\d+x\d+$"


@dataclass
class Suite:
    name: str
    seconds: int  # about, on an H200
    about: str
    needs: tuple  # what has to be built: bench_NAME by CMake, of LIBRARIES by nvcc; "torch"; "peers", which is --peers
    command: list  # {out} is where its figures go, {NAME} what was built
    read: Callable
    watch: bool = True  # clocks and power while it runs


def program(name, seconds, about, target="", watch=True):
    target = target or f"bench_{name}"
    return Suite(name, seconds, about, (target,), [f"{{{target}}}", "--benchmark_out={out}", "--benchmark_out_format=json"],
                 report_rows.of_google_benchmark, watch)


def script(name, seconds, about, file, read, libraries, *options, watch=True):
    """libraries: {name of a side: what was built, some with commas between}"""
    built = [(library, x) for library, them in libraries.items() for x in them.split(",")]
    given = [x for library, path in built for x in ("--library", f"{library}={{{path}}}")]
    return Suite(name, seconds, about, ("torch", *(x for _, x in built)),
                 [sys.executable, f"{TORCH}/{file}.py", "--csv", "{out}", *given, *options], read, watch)


def attention(name, seconds, about, libraries, *options, watch=True):
    return script(name, seconds, about, "attention", report_rows.of_attention, libraries, *options, watch=watch)


def peers(name, seconds, about, sections, *libraries):
    return Suite(name, seconds, about, ("torch", "peers", *libraries),
                 [sys.executable, f"{TORCH}/peers/measure.py", "--peers", "{peers}", "--giwa", "giwa={libraries}", "--sections", sections,
                  "--seconds", "{seconds}", "--out", "{out}"], report_rows.of_peers)


FP32 = {name: name for name in ("fp32", "tf32", "fp32_exact")}
# In the order in which they run: what matters most comes first, in case the time is short.
SUITES = (
    attention("attention_fp16", 60, "512 to 16384 tokens compared with cuDNN and FlashAttention-2", {"giwa": "fp16"},
              "--only", "^fp16/[a-z]+" + USUAL, "--backends", "cudnn,flash"),
    attention("attention_fp32", 50, "three accuracies compared with PyTorch's memory-efficient fp32", FP32,
              "--element", "fp32", "--backends", "efficient", "--calls", "4", "--rounds", "5"),
    attention("attention_flex", 70, "score modifiers and masks compared with compiled FlexAttention", {"giwa": "fp16"},
              "--only", "/flex/", "--backends", "flex"),
    script("accuracy", 40, "errors in fp32 compared with PyTorch's", "accuracy", report_rows.of_accuracy, {**FP32, "fp16": "fp16"},
           "--lengths", "1024,4096,65536", watch=False),
    program("matmul", 20, "the steps of the matrix product compared with cuBLAS"),
    program("softmax", 15, "rows of softmax compared with a copy"),
    program("transpose", 8, "the transpose compared with a copy"),
    script("attention_cached", 60, "one query a sequence and long caches compared with cuDNN and FlashAttention-2", "attention_cached",
           report_rows.of_rows, {"giwa": "cached"}),
    program("cached_forms", 60, "caches in pages, of uneven lengths and 8 bits, and prefixes, compared with reading them",
            "bench_attention_cached"),
    program("append", 15, "rows appended to a cache compared with a copy"),
    script("attention_backward", 30, "gradients of attention, 512 to 16384 tokens, compared with cuDNN and FlashAttention-2",
           "attention_backward", report_rows.of_rows, {"giwa": "backward"}, "--any-order"),
    script("attention_backward_more", 30, "gradients in bf16, of grouped heads, packed sequences, other head sizes, and with the forward pass",
           "attention_backward", report_rows.of_rows, {"giwa": "backward,backward_more"}, "--own-score", "--rows",
           r"bf16|\(|D96|D192|packed|/both|D128/4x16x4096$"),
    script("attention_backward_flex", 120, "gradients of masks and score modifiers compared with compiled FlexAttention",
           "attention_backward", report_rows.of_rows, {"giwa": "backward,backward_more"}, "--flex", "--rows", "/flex/"),
    script("attention_backward_fp32", 40, "gradients in fp32 compared with PyTorch's memory-efficient ones", "attention_backward",
           report_rows.of_rows, {"giwa": "backward_fp32"}, "--fp32"),
    script("block_sparse", 120, "masks of blocks from lists compared with density times dense speed and compiled FlexAttention", "block_sparse",
           report_rows.of_rows, {"giwa": "block_sparse"}, "--flex"),
    Suite("several_gpus", 20, "ring attention on one GPU, and on all of a machine with several and NCCL, compared with the same work on one",
          ("bench_ring_attention",), ["bash", "-c", "{bench_ring_attention} one 2 32768 16 > {out} && if [ $(nvidia-smi -L | wc -l) -gt 1 ]; "
                                      "then {bench_ring_attention} time 131072 16 >> {out}; fi"], report_rows.of_ring_attention),
    Suite("frameworks", 60, "giwa_torch compared with PyTorch's function: host time, a layer of Llama 3 8B, decoding", ("torch", "nvcc"),
          [sys.executable, f"{TORCH}/drop_in.py", "host", "layer", "decode", "--csv", "{out}", "--how", "eager", "--tokens", "1024", "4096"],
          report_rows.of_rows, watch=False),
    program("for_all", 10, "element by element compared with CUB and Thrust"),
    program("launch", 3, "the host's time of a launch", watch=False),
    program("attention_calls", 20, "workspace, own functors, the host's time of a call", "bench_attention", watch=False),
    Suite("compile_time", 140, "nvcc, and what compiles at its first use", ("nvcc",),
          [sys.executable, f"{TORCH}/compile_time.py", "--csv", "{out}", "--architecture", "{architecture}",
           "--library", "{fp16}"], report_rows.of_rows, watch=False),
    Suite("torch", 45, "softmax and transpose compared with PyTorch", ("torch", "entries"),
          [sys.executable, f"{TORCH}/compare.py", "{out}"], report_rows.of_compare),
    attention("attention_bf16", 30, "bf16 compared with cuDNN", {"giwa": "bf16"},
              "--element", "bf16", "--only", "^bf16/[a-z]+" + USUAL, "--backends", "cudnn", "--rounds", "5"),
    attention("attention_sizes", 15, "other head sizes, and grouped queries, compared with cuDNN and FlashAttention-2",
              {"giwa": "fp16_sizes"}, "--only", r"^fp16/(?![a-z]+" + USUAL + ")", "--backends", "cudnn,flash"),
    attention("attention_cpu", 60, "attention and its gradients on the CPU compared with PyTorch's", {},
              "--cpu", "--only", "^cpu -O3 -fopenmp/", "--rounds", "5", watch=False),
    program("attention_host", 15, "attention on the CPU compared with three loops", watch=False),
    peers("peers_forward", 110, "attention in fp16 and bf16 compared with cuDNN, FlashAttention-3 and -4 in one process",
          "forward,forward_bf16", "fp16", "bf16"),
    peers("peers_backward", 130, "gradients in fp16 and bf16 compared with cuDNN, FlashAttention-2, -3 and -4 in one process",
          "backward,backward_more,backward_bf16", "backward", "backward_more", "backward_bf16"),
    peers("peers_decode", 60, "caches in fp16 and e4m3 compared with cuDNN, FlashAttention-3 and FlashInfer in one process",
          "decode,decode_e4m3", "cached", "cached_e4m3"),
    peers("peers_latent", 60, "latent rows and lists of keys compared with FlashAttention-3 and FlashInfer in one process",
          "latent", "latent", "latent_656"),
    peers("peers_more", 70, "grouped queries, chunks, windows, packed sequences and other head sizes compared with the same",
          "gqa,chunk,window,packed,head_sizes,e4m3", "fp16", "fp16_sizes", "fp16_forms", "e4m3"),
    peers("peers_flex", 180, "score modifiers, masks and their gradients compared with FlexAttention, FlashAttention-3 and -4 in one process",
          "flex,backward_flex", "fp16", "backward", "backward_more"),
)
ENTRIES = f"{TORCH}/attention_entries.cu"
# Built with nvcc for PyTorch's process: source and definitions. The slowest first.
LIBRARIES = {
    "fp16_sizes": (ENTRIES, "GIWA_BENCH_ELEMENT=giwa::fp16", "GIWA_BENCH_OTHER_SIZES", "GIWA_BENCH_NO_VARIANTS"),
    "cached": (f"{TORCH}/attention_cached_entries.cu",),
    "block_sparse": (f"{TORCH}/block_sparse_entries.cu",),
    "fp32": (ENTRIES, "GIWA_BENCH_HOW=giwa::fp32"),
    "tf32": (ENTRIES, "GIWA_BENCH_HOW=giwa::tf32"),
    "fp16": (ENTRIES, "GIWA_BENCH_ELEMENT=giwa::fp16", "GIWA_BENCH_USUAL_SIZES"),
    "bf16": (ENTRIES, "GIWA_BENCH_ELEMENT=giwa::bf16", "GIWA_BENCH_USUAL_SIZES", "GIWA_BENCH_NO_VARIANTS"),
    "fp32_exact": (ENTRIES, "GIWA_BENCH_HOW=giwa::fp32_exact"),
    "backward": (f"{TORCH}/attention_backward_entries.cu", "GIWA_BENCH_USUAL_SIZES"),
    "backward_more": (f"{TORCH}/attention_backward_entries.cu", "GIWA_BENCH_OTHER_CASES"),
    "backward_bf16": (f"{TORCH}/attention_backward_entries.cu", "GIWA_BENCH_BF16"),
    "backward_fp32": (f"{TORCH}/attention_backward_entries.cu", "GIWA_BENCH_FP32"),
    "fp16_forms": (ENTRIES, "GIWA_BENCH_ELEMENT=giwa::fp16", "GIWA_BENCH_FORMS"),
    "e4m3": (ENTRIES, "GIWA_BENCH_E4M3"),
    "cached_e4m3": (f"{TORCH}/attention_cached_entries.cu", "GIWA_BENCH_CACHE=giwa::e4m3"),
    "latent": (f"{TORCH}/attention_latent_entries.cu",),
    "latent_656": (f"{TORCH}/attention_latent_entries.cu", "GIWA_BENCH_ROWS=giwa::rows_656"),
    "entries": (f"{TORCH}/entries.cu",),
}
NO_TORCH = "left out: there is no PyTorch"
WISHES = {"compile_time": ("fp16",)}  # what a suite can do without


def answer(*command):
    """What a command prints, or nothing."""
    try:
        return subprocess.run(command, capture_output=True, text=True, timeout=120, cwd=ROOT).stdout.strip()
    except (OSError, subprocess.TimeoutExpired):
        return ""


# ---- the machine

def nvidia_smi(*fields):
    query = lambda names: answer("nvidia-smi", "-i", "0", f"--query-gpu={','.join(names)}", "--format=csv,noheader")
    found = [x.strip() for x in query(fields).split(",")]
    if len(found) != len(fields):  # a field that this driver does not know spoils the others
        found = [query([f]) for f in fields]
    return {f: v for f, v in zip(fields, found) if v and not v.startswith("[") and "not a valid" not in v}


def machine():
    return nvidia_smi("name", "driver_version", "compute_cap", "clocks.sm", "clocks.mem", "clocks.max.sm", "clocks.max.mem",
                      "power.limit", "temperature.gpu", "memory.total")


def defined(header, *names):
    """Numbers that a header of the toolkit defines."""
    nvcc = shutil.which("nvcc")
    folder = Path(nvcc).resolve().parent.parent / "include" if nvcc else Path("/nowhere")
    for path in (folder / header, folder / "cccl" / header):
        if path.is_file():
            text = path.read_text(encoding="utf-8", errors="replace")
            found = [re.search(rf"^#\s*define\s+{n}\s+(\d+)", text, re.M) for n in names]
            return [m[1] for m in found if m]
    return []


def versions():
    ask = ("import json, torch, torch.nn; v = {'PyTorch': torch.__version__, 'cuDNN': str(torch.backends.cudnn.version()), "
           "'CUDA of PyTorch': torch.version.cuda}\n"
           "try:\n import triton; v['Triton'] = triton.__version__\nexcept ImportError: pass\nprint(json.dumps(v))")
    cub = defined("cub/version.cuh", "CUB_VERSION")
    found = {
        "CUDA": (re.search(r"V([\d.]+)", answer("nvcc", "--version")) or ["", ""])[1],
        "host compiler": answer(os.environ.get("CXX", "g++"), "--version").split("\n")[0],
        "cuBLAS": ".".join(defined("cublas_api.h", "CUBLAS_VER_MAJOR", "CUBLAS_VER_MINOR", "CUBLAS_VER_PATCH")),
        "CUB": f"{int(cub[0]) // 100000}.{int(cub[0]) // 100 % 1000}.{int(cub[0]) % 100}" if cub else "",
        "Python": ".".join(map(str, sys.version_info[:3])),
        **json.loads((answer(sys.executable, "-c", ask) or "{}").split("\n")[-1]),
    }
    return {k: v for k, v in found.items() if v}


def commit():
    found = answer("git", "rev-parse", "--short=10", "HEAD")
    return found + ("-changed" if found and answer("git", "status", "--porcelain", "-uno") else "")


def giwa_version():
    text = (ROOT / "include/giwa/version.hpp").read_text(encoding="utf-8")
    return ".".join(re.search(rf"GIWA_VERSION_{part} (\d+)", text)[1] for part in ("MAJOR", "MINOR", "PATCH"))


# ---- running

class Log:
    def __init__(self, path):
        self.path, self.start = path, time.monotonic()
        path.write_text("", encoding="utf-8")

    def elapsed(self):
        return time.monotonic() - self.start

    def say(self, text):
        print(f"[{self.elapsed():4.0f} s] {text}", flush=True)

    def call(self, command, seconds, environment=None, path=None):
        """Runs a command with its output in the log, or another file. Answers the seconds it took, and what went wrong, if so."""
        begin = time.monotonic()
        path = path or self.path
        with open(path, "a", encoding="utf-8") as log:
            log.write(f"\n== {' '.join(map(str, command))}\n")
            log.flush()
            offset = log.tell()
            try:
                process = subprocess.Popen(list(map(str, command)), stdout=log, stderr=subprocess.STDOUT, cwd=ROOT,
                                           env={**os.environ, **(environment or {})}, start_new_session=True)
            except OSError as error:
                return 0, f"cannot be started: {error}"
            try:
                code = process.wait(max(1, seconds))
                wrong = f"ended with {code}" if code else ""
            except BaseException as stop:  # too slow; or this program is told to end
                os.killpg(process.pid, signal.SIGKILL)  # its own session: nobody else's processes
                process.wait()
                if not isinstance(stop, subprocess.TimeoutExpired):
                    raise
                wrong = f"was stopped after {seconds:.0f} s"
        if wrong:
            with open(path, "rb") as log:
                log.seek(offset)
                lines = log.read().decode(errors="replace").strip().split("\n")
            telling = [x for x in lines if re.search(r"error|Error|FAILED", x)][:6]
            print("\n".join(f"    {x[:240]}" for x in dict.fromkeys(telling + lines[-8:])), flush=True)
        return time.monotonic() - begin, wrong


class Watch:
    """The SM clock and the power, once a second, while something runs."""

    def __init__(self, wanted):
        self.process = subprocess.Popen(
            ["nvidia-smi", "-i", "0", "--query-gpu=clocks.sm,power.draw,temperature.gpu", "--format=csv,noheader,nounits",
             "-l", "1"], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True) if wanted else None

    def end(self):
        """Medians over the half of the seconds with the most power: a program also prepares and checks."""
        if not self.process:
            return {}
        self.process.terminate()
        samples = []
        for line in self.process.communicate()[0].splitlines():
            try:
                samples.append([float(x) for x in line.split(",")])
            except ValueError:
                continue
        busy = sorted((s for s in samples if len(s) == 3), key=lambda s: -s[1])[:(len(samples) + 1) // 2]
        if not busy:
            return {}
        clock, watts, celsius = (statistics.median(x) for x in zip(*busy))
        return {"sm_mhz": clock, "watts": watts, "celsius": celsius}


def architecture_of(capability):
    """What nvcc calls a GPU of this compute capability, as 90a for 9.0; None for none."""
    major, _, minor = (capability or "").partition(".")
    return f"{major}{minor}" + ("a" if int(major) >= 9 else "") if major else None


def digest_of(*folders):
    """Of the files in them."""
    sources = hashlib.sha256()
    for path in sorted(x for folder in folders for x in Path(folder).rglob("*") if x.is_file()):
        sources.update(path.read_bytes())
    return sources.hexdigest()


def build_library(name, work, architecture, headers, sources, log):
    """Builds one of LIBRARIES, unless it is there, of these sources (their digest)."""
    source, *definitions = LIBRARIES[name]
    built, stamp = work / f"{name}.so", work / f"{name}.stamp"
    # -fno-gnu-unique: two builds in one process do not share static variables.
    command = ["nvcc", "-std=c++20", "-O3", "-shared", "-Xcompiler", "-fPIC,-fno-gnu-unique", "-Xlinker", "-s",
               "-I", headers, "-I", "examples", "-gencode", f"arch=compute_{architecture},code=sm_{architecture}",
               *("-D" + d for d in definitions), source, "-o", built]
    state = f"{' '.join(map(str, command))} {sources} {answer('nvcc', '--version')}"
    if built.is_file() and stamp.is_file() and stamp.read_text(encoding="utf-8") == state:
        return ""
    built.unlink(missing_ok=True)
    begin = time.monotonic()
    _, wrong = log.call(command, 900, path=work / f"{name}.log")
    if not wrong:
        stamp.write_text(state, encoding="utf-8")
    log.say(f"  {name}.so {wrong or f'built in {time.monotonic() - begin:.0f} s'}")
    return wrong


def only_build(suites, arguments, log):
    """Builds the libraries of the suites; answers how many could not be built."""
    architecture = arguments.architecture or architecture_of(machine().get("compute_cap"))
    if not architecture:
        sys.exit("report: without a GPU --only-build needs --architecture, as 90a")
    work, headers = Path(arguments.work).resolve(), Path(arguments.headers).resolve()
    work.mkdir(parents=True, exist_ok=True)
    needed = [x for x in LIBRARIES if any(x in s.needs for s in suites)]
    sources = digest_of(headers, ROOT / "examples", ROOT / TORCH)
    with ThreadPoolExecutor(max(1, (os.cpu_count() or 2) // 2) + 1) as pool:
        failed = sum(map(bool, pool.map(lambda name: build_library(name, work, architecture, headers, sources, log), needed)))
    log.say(f"{len(needed) - failed} of {len(needed)} libraries are in {work}")
    return failed


def build(suites, work, given, ready, architecture, log):
    """Builds in parallel what the suites need, but for what is `ready`. Answers {name: path} of what is there."""
    needed = list(dict.fromkeys(n for s in suites for n in (*s.needs, *WISHES.get(s.name, ()))))
    targets = [n for n in needed if n.startswith("bench_")]
    libraries = [n for n in LIBRARIES if n in needed and n not in ready]
    tree = given or work / "build"
    half = max(1, (os.cpu_count() or 2) // 2)
    sources = digest_of(*(ROOT / x for x in ("include", "examples", TORCH)))

    def programs():
        if not targets:
            return
        if not (tree / "CMakeCache.txt").is_file():
            ninja = ["-G", "Ninja"] if shutil.which("ninja") else []
            log.call(["cmake", "-S", ".", "-B", tree, *ninja, "-DCMAKE_BUILD_TYPE=Release", "-DGIWA_BUILD_TESTS=OFF",
                      "-DGIWA_BUILD_EXAMPLES=OFF", f"-DCMAKE_CUDA_ARCHITECTURES={architecture}-real"], 300)
        command = ["cmake", "--build", tree, "-j", half, "--target"]
        if log.call([*command, *targets], 900)[1]:
            for target in targets:  # one that cannot be built stops no other, and leaves no older one
                if log.call([*command, target], 900)[1]:
                    (tree / "bench" / target).unlink(missing_ok=True)
        log.say(f"  {len(targets)} programs done")

    begin = time.monotonic()
    with ThreadPoolExecutor(half + 1) as pool:
        found_versions = pool.submit(versions)  # also brings PyTorch into the page cache
        jobs = [pool.submit(programs)]
        jobs += [pool.submit(build_library, name, work, architecture, ROOT / "include", sources, log) for name in libraries]
        for job in jobs:
            job.result()
    log.say(f"built in {time.monotonic() - begin:.0f} s")
    paths = {t: tree / "bench" / t for t in targets} | {n: work / f"{n}.so" for n in libraries} | ready
    there = {n: p for n, p in paths.items() if p.is_file()}
    if shutil.which("nvcc"):
        there["nvcc"] = Path(shutil.which("nvcc"))
    return there, found_versions.result()


def run_suite(suite, there, work, architecture, limit, log):
    """Its rows, and what is told about its run."""
    out, libraries = work / f"{suite.name}.out", work / "libraries"
    out.unlink(missing_ok=True)
    libraries.mkdir(exist_ok=True)
    for name in LIBRARIES.keys() & there.keys():  # for suites that take them as a folder
        (libraries / f"{name}.so").unlink(missing_ok=True)
        (libraries / f"{name}.so").symlink_to(there[name].resolve())
    names = {**there, "out": out, "architecture": architecture, "libraries": libraries, "seconds": max(1, int(limit) - 20)}
    command = [re.sub(r"{(\w+)}", lambda m: str(names.get(m[1], "")), x) for x in suite.command]
    environment = {"GIWA_ENTRIES": str(there["entries"])} if "entries" in suite.needs else {}
    watch = Watch(suite.watch)
    seconds, wrong = log.call(command, limit, {**environment, "PYTHONUNBUFFERED": "1"})
    told = {"seconds": round(seconds, 1), **watch.end()}
    rows = []
    if not wrong or "peers" in suite.needs:  # whose cells are written one by one; 1: a result of giwa is wrong
        try:
            rows = suite.read(suite.name, out)
            wrong = wrong or ("" if rows else "wrote no figures")
        except (OSError, ValueError, KeyError) as error:
            wrong = wrong or f"wrote what cannot be read: {type(error).__name__}: {error}"
    return rows, {"state": wrong or "ok", **told}


def run_all(suites, arguments, out, log):
    """The report of these suites, saved after each: its path, its run, its rows."""
    earlier = [report_rows.load(path) for path in arguments.into]
    gpu = machine()
    if "name" not in gpu:
        sys.exit("there is no GPU: nvidia-smi does not answer (--list shows the suites)")
    if other := [r["gpu"] for r in earlier if r["gpu"] != gpu["name"]]:
        sys.exit(f"report: runs of different GPUs do not make one report: {other[0]} and {gpu['name']}")
    architecture = architecture_of(gpu["compute_cap"])
    work = Path(arguments.work).resolve()
    work.mkdir(parents=True, exist_ok=True)
    log.say(f"{gpu['name']}, driver {gpu.get('driver_version', '?')}, {os.cpu_count()} cores; building for {architecture}")
    ready = {name: Path(path).resolve() for name, path in (x.split("=", 1) for x in arguments.libraries)}
    if unknown := ready.keys() - LIBRARIES.keys():
        sys.exit(f"report: --library takes the names {', '.join(LIBRARIES)}; not {', '.join(sorted(unknown))}")
    there, found = build(suites, work, Path(arguments.build).resolve() if arguments.build else None, ready, architecture, log)
    if arguments.peers:
        there["peers"] = Path(arguments.peers).resolve()
    here = {*there, *(["torch"] if "PyTorch" in found else [])}
    log.say(", ".join(f"{k} {v}" for k, v in found.items()))
    run = {"date": arguments.date, "gpu": gpu["name"], "commit": arguments.commit or commit() or "unknown",
           "giwa": giwa_version(), "command": arguments.told, "machine": gpu, "cores": os.cpu_count(), "versions": found,
           "suites": {}}
    rows, path, ends = [], None, arguments.minutes * 60 if arguments.minutes else 1e9
    for i, suite in enumerate(suites, 1):
        left = sum(s.seconds for s in suites[i:])
        missing = [n for n in suite.needs if n not in here]
        if missing:
            told = {"state": NO_TORCH if missing[0] == "torch" else f"could not be built: {', '.join(missing)}"}
        elif log.elapsed() + suite.seconds > ends:
            told = {"state": f"left out: it takes about {suite.seconds} s, {max(0, ends - log.elapsed()):.0f} s are left"}
        else:
            log.say(f"suite {i} of {len(suites)}: {suite.name}, about {suite.seconds} s, then about {left} s more")
            limit = min(3 * suite.seconds + 60, ends - log.elapsed())
            found_rows, told = run_suite(suite, there, work, architecture, limit, log)
            rows += found_rows
        run["suites"][suite.name] = told
        log.say(f"  {suite.name}: {told['state']}" + (f", {told['seconds']:.0f} s" if "seconds" in told else "")
                + (f", {told['sm_mhz']:.0f} MHz at {told['watts']:.0f} W" if "watts" in told else ""))
        for line in report_rows.summary([r for r in rows if r["suite"] == suite.name]):
            print(f"           {line}", flush=True)
        path = report_rows.save(report_rows.merge([*earlier, report_rows.new_report([run], list(rows))]), out)
    return path, run, report_rows.new_report([run], rows)


def newest_of(gpu):
    """The newest report of a GPU in docs/results, or None."""
    for path in sorted((ROOT / "docs" / "results").glob("*_report.json"), reverse=True):
        if (found := report_rows.load(path))["gpu"] == gpu:
            return found
    return None


def worse_than_before(new, percent):
    """Prints what moved since the newest report of this GPU; answers how many ratios to a peer are lower by so much, or gone."""
    old = newest_of(new["gpu"])
    if old is None:
        print(f"docs/results has no report of {new['gpu']} to compare with")
        return 0
    worse = list(compare_reports.regressions(old, new, percent))
    print("", f"Compared with {old['name']}: {len(worse)} ratios to a peer are lower by {percent:g} % or more, or gone", *worse, sep="\n")
    return len(worse)


def publish(path):
    """Puts a report into docs/results, draws its plots and writes the tables of the pages. Answers what went wrong, if so."""
    for suffix in (".json", ".csv"):
        shutil.copy(path.with_suffix(suffix), ROOT / "docs" / "results")
    for command in ([sys.executable, ROOT / "bench" / "plot.py", path, ROOT / "docs" / "plots"],
                    [sys.executable, ROOT / ".ci" / "check_figures.py", "--write"]):
        if subprocess.run(command, cwd=ROOT).returncode:
            return f"{Path(command[1]).name} failed"
    print(f"docs/results/README.md needs a line on {path.name}")
    return ""


def main():
    signal.signal(signal.SIGTERM, lambda *_: sys.exit("report: told to end; what was measured is saved"))
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("out", nargs="?", metavar="OUT_DIR")
    parser.add_argument("--suites", default="all", help="names with commas between; a - before a name leaves it out; or none")
    parser.add_argument("--list", action="store_true", help="the suites and how long they take")
    parser.add_argument("--build", metavar="DIR", help="a CMake tree to build the programs in, as it is configured")
    parser.add_argument("--work", metavar="DIR", default=str(ROOT / "build" / "report"), help="where it builds: %(default)s")
    parser.add_argument("--library", dest="libraries", action="append", default=[], metavar="NAME=PATH",
                        help=f"what is built already, of this tree: {', '.join(LIBRARIES)}")
    parser.add_argument("--minutes", type=float, help="leaves out suites that would go beyond")
    parser.add_argument("--into", nargs="+", default=[], metavar="REPORT", help="reports whose other suites are kept")
    parser.add_argument("--peers", metavar="FOLDER",
                        help="other libraries of attention, as bench/torch/peers/unpack.py restores them, for the suites peers_...")
    parser.add_argument("--only-build", action="store_true", help="only build the libraries of the suites, into --work")
    parser.add_argument("--architecture", help="of --only-build, as 90a; default: the GPU's")
    parser.add_argument("--headers", metavar="DIR", default=str(ROOT / "include"), help="of --only-build: include of another version")
    parser.add_argument("--regression", type=float, metavar="PERCENT", help="fail where a ratio to a peer is lower by so much")
    parser.add_argument("--publish", action="store_true", help="put the report, its plots and tables into docs/")
    parser.add_argument("--commit", help="of a tree without .git")
    arguments = parser.parse_args()
    names = [s.name for s in SUITES]
    if arguments.list:
        for s in SUITES:
            print(f"{s.name:<17}{s.seconds:>4} s   {s.about}")
        return 0
    if not arguments.out:
        parser.error("OUT_DIR is missing")
    asked = [x for x in arguments.suites.split(",") if x]
    if unknown := [x for x in asked if x.lstrip("-") not in (*names, "all", "none")]:
        parser.error(f"there is no suite {', '.join(unknown)}; there are {', '.join(names)}")
    chosen = set(asked) & set(names) if set(asked) & {*names, "none"} else set(names)
    suites = [s for s in SUITES if s.name in chosen and f"-{s.name}" not in asked]
    if arguments.peers and not Path(arguments.peers).is_dir():
        parser.error(f"--peers: there is no folder {arguments.peers}")
    if not arguments.peers and not arguments.only_build and (alone := [s.name for s in suites if "peers" in s.needs]):
        if given := [x for x in alone if x in asked]:
            parser.error(f"{', '.join(given)} needs --peers FOLDER")
        print(f"left out without --peers: {', '.join(alone)}")
        suites = [s for s in suites if "peers" not in s.needs]
    arguments.date = datetime.now(timezone.utc).isoformat(timespec="seconds")
    arguments.told = f"bench/report.py OUT_DIR --suites {arguments.suites}" + (
        f" --minutes {arguments.minutes:g}" if arguments.minutes else "")
    out = Path(arguments.out).resolve()
    out.mkdir(parents=True, exist_ok=True)
    try:
        if not suites:
            if not arguments.into:
                parser.error("no suites, and no reports to make one of")
            path = report_rows.save(report_rows.merge([report_rows.load(x) for x in arguments.into]), out)
            print(f"wrote {path} and .csv")
            return 1 if arguments.publish and publish(path) else 0
        log = Log(out / "report.log")
        if arguments.only_build:
            return 1 if only_build(suites, arguments, log) else 0
        path, run, new = run_all(suites, arguments, out, log)
        worse = worse_than_before(new, arguments.regression) if arguments.regression is not None else 0
    except report_rows.ReportError as error:
        sys.exit(f"report: {error}")
    bad = {name: told["state"] for name, told in run["suites"].items() if told["state"] != "ok"}
    log.say(f"{len(suites) - len(bad)} of {len(suites)} suites; wrote {path}, .csv and report.log")
    print("".join(f"  {name}: {state}\n" for name, state in bad.items()), end="")
    wrong = publish(path) if arguments.publish else ""
    return 1 if wrong or worse or any(s != NO_TORCH for s in bad.values()) else 0


if __name__ == "__main__":
    sys.exit(main())
