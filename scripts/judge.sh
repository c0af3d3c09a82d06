#!/usr/bin/env bash
# Has the reference implementation judge what Esker publishes: judge.sh BUILD [FOLDER]
#
# BUILD is the folder where CernVM-FS 2.12 was compiled (cvmfs_swissknife, cvmfs2 and their libraries); FOLDER takes what
# is made, about 3 GB, and must not exist; it is removed unless something is wrong. Needs root, /dev/fuse and overlayfs.
# ESKER and COMPARE name the binaries if they are not those of a release build. See reference.sh.
#
#   1. A tree with every kind of entry, in each hash and compression that the reference knows: published, changed,
#      published again, its whitelist signed again, an archive of it ingested; each time `check -c`. Each published
#      revision is shown by the reference's client from `esker serve` and compared with the source. At the end `scrub`
#      looks at every object, and `cvmfs_fsck` at the cache of a client that read everything; it is replicated with the
#      whole history, the copy shown by the client and compared, and checked, whole and with an object removed. The
#      same with `--deflate fast`, of whose objects `cvmfs_fsck` has to complain, as the guide says.
#   2. Each fixture: a revision by Esker, after which a replica is made and shown, and `scrub` and `cvmfs_fsck` find
#      nothing; one by the reference inside of it, another one by each; each time `check -c`. Replicated, the copy shown
#      and checked, and shown by both clients and compared.
#   3. Tags added, moved and removed, a rollback, an undo and virtual snapshots; each time `check -c`. The reference lists
#      the tags, and adds one, after which Esker goes on. Its client shows a snapshot.
#   4. The week of a release manager (judge-week.sh), in a repository of Esker and in one of the reference: each step by one
#      of the two, after which both check the repository, and the other goes on.
#
# PARTS names the parts to run, if not all: kinds, continued, travelled, week.
set -euo pipefail
build=$(realpath "${1:?the folder of a CernVM-FS build}")
work=${2:-$(mktemp -du /tmp/esker-judge-XXXXXX)}
cd "$(dirname "$0")/.."
work=$(realpath -m "$work")
. scripts/reference.sh
. scripts/judge-week.sh
compare=$(realpath "${COMPARE:-$target/$triple/release/esker-compare}")
fixtures=$PWD/fixtures
for binary in "$build/cvmfs_swissknife" "$build/cvmfs2" "$build/cvmfs_fsck" "$esker" "$compare"; do
    [ -x "$binary" ] || { echo "there is no $binary" >&2; exit 2; }
done
mkdir "$work" "$work"/{keys,www,copies,tmp,mnt,mnt-copy,union}
failures=0

say() { printf '| %s | %s | %s |\n' "$@"; }
verdict() { # WHAT DOES COMMAND…: a row of the log
    local what=$1 does=$2 log=$work/log
    shift 2
    if "$@" >"$log" 2>&1; then
        say "$what" "$does" "$(tail -n 1 "$log" | tr '|' '/')"
    else
        say "$what" "$does" "**FAILED**"
        sed 's/^/    /' "$log" | tail -n 40
        failures=$((failures + 1))
    fi
}

# --- judging --------------------------------------------------------------------------------------------------------

check() { # REPOSITORY
    knife check -r "$work/www/$1" -k "$work/keys/$1.pub" -N "$1" -c -t "$work/tmp" || return 1
    echo "no problems found, revision $(field "$1" S)"
}

scrub() { # REPOSITORY: every object has the name of its bytes
    knife scrub -r "$work/www/$1/data" || return 1
    echo "nothing found"
}

read_all() { # REPOSITORY: the reference's client reads everything, and leaves it in `cache`
    local outcome=0
    mount_reference "$url" "$1" "$work/mnt" || return 1
    find "$work/mnt" -type f -exec cat {} + >"$work/tmp/contents" || outcome=1
    [ -s "$work/tmp/contents" ] || outcome=1
    rm -f "$work/tmp/contents"
    leave "$work/mnt" || outcome=1
    return $outcome
}

