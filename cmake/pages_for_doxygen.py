#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""Doxygen's filter of the pages: prints a Markdown file, or an example's source, of this repository as a page of the site.

The pages are written for GitHub. Here each gets a label, every heading the anchor that GitHub gives it, and links between
pages become references. A file of examples/ becomes a page with its listing. The order of the pages in the navigation is the
order in which docs/README.md names them; the examples hang below the page of the learning path.
"""
import html
import os
import re
import sys
from pathlib import Path
from urllib.parse import unquote

ROOT = Path(__file__).resolve().parent.parent
FIRST = ROOT / "README.md"
INDEX = ROOT / "docs" / "README.md"
PATH = ROOT / "docs" / "learn.md"  # the examples hang below it
FENCE = re.compile(r"^(```.*?^```)[ \t]*$", re.M | re.S)
CODE = re.compile(r"(`[^`\n]*`)")
HEADING = re.compile(r"^(#{1,6}) +(.*?) *$", re.M)
LINK = re.compile(r"(!?)\[((?:[^\[\]]|\[[^\]]*\])*)\]\(([^)\s]+)\)")
BOLD = re.compile(r"\*\*(?!\s)([^*\n]+)(?<!\s)\*\*")
ITALIC = re.compile(r"(?<![*\w])\*(?!\s)([^*\n]+)\*(?=\w)")  # what follows belongs to the same word, as in Korean
BAR = "\\|"
SOURCES = (".cu", ".cuh", ".hpp", ".cpp", ".py")


def anchor(heading):
    """GitHub's anchor of a heading: lower case, without punctuation, blanks as hyphens."""
    text = re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", heading)
    return re.sub(r"[^\w\- ]", "", text.strip().lower()).replace(" ", "-")


def anchors(text):
    """The anchors of a page's headings in order; a name that was there before gets a number, as on GitHub."""
    seen, found = {}, []
    for match in HEADING.finditer(FENCE.sub("", text)):
        name = anchor(match.group(2))
        found.append(name if name not in seen else f"{name}-{seen[name]}")
        seen[name] = seen.get(name, 0) + 1
    return found


def is_page(file):
    """Whether the site has a page for this file."""
    return file.is_file() and (file.suffix == ".md" or (file.suffix in SOURCES and "examples" in file.parts))


def label(file):
    """The label of a page, which is also the name of its HTML file."""
    name = file.relative_to(ROOT)
    return re.sub(r"\W", "_", str(name.with_suffix("") if file.suffix == ".md" else name)).lower()


def label_of(file, place):
    """The label of a heading of a page; letters beyond ASCII are told apart by their numbers."""
    return label(file) + "_" + re.sub(r"[^0-9a-z]", lambda c: "_" if c[0].isascii() else f"u{ord(c[0]):x}", place)


def target_of(path, target):
    """The file and the heading that a relative link on a page leads to."""
    name, _, place = unquote(target).partition("#")
    return Path(os.path.normpath(path.parent / name)) if name else path, place


def chapters():
    """The pages in reading order: docs/README.md, and those that it links to."""
    found = [INDEX]
    for match in LINK.finditer(INDEX.read_text()):
        page, _ = target_of(INDEX, match.group(3))
        if page.suffix == ".md" and page.is_file() and page not in [*found, FIRST]:
            found.append(page)
    return found


def examples():
    """The sources that have pages, the numbered ones first."""
    files = [file for file in (ROOT / "examples").rglob("*") if is_page(file) and file not in chapters()]
    return sorted(files, key=lambda file: (not file.name[:2].isdigit(), str(file)))


def linked(path, match, code):
    """One link or image of a page. A reference's text has no code in it, so the quotes go."""
    picture, text, target = match.groups()
    text = re.sub(r"\0(\d+)\0", lambda piece: code[int(piece.group(1))].strip("`"), text)
    if re.match(r"[a-z]+:", target):
        return match.group(0)
    file, place = target_of(path, target)
    if picture:
        return f"\n\\image html {file.name}\n"
    if file.is_dir():
        return f"[{text}](@ref {label(PATH)})" if file.name == "examples" else text
    if file == FIRST and not place:
        return f"[{text}](@ref index)"
    if is_page(file):
        return f"[{text}](@ref {label_of(file, place) if place else label(file)})"
    return f'<a href="{file.name}">{text}</a>'


def prose(path, text, headings):
    """A part of a page that is not a block of code."""

    def heading(match):
        place, depth = next(headings), len(match.group(1))
        name = label_of(path, place) if depth > 1 else "mainpage" if path == FIRST else label(path)
        return f"{match.group(1)} {match.group(2).replace('`', '')} {{#{name}}}"

    def shown(code):
        """A bar inside code in a table: GitHub and Doxygen want a backslash, which Doxygen would show between quotes. With an
        apostrophe inside, Doxygen takes code in single quotes for a quotation. And it drops a %, which stops links."""
        code = re.sub(r"%(?=\w)", "%%", code)
        return f"<code>{html.escape(code[1:-1])}</code>" if BAR in code else f"`{code}`" if "'" in code else code

    pieces = CODE.split(HEADING.sub(heading, text))
    joined = "".join(piece if i % 2 == 0 else f"\0{i}\0" for i, piece in enumerate(pieces))
    joined = LINK.sub(lambda match: linked(path, match, pieces), joined)
    joined = BOLD.sub(r"<b>\1</b>", joined)  # Doxygen wants a letter after the first ** and none after the last
    joined = ITALIC.sub(r"<em>\1</em>", joined)
    return re.sub(r"\0(\d+)\0", lambda match: shown(pieces[int(match.group(1))]), joined)


def page_of_markdown(path):
    """A Markdown file; below the first page hang the chapters, below the learning path the examples."""
    text = re.sub(r"<!--.*?-->\n?", "", path.read_text(), flags=re.S)
    headings = iter(anchors(text))
    parts = FENCE.split(text)
    out = "".join(part if part.startswith("```") else prose(path, part, headings) for part in parts)
    below = chapters() if path == FIRST else examples() if path == PATH else []
    pages = "".join(f"- @subpage {label(page)}\n" for page in below)
    return out + (f'\n<div class="pages">\n\n{pages}\n</div>\n' if pages else "")


def page_of_source(path):
    """A listing."""
    name = path.relative_to(ROOT)
    return f"/** \\page {label(path)} {name.relative_to('examples')}\n\n\\include{{lineno}} {name}\n*/\n"


if __name__ == "__main__":
    page = Path(sys.argv[1]).resolve()
    print(page_of_markdown(page) if page.suffix == ".md" else page_of_source(page))
