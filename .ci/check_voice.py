#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""Looks for words that giwa's vocabulary has other words for, and at lengths: check_voice.py [--report-only] [file or folder]...

Without paths it reads include/, docs/, examples/, bench/ and README.md. A hit names the file, the line and the word to use. A line that needs the word in
its plain meaning has `voice: allow` in it, or stands in ALLOWED. --report-only prints how often each word occurs, and exits with 0.

A sentence of README.md, docs/ and examples/ has at most SENTENCE_WORDS words, outside tables, code and the pages in LONG. The pages in
the menu of docs/README.md, without its groups of records and without translations, have at most MENU_WORDS words together.
"""
import argparse
import re
import sys
from collections import Counter
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
README = ROOT / "README.md"
README_WORDS = 1300  # what a reader finishes; the rest is in docs/
CODE_WIDTH = 96  # characters of a code block that GitHub shows without a scroll bar
SENTENCE_WORDS = 45  # a longer one is read twice
MENU_WORDS = 55_000  # of all pages that somebody who uses giwa may look into
LONG = ("docs/notes/", "docs/results/", "docs/changelog.md")  # records, which may have long sentences
RECORDS = re.compile(r"## .*\b(?:Notes|Background|Results)\b", re.I)  # groups of the menu that no user has to read
FILES = {".hpp", ".cuh", ".cu", ".cpp", ".md", ".py"}
SKIPPED = ("docs/results/", "docs/README.ko.md")

# (pattern, the word to use). Matched line by line; CODE patterns in headers and in code of the pages, WORDS everywhere.
WORDS = [
    (r"\b(?:one's|your) own\b", "custom"),
    (r"\bof (?:its|their) own\b|\b(?:its|their) own mask\b", "custom, separate"),
    (r"\blies? side by side\b|\bside by side\b", "contiguous"),
    (r"\bis no (?:number|function|multiple|power|view|test|tensor)\b", "must be ..., out of range"),
    (r"\bmend(?:s|ed|ing)?\b", "fix"),
    (r"(?<!\*)\bbeside\b(?! =|[-}])", "compared with, versus, next to"),
    (r"\b(?:those )?who multipl(?:y|ies)\b|\bmultipliers\b", "consumer"),
    (r"\bthe suppl(?:y|ier)\b|\bsupply warps?\b", "producer"),
    (r"\bplanners?\b", "tile scheduler"),
    (r"\bchecker warps?\b|\bthe checkers?\b", "NaN scrubber"),
    (r"\bdoubtful\b", "needs_scrub, has_nonfinite"),
    (r"\b(?:take|takes|taking|in) turns\b", "ping-pong (acquire, release); alternate"),
    (r"(?<!std::)(?<!math\.)(?<!`)\bfloors?\b(?! ?\(|::)", "layer"),
    (r"\bdoors?\b", "public header"),
    (r"\bcolumn [PHDL]\b|\bcolumns P\b", "kind"),
    (r"\bfor nothing\b", "at no cost"),
    (r"\bis asked for\b(?= by nobody)|\bno score is asked\b", "say what is skipped"),
    (r"\bbehind (?:the|its|their) end\b", "past the end"),
    (r"\bdocuments? of one's own\b", "segment"),
    (r"\btensor cores (?:cut|chop)\b|\bcuts? what (?:it|they) adds?\b", "truncate toward zero"),
    (r"\bhas in it\b|\bhave in them\b", "contains"),
    (r"\b(?:by itself|alone) the bits\b|\bthe bits that it has\b", "identical bits"),
    (r"\bkeeps \d+ to \d+ bytes elsewhere\b", "spills ... bytes"),
    (r"\b(?:fp16|fp32) (?:in |on )?pieces\b|\bpieces of fp32\b", "split fp16, hi and lo"),
    (r"\bsoftmax weights\b", "P, probabilities"),
    (r"\bin the mean\b", "on average, geometric mean"),
    (r"\bhalf a page\b|\babout a page\b", "fits on one page"),
    (r"\bsome has more than other\b", "uneven"),
    (r"\bnobody\b", "no thread, no caller"),
    (r"\bthe house\b", "the library, the source tree"),
    (r"\b(?:run|piece)s? of (?:its |their |the )?(?:leaves|keys)\b", "split"),
]
CODE = [
    (r"\bleave_[a-z_]+", "release_*"),
    (r"(?<![.>])(?<!tile_keep )\bkeep\s*\((?!\s*\))", "fence_operand (compiler fence); tile_keep of a mask is fine"),
    (r"\b(?:take|give)_turn\w*", "acquire, release"),
    (r"\bturns\b(?=[.;(])", "ping-pong"),
    (r"\bdocuments\s*\{", "segment_ids"),
    (r"\bgiwa::width\b|[^.\w]width\s*\{", "sliding_window"),
    (r"\bstruct (?:item|planner|checker|supply)\b", "work_tile, tile_scheduler, nan_scrubber, producer"),
    (r"\bkey_share\b|\bshare::", "tile_keep::all, none, some"),
    (r"\bplace\b(?= at\b)", "attention_coord"),
    (r"\bapart\b", "fallback (work left to the slow exact path)"),
    # A work tile is what a block computes, a split a share of its keys, a partial a state that is set aside, a slot where it lies.
    (r"\brun_(?:shape|params|place|search|states|partials|walk|work|items?|length)\b|\bfind_run\w*|\b(?:shape_of|wait_for)_runs?\b", "split_*, find_split"),
    (r"\b(?:sum_in|merge|earlier|least)_(?:pieces|runs)\b|\bpiece_(?:tiles|keys)\w*", "split_*, *_splits"),
    (r"\b(?:many_rows|few_rows)_item\b|\bitem_(?:of|floats|reader)\b|\bone_unit\b|\bunit_leaves\b", "work_tile, slot_floats"),
    (r"\bstate_(?:slots|floats)\b|\bstore_state\b|\brows_aside\b", "partial, slot"),
    (r"\b(?:box|leaf)_places?\b", "source"),
    (r"\bkept_by_mask\b", "visible (kept is what dropout leaves)"),
]
# (path, pattern of the line): plain meanings, and names that the vocabulary does not concern.
ALLOWED = [
    (r"docs/changelog\.md", r""),  # names of before
    (r"", r"std::floor|\bfloor\(|floor of the (?:logarithm|quotient)|\bflooring\b"),
    (r"", r"\[\[deprecated"),
    (r"", r"\bnobody else\b"),
    (r"numeric/overlap\.hpp|docs/attention\.md", r"keep its elements apart"),
    (r"bench/", r"\"apart\"|,apart\\n"),  # a column of the reports in docs/results: the largest difference of two results
]


def lines_of(path):
    """(number, line, whether it is code): all of a header, the fenced blocks and `code` of a page."""
    fenced = False
    for number, line in enumerate(path.read_text().splitlines(), 1):
        if path.suffix == ".md" and line.startswith("```"):
            fenced = not fenced
            continue
        yield number, line, path.suffix != ".md" or fenced


def readme_flaws():
    """What makes README.md too long: its words, counted as `wc -w` does, and the lines of its code blocks."""
    words = len(README.read_text().split())
    if words > README_WORDS:
        yield f"README.md: {words} words, at most {README_WORDS}; move text to docs/"
    for number, line, is_code in lines_of(README):
        if is_code and len(line) > CODE_WIDTH:
            yield f"README.md:{number}: {len(line)} characters in a code block, at most {CODE_WIDTH}"


def sentences(path):
    """(number of its first line, sentence) of a page, outside of headings, tables and code; `code` and a link's address are no words."""
    paragraph, first, fenced = [], 0, False
    text = re.sub(r"<!--.*?-->", lambda m: "\n" * m[0].count("\n"), path.read_text(), flags=re.S)
    for number, line in enumerate([*text.splitlines(), ""], 1):
        fence = line.lstrip().startswith("```")
        starts = re.match(r"\s*(?:[-*>] |\d+\. )", line)
        if fence or fenced or starts or not line.strip() or line.lstrip().startswith(("|", "#", "![")):
            plain = re.sub(r"\]\([^)]*\)", "]", re.sub(r"`[^`]*`", "code", " ".join(paragraph)))
            for sentence in re.split(r"(?<=[.!?])[\])*\"]*\s+", plain):
                yield first, sentence
            paragraph = []
        if not fence and not fenced and line.strip() and not line.lstrip().startswith(("|", "#", "![")):
            first = first if paragraph else number
            paragraph.append(line.strip())
        fenced ^= fence


