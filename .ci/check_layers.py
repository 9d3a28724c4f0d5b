#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""Checks the rules for headers: layers, kinds, order, size, and what a header must not contain; --write puts docs/headers.md there.

The table in cmake/headers.cmake says which headers there are, their kind, and the order inside a folder. docs/headers.md lists them with
the first sentence of their first comment, layer by layer.
Lines that name giwa's version must name that of version.hpp.
An example must name in its first comment, after "To copy it, also copy:", the files next to it that it includes, directly or not.
"""
import re
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
INCLUDE = ROOT / "include"
LAYERS = ["base", "numeric", "arch", "device", "grid", "tile", "softmax", "attention", "multi"]
NAMES = {"P": "P (pure)", "H": "H (host)", "D": "D (device)", "L": "L (launch)", "N": "N (NCCL)"}
MAY_INCLUDE = {"P": "P", "H": "PH", "D": "PD", "L": "PHDL", "N": "PHDL"}
SUFFIX = {"P": (".hpp",), "H": (".hpp",), "D": (".cuh",), "L": (".cuh",), "N": (".hpp",)}
DEVICE_HEADERS = ["grid.cuh", "device.hpp", "tile.cuh", "softmax.cuh", "attention.cuh", "attention_backward.cuh", "cache.cuh", "quantize.cuh", "block_map.cuh", "giwa.cuh"]
EXPENSIVE = {"thread", "barrier", "atomic", "future", "functional", "string", "iostream"}
MAX_LINES, LONG_LINES = 400, 200
HEADERS = """# Headers

