# SPDX-License-Identifier: MIT
"""Compiles what giwa_torch needs: the operators once, and a library of kernels for each variant when a call first needs it.

A variant is a pass, device, element type, pair of head sizes, kind of mask and set of score modifiers. It takes 5 to 20 seconds with
nvcc, and 3 to 6 with the host compiler for the CPU. Each compilation is a line on stderr. Libraries are kept under TORCH_EXTENSIONS_DIR,
or where PyTorch keeps its extensions. They are named by a hash of the sources, so that a changed giwa is compiled anew.
"""
import contextlib
import ctypes
import functools
import hashlib
import os
import shutil
import subprocess
import sys
import tempfile
import threading
from collections import defaultdict
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import torch

HERE = Path(__file__).resolve().parent
ELEMENTS = ("giwa::fp16", "giwa::bf16", "float", "giwa::e4m3")  # in the order of binding.cpp
DTYPES = ("fp16", "bf16", "fp32", "e4m3")
PASSES = ("forward", "backward", "cached", "append", "block_map")
MASKS = ("no mask", "causal", "band", "mask tensor", "mask of bits", "block map")
SCORES = ("softcap", "alibi", "bias", "alibi gradient", "bias gradient", "dropout", "float32 bias",
          "e4m3 cache", "int8 cache", "int4 cache")  # bits, as score_flag and cache_flag of call.hpp


def include_folder():
    in_checkout = HERE.parents[2] / "include"
    if (in_checkout / "giwa" / "version.hpp").exists():
        return in_checkout
    import giwa  # the wheel with the headers
    return Path(giwa.include())


@functools.cache
def folder():
    sources = sorted(include_folder().rglob("*.*h*")) + [HERE / x for x in ("binding.cpp", "build.py", "call.hpp", "kernels.cu", "ring.cu")]
    digest = hashlib.sha256(torch.__version__.encode())
    for path in sources:
        digest.update(path.read_bytes())
    root = os.environ.get("TORCH_EXTENSIONS_DIR") or Path.home() / ".cache" / "torch_extensions"
    found = Path(root) / f"giwa_torch_{digest.hexdigest()[:16]}"
    found.mkdir(parents=True, exist_ok=True)
    return found


def host_compiler():
    found = os.environ.get("CXX", "g++")
    if shutil.which(found) is None:
        raise RuntimeError(f"giwa_torch: no host compiler {found} was found: install one with C++20 (GCC 11 or newer), or name it with CXX")
    return found


def toolkits():
    """Folders that may be a CUDA toolkit, the preferred first: CUDA_HOME, that of nvcc, the usual one, those of Python packages."""
    nvcc = shutil.which("nvcc")
    named = [os.environ.get("CUDA_HOME"), nvcc and Path(nvcc).resolve().parents[1], "/usr/local/cuda"]
    packages = [x for folder in sys.path for x in sorted(Path(folder).glob("nvidia/cu[0-9]*"), reverse=True)]
    return [Path(x) for x in [*named, *packages] if x]


def toolkit_headers():
    """The folder of the toolkit's headers, which kernels for the CPU need too, for the types fp16 and bf16."""
    for folder in toolkits():
        if all((folder / "include" / x).exists() for x in ("cuda_bf16.h", "crt/host_defines.h")):
            return folder / "include"
    raise RuntimeError("giwa_torch: no headers of the CUDA toolkit were found, which kernels for the CPU need too (fp16, bf16): "
                       "pip install 'cuda-toolkit[cudart,crt,cccl]', or install the toolkit and set CUDA_HOME")


def nvcc():
    for folder in toolkits():
        if (folder / "bin" / "nvcc").exists():
            return folder / "bin" / "nvcc"
    raise RuntimeError("giwa_torch: no nvcc was found to compile kernels for the GPU: pip install "
                       "'cuda-toolkit[nvcc,nvvm,crt,cudart,cccl]', or install the toolkit and set CUDA_HOME")


def path_of(name):
    return folder() / f"{name}.so"


def compiled(name, what, command):
    """Returns the path of a library, made by `command` with its output as the last argument, unless it is there. `what` is for the line
    that says so on stderr."""
    path = path_of(name)
    if not path.exists():
        print(f"giwa_torch: compiling {what}, once, with {Path(command[0]).name}; kept in {folder()}", file=sys.stderr, flush=True)
        with tempfile.NamedTemporaryFile(dir=folder(), suffix=".so", delete=False) as file:
            done = subprocess.run([*map(str, command), "-o", file.name], capture_output=True, text=True, check=False)
        if done.returncode != 0:
            os.unlink(file.name)
            raise RuntimeError(f"giwa_torch: {name} does not compile:\n{' '.join(map(str, command))}\n{done.stderr[-3000:]}")
        os.chmod(file.name, 0o755)
        os.replace(file.name, path)  # whole, whoever else compiles it
    return path


def operators():
    """The library with the operators of binding.cpp."""
    flags = [f"-D_GLIBCXX_USE_CXX11_ABI={int(torch.compiled_with_cxx11_abi())}"]
    torch_folder = Path(torch.__file__).parent
    flags += [f"-isystem{torch_folder / path}" for path in ("include", "include/torch/csrc/api/include")]
    libraries = ["-lc10", "-ltorch_cpu", "-ltorch"]
    if torch.version.cuda and "native_handle" not in (torch_folder / "include/c10/core/Stream.h").read_text():  # before 2.11
        flags += ["-DGIWA_TORCH_CUDA_STREAM", f"-isystem{toolkit_headers()}"]
        libraries.append("-lc10_cuda")
    return compiled("operators", "the operators for this PyTorch: about 30 seconds", [
        host_compiler(), "-std=c++20", "-O2", "-fPIC", "-shared", *flags, HERE / "binding.cpp", f"-L{torch_folder / 'lib'}", *libraries])


