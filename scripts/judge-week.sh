# The week of a release manager in a repository that Esker and the reference change in turns. Sourced by judge.sh.
# shellcheck shell=bash disable=SC2154 # judge.sh and reference.sh set the variables

# --- a repository by the reference -----------------------------------------------------------------------------------

digest() { # HASH: hash of the input, as CernVM-FS writes it
    local options=()
    [ "$1" != shake128 ] || options=(-xoflen 20)
    printf %s "$(openssl dgst "-$1" "${options[@]}" -r | cut -d ' ' -f 1)"
    [ "$1" = sha1 ] || printf %s "-$1"
}

new_publisher_key() { # REPOSITORY
    local at=$work/keys/$1
    rm -f "$at.key" "$at.crt"
    openssl genrsa -out "$at.key" 2048 2>/dev/null &&
        openssl req -new -subj "/CN=$1 CernVM-FS Release Managers" -key "$at.key" -out "$work/tmp/csr" &&
        openssl x509 -req -days 365 -in "$work/tmp/csr" -signkey "$at.key" -out "$at.crt" 2>/dev/null &&
        chmod 400 "$at.key"
}

new_whitelist() { # REPOSITORY HASH: of the certificate in the keys folder alone
    local text=$work/tmp/whitelist
    {
        date -u +%Y%m%d%H%M%S
        echo "E$(date -u --date='+30 days' +%Y%m%d%H%M%S)"
        echo "N$1"
        openssl x509 -in "$work/keys/$1.crt" -outform der | digest "$2" | sed -E 's/^[0-9a-f]+/\U&/; :pair s/^((..:)*..)([0-9A-F]{2})/\1:\3/; t pair; s/-.*/\U&/'
        echo
    } >"$text" || return 1
    digest "$2" <"$text" >"$text.hash" || return 1
    openssl pkeyutl -sign -inkey "$work/keys/$1.masterkey" -in "$text.hash" -out "$text.signature" || return 1
    { cat "$text" && echo -- && cat "$text.hash" && echo && cat "$text.signature"; } >"$text.signed"
    knife upload -i "$text.signed" -o .cvmfswhitelist -r "$(storage_of "$1")"
}

create_reference() { # REPOSITORY HASH
    local at=$work/www/$1 spool=$work/spool/$1
    mkdir -p "$at/data/txn" "$spool" && for byte in $(seq 0 255); do mkdir "$at/data/$(printf %02x "$byte")"; done
    openssl genrsa -out "$work/keys/$1.masterkey" 2048 2>/dev/null || return 1
    openssl rsa -in "$work/keys/$1.masterkey" -pubout -out "$work/keys/$1.pub" 2>/dev/null || return 1
    new_publisher_key "$1" && new_whitelist "$1" "$2" || return 1
    knife create -t "$work/tmp" -r "$(storage_of "$1")" -n "$1" -a "$2" -o "$work/tmp/manifest" -R "$spool/reflog.chksum" -z || return 1
    echo '{"recommended-stratum0":""}' >"$work/tmp/metainfo"
    knife sign -c "$work/keys/$1.crt" -k "$work/keys/$1.key" -n "$1" -u "$url/$1" -m "$work/tmp/manifest" -t "$work/tmp" \
        -r "$(storage_of "$1")" -R "$spool/reflog.chksum" -M "$work/tmp/metainfo" -g || return 1
    touch "$at/.cvmfs_master_replica"
    echo "revision $(field "$1" S)"
    cat >"$work/conf/server.conf" <<EOF2
CVMFS_CREATOR_VERSION=143
CVMFS_REPOSITORY_NAME=$1
CVMFS_REPOSITORY_TYPE=stratum0
CVMFS_SPOOL_DIR=$spool
CVMFS_STRATUM0=$url/$1
CVMFS_UPSTREAM_STORAGE=$(storage_of "$1")
CVMFS_HASH_ALGORITHM=$2
CVMFS_AUTO_TAG=false
CVMFS_GARBAGE_COLLECTION=true
CVMFS_INCLUDE_XATTRS=true
CVMFS_ENABLE_MTIME_NS=true
EOF2
}

