#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""Puts small faults into headers, one at a time, and reports those that no host test notices.

    python3 test/mutate.py --seed 1 --count 50 numeric softmax/row_plan.hpp     # folders and headers of include/giwa
    python3 test/mutate.py --seed 1 --count 50 --commit HEAD                    # lines that a commit wrote

A fault is one changed operator, constant, bound or pair of arguments, or one removed refusal, fence or wait. Comments, strings,
preprocessor lines, static_assert, concepts, GIWA_ASSERT (off in tests) and device-only code are left alone. Device-only means:
the body of a function marked GIWA_DEVICE, __device__ or __global__ without __host__, or what `#if` takes for __CUDA_ARCH__ or
__CUDACC_RTC__ alone.

For each fault the host tests that include the header (`-MM` says which) are built and run, the nearest first, until one fails;
a fault that does not compile is not counted. A static_assert that fails is a test that notices. Of a fault in overloads that refuse
a call at compile time, test/compile_fail is asked, too. The faults go into a copy in --work, and the results are kept there: the
same command goes on where it was stopped.
"""
import argparse
import collections
import concurrent.futures
import fcntl
import hashlib
import json
import os
import random
import re
import resource
import shutil
import signal
import struct
import subprocess
import sys
import threading
import time
from pathlib import Path

MACHINE_FLAGS = ["-std=c++20", "-O1", "-DNDEBUG", "-w"]  # as the presets' host tests without a GPU
fault = collections.namedtuple("fault", "file start end text kind")


# --- Faults of a header -----------------------------------------------------------------------------------------------------


def blank(match):
    return re.sub(r"[^\n]", " ", match[0])


def closing(code, opening):
    """The place behind the bracket that closes the one at `opening`, or the end."""
    depth = 0
    for at in range(opening, len(code)):
        depth += (code[at] in "([{") - (code[at] in ")]}")
        if depth == 0:
            return at + 1
    return len(code)


def host_code(text):
    return code_of(text, False)


def code_of(text, on_gpu):
    """The text with all that is not mutated blanked; every place stays what it was. on_gpu: what is left are the bodies of functions
    that run on a GPU alone."""
    code = re.sub(r'//[^\n]*|/\*.*?\*/|"(?:\\.|[^"\\\n])*"|(?<!\w)\'(?:\\.|[^\'\\\n])+\'', blank, text, flags=re.S)
    lines, device = code.split("\n"), []  # for each open #if: whether this branch is the device's, and the other one
    continued = False
    for number, line in enumerate(lines):
        directive = re.match(r" *# *(\w+)(.*)", line)
        if directive and not continued:
            name, condition = directive.groups()
            on_device = re.search(r"(?<!!)defined\(__CUDA_ARCH__\)|(?<!!)defined\(__CUDACC_RTC__\)", condition)
            on_host = re.search(r"!defined\(__CUDA_ARCH__\)", condition)
            here, other = bool(on_device and not on_host), bool(on_host)
            if on_gpu:
                here, other = other, here
            if name.startswith("if"):
                device.append((here, other))
            elif name == "elif":
                device[-1] = (here, device[-1][1] or other)
            elif name == "else":
                device[-1] = (device[-1][1], False)
            elif name == "endif":
                device.pop()
        if directive or continued or any(here for here, _ in device):
            lines[number] = " " * len(line)
        continued = bool(directive or continued) and line.endswith("\\")
    code = "\n".join(lines)
    erased, bodies = [], []
    for match in re.finditer(r"\bstatic_assert\(|\bGIWA_ASSERT\(|\bconcept \w+ =|(?<!__host__ )\b(?:GIWA_DEVICE|__device__|__global__)\b", code):
        if match[0][-1] == "(":
            erased.append((match.start(), closing(code, match.end() - 1)))
        elif match[0][-1] == "=":
            erased.append((match.start(), code.find(";", match.start())))
        else:
            body = re.compile(r"[{;]").search(code, match.end())
            if body and body[0] == "{":
                (bodies if on_gpu else erased).append((body.start() if on_gpu else match.start(), closing(code, body.start())))
    if on_gpu:
        ends = [0] + [at for span in sorted(bodies) for at in span] + [len(code)]
        erased += [(start, end) for start, end in zip(ends[::2], ends[1::2]) if start < end]
    for start, end in erased:
        code = code[:start] + re.sub(r"[^\n]", " ", code[start:end]) + code[end:]
    return code


OPERATORS = {"<": ["<=", ">="], "<=": ["<", ">"], ">": [">=", "<="], ">=": [">", "<"], "==": ["!="], "!=": ["=="],
             "+": ["-"], "-": ["+"], "*": ["/"], "/": ["*"], "%": ["/"], "+=": ["-="], "-=": ["+="], "&&": ["||"], "||": ["&&"],
             "<<": [">>"], ">>": ["<<"], "&": ["|"], "|": ["&"]}

COMMUTE = {"may_share", "overlap", "check_apart", "min", "max", "larger_of", "saturated_product", "wrapping_product", "fmax", "fmin"}


def arguments(code, opening):
    """The places of the arguments in the parentheses at `opening`, split at commas outside of brackets and template lists."""
    end, start, depth, places = closing(code, opening) - 1, opening + 1, 0, []
    for at in range(opening + 1, end + 1):
        if at == end or code[at] == "," and depth == 0:
            places.append((start, at))
            start = at + 1
        depth += (code[at] in "([{") - (code[at] in ")]}")
        if code[at] == "<" and code[at - 1] != " " or code[at] == ">" and code[at - 1] not in " -":
            depth += 1 if code[at] == "<" else -1
    return places


def faults(text, file="", lines=None, on_gpu=False):
    """All faults of a header, or those on some of its lines (numbers from 1); on_gpu: those of device code."""
    code, found = code_of(text, on_gpu), []

    def add(start, end, new, kind):
        line = text.count("\n", 0, start) + 1
        if new != text[start:end] and (lines is None or line in lines):
            found.append(fault(file, start, end, new, kind))

    for match in re.finditer(r"(?<= )(<=|>=|==|!=|\+=|-=|&&|\|\||<<|>>|[-<>+*/%&|])(?=[ \n])", code):
        for new in OPERATORS[match[1]]:
            add(*match.span(), new, "operator")
    for match in re.finditer(r"(?<=[ (])!(?=[\w(])", code):
        add(*match.span(), "", "operator")
    for match in re.finditer(r"(?<![\w.'])(\d+)(?:[uU]?[lL]{0,2})(?![\w.'])", code):
        rank = re.search(r"view<[\w ]+(?:<[\w ]+>)?, $", code[:match.start()]) or re.match(r"\] = \{", code[match.end():])
        for new in set() if rank else {int(match[1]) + 1, max(int(match[1]) - 1, 0)} - {int(match[1])}:
            add(match.start(), match.end(1), str(new), "constant")
    for match in re.finditer(r"\b(true|false)\b", code):
        add(*match.span(), {"true": "false", "false": "true"}[match[1]], "constant")
    for match in re.finditer(r"\breturn ([^;{}]+);", code):
        if '"' not in text[match.start():match.end()] and not re.search(r"^s$|state$|this$|^true$|^false$|^\W*$", match[1]):
            add(*match.span(1), f"({text[match.start(1):match.end(1)]}) + 1", "off by one")
    for match in re.finditer(r"\b(\w+)(?:<[\w, :]*>)?\(", code):
        declared = re.compile(r"(?:const )?[\w:]+(?:<.*>)?[&* ]+\w+$")
        if match[1] not in {"if", "for", "while", "switch", "decltype", "alignas", "requires", "catch", "defined"}:
            places = arguments(code, match.end() - 1)
            for (a, b), (c, d) in zip(places, places[1:]):
                first, second = text[a:b].strip(), text[c:d].strip()
                commutes = match[1] in COMMUTE and (a, b) == places[0]
                if first and second and not commutes and not any(declared.match(x) or '"' in x for x in (first, second)):
                    add(a, d, f"{second}, {first}", "arguments")
    for match in re.finditer(r"\bif (?:constexpr )?\(", code):
        condition = closing(code, match.end() - 1)
        then = re.compile(r"\s*return[^;{}]*(?:\{[^;{}]*\})?[^;{}]*;").match(code, condition)
        if then and re.search(r"status|return s;|\.state;", then[0]):
            add(match.start(), then.end(), ";", "refusal")
    for match in re.finditer(r"\b(?:broken|bad|overlapped|may_share|overlap|check_\w+)\(", code):
        end = closing(code, match.end() - 1)
        if re.search(r"(?:\|\||\(|:|=) ?\s*$", code[:match.start()]) and re.match(r"\s*(?:\|\||\)|\?)", code[end:]) and \
                not re.search(r"\b(?:broken|bad|overlapped)\($", code[:match.start()]):
            add(match.start(), end, "false", "refusal")
    for match in re.finditer(r"(?<=\n)( *)[\w.:>-]*(?:sync|wait|fence|arrive|acquire|release|barrier)\w*(?:<[\w, :]*>)?\(", code):
        end = closing(code, match.end() - 1)
        if code[end:end + 1] == ";":
            add(match.end(1), end, "", "wait")
    if on_gpu:
        kernel_faults(code, text, add)
    return sorted(set(found))


ORDER = r"(?:sync|wait|fence|arrive|acquire|release|barrier|commit|expect)\w*"


def kernel_faults(code, text, add):
    """What goes wrong in kernels: a wait, fence or barrier less, one before or after the statement next to it, one turn of a loop less."""
    for match in re.finditer(r"(?<=\n)( *(?:if (?:constexpr )?\([^;{}\n]*\) )?)[\w.:>\[\]-]*" + ORDER + r"(?:<[\w, :]*>)?\(", code):
        end = closing(code, match.end() - 1)
        if code[end:end + 1] == ";":
            add(match.end(1), end, "", "wait")
    statement = re.compile(r"(?<=\n)( +)([\w:.>*&\[(-][^;{}\n]*;)[ ]*\n")
    lines = list(statement.finditer(code))
    for first, second in zip(lines, lines[1:]):
        if first.end() == second.start() and first[1] == second[1] and re.search(ORDER + r"(?:<[\w, :]*>)?\(", first[2] + second[2]) and \
                not re.search(r"\b(?:return|const|auto|using|int|bool|float|if|for|else)\b", first[2] + second[2]):
            a, b = (text[m.start(2):m.end(2)] for m in (first, second))
            add(first.start(2), second.end(2), f"{b} {a}", "order")
    for match in re.finditer(r"\b(?:for \([^;{}]*;|while \() ?[\w.\[\]]+ < ([^;{}<>&|]+?)(?:;|\) \{|\)\n)", code):
        add(*match.span(1), f"({text[match.start(1):match.end(1)]}) - 1", "loop")


def refuses_calls(text, f):
    """Whether a fault is among the overloads that exist for the sentences of their static_asserts."""
    return any(m.start() < f.start < m.end() for m in re.finditer(r"\n#if [^\n]*// calls that do not compile.*?\n#endif", text, re.S))


def mutated(text, f):
    return text[:f.start] + f.text + text[f.end:]


def difference(text, f):
    """(line, what stands there, what the fault makes of it), each in one line."""
    first, last = text.rfind("\n", 0, f.start) + 1, text.find("\n", f.end)
    old, new = text[first:last], text[first:f.start] + f.text + text[f.end:last]
    return text.count("\n", 0, f.start) + 1, " ".join(old.split()), " ".join(new.split())


# --- Builds and runs --------------------------------------------------------------------------------------------------------


def limited():
    os.setsid()
    for what, most in ((resource.RLIMIT_CORE, 0), (resource.RLIMIT_FSIZE, 1 << 30)):
        resource.setrlimit(what, (most, most))


def command(line, seconds, words=None):
    """(exit status or None where the time ran out, what went to stderr)"""
    with subprocess.Popen([str(word) for word in line], stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True,
                          errors="replace", preexec_fn=limited, env=words) as process:
        try:
            errors = process.communicate(timeout=seconds)[1]
            return process.returncode, errors
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            process.communicate()
            return None, ""


def catch_library():
    """What to link: Catch2 3 has a library, 2 has none."""
    found = command(["g++", "-E", "-x", "c++", "-include", "catch2/catch_all.hpp", os.devnull, "-o", os.devnull], 60)[0] == 0
    return ["-lCatch2"] if found else []


class tests:
    """The host tests of a copy of the tree, or with `arch` those of test/gpu: which headers each includes, how it is built, how long it
    runs."""

    def __init__(self, tree, work, jobs=1, arch=None):
        self.tree, self.work, self.lock, self.alone = tree, work, threading.Lock(), {}
        self.folder = tree / ("test/gpu" if arch else "test/host")
        self.environment = {**os.environ, **({} if arch else {"CUDA_VISIBLE_DEVICES": ""})}  # host tests as where there is no GPU
        nvcc = shutil.which("nvcc")
        toolkit = Path(nvcc).resolve().parent.parent if nvcc else None
        self.host = ["g++", *MACHINE_FLAGS]
        self.libraries, self.catch = [], catch_library()
        if toolkit:
            self.host += ["-isystem", toolkit / "include"]
            if (toolkit / "lib64/libcudart_static.a").exists():
                self.libraries = ["-L", toolkit / "lib64", "-lcudart_static", "-lpthread", "-ldl", "-lrt"]
        target = ["-gencode", f"arch=compute_{arch},code=sm_{arch}"] if arch else ["-arch=compute_80", "-code=compute_80"]
        self.cuda = ["nvcc", *MACHINE_FLAGS, *target, "--Ofast-compile=max"] if nvcc else None
        sources = sorted(path for path in self.folder.rglob("*_test.c*")
                         if (path.suffix == ".cpp" or nvcc) and "another_gpu.hpp" not in path.read_text())
        shared = hashlib.sha256(b"".join(path.read_bytes() for part in ("include", "test") for path in sorted((tree / part).rglob("*"))
                                         if path.suffix in (".hpp", ".cuh"))).hexdigest()
        self.known_file = work / ("gpu_tests.json" if arch else "tests.json")
        known = json.loads(self.known_file.read_text()) if self.known_file.exists() else {}
        # self.known: test: its text and headers, the headers that it includes, its seconds without a fault (None: it fails)
        def look_at(source):
            test = str(source.relative_to(self.folder))
            version = hashlib.sha256(shared.encode() + source.read_bytes()).hexdigest()
            if known.get(test, {}).get("version") != version:
                known[test] = {"version": version, "headers": self.includes(source)}
            return test

        with concurrent.futures.ThreadPoolExecutor(jobs) as pool:
            self.known = {test: known[test] for test in pool.map(look_at, sources)}
        self.remember()
        self.noticed = collections.Counter()  # (header, test): faults noticed
        self.nearest = {}  # header: tests
        self.refusals = {}  # (file of test/compile_fail, folder of a fault or None): whether it fails as it should
        main = tree / "test/support/main.cpp"
        self.main = work / f"main-{hashlib.sha256(main.read_bytes()).hexdigest()[:8]}.o"
        if not self.main.exists():
            subprocess.run([str(w) for w in (*self.host, "-I", tree / "test", "-c", main, "-o", self.main)], check=True)

    def includes(self, source):
        compiler = self.host if source.suffix == ".cpp" else self.cuda
        line = [*compiler, "-I", self.tree / "include", "-I", self.tree / "test", "-MM", source]
        answer = subprocess.run([str(word) for word in line], capture_output=True, text=True).stdout
        if not answer:
            print(f"left out: {source.name} needs files of other folders")
        return re.findall(r"include/giwa/(\S+)", answer)

    def remember(self):
        self.known_file.write_text(json.dumps(dict(self.known)))

    def of(self, header):
        """The tests that include a header, the nearest first, and before them those that noticed faults in it."""
        if header not in self.nearest:
            self.nearest[header] = self.by_distance(header)
        return sorted(self.nearest[header], key=lambda test: -min(self.noticed[header, test], 3))

    def by_distance(self, header):
        words = set(re.split(r"[_/.]", header))
        code = host_code((self.tree / "include/giwa" / header).read_text())
        names = set(re.findall(r"\b(?:struct|class) (\w+)|\b(?:constexpr|inline|status|bool|auto|int64?) (\w{4,})\(", code))
        names = {name for pair in names for name in pair if name}

        def distance(test):
            text = (self.folder / test).read_text()
            near = 4 * (f"<giwa/{header}>" in text) + 2 * len(words & set(re.split(r"[_/.]", test))) + \
                sum(name in text for name in names)
            return -near, test.endswith(".cu"), len(text), test
        return sorted((test for test, known in self.known.items() if header in known["headers"]), key=distance)

    def build(self, test, overlay, program):
        compiler = self.host if test.endswith(".cpp") else self.cuda
        source = self.folder / test
        return command([*compiler, "-I", overlay, "-I", self.tree / "include", "-I", self.tree / "test", source, self.main, "-o", program,
                        *self.catch, *(self.libraries if compiler is self.host else [])], 300)

    def sound_seconds(self, test, program):
        """How long a test runs without a fault; None where it fails."""
        with self.lock:
            alone = self.alone.setdefault(test, threading.Lock())
        with alone:
            known = self.known[test]
            if "seconds" not in known:
                rc, errors = self.build(test, self.work / "nothing", program)
                began = time.monotonic()
                if rc == 0:
                    rc, errors = command([program], 600, self.environment)
                known["seconds"] = time.monotonic() - began if rc == 0 else None
                with self.lock:
                    self.remember()
                if rc != 0:
                    print(f"left out: {test} fails without a fault: {errors[-300:]}", flush=True)
            return known["seconds"]

    def refused_as_expected(self, source, overlay):
        """Whether a file of test/compile_fail compiles, and does not with GIWA_COMPILE_FAIL, for the reason that it names."""
        lines = source.read_text().splitlines()
        flags = re.findall(r"^// FLAGS: (.+)$", lines[1])
        compiler = [*self.host, "-fsyntax-only"] if source.suffix == ".cpp" else [*self.cuda, "-c", "-o", os.devnull]
        line = [*compiler, *" ".join(flags).split(), "-I", overlay, "-I", self.tree / "include", source]
        if command(line, 120)[0] != 0:
            return False
        rc, errors = command([*line, "-DGIWA_COMPILE_FAIL"], 120)
        return rc not in (0, None) and lines[0].removeprefix("// EXPECT: ") in errors

    def failing_refusal(self, header, overlay):
        """A file of test/compile_fail that includes a header and notices the fault in `overlay`, or None."""
        words = set(re.split(r"[_/.]", header))
        sources = [x for x in sorted((self.tree / "test/compile_fail").glob("*.c*")) if x.suffix == ".cpp" or x.suffix == ".cu" and self.cuda]
        for source in sorted(sources, key=lambda x: (x.suffix == ".cu", -len(words & set(x.stem.split("_"))))):
            with self.lock:
                known = source.name in self.refusals
            if not known:
                sound = self.refused_as_expected(source, self.work / "nothing")
                with self.lock:
                    self.refusals[source.name] = self.includes(source) if sound else []
            if header in self.refusals[source.name] and not self.refused_as_expected(source, overlay):
                return source.name
        return None

    def run(self, f, text, worker, skip, most, deadline):
        """What becomes of a fault: (result, test, how, tests that ran)."""
        overlay, program = self.work / f"job{worker}", self.work / f"job{worker}.out"
        header = f.file.removeprefix("include/giwa/")
        target = overlay / "giwa" / header
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_text(mutated(text, f))
        ran = list(skip)
        try:
            for test in self.of(header):
                if test in skip or most and len(ran) >= most or time.monotonic() > deadline:
                    continue
                seconds = self.sound_seconds(test, program)
                if seconds is None:
                    continue
                rc, errors = self.build(test, overlay, program)
                if rc is None:
                    return "killed", test, "compile time", ran
                if rc != 0:
                    noticed = re.search(r"static assertion failed|not a constant expression|non-constant condition|assertion failed with", errors)
                    return ("killed", test, "static_assert", ran) if noticed else ("not compiled", test, errors[-200:], ran)
                rc, _ = command([program, "--abort"] if seconds > 0.1 else [program], 20 + 10 * seconds, self.environment)
                if rc != 0:
                    with self.lock:
                        self.noticed[header, test] += 1
                    return "killed", test, "time" if rc is None else "fails", ran
                ran.append(test)
            if self.folder.name == "host" and refuses_calls(text, f) and time.monotonic() < deadline:
                test = self.failing_refusal(header, overlay)
                if test:
                    return "killed", f"compile_fail/{test}", "refusal", ran
                ran.append("compile_fail")
            return ("survived" if ran else "no test"), "", "", ran
        finally:
            target.unlink()


# --- On a GPU ---------------------------------------------------------------------------------------------------------------

GPU_FLAGS = ["-std=c++20", "-O1", "-DNDEBUG", "-w", "--no-compress"]  # device code is optimised without a flag; machine_code() reads it
LEAST = 20  # problems of each fuzz program: in 4 seconds of a busy machine some drew fewer than 5
GPU_FOLDERS = ["attention/kernels", "attention/sums", "attention/append", "attention/nonfinite", "attention/split_fp16", "softmax",
               "tile", "grid"]
# The kinds in turns: most of what is wrong in kernels is the order of threads.
GPU_KINDS = ["wait", "order", "constant", "loop", "wait", "operator", "order", "arguments"]
# Which programs run the kernels of a header: test/fuzz/gpu_NAME.cu with -DGIWA_FUZZ_PART=N, then tests of test/gpu, the nearest first.
GPU_PROGRAMS = [
    ("kernels/sm90/forward", "forward:0 forward:1 forward:2 forward:3 forward:4 cached:0 attention/fp32_test attention/delays_test"),
    ("kernels/sm90/backward_halves", "backward:1 backward:0 attention/backward_bits_test attention/delays_test"),
    ("kernels/sm90/backward_wide", "backward:2 attention/backward_bits_test attention/backward_test attention/delays_test"),
    ("kernels/sm90/backward_split", "backward:3 attention/backward_bits_test attention/fp32_test"),
    ("kernels/sm90/backward", "backward:0 backward:1 backward:2 backward:4 attention/backward_bits_test attention/backward_test attention/delays_test"),
    ("kernels/sm90/many_rows", "cached:0 cached:1 attention/cached_bits_test attention/delays_test"),
    ("kernels/sm80/(few_rows|byte_products)", "cached:0 cached:1 attention/late_scales_test attention/cached_bits_test attention/cached_hostile_test attention/delays_test"),
    ("kernels/sm80/backward", "backward:0 backward:1 attention/backward_test attention/delays_test"),
    ("kernels/sm80", "forward:0 forward:1"),
    ("kernels/simt/forward", "forward:2 cached:2"),
    ("kernels/simt/(row_terms|store_gradient)", "backward:0 backward:3 attention/backward_workspace_test attention/backward_test"),
    ("kernels/simt/cached", "cached:2"),
    ("kernels/simt", "backward:3"),
    ("split_fp16", "forward:2 backward:3 attention/fp32_test"),
    ("nonfinite", "forward:0 forward:1"),
    ("attention/sums", "cached:0 small attention/cached_bits_test"),
    ("attention/append", "small"),
    ("softmax/online", "forward:0 softmax/online_test"),
    ("softmax", "small softmax/row_softmax_test"),
    ("tile/pipeline_sm90|tile/copy_sm90", "tile/pipeline_sm90_test forward:0"),
    ("tile/mma_sm90", "tile/mma_sm90_test forward:0"),
    ("tile/pipeline", "tile/pipeline_test"),
    ("tile/mma_sm80", "tile/mma_sm80_test cached:0 backward:0"),
    ("tile/copy|tile/register_copy", "tile/copy_test tile/register_copy_test forward:0"),
    ("tile", "tile/mma_sm80_test tile/mma_sm90_test forward:0"),
    ("grid/(scope|device_block|grid_barrier|reduce)", "grid/scope_test grid/op_test small"),
    ("grid", "small grid/launch_test grid/elementwise_test"),
]


def machine_code(program):
    """A digest of a program's kernels (uncompressed), names aside."""
    data, kernels = program.read_bytes(), []
    at = data.find(b"\x7fELF", 4)
    while at >= 0:
        if struct.unpack_from("<H", data, at + 18)[0] == 190:  # EM_CUDA
            table, = struct.unpack_from("<Q", data, at + 40)
            size, count, of_names = struct.unpack_from("<3H", data, at + 58)
            sections = [struct.unpack_from("<IIQQQQ", data, at + table + i * size) for i in range(count)]  # name, type, flags, address, offset, size
            for name, _, _, _, offset, length in sections:
                begin = at + sections[of_names][4] + name
                if data[begin:begin + 6] == b".text.":
                    kernels.append(hashlib.sha256(data[at + offset:at + offset + length]).hexdigest())
        at = data.find(b"\x7fELF", at + 4)
    return hashlib.sha256("".join(sorted(kernels)).encode()).hexdigest()


