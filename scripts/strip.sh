#!/usr/bin/env bash
# Moves the symbols of an ELF file to FILE.debug, where debuggers and `perf` find them through its debug link: strip.sh FILE [LIMIT].
set -euo pipefail
binary=$1
# Both programs belong to binutils, which a C compiler for Linux brings along. A stripped file stays as it is, so that a second
# call does not replace its symbols by none.
if LC_ALL=C readelf -SW "$binary" | grep -q ' \.symtab '; then
    objcopy --only-keep-debug --compress-debug-sections=zlib "$binary" "$binary.debug"
    objcopy --strip-all "$binary"
    (cd "$(dirname "$binary")" && objcopy --add-gnu-debuglink="$(basename "$binary").debug" "$(basename "$binary")")
fi
size=$(stat -c %s "$binary")
# 35.5 MB: the binary is copied to nodes and into images. Object storage and the server's pages took 5 MB of it; supervision, metrics,
# traces and confinement 2 MB, resolved options of mounts, reloads and records of open work 0.8 MB, sealed containers, helpers of
# servers and the proxy's checks 0.5 MB; the crates that took the place of `admin`, and an error for each operation, 0.3 MB;
# the gateway, its database and its client 2.7 MB; open transactions, relocated environments, metalink servers and the pages of proxies
# 0.5 MB, with half a megabyte left.
limit=${2:-35500000}
[ "$size" -lt "$limit" ] || { printf '%s has %s bytes; %s are allowed\n' "$binary" "$size" "$limit" >&2; exit 1; }