fsck() { # REPOSITORY [LEAST]: what its client has in the cache, this many objects at least, is intact
    local count
    read_all "$1" || return 1
    "$build/cvmfs_fsck" "$cache/$1" || return 1
    count=$(find "$cache/$1"/[0-9a-f][0-9a-f] -type f | wc -l)
    rm -rf "$cache"
    [ "$count" -gt "${2:-20}" ] || return 1
    echo "no problems found in $count objects"
}

fsck_complains() { # REPOSITORY
    read_all "$1" || return 1
    ! "$build/cvmfs_fsck" "$cache/$1" >"$work/complaint" || return 1
    rm -rf "$cache"
    grep -q 'has compressed checksum' "$work/complaint" || return 1
    echo "calls $(grep -c 'has compressed checksum' "$work/complaint") objects corrupt, as the guide says"
}

replicate() { # REPOSITORY: anew
    local copy=$work/copies/$1
    rm -rf "$copy" "$copy.reflog"
    mkdir -p "$copy/data/txn" "$work/tmp/pull"
    for byte in $(seq 0 255); do mkdir "$copy/data/$(printf %02x "$byte")"; done
    knife pull -u "$url/$1" -m "$1" -k "$work/keys/$1.pub" -r "local,$copy/data/txn,$copy" -x "$work/tmp/pull" \
        -w "file://$copy" -R "$copy.reflog" -p -i || return 1
    cmp <(sed '/^--$/q' "$copy/.cvmfspublished") <(sed '/^--$/q' "$work/www/$1/.cvmfspublished") || return 1
    knife check -r "$copy" -k "$work/keys/$1.pub" -N "$1" -c -t "$work/tmp" -R "$copy.reflog" || return 1
    echo "complete, no problems found in the copy"
}

replica_shown() { # REPOSITORY: the reference's client shows the copy as it does the original
    local outcome=0
    mount_reference "$copies_url" "$1" "$work/mnt-copy" || return 1
    if mount_reference "$url" "$1" "$work/mnt"; then
        "$compare" "$work/mnt" "$work/mnt-copy" || outcome=1
        leave "$work/mnt" || outcome=1
    else
        outcome=1
    fi
    leave "$work/mnt-copy" || outcome=1
    return $outcome
}

misses() { # REPOSITORY: the checker would have noticed
    local copy=$work/copies/$1
    rm "$(find "$copy/data" -type f -size +1M -print -quit)" || return 1
    ! knife check -r "$copy" -k "$work/keys/$1.pub" -N "$1" -c -t "$work/tmp" -R "$copy.reflog" >"$work/complaint" 2>&1 || return 1
    grep -q ' missing$' "$work/complaint" || return 1
    echo "missed"
}

# What the reference's client does otherwise on purpose: it resolves variables in symlinks.
shown_as() { # SOURCE FOLDER
    "$compare" "$1" "$2" >"$work/differences" && return
    local others
    others=$(sed 1d "$work/differences" | grep -cv '^/link-variable: .* target is ' || true)
    sed 1d "$work/differences"
    [ "$others" = 0 ] || return 1
    echo "$(head -n 1 "$work/differences" | cut -d: -f1): the same but for the variable in a symlink"
}

shown() { # REPOSITORY SOURCE: what the reference's client shows is the source
    local outcome=0
    mount_reference "$url" "$1" "$work/mnt" || return 1
    shown_as "$2" "$work/mnt" || outcome=1
    leave "$work/mnt" || outcome=1
    return $outcome
}

list() { # FOLDER: everything that `find` can say, but sizes of directories
    (cd "$1" && find . -type d -printf '%y %m %U %G %T@ %n %P\n' -o -printf '%y %m %U %G %T@ %n %s %l %P\n' | sort)
}