# The functions that test/support/another_gpu.cpp wraps, as in test/CMakeLists.txt.
WRAPPED = re.findall(r"__wrap_(\w+)\(", (Path(__file__).resolve().parent / "support/another_gpu.cpp").read_text())


class gpu_programs:
    """The programs that run the kernels of a copy of the tree on the GPU that is there."""

    def __init__(self, tree, work, arch, delays):
        self.tree, self.work = tree, work
        self.nvcc = ["nvcc", *GPU_FLAGS, "-gencode", f"arch=compute_{arch},code=sm_{arch}", "-I", tree / "test"]
        self.libraries = catch_library()
        self.delays = ["-DGIWA_RANDOM_DELAYS=1"] if delays else []

    def of(self, header):
        return next((programs.split() for pattern, programs in GPU_PROGRAMS if re.search(pattern, header)), [])

    def build_mains(self):
        for name in ("test/support/main.cpp", "test/fuzz/main.cpp", "test/support/another_gpu.cpp"):
            line = [*self.nvcc[:-2], "-O1", "-I", self.tree / "include", "-I", self.tree / "test", "-c", self.tree / name, "-o",
                    self.work / ("another_gpu.o" if "another" in name else name.split("/")[1] + ".o")]
            rc, errors = command(line, 300)
            if rc != 0:
                sys.exit(errors)

    def build(self, program, overlay, to, seconds=300):
        name, _, number = program.partition(":")
        fuzz = "/" not in name
        source = self.tree / (f"test/fuzz/gpu_{name}.cu" if fuzz else f"test/gpu/{name}.cu")
        define = [f"-DGIWA_FUZZ_PART={number}"] if number else []
        unfinished = to.with_suffix(".part")
        wrapped = fuzz or "another_gpu.hpp" in source.read_text()
        line = [*self.nvcc, *define, *(self.delays if fuzz else []), "-I", overlay, "-I", self.tree / "include", source,
                self.work / ("fuzz.o" if fuzz else "support.o"), "-o", unfinished, *([] if fuzz else self.libraries),
                *([self.work / "another_gpu.o", "-Xlinker", ",".join(f"--wrap={name}" for name in WRAPPED)] if wrapped else [])]
        rc, errors = command(line, seconds)
        if rc == 0:
            if "(C75" in errors:  # ptxas lets products wait for each other; the table of registers does not allow it
                to.with_suffix(".serial").touch()
            unfinished.rename(to)
        return rc, errors

    def run(self, program, binary, seconds, tool=None, plain=False, strange=False, small=False):
        """None where it found nothing, or what it found."""
        fuzz = "/" not in program
        line = [binary] if not fuzz else [binary, "--seed", 1, "--stop", "--threads", 1 if tool else 3,
                                          *(["--count", 6, "--minutes", 1] if tool else ["--minutes", seconds / 60, "--least", LEAST]),
                                          *(["--small"] if small else [])]
        if not fuzz:
            line.append("--abort")
        if tool:
            line = ["compute-sanitizer", "--tool", tool, "--report-api-errors", "no", "--error-exitcode", 9, *line]
        words = dict(os.environ)
        if tool or not fuzz:
            words["GIWA_TEST_SMALL"] = "1"
        elif not small:  # the references of problems, which take most of the time, are computed by the program without a fault
            words["GIWA_FUZZ_ANSWERS"] = str(self.work / "answers")
            (self.work / "answers").mkdir(exist_ok=True)
        if strange:
            words["GIWA_FUZZ_STRANGE"] = "1"
        if plain:
            words["GIWA_FUZZ_PLAIN"] = "1"
        rc, errors = command(line, 40 if tool else 30 + 2 * seconds, words)
        return None if rc == 0 else "time" if rc is None else tool or "fails"


