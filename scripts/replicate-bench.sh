#!/usr/bin/env bash
# Measures `esker replicate` beside the reference's `cvmfs_swissknife pull`: replicate-bench.sh BUILD [FOLDER]
#
# BUILD is the folder where CernVM-FS 2.12 was compiled; FOLDER takes about 3 GB and must not exist. ESKER and BENCH
# name the binaries if they are not those of a release build. FILES (62000), PAIRS (3) and PARTS (pairs change link)
# may be set. Prints rows of tables: wall-clock seconds, CPU seconds of the copying process, load of the machine.
set -euo pipefail
build=$(realpath "${1:?the folder of a CernVM-FS build}")
work=${2:-$(mktemp -du /tmp/esker-replicate-XXXXXX)}
cd "$(dirname "$0")/.."
work=$(realpath -m "$work")
files=${FILES:-62000} pairs=${PAIRS:-3} parts=${PARTS:-pairs change link}
. scripts/reference.sh
bench=$(realpath "${BENCH:-$target/$triple/release/esker-bench}")
name=bench.test
mkdir -p "$work"/{keys,www,tmp}
trap 'kill ${server:-} ${relay:-} 2>/dev/null || true' EXIT

timed() { # LABEL COMMAND…: prints the label, seconds, CPU seconds and the load
    local label=$1
    shift
    /usr/bin/time -o "$work/tmp/time" -f '%e %U %S' "$@" >"$work/tmp/out" 2>&1 || { cat "$work/tmp/out"; exit 1; }
    read -r wall user system <"$work/tmp/time"
    printf '| %s | %s | %s | %s |\n' "$label" "$wall" "$(echo "$user + $system" | bc)" "$(cut -d' ' -f1 /proc/loadavg)"
}

replicate() { # URL FOLDER
    "$esker" replicate "$1" --to "$2" --public-key "$work/keys/$name.pub" --quiet --json
}

if [ ! -e "$work/www/$name/.cvmfspublished" ]; then
    python3 - "$work/tree" "$files" <<'EOF'
import os, random, sys
top, files = sys.argv[1], int(sys.argv[2])
random.seed(1)
words = [bytes(random.choice(b"abcdefghijklmnopqrstuvwxyz_0123456789 ") for _ in range(random.randint(3, 12))) for _ in range(4000)]
for number in range(files):
    # 31 catalogs with 20 folders each.
    folder = f"{top}/part{number % 31}/dir{number // 31 % 20}"
    os.makedirs(folder, exist_ok=True)
    size = min(int(random.lognormvariate(8.2, 1.4)), 4 << 20)
    text = b" ".join(random.choice(words) for _ in range(max(size // 8, 1)))
    with open(f"{folder}/file{number}", "wb") as file:
        file.write(f"{number}\n".encode() + text)
for part in range(31):
    open(f"{top}/part{part}/.cvmfscatalog", "w").close()
EOF
    "$esker" repo create "$name" "${places[@]}" >"$work/tmp/out"
    "$esker" publish "$name" "$work/tree" "${places[@]}" --quiet >"$work/tmp/out"
fi
serve "$work/www"
printf 'objects: %s, stored bytes: %s, files: %s\n' "$(find "$work/www/$name/data" -type f | wc -l)" \
    "$(du -sb "$work/www/$name/data" | cut -f1)" "$files"
export -f replicate
export esker work name

pull() { # FOLDER
    mkdir -p "$1/data/txn" "$work/tmp/pull"
    for byte in $(seq 0 255); do mkdir -p "$1/data/$(printf '%02x' "$byte")"; done
    "$build/cvmfs_swissknife" pull -u "$address/$name" -m "$name" -k "$work/keys/$name.pub" \
        -r "local,$1/data/txn,$1" -x "$work/tmp/pull" -n "${WORKERS:-16}" -t 10 -a 3 \
        -w "file://$1" -R "$1.reflog" -i
}
export -f pull
export address build

case " $parts " in *" pairs "*)
    for pair in $(seq "$pairs"); do
        rm -rf "$work/one" "$work/two" "$work/two.reflog"
        timed "esker replicate $pair" bash -c 'replicate "$address/$name" "$work/one"'
        timed "cvmfs_swissknife pull $pair" bash -c 'eval "$(declare -f pull)"; pull "$work/two"'
    done
esac
case " $parts " in *" change "*)
    [ -e "$work/one" ] || replicate "$address/$name" "$work/one" >"$work/tmp/out"
    for round in 1 2 3; do
        for number in $(seq 10); do echo "round $round $number $RANDOM" >"$work/tree/part$number/dir1/changed"; done
        "$esker" publish "$name" "$work/tree" "${places[@]}" --quiet >"$work/tmp/out"
        timed "10 changed files in 10 catalogs, $round" bash -c 'replicate "$address/$name" "$work/one"'
        cat "$work/tmp/out"
        for number in $(seq 10); do echo "near $round $number $RANDOM" >"$work/tree/part1/dir1/near$number"; done
        "$esker" publish "$name" "$work/tree" "${places[@]}" --quiet >"$work/tmp/out"
        timed "10 changed files in one catalog, $round" bash -c 'replicate "$address/$name" "$work/one"'
        cat "$work/tmp/out"
    done
esac
case " $parts " in *" link "*)
    port=${address#http://127.0.0.1:}
    "$bench" link --to "127.0.0.1:${port%%/*}" --profile ocean --listen 127.0.0.1:0 >"$work/tmp/link" 2>&1 &
    relay=$!
    for _ in $(seq 100); do grep -q 127.0.0.1 "$work/tmp/link" && break; sleep 0.1; done
    far=$(grep -o '127.0.0.1:[0-9]*' "$work/tmp/link" | head -n 1)
    export far
    for round in 1 2; do
        rm -rf "$work/far"
        timed "esker replicate over 84 ms, 280 Mb/s, $round" bash -c 'replicate "http://$far/cvmfs/$name" "$work/far"'
        cat "$work/tmp/out"
    done
esac