def words_in(text):
    """Words with a letter or a digit, code included; comments and the bars of tables are none."""
    return len(re.findall(r"\S*\w\S*", re.sub(r"<!--.*?-->|\||-{3,}", " ", text, flags=re.S)))


def menu():
    """The pages that docs/README.md lists, without its groups of records and without translations, of which a reader reads one."""
    pages, counts = [], True
    for line in (ROOT / "docs" / "README.md").read_text().splitlines():
        counts = not RECORDS.match(line) if line.startswith("## ") else counts
        if counts and line.startswith("- "):
            pages += [(ROOT / "docs" / target).resolve() for target in re.findall(r"\]\((?!\w+:)([^)#]+(?<!\.ko)\.md)", line)]
    return list(dict.fromkeys(pages))


def length_flaws(files):
    """Sentences that are too long, and a menu that is; of the pages among the files."""
    for file in files:
        name = str(file.relative_to(ROOT)) if file.is_relative_to(ROOT) else str(file)
        if file.suffix == ".md" and not name.startswith(LONG):
            for number, sentence in sentences(file):
                if (words := words_in(sentence)) > SENTENCE_WORDS:
                    yield f"{name}:{number}: a sentence of {words} words, at most {SENTENCE_WORDS}: {sentence[:100]}..."
    pages = menu()
    if README in files and (words := sum(words_in(page.read_text()) for page in pages)) > MENU_WORDS:
        yield f"docs/README.md: {words} words on the {len(pages)} pages of the menu, at most {MENU_WORDS}; move text to docs/notes/"


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n", maxsplit=1)[0])
    parser.add_argument("--report-only", action="store_true", help="count, and exit with 0")
    parser.add_argument("paths", nargs="*", type=Path)
    arguments = parser.parse_args()
    paths = [p.resolve() for p in arguments.paths] or [ROOT / "include", ROOT / "docs", ROOT / "examples", ROOT / "bench", README]
    files = sorted(f for p in paths for f in ([p] if p.is_file() else p.rglob("*")) if f.suffix in FILES)
    words = [(re.compile(p, re.I), use, False) for p, use in WORDS] + [(re.compile(p), use, True) for p, use in CODE]
    allowed = [(re.compile(p), re.compile(line)) for p, line in ALLOWED]

    counts, in_files = Counter(), Counter()
    for file in files:
        name = str(file.relative_to(ROOT)) if file.is_relative_to(ROOT) else str(file)
        if name.startswith(SKIPPED):
            continue
        for number, line, is_code in lines_of(file):
            for pattern, use, code_only in words:
                match = pattern.search(line) if is_code or not code_only else None
                if match is None or "voice: allow" in line or any(p.search(name) and of.search(line) for p, of in allowed):
                    continue
                counts[f"{match.group().strip().lower()} -> {use}"] += 1
                in_files[name] += 1
                if not arguments.report_only:
                    print(f"{name}:{number}: `{match.group().strip()}`: use {use}: {line.strip()[:120]}")
    total = sum(counts.values())
    if arguments.report_only:
        for what, count in counts.most_common(40):
            print(f"  {count:4} {what}")
    print(f"voice: {len(files)} files, {total} words to replace" +
          (f", most in {', '.join(f'{f} ({n})' for f, n in in_files.most_common(5))}" if total else ""))
    flaws = [] if arguments.report_only else [*length_flaws(files), *(readme_flaws() if README in files else ())]
    print("".join(f"{flaw}\n" for flaw in flaws), end="")
    return 1 if (total and not arguments.report_only) or flaws else 0


if __name__ == "__main__":
    sys.exit(main())
