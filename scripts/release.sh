#!/usr/bin/env bash
# Builds statically linked release binaries: release.sh TRIPLE CARGO-ARGUMENTS…
set -euo pipefail
triple=$1
shift
# Naming the target, even the host's own, keeps the flag away from build scripts and procedural macros.
exec cargo build --locked --release --target "$triple" \
    --config "target.$triple.rustflags=[\"-C\",\"target-feature=+crt-static\"]" "$@"
