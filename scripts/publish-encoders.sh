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
triple=$(rustc -vV | sed -n 's/^host: //p')
esker=$(realpath "${ESKER:-$(realpath -m "${CARGO_TARGET_DIR:-target}")/$triple/release/esker}")
[ "$(id -u)" = 0 ] || { echo "publish-encoders.sh needs root: the reference mounts" >&2; exit 2; }
work=$(mktemp -d /tmp/esker-encoders-XXXXXX)
name=encoders.test
statistics=${REF_STATS_DIR:-/var/spool/cvmfs}/$name
export LD_LIBRARY_PATH=$build CVMFS_LIBRARY_PATH=$build LC_ALL=C TIMEFORMAT='%R %U %S'
server=
end() {
    [ -z "$server" ] || kill "$server" 2>/dev/null || true
    umount "$work/all" "$work/below" 2>/dev/null || true
    rm -rf "$work"
}
trap end EXIT
places=(--storage "$work/www" --keys "$work/keys")
field() { sed -n "/^--\$/q;s/^$1//p" "$work/www/$name/.cvmfspublished"; } # LETTER: of the manifest

leave() { # FOLDER: the kernel may be busy with it for a moment
    local try
    for try in $(seq 50); do
        if umount "$1" 2>/dev/null; then return; fi
        sleep 0.2
    done
    umount "$1"
}

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
    local base up said=$work/serve ready url
    rm -rf "$work/www" "$work"/{below,above,over,all,tmp,cache,said}
    mkdir "$work"/{below,above,over,all,tmp,cache}
    "$esker" repo create "$name" "${places[@]}" >/dev/null
    [ -p "$said" ] || mkfifo "$said"
    "$esker" serve "$work/www" --listen 127.0.0.1:0 --json >"$said" 2>&1 &
    server=$!
    exec {output}<"$said"
    read -r ready <&"$output"
    # shellcheck disable=SC2001 # a pattern of the shell can't take it out
    url=$(sed 's/.*"url":"\(http:[^"]*:[0-9]*\)".*/\1/' <<<"$ready")/cvmfs
    cat >"$work/config" <<EOF2
CVMFS_SERVER_URL=$url/$name
CVMFS_HTTP_PROXY=DIRECT
CVMFS_PUBLIC_KEY=$work/keys/$name.pub
CVMFS_CACHE_BASE=$work/cache
CVMFS_RELOAD_SOCKETS=$work/cache
CVMFS_SHARED_CACHE=no
CVMFS_USE_GEOAPI=no
EOF2
    "$build/cvmfs2" -o "config=$work/config,allow_other" "$name" "$work/below" >/dev/null
    mount -t overlay overlay -o "lowerdir=$work/below,upperdir=$work/above,workdir=$work/over,xino=off,redirect_dir=off,metacopy=off,index=off" "$work/all"
    cp -a "$tree/." "$work/all/"
    base=$(field C) up=local,$work/www/$name/data/txn,$work/www/$name
    printf %s "$(field Y)" >"$work/reflog"
    mkdir -p "$statistics"
    timed "the reference" "$build/cvmfs_swissknife" sync -u "$work/all" -s "$work/above" -c "$work/below" -t "$work/tmp" -b "$base" \
        -r "$up" -w "$url/$name" -o "$work/manifest" -e sha1 -N "$name" -K "$work/keys/$name.pub" -f overlayfs -p -k -j
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