def gpu_main(options, root, work, copy):
    """--gpu: builds the programs of all faults, runs them, and then the sanitizers on what survived."""
    (work / "gpu").mkdir(exist_ok=True)
    programs = gpu_programs(copy, work, options.arch, options.delays)
    kinds = collections.defaultdict(list)
    for file, lines in chosen(root, options.names or GPU_FOLDERS, options.commit).items():
        if programs.of(file) and file.endswith("cuh"):
            for f in faults((copy / file).read_text(), file, lines, True):
                kinds[f.kind].append(f)
    for kind in sorted(kinds):
        random.Random(options.seed).shuffle(kinds[kind])
    drawn, turn = [], 0
    while len(drawn) < options.count and any(kinds[k] for k in GPU_KINDS):
        kind = GPU_KINDS[turn % len(GPU_KINDS)]
        turn += 1
        if kinds[kind] and options.kind in (None, kind):
            drawn.append(kinds[kind].pop())
    drawn = drawn[options.first:]
    print(f"{len(drawn)} faults of seed {options.seed}, from number {options.first} on", flush=True)

    def place(n, program):
        return work / "gpu" / f"{n}-{re.sub('[^a-z0-9]', '_', program)}"
    most = options.tests or 9
    if options.phase in ("all", "build"):
        programs.build_mains()
        deadline = time.monotonic() + options.build_seconds
        codes, locks = {}, collections.defaultdict(threading.Lock)

        def build(n, f, program):
            left = deadline - time.monotonic()
            to, overlay = place(n, program), work / f"gpu/overlay{n}"
            if to.exists() or left < 5:
                return to.exists()
            if f is not None:
                target = overlay / "giwa" / f.file.removeprefix("include/giwa/")
                target.parent.mkdir(parents=True, exist_ok=True)
                target.write_text(mutated((copy / f.file).read_text(), f))
            rc, errors = programs.build(program, overlay, to, left)
            if rc is not None and rc != 0:
                noticed = "static assertion failed" in errors or "assertion failed with" in errors
                to.with_suffix(".no").write_text("static_assert" if noticed else errors[-2000:])
            return rc == 0

        def code_of_sound(program):
            """The digest of a program without a fault, or None."""
            with locks[program]:
                if program not in codes and build("sound", None, program):
                    codes[program] = machine_code(place("sound", program))
                return codes.get(program)

        def build_next(job):
            """Builds the next program of a fault whose machine code the fault changes."""
            n, f = job
            for program in programs.of(f.file):
                to = place(n, program)
                if to.with_suffix(".no").exists():
                    return
                if to.with_suffix(".same").exists() or (n, program) in changed:
                    continue
                code = code_of_sound(program)
                if code is None or not build(n, f, program):
                    continue
                if machine_code(to) != code:
                    changed.add((n, program))
                    return
                to.rename(to.with_suffix(".same"))
        changed = set()
        with concurrent.futures.ThreadPoolExecutor(options.jobs) as pool:
            for _ in range(most):
                list(pool.map(build_next, enumerate(drawn)))
        print(f"built {len(changed)} programs that {len({n for n, _ in changed})} faults change", flush=True)
    if options.phase == "build":
        return
    deadline = time.monotonic() + options.run_seconds
    plain, sound = set(), set()
    built = [program for program in {name for _, names in GPU_PROGRAMS for name in names.split()} if place("sound", program).exists()]

    def fault_of(program, binary, plain):
        """Runs a program in all ways until one finds something."""
        fuzz = "/" not in program
        ways = [{}, *([{"small": True}] if fuzz else []), *([{"strange": True}] if re.match("backward:|cached:", program) else [])]
        return next(filter(None, (programs.run(program, binary, options.program_seconds, plain=plain, **way) for way in ways)), None)

    def run_sound(program):
        """A program that fails without a fault says nothing of one."""
        for how in (False, True):
            fault = fault_of(program, place("sound", program), how)
            if fault is None:
                sound.add(program)
                plain.update({program} if how else ())
                return
        print(f"without a fault {program} fails: {fault}", flush=True)

    with concurrent.futures.ThreadPoolExecutor(options.runs) as pool:
        list(pool.map(run_sound, sorted(built)))
    print(f"without a fault: {len(sound)} of {len(built)} programs pass, {len(plain)} of them only without modes", flush=True)

    def run(job):
        n, f = job
        line, old, new = difference((copy / f.file).read_text(), f)
        r = {"n": n + options.first, "file": f.file, "line": line, "kind": f.kind, "old": old, "new": new, "result": "not run", "how": "", "ran": []}
        refused = [p.read_text() for p in (work / "gpu").glob(f"{n}-*.no")]
        if refused:
            return {**r, "result": "killed" if "static_assert" in refused else "not compiled", "how": refused[0][-150:]}
        serial = [p for p in (work / "gpu").glob(f"{n}-*.serial") if not place("sound", p.stem.partition("-")[2]).with_suffix(".serial").exists()]
        if serial:
            return {**r, "result": "killed", "how": "ptxas: products that wait for each other (C75xx)"}
        if not refused and all(place(n, p).with_suffix(".same").exists() for p in programs.of(f.file)):
            return {**r, "result": "same code"}
        for program in programs.of(f.file):
            if program in sound and place(n, program).exists() and time.monotonic() < deadline:
                how = fault_of(program, place(n, program), program in plain)
                r["ran"].append(program)
                r["result"] = "killed" if how else "survived"
                r["how"] = f"{program} {how}" if how else ""
                if how:
                    break
        return r
    store = (work / "gpu_results.jsonl").open("w", buffering=1)  # complete lines, should the run be ended

    def run_and_tell(job):
        r = run(job)
        store.write(json.dumps(r) + "\n")
        return r
    with concurrent.futures.ThreadPoolExecutor(options.runs) as pool:
        results = list(pool.map(run_and_tell, enumerate(drawn)))
    clean = {}

    def sanitize(r):
        for program in r["ran"]:
            for tool in ("racecheck", "synccheck", "memcheck"):
                if time.monotonic() > deadline - 15:
                    return
                if (program, tool) not in clean:
                    clean[program, tool] = programs.run(program, place("sound", program), 2, tool, program in plain, True) is None
                if clean[program, tool] and programs.run(program, place(r["n"] - options.first, program), 2, tool, program in plain, True):
                    r["result"], r["how"] = "killed", f"{program} {tool}"
                    return
    with concurrent.futures.ThreadPoolExecutor(options.runs) as pool:
        list(pool.map(sanitize, [r for r in results if r["result"] == "survived"]))
    for r in results:
        print(f"{r['n']:>3} {r['result']:<12} {r['file']}:{r['line']} {r['kind']}, {r['how'] or r['ran']}\n     - {r['old']}\n     + {r['new']}")
    store.seek(0), store.truncate()
    store.writelines(json.dumps(r) + "\n" for r in results)
    print(table(results))


