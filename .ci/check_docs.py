#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""Compiles the ```cpp blocks of Markdown files: check_docs.py <file or folder>...

A block is a file of its own, unless an HTML comment on the line before says otherwise:
  <!-- fragment -->                 statements: they become the body of a function, their #includes go before it
  <!-- fragment: int n, float* x -->   the same, with these parameters
  <!-- continued -->                comes after the block before it on the page, in one file with it, which is compiled once
  <!-- does not compile: text -->   must be rejected by the compiler, with this text in its message

A block that includes giwa's .hpp headers and none of its .cuh headers is compiled by the host compiler, with the includes that the
reader sees; all others by nvcc. A fragment that includes no header of giwa gets <giwa/giwa.cuh>.
A program that is on several pages is compiled once. Blocks for nvcc with the same #includes are first compiled together, each in a
namespace, since the headers take longer than the blocks; if that fails, each is compiled alone.
A table after <!-- members: NAME --> describes what a caller fills of the struct NAME in include/giwa, in its order: each row begins with a
data member, its type and its default, or with a template parameter if the struct has only static members. Structs in FILLED need one.
A translation, docs/NAME.ko.md, must have all code blocks of its original but for their comments, its figures, its `code`, and links to
what that links to.
"""
import os
import re
import shutil
import subprocess
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor
from itertools import chain, zip_longest
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT / "cmake"))
from pages_for_doxygen import LINK, target_of  # noqa: E402

NVCC = os.environ.get("CUDACXX", "nvcc")
# PTX only, hardly optimised: nothing is run.
COMMAND = [NVCC, "-std=c++20", "-gencode", "arch=compute_80,code=compute_80", "--Ofast-compile=max", "--extended-lambda", "-Wno-deprecated-gpu-targets", "-c", "-I", ROOT / "include"]
HOST_COMMAND = [os.environ.get("CXX", "g++"), "-std=c++20", "-fsyntax-only", "-x", "c++", "-I", ROOT / "include"]
CUDA_INCLUDE = Path(shutil.which(NVCC) or "/usr/local/cuda/bin/nvcc").resolve().parent.parent / "include"
TRANSLATIONS = {page: page.with_name(page.name.replace(".ko", "")) for page in (ROOT / "docs").glob("*.ko.md")}
TRANSLATIONS[ROOT / "docs" / "README.ko.md"] = ROOT / "README.md"
FENCED = re.compile(r"^```.*?^```$", re.M | re.S)
COMMENT = re.compile(r"[ \t]*(?://|#) .*$", re.M)
TOGETHER = 7  # blocks at most: two processors share the work
# What a line of a block that is not indented declares: a type, an alias, a constant or a function.
DECLARED = re.compile(r"^(?:(?:struct|class|union|enum(?: class)?|using(?= \w+ =)|concept) (\w+)|constexpr [\w:<>, ]+ (\w+) ?[={]"
                      r"|(?!return\b|else\b)[\w:][\w:<>,&* ]*[ *&](\w+)\()", re.M)
BLOCK = re.compile(r"(?:^<!-- *(?P<mark>[^\n]*?) *-->\n\s*?)?^```(?:cpp|cuda)\n(?P<code>.*?)^```$", re.M | re.S)


# What callers fill in braces, with so many members that an order has to be looked up: some page must have the table of each.
FILLED = {"attention_options", "attention_backward_options", "cached_options", "append_options", "attention_problem", "cached_problem",
          "attention_pointers", "attention_prior", "attention_scales", "sequences", "kv_cache", "page_table", "cache_scales", "rotary_layout",
          "launch_config", "thread_map", "warp_map", "warpgroup_map", "block_map", "tree", "packed_bits", "block_lengths"}
MEMBERS = re.compile(r"^<!-- members: (\w+) -->\n\n((?:^\|.*\n)+)", re.M)


def members(text, name):
    """(name, type, default) of each data member of a struct, or of each template parameter if it has none; of a header's text."""
    found = re.search(r"(?:^template <([^\n]*)>\n)?^struct " + name + r"(?: : [\w:]+)? \{\n(.*?)^\};", re.sub(r"//.*", "", text), re.M | re.S)
    if not found:
        return []
    body, depth = "", 0
    for piece in re.split(r"([{}])", found[2]):  # the bodies of functions and the braces of defaults become {}
        depth -= piece == "}"
        body += piece if depth == 0 else ""
        depth += piece == "{"
    declared = re.compile(r"(?!static|using|template|friend|enum|return)([\w:<>,* ]+?[ *&])(\w+)(?: = (.+)|(\{\}))?$", re.S)
    matches = [declared.match(" ".join(line.split())) for line in body.split(";")]
    rows = [(m[2], m[1].strip(), m[3] or m[4] or "") for m in matches if m]
    return rows or [(m[2], m[1], m[3] or "") for m in re.finditer(r"(\w+) (\w+)(?: = (\w+))?(?:,|$)", found[1] or "")]


