#!/usr/bin/env bash
# Seconds of the first publish of a tree, by itself and through a gateway on this machine: gateway-tree-bench.sh ESKER FOLDER [ROUNDS].
# The tree has 66,000 files in 660 directories, 261 MB. FOLDER must not exist; it is removed at the end.
set -euo pipefail
esker=$(realpath "$1") folder=$2 rounds=${3:-3}
mkdir "$folder"
folder=$(realpath "$folder")
gateway='' server=''
end() { kill $gateway $server 2>/dev/null || true; wait; rm -rf "$folder"; }
trap end EXIT
export XDG_CONFIG_HOME=$folder/config XDG_STATE_HOME=$folder/state XDG_CACHE_HOME=$folder/cache XDG_RUNTIME_DIR=$folder/run
mkdir -m 700 "$XDG_RUNTIME_DIR"
python3 - "$folder/tree" <<'PY'
import os, random, sys
random.seed(1)
words = [f"word{number} " for number in range(5000)]
for directory in range(660):
    path = f"{sys.argv[1]}/d{directory}"
    os.makedirs(path)
    for file in range(100):
        with open(f"{path}/f{file}", "w") as out:
            out.write(f"{directory} {file}\n" + "".join(random.choices(words, k=random.randint(20, 860))))
PY
seconds() { local from; from=$(date +%s.%N); "$@" >>"$folder/log" 2>&1; echo "$(date +%s.%N) - $from" | bc; }
free_port() { python3 -c 'import socket; s = socket.socket(); s.bind(("127.0.0.1", 0)); print(s.getsockname()[1])'; }
echo '| round | seconds, local | seconds, through the gateway | load |'
echo '|---|---|---|---|'
for round in $(seq "$rounds"); do
    name=tree$round.bench.test at=$folder/$round
    mkdir "$at"
    for storage in local remote; do
        "$esker" repo create "$name" --storage "$at/$storage" --keys "$at/keys-$storage" >>"$folder/log"
    done
    "$esker" gateway key add tree "$name/" --state "$at/gateway" --output "$at/tree.gw" >>"$folder/log"
    port=$(free_port) web=$(free_port)
    "$esker" serve "$at/remote" --listen "127.0.0.1:$web" --user root >>"$folder/log" 2>&1 & server=$!
    "$esker" gateway --storage "$at/remote" --keys "$at/keys-remote" --state "$at/gateway" --listen "127.0.0.1:$port" --user root >>"$folder/log" 2>&1 & gateway=$!
    until curl -sf "http://127.0.0.1:$port/healthz" >/dev/null && curl -sf "http://127.0.0.1:$web/cvmfs/$name/.cvmfspublished" >/dev/null; do
        kill -0 "$gateway" "$server"
        sleep 0.1
    done
    load=$(cut -d' ' -f1 /proc/loadavg)
    local_time=$(seconds "$esker" publish "$name" "$folder/tree" --storage "$at/local" --keys "$at/keys-local")
    remote_time=$(seconds "$esker" publish "$name" "$folder/tree" --gateway "http://127.0.0.1:$port" --key "$at/tree.gw" \
        --server "http://127.0.0.1:$web/cvmfs/$name" --public-key "$at/keys-remote/$name.pub" --storage "$at/remembered")
    echo "| $round | $local_time | $remote_time | $load |"
    kill "$gateway" "$server"; wait "$gateway" "$server" || true
    gateway='' server=''
done
