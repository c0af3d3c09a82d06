#!/usr/bin/env bash
# The part of the demo that runs where the mount is: demo-inside.sh STATE ROOT. Runs the command from ROOT and notes in
# the file of times: the state, microseconds, and which objects and bytes were fetched for that.
set -euo pipefail
state=$1 root=$2
pairs_max=5 pairs_seconds=20

# Runs the command from a folder; prints the microseconds it took.
clock() {
    local start end code=0
    start=${EPOCHREALTIME/[.,]/}
    # Python must not write into the user's folder.
    (cd "$1" && PYTHONDONTWRITEBYTECODE=1 exec sh -c "$DEMO_CMD") >"$DEMO_FOLDER/said" 2>&1 </dev/null || code=$?
    end=${EPOCHREALTIME/[.,]/}
    if [ "$code" -ne 0 ]; then
        printf 'the command fails with exit code %s in %s: %s\n' "$code" "$1" "$DEMO_CMD" >&2
        sed 's/^/  /' "$DEMO_FOLDER/said" >&2
        return "$code"
    fi
    echo $((end - start))
}

# Prints how many objects and bytes the daemon has fetched.
fetched() {
    local name of
    of=$("$ESKER" status --json "$root" | grep -o '"fetched":{[^}]*}')
    for name in objects bytes; do
        grep -o "\"$name\":[0-9]*" <<<"$of" | cut -d : -f 2
    done | paste -s -d ' '
}

time=$(clock "$root")
[ "$state" != native ] || exit 0
read -r objects bytes < <(fetched) || { echo "esker status doesn't say what was fetched" >&2; exit 1; }
echo "$state $time $objects $bytes" >>"$DEMO_FOLDER/times"
mv "$DEMO_FOLDER/said" "$DEMO_FOLDER/said-$state"
[ "$state" = warm ] || exit 0

# Hot runs and native ones take turns, so that whatever slows the machine slows both.
SECONDS=0
for ((pair = 0; pair < pairs_max; pair++)); do
    [ "$pair" -eq 0 ] || [ "$SECONDS" -lt "$pairs_seconds" ] || break
    hot=$(clock "$root")
    native=$(clock "$DEMO_DIR")
    read -r objects_now bytes_now < <(fetched)
    printf '%s\n' "native $native" "hot $hot $((objects_now - objects)) $((bytes_now - bytes))" >>"$DEMO_FOLDER/times"
done