def check_members(path):
    """Returns a sentence for each table of members that says something else than the struct in include/giwa."""
    page = path.read_text()
    tables, flaws = MEMBERS.findall(page), []
    if len(tables) != page.count("<!-- members:"):
        flaws.append(f"{path.relative_to(ROOT)}: a mark of members is not followed by an empty line and a table\n")
    for name, table in tables:
        rows = [[cell.strip(" `") for cell in row.strip("|").split("|")[:3]] for row in table.splitlines()[2:]]
        headers = [text for file in sorted((ROOT / "include").rglob("*.[hc]*")) if f"struct {name} " in (text := file.read_text())]
        wanted = next(filter(None, (members(text, name) for text in headers)), [])
        if wanted != list(map(tuple, rows)):
            flaws.append(f"{path.relative_to(ROOT)}: the members of {name} are not those of include/giwa, in their order:\n"
                         + "".join(f"| `{n}` | `{t}` | {f'`{d}`' if d else ''} |\n" for n, t, d in wanted))
    return flaws


def check_filled():
    """Returns a sentence for each struct that has no table of its members: of FILLED, and each other public one named *_options or *_problem."""
    pages = "".join(page.read_text() for page in (ROOT / "docs").glob("*.md"))
    headers = "".join(file.read_text() for file in (ROOT / "include").rglob("*.[hc]*"))
    wanted = FILLED | set(re.findall(r"^struct (\w+_(?:options|problem)) \{", headers, re.M))
    return [f"docs: no page has the members of {name}: <!-- members: {name} -->\n" for name in sorted(wanted) if f"<!-- members: {name} -->" not in pages]


def as_function(code, parameters):
    lines = code.split("\n")
    includes = [line for line in lines if line.startswith("#include")]
    body = [line for line in lines if not line.startswith("#include")]
    return "\n".join(includes + [f"void fragment({parameters}) {{"] + body + ["}\n"])


def is_for_host(code):
    """Whether a program includes headers of giwa, and only those that a host compiler takes."""
    headers = re.findall(r"^#include <giwa/\S+\.(\w+)>", code, re.M)
    return bool(headers) and set(headers) == {"hpp"}


def programs(path):
    """Yields (line, source, error) for each block of a page. `error` is text that the compiler must print, or None if it must compile."""
    text = path.read_text()
    before, first = "", 0
    for match in BLOCK.finditer(text):
        line = text.count("\n", 0, match.start("code")) + 1
        mark, code, error = match.group("mark") or "", match.group("code"), None
        if mark.startswith("fragment"):
            needs_header = "#include <giwa/" not in code
            code = "#include <giwa/giwa.cuh>\n" * needs_header + as_function(code, mark.partition(":")[2])
        elif mark == "continued":
            line, code = first, f'{before}#line {line} "{path.relative_to(ROOT)}"\n{code}'
        elif mark.startswith("does not compile: "):
            error = mark.partition(": ")[2]
        elif mark != "":
            sys.exit(f"{path}:{line}: unknown mark: {mark}")
        before, first = code, line
        yield line, code, error


def shared_includes(code, error):
    """The #includes of a block that means the same in a namespace after them, else None: for a block that must not compile, that has
    another directive or code between its #includes, or that names a namespace whose names its own would hide there."""
    lines = [line for line in code.split("\n") if line.strip() and not line.startswith(("//", "#line"))]
    includes = [line for line in lines if line.startswith("#include")]
    rest = lines[len(includes):]
    alone = error or is_for_host(code) or any(line.lstrip().startswith("#") for line in rest) or re.search(
        r"\busing namespace|^(namespace|template <>)", code, re.M)
    return None if alone else tuple(includes)


def together(jobs):
    """One source of several blocks with the same #includes. What a block declares must also be free in the global namespace."""
    includes = shared_includes(jobs[0][2], None)
    names, text = set(), ""
    for path, line, code, *_ in jobs:
        code = re.sub(r"^#include.*$", "", code, flags=re.M)
        names |= {next(filter(None, found)) for found in DECLARED.findall(code)} - {"fragment", "main"}
        names |= {name for line in re.findall(r"^using \w+::.*", code, re.M) for name in re.findall(r"::(\w+)[,;]", line)}
        name = re.sub(r"\W", "_", str(path))
        text += f'namespace {name}_{line} {{\n#line {line} "{path}"\n{code}\n}}\n'
    return "\n".join(includes) + "\n" + "".join(f"using {name} = int;\n" for name in sorted(names)) + text


def check_all(jobs):
    """Checks blocks with the same #includes; returns what is wrong with each."""
    if len(jobs) > 1:
        source = Path(jobs[0][4]) / f"{str(jobs[0][0]).replace(os.sep, '_')}_{jobs[0][1]}_together.cu"
        source.write_text(together(jobs))
        if subprocess.run([*COMMAND, source, "-o", source.with_suffix(".o")], capture_output=True).returncode == 0:
            return []
    return list(map(check, jobs))