alike() { # REPOSITORY: both clients show the same
    local outcome=0 count others ours=$work/tmp/ours
    mkdir -p "$ours"
    mount_reference "$url" "$1" "$work/mnt" || return 1
    "$esker" mount "$url/$1" "$ours" --public-key "$work/keys/$1.pub" --cache "$work/tmp/esker.$1" || outcome=1
    diff <(list "$work/mnt") <(list "$ours") || outcome=1
    count=$(list "$ours" | wc -l)
    # diff can't compare pipes and devices; their lines above are all there is to them.
    others=$(diff -r --no-dereference "$work/mnt" "$ours" | grep -v ' is a [a-z ]* while ' || true)
    [ -z "$others" ] || { echo "$others"; outcome=1; }
    "$esker" umount "$ours" || outcome=1
    leave "$work/mnt" || outcome=1
    [ $outcome = 0 ] || return 1
    echo "$count entries, no difference"
}

# --- publishing ------------------------------------------------------------------------------------------------------

publish_esker() { # REPOSITORY SOURCE [OPTION…]
    local name=$1 source=$2
    shift 2
    "$esker" publish "$name" "$source" "${places[@]}" --quiet "$@" || return 1
    echo "revision $(field "$name" S)"
}

ingest() { # REPOSITORY ARCHIVE
    "$esker" ingest "$1" "$2" "${places[@]}" --quiet --to /ingested/here --nested --delete /many --allow-shrink --delete /marked || return 1
    echo "revision $(field "$1" S)"
}

resign() { # REPOSITORY
    "$esker" repo resign "$1" "${places[@]}" || return 1
    echo done
}

hash_of() { # REPOSITORY: algorithm of its object names
    case $(field "$1" C) in *-rmd160) echo rmd160 ;; *-shake128) echo shake128 ;; *) echo sha1 ;; esac
}

# CernVM-FS keeps the checksum in its spool folder; without one, the manifest has it.
checksum_of() { # REPOSITORY: file with the checksum of its reflog
    local file=$work/spool/$1/reflog.chksum
    [ -d "$(dirname "$file")" ] || { file=$work/tmp/checksum.$1 && printf %s "$(field "$1" Y)" >"$file"; }
    echo "$file"
}

sign_reference() { # REPOSITORY MANIFEST
    knife sign -c "$work/keys/$1.crt" -k "$work/keys/$1.key" -n "$1" -u "$url/$1" -m "$2" -t "$work/tmp" \
        -r "$(storage_of "$1")" -R "$(checksum_of "$1")" $([ -z "$(field "$1" G)" ] || echo -g)
}

tag_reference() { # REPOSITORY MANIFEST OPTION…
    local name=$1 manifest=$2
    shift 2
    # It makes its history in the current folder.
    (cd "$work/tmp" && knife tag_edit -r "$(storage_of "$name")" -w "$url/$name" -t "$work/tmp" -m "$manifest" \
        -p "$work/keys/$name.pub" -f "$name" -e "$(hash_of "$name")" "$@")
}

# A revision by the reference: its client's mount below, an overlay above, and what changed in there.
publish_reference() { # REPOSITORY COMMAND…: run in the folder that is published; `tag` names the revision
    local name=$1 base outcome=0 here=$work/union
    shift
    base=$(field "$name" C)
    rm -rf "$here"
    mkdir -p "$here"/{below,above,work,all,tmp} "$statistics/$name"
    mount_reference "$url" "$name" "$here/below" "$base" || return 1
    overlay "$here" || outcome=1
    (cd "$here/all" && "$@") || outcome=1
    [ $outcome != 0 ] || synchronize "$url" "$name" "$here" "$base" "$(hash_of "$name")" || outcome=1
    leave "$here/all" || outcome=1
    leave "$here/below" || outcome=1
    [ $outcome = 0 ] || return 1
    tag_reference "$name" "$here/manifest" -x -b "$base" ${tag:+-a "$tag"} || return 1
    sign_reference "$name" "$here/manifest" || return 1
    echo "revision $(field "$name" S)"
}

