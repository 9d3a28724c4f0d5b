#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""Builds the wheel of cmake/wheel, installs it into an empty environment, and uses it there: check_wheel.py

The commands are those of docs/frameworks.md under "A wheel". Both the printed folder of the headers and that of the CMake package
must do for test/consumer. giwa_torch must say that there is no PyTorch, or one that is too old; where the Python of this script has PyTorch, giwa_torch of the
wheel must compute attention on the CPU. Needs pip, which gets the build backend from PyPI.
"""
import filecmp
import importlib.util
import os
import re
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
CONSUMER = ROOT / "test" / "consumer"


def fail(why):
    sys.exit(f"check_wheel: {why}")


def documented_commands():
    page = (ROOT / "docs" / "frameworks.md").read_text()
    block = re.search(r"^#+ A wheel\n.*?^```sh\n(.*?)^```$", page, re.M | re.S)
    return block[1].splitlines() if block else fail("docs/frameworks.md has no commands under `A wheel`")


def version_of_the_sources():
    text = (ROOT / "include" / "giwa" / "version.hpp").read_text()
    return ".".join(re.search(rf"^#define GIWA_VERSION_{part} (\d+)$", text, re.M)[1] for part in ("MAJOR", "MINOR", "PATCH"))


def same_files(a, b):
    """Whether two folders hold the same files, in all depths."""
    names = [sorted(str(f.relative_to(d)) for f in d.rglob("*") if f.is_file() and f.suffix != ".pyc") for d in (a, b)]
    return names[0] == names[1] and not any(filecmp.cmpfiles(a, b, names[0], shallow=False)[1:])


def main():
    with tempfile.TemporaryDirectory(prefix="giwa-wheel-") as folder:
        folder = Path(folder)
        # An environment without pip costs no time; PIP_PYTHON makes the pip outside install into it.
        subprocess.run([sys.executable, "-m", "venv", "--without-pip", folder / "env"], check=True)
        python = folder / "env" / "bin" / "python3"
        environment = {**os.environ, "PATH": f"{python.parent}:{os.environ['PATH']}", "PIP_PYTHON": str(python)}

        def run(*command, cwd=folder, status=0, **more):
            done = subprocess.run(command, cwd=cwd, env={**environment, **more}, text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
            if done.returncode != status:
                fail(f"exit status {done.returncode}: {' '.join(map(str, command))}\n{done.stdout}")
            return done.stdout.strip()

        printed = [run("bash", "-c", command, cwd=ROOT).splitlines()[-1] for command in documented_commands()]
        include, package = Path(printed[-2]), Path(printed[-1])
        if not same_files(ROOT / "include" / "giwa", include / "giwa"):
            fail(f"{include}/giwa is not include/giwa")
        for printed_folder in (include, package):
            if folder not in printed_folder.parents:
                fail(f"{printed_folder} is not in the environment")
        if run("python3", "-m", "giwa", "--version") != version_of_the_sources():
            fail(f"the wheel is not of version {version_of_the_sources()}")
        if "Tag: py3-none-any" not in next(folder.rglob("giwa-*.dist-info/WHEEL")).read_text():
            fail("the wheel is not for every platform")

        site = next(folder.rglob("giwa-*.dist-info")).parent
        if not same_files(ROOT / "examples" / "pytorch" / "giwa_torch", site / "giwa_torch"):
            fail("giwa_torch of the wheel is not examples/pytorch/giwa_torch")
        if "giwa_torch needs PyTorch, which is not installed" not in run("python3", "-c", "import giwa_torch", status=1):
            fail("`import giwa_torch` does not say that there is no PyTorch")
        (folder / "old").mkdir()
        (folder / "old" / "torch.py").write_text('__version__ = "2.5.1+cu124"\n')
        if "giwa_torch needs PyTorch 2.6 or newer, and this is 2.5.1+cu124" not in run("python3", "-c", "import giwa_torch", status=1, PYTHONPATH=str(folder / "old")):
            fail("`import giwa_torch` does not say that PyTorch is too old")
        with_torch = importlib.util.find_spec("torch") is not None
        if with_torch:
            told = run(sys.executable, "-m", "giwa_torch", "check", PYTHONPATH=str(site), TORCH_EXTENSIONS_DIR=str(folder / "kernels"),
                       CUDA_VISIBLE_DEVICES="")
            for line in ("compiling the operators", "compiling forward, fp32, head size 64", "check: right"):
                if line not in told:
                    fail(f"`python3 -m giwa_torch check` does not print `{line}`:\n{told}")

        run("g++", "-std=c++20", "-I", include, CONSUMER / "host_only.cpp", "-o", folder / "compiled")
        run(folder / "compiled")
        run("cmake", "-S", CONSUMER, "-B", folder / "build", f"-Dgiwa_DIR={package}", "-DGIWA_ROUTE=find_package",
            "-DCONSUMER_LANGUAGES=CXX", "-DCONSUMER_SOURCES=host_only.cpp")
        run("cmake", "--build", folder / "build")
        run(folder / "build" / "consumer")
    print("wheel: headers and CMake package found through python3 -m giwa; giwa_torch",
          "computes on the CPU" if with_torch else "says that there is no PyTorch")


if __name__ == "__main__":
    main()
