#!/usr/bin/env bash
# The part of the demo that runs inside `esker run`: demo-inside.sh REPOSITORY SCRATCH-FOLDER
set -euo pipefail
repository=$1 scratch=$2

readable() { find "$1" -type f -perm -400 "${@:2}"; }
read_all() { readable "$1" -exec cat {} + >/dev/null; }
list_all() { ls -lR "$1" >/dev/null; }
run_program() { "$1/sw/pkg-2.0/bin/hello" >/dev/null; }

# Prints how many milliseconds a command takes.
clock() {
    local start=${EPOCHREALTIME/./} end
    "$@"
    end=${EPOCHREALTIME/./}
    echo "$(((end - start) / 1000)).$(((end - start) % 1000 / 100))"
}

echo
echo "as $(id -un), in a mount of our own: $(grep -c . < <(readable "$repository")) files below $repository"
declare -A cold hot native
for task in list_all run_program read_all; do cold[$task]=$(clock "$task" "$repository"); done
ls -l "$repository" "$repository/sw/pkg-2.0/bin"
echo
echo "\$ $repository/sw/pkg-2.0/bin/hello"
"$repository/sw/pkg-2.0/bin/hello"

# Symlinks that lead nowhere and devices are part of the repository, but not of a fair copy.
mkdir -p "$scratch/native"
(cd "$repository" && find . \( -type f -perm -400 -o -type d \) -print0 | tar -c --null --no-recursion -T - -f -) |
    tar -x -m -C "$scratch/native" --no-same-owner
for task in list_all run_program read_all; do
    "$task" "$repository"
    "$task" "$scratch/native"
    hot[$task]=$(clock "$task" "$repository")
    native[$task]=$(clock "$task" "$scratch/native")
done

echo
printf '%-24s %10s %10s %10s   milliseconds\n' '' cold hot native
printf '%-24s %10s %10s %10s\n' 'list everything' "${cold[list_all]}" "${hot[list_all]}" "${native[list_all]}" \
    'run a program' "${cold[run_program]}" "${hot[run_program]}" "${native[run_program]}" \
    'read every file' "${cold[read_all]}" "${hot[read_all]}" "${native[read_all]}"
echo
chmod -R u+w "$scratch/native"
