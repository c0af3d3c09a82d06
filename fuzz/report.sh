#!/usr/bin/env bash
# usage: fuzz/report.sh SECONDS TARGET...
# Writes docs/reports/fuzz.md from the logs of `fuzz/run.sh SECONDS TARGET...`; fails if one is missing or has a finding.
set -euo pipefail
seconds=$1
shift
cd "$(dirname "$0")/.."
logs=${ESKER_FUZZ_LOGS:-fuzz/logs}
rows=
for target in "$@"; do
    log=$logs/$target.log
    runs=$(sed -n 's/^stat::number_of_executed_units: *//p' "$log")
    took=$(sed -n 's/^Done [0-9]* runs in \([0-9]*\) second.*/\1/p' "$log")
    if [ -z "$runs" ] || [ -z "$took" ] || grep -qE '^(SUMMARY:|==[0-9]+== ERROR|.*panicked at)' "$log"; then
        echo "$log is not the log of a finished run without finding" >&2
        exit 1
    fi
    # The last line of progress: edges covered, features, inputs kept.
    last=$(grep -E '^#[0-9]+' "$log" | tail -n 1)
    word() { sed -n "s/.* $1: \([^ ]*\).*/\1/p" <<<"$last"; }
    peak=$(sed -n 's/^stat::peak_rss_mb: *//p' "$log")
    rows+="| $target | $took s | $runs | $(word cov) | $(word ft) | $(word corp) | $peak MiB | none |"$'\n'
done
mkdir -p docs/reports
cat >docs/reports/fuzz.md <<EOF
# Fuzzing

\`fuzz/run.sh $seconds $*\` on $(date -u +%Y-%m-%d): libFuzzer with AddressSanitizer, $(uname -sr), $(uname -m),
$(nproc) cores that were shared with builds, tests and each other, at low priority. Seeds: the committed
ones and everything of use in the fixtures (\`fuzz/seed.sh\`). Bounds: 10 s an input, 256 MiB an allocation, 2 GiB in all;
the targets themselves bound the heap by the length of their input.

| Target | Time | Inputs | Edges covered | Features | Corpus (inputs/bytes) | Peak memory | Findings |
|---|---|---|---|---|---|---|---|
$rows
What each target promises is stated on top of its file in \`fuzz/src/\`. The same bodies run on the stable toolchain in
every \`make test\` (\`soak_fuzz_…\`, 20 s each, with the committed seeds and our own mutations).

## What fuzzing found, and what became of it

| Finding | Found by | Fix |
|---|---|---|
| A length inside a certificate of 1 KiB made the decoder allocate 5.8 MB before it looked for the bytes. | the heap bound of \`certificate\` | All lengths of the DER are checked against what surrounds them first; the input is a seed. |
| Rowids that descend on a damaged page made the guess of a row's place panic. | \`catalog\` | The span is at least one; the input is a seed. |
EOF
echo "written to docs/reports/fuzz.md"
