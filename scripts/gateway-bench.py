#!/usr/bin/env python3
"""Commits an hour through Esker's gateway and the reference's: gateway-bench.py ESKER REFERENCE FOLDER.

REFERENCE is the folder with the programs of CernVM-FS, FOLDER must not exist. Needs root, which runs the script anew with
mounts of its own. Each round leases many directories, some at once; an archive of many files is published into each, through
both gateways to copies of one repository. The requests are those of the reference's publishers, which are recorded before, so
that the time is that of the gateways; with --whole the publishers run in each round, and their time counts.
"""

import argparse
import base64
import concurrent.futures
import hashlib
import hmac
import http.server
import io
import json
import os
import shutil
import statistics
import subprocess
import sys
import tarfile
import threading
import time
import urllib.request

parser = argparse.ArgumentParser()
parser.add_argument("esker"), parser.add_argument("reference"), parser.add_argument("folder")
parser.add_argument("--leases", type=int, default=100)
parser.add_argument("--files", type=int, default=100)
parser.add_argument("--at-once", type=int, default=8)
parser.add_argument("--receivers", type=int, default=1, help="of the reference's gateway, whose default is 1")
parser.add_argument("--rounds", type=int, default=3)
parser.add_argument("--whole", action="store_true", help="run the publishers in each round")
args = parser.parse_args()
esker, reference, folder = map(os.path.abspath, (args.esker, args.reference, args.folder))
name, port = "gateway.bench.test", {"esker": 14929, "reference": 14930}
spool, etc = "/var/spool/cvmfs", "/etc/cvmfs"

if "ESKER_BENCH_INSIDE" not in os.environ:
    os.environ["ESKER_BENCH_INSIDE"] = "1"
    os.makedirs(spool, exist_ok=True), os.makedirs(etc, exist_ok=True)
    os.execvp("unshare", ["unshare", "--mount", "--propagation", "private", sys.executable, *sys.argv])
for place in (spool, etc):
    subprocess.run(["mount", "-t", "tmpfs", "none", place], check=True)
os.environ.update(LD_LIBRARY_PATH=reference, CVMFS_LIBRARY_PATH=reference, LC_ALL="C")


def run(*words):
    done = subprocess.run(words, capture_output=True, text=True)
    if done.returncode:
        sys.exit(f"{' '.join(words)}: {done.stdout}{done.stderr}")
    return done.stdout


def prepare():
    os.makedirs(f"{folder}/tree"), os.makedirs(f"{spool}/{name}/tmp"), os.makedirs(f"{etc}/keys")
    for number in range(args.leases):
        os.makedirs(f"{folder}/tree/d{number}")
        with tarfile.open(f"{folder}/{number}.tar", "w") as archive:
            for file in range(args.files):
                entry, content = tarfile.TarInfo(f"f{file}"), f"{number} {file}\n".encode() * 200
                entry.size, entry.mode, entry.mtime = len(content), 0o644, 1700000000
                archive.addfile(entry, io.BytesIO(content))
    places = ["--storage", f"{folder}/first", "--keys", f"{etc}/keys"]
    run(esker, "repo", "create", name, *places)
    run(esker, "publish", name, f"{folder}/tree", *places)
    with open(f"{etc}/keys/{name}.gw", "w") as key:
        key.write("plain_text bench secret\n")
    os.chmod(f"{etc}/keys/{name}.gw", 0o600)
    os.makedirs(f"{etc}/gateway")
    with open(f"{etc}/gateway/repo.json", "w") as file:
        json.dump({"version": 2, "repos": [name], "keys": []}, file)


