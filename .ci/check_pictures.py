#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""Checks every SVG in docs/plots and docs/pictures: no text outside its picture, no two on each other, and the style for dark screens
that bench/plot_frame.py writes, below which a white ground is the first shape.

    check_pictures.py [FOLDER...]      without folders, these two of the repository

The widths are those of DejaVu Sans, which Verdana shares, and 0.602 em a letter for monospace fonts.
"""
import math
import pathlib
import re
import sys
import xml.etree.ElementTree as tree

ROOT = pathlib.Path(__file__).resolve().parent.parent
# Advances of DejaVu Sans in hundredths of an em, rounded up; of letters that are not here that of m.
WIDTHS = {28: "'ijl", 30: "IJ", 32: " ,.·", 34: "/:;\\|", 36: "f", 37: "-", 40: "()[]t", 41: "!²³⁴⁵⁶⁷", 42: "r", 46: '"', 50: "*_`–°", 53: "sz⁻", 54: "?",
          55: "c", 56: "L", 58: "Fk", 60: "vxy", 61: "P", 62: "TYaeo", 64: "$0123456789ESbdghnpqu{}µ", 66: "K", 69: "ABVXZ", 70: "CR", 74: "U", 75: "N",
          76: "H", 77: "D", 78: "&G", 79: "OQ", 82: "w", 84: "#+<=>^~×≥≤→−", 87: "M", 96: "%", 98: "m", 99: "W", 100: "@—…"}
ADVANCE = {letter: width / 100 for width, letters in WIDTHS.items() for letter in letters}
DARK = re.search(r'^DARK = "(.*)"', (ROOT / "bench" / "plot_frame.py").read_text(encoding="utf-8"), re.M)[1]
BOLD = 1.14
ASCENT, DESCENT = 0.73, 0.2  # of capital letters and of a g, in em
INHERITED = ("font-size", "font-family", "font-weight", "text-anchor")


def width(text, style):
    if "mono" in style.get("font-family", ""):
        return 0.602 * len(text)
    return sum(ADVANCE.get(letter, 0.98) for letter in text) * (BOLD if style.get("font-weight", "400") in ("bold", "600", "700") else 1)


def product(a, b):
    return (a[0] * b[0] + a[2] * b[1], a[1] * b[0] + a[3] * b[1], a[0] * b[2] + a[2] * b[3], a[1] * b[2] + a[3] * b[3],
            a[0] * b[4] + a[2] * b[5] + a[4], a[1] * b[4] + a[3] * b[5] + a[5])


def transform(text):
    """The matrix (a, b, c, d, e, f) of a transform attribute."""
    matrix = (1, 0, 0, 1, 0, 0)
    for name, values in re.findall(r"(\w+)\s*\(([^)]*)\)", text):
        v = [float(x) for x in re.split(r"[\s,]+", values.strip())]
        if name == "translate":
            step = (1, 0, 0, 1, v[0], v[1] if len(v) > 1 else 0)
        elif name == "scale":
            step = (v[0], 0, 0, v[-1], 0, 0)
        elif name == "rotate":
            c, s = math.cos(math.radians(v[0])), math.sin(math.radians(v[0]))
            x, y = v[1:] if len(v) == 3 else (0, 0)
            step = (c, s, -s, c, x - c * x + s * y, y - s * x - c * y)
        elif name == "matrix":
            step = tuple(v)
        else:
            raise ValueError(f"transform {name}")
        matrix = product(matrix, step)
    return matrix


def texts(element, style=None, matrix=(1, 0, 0, 1, 0, 0), place=(0.0, 0.0)):
    """(text, left, top, right, bottom, size) of an element and all in it."""
    name = element.tag.rsplit("}", 1)[-1]
    if name in ("defs", "metadata", "style", "title", "desc"):
        return
    own = dict(x.split(":", 1) for x in element.get("style", "").split(";") if ":" in x)
    own = {k.strip(): v.strip() for k, v in own.items()}
    style = {**(style or {}), **{k: element.get(k) for k in INHERITED if element.get(k)}, **{k: own[k] for k in INHERITED if k in own}}
    matrix = product(matrix, transform(element.get("transform", "")))
    if name in ("text", "tspan"):
        place = float(element.get("x", place[0])) + float(element.get("dx", 0)), float(element.get("y", place[1])) + float(element.get("dy", 0))
        if element.text and element.text.strip():
            size = float(re.match(r"[\d.]+", style.get("font-size", "16"))[0])
            wide = size * width(element.text.strip(), style)
            left = place[0] - wide * {"middle": 0.5, "end": 1}.get(style.get("text-anchor"), 0)
            corners = [(matrix[0] * x + matrix[2] * y + matrix[4], matrix[1] * x + matrix[3] * y + matrix[5])
                       for x in (left, left + wide) for y in (place[1] - ASCENT * size, place[1] + DESCENT * size)]
            xs, ys = zip(*corners)
            yield element.text.strip(), min(xs), min(ys), max(xs), max(ys), size
    for child in element:
        yield from texts(child, style, matrix, place)


def flaws(svg):
    root = tree.fromstring(svg)
    ground = next((x for x in root if x.tag.rsplit("}", 1)[-1] in ("rect", "path", "g")), None)
    if svg.count(DARK) != 1 or svg.count("<style>") != 1:
        yield f"has not once the style for dark screens, {DARK}"
    if ground is None or ground.get("fill") != "white" or ground.get("rx") is None:
        yield "its first shape is no white ground with round corners"
    _, _, wide, high = (float(x) for x in root.get("viewBox").split())
    found = list(texts(root))
    for text, left, top, right, bottom, _ in found:
        if left < 0 or top < 0 or right > wide or bottom > high:
            yield f"`{text}` is at {left:.0f} to {right:.0f}, {top:.0f} to {bottom:.0f} of {wide:.0f} x {high:.0f}"
    for i, (text, left, top, right, bottom, size) in enumerate(found):
        for other, left_2, top_2, right_2, bottom_2, size_2 in found[:i]:
            spare = 0.1 * min(size, size_2)
            if min(right, right_2) - max(left, left_2) > spare and min(bottom, bottom_2) - max(top, top_2) > spare:
                yield f"`{other}` and `{text}` overlap"


def main(folders):
    pictures = [p for folder in folders for p in sorted(pathlib.Path(folder).glob("*.svg"))]
    found = [f"{p.parent.name}/{p.name}: {flaw}" for p in pictures for flaw in flaws(p.read_text(encoding="utf-8"))]
    if found or not pictures:
        sys.exit("\n".join(found) + f"\n{len(found)} flaw(s) in {len(pictures)} picture(s)")
    print(f"pictures: {len(pictures)}, no text outside them or on another, each dark on a dark screen")


if __name__ == "__main__":
    main(sys.argv[1:] or (ROOT / "docs" / "plots", ROOT / "docs" / "pictures"))
