#!/bin/sh
# Makes images of a directory for kernel squashfs, squashfuse_ll and EROFS, which images/clients.toml mounts:
#
#     images/make.sh /opt/python /var/tmp/images
#
# Takes mksquashfs and mkfs.erofs from PATH and leaves out what isn't there. SQUASHFS and EROFS replace how they compress.
set -eu

[ $# -eq 2 ] || { echo "usage: $0 DIRECTORY IMAGES" >&2; exit 2; }
tree=$1
images=$2
squashfs=${SQUASHFS:--comp zstd -Xcompression-level 9 -b 128K}
erofs=${EROFS:--zlz4hc,9 -C65536}
mkdir -p "$images"

# The line about an image stands in the conditions of every measurement with it.
about() {
    echo "$2; $3; $(stat -c %s "$1") bytes" > "$1.about"
}

# The options are words on purpose.
# shellcheck disable=SC2086
if command -v mksquashfs > /dev/null; then
    mksquashfs "$tree" "$images/tree.squashfs" -noappend -no-progress -quiet $squashfs
    about "$images/tree.squashfs" "$(mksquashfs -version | head -n 1)" "$squashfs"
else
    echo "there is no mksquashfs" >&2
fi
# shellcheck disable=SC2086
if command -v mkfs.erofs > /dev/null; then
    rm -f "$images/tree.erofs"
    mkfs.erofs --quiet $erofs "$images/tree.erofs" "$tree"
    # Version 1.5 doesn't know the option: it says which it is all the same, and complains.
    about "$images/tree.erofs" "$(mkfs.erofs --version 2> /dev/null | head -n 1)" "$erofs"
else
    echo "there is no mkfs.erofs" >&2
fi
