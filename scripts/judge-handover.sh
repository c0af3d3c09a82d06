#!/usr/bin/env bash
# Has `cvmfs_server` and Esker work on the same repositories: judge-handover.sh BUILD [FOLDER]
#
# BUILD is the folder where CernVM-FS 2.12 was compiled, with cvmfs_swissknife, cvmfs2, cvmfs_publish, cvmfs_suid_helper and
# cvmfs_server; SERVER_BUILD names another folder for the last three. FOLDER takes what is made, and must not exist; it is
# removed unless something is wrong. Needs root, /dev/fuse and overlayfs. ESKER names the binary if it is not that of a
# release build.
#
# All of it runs in a copy of the root directory (an overlay in a mount namespace), where the programs are installed and
# where /etc, /var/spool/cvmfs, /srv/cvmfs and /cvmfs are of its own. `esker serve` serves in place of Apache (`mkfs -p`).
#
#   1. A repository of `cvmfs_server mkfs`, of root and of an ordinary user: taken over with `esker repo import`, and changed by both in turns: transactions,
#      tags, rollbacks, collections, whitelists; each time both check it. Each respects an open transaction of the other.
#   2. Given back to a machine without its configuration, with `esker repo export-config`.
#   3. A repository of `esker repo create`, which `cvmfs_server` goes on with; and another one by `cvmfs_server import`.
set -euo pipefail
build=$(realpath "${1:?the folder of a CernVM-FS build}")
work=$(realpath -m "${2:-$(mktemp -du /tmp/esker-handover-XXXXXX)}")
cd "$(dirname "$0")/.."
server_build=$(realpath "${SERVER_BUILD:-$build}")
if [ "${INSIDE:-}" = "" ]; then
    triple=$(rustc -vV | sed -n 's/^host: //p')
    target=$(realpath -m "${CARGO_TARGET_DIR:-target}")
    esker=$(realpath "${ESKER:-$target/$triple/release/esker}")
    [ "$(id -u)" = 0 ] || { echo "it needs root: mounts are made" >&2; exit 2; }
    for binary in "$esker" "$build"/cvmfs{2,_swissknife} "$server_build"/cvmfs_{publish,suid_helper,server}; do
        [ -x "$binary" ] || { echo "there is no $binary" >&2; exit 2; }
    done
    mkdir "$work" "$work"/{own,srv,spool,transactions,upper,tmp}
    trap 'rm -rf "$work/own" "$work/upper"' EXIT
    INSIDE=1 ESKER=$esker unshare --mount --fork --pid --kill-child bash "$0" "$build" "$work"
    rm -rf "$work"
    exit
fi

# --- a root directory of its own --------------------------------------------------------------------------------------

if [ "$INSIDE" = 1 ]; then
    mount --make-rprivate /
    mount -t tmpfs none "$work/upper"
    mkdir "$work/upper"/{above,work}
    mount -t overlay overlay -o "lowerdir=/,upperdir=$work/upper/above,workdir=$work/upper/work" "$work/own"
    for folder in /dev /sys "$PWD" "$build" "$server_build" "$(dirname "$ESKER")" "$work/tmp"; do
        mkdir -p "$work/own$folder"
        mount --rbind "$folder" "$work/own$folder"
    done
    mount -t proc proc "$work/own/proc"
    mkdir -p "$work/own"/{cvmfs,srv/cvmfs,var/spool/cvmfs,var/spool/esker/transactions,etc/cvmfs/keys}
    mount --bind "$work/srv" "$work/own/srv/cvmfs"
    mount --bind "$work/spool" "$work/own/var/spool/cvmfs"
    # An overlay can't be above files of an overlay.
    mount --bind "$work/transactions" "$work/own/var/spool/esker/transactions"
    for binary in "$build/cvmfs_swissknife" "$server_build"/cvmfs_{publish,suid_helper,server}; do
        cp "$binary" "$work/own/usr/bin/"
    done
    cp "$ESKER" "$work/own/usr/bin/esker"
    # Helpers of mount(8) get an empty environment.
    chmod u+s "$work/own/usr/bin/cvmfs_suid_helper"
    printf '#!/bin/sh\nCVMFS_LIBRARY_PATH=%s LD_LIBRARY_PATH=%s exec %s/cvmfs2 "$@"\n' "$build" "$build" "$build" >"$work/own/usr/bin/cvmfs2"
    chmod 755 "$work/own/usr/bin/cvmfs2"
    # Without systemctl, its helper calls mount(8).
    rm -f "$work/own/bin/systemctl" "$work/own/usr/bin/systemctl"
    # It asks whether Apache runs, and loads modules of the kernel.
    ln -sf /bin/true "$work/own/usr/sbin/service"
    ln -sf /bin/true "$work/own/usr/sbin/modprobe"
    mkdir -p "$work/own/etc/httpd"
    : >"$work/own/etc/fstab"
    # Users make no user namespace in a chroot.
    script=$PWD/scripts/judge-handover.sh
    mkdir "$work/own/old"
    cd "$work/own"
    pivot_root . old
    # shellcheck disable=SC2016 # the inner shell expands it
    INSIDE=2 exec chroot . bash -c 'umount -l /old && exec bash "$@"' bash "$script" "$build" "$work"
