#!/usr/bin/env bash
# Fails unless the given ELF file is static: no interpreter, no shared library, whatever its architecture.
set -euo pipefail
binary=$1
# readelf belongs to binutils, which any C compiler for Linux brings along.
headers=$(LC_ALL=C readelf -lW "$binary")
needed=$(LC_ALL=C readelf -dW "$binary" | grep NEEDED || true)
if grep -q INTERP <<<"$headers" || [ -n "$needed" ]; then
    printf '%s is not static:\n%s\n%s\n' "$binary" "$(grep INTERP <<<"$headers" || true)" "$needed" >&2
    exit 1
fi
printf '%s is static, %s bytes\n' "$binary" "$(stat -c %s "$binary")"
