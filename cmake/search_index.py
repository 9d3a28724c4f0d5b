#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""Writes the index of the site's search: search_index.py FOLDER, where Doxygen has written the site.

An entry is [address, title, where it is, text, kind, other titles, late]. Each heading of a page is one, with the text below it, and
each paragraph that begins with a question in bold, then each example with its first comment, then each name of the reference. Late ones come last: notes, records, lists of headers.
Synonyms are those of cmake/docs_synonyms.txt.
"""
import ast
import html
import json
import re
import sys
from pathlib import Path

from pages_for_doxygen import FENCE, FIRST, HEADING, INDEX, LINK, ROOT, anchors, chapters, examples, label, label_of, sections


LATE = re.compile(r"docs/(notes|results)/|_hopper\.md$|/(changelog|layers|headers)\.md$")


def plain(text):
    """Markdown without its marks, on one line."""
    text = LINK.sub(r"\2", re.sub(r"<!--.*?-->", "", text, flags=re.S))
    return " ".join(re.sub(r"^```\w*|[`*|]|\|?[-:]{3,}", " ", text, flags=re.M).split())


def of_page(path, title, late):
    """One entry for each heading. A page's title in the menu and its name are titles too, unless it is a note; and a heading without its
    number."""
    text = path.read_text()
    hidden = FENCE.sub(lambda code: re.sub(r"^#", "\0", code.group(0), flags=re.M), text)  # a # in code is no heading
    headings = list(HEADING.finditer(hidden))
    ends = [heading.start() for heading in headings[1:]] + [len(hidden)]
    file = "index" if path == FIRST else label(path)
    for heading, place, end in zip(headings, anchors(text), ends):
        first = heading is headings[0]
        yield [f"{file}.html" + ("" if first else f"#{label_of(path, place)}"), plain(heading.group(2)),
               str(path.relative_to(ROOT)) if first else plain(headings[0].group(2)), plain(hidden[heading.end():end].replace("\0", "#")), "page" if first else "heading",
               ([] if path.parent.name == "notes" else [title, path.stem.replace("_", " ")]) if first else re.findall(r"^\d+\. (.*)", heading.group(2)), late]
        for question, answer in re.findall(r"^\*\*([^*\n]+\?)\*\* (.*)$", hidden[heading.end():end], re.M):
            yield [f"{file}.html#{label_of(path, place)}", plain(question), plain(headings[0].group(2)), plain(answer), "heading",
                   [part.strip() for part in re.findall(r"[^?]+\?", plain(question))], late]


def of_example(path):
    comment = re.match(r'(?:(?://|#).*\n|\n)*(?:"""[^"]*""")?', path.read_text()).group(0)
    comment = re.sub(r"^(//|#) ?(!.*|SPDX.*|pragma.*|include.*)?", "", comment, flags=re.M)
    return [f"{label(path)}.html", path.name, str(path.relative_to(ROOT)), " ".join(comment.replace('"""', "").split()), "example", [path.stem.replace("_", " ")], False]


def of_reference(folder):
    """The names in Doxygen's own index, which are in several files; overloads are one. Its pages are left out."""
    pages = {f"{label(page)}.html" for page in [*chapters(), *examples()]} | {"index.html"}
    found = {}
    for file in sorted((folder / "search").glob("all_*.js")):
        for _, (name, *places) in ast.literal_eval(file.read_text().partition("=")[2].strip().rstrip(";")):
            for address, _, scope in places:
                address, scope = address.removeprefix("../"), html.unescape(scope).partition("(")[0].removesuffix(f"::{name}")
                if address.partition("#")[0] not in pages:
                    found.setdefault((name, scope), [address, html.unescape(name), scope, "",
                                                     "name" if re.fullmatch("(giwa(::arch)?)?", scope) else "member", [], False])
    return list(found.values())


def synonyms():
    """[term, words that mean the same...] of each term in cmake/docs_synonyms.txt."""
    lines = [line.partition("#")[0] for line in (ROOT / "cmake" / "docs_synonyms.txt").read_text().lower().splitlines()]
    pairs = [[[" ".join(re.sub(r"(?<=\w)-(?=\w)", " ", words).split()) for words in side.split("|")] for side in line.split("=")]
             for line in lines if line.strip()]
    return [[term, *words] for terms, words in pairs for term in terms]


def main():
    folder = Path(sys.argv[1])
    titles = {page: title for _, pages in sections() for page, title in pages}
    last = {INDEX, *(page for page, _ in sections()[-1][1])}
    entries = [entry for page in [FIRST, *chapters()] for entry in of_page(
        page, titles.get(page, page.stem), page in last or bool(LATE.search(str(page.relative_to(ROOT)))))]
    entries += [of_example(file) for file in examples()]
    names = of_reference(folder)
    if not names:
        sys.exit(f"search_index.py: Doxygen's index has no names: {folder}/search/all_*.js")
    text, same = (json.dumps(part, ensure_ascii=False, separators=(",", ":")) for part in (entries + names, synonyms()))
    (folder / "search" / "index.js").write_text(f"const giwa_index = {text};\nconst giwa_synonyms = {same};\n")
    with (folder / "search" / "search.js").open("a") as script:
        script.write((ROOT / "cmake" / "docs_search.js").read_text())
    print(f"search: {len(entries)} headings and examples, {len(names)} names, {len(text) // 1024} KiB")


if __name__ == "__main__":
    main()
