#!/usr/bin/env bash
# Builds statically linked release binaries: release.sh TRIPLE CARGO-ARGUMENTS…
set -euo pipefail
triple=$1
shift
flags='"-C","target-feature=+crt-static"'

# Options of the linker that make the binary smaller, each only if a program that is linked with it runs here:
# --icf=all keeps one of several functions with the same instructions (lld has it, GNU ld doesn't), and
# pack-relative-relocs packs the relocations of a static PIE, which needs glibc 2.36.
scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT
of_triple=CARGO_TARGET_$(tr a-z- A-Z_ <<<"$triple")_LINKER
for option in --icf=all -z,pack-relative-relocs; do
    if echo 'fn main() {}' | rustc --target "$triple" -C target-feature=+crt-static ${!of_triple:+-C linker="${!of_triple}"} \
        -C link-arg="-Wl,$option" -o "$scratch/probe" - 2>/dev/null && "$scratch/probe" 2>/dev/null; then
        flags+=",\"-C\",\"link-arg=-Wl,$option\""
    fi
done

# Naming the target, even the host's own, keeps the flags away from build scripts and procedural macros.
cargo build --locked --release --target "$triple" --config "target.$triple.rustflags=[$flags]" "$@"
