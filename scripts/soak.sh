#!/usr/bin/env bash
# Runs the soaks (tests called soak_…) at length, ten minutes each unless ESKER_SOAK_SECONDS says otherwise, and writes
# docs/reports/soak.md; the one of hostile neighbours lasts an hour. `make test` runs the same tests for twenty seconds
# each. None has fewer rounds than ESKER_SOAK_ROUNDS, or 200.
set -euo pipefail
cd "$(dirname "$0")/.."
neighbours=${ESKER_SOAK_SECONDS:-3600}
export ESKER_SOAK_SECONDS=${ESKER_SOAK_SECONDS:-600} ESKER_SOAK_ROUNDS=${ESKER_SOAK_ROUNDS:-200}
# A server of buckets that keeps them on disk, and is killed; its build takes minutes.
scripts/s3-servers.sh versitygw
reports=$(mktemp -d)
export ESKER_SOAK_REPORTS=$reports
trap 'rm -rf "$reports"' EXIT

# A soak with a finding does not end the run: one run reports the findings of all soaks.
findings=0
cargo test --locked --workspace --tests --no-fail-fast -- --nocapture soak_ --skip soak_hostile_neighbours || findings=1
ESKER_SOAK_SECONDS=$neighbours cargo test --locked -p esker-cli --test matrix -- --nocapture soak_hostile_neighbours || findings=1
[ "$findings" -eq 0 ]

soaks=$(cargo test --locked --workspace --tests --quiet -- --list soak_ 2>/dev/null | grep -c ': test$')
rows=$(find "$reports" -type f | wc -l)
[ "$soaks" -eq "$rows" ] || { echo "$soaks soaks ran, but $rows wrote a row" >&2; exit 1; }

mkdir -p docs/reports
cat >docs/reports/soak.md <<EOF2
# Soaks

Written by \`make soak\` on $(date -u +%Y-%m-%d), $(uname -sr), $(uname -m), $(nproc) cores,
ESKER_SOAK_SECONDS=$ESKER_SOAK_SECONDS ($neighbours for \`hostile_neighbours\`), ESKER_SOAK_ROUNDS=$ESKER_SOAK_ROUNDS. Every soak that is listed ended without a
finding; one with a finding fails and writes nothing.

| Soak | Rounds | Time | Facts |
|---|---|---|---|
$(cat "$reports"/*)
EOF2
cat docs/reports/soak.md
