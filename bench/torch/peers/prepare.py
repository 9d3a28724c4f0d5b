#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""Prepares the libraries that measure.py compares giwa with, for a GPU machine that may be without a network. It needs no GPU.

Downloads the pinned wheels with pip, removes all kernels from FlashAttention-3's libraries that measure.py does not call,
compresses everything, and writes OUT_DIR/transfer_1, transfer_2, ... of at most --limit MiB each. Each folder has the manifest.
unpack.py restores the files on the GPU machine. Without a choice of peers it prepares all of them, for Python 3.12 and PyTorch
2.11 with CUDA 13. Needs c++filt (binutils), 4 GB of memory, 0.5 GB of disk and 8 minutes.
"""
import argparse
import hashlib
import io
import json
import lzma
import re
import struct
import subprocess
import sys
import tarfile
import tempfile
import time
import zipfile
from pathlib import Path

PYTHON = "3.12"  # of the GPU machine
# {peer: {wheel: {file in the wheel: file in the folder of the peers}}}; None: all packages of the wheel, in site/
PEERS = {
    "fa3": {"xformers==0.0.34": {"xformers/flash_attn_3/_C.so": "fa3/fa3.so"},
            "fa3-fwd==0.0.3": {"fa3_fwd/_C.abi3.so": "fa3/fa3_e4m3.so"},
            "nvidia-cuda-runtime-cu12==12.9.79": {"nvidia/cuda_runtime/lib/libcudart.so.12": "fa3/libcudart.so.12"}},
    "frontend": {"nvidia-cudnn-frontend==1.18.0": None},
    "flashinfer": {"flashinfer-python==0.6.11.post2": None, "apache-tvm-ffi==0.1.15.post2": None},
    "fa4": {"flash-attn-4==4.0.0b36": None, "quack-kernels==0.6.5": None, "apache-tvm-ffi==0.1.15.post2": None,
            "torch-c-dlpack-ext==0.1.5": None, "nvidia-cutlass-dsl==4.8.1": None, "nvidia-cutlass-dsl-libs-base==4.8.1": None,
            "nvidia-cutlass-dsl-libs-core==4.8.1": None, "nvidia-cutlass-dsl-libs-cu13==4.8.1": None},
}
# What stays in FlashAttention-3's libraries: (pass, element, head size, head size of v), with all masks, packed, paged, split
ELEMENTS = ("half_t", "bfloat16_t")
KEEP = {"fa3/fa3.so": {(what, element, size, size) for what in ("forward", "backward") for element in ELEMENTS
                       for size in (64, 96, 128, 192, 256)} | {("forward", element, 192, 128) for element in ELEMENTS}
        | {("forward", "bfloat16_t", 64, 512)},
        "fa3/fa3_e4m3.so": {("forward", "float_e4m3_t", 128, 128)}}
MAINLOOP = re.compile(r"CollectiveMainloop(Fwd|Bwd)Sm90<.*?tuple<cute::C<\d+>, cute::C<\d+>, cute::C<(\d+)> >, "
                      r"(?:(\d+), )?cutlass::(\w+), float, cutlass::arch::Sm90")
AUXILIARY = re.compile(r"FlashAttnFwdCombine|prepare_varlen_num_blocks")
CUBIN, UNUSED = 2, 120  # the kind of an entry; an architecture that no supported GPU asks for
PART = 12 << 20


def family(kernel):
    """(pass, element, head size, head size of v) of a demangled kernel for sm_90; "auxiliary", or None for other kernels."""
    if found := MAINLOOP.search(kernel):
        which, size, size_v, element = found.groups()
        return ("forward" if which == "Fwd" else "backward", element, int(size), int(size_v or size))
    return "auxiliary" if AUXILIARY.search(kernel) else None


def fatbins(data):
    """The entries (offset, kind, architecture, header bytes, bytes) of each embedded fat binary."""
    found = []
    for match in re.finditer(rb"\x50\xed\x55\xba\x01\x00\x10\x00", data):
        begin = match.start()
        at, end = begin + 16, begin + 16 + struct.unpack_from("<Q", data, begin + 8)[0]
        entries = []
        while at < end:
            kind, _, header, size = struct.unpack_from("<HHIQ", data, at)
            entries.append((at, kind, struct.unpack_from("<I", data, at + 28)[0], header, size))
            at += header + size
        found.append(entries)
    return found


def trim(data, keep):
    """Zeros all GPU code except the sm_90 code of fat binaries with a wanted kernel. Offsets and sizes stay as they are."""
    data, binaries, names = bytearray(data), fatbins(data), []
    for entries in binaries:
        code = b"".join(data[at + header:at + header + size] for at, kind, arch, header, size in entries if (kind, arch) == (CUBIN, 90))
        names.append(sorted(set(x.decode() for x in re.findall(rb"\.text\.(_Z\w+)\0", code))))
    text = subprocess.run(["c++filt"], input="\n".join(x for some in names for x in some), check=True, capture_output=True, text=True)
    demangled = iter(text.stdout.split("\n"))
    missing, kept, total = set(keep), 0, 0
    for entries, some in zip(binaries, names):
        families = {family(next(demangled)) for _ in some}
        wanted = "auxiliary" in families or families & keep
        missing -= families
        for at, kind, arch, header, size in entries:
            total += size
            if wanted and (kind, arch) == (CUBIN, 90):
                kept += size
            else:
                struct.pack_into("<I", data, at + 28, UNUSED)
                data[at + header:at + header + size] = bytes(size)
    if missing:
        sys.exit(f"the library has no kernels for {sorted(missing)}: is it another version?")
    print(f"  kept {kept / 1e6:.1f} of {total / 1e6:.1f} MB of GPU code", flush=True)
    return bytes(data)


def wheel(requirement, cache):
    """Downloads a wheel, unless it is in the cache."""
    name, version = requirement.split("==")
    pattern = f"{name.replace('-', '_')}-{version}-*.whl"
    if not list(cache.glob(pattern)):
        platforms = [f"--platform=manylinux_2_{n}_x86_64" for n in (28, 27, 24, 17)] + ["--platform=manylinux2014_x86_64"]
        subprocess.run([sys.executable, "-m", "pip", "download", "-q", "--disable-pip-version-check", "--no-deps",
                        "--only-binary=:all:", f"--python-version={PYTHON}", "--implementation=cp", *platforms, "-d", cache,
                        requirement], check=True)
    return next(cache.glob(pattern))


def archive(wheels, cache, done):
    """A tar file with the wanted files of the wheels: the same bytes each time."""
    files = {}
    for requirement, wanted in wheels.items():
        if requirement in done:
            continue
        done[requirement] = hashlib.sha256(wheel(requirement, cache).read_bytes()).hexdigest()
        with zipfile.ZipFile(wheel(requirement, cache)) as z:
            packages = {x: f"site/{x}" for x in z.namelist() if "/" in x and not x.endswith("/")}
            for source, to in (wanted or packages).items():
                files[to] = trim(z.read(source), KEEP[to]) if to in KEEP else z.read(source)
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w", format=tarfile.PAX_FORMAT) as tar:
        for name in sorted(files):
            info = tarfile.TarInfo(name)
            info.size, info.mode = len(files[name]), 0o644
            tar.addfile(info, io.BytesIO(files[name]))
    return out.getvalue(), len(files)


def write_transfers(chosen, cache, out, limit):
    """Packs these peers into folders of at most so many MiB."""
    manifest, transfers, done = {"peers": {}, "wheels": {}}, [], {}
    for peer in chosen:
        begin = time.time()
        data, count = archive(PEERS[peer], cache, done)
        # GPU code repeats over the whole library, x86 code does not, but its jumps do.
        filters = [{"id": lzma.FILTER_X86}] * (peer == "fa4") + [{"id": lzma.FILTER_LZMA2, "preset": 7, "dict_size": 192 << 20}]
        packed = lzma.compress(data, check=lzma.CHECK_CRC64, filters=filters)
        parts = []
        for i, at in enumerate(range(0, len(packed), PART)):
            part, name = packed[at:at + PART], f"{peer}.tar.xz.{i}"
            room = next((t for t, used in enumerate(transfers) if used + len(part) <= limit * 2 ** 20 - 2 ** 16), None)
            if room is None:
                room = len(transfers)
                transfers.append(0)
            transfers[room] += len(part)
            folder = out / f"transfer_{room + 1}"
            folder.mkdir(exist_ok=True)
            (folder / name).write_bytes(part)
            parts.append({"name": name, "bytes": len(part), "sha256": hashlib.sha256(part).hexdigest(), "transfer": room + 1})
        manifest["peers"][peer] = {"files": count, "bytes": len(data), "sha256": hashlib.sha256(data).hexdigest(), "parts": parts}
        print(f"{peer}: {count} files, {len(data) / 1e6:.1f} MB, packed {len(packed) / 1e6:.1f} MB, {time.time() - begin:.0f} s", flush=True)
    manifest["wheels"] = done
    for i, used in enumerate(transfers):
        (out / f"transfer_{i + 1}" / "manifest.json").write_text(json.dumps(manifest, indent=1) + "\n", encoding="utf-8")
        print(f"transfer_{i + 1}: {used / 2 ** 20:.1f} MiB")


def main(given=None):
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("out", type=Path, metavar="OUT_DIR")
    for peer, what in (("fa3", "FlashAttention-3, with its e4m3 forward pass"), ("fa4", "FlashAttention-4"), ("flashinfer", "FlashInfer"),
                       ("frontend", "cuDNN's frontend (windows, packed sequences, pages, queries shorter than keys)")):
        parser.add_argument(f"--{peer}", dest="peers", action="append_const", const=peer, help=what)
    parser.add_argument("--cache", type=Path, help="folder for the wheels; default: a temporary one")
    parser.add_argument("--limit", type=float, default=50, help="MiB of one transfer; default: %(default)s")
    arguments = parser.parse_args(given)
    chosen = [x for x in PEERS if x in (arguments.peers or PEERS)]
    arguments.out.mkdir(parents=True, exist_ok=True)
    if old := list(arguments.out.glob("transfer_*")):
        sys.exit(f"{old[0]} exists: choose another folder, or remove it")
    with tempfile.TemporaryDirectory() as temporary:
        cache = arguments.cache or Path(temporary)
        cache.mkdir(parents=True, exist_ok=True)
        write_transfers(chosen, cache, arguments.out, arguments.limit)


if __name__ == "__main__":
    main()