# --- trees -----------------------------------------------------------------------------------------------------------

noise() { head -c "$2" /dev/zero | openssl enc -aes-128-ctr -nosalt -K "$(printf %032x "$1")" -iv "$(printf %032x 0)"; } # SEED BYTES

make_tree() { # FOLDER: every kind of entry
    mkdir -p "$1"/{empty,deep/{a,b}/{c,d}/e,marked/below,rules/{one,two},many,owned}
    cd "$1"
    noise 1 40000000 >large
    noise 2 3000000 >medium
    head -c 300000 /dev/zero >zeros
    : >nothing
    truncate -s 30M sparse
    printf x | dd of=sparse bs=1 seek=20000000 conv=notrunc status=none
    echo one >linked && ln linked linked-too && ln linked linked-three
    ln -s large link && ln -s /nowhere link-broken && ln -s '$(ARCH)/lib' link-variable && ln -s "$(printf 'l%.0s' {1..300})" link-long
    mkfifo pipe
    mknod char c 5 1
    mknod block b 7 200
    python3 -c 'import socket; socket.socket(socket.AF_UNIX).bind("socket")'
    printf '#!/bin/sh\n' >setuid && chmod 6755 setuid
    mkdir sticky && chmod 1777 sticky
    echo secret >unreadable && chmod 000 unreadable
    touch -- "$(printf 'not \377\376 UTF-8')" "$(printf 'n%.0s' {1..255})" ' space ' $'new\nline' '"quotes"' '*' '-dash'
    setfattr -n user.short -v value medium
    setfattr -n user.long -v "$(printf 'v%.0s' {1..200})" medium
    setfattr -n user.empty empty
    touch -d '1955-11-05 06:15:00.123456789 UTC' deep/a/c/e
    touch -d '2038-01-19 03:14:08.999999999 UTC' deep/b
    chown 1234:4321 owned && touch owned/file && chown 4000000000:3999999999 owned/file
    touch marked/.cvmfscatalog && echo below >marked/below/file
    printf '/rules/*\n! /rules/two\n' >.cvmfsdirtab && echo 1 >rules/one/file && echo 2 >rules/two/file
    for number in $(seq 2500); do echo "$number" >"many/file $number"; done
    cd - >/dev/null
}

change_tree() { # FOLDER
    cd "$1"
    rm -r deep/a linked-too pipe many/file\ 1* sticky
    noise 3 100000 >>large
    echo changed >medium
    mv rules/one rules/three
    rm marked/.cvmfscatalog && mkdir -p marked/again && touch marked/again/.cvmfscatalog
    ln -sfn small link && mkdir link-broken.d && chmod 700 empty
    rm char && echo file >char
    setfattr -x user.short medium
    cd - >/dev/null
}

# --- what is done ----------------------------------------------------------------------------------------------------

kinds() { # HASH COMPRESSION TAR-OPTION [ENCODER]
    local name=$1-$2${4:+-$4}.judge.test tree=$work/tree
    rm -rf "$tree"
    make_tree "$tree"
    "$esker" repo create "$name" "${places[@]}" --hash "$1" --compress "$2" ${4:+--deflate "$4"} --json >"$work/log"
    verdict "$name" "every kind of entry" publish_esker "$name" "$tree"
    verdict "$name" "\`check -c\`" check "$name"
    verdict "$name" "shown by the reference's client" shown "$name" "$tree"
    change_tree "$tree"
    verdict "$name" "changed" publish_esker "$name" "$tree"
    verdict "$name" "\`check -c\`" check "$name"
    verdict "$name" "shown by the reference's client" shown "$name" "$tree"
    verdict "$name" "whitelist signed again" resign "$name"
    verdict "$name" "\`check -c\`" check "$name"
    XZ_OPT=-0 tar -C "$tree" -c"$3"f "$work/archive" --warning=no-file-ignored .
    verdict "$name" "ingests an archive into a nested catalog, deletes" ingest "$name" "$work/archive"
    verdict "$name" "\`check -c\`" check "$name"
    verdict "$name" "\`scrub\`" scrub "$name"
    case ${4-} in
    fast) verdict "$name" "\`cvmfs_fsck\` of a client that read everything" fsck_complains "$name" ;;
    *) verdict "$name" "\`cvmfs_fsck\` of a client that read everything" fsck "$name" ;;
    esac
    verdict "$name" "replicated with \`pull -p\`, \`check -c\` of the copy" replicate "$name"
    verdict "$name" "the copy shown by the reference's client, beside the original" replica_shown "$name"
    verdict "$name" "an object of the copy removed: \`check -c\`" misses "$name"
    rm -rf "$work/copies/$name" "$work/www/$name" "$work"/tmp/cache-*
}

