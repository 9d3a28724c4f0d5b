#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""Does what README.md and docs/install.md say, as a stranger would: newcomer.py [--routes | --skip-tests] [--before-tests COMMAND]

What git tracks is committed in an empty folder and cloned from there, by README.md's line if it has one: git takes the copy for its
address. Each command of README.md ("Two commands", "Install") and of docs/install.md is run there as it stands, with an empty HOME
and no variables but PATH, LANG and those of a proxy; without a GPU nvcc gets the -arch that README.md names for that. So are the first line of docs/contributing.md's table of tests, and the compile
line of one example. Commands, CMakeLists.txt and main.cu are the blocks of these pages, with nothing else substituted; folders and names
of files come from their sentences. The first line that fails ends it.
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
MAIN_LINES = 24  # of main.cu, less empty lines, comments and #includes
ROUTE_SECONDS = 300

results = []  # (what, seconds, CPU seconds)


def fail(place, why):
    sys.exit(f"newcomer: {place}: {why}")


class Block:
    """Code between fences; `place` is its page, `line` that of its first line."""

    def __init__(self, language, page, line, text):
        self.language, self.page, self.line, self.text = language, page, line, text
        self.place = f"{page}:{line}"
        if language != "cpp" and re.search(r"<[a-z][^<>]*>", text):
            fail(self.place, "<something> is left to fill in, and blocks are pasted as they stand")

    def commands(self):
        return [(f"{self.page}:{self.line + i}", line) for i, line in enumerate(self.text.splitlines()) if line.strip()]


class Section:
    """A page's text from one heading to the next."""

    def __init__(self, root, page, heading):
        text = (root / page).read_text()
        match = re.search(rf"^## {re.escape(heading)}\n(.*?)(?=^## |\Z)", text, re.M | re.S)
        if not match:
            fail(page, f"there is no heading `{heading}`")
        self.page, self.line, self.text = page, text.count("\n", 0, match.start(1)) + 1, match[1]

    def blocks(self, *languages, optional=None):
        """The fenced blocks, which must be these, after an optional one."""
        found = [Block(m[1], self.page, self.line + self.text.count("\n", 0, m.start(2)), m[2])
                 for m in re.finditer(r"^```(\w*)\n(.*?)^```$", self.text, re.M | re.S)]
        if [b.language for b in found] not in ([*languages], [optional, *languages]):
            fail(f"{self.page}:{self.line}", f"expected blocks {list(languages)} in this part, found {[b.language for b in found]}")
        return found

    def find(self, pattern, what):
        match = re.search(pattern, self.text)
        return match[1] if match else fail(f"{self.page}:{self.line}", f"this part does not say {what}")


class Stranger:
    """An empty folder, an empty HOME, and a shell."""

    def __init__(self, folder):
        self.folder, self.home = folder, folder / "home"
        self.home.mkdir()
        kept = {name: value for name, value in os.environ.items() if name == "PATH" or name.lower().endswith("_proxy")}
        self.environment = {**kept, "HOME": str(self.home), "LANG": "C.UTF-8"}
        self.architecture = None  # in place of -arch=native

    def run(self, command, cwd, place="newcomer.py", stream=False):
        if self.architecture:
            command = command.replace("-arch=native", self.architecture)
        print(f"   $ {command}", flush=True)
        run = subprocess.run(["bash", "-euo", "pipefail", "-c", command], cwd=cwd, env=self.environment, text=True,
                             stdin=subprocess.DEVNULL, stdout=None if stream else subprocess.PIPE,
                             stderr=None if stream else subprocess.STDOUT)
        if run.returncode != 0:
            print(run.stdout or "")
            fail(place, f"exit status {run.returncode}: {command}")
        return run.stdout

    def run_block(self, block, cwd):
        return "".join(self.run(command, cwd, place) for place, command in block.commands())


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
            fail(self.name, f"{seconds:.0f} s, more than {self.limit}")


def copy_tracked(to):
    """What git tracks, or where there is no repository what it would: as a repository of one commit."""
    to.mkdir()
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


