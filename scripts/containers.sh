#!/usr/bin/env bash
# Tries common tasks in containers: scripts/containers.sh ESKER IMAGE > table.
# Run it as an ordinary user. IMAGE: a Debian root with python3, gcc and Open MPI, made for example with
#   debootstrap --variant=minbase bookworm root && chroot root apt-get install -y python3 gcc libc6-dev openmpi-bin libopenmpi-dev
#   mksquashfs root debian.sqfs -comp zstd
set -uo pipefail
esker=${1:?the binary} image=${2:?the image}
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
cd "$work" || exit 1
failed=0 number=0

run() { timeout 120 "$esker" run "$image" "$@"; }

# try WHAT EXPECTED COMMAND…: the command must succeed and its last line match the pattern.
try() {
    local what=$1 expected=$2 output status seen
    shift 2
    output=$("$@" 2>&1 </dev/null)
    status=$?
    seen=$(tail -n 1 <<<"$output" | tr '|`' '/ ' | cut -c1-90)
    number=$((number + 1))
    # shellcheck disable=SC2254 # a pattern
    case $status:$seen in
        0:$expected) printf '| %d | %s | works | `%s` |\n' "$number" "$what" "$seen" ;;
        *) printf '| %d | %s | **FAILS** (%d) | `%s` |\n' "$number" "$what" "$status" "$seen"; failed=1 ;;
    esac
}

cat >hello.c <<'END'
#include <stdio.h>
int main(void) { puts("compiled and run"); return 0; }
END
cat >mpi.c <<'END'
#include <mpi.h>
#include <stdio.h>
int main(int argc, char **argv) {
    int rank, size, sum;
    MPI_Init(&argc, &argv);
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    MPI_Comm_size(MPI_COMM_WORLD, &size);
    MPI_Allreduce(&rank, &sum, 1, MPI_INT, MPI_SUM, MPI_COMM_WORLD);
    if (rank == 0) printf("ranks %d sum %d\n", size, sum);
    MPI_Finalize();
    return 0;
}
END

code() { run -- sh -c 'exit 42'; [ $? = 42 ] && echo "code 42"; }
signalled() { run -- sh -c 'kill -TERM $$'; [ $? = 143 ] && echo "signal 15"; }
interrupted() {
    # A command in the background of a script ignores this signal, so it is sent by who started it in the foreground.
    timeout -s INT 2 "$esker" run "$image" -- sh -c 'trap "echo interrupted; exit 0" INT; while :; do sleep 0.1; done'
    echo "$?" >/dev/null
}
piped() { seq 100000 | run -- sh -c 'wc -l'; }
terminal() { script -qec "$esker run $image -- sh -c 'test -t 0 && tty'" /dev/null | tr -d '\r'; }
ranks_outside() {
    run -- mpicc mpi.c -o mpi && mpirun -n 2 --oversubscribe "$esker" run "$image" -- ./mpi
}
many() {
    local i
    for i in $(seq 64); do run -- cat /etc/debian_version >"many.$i" & done
    wait
    cat many.* | sort | uniq -c | tr -s ' '
}
nested() { run --bind "$(dirname "$esker")" --bind "$(dirname "$image")" -- "$esker" run "$image" -- sh -c 'echo within; grep -c . /proc/mounts >/dev/null'; }
bound() { mkdir -p data && echo text >data/file && run --bind "$work/data:/somewhere/new:ro" -- sh -c 'touch /somewhere/new/x 2>/dev/null || cat /somewhere/new/file'; }
nothing_left() {
    local i
    for i in $(seq 100); do
        pgrep -u "$(id -u)" -f -- "--keep=[0-9]* .*$(basename "$image")" >/dev/null || { echo "no process, no mount"; return; }
        sleep 0.1
    done
    return 1
}
gpu() { if ls /dev/nvidia* /dev/kfd >/dev/null 2>&1; then run --gpu -- ls /.esker/host; else run --gpu -- true 2>&1 | grep -o 'this host has nothing'; fi; }

echo '| | What | | Seen |'
echo '|---|---|---|---|'
try 'ask the package manager' 'dpkg *' run -- sh -c 'dpkg -l | grep -c ^ii >/dev/null; apt-cache policy dpkg >/dev/null; dpkg -s dpkg | sed -n "s/^Version: /dpkg /p"'
try 'verify a package' 'verified' run -- sh -c 'dpkg -V coreutils; echo verified'
try 'Python with modules' '[0-9]*' run -- python3 -c 'import json, ssl, sqlite3, ctypes, multiprocessing; print(multiprocessing.Pool(2).map(abs, [-1, -2])[1])'
try 'compile and run C' 'compiled and run' run -- sh -c 'gcc hello.c -o hello && ./hello'
try 'MPI, two ranks, started inside' 'ranks 2 sum 1' run -- sh -c 'mpicc mpi.c -o mpi && mpirun -n 2 --oversubscribe ./mpi'
try 'MPI, two ranks, started outside' 'ranks 2 sum 1' ranks_outside
try 'bind a directory where the image has none, read-only' 'text' bound
try 'write everywhere, into memory' 'written' run --writable-tmpfs -- sh -c 'echo x >/usr/bin/new && rm -r /usr/share/doc && mkdir /opt/x && echo written'
try 'the image is not written' '*Read-only*' run -- sh -c 'touch /usr/bin/new 2>&1; true'
try 'variables' 'a=1 b=2 clean=' env A=1 ESKER_ENV_B=2 "$esker" run "$image" --env C=3 -- sh -c 'echo "a=$A b=$B clean=$D"'
try 'exit codes' 'code 42' code
try 'signals' 'signal 15' signalled
try 'Ctrl-C' 'interrupted' interrupted
try 'pipe through standard input' '100000' piped
try 'a terminal' '/dev/pts/*' terminal
try 'home, name and current directory' "$(id -un) $work" run -- sh -c 'cd ~ && cd - >/dev/null && echo "$(whoami) $PWD"'
try 'look like root' '0 root' run --fakeroot -- sh -c 'echo "$(id -u) $(whoami)"'
try 'a container in a container' 'within' nested
try 'large files in and out' '*  -' run -- sh -c 'dd if=/dev/zero of=big bs=1M count=512 status=none && sha256sum <big'
try '64 at once' ' 64 *' many
try 'GPUs, or that there are none' '*' gpu
try 'nothing is left' 'no process, no mount' nothing_left
exit $failed