create_esker() { # REPOSITORY HASH: with the configuration and the spool folder that the reference needs to go on
    local spool=$work/spool/$1
    of_esker repo create "$1" --hash "$2" && of_esker repo set "$1" automatic_tags=off || return 1
    of_esker repo export-config "$1" --to "$work/conf" --spool "$spool" --stratum0 "$url/$1" || return 1
    mkdir -p "$spool" && field "$1" Y | tr -d '\n' >"$spool/reflog.chksum"
    echo "revision $(field "$1" S)"
}

# --- both judge ------------------------------------------------------------------------------------------------------

sound() { # REPOSITORY: neither finds a fault, and both know the same tags
    local theirs ours
    knife check -r "$work/www/$1" -k "$work/keys/$1.pub" -N "$1" -c -t "$work/tmp" -R "$(checksum_of "$1")" || return 1
    of_esker check "$1" --quiet || return 1
    theirs=$(tags_reference "$1") && ours=$(of_esker tag list "$1" --json | tr '{' '\n' | sed -n 's/^"name":"\([^"]*\)","revision":\([0-9]*\).*/\1 \2/p' | sort)
    [ "$theirs" = "$ours" ] || { echo "tags: $theirs, and: $ours"; return 1; }
    echo "revision $(field "$1" S), both checks find nothing, $(wc -l <<<"$ours") tags"
}

tags_reference() { # REPOSITORY: names and revisions
    knife tag_list -w "$url/$1" -t "$work/tmp" -p "$work/keys/$1.pub" -f "$1" -x | cut -d ' ' -f 1,4 | sort
}

step() { # WHAT COMMAND…: a step of the week, after which both judge
    local what=$1
    shift
    stepped() { "$@" && sound "$name"; }
    verdict "$name" "$what" stepped "$@"
}

reads_reference() { # TEXT COMMAND…: its client shows the head, where the command prints this text
    local text=$1 outcome=0
    shift
    mount_reference "$url" "$name" "$work/mnt" "${root:-}" || return 1
    [ "$(cd "$work/mnt" && "$@")" = "$text" ] || outcome=1
    leave "$work/mnt" || return 1
    echo "it prints ${text//$'\n'/, }"
    return $outcome
}

reads_esker() { # TEXT PATH: a file of the head
    [ "$(of_esker cat "$name:$2")" = "$1" ]
}

# --- steps -----------------------------------------------------------------------------------------------------------

project() { # FOLDER WORD: a small project in C
    mkdir -p "$1" && cd "$1" || return 1
    printf '#include <stdio.h>\nint main(void) { puts("%s"); return 0; }\n' "$2" >hello.c
    printf 'hello: hello.c\n\tcc -o $@ hello.c\ninstall: hello\n\tmkdir -p $(PREFIX)/bin && install -m 755 hello $(PREFIX)/bin && ln -sf hello $(PREFIX)/bin/hi\n' >Makefile
    rm -f hello && cd - >/dev/null
}

