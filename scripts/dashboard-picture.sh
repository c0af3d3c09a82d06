#!/usr/bin/env bash
# Makes docs/images/grafana.png: mounts a repository twice, lets programs use the mounts for four minutes while Prometheus
# scrapes `esker metrics`, and draws the panels of deploy/grafana/esker-mounts.json. Needs prometheus, chromium, python3 and a
# build of esker; changes nothing outside of a folder that it removes.
set -euo pipefail
cd "$(dirname "$0")/.."
esker=$(realpath "${1:?usage: scripts/dashboard-picture.sh ESKER [MINUTES]}")
minutes=${2:-4}

work=$(mktemp -d)
cleanup() {
    for mount in one two; do "$esker" umount "$work/$mount" >/dev/null 2>&1 || true; done
    # The jobs of this shell: server, metrics, Prometheus.
    jobs -p | xargs -r kill 2>/dev/null || true
    wait
    rm -rf "$work"
}
trap cleanup EXIT

# A free port of this machine; it could be taken before it is used, and then the program that wants it says so.
free_port() { python3 -c 'import socket; s = socket.socket(); s.bind(("127.0.0.1", 0)); print(s.getsockname()[1])'; }
# Waits up to a minute for a command to succeed.
await() { for _ in $(seq 600); do "$@" >/dev/null 2>&1 && return; sleep 0.1; done; echo "no success: $*" >&2; return 1; }

name=sw.example.org
library=$(python3 -c 'import sysconfig; print(sysconfig.get_path("stdlib"))')
"$esker" repo create "$name" --storage "$work/storage" --keys "$work/keys"
"$esker" publish "$name" "$library" --storage "$work/storage" --keys "$work/keys"
web=$(free_port) metrics=$(free_port) prometheus=$(free_port)
"$esker" serve "$work/storage" --user "$(id -un)" --listen "127.0.0.1:$web" >"$work/serve.log" 2>&1 &
"$esker" metrics --listen "127.0.0.1:$metrics" >"$work/metrics.log" 2>&1 &
await curl -fs "http://127.0.0.1:$web/cvmfs/$name/.cvmfspublished"
for mount in one two; do
    mkdir "$work/$mount"
    "$esker" mount "http://127.0.0.1:$web/cvmfs/$name" "$work/$mount" --public-key "$work/keys/$name.pub" --cache "$work/cache-$mount"
done
cat >"$work/prometheus.yml" <<END
scrape_configs:
  - job_name: esker
    scrape_interval: 2s
    static_configs:
      - targets: ["127.0.0.1:$metrics"]
END
prometheus --config.file "$work/prometheus.yml" --storage.tsdb.path "$work/series" --web.listen-address "127.0.0.1:$prometheus" \
    >"$work/prometheus.log" 2>&1 &
await curl -fs "http://127.0.0.1:$prometheus/-/ready"

# Programs read one part of the tree after the other, so that some of it is new in each round.
parts=150
end=$(($(date +%s) + minutes * 60)) round=0
while [ "$(date +%s)" -lt "$end" ]; do
    for mount in one two; do
        find "$work/$mount" -type f -name '*.py' | awk -v parts=$parts -v part=$((round % parts)) 'NR % parts == part' | xargs -r cat >/dev/null
    done
    round=$((round + 1))
    sleep 1
done
python3 scripts/dashboard-picture.py deploy/grafana/esker-mounts.json "http://127.0.0.1:$prometheus" "$minutes" "$work/page.html"
mkdir -p docs/images
chromium --headless --no-sandbox --hide-scrollbars --window-size=1470,1600 --screenshot="$work/picture.png" "file://$work/page.html" 2>/dev/null
cp "$work/picture.png" docs/images/grafana.png
ls -l docs/images/grafana.png
