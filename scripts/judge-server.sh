#!/usr/bin/env bash
# The week of a release manager with `cvmfs_server` and with Esker, in turns: judge-server.sh BUILD
#
# BUILD is a folder of the reference with cvmfs_server, cvmfs_swissknife, cvmfs_publish, cvmfs_suid_helper, cvmfs2 and their
# libraries; ESKER names the binary if it is not that of a release build. Two repositories: one that `cvmfs_server mkfs` makes and
# Esker takes over, and one that Esker makes and `cvmfs_server import` takes over. After each step, by one of the two, both check the
# repository with all its data, know the same tags, and show the same tree; the next step is by the other, or as the table says.
# Runs as root in namespaces of its own, where changes of /etc, /srv, /var and /cvmfs are in memory. Its web server is `esker serve`.
set -euo pipefail
build=$(realpath "${1:?a folder of the reference}")
here=$(realpath "$(dirname "$0")")

# --- outside: a root directory in memory -----------------------------------------------------------------------------

if [ "${2:-}" != --inside ]; then
    [ "$(id -u)" = 0 ] || { echo "$(basename "$0") needs root: the reference mounts" >&2; exit 2; }
    esker=$(realpath "${ESKER:-$here/../target/$(rustc -vV | sed -n 's/^host: //p')/release/esker}")
    for program in "$esker" "$build"/cvmfs{2,_server,_swissknife,_publish,_suid_helper}; do
        [ -x "$program" ] || { echo "there is no $program" >&2; exit 2; }
    done
    memory=$(mktemp -d /tmp/esker-judge-XXXXXX)
    # unshare takes no signal while it waits, and its end is that of the machine.
    machine=
    trap '[ -z "$machine" ] || { kill -9 "$machine" && wait "$machine"; } 2>/dev/null || true; rmdir "$memory"' EXIT
    trap 'exit 1' INT TERM
    # shellcheck disable=SC2016 # the inner shell has these variables
    unshare --mount --pid --fork --kill-child --propagation private bash -euc '
        memory=$1 build=$2 here=$3 esker=$4
        mount -t tmpfs none "$memory"
        mkdir "$memory"/{changed,work,root,spool}
        root=$memory/root
        mount -t overlay -o "lowerdir=/,upperdir=$memory/changed,workdir=$memory/work" none "$root"
        for folder in /dev /sys "$build" "$here"; do mkdir -p "$root/$folder" && mount --rbind "$folder" "$root/$folder"; done
        mount -t proc none "$root/proc"
        # An overlay, as both publishers mount, has its changes in no other overlay.
        mkdir -p "$root"/{cvmfs,srv/cvmfs,var/spool/cvmfs,var/log/cvmfs,etc/cvmfs/keys,etc/cvmfs/repositories.d,etc/apache2,judge}
        mount --bind "$memory/spool" "$root/var/spool/cvmfs"
        mkdir "$memory/judge" && mount --bind "$memory/judge" "$root/judge"
        for file in "$build"/*; do
            [ -f "$file" ] || continue
            case $file in *.so*) place=usr/lib ;; *) place=usr/bin ;; esac
            touch "$root/$place/${file##*/}" && mount --bind "$file" "$root/$place/${file##*/}"
        done
        touch "$root/usr/bin/esker" && mount --bind "$esker" "$root/usr/bin/esker"
        # What cvmfs_server asks of the web server is true: there is one.
        rm -f "$root/usr/bin/systemctl" "$root/usr/sbin/a2enmod"
        printf "#!/bin/sh\n" >"$root/usr/sbin/service" && chmod +x "$root/usr/sbin/service"
        : >"$root/etc/fstab"
        exec chroot "$root" env -i PATH=/usr/sbin:/usr/bin:/sbin:/bin HOME=/root LC_ALL=C bash "$here/judge-server.sh" "$build" --inside
    ' judge "$memory" "$build" "$here" "$esker" </dev/null &
    machine=$!
    outcome=0
    wait "$machine" || outcome=$?
    machine=
    exit "$outcome"
fi

# --- inside: what both judge -----------------------------------------------------------------------------------------

work=/judge failures=0
mkdir "$work"/{mnt,ours,tmp,state}

say() { printf '| %s | %s | %s |\n' "$@"; }

step() { # WHO WHAT COMMAND…: after which both judge
    local who=$1 what=$2 log=$work/tmp/log
    shift 2
    if { "$@" && sound; } >"$log" 2>&1; then
        say "$who" "$what" "$(tail -n 1 "$log")"
    else
        say "$who" "$what" "**FAILED**"
        tail -n 30 "$log" | sed 's/^/    /'
        failures=$((failures + 1))
        # The next step finds no open transaction.
        cvmfs_server abort -f "$name" >/dev/null 2>&1 || true
    fi
}

head_of() { sed -n "/^--\$/q;s/^$1//p" "/srv/cvmfs/$name/.cvmfspublished"; }

shown_by_both() { # both clients show the same tree: names, modes, owners, sizes, times, targets and contents
    local config=$work/tmp/client.conf cache outcome=0
    cache=$(mktemp -d "$work/tmp/cache-XXXX")
    cat >"$config" <<EOF2
CVMFS_SERVER_URL=$url
CVMFS_HTTP_PROXY=DIRECT
CVMFS_PUBLIC_KEY=/etc/cvmfs/keys/$name.pub
CVMFS_CACHE_BASE=$cache
CVMFS_RELOAD_SOCKETS=$cache
CVMFS_SHARED_CACHE=no
CVMFS_USE_GEOAPI=no
CVMFS_CLAIM_OWNERSHIP=no
CVMFS_MAGIC_XATTRS_VISIBILITY=never
EOF2
    cvmfs2 -o "config=$config" "$name" "$work/mnt" >/dev/null || return 1
    if esker mount "$url" "$work/ours" --public-key "/etc/cvmfs/keys/$name.pub" --cache "$work/tmp/esker" >/dev/null; then
        diff -r --no-dereference "$work/mnt" "$work/ours" && diff <(listing "$work/mnt") <(listing "$work/ours") || outcome=1
        listing "$work/ours" >"$work/tmp/listing"
        esker umount "$work/ours" || outcome=1
    else
        outcome=1
    fi
    umount "$work/mnt" || { sleep 1 && umount "$work/mnt"; } || outcome=1
    rm -rf "$cache"
    return $outcome
}

listing() { (cd "$1" && find . -printf '%p %y %m %U:%G %s %T@ %l\n' | sort); }

tags_of_reference() { cvmfs_server tag -l -x "$name" | cut -d ' ' -f 1,4 | sort; }
tags_of_esker() { esker tag list "$name" --json | tr '{' '\n' | sed -n 's/^"name":"\([^"]*\)","revision":\([0-9]*\).*/\1 \2/p' | sort; }

sound() {
    cvmfs_server check -i "$name" || return 1
    esker check "$name" --data --quiet || return 1
    diff <(tags_of_reference) <(tags_of_esker) || { echo "the tags differ"; return 1; }
    shown_by_both || return 1
    echo "revision $(head_of S), $(tags_of_esker | wc -l) tags, $(wc -l <"$work/tmp/listing") entries: both agree"
}

# --- steps -----------------------------------------------------------------------------------------------------------

reference() { # SCRIPT [OPTION…]: changes of a transaction of cvmfs_server, in the top directory
    local script=$1
    shift
    cvmfs_server transaction "$name" && (cd "/cvmfs/$name" && sh -ec "$script") && cvmfs_server publish "$@" "$name"
}

ours() { # SCRIPT [OPTION…]: the same with Esker
    local script=$1
    shift
    esker transaction "$name" --transactions "$work/state" --quiet "$@" -- sh -ec "cd /cvmfs/$name && $script"
}

fails() { ! "$@"; }
unchanged() { local before; before=$(head_of S) && "$@" && [ "$(head_of S)" = "$before" ]; }
content() { [ "$(esker cat "$name:$1")" = "$2" ] || { echo "$1 holds $(esker cat "$name:$1")"; return 1; }; }      # PATH TEXT

abort_reference() { cvmfs_server transaction "$name" && echo lost >"/cvmfs/$name/lost" && cvmfs_server abort -f "$name" && [ ! -e "/cvmfs/$name/lost" ]; }
abort_esker() { fails ours "echo lost >lost; false" && esker transaction abort --transactions "$work/state" "$name"; }
archive() { rm -rf "$work/tmp/tree" && mkdir -p "$work/tmp/tree/$1" && echo "$1" >"$work/tmp/tree/$1/file" && tar -C "$work/tmp/tree" -cf "$work/tmp/archive.tar" .; }
rollback_to() { cvmfs_server rollback -f -t "$1" "$name" && content /docs/guide "$2"; }
listed_alike() { diff <(cvmfs_server list-catalogs -x "$name" | awk '{print $NF}' | sort) <(esker repo catalogs "$name" --json | tr '{' '\n' | sed -n 's/.*"path":"\([^"]*\)".*/\1/p' | sed 's/^$/\//' | sort); }
chown_map() { printf '12345 54321\n' >"$work/tmp/uid" && printf '* 0\n' >"$work/tmp/gid" && cvmfs_server catalog-chown -u "$work/tmp/uid" -g "$work/tmp/gid" "$name"; }
busy_for_esker() { # an open transaction of the reference excludes Esker until it ends
    cvmfs_server transaction "$name" && fails unchanged ours "echo no >no" --wait=1s && cvmfs_server abort -f "$name"
}
collected() { esker collect "$name" --keep-tags --grace 0 --quiet; }

week() {
    step reference "publish, tag v1" reference "mkdir docs hello; echo first >docs/guide; echo 1 >hello/version; touch hello/.cvmfscatalog" -a v1 -m "the first"
    step Esker "transaction, tag v2" ours "echo second >docs/guide; echo 2 >hello/version; ln -s version hello/link" --tag v2
    step reference "transaction on Esker's revision: reads, changes" reference "grep -q second docs/guide; echo third >docs/guide; chmod 750 hello; rm hello/link"
    step Esker "transaction on the reference's revision: reads, changes" ours "grep -q third docs/guide; mkdir -p deep/er; echo deep >deep/er/file; ln docs/guide docs/same"
    step reference "abort" unchanged abort_reference
    step Esker "failed command, abort" unchanged abort_esker
    step reference "open transaction: Esker's publish is refused" busy_for_esker
    archive one
    step reference "ingest" cvmfs_server ingest -t "$work/tmp/archive.tar" -b ingested/r "$name"
    archive two
    step Esker "ingest" esker ingest "$name" "$work/tmp/archive.tar" --to /ingested/e --quiet
    step reference "ingest -d of Esker's directory" cvmfs_server ingest -d ingested/e "$name"
    step Esker "remove of the reference's directory" esker remove "$name" /ingested/r --quiet
    step reference "tag -a" cvmfs_server tag -a theirs -m "a tag" "$name"
    step Esker "tag add, of an old revision" esker tag add "$name" ours --revision v1
    step reference "tag -r of Esker's tag" cvmfs_server tag -r ours -f "$name"
    step Esker "tag move, remove" eval 'esker tag move "$name" theirs --revision v2 && esker tag add "$name" last && esker tag remove "$name" theirs'
    step reference "diff of tags" eval 'cvmfs_server diff -m -s v1 -d v2 "$name" | grep docs/guide >/dev/null'
    step Esker "diff of tags, log" eval 'esker diff "$name" v1 v2 | grep docs/guide >/dev/null && esker log "$name" /docs/guide >/dev/null'
    step reference "list-catalogs: the same as Esker's" listed_alike
    step reference "eliminate-hardlinks" cvmfs_server eliminate-hardlinks -f "$name"
    step Esker "hard links again" ours "rm docs/same; ln docs/guide docs/same; chown 12345 docs/guide"
    step reference "catalog-chown" chown_map
    step Esker "publishes behind it" ours "[ \$(stat -c %u docs/guide) = 54321 ]; echo fourth >docs/guide" --tag v4
    step reference "resign" cvmfs_server resign -f "$name"
    step Esker "resign" esker repo resign "$name"
    step reference "resign -p: the manifest" cvmfs_server resign -p "$name"
    step Esker "rollback to v2" eval 'esker rollback "$name" --to v2 && content /docs/guide second'
    step reference "publish on it" reference "grep -q second docs/guide; echo fifth >docs/guide" -a v5
    step reference "rollback to v1" rollback_to v1 first
    step Esker "publish on it" ours "grep -q first docs/guide; echo sixth >docs/guide" --tag v6
    step Esker "publish of a mistake, undo" eval 'ours "echo mistake >docs/guide" && esker undo "$name" && content /docs/guide sixth'
    step reference "gc" cvmfs_server gc -f -r 0 "$name"
    step Esker "publish of content that gc deleted" ours "echo mistake >docs/again; echo fifth >docs/guide"
    step Esker "collect" collected
    step reference "publish of content that collect deleted" reference "echo sixth >docs/guide; rm docs/again"
    step reference "info" eval 'cvmfs_server info "$name" | grep Stratum >/dev/null'
    step Esker "repo info" eval 'esker repo info "$name" >/dev/null'
}

created_by_reference() { cvmfs_server mkfs -p -z -g -w "$url" -o root "$name" && esker repo import "$name"; }
created_by_esker() {
    esker repo create "$name" && esker repo set "$name" automatic_tags=off && mkdir -p "/srv/cvmfs/$name/data/txn" || return 1
    cvmfs_server import -p -w "$url" -o root "$name" || return 1
    printf 'CVMFS_AUTO_TAG=false\nCVMFS_GARBAGE_COLLECTION=true\n' >>"/etc/cvmfs/repositories.d/$name/server.conf"
    esker repo import "$name"
}

mkfifo "$work/tmp/ready"
esker serve /srv/cvmfs --user root --listen 127.0.0.1:0 --json >"$work/tmp/ready" 2>"$work/tmp/serve.log" &
read -r ready <"$work/tmp/ready"
# shellcheck disable=SC2001 # a pattern of the shell can't take it out
address=$(sed 's/.*"url":"\(http:[^"]*:[0-9]*\)".*/\1/' <<<"$ready")
for creator in reference esker; do
    name=$creator.judge.test url=$address/cvmfs/$creator.judge.test
    made=$failures
    step "$creator" "**$name** created, taken over by the other" "created_by_$creator"
    [ "$failures" != "$made" ] || week
done
[ "$failures" = 0 ] || { echo "$failures steps failed"; exit 1; }
