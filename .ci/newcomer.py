#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""Does what README.md says, as a stranger would: newcomer.py [--skip-tests] [--before-tests COMMAND]

What git tracks is copied into an empty folder, and each command of "Two commands", "Getting it", "Examples" and "Testing it" is run
there with an empty HOME and no variables but PATH, LANG and those of a proxy. Commands, CMakeLists.txt and main.cu are the blocks
of README.md; only the names of files that its sentences give stand here. The first line that fails ends it.
"""
import argparse
import os
import re
import resource
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
EXAMPLE = "11_attention.cu"  # what is compiled by hand
MAIN_LINES = 15  # of main.cu, less empty lines and #includes
ROUTE_SECONDS = 300

results = []  # (what, seconds, CPU seconds)


def fail(line, why):
    sys.exit(f"newcomer: README.md:{line}: {why}" if line else f"newcomer: README.md: {why}")


class Block:
    def __init__(self, language, line, text):
        self.language, self.line, self.text = language, line, text

    def commands(self):
        return [(self.line + i, line) for i, line in enumerate(self.text.splitlines()) if line.strip()]


class Section:
    """A heading's text, or the part of it between two marks."""

    def __init__(self, readme, first, last):
        self.readme, self.first, self.text = readme, readme.count("\n", 0, first) + 1, readme[first:last]
        self.start = first

    @classmethod
    def named(cls, readme, heading):
        match = re.search(rf"^## {re.escape(heading)}\n(.*?)(?=^## |\Z)", readme, re.M | re.S)
        return cls(readme, match.start(1), match.end(1)) if match else fail(0, f"there is no heading `{heading}`")

    def parts(self, marks):
        """What comes before the first mark, and from each to the next."""
        at = [0] + [self.text.find(mark) for mark in marks] + [len(self.text)]
        if at != sorted(at):
            fail(self.first, f"the marks {marks} are not here, in this order")
        return [Section(self.readme, self.start + a, self.start + b) for a, b in zip(at, at[1:])]

    def blocks(self, *languages):
        """The fenced blocks, which must be these."""
        found = [Block(m[1], self.first + self.text.count("\n", 0, m.start(2)), m[2])
                 for m in re.finditer(r"^```(\w*)\n(.*?)^```$", self.text, re.M | re.S)]
        if [b.language for b in found] != list(languages):
            fail(self.first, f"expected blocks {list(languages)} in this part, found {[b.language for b in found]}")
        return found

    def find(self, pattern, what):
        match = re.search(pattern, self.text)
        return match[1] if match else fail(self.first, f"this part does not say {what}")


class Stranger:
    """An empty folder, an empty HOME, and a shell."""

    def __init__(self, folder):
        self.folder, self.home = folder, folder / "home"
        self.home.mkdir()
        kept = {name: value for name, value in os.environ.items() if name == "PATH" or name.lower().endswith("_proxy")}
        self.environment = {**kept, "HOME": str(self.home), "LANG": "C.UTF-8"}

    def run(self, command, cwd, line=0, stream=False):
        print(f"   $ {command}", flush=True)
        run = subprocess.run(["bash", "-euo", "pipefail", "-c", command], cwd=cwd, env=self.environment, text=True,
                             stdin=subprocess.DEVNULL, stdout=None if stream else subprocess.PIPE,
                             stderr=None if stream else subprocess.STDOUT)
        if run.returncode != 0:
            print(run.stdout or "")
            fail(line, f"exit status {run.returncode}: {command}")
        return run.stdout

    def run_block(self, block, cwd):
        return "".join(self.run(command, cwd, line) for line, command in block.commands())


def cpu_seconds():
    usage = resource.getrusage(resource.RUSAGE_CHILDREN)
    return usage.ru_utime + usage.ru_stime


class Route:
    """Prints what begins, and takes its time."""

    def __init__(self, name, limit=ROUTE_SECONDS):
        self.name, self.limit = name, limit

    def __enter__(self):
        print(f"\n-- {self.name}", flush=True)
        self.begin, self.cpu = time.monotonic(), cpu_seconds()

    def __exit__(self, kind, *_):
        seconds = time.monotonic() - self.begin
        results.append((self.name, seconds, cpu_seconds() - self.cpu))
        if kind is None and seconds > self.limit:
            fail(0, f"{self.name}: {seconds:.0f} s, more than {self.limit}")


