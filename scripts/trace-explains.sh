#!/usr/bin/env bash
# Measures how much of a slow start `esker trace` explains: a Python program imports some 300 modules of the standard library
# from a mount, cold, warm and hot. Usage: scripts/trace-explains.sh ESKER [ROUNDS [MOUNT-OPTION…]]; writes a table of medians.
# Needs root, to empty the kernel's caches, and an idle machine; changes nothing outside of a folder that it removes.
set -euo pipefail
cd "$(dirname "$0")/.."
esker=$(realpath "${1:?usage: scripts/trace-explains.sh ESKER [ROUNDS [MOUNT-OPTION…]]}")
rounds=${2:-5}
shift $(($# < 2 ? $# : 2))
options=("$@")

work=$(mktemp -d -p /var/tmp)
server=
cleanup() {
    "$esker" umount "$work/mnt" >/dev/null 2>&1 || true
    [ -z "$server" ] || { kill "$server"; wait "$server" 2>/dev/null || true; }
    rm -rf "$work"
}
trap cleanup EXIT

name=sw.example.org
library=$(/usr/bin/python3 -c 'import sysconfig; print(sysconfig.get_path("stdlib"))')
"$esker" repo create "$name" --storage "$work/storage" --keys "$work/keys" >/dev/null
"$esker" publish "$name" "$library" --storage "$work/storage" --keys "$work/keys" >/dev/null
mkfifo "$work/said"
"$esker" serve "$work/storage" --user "$(id -un)" --listen 127.0.0.1:0 >"$work/said" &
server=$!
exec 3<"$work/said"
while read -r line <&3; do
    url=$(grep -o 'http://127[^ /]*' <<<"$line" | head -n 1) && break
done

cat >"$work/import.py" <<'P'
import sys
sys.path[:0] = [sys.argv[1]]
modules = """asyncio http.server email.mime.multipart xml.dom.minidom json unittest.mock logging.config multiprocessing.pool
concurrent.futures urllib.request tarfile zipfile ctypes decimal fractions statistics argparse optparse configparser pydoc doctest
difflib imaplib smtplib ftplib xmlrpc.client html.parser wsgiref.simple_server encodings.idna"""
for module in modules.split():
    __import__(module)
P
mount() {
    "$esker" mount "$url/cvmfs/$name" "$work/mnt" --public-key "$work/keys/$name.pub" --cache "$work/cache" --no-prefetch "${options[@]}" \
        >/dev/null
}
unmount() { "$esker" umount "$work/mnt" >/dev/null; }
run() {
    # The program itself is not what is measured.
    /usr/bin/python3 -S -c pass
    cat "$work/import.py" >/dev/null
    "$esker" trace --format json --output "$work/$1.json" -- /usr/bin/python3 -S -B "$work/import.py" "$work/mnt"
}
mkdir "$work/mnt"
for ((round = 0; round < rounds; round++)); do
    rm -rf "$work/cache"
    mount && sync && echo 3 >/proc/sys/vm/drop_caches
    run "cold$round" && unmount
    sync && echo 3 >/proc/sys/vm/drop_caches
    mount && run "warm$round"
    run "hot$round" && unmount
done

/usr/bin/python3 - "$work" "$rounds" <<'P'
import json, statistics, sys
folder, rounds = sys.argv[1], int(sys.argv[2])
print("| State | Wall, ms | Ran | Waited for a core | for mounts | for anything else | Explained | Requests |")
print("|---|---|---|---|---|---|---|---|")
for state in ("cold", "warm", "hot"):
    rows = []
    for number in range(rounds):
        report = json.load(open(f"{folder}/{state}{number}.json"))
        main, wall = report["main_thread"], report["wall_us"]
        parts = [main[name] for name in ("ran_us", "waited_for_core_us", "waited_for_mounts_us")]
        rows.append([wall / 1e3, *(part / 1e3 for part in parts), main["rest_us"] / 1e3, sum(parts) / wall, report["requests"]])
    shares = [row[5] for row in rows]
    middle = [statistics.median(column) for column in zip(*rows)]
    cells = [f"{value:.1f}" for value in middle[:5]]
    print(f"| {state} | {' | '.join(cells)} | {middle[5]:.2f} ({min(shares):.2f} to {max(shares):.2f}) | {middle[6]:.0f} |")
P
