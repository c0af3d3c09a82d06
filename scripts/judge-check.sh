#!/usr/bin/env bash
# Compares `esker check` with `cvmfs_swissknife check` on damaged repositories: judge-check.sh BUILD [FOLDER]
#
# BUILD is the folder where CernVM-FS 2.12 was compiled. FOLDER takes the damaged repositories, about 60 MB, and must not
# exist; a test makes them (crates/maintain/tests/it/corpus.rs). ESKER names the binary if it is not that of a debug build.
# Prints one row a repository: what each of the two found. Fails if the reference finds a fault where Esker finds none.
set -euo pipefail
build=$(realpath "${1:?the folder of a CernVM-FS build}")
corpus=${2:-$(mktemp -du /tmp/esker-corpus-XXXXXX)}
cd "$(dirname "$0")/.."
esker=$(realpath "${ESKER:-target/debug/esker}")
mkdir "$corpus"
export LD_LIBRARY_PATH=$build CVMFS_LIBRARY_PATH=$build
ESKER_CORPUS=$corpus ${CARGO:-cargo} test -q -p esker-maintain --test it corpus >/dev/null
missed=0 both=0 only=0 neither=0
printf '| damage | reference | Esker |\n|---|---|---|\n'
for world in "$corpus"/*/; do
    repository=$world/workshop.test
    [ -d "$repository" ] || continue
    mkdir -p "$world/tmp"
    sum=$world/spool/reflog.chksum
    [ -e "$sum" ] || sum=
    # As `esker repo import` does.
    mkdir -p "$repository/.esker" && printf %s "$(realpath "$world/spool")" >"$repository/.esker/cvmfs_spool"
    if timeout 60 "$build/cvmfs_swissknife" check -r "$repository" -k "$world/key.pub" -N workshop.test -c \
        -t "$world/tmp" ${sum:+-R "$sum"} >"$world/reference.log" 2>&1; then
        reference=clean
    else
        reference=$(grep -iE 'error|fail|missing|mismatch|wrong|invalid|not |but' "$world/reference.log" | grep -v 'CATALOG PROBLEMS' | tail -n 1 | cut -c 1-70 || true)
        reference=${reference:-fault}
    fi
    ours=$("$esker" check "$repository" --public-key "$world/key.pub" --data --quiet --json 2>/dev/null |
        grep -o '"kind":"[a-z-]*"' | cut -d '"' -f 4 | sort -u | tr '\n' ' ' || true)
    ours=${ours:-clean}
    printf '| %s | %s | %s |\n' "$(basename "$world")" "${reference//|/ }" "$ours"
    case $reference:$ours in
        clean:clean) neither=$((neither + 1)) ;;
        clean:*) only=$((only + 1)) ;;
        *:clean) missed=$((missed + 1)) ;;
        *) both=$((both + 1)) ;;
    esac
done
echo "both find a fault: $both; only Esker: $only; only the reference: $missed; neither: $neither"
[ "$missed" -eq 0 ]
