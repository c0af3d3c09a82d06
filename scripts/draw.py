#!/usr/bin/env python3
"""Draws doc comments, test names and commit subjects at random, for a reader who has not written them.

    scripts/draw.py SEED [COMMENTS] [TESTS]

Prints COMMENTS doc comments (default 100) with the item each stands at, and TESTS test names (default 50). The same seed and the
same tree give the same draw. A reader marks each one that needs a second reading; the commit that changes the language has the verdict.
"""

import random
import re
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent


def sources():
    return sorted(p for p in (ROOT / "crates").rglob("*.rs") if "target" not in p.parts)


def comments(path):
    """Yields each doc comment outside of tests with its first line's number and the item after it."""
    lines = path.read_text().split("\n")
    at = 0
    while at < len(lines):
        mark = lines[at].strip()[:3]
        if mark not in ("///", "//!"):
            at += 1
            continue
        start, text = at, []
        while at < len(lines) and lines[at].strip().startswith(mark):
            text.append(lines[at].strip()[3:].strip())
            at += 1
        item = at
        while item < len(lines) and lines[item].strip().startswith(("#[", ")]")):
            item += 1
        head = "module" if mark == "//!" else lines[item].strip() if item < len(lines) else ""
        yield start + 1, head, " ".join(text)


def main():
    seed = sys.argv[1] if len(sys.argv) > 1 else sys.exit(__doc__)
    count = int(sys.argv[2]) if len(sys.argv) > 2 else 100
    tests = int(sys.argv[3]) if len(sys.argv) > 3 else 50
    draw = random.Random(seed)
    docs, names = [], []
    for path in sources():
        place = path.relative_to(ROOT)
        in_tests = "tests" in path.parts or path.stem == "tests"
        if not in_tests:
            docs += [(place, *comment) for comment in comments(path)]
        for match in re.finditer(r"#\[test\]\s*(?:#\[[^\]]*\]\s*)*fn (\w+)|^ +fn (\w+)\(_?kernel: KernelMask\) \{", path.read_text(), re.M):
            names.append((place, match.group(1) or match.group(2)))
    print(f"{len(docs)} doc comments, {len(names)} tests, seed {seed}\n")
    for place, line, item, text in draw.sample(docs, min(count, len(docs))):
        print(f"{place}:{line}  {item[:90]}\n    {text}\n")
    for place, name in draw.sample(names, min(tests, len(names))):
        print(f"{place}  {name}")


main()
