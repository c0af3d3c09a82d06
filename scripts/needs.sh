#!/usr/bin/env bash
# Makes sure that the tests find what they need from the system. As root it installs what is missing and opens
# /dev/fuse; an ordinary user gets the commands that an administrator must run. Tests that such a user can't run are
# skipped, and listed at the end (scripts/test.sh).
set -euo pipefail

# Servers of buckets need no rights, and are made with what is installed below: so they come last, however this ends.
trap '"$(dirname "$0")/s3-servers.sh" || echo "servers of buckets are missing: their tests are skipped" >&2' EXIT

missing=()  # packages
wanted=()   # packages whose tests report a skip without them
blocked=()  # commands that change a setting

command -v cc >/dev/null || missing+=(gcc libc6-dev)
command -v fusermount3 >/dev/null || missing+=(fuse3)
# The automounter and systemd judge what `esker setup` writes.
[ -x /usr/sbin/automount ] || missing+=(autofs)
command -v systemd-analyze >/dev/null || missing+=(systemd)
grep -qw autofs /proc/filesystems || blocked+=("modprobe autofs4")
# The fault matrix runs real proxies and servers; their programs are not on the path of ordinary users.
[ -x /usr/sbin/squid ] || missing+=(squid)
[ -x /usr/sbin/nginx ] || missing+=(nginx-light)
# The ready configurations of deploy/ are tried with their programs.
[ -x /usr/sbin/apache2 ] || wanted+=(apache2-bin)
[ -x /usr/sbin/varnishd ] || wanted+=(varnish)
[ -x /usr/bin/promtool ] || wanted+=(prometheus)
# Pages are looked at in a browser.
[ -x /usr/bin/chromium ] || wanted+=(chromium)
# moto is installed into an environment of Python's.
python3 -c 'import ensurepip, venv' 2>/dev/null || wanted+=(python3-venv)
command -v openssl >/dev/null || missing+=(openssl)
# Keys in a token. An ordinary user goes without: the test is skipped.
if [ "$(id -u)" -eq 0 ]; then
    command -v softhsm2-util >/dev/null || missing+=(softhsm2)
    command -v pkcs11-tool >/dev/null || missing+=(opensc)
fi
# It serves a disk that can be stopped.
command -v bindfs >/dev/null || missing+=(bindfs)
# Images are made and judged by other programs, and by the kernel.
command -v mksquashfs >/dev/null || missing+=(squashfs-tools)
# Archives are made and judged by other programs; those of Go, lz4, pzstd and lzip are in the corpus where they are there.
command -v bsdtar >/dev/null || missing+=(libarchive-tools)
command -v python3 >/dev/null || missing+=(python3)
command -v bzip2 >/dev/null || missing+=(bzip2)
command -v xz >/dev/null || missing+=(xz-utils)
command -v zstd >/dev/null || missing+=(zstd)
command -v tar2sqfs >/dev/null || missing+=(squashfs-tools-ng)
command -v squashfuse_ll >/dev/null || missing+=(squashfuse)
grep -qw squashfs /proc/filesystems || blocked+=("modprobe squashfs")
# Subordinate ids of users, for package managers in containers.
command -v newuidmap >/dev/null || missing+=(uidmap)
[ -e /etc/subuid ] && [ -e /etc/subgid ] || blocked+=("touch /etc/subuid /etc/subgid")
[ -e /dev/fuse ] || blocked+=("modprobe fuse")
# The unprivileged half of the tests opens the device as an ordinary user.
[ -e /dev/fuse ] && [ "$(stat -c %a /dev/fuse)" != 666 ] && blocked+=("chmod 666 /dev/fuse")
namespaces=/proc/sys/user/max_user_namespaces
[ -e "$namespaces" ] && [ "$(cat "$namespaces")" -eq 0 ] && blocked+=("sysctl -w user.max_user_namespaces=15000")
for setting in kernel/unprivileged_userns_clone:1 kernel/apparmor_restrict_unprivileged_userns:0; do
    file=/proc/sys/${setting%:*} value=${setting#*:}
    [ -e "$file" ] && [ "$(cat "$file")" != "$value" ] && blocked+=("sysctl -w $(tr / . <<<"${setting%:*}")=$value")
done

# The judge of accessible pages, a file for tests only. It takes a few seconds, once.
axe=$(dirname "$0")/../target/tools/axe-core
if [ ! -e "$axe/package/axe.min.js" ] && command -v npm >/dev/null; then
    sum=1477dafa598d8d065f273d6af302aa203c02e83131707b7fa648cd41bd3d6b734f8c22a0dab86ee6a6f64b8afbe804b214d36db85a2826965edfb3a0b9d546b5
    mkdir -p "$axe"
    (cd "$axe" && npm pack --silent axe-core@4.14.1 >/dev/null && sha512sum --quiet --check <<<"$sum  axe-core-4.14.1.tgz" &&
        tar -xzf axe-core-4.14.1.tgz package/axe.min.js package/LICENSE) ||
        echo "axe-core can't be fetched: its test is skipped" >&2
fi

if [ ${#wanted[@]} -ne 0 ]; then
    if [ "$(id -u)" -eq 0 ] && command -v apt-get >/dev/null; then
        for package in "${wanted[@]}"; do
            echo "installing $package"
            apt-get install -y --no-install-recommends "$package" >/dev/null 2>&1 || echo "$package can't be installed: its tests are skipped"
        done
    else
        echo "without ${wanted[*]} some tests are skipped"
    fi
fi
[ ${#missing[@]} -eq 0 ] && [ ${#blocked[@]} -eq 0 ] && exit 0

if [ "$(id -u)" -ne 0 ]; then
    {
        echo "The tests need more than this machine offers an ordinary user. As root, run:"
        [ ${#missing[@]} -eq 0 ] || echo "    apt-get install -y ${missing[*]}"
        for command in "${blocked[@]+"${blocked[@]}"}"; do echo "    $command"; done
        echo "or run 'make test' once as root, which does the same."
    } >&2
    exit 1
fi

if [ ${#missing[@]} -ne 0 ]; then
    command -v apt-get >/dev/null || { echo "please install: ${missing[*]}" >&2; exit 1; }
    echo "installing ${missing[*]}"
    apt-get install -y --no-install-recommends "${missing[@]}" >/dev/null ||
        { apt-get update >/dev/null && apt-get install -y --no-install-recommends "${missing[@]}" >/dev/null; }
fi
for command in "${blocked[@]+"${blocked[@]}"}"; do
    echo "the tests are run by an ordinary user too, so: $command"
    $command
done