wheel() { # FOLDER: a wheel, written without any tool of Python's
    mkdir -p "$1" && python3 - "$1" <<'EOF2'
import sys, zipfile
with zipfile.ZipFile(sys.argv[1] + "/demo-1.0-py3-none-any.whl", "w") as wheel:
    wheel.writestr("demo/__init__.py", "word = 'from a wheel'\n")
    info = "demo-1.0.dist-info/"
    wheel.writestr(info + "METADATA", "Metadata-Version: 2.1\nName: demo\nVersion: 1.0\n")
    wheel.writestr(info + "WHEEL", "Wheel-Version: 1.0\nGenerator: x\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
    wheel.writestr(info + "RECORD", "demo/__init__.py,,\n")
EOF2
}

transaction() { # OPTION… -- COMMAND…
    "$esker" transaction "$name" "${places[@]}" --transactions "$work/transactions" --quiet "$@"
}

build_esker() { # WORD TAG
    project "$work/build" "$1" && transaction --tag "$2" -- make -C "$work/build" PREFIX="/cvmfs/$name/hello" install
}

build_reference() { # WORD TAG
    project "$work/build" "$1" && tag=$2 publish_reference "$name" make -C "$work/build" PREFIX="$work/union/all/hello" install
}

pip_esker() {
    wheel "$work/wheels" && transaction -- python3 -m pip install --quiet --no-index --no-cache-dir --disable-pip-version-check \
        --root-user-action=ignore --find-links "$work/wheels" --target "/cvmfs/$name/python" demo
}

ingest_reference() { # FOLDER: of which an archive is unpacked below /ingested
    local base here=$work/union
    base=$(field "$name" C)
    tar -C "$1" -cf "$work/archive" .
    rm -rf "$here" && mkdir -p "$here"/{below,above,all,tmp}
    mount_reference "$url" "$name" "$here/below" "$base" || return 1
    knife ingest -u "$here/all" -c "$here/below" -t "$here/tmp" -b "$base" -r "$(storage_of "$name")" -w "$url/$name" \
        -o "$here/manifest" -K "$work/keys/$name.pub" -N "$name" -T "$work/archive" -B ingested -C true -j
    local outcome=$?
    leave "$here/below" && [ $outcome = 0 ] || return 1
    tag_reference "$name" "$here/manifest" -x && sign_reference "$name" "$here/manifest"
}

docs_esker() { # TEXT [TAG]: publishes a folder as /docs
    mkdir -p "$work/docs" && echo "$1" >"$work/docs/guide" &&
        of_esker publish "$name" "$work/docs" --to /docs --quiet ${2:+--tag "$2"} && reads_reference "$1" cat docs/guide
}

docs_reference() { # TEXT [TAG]
    tag=${2:-} publish_reference "$name" sh -c "mkdir -p docs && echo '$1' >docs/guide" && reads_esker "$1" /docs/guide
}

tagged_reference() { # OPTION…
    cp "$work/www/$name/.cvmfspublished" "$work/tmp/manifest" &&
        tag_reference "$name" "$work/tmp/manifest" -b "$(field "$name" C)" "$@" && sign_reference "$name" "$work/tmp/manifest"
}

rollback_reference() { # [TAG]
    rm -f "$work/tmp/manifest"
    (cd "$work/tmp" && knife tag_rollback -w "$url/$name" -t "$work/tmp" -p "$work/keys/$name.pub" -f "$name" -r "$(storage_of "$name")" \
        -m "$work/tmp/manifest" -b "$(field "$name" C)" -e "$(hash_of "$name")" ${1:+-n "$1"}) && sign_reference "$name" "$work/tmp/manifest"
}

undo_esker() { docs_esker "a mistake" wrong && of_esker undo "$name" && reads_reference "$1" cat docs/guide; }            # TEXT before
undo_reference() { docs_reference "its mistake" && rollback_reference && reads_esker "$1" /docs/guide; }                  # TEXT before
rollback_esker() { of_esker rollback "$name" --to "$1" && reads_reference "$2" sh -c 'hello/bin/hi; cat docs/guide'; }    # REVISION TEXT

rotate_esker() {
    of_esker key rotate "$name" && docs_reference "signed with the new key" && of_esker key rotate "$name" --finish &&
        reads_reference "signed with the new key" cat docs/guide
}

rotate_reference() {
    local hash
    hash=$(hash_of "$name")
    new_publisher_key "$name" && new_whitelist "$name" "$hash" && sed '/^--$/,$d' "$work/www/$name/.cvmfspublished" >"$work/tmp/manifest" &&
        sign_reference "$name" "$work/tmp/manifest" && of_esker key list "$name" && docs_esker "signed with another key"
}

collect_esker() { of_esker collect "$name" --keep-tags --quiet --json "$@"; }

# The reference doesn't know which objects wait for their deletion, and refers to one of them.
collect_beside_reference() {
    docs_esker "dropped by the collect" && docs_esker "newer" || return 1
    collect_esker --grace 1h | tee "$work/tmp/collected" && grep -q '"waiting":{"objects":[1-9]' "$work/tmp/collected" || return 1
    sound "$name" && docs_reference "dropped by the collect" || return 1
    collect_esker --grace 0 &&
        reads_reference "dropped by the collect" cat docs/guide
}

collect_reference() {
    docs_esker "dropped by the reference" && docs_esker "kept" || return 1
    knife gc -r "$url/$name" -u "$(storage_of "$name")" -n "$name" -k "$work/keys/$name.pub" -t "$work/tmp" -R "$(checksum_of "$name")" -h 0 \
        -L "$work/tmp/deleted" && [ "$(grep -c '^[0-9a-f]' "$work/tmp/deleted")" -gt 1 ] && reads_reference kept cat docs/guide
}

every_byte() { of_esker check "$name" --data --quiet && scrub "$name"; }

at_tag() { # TAG TEXT: both clients show what a file has there
    local ours=$work/tmp/ours outcome=0
    root=$(knife tag_list -w "$url/$name" -t "$work/tmp" -p "$work/keys/$name.pub" -f "$name" -x | sed -n "s/^$1 \([^ ]*\) .*/\1/p") \
        reads_reference "$2" cat docs/guide || return 1
    mkdir -p "$ours"
    "$esker" mount "$url/$name@$1" "$ours" --public-key "$work/keys/$name.pub" --cache "$work/tmp/esker.$name" || return 1
    [ "$(cat "$ours/docs/guide")" = "$2" ] || outcome=1
    "$esker" umount "$ours" || outcome=1
    return $outcome
}

# --- the week --------------------------------------------------------------------------------------------------------

week() { # WHO HASH: by whom the repository is made
    local name=week-$1.judge.test before
    rm -rf "$work/conf" && mkdir -p "$work/conf" "$work/spool"
    verdict "$name" "created ($1, $2)" "create_$1" "$name" "$2"
    step "Esker: takes it over (\`repo import\`)" of_esker repo import "$name" --config "$work/conf/server.conf"
    step "Esker: \`make install\` in a transaction, tag hello-1" build_esker first hello-1
    verdict "$name" "its client runs the program" reads_reference first hello/bin/hi
    step "reference: \`make install\` of the next version, tag hello-2" build_reference second hello-2
    verdict "$name" "its client runs the program" reads_reference second hello/bin/hi
    verdict "$name" "Esker: difference of the two" of_esker diff "$name" hello-1 hello-2 --stat
    verdict "$name" "Esker: log of /hello" of_esker log "$name" /hello
    step "Esker: \`pip install\` in a transaction" pip_esker
    step "reference: ingests an archive into /ingested" ingest_reference "$work/wheels"
    verdict "$name" "Esker lists it" of_esker ls "$name:/ingested"
    step "Esker: publishes a folder as /docs, tag docs-1" docs_esker "the guide" docs-1
    step "reference: changes it" docs_reference "the guide of the reference"
    step "Esker: publishes the folder again, tag docs-2" docs_esker "the second guide" docs-2
    step "Esker: a tag of an old revision, moved" of_esker tag add "$name" ours --revision hello-1
    step "Esker: the tag moved" of_esker tag move "$name" ours --revision docs-1
    step "reference: adds a tag" tagged_reference -a theirs
    step "reference: removes Esker's tag" tagged_reference -d ours
    step "Esker: moves the reference's tag" of_esker tag move "$name" theirs --revision hello-2
    step "Esker: removes it" of_esker tag remove "$name" theirs
    step "Esker: publishes a mistake and undoes it" undo_esker "the second guide"
    step "reference: publishes a mistake and rolls it back" undo_reference "the second guide"
    before=$(field "$name" S)
    step "Esker: rolls back to docs-1" rollback_esker docs-1 $'second\nthe guide'
    step "reference: rolls back to hello-2" rollback_reference hello-2
    step "Esker: brings revision $before back" rollback_esker "$before" $'second\nthe second guide'
    step "Esker: rotates the key; the reference publishes with it meanwhile" rotate_esker
    step "reference: rotates the key; Esker publishes with it" rotate_reference
    step "Esker: collects; the reference refers to a condemned object meanwhile" collect_beside_reference
    step "reference: collects" collect_reference
    step "Esker: collects once more" collect_esker --grace 0
    step "Esker: publishes, tag last" docs_esker "the last guide" last
    verdict "$name" "Esker: \`check --data\`; the reference: \`scrub\`" every_byte "$name"
    verdict "$name" "shown by both clients" alike "$name"
    verdict "$name" "the tag last shown by both clients" at_tag last "the last guide"
    verdict "$name" "\`cvmfs_fsck\` of a client that read everything" fsck "$name" 10
    verdict "$name" "replicated with \`pull -p\`, \`check -c\` of the copy" replicate "$name"
    rm -rf "$work/copies/$name" "${statistics:?}/$name" "$work"/tmp/cache-*
}
