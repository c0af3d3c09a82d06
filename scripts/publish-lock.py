#!/usr/bin/env python3
"""Measures how long a publish of 10,000 changed files holds the lock: publish-lock.py ESKER FOLDER [MILLIONS] [ROUNDS].

The repository in FOLDER gets so many millions of entries, an archive of a million at a time. Each round publishes the
files once alone, and once while another publisher commits changes of another directory one after the other.
"""

import json
import os
import statistics
import subprocess
import sys
import tarfile
import time

esker, folder = os.path.realpath(sys.argv[1]), sys.argv[2]
millions = int(sys.argv[3]) if len(sys.argv) > 3 else 10
rounds = int(sys.argv[4]) if len(sys.argv) > 4 else 3
name, place = "lock.bench.test", ["--storage", "repo", "--keys", "keys"]


def archive(path):
    with open(path, "wb") as file:
        for directory in range(1000):
            entry = tarfile.TarInfo(f"{directory:03}")
            entry.type, entry.mode = tarfile.DIRTYPE, 0o755
            file.write(entry.tobuf(tarfile.USTAR_FORMAT))
            for number in range(1000):
                file.write(tarfile.TarInfo(f"{directory:03}/{number:04}").tobuf(tarfile.USTAR_FORMAT))
        file.write(bytes(1024))


def change(text):
    for number in range(10_000):
        path = f"many/{number // 1000}/{number}"
        os.makedirs(os.path.dirname(path), exist_ok=True)
        with open(path, "w") as file:
            file.write(f"{text} {number}\n")


def publish(source):
    command = [esker, "publish", name, source, "--to", f"/{source}", "--json", *place]
    return subprocess.Popen(command, stdout=subprocess.PIPE, text=True)


def seconds(publisher):
    output, _ = publisher.communicate()
    assert publisher.returncode == 0
    return json.loads(output)["seconds"]["locked"]


os.makedirs(folder, exist_ok=True)
os.chdir(folder)
subprocess.run([esker, "repo", "create", name, *place], check=True)
archive("million.tar")
for number in range(millions):
    subprocess.run([esker, "ingest", name, "million.tar", "--to", f"/m{number}", "--quiet", *place], check=True)
os.makedirs("other", exist_ok=True)
change("first")
seconds(publish("many"))
alone, beside = [], []
for number in range(rounds):
    change(f"alone {number}")
    alone.append(seconds(publish("many")))
    change(f"beside {number}")
    publisher = publish("many")
    while publisher.poll() is None:
        with open("other/file", "w") as file:
            file.write(str(time.time()))
        seconds(publish("other"))
    beside.append(seconds(publisher))
for what, times in ("alone", alone), ("beside another publisher", beside):
    print(f"{what}: lock held {statistics.median(times):.3f} s (at most {max(times):.3f})")