def clone(stranger, origin, to):
    """The repository where the page says that it goes; its line is there as soon as CMakeLists.txt has the address."""
    text = Section(origin, "README.md", "Two commands").text
    line = re.search(r"^git clone (\S+) (\w+)$", text, re.M)
    if line and line[2] != to.name:
        fail("README.md", f"the clone is `{line[2]}`, and `{to.name}` in newcomer.py")
    if line:
        (stranger.home / ".gitconfig").write_text(f'[url "{origin}"]\n\tinsteadOf = {line[1]}\n')
    stranger.run(line[0] if line else f"git clone {origin} {to.name}", to.parent, "README.md")


def is_right(output, block):
    if not re.search(r"^right on the (GPU|CPU)$", output, re.M):
        fail(block.place, f"main.cu did not say that its result is right:\n{output}")
    print("   " + output.splitlines()[-1])


def matches_documentation(example, output):
    """Whether the lines of the example's first comment come in this order; `…`, numbers, the GPU's name and pictures' may differ."""
    head = example.read_text().split("#include")[0]
    match = re.search(r"^// Expected output.*?:\n((?://   .*\n)+)", head, re.M)
    if not match:
        sys.exit(f"newcomer: {example.name} documents no expected output")
    at = 0
    for line in match[1].splitlines():
        pieces = re.split(r"(…|NVIDIA H200|\S+\.png|\d+(?:\.\d+)?)", line[5:].strip())
        pattern = "".join(r".+" if p in ("…", "NVIDIA H200") or p.endswith(".png") else r"[\d.e+-]+" if i % 2 else
                          re.sub(r"(\\ )+", " +", re.escape(p)) for i, p in enumerate(pieces))
        found = re.search(rf"^ *{pattern} *$", output[at:], re.M)
        if not found:
            sys.exit(f"newcomer: {example.name} does not print the line that its comment shows:\n{line}\nbut\n{output}")
        at += found.end()


def install(stranger, copy):
    """Each way of README.md and docs/install.md to main.cu's result, in a folder next to the checkout."""
    readme = Section(copy, "README.md", "Install")
    [main] = Section(copy, "README.md", "Attention").blocks("cpp")
    by_hand, cmake, build = readme.blocks("sh", "cmake", "sh")
    folder, checkout = (readme.find(pattern, what) for pattern, what in (
        (r"folder `(\w+)` next to", "where main.cu goes"), (r"next to this checkout, `(\w+)`", "what the checkout is called")))
    names = [readme.find(rf"save (?:this|the program above) as `({re.escape(name)})`", f"to save {name}")
             for name in ("main.cu", "CMakeLists.txt")]
    without = {page: Section(copy, page, part).find(r"Without a GPU use `(-arch=sm_\d+)`", "what to pass instead of -arch=native without a GPU")
               for page, part in (("README.md", "Install"), ("docs/install.md", "Copy the headers"))}
    if len(set(without.values())) > 1:
        fail("docs/install.md", f"another architecture than in README.md: {without}")
    if not list(Path("/dev").glob("nvidia[0-9]*")):
        stranger.architecture = without["README.md"]
    if checkout != copy.name:
        fail(main.place, f"the checkout is `{checkout}` here, and `{copy.name}` in newcomer.py")
    lines = [line for line in main.text.splitlines() if line.strip() and not line.startswith(("#include", "//"))]
    if len(lines) > MAIN_LINES:
        fail(main.place, f"main.cu has {len(lines)} lines, more than {MAIN_LINES}")

    def follow(name, cmake, *blocks):
        """What the stranger does in an empty folder; the last command says whether the result is right."""
        with Route(name):
            app = copy.parent / folder
            app.mkdir()
            for file, block in zip(names, (main, cmake)):
                if block:
                    (app / file).write_text(block.text)
            for block in blocks:
                output = stranger.run_block(block, app)
            is_right(output, blocks[-1])
            shutil.rmtree(app)

    follow("README: by hand", None, by_hand)
    follow("README: add_subdirectory", cmake, build)
    page = "docs/install.md"
    follow("headers copied", None, *Section(copy, page, "Copy the headers").blocks("sh"))
    follow("FetchContent", *Section(copy, page, "FetchContent").blocks("cmake", "sh"))
    installing, cmake, build = Section(copy, page, "Install and find_package").blocks("sh", "cmake", "sh")
    follow("installed", cmake, installing, build)
    if not (stranger.home / ".local").is_dir():
        fail(installing.place, "nothing was installed into ~/.local")
    shutil.rmtree(copy / "build")


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n", maxsplit=1)[0])
    parser.add_argument("--routes", action="store_true", help="only the ways to install, and nothing in the checkout itself")
    parser.add_argument("--skip-tests", action="store_true", help="leave out the test command, which takes 20 minutes")
    parser.add_argument("--before-tests", metavar="COMMAND", help="run this in the copy before the test command")
    arguments = parser.parse_args()

    folder = Path(tempfile.mkdtemp(prefix="newcomer-"))
    print(f"newcomer: {folder}")
    stranger = Stranger(folder)
    copy = folder / "giwa"
    copy_tracked(folder / "origin")
    clone(stranger, folder / "origin", copy)

    install(stranger, copy)
    if not arguments.routes:
        in_the_checkout(stranger, copy, arguments)

    print("\nnewcomer: README.md and docs/install.md do what they say")
    for what, seconds, cpu in results:
        print(f"  {seconds:7.0f} s, {cpu:7.0f} CPU s  {what}")
    shutil.rmtree(folder)