first_edit() { mkdir reference && noise 4 9000000 >reference/file && ln -s file reference/link && rm -r esker/rules && echo more >>esker/medium; }
second_edit() { echo again >reference/again && rm reference/link && rm -r esker/many; }

continued() { # FIXTURE
    local name=$1 tree=$work/tree
    rm -rf "$tree"
    make_tree "$tree"
    tar -C "$work/www" --zstd -xf "$fixtures/$name/repository.tar.zst"
    cp "$fixtures/$name/$name".{pub,key,crt,masterkey} "$work/keys/"
    touch "$work/www/$name/.cvmfs_master_replica"
    verdict "$name" "as it is: \`check -c\`" check "$name"
    verdict "$name" "Esker adds /esker" publish_esker "$name" "$tree" --to /esker
    verdict "$name" "\`check -c\`" check "$name"
    verdict "$name" "\`scrub\`" scrub "$name"
    verdict "$name" "\`cvmfs_fsck\` of a client that read everything" fsck "$name"
    verdict "$name" "replicated with \`pull -p\`, \`check -c\` of the copy" replicate "$name"
    verdict "$name" "the copy shown by the reference's client, beside the original" replica_shown "$name"
    verdict "$name" "the reference adds and removes in and beside it" publish_reference "$name" first_edit
    verdict "$name" "\`check -c\`" check "$name"
    change_tree "$tree"
    verdict "$name" "Esker makes /esker equal to its source" publish_esker "$name" "$tree" --to /esker
    verdict "$name" "\`check -c\`" check "$name"
    verdict "$name" "the reference again" publish_reference "$name" second_edit
    verdict "$name" "\`check -c\`" check "$name"
    verdict "$name" "shown by both clients" alike "$name"
    verdict "$name" "\`cvmfs_fsck\` of a client that read everything" fsck "$name"
    verdict "$name" "replicated with \`pull -p\`, \`check -c\` of the copy" replicate "$name"
    verdict "$name" "the copy shown by the reference's client, beside the original" replica_shown "$name"
    rm -rf "$work/copies/$name" "$work/www/$name" "${statistics:?}/$name" "$work"/tmp/cache-*
}

of_esker() { "$esker" "$@" "${places[@]}"; }

listed() { # REPOSITORY TAG…: the reference lists exactly these tags
    local name=$1 found
    shift
    found=$(knife tag_list -w "$url/$name" -t "$work/tmp" -p "$work/keys/$name.pub" -f "$name" -x | cut -d ' ' -f 1 | sort | tr '\n' ' ')
    echo "$found"
    [ "$found" = "$(printf '%s\n' "$@" | sort | tr '\n' ' ')" ]
}

tag_by_reference() { # REPOSITORY TAG
    cp "$work/www/$1/.cvmfspublished" "$work/tmp/manifest" || return 1
    tag_reference "$1" "$work/tmp/manifest" -a "$2" -b "$(field "$1" C)" || return 1
    sign_reference "$1" "$work/tmp/manifest" || return 1
    echo "$2 is added"
}

