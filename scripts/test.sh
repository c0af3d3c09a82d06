#!/usr/bin/env bash
# Runs all tests, and lists at the end, also after failures, the skipped tests and the promises that no test proved
# (crates/testkit/src/skips.rs). Ends with the status of cargo.
set -uo pipefail
cd "$(dirname "$0")/.." || exit
target=$(realpath -m "${CARGO_TARGET_DIR:-target}")
export ESKER_SKIPS=$target/skips
mkdir -p "$target" && : >"$ESKER_SKIPS" || exit
# Where the minutes go is said at the end.
cargo test --locked --workspace --no-run && built=$SECONDS || exit
outcome=0
cargo test --locked --workspace || outcome=$?
if [ -x "$target/debug/esker-skipped" ]; then
    "$target/debug/esker-skipped" "$ESKER_SKIPS" .
else
    echo "no test was run: esker-skipped was not built"
fi
echo "building the tests took $built s, running them $((SECONDS - built)) s"
exit "$outcome"