def check(job):
    path, line, code, error, folder = job
    source = Path(folder) / f"{str(path).replace(os.sep, '_')}_{line}.cu"
    source.write_text(f'#line {line} "{path}"\n{code}')
    if is_for_host(code):
        command = [*HOST_COMMAND, "-I", CUDA_INCLUDE, source]
    else:
        command = [*COMMAND, source, "-o", source.with_suffix(".o")]
    run = subprocess.run(command, capture_output=True, text=True)
    message = run.stdout + run.stderr
    if error is None:
        flaw = f"does not compile\n{message}" if run.returncode != 0 else ""
    elif run.returncode == 0:
        flaw = "compiles, and should not\n"
    else:
        flaw = "" if error in message else f"does not compile, but not with: {error}\n{message}"
    return f"{path}:{line}: {flaw}" if flaw else ""


def figures_of(path):
    """The numbers in the text of a page."""
    return set(re.findall(r"\d+(?:\.\d+)?", LINK.sub(r"\2", FENCED.sub("", path.read_text()))))


def code_of(path):
    """The `code` in the text of a page: commands, flags and names."""
    return set(re.findall(r"`[^`\n]+`", FENCED.sub("", path.read_text())))


def linked_from(path):
    """The files, headings and addresses that a page links to, in English. Translated pages have other headings, and count without."""
    found = set()
    for target in (match.group(3) for match in LINK.finditer(FENCED.sub("", path.read_text()))):
        file, place = (target, "") if ":" in target else target_of(path, target)
        translated = file in TRANSLATIONS or file in TRANSLATIONS.values()
        found.add(str(TRANSLATIONS.get(file, file)) + (f"#{place}" if place and not translated else ""))
    return found


def check_translation(page, original):
    """Returns a sentence about the first block, in any language, that differs from the original's, or about links, figures and `code`."""
    wanted, found = ([COMMENT.sub("", block) for block in FENCED.findall(path.read_text())] for path in (original, page))
    for i, (theirs, mine) in enumerate(zip_longest(wanted, found), 1):
        if theirs != mine:
            return f"{page.relative_to(ROOT)}: code block {i} is not that of {original.relative_to(ROOT)}, {(theirs or 'none')[:80]!r}…\n"
    name, of = page.relative_to(ROOT), original.relative_to(ROOT)
    if stuck := re.search(r"(?<!\S)\*{1,2}[^\s*][^*\n]*\*{1,2}\w", FENCED.sub("", page.read_text())):
        return f"{name}: emphasis ends before a letter, which GitHub or Doxygen may not see: {stuck[0]}\n"
    missing = sorted((linked_from(original) - linked_from(page) - {str(original)}) | (figures_of(original) - figures_of(page))
                     | (code_of(original) - code_of(page)))
    added = sorted((linked_from(page) - linked_from(original) - {str(original)}) | (code_of(page) - code_of(original)))
    return "".join(f"{mine} has, and {theirs} has not: {', '.join(what)}\n" for mine, theirs, what in ((of, name, missing), (name, of, added)) if what)


def main():
    paths = []
    for name in sys.argv[1:]:
        path = ROOT / name
        paths += sorted(path.rglob("*.md")) if path.is_dir() else [path]
    found, jobs = 0, {}
    for path in paths:
        blocks = list(programs(path))
        found += len(blocks)
        for (line, code, error), (_, longer, _) in zip_longest(blocks, blocks[1:], fillvalue=(0, "", None)):
            if longer != code and longer.startswith(code) and error is None:
                continue  # the next block continues it
            jobs.setdefault((code, error), (path.relative_to(ROOT), line, code, error))
    failures = [check_translation(page, original) for page, original in TRANSLATIONS.items() if page in paths]
    failures += chain(*map(check_members, paths), check_filled())
    with tempfile.TemporaryDirectory() as folder, ThreadPoolExecutor(os.cpu_count()) as pool:
        groups, same = [], {}  # blocks with the same #includes, until they are enough
        for (code, error), job in jobs.items():
            includes = shared_includes(code, error)
            group = same.setdefault(includes, []) if includes else []
            if not group:
                groups.append(group)
            group.append((*job, folder))
            if len(group) == TOGETHER:
                del same[includes]
        groups.sort(key=len, reverse=True)
        failures = [text for text in [*failures, *chain.from_iterable(pool.map(check_all, groups))] if text]
    host = sum(is_for_host(code) for code, _ in jobs)
    print("".join(failures) + f"docs: {found} code blocks on {len(paths)} pages; {len(jobs)} different ones compiled, {host} of them by "
          f"the host compiler, the others in {len(groups) - host} groups; {len(failures)} errors")
    return 1 if failures or not jobs else 0


if __name__ == "__main__":
    sys.exit(main())