Written by `.ci/check_layers.py --write` from the headers. Most programs need only the public headers. The others stand in layers: a header
includes only headers of lower layers, or headers listed before it in its own folder. Each one compiles alone. On which names you can rely
is said under [versions](install.md#versions).

| kind | compiled by |
|---|---|
| P, pure: `constexpr` arithmetic for host and device | a host compiler, nvcc, NVRTC |
| H, host: the CUDA runtime | a host compiler, nvcc |
| D, device | nvcc, NVRTC |
| L, launch: host and device code together; all public headers | nvcc; NVRTC sees their device half |
| N: needs NCCL's header | a host compiler, nvcc |
"""

errors = []


def error(path, line, text):
    errors.append(f"{path}:{line}: {text}" if line else f"{path}: {text}")


def read_table():
    """The table as {path: kind}, in its order."""
    text = (ROOT / "cmake/headers.cmake").read_text()
    table = {}
    for kind, path in re.findall(r"^\s+([PHDLN]) (\S+)$", text, re.M):
        if path in table:
            error("cmake/headers.cmake", 0, f"{path} is listed twice")
        table[path] = kind
    return table


def place(path):
    """(folder, layer) of a path: the folder under giwa/ and its number; version.hpp is below all, public headers are above all."""
    parts = path.split("/")
    if len(parts) == 2:
        return ("version", -1) if path == "giwa/version.hpp" else ("public", len(LAYERS))
    if parts[1] in LAYERS:
        return parts[1], LAYERS.index(parts[1])
    return parts[1], len(LAYERS) if parts[1] == "interop" else None


def strip_comments(text):
    """The text with comments and string literals blanked, line numbers kept."""
    blank = lambda match: re.sub(r"[^\n]", " ", match.group())
    literal = lambda match: '""' if match.group().startswith('"') else blank(match)
    return re.sub(r'//[^\n]*|/\*.*?\*/|"(?:\\.|[^"\\\n])*"', literal, text, flags=re.S)


def check_include(path, line, target, table, order):
    kind, target_kind = table[path], table[target]
    folder, layer = place(path)
    target_folder, target_layer = place(target)
    if target_folder == "interop" and folder != "interop":
        error(path, line, f"includes {target}: nothing outside interop/ may")
    elif target_folder == "public" and folder not in ("public", "interop"):
        error(path, line, f"includes the public header {target}: include the file that declares the name")
    elif target_layer > layer:
        error(path, line, f"includes {target}, of a higher layer")
    elif target_layer == layer and order[target] >= order[path]:
        error(path, line, f"includes {target}, which cmake/headers.cmake lists after it")
    if target_kind not in MAY_INCLUDE[kind]:
        error(path, line, f"is of kind {NAMES[kind]} and includes {target}, of kind {NAMES[target_kind]}")


def architecture(path):
    """80 for a file whose name ends in _sm80, 0 for one that belongs to no architecture."""
    found = re.search(r"_sm(\d+)$", Path(path).stem)
    return int(found[1]) if found else 0


def headers_page(table):
    """docs/headers.md: the public headers with their first comment, the others by layer with its first sentence."""
    layers = dict(re.findall(r'group\("(?:layer_)?(\w+)", "(?:\w+: )?([^"]+)"', (ROOT / "cmake/headers_for_doxygen.awk").read_text()))
    rows = {}
    for path, kind in table.items():
        folder, _ = place(path)
        comment = re.match(r"[^\n]*\n((?:// [^\n]*\n)*)", (INCLUDE / path).read_text())[1]
        said = " ".join(line.removeprefix("// ") for line in comment.splitlines())
        if folder in layers:
            path, said = path.removeprefix("giwa/"), re.split(r"(?<=\.) (?=[A-Z])", said)[0]
        else:
            folder = "public"
        said = re.sub(r"<(giwa/\S+)>", r"`\1`", said).replace("|", "\\|")
        rows.setdefault(folder, []).append((path.rpartition("/")[0], f"| `{path}` | {kind} | {said} |\n"))
    text = HEADERS
    for folder, lines in sorted(rows.items(), key=lambda item: item[0] != "public"):
        folders = list(dict.fromkeys(name for name, _ in lines))  # an attention/ folder's headers together
        lines.sort(key=lambda line: folders.index(line[0]))
        title = f"## {folder}\n\n{layers[folder][0].upper()}{layers[folder][1:]}." if folder in layers else "## Public headers"
        text += f"\n{title}\n\n| header | kind | contents |\n|---|---|---|\n" + "".join(line for _, line in lines)
    return text


def check_architecture(path, code, included):
    """What belongs to one architecture is in files that say so. attention/choose/ and the public headers know all of them."""
    folder, _ = place(path)
    here, of_folder = architecture(path), re.search(r"/kernels/sm(\d+)/", path)
    if of_folder and here != int(of_folder[1]):
        error(path, 0, f"lies in {of_folder[0].strip('/')}/, where names end in _sm{of_folder[1]}")
    if folder == "public" or path.startswith("giwa/attention/choose/"):
        return
    for target in included:
        if architecture(target) > here:
            error(path, 0, f"includes {target}: its own name must end in _sm{architecture(target)}, or the file belongs in choose/")
    if folder in ("attention", "multi") and not here and "GIWA_ARCH_HAS_SM90A" in code:
        error(path, 0, "asks for GIWA_ARCH_HAS_SM90A: its name must end in _sm80 or _sm90, or the file belongs in choose/")


def check_content(path, text, code):
    """What can be seen line by line."""
    folder, _ = place(path)
    lines = text.split("\n")
    if lines[0] != "// SPDX-License-Identifier: MIT" or not lines[1].startswith("// "):
        error(path, 1, "starts with the SPDX line and one sentence that says what the file is")
    guard = re.sub(r"[/.]", "_", path).upper()
    if f"#ifndef {guard}\n#define {guard}\n" not in text:
        error(path, 0, f"has no include guard {guard}")
    if len(lines) - 1 > MAX_LINES:
        error(path, 0, f"has {len(lines) - 1} lines: split it, {MAX_LINES} are the most")

    forbidden = [
        (r"\bnamespace\s*\{", "an anonymous namespace"),
        (r"\busing\s+namespace\b", "`using namespace`"),
        (r"^\s*#\s*(?:define|undef)\s+(?!GIWA_)\w+", "a macro without GIWA_"),
        # As test/header/traps.in shows, more slowly.
        (r"\b(?:class|typename|int|bool|auto) (?:\.\.\.)?[ABCDEHIKLMNPSWXYZ]\b(?!\()", "a name that may be a macro of a program"),
        (r"^\s*#\s*pragma\s+once", "`#pragma once`: use the include guard"),
        # `static const name a, b;` without a value only declares a member.
        (r"^\s{2,}(?:static|thread_local)\s+(?!constexpr\b|_?assert|const \w+ [\w, ]+;)[\w:<>, *&]+?\b\w+\s*(?:=[^=]|\{[^}]*\};|;)",
         "a static or thread_local variable"),
    ]
    if folder != "arch":
        forbidden.append((r"\basm\b", "asm, which belongs in arch/"))
    if folder != "interop":
        forbidden.append((r"^\s*#\s*include\s*<(?:cooperative_groups|cub/|thrust/|cuda/)",
                          "cooperative_groups, CUB, Thrust or libcu++, which belong in interop/"))
    directive = ""  # the latest #if, #else or #endif
    for number, line in enumerate(code.split("\n"), 1):
        if re.match(r"\s*#\s*(?:if|el|endif)", line):
            directive = line
        if re.match(r"#if defined\(__CUDACC_RTC__\)", directive) and "<cuda/std/" in line:
            continue  # what NVRTC has in place of the standard headers
        for pattern, what in forbidden:
            if re.search(pattern, line):
                error(path, number, f"contains {what}: {line.strip()}")
    without_macros = re.sub(r"^[ \t]*#(?:[^\n]*\\\n)*[^\n]*", "", code, flags=re.M)
    for kernel in re.finditer(r"[^;{}]*__global__[^;{]*", without_macros):
        for word, flaw in (("template", "is no template"), ("__launch_bounds__", "states no launch bounds")):
            if word not in kernel.group():
                error(path, 0, f"contains a kernel that {flaw}: {' '.join(kernel.group().split())}")


def files_along(path):
    """The files that a source includes in quotes, and those that these include."""
    found, open_paths = set(), [path]
    while open_paths:
        including = open_paths.pop()
        for name in re.findall(r'^#include "([^"]+)"', including.read_text(), re.M):
            included = (including.parent / name).resolve()
            if included not in found:
                found.add(included)
                open_paths.append(included)
    return found


def check_examples():
    for path in sorted((ROOT / "examples").glob("*.cu")):
        expected = sorted(str(file.relative_to(path.parent)) for file in files_along(path))
        said = re.search(r"^// To copy it, also copy: ((?:[^\n]*,\n//[ ]+)*[^\n]*)\.$", path.read_text().split("\n#include")[0], re.M)
        if (re.split(r",\s+(?://\s+)?", said[1]) if said else []) != expected:
            error(path.relative_to(ROOT), 0, "its first comment must say: " +
                  (f"To copy it, also copy: {', '.join(expected)}." if expected else "nothing of files to copy"))


def check_version():
    """The changelog's first heading, what find_package asks for, namespaces such as v0_2, and what 03_device_choice prints."""
    header = (INCLUDE / "giwa/version.hpp").read_text()
    version = re.findall(r"^#define GIWA_VERSION_(?:MAJOR|MINOR|PATCH) (\d+)$", header, re.M)
    heading = re.search(r"^## (.*)$", (ROOT / "docs/changelog.md").read_text(), re.M)[1]
    if not re.fullmatch(rf"{'[.]'.join(version)}, (unreleased|\d{{4}}-\d\d-\d\d)", heading):
        error("docs/changelog.md", 0, f"its first heading is not `## {'.'.join(version)}, ` and a date or `unreleased`")
    named = re.compile(r"find_package\(giwa (\d+)\.(\d+)|\bv(\d+)_(\d+)\b|^//   giwa +(\d+)\.(\d+)", re.M)
    files = [*ROOT.glob("docs/*.md"), *ROOT.glob("examples/*.cu"), *ROOT.glob("examples/*/CMakeLists.txt"),
             ROOT / "README.md", ROOT / "test/consumer/CMakeLists.txt"]
    for path in files:
        text = path.read_text()
        for match in named.finditer(text):
            if [number for number in match.groups() if number] != version[:2]:
                error(path.relative_to(ROOT), text.count("\n", 0, match.start()) + 1,
                      f"`{match[0]}` is not version {'.'.join(version)}")


def main():
    table = read_table()
    order = {path: number for number, path in enumerate(table)}
    present = {str(path.relative_to(INCLUDE)) for path in INCLUDE.rglob("*") if path.is_file()}
    for path in sorted(present - set(table)):
        error(f"include/{path}", 0, "is missing from cmake/headers.cmake")
    for path in sorted(set(table) - present):
        error("cmake/headers.cmake", 0, f"lists {path}, which does not exist")
    page, wanted = ROOT / "docs/headers.md", headers_page({path: kind for path, kind in table.items() if path in present})
    if "--write" in sys.argv[1:]:
        page.write_text(wanted)
    elif page.read_text() != wanted:
        error("docs/headers.md", 0, "does not say what the headers say: run .ci/check_layers.py --write")

    ours, others, total, long_files = {}, {}, 0, []
    for path in (path for path in table if path in present):
        folder, layer = place(path)
        if layer is None:
            error(path, 0, f"lies in giwa/{folder}/, which is not a layer")
            continue
        if folder != "public" and Path(path).suffix not in SUFFIX[table[path]]:
            error(path, 0, f"is of kind {NAMES[table[path]]}, whose files end in {SUFFIX[table[path]][0]}")
        text = (INCLUDE / path).read_text()
        code = strip_comments(text)
        count = text.count("\n")
        total += count
        if count > LONG_LINES:
            long_files.append(f"{path} ({count})")
        ours[path], others[path] = [], set()
        for match in re.finditer(r"^[ \t]*#[ \t]*include[ \t]*([<\"])([^>\"]+)[>\"]", text, re.M):
            line, target = text.count("\n", 0, match.start()) + 1, match.group(2)
            if target.startswith("giwa/"):
                if match.group(1) == '"':
                    error(path, line, f"write #include <{target}>")
                if target not in table:
                    error(path, line, f"includes {target}, which is not in cmake/headers.cmake")
                    continue
                ours[path].append(target)
                check_include(path, line, target, table, order)
            elif match.group(1) == '"':
                error(path, line, f"includes \"{target}\": giwa includes by full path, in <>")
            else:
                others[path].add(target)
        check_content(path, text, code)
        check_architecture(path, code, ours[path])

    # Layers and order leave no room for a cycle. What a public header includes is followed through all files.
    for public in (f"giwa/{name}" for name in DEVICE_HEADERS):
        reached, open_paths = {}, [(public, public)]
        while open_paths:
            path, way = open_paths.pop()
            if path in reached or path not in ours:
                continue
            reached[path] = way
            open_paths += [(target, f"{way} -> {target}") for target in ours[path]]
        for path, way in reached.items():
            for name in sorted(others[path] & EXPENSIVE):
                error(public, 0, f"reaches <{name}>, which costs every user compile time: {way}")

    check_examples()
    check_version()

    for line in errors:
        print(line)
    print(f"layers: {len(ours)} headers, {total} lines, {len(errors)} errors; "
          f"over {LONG_LINES} lines: {', '.join(long_files) or 'none'}")
    return 1 if errors else 0


if __name__ == "__main__":
    sys.exit(main())
