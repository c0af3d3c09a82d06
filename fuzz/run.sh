#!/bin/sh
# usage: fuzz/run.sh SECONDS TARGET...
# Seeds and runs targets with libFuzzer, one after the other; needs cargo-fuzz and a nightly toolchain. Logs go to
# fuzz/logs/, or to the folder that ESKER_FUZZ_LOGS names.
set -eu
seconds=$1
shift
cd "$(dirname "$0")"
logs=${ESKER_FUZZ_LOGS:-logs}
mkdir -p "$logs"
./seed.sh
for target in "$@"; do
    mkdir -p "corpus/$target"
    # A slow input is a finding: nothing here may take more than linear time for long.
    cargo +nightly fuzz run "$target" -- -max_total_time="$seconds" -max_len=20480 -timeout=10 \
        -malloc_limit_mb=256 -rss_limit_mb=2048 -print_final_stats=1 >"$logs/$target.log" 2>&1 ||
        { echo "$target: finding, see $logs/$target.log" >&2; exit 1; }
    echo "$target: $(grep -E 'stat::number_of_executed_units' "$logs/$target.log")"
done
