#!/usr/bin/env bash
# Installs servers of the protocol S3 for tests, once, into ~/.cache/esker-tests (ESKER_TEST_SERVERS names another folder):
# gofakes3 (a Go module, half a minute) and moto (from PyPI, half a minute). With `versitygw` also that one, which takes four
# minutes and more than 1 GB while it is built; with `azurite` an emulator of Azure's storage (from npm, a
# minute). A server whose tools are missing is left out, and its tests are skipped.
set -euo pipefail

folder=${ESKER_TEST_SERVERS:-${XDG_CACHE_HOME:-$HOME/.cache}/esker-tests}
go=$(command -v go || echo /usr/local/go/bin/go)

go_install() { # PROGRAM MODULE@VERSION TIME
    [ ! -x "$folder/bin/$1" ] || return 0
    [ -x "$go" ] || { echo "no Go here, so tests with $1 are skipped"; return 0; }
    echo "building $1 once, which takes $3"
    mkdir -p "$folder/bin"
    local work
    work=$(mktemp -d)
    GOBIN=$folder/bin GOCACHE=$work/build GOMODCACHE=$work/modules GOFLAGS=-modcacherw "$go" install "$2" >"$work/log" 2>&1 ||
        { tail -n 5 "$work/log"; echo "tests with $1 are skipped"; }
    rm -rf "$work"
}

go_install gofakes3 github.com/johannesboyne/gofakes3/cmd/gofakes3@v1.2.0 'half a minute'
if [ ! -x "$folder/moto/bin/moto_server" ]; then
    echo "installing moto once, which takes half a minute"
    rm -rf "$folder/moto"
    mkdir -p "$folder"
    { python3 -m venv "$folder/moto" && "$folder/moto/bin/pip" install --quiet 'moto[server]==5.2.5'; } >/dev/null 2>&1 ||
        { rm -rf "$folder/moto"; echo "moto can't be installed, so its tests are skipped"; }
fi
for more in "$@"; do
    case $more in
    versitygw) go_install versitygw github.com/versity/versitygw/cmd/versitygw@v1.8.0 'four minutes' ;;
    azurite)
        if [ ! -x "$folder/azurite/node_modules/.bin/azurite-blob" ]; then
            echo "installing Azurite once, which takes a minute"
            mkdir -p "$folder/azurite"
            npm install --silent --no-audit --no-fund --prefix "$folder/azurite" azurite@3.35.0 >/dev/null 2>&1 ||
                { rm -rf "$folder/azurite"; echo "Azurite can't be installed, so its tests are skipped"; }
        fi
        ;;
    *) echo "usage: $0 [versitygw] [azurite]" >&2; exit 2 ;;
    esac
done
