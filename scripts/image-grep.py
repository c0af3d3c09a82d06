#!/usr/bin/env python3
"""Recursive grep by many processes, hot: a directory, `esker mount` in each way to show an image, and the kernel's squashfs.

    scripts/image-grep.py ESKER IMAGE DIRECTORY --work FOLDER --rounds 2 --json FILE

Needs root and memory for five copies of the tree: every file is locked there, since a kernel may take idle pages back (DAMON)
while another root's run, which takes half a minute, is under way. Pages of directories can't be locked: --walk SECONDS runs
find(1) over all roots that often. Tells the processor time of the commands, of Esker's daemon and of the whole machine; a run
beside which others computed is void, and told as such.
"""

import argparse
import ctypes
import json
import os
import resource
import subprocess
import time

PATTERN = "__init_subclass__"


def lock_files(root, part, parts, ready):
    """Locks every `parts`-th file below a root in memory, because a process may have 65,530 mappings, and waits."""
    libc = ctypes.CDLL(None, use_errno=True)
    libc.mmap.restype = ctypes.c_void_p
    libc.mmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int, ctypes.c_int, ctypes.c_int, ctypes.c_long]
    libc.mlock.argtypes = [ctypes.c_void_p, ctypes.c_size_t]
    paths = (os.path.join(folder, name) for folder, _, names in os.walk(root) for name in names)
    for number, path in enumerate(paths):
        if number % parts != part or os.path.islink(path):
            continue
        descriptor = os.open(path, os.O_RDONLY)
        size = os.fstat(descriptor).st_size
        if size:
            start = libc.mmap(None, size, 1, 1, descriptor, 0)
            if start in (None, ctypes.c_void_p(-1).value) or libc.mlock(start, size):
                raise OSError(ctypes.get_errno(), f"can't lock {path}")
        os.close(descriptor)
    open(ready, "w", encoding="utf-8").close()
    time.sleep(1e6)


def machine():
    """Processor seconds of the whole machine, in user mode and in the kernel."""
    with open("/proc/stat", encoding="utf-8") as file:
        ticks = [int(word) / 100 for word in file.readline().split()[1:]]
    return ticks[0] + ticks[1], ticks[2] + ticks[5] + ticks[6]


def daemon(esker, root):
    """Process of the daemon behind a mount, and how often it was asked what."""
    output = subprocess.run([esker, "status", "--json", root], check=True, stdout=subprocess.PIPE).stdout
    mount = json.loads(output)["mounts"][0]
    return mount["pid"], {kind["name"]: kind["requests"] for kind in mount["requests"]}


def used(pid):
    with open(f"/proc/{pid}/stat", encoding="utf-8") as file:
        fields = file.read().rsplit(")", 1)[1].split()
    return (int(fields[11]) + int(fields[12])) / 100


def run(esker, name, root, processes):
    ours = name.startswith("esker")
    pid, asked = daemon(esker, root) if ours else (None, {})
    before = used(pid) if ours else 0
    all_before, usage, start = machine(), resource.getrusage(resource.RUSAGE_CHILDREN), time.monotonic()
    children = [subprocess.Popen(["grep", "-rlF", PATTERN, root], stdout=subprocess.DEVNULL) for _ in range(processes)]
    if any(child.wait() for child in children):
        raise SystemExit(f"grep failed in {root}")
    real, after, all_after = time.monotonic() - start, resource.getrusage(resource.RUSAGE_CHILDREN), machine()
    user, system = after.ru_utime - usage.ru_utime, after.ru_stime - usage.ru_stime
    result = {"root": name, "real": round(real, 2), "user": round(user, 2), "sys": round(system, 2),
              "daemon": round(used(pid) - before, 2) if ours else 0.0,
              "machine_user": round(all_after[0] - all_before[0], 2), "machine_sys": round(all_after[1] - all_before[1], 2)}
    result["void"] = result["machine_user"] - user - result["daemon"] > 2.5
    if ours:
        now = daemon(esker, root)[1]
        result["requests"] = {kind: now[kind] - asked.get(kind, 0) for kind in now if now[kind] != asked.get(kind, 0)}
    return result


def mounted(arguments):
    roots = {"directory": arguments.directory}
    for name in ("esker", "esker --show-with overlay", "esker --show-with fuse", "squashfs"):
        roots[name] = os.path.join(arguments.work, name.replace(" ", ""))
        os.makedirs(roots[name], exist_ok=True)
        command = ["mount", "-t", "squashfs", "-o", "loop,ro", arguments.image, roots[name]]
        if name != "squashfs":
            command = [arguments.esker, "mount", arguments.image, roots[name], *name.split()[1:]]
        subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
    return roots


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("esker")
    parser.add_argument("image")
    parser.add_argument("directory")
    parser.add_argument("--work", required=True)
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--processes", type=int, default=32)
    parser.add_argument("--walk", type=float, metavar="SECONDS")
    parser.add_argument("--json", required=True)
    arguments = parser.parse_args()
    roots, beside, walker, results = mounted(arguments), [], None, []
    try:
        ready = []
        for name, root in roots.items():
            run(arguments.esker, name, root, 2)
            for part in range(2):
                ready.append(os.path.join(arguments.work, f"locked.{len(ready)}"))
                beside.append(os.fork())
                if beside[-1] == 0:
                    try:
                        lock_files(root, part, 2, ready[-1])
                    finally:
                        os._exit(1)
        while not all(os.path.exists(file) for file in ready):
            if any(os.waitpid(pid, os.WNOHANG) != (0, 0) for pid in beside):
                raise SystemExit("not all files could be locked in memory")
            time.sleep(0.2)
        if arguments.walk:
            walk = f"while :; do find {' '.join(roots.values())} -name nothing; sleep {arguments.walk}; done"
            walker = subprocess.Popen(["sh", "-c", walk], stdout=subprocess.DEVNULL, start_new_session=True)
        for number in range(arguments.rounds):
            names = list(roots)
            for name in names[number % 5:] + names[:number % 5]:
                results.append(run(arguments.esker, name, roots[name], arguments.processes))
                print(json.dumps(results[-1]), flush=True)
    finally:
        if walker:
            os.killpg(walker.pid, 9)
            walker.wait()
        for pid in beside:
            os.kill(pid, 9)
        for name, root in list(roots.items())[1:]:
            subprocess.run([arguments.esker, "umount", root] if name != "squashfs" else ["umount", root], check=False)
        with open(arguments.json, "w", encoding="utf-8") as file:
            json.dump({"kernel": os.uname().release, "processes": arguments.processes, "runs": results}, file, indent=1)


if __name__ == "__main__":
    main()
