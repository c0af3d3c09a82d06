#!/bin/sh
# What waits for a thread beside an idle core while 256 small readers start cold, as root on a machine that does nothing else:
#
#     ESKER=target/release/esker waits.sh REPOSITORY KEY INSIDE LIST RESULTS
#
# REPOSITORY is the folder of one, served on loopback; LIST is of `esker-bench record-list`, below INSIDE. READERS (256) and TURNS (5)
# replace how many. Needs perf, nm and readelf, and an x86-64 whose kernel has uprobes. Leaves turn-N.json.
set -eu

[ $# -eq 5 ] || { echo "usage: $0 REPOSITORY KEY INSIDE LIST RESULTS" >&2; exit 2; }
esker=$(realpath "${ESKER:-$(command -v esker)}")
key=$(realpath "$2")
inside=$3
list=$(realpath "$4")
name=$(basename "$1")
mkdir -p "$5"
results=$(realpath "$5")
tracing=/sys/kernel/tracing
scratch=$(mktemp -d "${TMPDIR:-/var/tmp}/esker-waits.XXXXXX")

clean_up() {
    "$esker" umount "$scratch/mnt" > "$scratch/umount" 2>&1 || true
    if [ -n "${server:-}" ]; then kill "$server" && wait "$server" || true; fi
    echo '-:esker/note' >> "$tracing/uprobe_events" || true
    if [ -n "${mounted:-}" ]; then umount "$tracing" || true; fi
    rm -rf "$scratch"
}
trap clean_up EXIT
trap 'exit 130' INT TERM

# Where the function lies in the file: its address, less that of its segment, plus where the segment lies.
address=$(nm "$esker" | sed -n 's/^\([0-9a-f]*\) t .*esker_store5waits5Waits4note.*/\1/p')
[ -n "$address" ] || { echo "$esker has no Waits::note: was it stripped?" >&2; exit 1; }
shift_by=$(readelf -lW "$esker" | awk '$1 == "LOAD" && $7 $8 ~ /E/ { print $3 " - " $2; exit }')
[ -d "$tracing/events" ] || { mount -t tracefs none "$tracing" && mounted=yes; }
printf 'p:esker/note %s:0x%x secs=%%si:u64 nanos=%%dx:u32\n' "$esker" $((0x$address - (${shift_by}))) >> "$tracing/uprobe_events"

: > "$scratch/serve"
"$esker" serve "$(dirname "$1")" --listen 127.0.0.1:0 > "$scratch/serve" 2>&1 &
server=$!
until url=$(sed -n "s#^ *\\(http://.*/cvmfs/$name\\)\$#\\1#p" "$scratch/serve") && [ -n "$url" ]; do
    kill -0 "$server"
    sleep 0.1
done

# Before the first one that counts, another, so that what the server reads is in memory, as at a Stratum 1.
turn=0
while [ "$turn" -le "${TURNS:-5}" ]; do
    mkdir -p "$scratch/mnt"
    "$esker" mount "$url" "$scratch/mnt" --public-key "$key" --cache "$scratch/cache-$turn" --fixed > "$scratch/mount" 2>&1
    # shellcheck disable=SC2016
    perf record -q -a -m 64M -o "$scratch/trace" -e sched:sched_switch -e sched:sched_stat_runtime -e esker:note -- \
        sh -c 'i=0; while [ $i -lt "$1" ]; do esker-read-list "$2" "$i/$1" "$3" & i=$((i + 1)); done; wait' \
        readers "${READERS:-256}" "$scratch/mnt/$inside" "$list" > "$scratch/readers"
    [ "$(wc -l < "$scratch/readers")" -eq "${READERS:-256}" ] || { echo "not all readers came through" >&2; exit 1; }
    "$esker" umount "$scratch/mnt" > "$scratch/umount" 2>&1
    if [ "$turn" -gt 0 ]; then
        perf script -i "$scratch/trace" -F comm,tid,cpu,time,event,trace --ns > "$scratch/trace.txt"
        esker-bench waits "$scratch/trace.txt" --json "$results/turn-$turn.json"
    fi
    turn=$((turn + 1))
done
