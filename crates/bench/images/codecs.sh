#!/bin/sh
# Makes images of a directory with each codec and length of blocks, and a list of clients that mount them with Esker:
#
#     images/codecs.sh /opt/python /var/tmp/codecs
#     esker-bench startup --native /opt/python --clients /var/tmp/codecs/clients.toml ...
#
# CODECS and BLOCKS replace which, ESKER names the binary. An image that is there is left as it is.
set -eu

[ $# -eq 2 ] || { echo "usage: $0 DIRECTORY IMAGES" >&2; exit 2; }
tree=$1
mkdir -p "$2"
images=$(cd "$2" && pwd)
esker=${ESKER:-esker}

for codec in ${CODECS:-lz4 zstd gzip xz}; do
    for block in ${BLOCKS:-16K 128K 1M}; do
        image=$images/$codec-$block.squashfs
        [ -e "$image" ] || "$esker" image build --quiet --codec "$codec" --block-size "$block" "$image" "$tree" >&2
        cat << END
[[client]]
name = "$codec $block"
mount = '"$esker" mount "$image" {mountpoint} --cache {cache}'
unmount = '"$esker" umount {mountpoint}'
drop_cache = "true"
status = '"$esker" status --json {mountpoint}'
about = 'stat -c "%s bytes" "$image"'

END
    done
done > "$images/clients.toml"
