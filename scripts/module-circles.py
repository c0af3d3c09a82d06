#!/usr/bin/env python3
"""Lists the circles of modules in each crate: groups of modules of which each uses all others, directly or through others.

A module is a file. A file that declares children (`mod x;`) is one module with what it alone has in it. An edge is a path
that begins with `crate::` or `super::`, in a `use` or elsewhere, outside of tests; a path to an item that a module only
re-exports is an edge to the module that defines it. With `--top` a top module of a crate is one module with all below it.

    scripts/module-circles.py [--top] [--max N] [CRATE ...]

Prints one line a circle, largest first, and exits with 1 if one has more than N modules (6 unless told).
"""

import re
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent


def strip(text):
    """Removes comments, strings and test modules, which count for nothing."""
    text = re.sub(r"//[^\n]*", "", text)
    text = re.sub(r'"(?:\\.|[^"\\])*"', '""', text, flags=re.S)
    return re.split(r"#\[cfg\(test\)\]\s*mod tests\b\s*\{", text)[0]


def use_trees(text):
    """Yields the full paths of all `use` declarations, with whether they are public."""
    for match in re.finditer(r"(\bpub(?:\([^)]*\))?\s+)?\buse\s+([^;]+);", text):
        for path in expand(match.group(2)):
            yield path, bool(match.group(1))


def expand(tree):
    tree = tree.strip()
    brace = tree.find("{")
    if brace < 0:
        yield re.sub(r"\s+as\s+\w+", lambda m: m.group(0), tree).strip()
        return
    head, body = tree[:brace], tree[brace + 1 : tree.rindex("}")]
    depth, part = 0, ""
    for c in body + ",":
        if c == "," and depth == 0:
            if part.strip():
                for rest in expand(part):
                    yield head + rest
            part = ""
            continue
        depth += (c == "{") - (c == "}")
        part += c


def modules_of(src):
    found = {}
    for file in sorted(src.rglob("*.rs")):
        parts = list(file.relative_to(src).with_suffix("").parts)
        if parts[-1] in ("lib", "main", "mod"):
            parts.pop()
        if "tests" in parts or "bin" in parts or (parts and parts[-1] == "tests"):
            continue
        found[tuple(parts)] = strip(file.read_text())
    return found


def absolute(path, at):
    """Returns the segments of a path seen from a module, or None if it leads out of the crate."""
    parts = [p.strip() for p in path.split("::")]
    if parts[0] == "crate":
        return parts[1:]
    here = list(at)
    if parts[0] == "self":
        parts = parts[1:]
    elif parts[0] == "super":
        while parts and parts[0] == "super":
            if not here:
                return None
            here.pop()
            parts = parts[1:]
    else:
        return None
    return here + parts


def graph(src):
    modules = modules_of(src)
    # What a module passes on: name -> path in the crate.
    exports = {m: {} for m in modules}
    for module, text in modules.items():
        for path, public in use_trees(text):
            name = re.split(r"\s+as\s+", path)
            target = absolute(name[0], module)
            if target is None:
                first = name[0].split("::")[0].strip()
                if module + (first,) not in modules:
                    continue
                target = list(module) + [p.strip() for p in name[0].split("::")]
            exports[module][(name[-1] if len(name) > 1 else target[-1] if target else "").strip()] = (target, public)

    def resolve(target, seen=()):
        """Returns the module that defines what the path names."""
        at = ()
        for i, segment in enumerate(target):
            if at + (segment,) in modules:
                at += (segment,)
                continue
            passed = exports[at].get(segment)
            if passed and (at, segment) not in seen:
                return resolve(list(passed[0]) + target[i + 1 :], seen + ((at, segment),))
            break
        return at

    edges = {m: set() for m in modules}
    for module, text in modules.items():
        paths = [re.split(r"\s+as\s+", p)[0] for p, public in use_trees(text) if not public]
        body = re.sub(r"\buse\s+[^;]+;", "", text)
        paths += re.findall(r"\b(?:crate|super)(?:::\w+)+", body)
        for path in paths:
            target = absolute(path, module)
            if target is None:
                first = path.split("::")[0].strip()
                if module + (first,) not in modules:
                    continue
                target = list(module) + [p.strip() for p in path.split("::")]
            if target and target[-1] in ("*", "self"):
                target = target[:-1]
            to = resolve(target)
            if to != module and to:
                edges[module].add(to)
        # A child that the text names as `child::item`.
        for first in re.findall(r"(?<![\w:])(\w+)::", body):
            if module + (first,) in modules:
                edges[module].add(module + (first,))
    return edges


def of_top(edges):
    """Returns the edges between the top modules of a crate; its root file is none of them."""
    top = {}
    for module, to in edges.items():
        if module:
            top.setdefault(module[:1], set()).update(t[:1] for t in to if t and t[:1] != module[:1])
    return top


def circles(edges):
    """Tarjan's strongly connected components, without recursion."""
    index, low, on, stack, out, count = {}, {}, set(), [], [], 0
    for root in edges:
        if root in index:
            continue
        work = [(root, iter(sorted(edges[root])))]
        index[root] = low[root] = count = count + 1
        stack.append(root)
        on.add(root)
        while work:
            node, todo = work[-1]
            for to in todo:
                if to not in index:
                    index[to] = low[to] = count = count + 1
                    stack.append(to)
                    on.add(to)
                    work.append((to, iter(sorted(edges[to]))))
                    break
                if to in on:
                    low[node] = min(low[node], index[to])
            else:
                work.pop()
                if work:
                    low[work[-1][0]] = min(low[work[-1][0]], low[node])
                if low[node] == index[node]:
                    group = []
                    while True:
                        member = stack.pop()
                        on.discard(member)
                        group.append(member)
                        if member == node:
                            break
                    if len(group) > 1:
                        out.append(group)
    return sorted(out, key=len, reverse=True)


def main():
    args = sys.argv[1:]
    limit = int(args[args.index("--max") + 1]) if "--max" in args else 6
    show = "--edges" in args
    names = [a for a in args if not a.startswith("--") and not a.isdigit()]
    crates = names or sorted(p.parent.name for p in (ROOT / "crates").glob("*/src"))
    largest = 0
    for crate in crates:
        edges = graph(ROOT / "crates" / crate / "src")
        if "--top" in args:
            edges = of_top(edges)
        for group in circles(edges):
            largest = max(largest, len(group))
            print(f"{crate}: {len(group)}: " + " ".join(sorted("/".join(m) or "lib" for m in group)))
            if show:
                for m in sorted(group):
                    print("   ", "/".join(m), "->", " ".join(sorted("/".join(t) for t in edges[m] if t in group)))
    sys.exit(largest > limit)


if __name__ == "__main__":
    main()
