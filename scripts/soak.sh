#!/usr/bin/env bash
# Runs the soaks (tests called soak_…) at length, ten minutes each unless ESKER_SOAK_SECONDS says otherwise, and writes
# docs/reports/soak.md. `make test` runs the same tests for twenty seconds each.
set -euo pipefail
cd "$(dirname "$0")/.."
export ESKER_SOAK_SECONDS=${ESKER_SOAK_SECONDS:-600}
mkdir -p docs/reports
reports=$(mktemp -d)
export ESKER_SOAK_REPORTS=$reports
trap 'rm -rf "$reports"' EXIT

cargo test --locked --workspace --tests -- --nocapture soak_

rows=$(cat "$reports"/*)
cat >docs/reports/soak.md <<EOF2
# Soaks

Written by \`make soak\` on $(date -u +%Y-%m-%d), $(uname -sr), $(uname -m), $(nproc) cores,
ESKER_SOAK_SECONDS=$ESKER_SOAK_SECONDS. Every soak that is listed ended without a finding; one with a finding fails and
writes nothing.

| Soak | Rounds | Time | Facts |
|---|---|---|---|
$rows
EOF2
cat docs/reports/soak.md