fi

export LC_ALL=C LD_LIBRARY_PATH=$build:$server_build CVMFS_LIBRARY_PATH=$build HOME=/root
failures=0
owner=root

say() { printf '| %s | %s | %s |\n' "$@"; }
verdict() { # WHAT COMMAND…: a row of the table
    local what=$1 log=$work/tmp/log
    shift
    if "$@" >"$log" 2>&1 </dev/null; then
        say "$name" "$what" "$(tail -n 1 "$log" | tr '|' '/')"
    else
        say "$name" "$what" "**FAILED**"
        sed 's/^/    /' "$log" | tail -n 40
        failures=$((failures + 1))
    fi
}

field() { sed -n "/^--\$/q;s/^$2//p" "/srv/cvmfs/$1/.cvmfspublished"; } # REPOSITORY LETTER: of its manifest

sound() { # both check
    cvmfs_server check -c "$name" || return 1
    esker check "$name" --quiet || return 1
    echo "revision $(field "$name" S), both checks find nothing"
}

step() { # WHAT COMMAND…: after which both check
    local what=$1
    shift
    stepped() { "$@" && sound; }
    verdict "$what" stepped "$@"
}

by_server() { # TEXT [OPTION…]: a revision with this text in its file
    local text=$1
    shift
    cvmfs_server transaction "$name" || return 1
    mkdir -p "/cvmfs/$name/theirs" && echo "$text" >"/cvmfs/$name/theirs/file" || return 1
    cvmfs_server publish "$@" "$name" && shows_esker "$text" /theirs/file
}

by_esker() { # TEXT [OPTION…]
    local text=$1
    shift
    esker transaction "$name" --quiet "$@" -- sh -c "mkdir -p ours && echo '$text' >ours/file" && shows_esker "$text" /ours/file
}

esker() { # as the owner of the repository, who finds storage and keys by links
    local home=/var/lib/home-$owner
    if [ "$owner" = root ]; then command esker "$@"; return; fi
    if [ ! -d "$home" ]; then
        mkdir -p "$home"/.local/{share,state}/esker "$home"/.config/esker
        ln -s /srv/cvmfs "$home/.local/share/esker/repositories"
        ln -s /etc/cvmfs/keys "$home/.config/esker/keys"
        mount --bind /var/spool/esker/transactions "$home/.local/state"
        chown -R "$owner" "$home"
    fi
    setpriv --reuid "$owner" --regid "$owner" --clear-groups env HOME="$home" esker "$@"
}

shows_esker() { [ "$(esker cat "$name:$2")" = "$1" ] && echo shown; }                                # TEXT PATH
shows_server() { cvmfs_server mount "$name" && [ "$(cat "/cvmfs/$name$2")" = "$1" ] && echo shown; } # TEXT PATH
tags_agree() {
    local theirs ours
    theirs=$(cvmfs_server tag -lx "$name" | cut -d ' ' -f 1,4 | sort)
    ours=$(esker tag list "$name" --json | tr '{' '\n' | sed -n 's/^"name":"\([^"]*\)","revision":\([0-9]*\).*/\1 \2/p' | sort)
    [ "$theirs" = "$ours" ] || { echo "$theirs; $ours"; return 1; }
    echo "$(wc -l <<<"$ours") tags, the same by both"
}

respected() { # each refuses while the other one has a transaction open
    cvmfs_server transaction "$name" || return 1
    ! esker publish "$name" /usr/share/doc/dash --to /never --quiet || return 1
    ! esker collect "$name" --quiet || return 1
    cvmfs_server abort -f "$name" || return 1
    echo 'esker is publishing' >"/var/spool/cvmfs/$name/in_transaction.lock"
    ! cvmfs_server transaction "$name" || return 1
    by_esker 'after a publisher that was killed' || return 1
    echo "refused"
}

# Revisions have no automatic tags, which would keep all of them.
collected_by_server() {
    local log=/var/spool/cvmfs/$name/deleted
    rm -f "$log"
    by_esker "dropped by cvmfs_server" && by_esker "kept by cvmfs_server" && cvmfs_server gc -r 0 -f -L "$log" "$name" || return 1
    [ "$(grep -c '^[0-9a-f]' "$log")" -gt 2 ] && shows_server "kept by cvmfs_server" /ours/file
}

collected_by_esker() {
    local log=$work/tmp/collected
    by_server "dropped by Esker" && by_server "kept by Esker" && esker collect "$name" --keep-tags --grace 0 --quiet --json | tee "$log" || return 1
    grep -q '"deleted":{"bytes":[0-9]*,"objects":[1-9]' "$log" && shows_server "kept by Esker" /theirs/file
}

