#!/usr/bin/env bash
# Runs all tests, and lists at the end, also after failures, the skipped tests and the promises that no test proved
# (crates/testkit/src/skips.rs). Ends with the status of cargo: test.sh [COMMAND…]
#
# COMMAND builds the binary that users start. It has a low priority and runs beside the tests of the crates, which mostly wait
# and don't start that binary; the others begin after it.
set -uo pipefail
cd "$(dirname "$0")/.." || exit
target=$(realpath -m "${CARGO_TARGET_DIR:-target}")
export ESKER_SKIPS=$target/skips
mkdir -p "$target" && : >"$ESKER_SKIPS" || exit

outcome=0
tests() { # ARGUMENTS…: of cargo; after a failure nothing more is run
    [ "$outcome" -ne 0 ] || cargo test --locked --workspace "$@" || outcome=$?
}

# Where the minutes go is said at the end.
cargo test --locked --workspace --no-run && built=$SECONDS || exit
build=
if [ $# -ne 0 ]; then
    set -m # a group of processes, which can be ended as a whole
    nice -n 10 "$@" >"$target/build.log" 2>&1 &
    build=$!
    set +m
    trap 'kill -- "-$build" 2>/dev/null' EXIT
fi
tests --lib --bins --test it
crates=$SECONDS
if [ -n "$build" ] && [ "$outcome" -eq 0 ]; then
    wait "$build" || outcome=$?
    trap - EXIT
    cat "$target/build.log"
fi
waited=$SECONDS
tests --test archives --test matrix
tests --doc
if [ -x "$target/debug/esker-skipped" ]; then
    "$target/debug/esker-skipped" "$ESKER_SKIPS" .
else
    echo "no test was run: esker-skipped was not built"
fi
echo "building the tests took $built s, those of the crates $((crates - built)) s, waiting for the binary $((waited - crates)) s," \
    "the others $((SECONDS - waited)) s"
exit "$outcome"
