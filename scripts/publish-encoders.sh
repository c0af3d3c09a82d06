#!/usr/bin/env bash
# Times how a tree is published with each encoder, and by the reference: publish-encoders.sh BUILD TREE [ROUNDS]
#
# BUILD is the folder where CernVM-FS was compiled (see judge.sh); TREE is read once before. Prints a table of medians:
# seconds, processor seconds, and what was stored. The reference publishes what is in an overlay above its client's mount,
# as `cvmfs_server publish` has it done; copying the tree there isn't counted. Needs root, /dev/fuse and overlayfs. ESKER
# names the binary if it is not that of a release build. The reference writes statistics below /var/spool/cvmfs, or where
# REF_STATS_DIR says.
set -euo pipefail
build=$(realpath "${1:?the folder of a CernVM-FS build}")
tree=$(realpath "${2:?a folder to publish}")
rounds=${3:-3}
cd "$(dirname "$0")/.."
work=$(mktemp -d /tmp/esker-encoders-XXXXXX)
name=encoders.test server=
end() {
    [ -z "$server" ] || kill "$server" 2>/dev/null || true
    umount "$work/all" "$work/below" 2>/dev/null || true
    rm -rf "$work"
}
trap end EXIT
. scripts/reference.sh
export TIMEFORMAT='%R %U %S'

timed() { # WAY COMMAND…: notes seconds, processor seconds and bytes stored
    local way=$1
    shift
    { time "$@" >"$work/log" 2>&1; } 2>"$work/time" || { cat "$work/log" >&2; return 1; }
    read -r real user sys <"$work/time"
    printf '%s\t%s\t%s\t%s\n' "$way" "$real" "$(bc <<<"$user + $sys")" "$(du -sk --apparent-size "$work/www/$name/data" | cut -f 1)" >>"$work/rows"
}

by_esker() { # WAY CREATE-OPTION…
    local way=$1
    shift
    rm -rf "$work/www"
    "$esker" repo create "$name" "${places[@]}" "$@" >/dev/null
    timed "$way" "$esker" publish "$name" "$tree" "${places[@]}" --quiet
}

by_reference() {
    local cache
    rm -rf "$work/www" "$work"/{below,above,work,all,tmp}
    mkdir "$work"/{below,above,work,all,tmp}
    "$esker" repo create "$name" "${places[@]}" >/dev/null
    serve "$work/www"
    mount_reference "$address" "$name" "$work/below" >/dev/null
    overlay "$work"
    cp -a "$tree/." "$work/all/"
    mkdir -p "$statistics/$name"
    timed "the reference" synchronize "$address" "$name" "$work" "$(field "$name" C)" sha1
    leave "$work/all"
    leave "$work/below"
    kill "$server"
    server=
}

tar -cf - -C "$tree" . >/dev/null
for _ in $(seq "$rounds"); do
    by_esker "esker, zlib itself" --deflate zlib
    by_esker "esker, the default: the same bytes"
    by_esker "esker, \`--deflate fast\`" --deflate fast
    by_esker "esker, \`--compress zstd\`" --compress zstd
    by_reference
done
printf '%s, %s processors, %s, median of %s\n\n' "$("$esker" --version)" "$(nproc)" "$(uname -sr)" "$rounds"
printf '| | Seconds | Processor seconds | Stored, KiB |\n|---|---|---|---|\n'
median() { sort -n | sed -n "$(((rounds + 1) / 2))p"; }
cut -f 1 "$work/rows" | awk '!seen[$0]++' | while IFS= read -r way; do
    of() { awk -F '\t' -v way="$way" -v field="$1" '$1 == way { print $field }' "$work/rows" | median; }
    printf '| %s | %s | %s | %s |\n' "$way" "$(of 2)" "$(of 3)" "$(of 4)"
done
