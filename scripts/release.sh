#!/usr/bin/env bash
# Builds statically linked binaries with the profile $PROFILE, `release` by default: release.sh TRIPLE CARGO-ARGUMENTS…
set -euo pipefail
triple=$1
shift
# In a static binary nothing can be looked up by its name at run time, so the crate `getrandom` has to be told at build time that
# libc has the call; it would open /dev/random otherwise, also where a daemon is confined.
flags='"-C","target-feature=+crt-static","--cfg","getrandom_backend=\"linux_getrandom\""'
# Flags of the environment would replace these, so they are added.
for flag in ${RUSTFLAGS-}; do
    flags+=",\"$flag\""
done
unset RUSTFLAGS CARGO_ENCODED_RUSTFLAGS

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
cargo build --locked --profile "${PROFILE:-release}" --target "$triple" --config "target.$triple.rustflags=[$flags]" "$@"