def configure_reference(storage):
    os.makedirs(f"{etc}/repositories.d/{name}", exist_ok=True)
    with open(f"{etc}/gateway/user.json", "w") as file:
        work = f"{storage}-work"
        shutil.rmtree(work, ignore_errors=True), os.makedirs(work)
        json.dump({"port": port["reference"], "num_receivers": args.receivers, "work_dir": work,
                   "receiver_path": f"{reference}/cvmfs_receiver", "log_level": "error"}, file)
    with open(f"{etc}/repositories.d/{name}/server.conf", "w") as file:
        for key, value in {"CREATOR_VERSION": "143", "REPOSITORY_NAME": name, "REPOSITORY_TYPE": "stratum0",
                           "USER": "root", "SPOOL_DIR": f"{spool}/{name}", "STRATUM0": f"file://{storage}/{name}",
                           "UPSTREAM_STORAGE": f"local,{storage}/{name}/data/txn,{storage}/{name}",
                           "USE_FILE_CHUNKING": "true", "MIN_CHUNK_SIZE": "4194304", "AVG_CHUNK_SIZE": "8388608",
                           "MAX_CHUNK_SIZE": "16777216", "HASH_ALGORITHM": "sha1", "GARBAGE_COLLECTION": "true",
                           "COMPRESSION_ALGORITHM": "default", "AUTOCATALOGS": "false", "UPLOAD_STATS_DB": "false",
                           "PUBLIC_KEY": f"{etc}/keys/{name}.pub"}.items():
            file.write(f"CVMFS_{key}={value}\n")
    shutil.copy(f"{etc}/repositories.d/{name}/server.conf", f"{etc}/repositories.d/{name}/client.conf")
    with open(f"{spool}/{name}/reflog.chksum", "w") as file:
        file.write(field(storage, "Y"))
    # The reference reports a commit as failed if it can't empty this file.
    open(f"{spool}/{name}/client.local", "w").close()


def field(storage, letter):
    with open(f"{storage}/{name}/.cvmfspublished", "rb") as head:
        lines = head.read().split(b"\n--\n")[0].decode().splitlines()
    return next(line[1:] for line in lines if line.startswith(letter))


def call(method, url, signed, body, fields={}):
    digits = hmac.new(b"secret", signed, hashlib.sha1).hexdigest().encode()
    header = {"Authorization": "bench " + base64.b64encode(digits).decode(), **fields}
    with urllib.request.urlopen(urllib.request.Request(url, body, header, method=method)) as answer:
        return json.load(answer)


class Recorder(http.server.BaseHTTPRequestHandler):
    """Stands for a gateway, and keeps the requests of publishers, whose tokens are their numbers."""

    protocol_version = "HTTP/1.1"
    payloads, commits = {}, {}

    def do_POST(self):
        body = self.rfile.read(int(self.headers["Content-Length"]))
        if self.path.endswith("/payloads"):
            size = int(self.headers["Message-Size"])
            message = json.loads(body[:size])
            self.payloads.setdefault(int(message["session_token"]), []).append((message, body[size:]))
        else:
            self.commits[int(self.path.rsplit("/", 1)[1])] = body
        self.send_response(200)
        answer = b'{"status":"ok"}'
        self.send_header("Content-Length", str(len(answer)))
        self.end_headers()
        self.wfile.write(answer)

    def log_message(self, *_):
        pass


def record():
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Recorder)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    url, storage = f"http://127.0.0.1:{server.server_port}/api/v1", f"{folder}/first"
    with concurrent.futures.ThreadPoolExecutor(args.at_once) as pool:
        base = field(storage, "C")
        list(pool.map(lambda number: publish(url, storage, base, number, str(number)), range(args.leases)))
    server.shutdown()


def lease(url, number):
    body = json.dumps({"path": f"{name}/d{number}", "api_version": "2", "hostname": "bench"}).encode()
    return accepted(call("POST", f"{url}/leases", body, body))["session_token"]


def replay(url, number):
    token = lease(url, number)
    for message, pack in Recorder.payloads[number]:
        text = json.dumps({**message, "session_token": token}).encode()
        accepted(call("POST", f"{url}/payloads", text, text + pack, {"Message-Size": str(len(text))}))
    accepted(call("POST", f"{url}/leases/{token}", token.encode(), Recorder.commits[number]))