# --- The command ------------------------------------------------------------------------------------------------------------


def chosen(root, names, commit):
    """{header of include/giwa: its lines, or None for all}"""
    base = root / "include/giwa"
    headers = {}
    for name in names or ([] if commit else ["."]):
        path = base / name.removeprefix("include/giwa/")
        for header in sorted(path.rglob("*.[hc]*")) if path.is_dir() else [path]:
            headers[header.relative_to(root).as_posix()] = None
    if commit:
        def git(*words):
            return subprocess.run(["git", "-C", root, *words], capture_output=True, text=True, check=True).stdout
        revision = git("rev-parse", f"{commit}^{{commit}}").strip()
        changed = git("diff-tree", "--no-commit-id", "--name-only", "-r", revision, "--", "include/giwa").split()
        wanted, headers = headers, {}
        for name in changed:
            if (root / name).exists() and (not wanted or name in wanted):
                blame = git("blame", "-s", "-l", "--root", name).split("\n")
                headers[name] = {number for number, line in enumerate(blame, 1) if line.startswith(revision)}
    return headers


def part(file):
    folders = file.split("/")[2:-1]
    return "/".join(folders[:2]) if folders else "public headers"


def table(results):
    """The summary by folder, as a table of Markdown."""
    count = collections.Counter((part(r["file"]), r["result"]) for r in results)
    rows = ["| folder | faults | killed | survived | score |", "|---|---|---|---|---|"]
    for name in [*sorted({folder for folder, _ in count}), "all"]:
        killed, survived = (sum(n for (folder, result), n in count.items() if result == what and name in (folder, "all"))
                            for what in ("killed", "survived"))
        if killed + survived:
            rows.append(f"| {name} | {killed + survived} | {killed} | {survived} | {100 * killed // (killed + survived)} % |")
    return "\n".join(rows)