def copy_tracked(to):
    """What git tracks, or where there is no repository what it would: as a repository of one commit."""
    if (ROOT / ".git").exists():
        names = subprocess.run(["git", "-c", f"safe.directory={ROOT}", "ls-files", "-z"], cwd=ROOT, check=True,
                               capture_output=True, text=True).stdout.split("\0")
        for name in filter(None, names):
            (to / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(ROOT / name, to / name)
    else:
        shutil.copytree(ROOT, to, ignore=shutil.ignore_patterns("build", "__pycache__"), dirs_exist_ok=True)
    commit = ["-c", "user.name=giwa", "-c", "user.email=giwa@localhost", "commit", "-q", "-m", "A copy"]
    for arguments in (["init", "-q"], ["add", "-A", "-f"], commit):
        subprocess.run(["git", *arguments], cwd=to, check=True)


def is_right(output, line):
    if not re.search(r"^right on the (GPU|CPU)$", output, re.M):
        fail(line, f"main.cu did not say that its result is right:\n{output}")
    print("   " + output.splitlines()[-1])


def matches_documentation(example, output):
    """Whether the lines of the example's first comment come in this order; `…`, numbers and the GPU's name may differ."""
    head = example.read_text().split("#include")[0]
    match = re.search(r"^// Expected output.*?:\n((?://   .*\n)+)", head, re.M)
    if not match:
        sys.exit(f"newcomer: {example.name} documents no expected output")
    at = 0
    for line in match[1].splitlines():
        pieces = re.split(r"(…|NVIDIA H200|\d+(?:\.\d+)?)", line[5:].strip())
        pattern = "".join(r".+" if p in ("…", "NVIDIA H200") else r"[\d.e+-]+" if i % 2 else
                          re.sub(r"(\\ )+", " +", re.escape(p)) for i, p in enumerate(pieces))
        found = re.search(rf"^ *{pattern} *$", output[at:], re.M)
        if not found:
            sys.exit(f"newcomer: {example.name} does not print the line that its comment shows:\n{line}\nbut\n{output}")
        at += found.end()


def getting_it(section, stranger, copy):
    program, headers, part_of_build, installed = section.parts(["**1.", "**2.", "**3."])
    [main] = program.blocks("cpp")
    lines = [line for line in main.text.splitlines() if line.strip() and not line.startswith(("#include", "//"))]
    if len(lines) > MAIN_LINES:
        fail(main.line, f"main.cu has {len(lines)} lines, more than {MAIN_LINES}")

    def project(name, cmake=None):
        folder = stranger.folder / name
        folder.mkdir()
        (folder / "main.cu").write_text(main.text)
        if cmake:
            (folder / "CMakeLists.txt").write_text(cmake)
        return folder

    with Route("1. headers copied"):
        [compile_line] = headers.blocks("sh")
        app = project("copied")
        third_party = headers.find(r"into `([\w/]+)`", "into which folder include/giwa goes")
        shutil.copytree(copy / "include/giwa", app / third_party / "giwa")
        is_right(stranger.run_block(compile_line, app), compile_line.line)

    cmake, build = part_of_build.blocks("cmake", "sh")
    fetch = r"include\(FetchContent\)\nFetchContent_Declare\(.*\)\nFetchContent_MakeAvailable\(giwa\).*\n"
    folder_line = part_of_build.find(r"or, from a folder: (add_subdirectory\(.*\))\n", "add_subdirectory(…) for a folder")
    commit = subprocess.run(["git", "rev-parse", "HEAD"], cwd=copy, check=True, capture_output=True, text=True).stdout.strip()
    with Route("2. FetchContent"):
        text = cmake.text
        for placeholder, value in (("<address of this repository>", f"file://{copy}"), ("<a commit>", commit)):
            if text.count(placeholder) != 1:
                fail(cmake.line, f"the placeholder {placeholder} is not here once")
            text = text.replace(placeholder, value)
        is_right(stranger.run_block(build, project("fetched", text)), build.line)

    with Route("2. add_subdirectory"):
        text, replaced = re.subn(fetch, folder_line + "\n", cmake.text)
        if replaced != 1:
            fail(cmake.line, "the three lines of FetchContent are not here")
        app = project("subdirectory", text)
        target = app / re.search(r"\((.*)\)", folder_line)[1]
        target.parent.mkdir(parents=True)
        stranger.run(f"git clone -q '{copy}' '{target}'", app, cmake.line)
        is_right(stranger.run_block(build, app), build.line)

    with Route("3. installed"):
        install, cmake, build = installed.blocks("sh", "cmake", "sh")
        stranger.run_block(install, copy.parent)
        if not (stranger.home / ".local").is_dir():
            fail(install.line, "nothing was installed into ~/.local")
        is_right(stranger.run_block(build, project("found", cmake.text)), build.line)
        shutil.rmtree(copy / "build")


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n", maxsplit=1)[0])
    parser.add_argument("--skip-tests", action="store_true", help="leave out the test command, which takes 20 minutes")
    parser.add_argument("--before-tests", metavar="COMMAND", help="run this in the copy before the test command")
    arguments = parser.parse_args()

    folder = Path(tempfile.mkdtemp(prefix="newcomer-"))
    copy = folder / "giwa"
    copy.mkdir()
    copy_tracked(copy)
    stranger = Stranger(folder)
    readme = (copy / "README.md").read_text()
    print(f"newcomer: {folder}")

    getting_it(Section.named(readme, "Getting it"), stranger, copy)

    with Route(f"example {EXAMPLE} by hand"):
        Section.named(readme, "Examples").find(rf"\(examples/({re.escape(EXAMPLE)})\)", f"examples/{EXAMPLE}")
        example = copy / "examples" / EXAMPLE
        line = re.search(r"^//\s+(nvcc .*)$", example.read_text(), re.M)[1]
        stranger.run(line, copy)
        matches_documentation(example, stranger.run(f"./{example.stem}", copy))
        (copy / example.stem).unlink()

    section = Section.named(readme, "Two commands")
    [commands] = section.blocks("sh")
    if len(commands.commands()) != 2:
        fail(commands.line, "there are two commands here, the demo and the tests")
    (demo_line, demo), (test_line, test) = commands.commands()
    with Route("the demo"):
        matches_documentation(copy / "examples/10_attention_npy.cu", stranger.run(demo, copy, demo_line))

    everything = Section.named(readme, "Testing it").find(r"\| everything, .*\| `(.*)` \|", "the command that tests everything")
    if everything != test.split("#")[0].strip():
        fail(test_line, f"this is not the command of `Testing it`: {everything}")
    if not os.access(copy / ".ci/run", os.X_OK):
        fail(0, ".ci/run is not there or not executable")
    if not arguments.skip_tests:
        with Route("the tests", limit=float("inf")):
            if arguments.before_tests:
                stranger.run(arguments.before_tests, copy, stream=True)
            stranger.run(test, copy, test_line, stream=True)

    print("\nnewcomer: README.md does what it says")
    for what, seconds, cpu in results:
        print(f"  {seconds:7.0f} s, {cpu:7.0f} CPU s  {what}")
    shutil.rmtree(folder)


if __name__ == "__main__":
    main()
