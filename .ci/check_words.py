#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""Checks that headers, pages, examples and benchmarks use the field's terms: check_words.py [file or folder]...

The table has what is not written and what to write instead. It holds words that a script can find; the rules for sentences are in
docs/contributing.md.
"""
import re
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
WHERE = ["include", "README.md", "docs", "examples", "bench"]
ENDINGS = {".hpp", ".cuh", ".cu", ".cpp", ".md", ".py"}
WORDS = [
    (r"(?:one|its|their)(?:'s)? own mask|(?:of|is) one's own", "custom"),
    (r"(?<!\*)\b[Bb]eside\b(?! =|[-}])", "compared with, versus, with, next to"),
    (r"\b[Mm]end(?:s|ed|ing)?\b", "fix"),
    (r"\blies? side by side\b", "must be contiguous, are adjacent"),
    (r"(?<!there )\bis no number\b", "is not a number, must be finite, is out of range"),
    (r"\bhas in it\b", "contains"),
    (r"\bkeeps \d+ to \d+ bytes elsewhere\b", "spills ... bytes"),
    (r"\bfloors?\b(?! ?\(|\(|::)(?<!std::floor)(?<!math\.floor)(?<!`floor)", "layer, layers"),
    (r"\b[Dd]oors?\b", "public header"),
    (r"\b[Cc]olumns? [PHDL]\b", "kind"),
    (r"\bplanner\b", "tile scheduler"),
    (r"\bthose who multiply\b|\bwho multiplies\b", "consumer"),
    (r"\bdoubtful\b", "needs_scrub"),
    (r"\b(?:fp16|fp32) (?:in |on )?pieces\b|\bpieces of fp32\b", "split fp16, hi and lo"),
    (r"\bsoftmax weights\b", "P, probabilities"),
    (r"\btensor cores cut\b", "truncate"),
    (r"\bwhere some has more than other\b", "when work is uneven"),
    (r"\bbehind the end\b", "past the end"),
    (r"\bin the mean\b", "on average, geometric mean"),
    (r"\bbits that it has alone\b", "identical bits alone or in a batch"),
]


def main():
    flaws, files = [], 0
    for name in sys.argv[1:] or WHERE:
        path = ROOT / name
        for file in sorted(path.rglob("*")) if path.is_dir() else [path]:
            if not file.is_file() or file.suffix not in ENDINGS:
                continue
            files += 1
            for number, line in enumerate(file.read_text(encoding="utf-8").split("\n"), 1):
                for pattern, better in WORDS:
                    if match := re.search(pattern, line):
                        flaws.append(f"{file.relative_to(ROOT)}:{number}: \"{match.group()}\": write {better}")
    print("".join(f"{flaw}\n" for flaw in flaws) + f"words: {files} files, {len(flaws)} to change")
    return 1 if flaws else 0


if __name__ == "__main__":
    sys.exit(main())