in_turns() { # what both can do
    step "Esker: a transaction" by_esker one --tag ours-1
    step "cvmfs_server: transaction, publish" by_server two -a theirs-1 -m "by cvmfs_server"
    step "Esker: publishes a folder" esker publish "$name" scripts --to /scripts --quiet
    verdict "cvmfs_server: mounts it" shows_server one /ours/file
    step "cvmfs_server: adds a tag" cvmfs_server tag -a more "$name"
    step "Esker: moves it" esker tag move "$name" more --revision theirs-1
    verdict "both list the same tags" tags_agree
    step "cvmfs_server: removes it" cvmfs_server tag -r more -f "$name"
    step "cvmfs_server: rolls back to theirs-1" cvmfs_server rollback -t theirs-1 -f "$name"
    verdict "Esker shows it" shows_esker two /theirs/file
    step "Esker: a transaction, and undoes it" eval 'by_esker mistake && esker undo "$name" && shows_server one /ours/file'
    verdict "both list the same tags" tags_agree
    verdict "an open transaction of the other one" respected
    step "cvmfs_server: gc" collected_by_server
    step "Esker: collects" collected_by_esker
    step "cvmfs_server: signs the whitelist" cvmfs_server resign "$name"
    step "Esker: signs the whitelist" esker repo resign "$name"
    step "cvmfs_server: transaction, publish" by_server last
}

forget() { # as on a machine that has only storage and keys
    umount "/cvmfs/$name" && umount "/var/spool/cvmfs/$name/rdonly" && rm -rf "/etc/cvmfs/repositories.d/$name" "/var/spool/cvmfs/$name"
    sed -i "/ $name\$/d" /etc/fstab
    echo "done"
}

parameters() { grep -v '^#' "$1/server.conf" | sort; } # FOLDER

restored() { # no parameter is missing or has another value; Esker may have written more
    local lost
    lost=$(comm -23 <(parameters "$work/tmp/$name") <(parameters "/etc/cvmfs/repositories.d/$name"))
    [ -z "$lost" ] || { echo "$lost"; return 1; }
    echo "$(parameters "$work/tmp/$name" | wc -l) of them"
}

give_back() { # what `export-config` tells to do
    local said
    said=$(command esker repo export-config "$name" --stratum0 "$url/$name" --user "$owner") || return 1
    echo "$said"
    sh -ec "$(sed -n 's/^  //p' <<<"$said")"
}

esker serve /srv/cvmfs --listen 127.0.0.1:0 --json >"$work/tmp/serve" &
server=$!
trap 'kill $server; umount -a -t overlay,fuse.cvmfs2 2>/dev/null || true' EXIT
while ! [ -s "$work/tmp/serve" ]; do sleep 0.1; done
url=$(sed 's/.*"url":"\(http:[^"]*:[0-9]*\)".*/\1/' "$work/tmp/serve")/cvmfs

printf '%s, reference %s, %s, %s\n\n' "$(esker --version)" "$(cvmfs_swissknife version 2>/dev/null | head -n 1)" "$(uname -sr)" "$(date -u +%Y-%m-%d)"
say "Repository" "Action" "Result"
echo '|---|---|---|'
theirs() { # NAME OWNER
    name=$1 owner=$2
    verdict "cvmfs_server mkfs -p -z -g -o $owner" cvmfs_server mkfs -p -z -g -w "$url/$name" -o "$owner" "$name"
    step "cvmfs_server: transaction, publish" by_server zero -a theirs-0
    step "esker repo import" esker repo import "$name"
    in_turns
    cp -r "/etc/cvmfs/repositories.d/$name" "$work/tmp/$name"
    verdict "configuration and spool folder removed" forget
    verdict "esker repo export-config, and what it tells to do" give_back
    verdict "the parameters of mkfs are there again" restored
    step "cvmfs_server: transaction, publish" by_server "given back"
    step "cvmfs_server: gc" collected_by_server
}

theirs theirs.handover.test root
theirs user.handover.test daemon

owner=root
name=ours.handover.test
verdict "esker repo create" eval 'esker repo create "$name" && esker repo set "$name" automatic_tags=off'
verdict "esker publishes" esker publish "$name" /usr/share/doc/bash --to /doc --quiet
verdict "esker repo export-config, and what it tells to do" give_back
in_turns

name=imported.handover.test
verdict "esker repo create" eval 'esker repo create "$name" && esker repo set "$name" automatic_tags=off'
verdict "esker publishes" esker publish "$name" /usr/share/doc/bash --to /doc --quiet
verdict "cvmfs_server import -p" cvmfs_server import -p -w "$url/$name" -o root "$name"
# It has no options for these; its next publish would sign a head that keeps all revisions.
sed -i 's/^CVMFS_GARBAGE_COLLECTION=.*/CVMFS_GARBAGE_COLLECTION=true/; s/^CVMFS_AUTO_TAG=.*/CVMFS_AUTO_TAG=false/' "/etc/cvmfs/repositories.d/$name/server.conf"
step "esker repo import" esker repo import "$name"
in_turns

if [ "$failures" != 0 ]; then
    echo "$failures of these failed; what was made is in $work" >&2
    exit 1
fi
