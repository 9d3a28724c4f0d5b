#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""What ptxas says of giwa's kernels for other GPUs and toolkits: registers, local memory, spills, serialised wgmma (C75xx).

    python3 test/budget/spills.py --arch 75 86 120                                                # PATH's nvcc
    python3 test/budget/spills.py --arch 80 90a --nvcc nvcc build/compilers/nvcc-12.4/bin/nvcc    # two, and what differs
    python3 test/budget/spills.py --arch 90a --sources table_sm90 --table --nvcc build/compilers/nvcc-12.4/bin/nvcc    # from registers.txt
    python3 test/budget/spills.py --check --nvcc build/compilers/nvcc-12.4/bin/nvcc               # as CI does; --update writes the table

Compiles kernels_attention.cu, and kernels.cu and kernels_sm90.cu of the table registers.txt, or those that --sources names;
kernels_sm90.cu is for 90a alone. `python3 .ci/compilers.py --get nvcc-12.4 nvcc-newest` downloads two toolkits. Prints tables for
docs/notes/architectures.md. --keep FOLDER keeps what ptxas said, and reads it again where it is there. It needs no GPU.

--check: each kernel of registers.txt, for 80 and 90a, has no more registers, local memory and spilled bytes than there, and no serialised
wgmma, but for the lines that registers_others.txt has of this nvcc. Of an nvcc that is not in that file the lines of the newest there are
taken, and only serialised wgmma is an error.
"""
import argparse
import collections
import concurrent.futures
import os
import re
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent.parent
SOURCES = {"forward": ("kernels_attention.cu", "-DCALL=0"), "gradients": ("kernels_attention.cu", "-DCALL=1"),
           "caches": ("kernels_attention.cu", "-DCALL=2"), "table": ("kernels.cu",), "table_sm90": ("kernels_sm90.cu",)}
WITHOUT = re.compile(r"giwa::|v\d+_\d+::|archs_\w*::|detail::|^void ")


def short(name):
    return name.removeprefix("entry<").removesuffix(">").strip().replace("__half", "fp16")


class Kernel:
    def __init__(self):
        self.registers = self.local = self.spilled = 0
        self.notes = collections.Counter()

    def says(self):
        return (self.spilled, sorted(self.notes.items()))


def compiled(nvcc, arch, source, folder):
    """The log of ptxas."""
    version = re.search(r"V([\d.]+)", subprocess.run([nvcc, "--version"], capture_output=True, text=True).stdout)[1]
    log = Path(folder) / f"{version}_{arch}_{source}.log"
    if not log.exists():
        name, *defines = SOURCES[source]
        done = subprocess.run([nvcc, "-std=c++20", "-O3", "-w", "-cubin", "-Xptxas=-v", f"-I{ROOT}/include", f"-I{ROOT}/examples", *defines,
                               f"-gencode=arch=compute_{arch},code=sm_{arch}", ROOT / "test/budget" / name, "-o", f"{log}.cubin"],
                              capture_output=True, text=True)
        Path(f"{log}.cubin").unlink(missing_ok=True)
        if done.returncode != 0:
            sys.exit(f"{nvcc}, {arch}, {source}:\n{(done.stdout + done.stderr)[-3000:]}")
        log.write_text(done.stdout + done.stderr)
    return version, arch, source, log.read_text()


def kernels_of(log):
    """{name: Kernel} of a log; without the parameters."""
    log = subprocess.run(["c++filt"], input=log, capture_output=True, text=True).stdout
    found, current = collections.defaultdict(Kernel), None

    def plain(name):
        depth = 0
        for i in range(len(name) - 1, -1, -1):
            depth += (name[i] == ")") - (name[i] == "(")
            if depth == 0:
                break
        return WITHOUT.sub("", name[:i] if name.endswith(")") else name).strip()

    for line in log.splitlines():
        if m := re.search(r"Compiling entry function '(.*)' for '", line):
            current = found[plain(m[1])]
        elif m := re.search(r"\(C(75\d\d)\).* in (?:the )?function '(.*)'", line):
            found[plain(m[2])].notes[f"C{m[1]}"] += 1
        elif current is not None and (m := re.search(r"(\d+) bytes stack frame, (\d+) bytes spill stores", line)):
            current.local, current.spilled = int(m[1]), int(m[2])
        elif current is not None and (m := re.search(r"Used (\d+) registers", line)):
            current.registers = int(m[1])
    return found


def kernels_of_table(arch):
    """The same of registers.txt."""
    found = collections.defaultdict(Kernel)
    for line in (ROOT / "test/budget/registers.txt").read_text().splitlines():
        kind, number, name = line.split(None, 2)
        if kind == f"sm_{arch}":
            found[name].registers = int(number)
        elif kind in ("local", "spill") and name.startswith(f"sm_{arch} "):
            setattr(found[name.split(None, 1)[1]], "local" if kind == "local" else "spilled", int(number))
    return found


OTHERS = ROOT / "test/budget/registers_others.txt"
TOLERANCE = 4  # registers or bytes, as in registers.sh


def exceeds(kernel, limit):
    return any(getattr(kernel, x) > getattr(limit, x) + TOLERANCE for x in ("registers", "local", "spilled"))


def line_of(version, arch, name, kernel):
    return (f"{version} sm_{arch} {kernel.registers} registers, {kernel.local} local, {kernel.spilled} spilled, "
            f"{' '.join(sorted(kernel.notes)) or '-'}: {name}")


def others():
    """{version: {(arch, name): Kernel}} of registers_others.txt."""
    found = collections.defaultdict(dict)
    for line in OTHERS.read_text().splitlines() if OTHERS.exists() else ():
        version, arch, registers, local, spilled, notes, name = re.fullmatch(
            r"(\S+) sm_(\w+) (\d+) registers, (\d+) local, (\d+) spilled, (.*?): (.*)", line).groups()
        kernel = found[version][arch, name] = Kernel()
        kernel.registers, kernel.local, kernel.spilled = int(registers), int(local), int(spilled)
        kernel.notes.update(notes.split() if notes != "-" else ())
    return found


def checked(found, update):
    """Compares {(version, arch, source): {name: Kernel}} with the tables; 1 where a kernel is worse."""
    known, bad, count = others(), False, 0
    for version in dict.fromkeys(v for v, _, _ in found):
        is_known = version in known
        newest = max(known, key=lambda v: [int(x) for x in v.split(".")], default=None)
        exceptions, worse, count = known.get(version if is_known else newest, {}), {}, 0
        for arch in dict.fromkeys(a for v, a, _ in found if v == version):
            kernels = {name: k for (v, a, _), of in found.items() if (v, a) == (version, arch) for name, k in of.items()}
            table = kernels_of_table(arch)
            for name in sorted(kernels.keys() - table.keys()):
                print(f"not in registers.txt: sm_{arch} {name}")
                bad = True
            for name in sorted(kernels.keys() & table.keys()):
                kernel, count = kernels[name], count + 1
                if exceeds(kernel, table[name]) or kernel.notes:
                    worse[arch, name] = kernel
                limit = exceptions.get((arch, name), table[name])
                new_notes = kernel.notes.keys() - limit.notes.keys()
                if update or not (exceeds(kernel, limit) or new_notes):
                    continue
                print(("more than in the tables: " if is_known or new_notes else "another nvcc, no error: ") + line_of(version, arch, name, kernel))
                bad |= is_known or bool(new_notes)
        print(f"{count} kernels of nvcc {version}, {len(worse)} of them above registers.txt or with serialised wgmma" +
              ("" if is_known or update else f"; {OTHERS.name} has {', '.join(known) or 'no toolkit'}"))
        if update:
            known[version] = worse
    if update:
        OTHERS.write_text("".join(line_of(v, arch, name, k) + "\n" for v, of in sorted(known.items()) for (arch, name), k in sorted(of.items())))
        print(f"wrote {OTHERS}")
    return int(bad or count == 0)


def text_of(kernel):
    parts = [f"{kernel.spilled} bytes"] if kernel.spilled else []
    return ", ".join(parts + sorted(kernel.notes)) or "none"


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--arch", nargs="+", default=["75", "80", "86", "89", "120"])
    parser.add_argument("--nvcc", nargs="+", default=["nvcc"])
    parser.add_argument("--sources", nargs="+", choices=SOURCES, default=list(SOURCES))
    parser.add_argument("--table", action="store_true", help="compare with registers.txt, which is of nvcc 13.0")
    parser.add_argument("--check", action="store_true", help="compare with registers.txt and registers_others.txt")
    parser.add_argument("--update", action="store_true", help="write the lines of these nvcc into registers_others.txt")
    parser.add_argument("--jobs", type=int, default=min(os.cpu_count() or 1, 8))
    parser.add_argument("--keep", type=Path)
    options = parser.parse_args()
    if options.check or options.update:
        options.arch, options.sources = ["80", "90a"], ["table", "table_sm90"]
    with tempfile.TemporaryDirectory() as folder:
        if options.keep:
            options.keep.mkdir(parents=True, exist_ok=True)
        wanted = [(nvcc, arch, source) for source in options.sources for arch in options.arch for nvcc in options.nvcc
                  if source != "table_sm90" or arch == "90a"]
        with concurrent.futures.ThreadPoolExecutor(options.jobs) as pool:
            logs = list(pool.map(lambda w: compiled(*w, options.keep or folder), wanted))
    found = {(version, arch, source): kernels_of(log) for version, arch, source, log in logs}
    if options.check or options.update:
        return checked(found, options.update)
    if options.table:  # of its kernels alone those that were compiled
        names = {(arch, name) for (_, arch, _), kernels in found.items() for name in kernels}
        found = {("registers.txt", arch, "table"): {name: k for name, k in kernels_of_table(arch).items() if (arch, name) in names}
                 for arch in options.arch if arch in ("80", "90a")} | found
    print("| nvcc | GPU | kernels of | number | most registers | spill | most bytes | serialised wgmma |\n|---|---|---|---|---|---|---|---|")
    for (version, arch, source), kernels in found.items():
        every = list(kernels.values())
        notes = collections.Counter(note for k in every for note in k.notes)
        print(f"| {version} | {arch} | {source} | {len(every)} | {max((k.registers for k in every), default=0)} | {sum(k.spilled > 0 for k in every)} | "
              f"{max((k.spilled for k in every), default=0)} | {', '.join(f'{n} {note}' for note, n in sorted(notes.items())) or 'none'} |")
    versions = list(dict.fromkeys(version for version, _, _ in found))
    print("\n| kernel | GPU | " + " | ".join(versions) + " |\n|---|---|" + "---|" * len(versions))
    for arch in options.arch:
        names = dict.fromkeys(name for (_, a, _), kernels in found.items() if a == arch for name in kernels)
        for name in names:
            of = [next((k[name] for (v, a, _), k in found.items() if v == version and a == arch and name in k), Kernel())
                  for version in versions]
            differ = any(k.says() != of[0].says() for k in of) if len(of) > 1 else of[0].spilled > 0 or of[0].notes
            if differ:
                print(f"| `{short(name)}` | {arch} | " + " | ".join(text_of(k) for k in of) + " |")
    return 0


if __name__ == "__main__":
    sys.exit(main())
