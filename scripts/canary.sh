#!/usr/bin/env bash
# Proves the tests of the trust chain: builds them with the feature `canary`, which allows one check at a time to be
# left out, runs them for each check, and demands that at least one test fails each time. Writes the table to
# docs/reports/canary.md.
set -euo pipefail
cd "$(dirname "$0")/.."
# Each check is left out of a build of its own.
unset ESKER_BINARY
report=docs/reports/canary.md
mkdir -p docs/reports
log=$(mktemp)
trap 'rm -f "$log"' EXIT

# The suites that hold tests of the checks: unit and integration tests of the crates, and the damage of the matrix.
suites=(
    "-p esker-format"
    "-p esker-store"
    "-p esker-config"
    "-p esker-cli --test matrix -- damage revisions"
)
# The soaks have no tests of single checks.
export ESKER_SOAK_SECONDS=1
run() { # prints the names of failed tests of the first suite that has any
    local failed=0 suite
    : >"$log"
    for suite in "${suites[@]}"; do
        # shellcheck disable=SC2086 # a suite is a list of words
        cargo test --locked --features canary --no-fail-fast $suite >>"$log" 2>&1 || { failed=1; break; }
    done
    sed -n 's/^test \(.*\) \.\.\. FAILED$/\1/p' "$log" | sort -u
    return $failed
}

checks=$(sed -n '/pub const CHECKS/,/\];/s/^ *"\(.*\)",$/\1/p' crates/format/src/canary.rs)
[ -n "$checks" ] || { echo "no checks found" >&2; exit 1; }

if ! failed=$(ESKER_CANARY='' run); then
    echo "with every check in place these tests fail:" >&2
    { echo "$failed"; tail -n 60 "$log"; } >&2
    exit 1
fi
echo "with every check in place, all tests pass"

rows='' bad=0
for check in $checks; do
    if failed=$(ESKER_CANARY=$check run); then
        echo "$check: NO TEST FAILED"
        rows+="| \`$check\` | **none** | |"$'\n'
        bad=1
    elif [ -z "$failed" ]; then
        echo "$check: the tests did not run" >&2
        tail -n 40 "$log" >&2
        exit 1
    else
        count=$(wc -l <<<"$failed")
        echo "$check: $count tests fail"
        rows+="| \`$check\` | $count | $(head -n 4 <<<"$failed" | sed 's/.*/`&`/' | paste -sd, | sed 's/,/, /g') |"$'\n'
    fi
done

cat >"$report" <<EOF2
# Canary: every check of the trust chain is tested

Written by \`make canary\` on $(date -u +%Y-%m-%d), $(uname -sr), $(uname -m). With all checks in place every test of
these suites passes. With one check left out, these fail (suites are tried in turn until one has failing tests):

| Check left out | Failing tests | Among them |
|---|---|---|
$rows
EOF2
echo "written to $report"
exit $bad
