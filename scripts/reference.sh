# What judge.sh and replicate-bench.sh share: Esker and the reference implementation beside each other. Sourced by them with
# `build`, the folder where CernVM-FS was compiled, and `work`, a folder of their own, which has `www`, `keys` and `tmp` by the
# time anything is called. ESKER names the binary if it is not that of a release build.
# shellcheck shell=bash disable=SC2034,SC2154 # variables are set here and used there, or the other way round

triple=$(rustc -vV | sed -n 's/^host: //p')
target=$(realpath -m "${CARGO_TARGET_DIR:-target}")
esker=$(realpath "${ESKER:-$target/$triple/release/esker}")
[ "$(id -u)" = 0 ] || { echo "$(basename "$0") needs root: the reference mounts, and owners and devices are published" >&2; exit 2; }
export LD_LIBRARY_PATH=$build CVMFS_LIBRARY_PATH=$build LC_ALL=C
# The reference's publisher insists on writing statistics; some builds are changed to do it elsewhere.
statistics=${REF_STATS_DIR:-/var/spool/cvmfs}
places=(--storage "$work/www" --keys "$work/keys")

knife() { "$build/cvmfs_swissknife" "$@"; }
field() { sed -n "/^--\$/q;s/^$2//p" "$work/www/$1/.cvmfspublished"; } # REPOSITORY LETTER: of its manifest

serve() { # FOLDER: starts a server of the repositories in there; its process is in `server`, its address in `address`
    local said=$work/tmp/serve ready
    rm -f "$said"
    mkfifo "$said"
    "$esker" serve "$1" --user "$(id -un)" --listen 127.0.0.1:0 --json >"$said" 2>&1 &
    server=$!
    exec {output}<"$said"
    read -r ready <&"$output"
    # shellcheck disable=SC2001 # a pattern of the shell can't take it out
    address=$(sed 's/.*"url":"\(http:[^"]*:[0-9]*\)".*/\1/' <<<"$ready")/cvmfs
}

mount_reference() { # ADDRESS REPOSITORY FOLDER [ROOT-HASH]: shown by the reference's client, whose cache is in `cache`
    local config
    config=$work/tmp/$(basename "$3").$2.conf
    # The client before may not have gone yet.
    cache=$(mktemp -d "$work/tmp/cache-XXXX")
    mkdir -p "$3"
    cat >"$config" <<EOF2
CVMFS_SERVER_URL=$1/$2
CVMFS_HTTP_PROXY=DIRECT
CVMFS_PUBLIC_KEY=$work/keys/$2.pub
CVMFS_CACHE_BASE=$cache
CVMFS_RELOAD_SOCKETS=$cache
CVMFS_SHARED_CACHE=no
CVMFS_CHECK_PERMISSIONS=yes
CVMFS_CLAIM_OWNERSHIP=no
CVMFS_USE_GEOAPI=no
CVMFS_MAGIC_XATTRS_VISIBILITY=never
${4:+CVMFS_ROOT_HASH=$4}
EOF2
    "$build/cvmfs2" -o "config=$config,allow_other" "$2" "$3"
}

leave() { # FOLDER: the kernel may be busy with it for a moment
    local try
    for try in $(seq 50); do
        if umount "$1" 2>/dev/null; then return; fi
        sleep 0.2
    done
    umount "$1"
}

# The reference publishes what is in an overlay above its client's mount, as `cvmfs_server publish` has it done.

overlay() { # FOLDER: mounts all/ in there, of below/ and what changes in above/
    mount -t overlay overlay -o "lowerdir=$1/below,upperdir=$1/above,workdir=$1/work,xino=off,redirect_dir=off,metacopy=off,index=off" "$1/all"
}

storage_of() { echo "local,$work/www/$1/data/txn,$work/www/$1"; } # REPOSITORY: as the reference names it

synchronize() { # ADDRESS REPOSITORY FOLDER BASE HASH: publishes what changed in an overlay; writes FOLDER/manifest
    knife sync -u "$3/all" -s "$3/above" -c "$3/below" -t "$3/tmp" -b "$4" -r "$(storage_of "$2")" -w "$1/$2" \
        -o "$3/manifest" -e "$5" -N "$2" -K "$work/keys/$2.pub" -f overlayfs -p -k -j
}
