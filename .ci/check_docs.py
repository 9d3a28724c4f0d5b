#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""Compiles the ```cpp blocks of Markdown files: check_docs.py <file or folder>...

A block is a file of its own, unless an HTML comment on the line before says otherwise:
  <!-- fragment -->                 statements: they become the body of a function, their #includes go before it
  <!-- fragment: int n, float* x -->   the same, with these parameters
  <!-- continued -->                comes after the blocks before it on the page, in one file with them
  <!-- does not compile: text -->   must be rejected by the compiler, with this text in its message
"""
import os
import re
import subprocess
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
NVCC = os.environ.get("CUDACXX", "nvcc")
COMMAND = [NVCC, "-std=c++20", "-arch=sm_80", "--extended-lambda", "-Wno-deprecated-gpu-targets", "-c", "-I", ROOT / "include"]
BLOCK = re.compile(r"(?:^<!-- *(?P<mark>[^\n]*?) *-->\n\s*?)?^```(?:cpp|cuda)\n(?P<code>.*?)^```$", re.M | re.S)


def as_function(code, parameters):
    lines = code.split("\n")
    includes = [line for line in lines if line.startswith("#include")]
    body = [line for line in lines if not line.startswith("#include")]
    return "\n".join(includes + [f"void fragment({parameters}) {{"] + body + ["}\n"])


def programs(path):
    """Yields (line, source, error) for each block of a page: what the compiler must say, or None where it must compile."""
    text = path.read_text()
    before = ""
    for match in BLOCK.finditer(text):
        line = text.count("\n", 0, match.start("code")) + 1
        mark, code, error = match.group("mark") or "", match.group("code"), None
        if mark.startswith("fragment"):
            code = "#include <giwa/giwa.cuh>\n" + as_function(code, mark.partition(":")[2])
        elif mark == "continued":
            code = before + code
        elif mark.startswith("does not compile: "):
            error = mark.partition(": ")[2]
        elif mark != "":
            sys.exit(f"{path}:{line}: unknown mark: {mark}")
        before = code
        yield line, code, error


def check(job):
    path, line, code, error, folder = job
    source = Path(folder) / f"{path.stem}_{line}.cu"
    source.write_text(f'#line {line} "{path}"\n{code}')
    run = subprocess.run([*COMMAND, source, "-o", source.with_suffix(".o")], capture_output=True, text=True)
    message = run.stdout + run.stderr
    if error is None:
        flaw = f"does not compile\n{message}" if run.returncode != 0 else ""
    elif run.returncode == 0:
        flaw = "compiles, and should not\n"
    else:
        flaw = "" if error in message else f"does not compile, but not with: {error}\n{message}"
    return f"{path}:{line}: {flaw}" if flaw else ""


def main():
    paths = []
    for name in sys.argv[1:]:
        path = ROOT / name
        paths += sorted(path.rglob("*.md")) if path.is_dir() else [path]
    with tempfile.TemporaryDirectory() as folder, ThreadPoolExecutor(os.cpu_count()) as pool:
        jobs = [(path.relative_to(ROOT), *program, folder) for path in paths for program in programs(path)]
        failures = [text for text in pool.map(check, jobs) if text]
    print("".join(failures) + f"docs: {len(jobs)} code blocks on {len(paths)} pages, {len(failures)} errors")
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())
