#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""Checks the functions of the site's reference: check_reference.py FOLDER, where Doxygen has written it.

Each one that takes three arguments or more has a table of its parameters, and each one a link to a page and an example
(cmake/docs_see.txt). Wrappers of instructions (arch) are left out.
"""
import html
import re
import sys
from pathlib import Path


def main(folder):
    count, flaws = 0, []
    for page in sorted(Path(folder).glob("group__*.html")):
        for item in re.split(r'<h2 class="memtitle">', page.read_text(encoding="utf-8"))[1:] if page.name != "group__layer__arch.html" else ():
            name = html.unescape(re.sub(r"<[^>]+>|&#160;", "", item.partition("</h2>")[0])).strip("\u25c6 ")
            if "()" not in name:
                continue
            count += 1
            if item.count('class="paramname"') > 2 and 'class="params"' not in item:
                flaws.append(f"{page.name}: {name} has no table of parameters: a list below `/// Parameters:` in its header")
            if "section see" not in item:
                flaws.append(f"{page.name}: {name} has no link to a page: a line in cmake/docs_see.txt")
    print("".join(f"{flaw}\n" for flaw in flaws) + f"reference: {count} functions, {len(flaws)} flaws")
    return 1 if flaws or not count else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
