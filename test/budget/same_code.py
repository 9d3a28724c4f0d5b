#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""Compares the machine code of giwa's kernels in two trees: same_code.py [--source FILE.cu]... [--arch 80]... OLD NEW

OLD and NEW are folders with headers (include/), checkouts, or git revisions. Each source is compiled with either, for 80 and 90a
unless --arch says otherwise, and the .text sections of the cubins are compared, whatever the kernels are called: a change of form
leaves them as they are. Without --source the sources are test/budget/same_code.cu, in parts, kernels.cu and kernels_sm90.cu there, of NEW.
A source that OLD cannot compile, because names changed, is given for either tree with --old-source. Exit status: 0 the same,
1 different, 2 not compiled. Constants and relocations count only as far as instructions hold them.
"""
import argparse
import hashlib
import os
import re
import struct
import subprocess
import sys
import tempfile
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent.parent
NVCC = os.environ.get("CUDACXX", "nvcc")
PARTS = 3  # of same_code.cu, each under a minute


def kernels(cubin):
    """[(digest of the code, bytes, mangled name)] of the .text sections of an ELF file of 64 bits."""
    data = Path(cubin).read_bytes()
    if data[:5] != b"\x7fELF\x02":
        sys.exit(f"same_code: {cubin} is no ELF file of 64 bits")
    offset, = struct.unpack_from("<Q", data, 0x28)
    size, count, names_at = struct.unpack_from("<HHH", data, 0x3A)
    # name, type, flags, address, offset, size, ...
    sections = [struct.unpack_from("<IIQQQQ", data, offset + i * size) for i in range(count)]
    names = data[sections[names_at][4]:sections[names_at][4] + sections[names_at][5]]
    found = []
    for section in sections:
        name = names[section[0]:names.index(b"\0", section[0])].decode()
        if name.startswith(".text."):
            code = data[section[4]:section[4] + section[5]]
            found.append((hashlib.sha256(code).hexdigest(), len(code), name[len(".text."):]))
    return found


def readable(name):
    text = subprocess.run(["c++filt", name], capture_output=True, text=True).stdout.strip()
    return re.sub(r"giwa::v[0-9_]+::|archs_[0-9]+::|detail::|\bvoid ", "", text)[:150]


def tree(name, folder):
    """The folder that has include/ and examples/ of a tree: its own, or a copy of a git revision."""
    path = Path(name)
    if (path / "giwa").is_dir():
        return path.resolve().parent
    if (path / "include/giwa").is_dir():
        return path.resolve()
    archive = subprocess.run(["git", "-C", ROOT, "archive", name, "include", "examples", "test/budget"], capture_output=True)
    if archive.returncode != 0:
        sys.exit(f"same_code: {name} is neither a folder with headers nor a revision: {archive.stderr.decode().strip()}")
    folder.mkdir()
    subprocess.run(["tar", "x", "-C", folder], input=archive.stdout, check=True)
    return folder


def compile_one(job):
    root, source, flags, architecture, out = job
    command = [NVCC, "-std=c++20", "-O3", "-gencode", f"arch=compute_{architecture},code=sm_{architecture}", "-cubin",
               "-I", root / "include", "-I", root / "examples", *flags, source, "-o", out]
    return subprocess.run(command, capture_output=True, text=True)


def compare(old, new, what):
    """Prints the kernels that only one side has; whether there are none."""
    count_old, count_new = Counter(k[0] for k in old), Counter(k[0] for k in new)
    same = count_old == count_new
    print(f"{'same     ' if same else 'DIFFERENT'} {what}: {len(old)} and {len(new)} kernels, "
          f"{sum(k[1] for k in old)} and {sum(k[1] for k in new)} bytes")
    for side, mine, rest in (("old", old, count_old - count_new), ("new", new, count_new - count_old)):
        for digest, size, name in mine:
            if rest[digest] > 0:
                rest[digest] -= 1
                print(f"    only {side}: {size // 16:6} instructions  {readable(name)}")
    return same


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n", maxsplit=1)[0])
    parser.add_argument("old")
    parser.add_argument("new")
    parser.add_argument("--source", action="append", type=Path, help="what instantiates kernels")
    parser.add_argument("--old-source", action="append", type=Path, help="the same for OLD, in the same order")
    parser.add_argument("--arch", action="append", help="80, 90a, ...")
    parser.add_argument("--jobs", type=int, default=os.cpu_count())
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="same_code_") as name:
        folder = Path(name)
        roots = tree(arguments.old, folder / "old"), tree(arguments.new, folder / "new")
        here = Path(__file__).resolve().parent
        sources = [(s, []) for s in arguments.source or []] or \
            [(here / "same_code.cu", [f"-DPART={p}"]) for p in range(PARTS)] + [(here / "kernels.cu", []), (here / "kernels_sm90.cu", [])]
        of_old = [(s, flags) for s, (_, flags) in zip(arguments.old_source, sources)] if arguments.old_source else sources
        if len(of_old) != len(sources):
            parser.error("--old-source is given once for each --source")
        jobs, names = [], []
        for i, pair in enumerate(zip(of_old, sources)):
            for architecture in arguments.arch or ["80", "90a"]:
                names.append(f"sm_{architecture} {pair[1][0].name} {' '.join(pair[1][1])}".rstrip())
                for side, (root, (source, flags)) in enumerate(zip(roots, pair)):
                    jobs.append((root, source, flags, architecture, folder / f"{i}_{architecture}_{side}.cubin"))
        with ThreadPoolExecutor(arguments.jobs) as pool:
            runs = list(pool.map(compile_one, jobs))
        status = 0
        for k, what in enumerate(names):
            failed = [(side, run) for side, run in zip(("OLD", "NEW"), runs[2 * k:2 * k + 2]) if run.returncode != 0]
            for side, run in failed:
                print(f"FAILED    {what}: {side} does not compile\n{run.stderr[:2000]}")
            if failed:
                status = 2
            elif not compare(kernels(jobs[2 * k][4]), kernels(jobs[2 * k + 1][4]), what):
                status = max(status, 1)
    return status


if __name__ == "__main__":
    sys.exit(main())
