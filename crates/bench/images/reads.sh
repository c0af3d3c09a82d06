#!/bin/sh
# What is done with images that isn't a program's start: 10,000 files looked at, a large file read in order and here and there,
# cold and hot, beside the directory that they were made of:
#
#     IMAGES=/var/tmp/images images/reads.sh /opt/python /var/tmp/results
#
# IMAGES are those of make.sh, ESKER names the binary, ONLY the clients of clients.toml, TURNS how often each is measured,
# PROCESSES how many look at files at once. Needs fio.
set -eu

[ $# -eq 2 ] || { echo "usage: $0 DIRECTORY RESULTS" >&2; exit 2; }
here=$(cd "$(dirname "$0")" && pwd)
tree=$(cd "$1" && pwd)
mkdir -p "$2"
results=$(cd "$2" && pwd)

# From all over the tree, each in a folder of many.
list=$results/files
(cd "$tree" && find . -type f -print0 | LC_ALL=C sort -z | sed -zn '1~6p' | head -z -n 10000) > "$list"
large=$(cd "$tree" && find . -type f -printf '%s %p\n' | sort -rn | head -n 1 | cut -d' ' -f2-)

measure() {
    name=$1
    shift
    esker-bench startup --native "$tree" --clients "$here/clients.toml" \
        --only "${ONLY:-esker,squashfs,squashfuse_ll,EROFS}" --states cold,hot --repetitions "${TURNS:-5}" \
        --json "$results/images-$name.json" "$@"
}

measure stat --processes "${PROCESSES:-1,8}" -- sh -c "cd {root} && xargs -0 -a '$list' stat --printf="
measure sequential --processes 1 -- dd "if={root}/$large" of=/dev/null bs=1M status=none
measure random --processes 1 -- fio --name=random "--filename={root}/$large" --readonly --allow_file_create=0 \
    --invalidate=0 --rw=randread --bs=4k --number_ios=10000 --randseed=7 --ioengine=psync --minimal
