#!/usr/bin/env bash
# Serves a small repository, mounts it around a command without root, reads it cold and hot, and runs a program from
# it: demo.sh ESKER ESKER-MIRROR. Everything it writes is in one folder, and it checks that itself.
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
esker=$(realpath "$1") mirror=$(realpath "$2")
name=full.test
folder=$(dirname "$esker")/demo

# What there is on this machine that could be ours.
traces() {
    awk '{print "mount " $5}' /proc/self/mountinfo | sort
    local exe
    for exe in /proc/[0-9]*/exe; do
        case $(readlink "$exe" 2>/dev/null || true) in "$esker" | "$mirror") echo "process $exe" ;; esac
    done
    find "${HOME:-/nonexistent}" "${HOME:-/nonexistent}/.cache" "${HOME:-/nonexistent}/.config" \
        "${HOME:-/nonexistent}/.local" "${XDG_RUNTIME_DIR:-/nonexistent}" "/run/user/$(id -u)" /run /var/lib \
        "${TMPDIR:-/tmp}" -maxdepth 2 -name '*esker*' ! -name 'esker-matrix-*' ! -name 'esker-fixture-*' \
        -printf 'file %p\n' 2>/dev/null | sort -u || true
    git -C "$here/.." status --porcelain 2>/dev/null | sed 's/^/source tree /' || true
}

rm -rf "$folder"
mkdir -p "$folder"
before=$(traces)

exec 3< <(TMPDIR=$folder exec "$mirror" --fixture "$name")
server=$!
trap 'kill "$server" 2>/dev/null || true' EXIT
read -r url <&3
echo "a CernVM-FS repository is served at $url"

"$esker" run "$url" --public-key "$here/../fixtures/$name/$name.pub" --cache "$folder/cache" -- \
    bash "$here/demo-inside.sh" "/cvmfs/$name" "$folder"

kill "$server"
wait "$server" 2>/dev/null || true
exec 3<&-
trap - EXIT
rm -rf "$folder"/esker-fixture-* "$folder/native"
after=$(traces)
if [ "$before" != "$after" ]; then
    echo "the demo left something behind:" >&2
    diff <(echo "$before") <(echo "$after") >&2 || true
    exit 1
fi
echo "nothing is left: no mount, no process, no file but the cache in $folder"