def accepted(answer):
    assert answer["status"] == "ok", answer
    return answer


def publish(url, storage, base, number, token):
    own = f"{folder}/publisher{number}"
    os.makedirs(own, exist_ok=True)
    with open(f"{own}/token", "w") as file:
        file.write(token)
    # Publishers on one machine would share a database of statistics, and fail.
    alone = f"mount -t tmpfs none {spool} && mkdir {spool}/{name} && exec \"$@\""
    run("unshare", "--mount", "sh", "-c", alone, "sh", f"{reference}/cvmfs_swissknife", "ingest", "-c", f"{folder}/tree", "-u", own, "-t", own, "-b", base,
        "-r", f"gw,{own},{url}", "-w", f"file://{storage}/{name}", "-o", f"{own}/manifest",
        "-K", f"{etc}/keys/{name}.pub", "-N", name, "-T", f"{folder}/{number}.tar", "-B", f"d{number}",
        "-H", f"{etc}/keys/{name}.gw", "-P", f"{own}/token")


def measure(which, number):
    storage = f"{folder}/{which}{number}"
    shutil.copytree(f"{folder}/first", storage, symlinks=True)
    base, before = field(storage, "C"), int(field(storage, "S"))
    if which == "reference":
        configure_reference(storage)
        words = [f"{reference}/cvmfs_gateway", "--user_config_file", f"{etc}/gateway/user.json",
                 "--access_config_file", f"{etc}/gateway/repo.json"]
    else:
        words = [esker, "gateway", "--storage", storage, "--keys", f"{etc}/keys", "--state", f"{storage}-state",
                 "--access-config", f"{etc}/gateway/repo.json", "--listen", f"127.0.0.1:{port[which]}", "--user", "root"]
    with open(f"{storage}.log", "w") as log:
        gateway = subprocess.Popen(words, stdout=log, stderr=log)
    try:
        url = f"http://127.0.0.1:{port[which]}/api/v1"
        wait(url, gateway)
        begin = time.monotonic()
        with concurrent.futures.ThreadPoolExecutor(args.at_once) as pool:
            one = lambda number: publish(url, storage, base, number, lease(url, number)) if args.whole else replay(url, number)
            list(pool.map(one, range(args.leases)))
        seconds = time.monotonic() - begin
    finally:
        gateway.terminate(), gateway.wait()
    made = int(field(storage, "S")) - before
    assert made == args.leases or which == "esker" and 0 < made <= args.leases, f"{made} revisions of {args.leases}"
    for directory in range(args.leases if which == "esker" else 0):
        listed = run(esker, "ls", name, f"/d{directory}", "--storage", storage, "--keys", f"{etc}/keys", "--forget-history").split()
        assert len(listed) == args.files, f"{len(listed)} files of {args.files} in d{directory}"
    # It stays until the end: ext4 creates files slowly while many were removed a short time ago.
    return seconds, made


def wait(url, gateway):
    for _ in range(100):
        try:
            return urllib.request.urlopen(url).close()
        except OSError:
            assert gateway.poll() is None, "the gateway ended"
            time.sleep(0.1)


prepare()
if not args.whole:
    record()
seconds = {"esker": [], "reference": []}
print("| gateway | seconds | commits an hour | revisions | load before |\n|---|---|---|---|---|")
for number in range(args.rounds):
    for which in seconds:
        load = os.getloadavg()[0]
        taken, revisions = measure(which, number)
        seconds[which].append(taken)
        print(f"| {which} | {taken:.1f} | {args.leases * 3600 / taken:.0f} | {revisions} | {load:.1f} |", flush=True)
medians = {which: statistics.median(all) for which, all in seconds.items()}
print(f"median: esker {medians['esker']:.1f} s, reference {medians['reference']:.1f} s, {medians['reference'] / medians['esker']:.1f} times")
shutil.rmtree(folder)