def demo_examples(copy):
    """The programs that the demo runs: set(demo_examples ...) in examples/CMakeLists.txt."""
    found = re.search(r"^set\(demo_examples ([^)]*)\)", (copy / "examples/CMakeLists.txt").read_text(), re.M)
    return found[1].split() if found else fail("examples/CMakeLists.txt", "sets no demo_examples")


def in_the_checkout(stranger, copy, arguments):
    """An example by hand, the demo and the tests."""
    with Route(f"example {EXAMPLE} by hand"):
        listed = (copy / "examples/README.md").read_text()
        for example in sorted((copy / "examples").glob("[0-9]*.cu")):
            if f"]({example.name})" not in listed:
                fail("examples/README.md", f"does not list {example.name}")
        example = copy / "examples" / EXAMPLE
        line = re.search(r"^//\s+(nvcc .*)$", example.read_text(), re.M)[1]
        stranger.run(line, copy)
        matches_documentation(example, stranger.run(f"./{example.stem}", copy))
        (copy / example.stem).unlink()

    section = Section(copy, "README.md", "Two commands")
    *_, commands = section.blocks("sh", optional="sh")  # the other one clones
    if len(commands.commands()) != 2:
        fail(commands.place, "there are two commands here, the demo and the tests")
    (demo_place, demo), (test_place, test) = commands.commands()
    with Route("the demo"):
        output = stranger.run(demo, copy, demo_place)
        for name in demo_examples(copy):
            matches_documentation(copy / f"examples/{name}.cu", output)
        picture = section.find(r"`(build/demo/\S+\.png)`", "which picture the demo writes")
        if not (copy / picture).is_file():
            fail(demo_place, f"the demo did not write {picture}")
        if not output.splitlines()[-1].startswith("picture: attention by giwa ") or output.count("\npicture: ") != 1:
            fail(demo_place, f"the demo does not end with the times of the picture, or prints them twice:\n{output}")

    everything = Section(copy, "docs/contributing.md", "Building and testing").find(
        r"\| everything, .*\| `(.*)` \|", "the command that tests everything")
    if everything != test.split("#")[0].strip():
        fail(test_place, f"this is not the command of docs/contributing.md: {everything}")
    if not os.access(copy / ".ci/run", os.X_OK):
        fail(".ci/run", "is not there or not executable")
    if not arguments.skip_tests:
        with Route("the tests", limit=float("inf")):
            if arguments.before_tests:
                stranger.run(arguments.before_tests, copy, stream=True)
            stranger.run(test, copy, test_place, stream=True)


if __name__ == "__main__":
    main()
