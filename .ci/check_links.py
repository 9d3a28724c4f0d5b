#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""Checks links without a network: check_links.py [folder of HTML]...

In README.md and in all pages of docs/ and examples/, every relative link and image must be a file of the repository, and every
#anchor a heading of that page by GitHub's rules; every picture and plot of docs/ must be on a page. In a folder of HTML (the
site), every href, src and data must be a file there, and every #anchor an id in it. The same holds of the index of the site's
search (cmake/docs_search_test.js runs the search itself). Inline code of a page must be code on the site.
"""
import html
import json
import re
import sys
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT / "cmake"))
from pages_for_doxygen import BAR, CODE, FENCE, FIRST, LINK, anchors, chapters, label, target_of  # noqa: E402

OUTSIDE = re.compile(r"[a-z]+:|//")
KNOWN = "#nested-classes"  # Doxygen links to this heading but omits it if all nested types are private


def check_pages():
    """Yields a sentence for each broken link of a Markdown page; first the number of links."""
    pages = [FIRST, *sorted((ROOT / "docs").rglob("*.md")), *sorted((ROOT / "examples").rglob("*.md"))]
    flaws, count = [], 0
    unseen = set((ROOT / "docs").rglob("*.svg"))
    for page in pages:
        text = re.sub(r"<!--.*?-->", "", page.read_text(), flags=re.S)
        for match in LINK.finditer(CODE.sub("", FENCE.sub("", text))):
            target = match.group(3)
            if OUTSIDE.match(target):
                continue
            count += 1
            file, place = target_of(page, target)
            unseen.discard(file)
            if not file.exists():
                flaws.append(f"{page.relative_to(ROOT)}: no such file: {target}")
            elif place and place not in anchors(file.read_text()):
                flaws.append(f"{page.relative_to(ROOT)}: no such heading: {target}")
    flaws += [f"{file.relative_to(ROOT)}: on no page" for file in sorted(unseen)]
    if count == 0:
        flaws.append("no page has a relative link: LINK finds nothing")
    return f"{len(pages)} pages, {count} links", flaws


class Links(HTMLParser):
    """The ids of a page and what it links to."""

    def __init__(self, page):
        super().__init__()
        self.ids, self.targets = set(), set()
        self.feed(page.read_text(errors="replace"))

    def handle_starttag(self, tag, attributes):
        for name, value in attributes:
            if name == "id" or (name == "name" and tag == "a"):
                self.ids.add(value)
            elif name in ("href", "src") or (name == "data" and tag == "object"):
                self.targets.add(value or "")


def check_search(folder, pages):
    """Returns a sentence for each address in the search's index that does not exist."""
    index, code = folder / "search" / "index.js", folder / "search" / "search.js"
    if not index.is_file() or "giwa_index" not in code.read_text():
        return [f"{folder.name}: the search of cmake/search_index.py is missing"]
    entries = json.loads(index.read_text().partition("\n")[0].partition("=")[2].strip().rstrip(";"))
    flaws = []
    for address, title, *_ in entries:
        file, _, place = address.partition("#")
        if file not in pages or (place and place not in pages[file].ids):
            flaws.append(f"{folder.name}/search/index.js: no such place: {address} ({title})")
    return flaws


def check_code(folder):
    """Returns a sentence for each piece of inline code that Doxygen read as something else; in a link or a heading it is plain."""

    def texts(element, page):
        found = re.findall(f"<({element})\\b[^>]*>(.*?)</\\1>", page, flags=re.S)
        return [" ".join(html.unescape(re.sub("<[^>]*>", "", text)).split()) for _, text in found]

    flaws = []
    for path in [FIRST, *chapters()]:
        page = (folder / ("index.html" if path == FIRST else f"{label(path)}.html")).read_text()
        codes, plain = set(texts("code", page)), "\n".join(texts("a|h[1-6]|div class=\"title\"", page))
        for piece in CODE.findall(FENCE.sub("", re.sub(r"<!--.*?-->", "", path.read_text(), flags=re.S))):
            code = " ".join(piece[1:-1].replace(BAR, "|").split())
            if code not in codes and code not in plain:
                flaws.append(f"{folder.name}: {path.relative_to(ROOT)}: no code on the site: {piece}")
    return flaws


def check_site(folder):
    pages = {page.name: Links(page) for page in sorted(folder.glob("*.html"))}
    if "index.html" not in pages:
        return "0 files", [f"{folder}: there is no index.html"]
    flaws = check_search(folder, pages) + check_code(folder)
    for name, page in pages.items():
        for target in page.targets:
            if OUTSIDE.match(target) or target in ("", "#", KNOWN):
                continue
            file, _, place = unquote(target).partition("#")
            if not (folder / (file or name)).is_file():
                flaws.append(f"{folder.name}/{name}: no such file: {target}")
            elif place and (file or name) in pages and place not in pages[file or name].ids:
                flaws.append(f"{folder.name}/{name}: no such anchor: {target}")
    return f"{len(pages)} files of HTML, {sum(len(p.targets) for p in pages.values())} links", flaws


def main():
    results = [check_pages(), *(check_site(Path(folder)) for folder in sys.argv[1:])]
    flaws = [flaw for _, found in results for flaw in found]
    print("".join(f"{flaw}\n" for flaw in flaws) + "links: " + "; ".join(what for what, _ in results) + f"; {len(flaws)} broken")
    return 1 if flaws else 0


if __name__ == "__main__":
    sys.exit(main())
