#!/usr/bin/env python3
"""Compares `esker image build` with mksquashfs: time and size, interleaved, as ratios.

    scripts/image-build.py target/release/esker FOLDER --codec zstd --codec lz4 --rounds 3

Both get the same codec, level, block size, number of threads, fragments and search for duplicates; both images are
made durable within the time (mksquashfs itself doesn't, so fsync follows it). Prints a Markdown table.
"""

import argparse
import json
import os
import resource
import statistics
import subprocess
import tempfile
import time

# What mksquashfs does if it is told nothing but the codec.
LEVELS = {"gzip": "9", "lz4": None, "xz": None, "zstd": "15"}


def timed(command, image, quiet=True):
    """Seconds of wall and processor time until the image is durable."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    start = time.monotonic()
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL if quiet else None)
    descriptor = os.open(image, os.O_RDONLY)
    os.fsync(descriptor)
    os.close(descriptor)
    wall = time.monotonic() - start
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    cpu = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    return wall, cpu


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("esker")
    parser.add_argument("folder")
    parser.add_argument("--codec", action="append", choices=LEVELS)
    parser.add_argument("--block-size", default="128K")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--threads", type=int, default=os.cpu_count())
    parser.add_argument("--work", help="where the images go")
    parser.add_argument("--json", action="store_true")
    arguments = parser.parse_args()
    results = []
    with tempfile.TemporaryDirectory(dir=arguments.work) as work:
        for codec in arguments.codec or LEVELS:
            ours, theirs = os.path.join(work, "esker.sqfs"), os.path.join(work, "mksquashfs.sqfs")
            threads, block = str(arguments.threads), arguments.block_size
            commands = {
                "esker": ([arguments.esker, "image", "build", ours, arguments.folder, "--force", "--quiet",
                           "--codec", codec, "--block-size", block, "--threads", threads], ours),
                "mksquashfs": (["mksquashfs", arguments.folder, theirs, "-noappend", "-no-progress", "-comp", codec,
                                "-b", block, "-processors", threads], theirs),
            }
            # Both find a warm page cache.
            subprocess.run(["find", arguments.folder, "-type", "f", "-exec", "cat", "{}", "+"], check=True,
                           stdout=subprocess.DEVNULL)
            times = {name: [] for name in commands}
            for number in range(arguments.rounds):
                order = list(commands.items())
                for name, (command, image) in order if number % 2 == 0 else reversed(order):
                    times[name].append(timed(command, image))
            sizes = {name: os.path.getsize(image) for name, (_, image) in commands.items()}
            median = {name: [statistics.median(column) for column in zip(*rows)] for name, rows in times.items()}
            ratio = statistics.median(a[0] / b[0] for a, b in zip(times["esker"], times["mksquashfs"]))
            results.append({
                "codec": codec, "block_size": block, "threads": arguments.threads, "rounds": arguments.rounds,
                "seconds": {name: round(values[0], 2) for name, values in median.items()},
                "cpu_seconds": {name: round(values[1], 2) for name, values in median.items()},
                "bytes": sizes, "time_ratio": round(ratio, 3),
                "size_ratio": round(sizes["esker"] / sizes["mksquashfs"], 4),
            })
    if arguments.json:
        print(json.dumps(results, indent=1))
        return
    print("| Codec | mksquashfs | Esker | Time | Size | Processor time |")
    print("|---|---|---|---|---|---|")
    for row in results:
        seconds, cpu = row["seconds"], row["cpu_seconds"]
        print(f"| {row['codec']} | {seconds['mksquashfs']:.1f} s, {row['bytes']['mksquashfs'] / 1e6:.1f} MB "
              f"| {seconds['esker']:.1f} s, {row['bytes']['esker'] / 1e6:.1f} MB | {row['time_ratio']:.2f} "
              f"| {row['size_ratio']:.4f} | {cpu['esker'] / cpu['mksquashfs']:.2f} |")


if __name__ == "__main__":
    main()
