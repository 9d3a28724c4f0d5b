#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""Writes what Doxygen must know before it runs: docs_menu.py FOLDER VERSION.

FOLDER/layout.xml is cmake/docs_layout.xml with the sections of docs/README.md as menus; the last section, the notes, comes last.
FOLDER/version.doxy has the version with the date of the commit, or without a repository today's.
"""
import datetime
import subprocess
import sys
from pathlib import Path
from xml.sax.saxutils import quoteattr

from pages_for_doxygen import EXAMPLES, INDEX, ROOT, anchor, examples, label, label_of, sections


def tab(page, name, below=()):
    kind = "usergroup" if below else "user"
    return f'<tab type="{kind}" visible="yes" title={quoteattr(name)} url="@ref {label(page)}">{"".join(below)}</tab>\n      '


def menu(title, pages):
    """A section. The sources hang below the page of the examples."""
    sources = [tab(file, str(file.relative_to(EXAMPLES.parent))) for file in examples()]
    tabs = "".join(tab(page, name, sources if page == EXAMPLES else ()) for page, name in pages)
    return f'<tab type="usergroup" visible="yes" url="@ref {label_of(INDEX, anchor(title))}" title={quoteattr(title)}>{tabs}</tab>'


def date():
    """The commit's date."""
    git = subprocess.run(["git", "-c", "safe.directory=*", "log", "-1", "--format=%cs"], cwd=ROOT, capture_output=True, text=True)
    return git.stdout.strip() or datetime.date.today().isoformat()


def main():
    folder, version = Path(sys.argv[1]), sys.argv[2]
    *first, last = [menu(*section) for section in sections()]
    layout = (ROOT / "cmake" / "docs_layout.xml").read_text().replace("<!-- sections -->", "\n    ".join(first))
    (folder / "layout.xml").write_text(layout.replace("<!-- last section -->", last))
    (folder / "version.doxy").write_text(f'PROJECT_NUMBER = "{version}, {date()}"\n')


if __name__ == "__main__":
    main()