snapshot_shown() { # REPOSITORY TAG TEXT: the client shows this text in `file` of the snapshot
    local outcome=0
    mount_reference "$url" "$1" "$work/mnt" || return 1
    grep -qxF "$3" "$work/mnt/.cvmfs/snapshots/$2/file" || outcome=1
    leave "$work/mnt" || return 1
    [ $outcome = 0 ] && echo "the snapshot of $2 has its file"
}

travelled() {
    local name=time.judge.test tree=$work/tree
    rm -rf "$tree" && mkdir -p "$tree/nested" && touch "$tree/nested/.cvmfscatalog"
    of_esker repo create "$name" --json >"$work/log"
    for number in 1 2 3; do
        echo "$number" >"$tree/file" && echo "$number" >"$tree/nested/file"
        verdict "$name" "revision $number" of_esker publish "$name" "$tree" --tag "v$number" --quiet --json
    done
    verdict "$name" "a tag of an old revision" of_esker tag add "$name" old --revision 1
    verdict "$name" "the tag moved" of_esker tag move "$name" old --revision v2
    verdict "$name" "\`check -c\`" check "$name"
    verdict "$name" "the reference lists the tags" listed "$name" old v1 v2 v3 trunk trunk-previous
    verdict "$name" "two tags removed" of_esker tag remove "$name" old v3
    verdict "$name" "\`check -c\`" check "$name"
    verdict "$name" "rolled back to v1" of_esker rollback "$name" --to v1
    verdict "$name" "\`check -c\`" check "$name"
    verdict "$name" "the reference lists the tags" listed "$name" v1 trunk
    verdict "$name" "brought back by number" of_esker rollback "$name" --to 3
    verdict "$name" "\`check -c\`" check "$name"
    verdict "$name" "a tag by the reference" tag_by_reference "$name" theirs
    verdict "$name" "\`check -c\`" check "$name"
    verdict "$name" "Esker lists it" of_esker tag show "$name" theirs
    sed -i 's/^{/{ "virtual_snapshots": true,/' "$work/www/$name/.esker/settings.json"
    echo 4 >"$tree/file"
    verdict "$name" "revision 4 with snapshots" of_esker publish "$name" "$tree" --tag v4 --quiet --json
    verdict "$name" "\`check -c\`" check "$name"
    verdict "$name" "the reference's client shows a snapshot" snapshot_shown "$name" v4 4
    verdict "$name" "undone" of_esker undo "$name"
    verdict "$name" "\`check -c\`" check "$name"
    verdict "$name" "the reference's client shows a snapshot" snapshot_shown "$name" theirs 3
    verdict "$name" "\`scrub\`" scrub "$name"
}

printf '%s, reference %s, %s, %s\n\n' "$("$esker" --version)" "$(knife version 2>/dev/null | head -n 1)" "$(uname -sr)" "$(date -u +%Y-%m-%d)"
say "Repository" "What is done" "Result"
echo '|---|---|---|'
serve "$work/www"
url=$address servers=$server
serve "$work/copies"
copies_url=$address servers="$servers $server"
# shellcheck disable=SC2086 # two processes
trap 'kill $servers 2>/dev/null || true' EXIT
run() { [[ " ${PARTS:-kinds continued travelled week} " == *" $1 "* ]]; }
if run kinds; then
    for hash in sha1 rmd160 shake128; do
        kinds $hash zlib J
        kinds $hash none z
    done
    kinds sha1 zlib z fast
fi
if run continued; then for fixture in full rmd shake; do continued $fixture.test; done; fi
if run travelled; then travelled; fi
if run week; then
    week esker sha1
    week reference rmd160
fi
if [ "$failures" != 0 ]; then
    echo "$failures of these failed; what was made is in $work" >&2
    exit 1
fi
rm -rf "$work"