locks = defaultdict(threading.Lock)


@functools.cache
def host_processor():
    """Libraries for the CPU are compiled for its instructions, and their folder may be on a disk that others share."""
    lines = Path("/proc/cpuinfo").read_text().splitlines()
    flags = next((x for x in lines if x.startswith(("flags", "Features"))), "")
    return f"cpu{hashlib.sha256(flags.encode()).hexdigest()[:8]}"


@functools.cache
def openmp():
    """The flag for OpenMP, if the host compiler has it: then threads of the CPU stay between calls, and are as many as PyTorch's."""
    with tempfile.NamedTemporaryFile(suffix=".so") as file:
        done = subprocess.run([host_compiler(), "-x", "c++", "-", "-fopenmp", "-fPIC", "-shared", "-o", file.name], input="#include <omp.h>\n",
                              capture_output=True, text=True, check=False)
    return ["-fopenmp"] if done.returncode == 0 else []


def name_of(which, architecture, element, head_size, head_size_v, mask, score):
    return "_".join(map(str, (PASSES[which], ELEMENTS[element].split(":")[-1], head_size, head_size_v, f"mask{mask}", f"score{score}",
                              architecture or host_processor())))


def library(which, architecture, element, head_size, head_size_v, mask, score):
    """The library of a variant. `architecture` is None for the CPU, else as "90a" or "80"."""
    name = name_of(which, architecture, element, head_size, head_size_v, mask, score)
    with locks[name]:
        if path_of(name).exists():  # no compiler is needed
            return path_of(name)
        what = [PASSES[which], DTYPES[element]]
        if PASSES[which] not in ("append", "block_map"):
            sizes = str(head_size) if head_size == head_size_v else f"{head_size} and {head_size_v}"
            what += [f"head size {sizes}", "all masks" if architecture is None and mask <= 3 else MASKS[mask]]
            what += [name for bit, name in enumerate(SCORES) if score >> bit & 1]
        elif score >> 7:
            what += [name for bit, name in enumerate(SCORES[7:]) if score >> 7 + bit & 1]
        what = ", ".join(what)
        definitions = {"PASS": which, "ELEMENT": ELEMENTS[element], "HEAD_SIZE": head_size, "HEAD_SIZE_V": head_size_v,
                       "MASK": mask, "SCORE": score}
        flags = ["-std=c++20", f"-I{include_folder()}", *(f"-DGIWA_TORCH_{k}={v}" for k, v in definitions.items())]
        if architecture is None:
            command = [host_compiler(), "-x", "c++", "-O3", "-march=native", *openmp(), "-fPIC", "-shared", "-fvisibility=hidden",
                       "-isystem", toolkit_headers(), *flags, HERE / "kernels.cu"]
            return compiled(name, f"{what}, for this CPU: 3 to 6 seconds", command)
        command = [nvcc(), "-O3", "-shared", "-Xcompiler=-fPIC,-fvisibility=hidden",
                   f"-gencode=arch=compute_{architecture},code=sm_{architecture}", *flags, HERE / "kernels.cu"]
        return compiled(name, f"{what}, for sm_{architecture}: 5 to 20 seconds", command)


@functools.cache
def architecture_of(device):
    """What nvcc compiles for. Hopper's tensor cores need the a of 90a."""
    capability = torch.cuda.get_device_capability(device)
    return "90a" if capability == (9, 0) else "{}{}".format(*capability)


collected = None  # the variants that are missing, inside of collecting()


@ctypes.CFUNCTYPE(ctypes.c_int, *[ctypes.c_int] * 8, ctypes.c_void_p, ctypes.c_size_t)
def compiler(which, on_gpu, device, element, head_size, head_size_v, mask, score, text, size):
    try:
        variant = (which, architecture_of(device) if on_gpu else None, element, head_size, head_size_v, mask, score)
        if collected is not None and not path_of(name_of(*variant)).exists():
            collected.add(variant)
            raise NotImplementedError("giwa_torch: a library that is to be compiled")
        code, answer = 0, str(library(*variant))
    except NotImplementedError as error:
        code, answer = 1, str(error)
    except Exception as error:  # it cannot leave a callback
        code, answer = 2, str(error)
    answer = answer.encode()[:size - 1] + b"\0"
    ctypes.memmove(text, answer, len(answer))
    return code


@contextlib.contextmanager
def collecting():
    """Compiles nothing inside: calls that need a library that is not there raise NotImplementedError, and it is in the set."""
    global collected
    collected = found = set()
    try:
        yield found
    finally:
        collected = None


def compile_all(variants, jobs=None):
    with ThreadPoolExecutor(jobs or os.cpu_count()) as pool:
        return list(pool.map(lambda x: library(*x), variants))


def precompile(*calls):
    """Compiles in parallel what these calls need, and runs them. A call may have several passes: precompile(lambda:
    flash_attn_func(q, k, v).sum().backward())."""
    missing = None
    while missing is None or missing:
        with collecting() as missing:
            for call in calls:
                try:
                    call()
                except NotImplementedError as error:
                    if "to be compiled" not in str(error):
                        raise
        compile_all(missing)