def main(words=None):
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", help="folders and headers of include/giwa; all where there is no name")
    parser.add_argument("--commit", help="only lines that this commit wrote and that still stand")
    parser.add_argument("--kind", help="only this kind: operator, constant, off by one, arguments, refusal, wait")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--count", type=int, default=20, help="faults that compile")
    parser.add_argument("--jobs", type=int, default=1)
    parser.add_argument("--tests", type=int, default=0, help="at most this many tests for each fault, the nearest; 0: all")
    parser.add_argument("--minutes", type=float, default=1e6, help="begin no other build after this time")
    parser.add_argument("--gpu-tests", type=int, default=0, help="of a fault that no host test notices, run so many of test/gpu, the nearest")
    parser.add_argument("--again", action="store_true", help="run earlier survivors anew, for tests that changed")
    parser.add_argument("--tree", type=Path, default=Path(__file__).resolve().parent.parent)
    parser.add_argument("--work", type=Path, help="default: build/mutate of the tree")
    gpu = parser.add_argument_group("faults in kernels, by programs that run on the GPU of this machine")
    gpu.add_argument("--gpu", action="store_true")
    gpu.add_argument("--arch", default="90a", help="as in compute_90a")
    gpu.add_argument("--delays", action="store_true", help="threads of kernels sleep at random before they wait, in fuzz programs")
    gpu.add_argument("--first", type=int, default=0, help="leave out so many of the faults drawn")
    gpu.add_argument("--runs", type=int, default=6, help="programs that run at once")
    gpu.add_argument("--phase", choices=["all", "build", "run"], default="all")
    gpu.add_argument("--build-seconds", type=float, default=1e6)
    gpu.add_argument("--run-seconds", type=float, default=1e6)
    gpu.add_argument("--program-seconds", type=float, default=4, help="how long a fuzz program draws problems")
    options = parser.parse_args(words)
    root = options.tree.resolve()
    work = (options.work or root / "build/mutate").resolve()
    copy = work / "tree"
    work.mkdir(parents=True, exist_ok=True)
    alone = (work / "lock").open("w")
    try:
        fcntl.flock(alone, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        sys.exit(f"another run works in {work}: give this one a --work of its own")
    shutil.rmtree(copy, ignore_errors=True)
    for name in ("include", "test", "examples", "bench"):  # a few host tests are of examples
        if (root / name).exists():
            shutil.copytree(root / name, copy / name)
    if options.gpu:
        return gpu_main(options, root, work, copy)
    host_tests = tests(copy, work, options.jobs)
    tests_on_gpu = tests(copy, work, options.jobs, options.arch) if options.gpu_tests else None

    texts, all_faults = {}, []
    for file, lines in chosen(root, options.names, options.commit).items():
        if host_tests.of(file.removeprefix("include/giwa/")):
            texts[file] = (copy / file).read_text()
            all_faults += faults(texts[file], file, lines)
        else:
            print(f"left out: no host test includes {file}")
    all_faults = [f for f in all_faults if options.kind in (None, f.kind)]
    random.Random(options.seed).shuffle(all_faults)
    print(f"{len(all_faults)} faults in {len(texts)} headers", flush=True)

    store = work / "results.jsonl"
    known = {}
    for line in store.read_text().splitlines() if store.exists() else []:
        known[json.loads(line)["key"]] = json.loads(line)
    results, lock, deadline = [], threading.Lock(), time.monotonic() + 60 * options.minutes
    for r in known.values():
        if r["how"] == "fails":
            host_tests.noticed[r["file"].removeprefix("include/giwa/"), r["test"]] += 1
    queue = iter(all_faults)

    def work_on(worker):
        while True:
            with lock:
                if sum(r["result"] in ("killed", "survived") for r in results) >= options.count or time.monotonic() > deadline:
                    return
                f = next(queue, None)
            if f is None:
                return
            text = texts[f.file]
            line, old, new = difference(text, f)
            key = hashlib.sha256(f"{f.file}\n{text[:f.start]}\n{f.text}\n{text[f.start:f.end]}".encode()).hexdigest()[:16]
            r = known.get(key)
            ran = r["ran"] if r and r["result"] == "survived" and not options.again else []
            least = min(options.tests or 10**9, len(host_tests.of(f.file.removeprefix("include/giwa/"))))
            more = len(ran) < least or refuses_calls(text, f) and "compile_fail" not in ran
            more = more or tests_on_gpu is not None and "on_gpu" not in (r or {})
            if not r or r["result"] == "survived" and more or r["result"] == "no test":
                result, test, how, ran = host_tests.run(f, text, worker, ran, options.tests, deadline)
                r = {"key": key, "file": f.file, "line": line, "kind": f.kind, "old": old, "new": new, "result": result, "test": test,
                     "how": how, "ran": ran}
                if result == "survived" and tests_on_gpu is not None:
                    result, test, how, on_gpu = tests_on_gpu.run(f, text, worker, [], options.gpu_tests, deadline)
                    r.update({"on_gpu": on_gpu}, **({"result": "killed", "test": f"gpu/{test}", "how": how} if result == "killed" else {}))
                with lock, store.open("a") as out:
                    out.write(json.dumps(r) + "\n")
                if result != "not compiled":
                    print(f"{result:<9} {f.file}:{line} {f.kind}, by {test or f'none of {len(ran)}'} {how}", flush=True)
            with lock:
                results.append({**r, "line": line})

    with concurrent.futures.ThreadPoolExecutor(options.jobs) as pool:
        for future in [pool.submit(work_on, worker) for worker in range(options.jobs)]:
            future.result()

    print("\nNot noticed:" if any(r["result"] == "survived" for r in results) else "")
    for r in sorted((r for r in results if r["result"] == "survived"), key=lambda r: (r["file"], r["line"])):
        print(f"{r['file']}:{r['line']} ({r['kind']}, {len(r['ran'])} tests)\n  - {r['old']}\n  + {r['new']}")
    print()
    print(table(results))
    print(f"\nseed {options.seed}; {sum(r['result'] == 'not compiled' for r in results)} more did not compile and are not counted")


if __name__ == "__main__":
    main()
