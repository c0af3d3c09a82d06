#!/usr/bin/env bash
# Publishes a folder, serves it, mounts it, runs a command from the mount and from the folder, and shows how long that
# took: demo.sh ESKER. DEMO_DIR is the folder, DEMO_CMD the command: a line for the shell, which starts in the folder
# and may write to $OUT. Without them the Rust toolchain compiles a program. DEMO_VIA=run uses `esker run` in place of
# `esker mount`. Everything is in one new folder, which goes away with the demo, however that ends.
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
esker=$(realpath "$1")
name=demo.test
wrong() { echo "$*" >&2; exit 2; }
tell() { printf '\n$ %s\n' "$*"; }

# Substitutions come before the traps: a signal that has a trap and arrives inside one can break bash's parser or make
# it spin (5.2, about one of a thousand).
user=$(id -un) uid=$(id -u) example=
if [ -z "${DEMO_DIR:-}" ]; then
    example=yes
    DEMO_DIR=$(rustc --print sysroot)
    # shellcheck disable=SC2016 # it is the command's own shell that knows $OUT
    DEMO_CMD='bin/rustc -o "$OUT/hello" "$OUT/hello.rs" && "$OUT/hello" && bin/rustc --print sysroot'
fi
[ -d "$DEMO_DIR" ] || wrong "DIR is not a folder: $DEMO_DIR"
[ -n "${DEMO_CMD:-}" ] || wrong "CMD is missing: a command to run in $DEMO_DIR"
DEMO_DIR=$(realpath "$DEMO_DIR")
export DEMO_DIR DEMO_CMD
via=${DEMO_VIA:-mount}
[ "$uid" -eq 0 ] || command -v fusermount3 >/dev/null || via=run
[ "$via" = mount ] || [ "$via" = run ] || wrong "VIA is mount or run, not $via"

# What there still is of the demo. Nothing else has its folder in its environment.
left() {
    grep -F " $DEMO_FOLDER" /proc/self/mountinfo || true
    grep -slF "DEMO_FOLDER=$DEMO_FOLDER" /proc/[0-9]*/environ || true
    [ ! -e "$DEMO_FOLDER" ] || echo "$DEMO_FOLDER"
}

cleanup() {
    local code=$? remains server
    # A second Ctrl-C must not interrupt the cleanup.
    trap '' INT TERM HUP
    set +eu
    # The only process in the background, if it has come to that.
    server=$!
    cd /
    if grep -qF " $DEMO_FOLDER/mnt " /proc/self/mountinfo; then
        "$esker" umount "$DEMO_FOLDER/mnt" || "$esker" umount --lazy "$DEMO_FOLDER/mnt"
    fi
    [ -z "$server" ] || { kill "$server" && wait "$server"; } 2>/dev/null
    # As many files as were published: a while on a slow disk.
    echo "removing $DEMO_FOLDER"
    # The command may have made folders that even their owner can't empty.
    [ ! -d "$OUT" ] || chmod -R u+rwX "$OUT"
    rm -rf "$DEMO_FOLDER"
    # What was interrupted may need a moment.
    for _ in {1..50}; do
        remains=$(left)
        [ -n "$remains" ] && sleep 0.1 || break
    done
    if [ -n "$remains" ]; then
        printf 'the demo left something behind:\n%s\n' "$remains" >&2
        [ "$code" -ne 0 ] || code=1
    else
        echo "nothing is left of the demo: no mount, no process, no file"
    fi
    exit "$code"
}
# A folder that cleanup doesn't know of yet would stay.
trap '' INT TERM HUP
DEMO_FOLDER=$(mktemp -d -p "$(realpath "${TMPDIR:-$(dirname "$esker")}")" esker-demo.XXXXXX)
export DEMO_FOLDER OUT=$DEMO_FOLDER/out
trap cleanup EXIT
trap 'exit 130' INT
trap 'exit 143' TERM
trap 'exit 129' HUP

export ESKER=$esker
mkdir "$OUT"
[ -z "$example" ] ||
    echo 'fn main() { println!("Hello from a program that was just compiled by the Rust in"); }' >"$OUT/hello.rs"

# What doesn't even run here need not be published.
"$here/demo-inside.sh" native "$DEMO_DIR"

cd "$DEMO_FOLDER"
mkdir mnt
tell "esker repo create $name && esker publish $name $DEMO_DIR"
"$esker" repo create "$name" --storage storage --keys keys >/dev/null
"$esker" publish "$name" "$DEMO_DIR" --storage storage --keys keys

serve=(serve storage --listen 127.0.0.1:0)
# The folder of the demo is its user's own, and root's server is another user.
[ "$(id -u)" = 0 ] && serve+=(--user root)
tell "esker ${serve[*]}"
# In a session of its own, because Ctrl-C is for this script, which unmounts before it stops the server.
coproc SERVER { exec setsid "$esker" "${serve[@]}"; }
{ read -r line && read -r url; } <&"${SERVER[0]}" || { echo "the server did not start" >&2; exit 1; }
echo "$line"

# Times the command with a daemon that has only just started.
access=(--public-key "keys/$name.pub" --cache cache)
if [ "$via" = mount ]; then
    tell "esker mount $url mnt --public-key keys/$name.pub    # as $user"
    measure() {
        # A daemon that isn't ready can't be told to unmount, so who starts it is not interrupted.
        (trap '' INT TERM HUP && exec "$esker" mount "$url" mnt "${access[@]}")
        "$here/demo-inside.sh" "$1" "$DEMO_FOLDER/mnt"
        "$esker" umount mnt
    }
else
    tell "esker run $url --public-key keys/$name.pub -- …    # as $user, without fusermount3"
    measure() { "$esker" run "$url" "${access[@]}" -- "$here/demo-inside.sh" "$1" "/cvmfs/$name"; }
fi
measure cold
# Objects stay in the cache on disk, but not in memory: the owner of a file can drop its clean pages.
find cache -type f -exec sync -d {} +
find cache -type f -exec dd if={} iflag=nocache count=0 status=none \;
measure warm

tell "$DEMO_CMD"
cat said-cold
sort -k 1,1 -k 2,2n times | LC_ALL=C awk -f "$here/demo-table.awk"
