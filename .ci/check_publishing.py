#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""Checks what whoever publishes the repository relies on: its address in every place, and the files of .github: check_publishing.py [--write]

HOMEPAGE_URL of project() in CMakeLists.txt is the address that `git clone` takes; it is empty as long as there is none. What follows
from it, and from the version, stands in README.md, docs/README.ko.md and docs/install.md between `<!-- begin publish: NAME -->` and
`<!-- end publish -->`, and in one line of the wheel's pyproject.toml and of vcpkg.json. --write puts it there.

Every YAML file of .github must parse; a workflow has jobs with steps, an issue form the fields that GitHub asks for, or GitHub leaves
it out without a message. Its Markdown files link to files that exist.
"""
import re
import sys
from pathlib import Path

import yaml

ROOT = Path(__file__).resolve().parent.parent
MARKED = re.compile(r"(<!-- begin publish: (\w+) -->)(.*?)(<!-- end publish -->)", re.S)
STATUS = {
    "README.md": "Version {version} · CUDA 12.4 or newer, Linux · tested on NVIDIA H100 and H200 · the API may change before 1.0 "
                 "· [MIT licence](LICENSE)",
    "docs/README.ko.md": "버전 {version} · CUDA 12.4 이상, Linux · NVIDIA H100과 H200에서 테스트 · 1.0 전에는 API가 바뀔 수 있음 "
                         "· [MIT 라이선스](../LICENSE)",
}
CLONE = {
    "README.md": ("Clone this repository into a folder `giwa`, from the address at which you found it. In that folder, with CUDA, a C++ "
                  "compiler, make and CMake, with or without a GPU:",
                  "On Linux with CUDA, a C++ compiler, make and CMake, with or without a GPU:", "Then, in the folder `giwa`:"),
    "docs/README.ko.md": ("지금 보고 있는 주소에서 이 저장소를 `giwa` 폴더로 클론하고, 그 폴더에서 다음을 실행하세요. CUDA, C++ 컴파일러, make, CMake가 "
                          "필요하고 GPU는 없어도 됩니다.",
                          "CUDA, C++ 컴파일러, make, CMake가 설치된 Linux에서 다음을 실행하세요. GPU는 없어도 됩니다.", "그런 다음 `giwa` 폴더에서 실행하세요."),
}


def published():
    """The address or an empty string, the version in progress, and the year of the last one with a date."""
    address = re.search(r'^\s*HOMEPAGE_URL "(.*)"', (ROOT / "CMakeLists.txt").read_text(), re.M)[1].rstrip("/")
    if not re.fullmatch(r"|https://\S+", address):
        sys.exit(f"CMakeLists.txt: HOMEPAGE_URL is not an address that begins with https://: {address}")
    changelog = (ROOT / "docs/changelog.md").read_text()
    version, year = re.search(r"^## (\S+), ", changelog, re.M)[1], re.search(r"^## \S+, (\d{4})-", changelog, re.M)[1]
    return address, version, year


def text_of(name, page, address, version, year):
    """What stands between the marks of this name on a page."""
    web = address.removesuffix(".git")
    if name == "status":
        badge = f"[![CI]({web}/actions/workflows/ci.yml/badge.svg)]({web}/actions/workflows/ci.yml) " if "//github.com/" in web else ""
        return f"\n{badge}{STATUS[page].format(version=version)}\n"
    if name == "clone":
        unset, before, then = CLONE[page]
        return f"\n{before}\n\n```sh\ngit clone {address} giwa\n```\n\n{then}\n" if address else f"\n{unset}\n"
    if name == "fetch":
        return (f"In your project the address is `{address}`, with a tag or a commit instead of `HEAD`." if address else
                "In your project name the address you cloned from, and a commit instead of `HEAD`.")
    if name == "citation":
        fields = [("title", "giwa: grids, tiles and attention for CUDA C++"), ("author", "{The giwa authors}"), ("year", year),
                  ("version", version), *([("url", web)] if web else [])]
        return "\n```bibtex\n@software{giwa,\n" + "".join(f"  {k:7} = {{{v}}},\n" for k, v in fields) + "}\n```\n"
    sys.exit(f"{page}: unknown mark: publish: {name}")


def with_line(text, after, line):
    """A file with this line, or without one, after the line that matches."""
    key = re.match(r"\s*\S+", line)[0]
    text = re.sub(rf"^{re.escape(key)} .*\n", "", text, flags=re.M)
    return re.sub(rf"^({after}.*\n)", lambda match: match[1] + line, text, count=1, flags=re.M) if "http" in line else text


def wanted_files(address, version, year):
    """(file, its text as it must be)."""
    for page in ("README.md", "docs/README.ko.md", "docs/install.md"):
        text = (ROOT / page).read_text()
        if not MARKED.search(text):
            sys.exit(f"{page}: has no `<!-- begin publish: NAME -->`")
        yield page, MARKED.sub(lambda m: m[1] + text_of(m[2], page, address, version, year) + m[4], text)
    wheel, port = "cmake/wheel/pyproject.toml", "cmake/vcpkg/giwa/vcpkg.json"
    yield wheel, with_line((ROOT / wheel).read_text(), "license = ", f'urls = {{Repository = "{address}"}}\n')
    yield port, with_line((ROOT / port).read_text(), '  "license": ', f'  "homepage": "{address}",\n')


def flaws_of(path):
    """What GitHub would reject in a YAML file of .github."""
    try:
        content = yaml.safe_load(path.read_text())
    except yaml.YAMLError as error:
        return [str(error)]
    if not isinstance(content, dict):
        return ["is not a mapping"]
    if path.parent.name == "workflows":  # YAML reads the key `on` as true
        jobs = content.get("jobs") or {}
        return [f"has no `{key}`" for key in ("name", "jobs") if not content.get(key)] + ["has no `on`"] * (True not in content) + [
            f"job {name}: has no `runs-on` or no `steps`" for name, job in jobs.items() if not (job.get("runs-on") and job.get("steps"))]
    if path.name == "config.yml":
        return [] if isinstance(content.get("blank_issues_enabled"), bool) else ["has no `blank_issues_enabled`"]
    flaws = [f"has no `{key}`" for key in ("name", "description", "body") if not content.get(key)]
    fields = content.get("body") or []
    ids = [field["id"] for field in fields if "id" in field]
    flaws += ["two fields have one id"] if len(ids) != len(set(ids)) else []
    for field in fields:
        needed = "value" if field.get("type") == "markdown" else "label"
        if field.get("type") not in ("markdown", "input", "textarea", "dropdown", "checkboxes") or not field.get("attributes", {}).get(needed):
            flaws.append(f"a field has an unknown type, or no `{needed}`: {field}")
    return flaws + ["has no field that must be filled"] * (not any(f.get("validations", {}).get("required") for f in fields))


def main(write):
    address, version, year = published()
    for name, text in wanted_files(address, version, year):
        if write:
            (ROOT / name).write_text(text)
        elif text != (ROOT / name).read_text():
            sys.exit(f"{name} does not follow CMakeLists.txt's HOMEPAGE_URL and the version: run .ci/check_publishing.py --write")
    files = sorted((ROOT / ".github").rglob("*.yml"))
    flaws = [f"{path.relative_to(ROOT)}: {flaw}" for path in files for flaw in flaws_of(path)]
    flaws += [f"{page.relative_to(ROOT)}: no such file: {target}" for page in sorted((ROOT / ".github").rglob("*.md"))
              for target in re.findall(r"\]\(([^)#:]+)\)", page.read_text()) if not (page.parent / target).exists()]
    if not files:
        flaws.append(".github has no YAML file")
    print("".join(f"{flaw}\n" for flaw in flaws) + f"publishing: version {version}, {address or 'no address yet'}; "
          f"{len(files)} files of .github, {len(flaws)} flaws")
    return 1 if flaws else 0


if __name__ == "__main__":
    sys.exit(main("--write" in sys.argv[1:]))
