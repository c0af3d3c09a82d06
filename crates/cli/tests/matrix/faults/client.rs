//! The reader's side: a published tree of many files, and mounts of it.

use std::fs;
use std::io::{self, BufRead, BufReader};
use std::net::Ipv4Addr;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use esker_testkit::waiting::Pace;
use serde_json::Value;

use super::namespace::Namespace;
use super::process::{Process, ended, spoil, timed};
use crate::publishing::{NAME, Workshop};
use crate::test_env::{PATIENCE, words};
use crate::test_user::TestUser;

/// Files, each of which is read for the first time once.
const FILES: usize = 300;
const LARGE: usize = 2 << 20;

/// A user with a repository, and the files they have read of it.
pub(super) struct Client {
    workshop: Workshop,
    /// Namespace of the client's processes, if not the tests' own.
    pub(super) namespace: Option<Namespace>,
    /// Next file to read; the one before it was read last.
    next: AtomicUsize,
    last: AtomicUsize,
}

/// A place to mount at, with a cache of its own.
pub(super) struct Mount<'c> {
    client: &'c Client,
    folder: PathBuf,
    cache: PathBuf,
    url: String,
    options: Vec<String>,
}

/// Returns the content of a file: unique bytes that don't compress.
fn content(number: usize, len: usize) -> Vec<u8> {
    let mut state = number as u64 + 1;
    let mut bytes = Vec::with_capacity(len + 8);
    while bytes.len() < len {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        bytes.extend_from_slice(&(state ^ (state >> 29)).to_le_bytes());
    }
    bytes.truncate(len);
    bytes
}

fn len(number: usize) -> usize {
    2000 + number
}

impl Client {
    pub(super) fn new() -> Client {
        let workshop = Workshop::with(TestUser::ordinary(), |top| {
            fs::create_dir_all(top).expect("a folder");
            for number in 0..FILES {
                fs::write(top.join(format!("file-{number}")), content(number, len(number))).expect("a file");
            }
            fs::write(top.join("large"), content(FILES, LARGE)).expect("a file");
        });
        workshop.create();
        workshop.json(&["publish", NAME, &workshop.tree()]);
        let client =
            Client { workshop, namespace: None, next: AtomicUsize::new(0), last: AtomicUsize::new(0) };
        let good = client.storage();
        client.workshop.world.person.does(|| {
            spoil(&good, &client.place("corrupt"), |mut bytes| {
                let middle = bytes.len() / 2;
                bytes.get_mut(middle).into_iter().for_each(|byte| *byte ^= 0xff);
                bytes
            });
            spoil(&good, &client.place("truncated"), |mut bytes| {
                bytes.pop();
                bytes
            });
        });
        client
    }

    /// Makes a client in a mount namespace of its own, in which it is root.
    pub(super) fn apart() -> Client {
        let mut client = Client::new();
        client.namespace = Some(Namespace::of(client.workshop.world.person));
        client
    }

    /// Wraps a command to run in the client's namespaces.
    fn there(&self, command: Command) -> Command {
        match &self.namespace {
            Some(namespace) => namespace.enter(&command),
            None => command,
        }
    }

    /// Runs a program of the system there, which must succeed.
    #[track_caller]
    pub(super) fn run(&self, program: &str, arguments: &[&Path]) {
        let mut command = self.workshop.world.person.command(program);
        command.args(arguments);
        let (output, _) = ended(self.there(command), PATIENCE);
        assert!(output.status.success(), "{program}: {}", words(&output));
    }

    /// Starts a program of the system there.
    pub(super) fn start(&self, program: &str, arguments: &[&Path]) -> Child {
        let mut command = self.workshop.world.person.command(program);
        command.args(arguments);
        let mut command = self.there(command);
        command.spawn().unwrap_or_else(|error| panic!("{program}: {error}; scripts/needs.sh installs it"))
    }

    /// Runs a program of the system there; returns whether it succeeds, and its duration.
    pub(super) fn tries(&self, limit: Duration, program: &str, arguments: &[&Path]) -> (bool, Duration) {
        let mut command = self.workshop.world.person.command(program);
        command.args(arguments);
        let (output, took) = ended(self.there(command), limit);
        (output.status.success(), took)
    }

    pub(super) fn place(&self, name: &str) -> PathBuf {
        PathBuf::from(self.workshop.home(name))
    }

    /// Returns the folder that a web server serves.
    pub(super) fn storage(&self) -> PathBuf {
        self.place("storage")
    }

    pub(super) fn nginx(&self, name: &str, root: Option<&Path>) -> Process {
        let (corrupt, truncated) = (self.place("corrupt"), self.place("truncated"));
        Process::nginx(self.workshop.world.person, self.place(name), root, [&corrupt, &truncated])
    }

    pub(super) fn squid(&self, name: &str) -> Process {
        Process::squid(self.workshop.world.person, self.place(name))
    }

    /// Starts a squid with its own source address.
    pub(super) fn squid_from(&self, name: &str, from: Ipv4Addr) -> Process {
        Process::squid_from(self.workshop.world.person, self.place(name), from)
    }

    /// Starts a broker of the user's own; returns the options of mounts for it, too.
    pub(super) fn broker(&self) -> (Child, [String; 4]) {
        let folder = self.place("broker");
        self.run("mkdir", &["-p".as_ref(), &folder]);
        let socket = folder.join("socket");
        let mut command =
            self.workshop.world.esker(&["broker", "--quota", "100M", "--connect", "127.0.0.1", "--cache"]);
        command.arg(folder.join("cache")).arg("--socket").arg(&socket).stderr(Stdio::piped());
        let mut broker = command.spawn().expect("esker broker");
        let mut line = String::new();
        let said = BufReader::new(broker.stderr.take().expect("its output")).read_line(&mut line);
        assert!(said.is_ok() && line.contains("serving the cache"), "{line}");
        let uid = self.workshop.world.person.uid.to_string();
        (broker, ["--broker".into(), socket.display().to_string(), "--broker-user".into(), uid])
    }

    /// Returns the URL of the repository on a server.
    pub(super) fn url(&self, server: &Process) -> String {
        format!("{}/{NAME}", server.url())
    }

    pub(super) fn at(&self, name: &str, server: &Process, options: &[&str]) -> Mount<'_> {
        let folder = self.place(name);
        self.run("mkdir", &["-p".as_ref(), &folder.join("mnt")]);
        let options = options.iter().map(|option| (*option).to_owned()).collect();
        Mount { client: self, cache: folder.join("cache"), folder, url: self.url(server), options }
    }

    /// Reads a file that was not read before.
    pub(super) fn try_new(&self, mount: &Mount<'_>) -> io::Result<()> {
        let number = self.next.fetch_add(1, Ordering::Relaxed);
        assert!(number < FILES, "all files were read");
        self.read(mount, number)
    }

    /// Reads one of the first files, whose number is known.
    pub(super) fn read(&self, mount: &Mount<'_>, number: usize) -> io::Result<()> {
        let bytes = self.cat(mount, &format!("file-{number}"))?;
        assert!(bytes == content(number, len(number)), "file-{number} has wrong bytes");
        self.last.store(number, Ordering::Relaxed);
        Ok(())
    }

    /// Reads a file in a process of the person's own: a deadline is for those whose system call can be seen.
    fn cat(&self, mount: &Mount<'_>, name: &str) -> io::Result<Vec<u8>> {
        let mut command = self.workshop.world.person.command("cat");
        command.arg(mount.mountpoint().join(name));
        let (output, _) = ended(self.there(command), PATIENCE);
        if output.status.success() {
            return Ok(output.stdout);
        }
        Err(io::Error::other(String::from_utf8_lossy(&output.stderr).trim().to_owned()))
    }

    /// Reads a new file, which must succeed in time.
    #[track_caller]
    pub(super) fn read_new(&self, mount: &Mount<'_>, limit: Duration) -> Duration {
        let (outcome, took) = timed(|| self.try_new(mount));
        outcome.unwrap_or_else(|error| panic!("a read failed: {error}; {:#}", mount.route()));
        assert!(took < limit, "a read took {took:?}");
        took
    }

    /// Reads the file of the last read again, from the cache.
    #[track_caller]
    pub(super) fn read_old(&self, mount: &Mount<'_>) {
        let known = self.last.load(Ordering::Relaxed);
        let from = format!("if={}", mount.mountpoint().join(format!("file-{known}")).display());
        // Drops it from the page cache, so that the read reaches the daemon.
        self.run("dd", &[from, "iflag=nocache".into(), "count=0".into()].each_ref().map(Path::new));
        self.read(mount, known).expect("reading what is cached");
    }

    #[track_caller]
    pub(super) fn read_large(&self, mount: &Mount<'_>, limit: Duration) {
        let (bytes, took) = timed(|| self.cat(mount, "large"));
        assert!(bytes.expect("reading a large file") == content(FILES, LARGE), "wrong bytes");
        assert!(took < limit, "it took {took:?}");
    }

    /// Returns the number of fail-overs.
    pub(super) fn left(&self, mount: &Mount<'_>) -> u64 {
        let route = mount.route();
        let get = |name: &str| route[name].as_u64().expect("a counter");
        get("server_failovers") + get("proxy_failovers")
    }

    /// Reads until the first proxy and the first server are in use.
    #[track_caller]
    pub(super) fn wait_for_first(&self, mount: &Mount<'_>) {
        let first =
            |route: &Value| route["proxies"][0][0]["active"] == true && route["servers"][0]["active"] == true;
        self.read_until(mount, first);
    }

    /// Reads until a proxy is in use.
    #[track_caller]
    pub(super) fn wait_for_active(&self, mount: &Mount<'_>, proxy: &Process) {
        let url = proxy.url();
        let active = |route: &Value| {
            let groups = route["proxies"].as_array().expect("groups");
            let mut all = groups.iter().flat_map(|group| group.as_array().expect("a group"));
            all.any(|one| one["name"] == url.as_str() && one["active"] == true)
        };
        self.read_until(mount, active);
    }

    #[track_caller]
    fn read_until(&self, mount: &Mount<'_>, holds: impl Fn(&Value) -> bool) {
        let came = Pace::PROCESS.until(PATIENCE, || {
            let held = holds(&mount.route());
            if !held {
                self.read_new(mount, PATIENCE);
            }
            held
        });
        assert!(came, "it did not come about: {:#}", mount.route());
    }
}

impl Mount<'_> {
    pub(super) fn mountpoint(&self) -> PathBuf {
        self.folder.join("mnt")
    }

    /// Uses the cache of another mount.
    pub(super) fn sharing(mut self, other: &Mount<'_>) -> Self {
        self.cache = other.cache.clone();
        self
    }

    /// Uses a cache at a path of its own.
    pub(super) fn with_cache(mut self, cache: PathBuf) -> Self {
        self.cache = cache;
        self
    }

    pub(super) fn cache(&self) -> PathBuf {
        self.cache.clone()
    }

    /// Runs a command of esker's in the mount's namespaces, with the mount point as the last argument if `here`.
    pub(super) fn esker(&self, arguments: &[&str], here: bool, limit: Duration) -> (Output, Duration) {
        let mut command = self.client.workshop.world.esker(arguments);
        command.args(here.then(|| self.mountpoint()));
        ended(self.client.there(command), limit)
    }

    fn call(&self) -> Command {
        let key = self.client.workshop.home(&format!("keys/{NAME}.pub"));
        let mut command = self.client.workshop.world.esker(&["mount", &self.url]);
        command.arg(self.mountpoint()).args(["--public-key", &key, "--no-prefetch", "--cache"]);
        command.arg(self.cache()).args(&self.options);
        self.client.there(command)
    }

    #[track_caller]
    pub(super) fn mount(&self, limit: Duration) -> Duration {
        let (output, took) = ended(self.call(), limit);
        assert!(output.status.success(), "mounting failed: {}", words(&output));
        took
    }

    /// Mounts with an empty cache.
    #[track_caller]
    pub(super) fn mount_empty(&self, limit: Duration) -> Duration {
        self.empty_cache();
        self.mount(limit)
    }

    /// Tries to mount where it can't succeed; returns whether it did.
    pub(super) fn try_mount_empty(&self, limit: Duration) -> (bool, Duration) {
        self.empty_cache();
        let (refused, took) = self.try_mount(limit);
        (refused.is_none(), took)
    }

    /// Tries to mount with the present cache; returns the error.
    pub(super) fn try_mount(&self, limit: Duration) -> (Option<String>, Duration) {
        let (output, took) = ended(self.call(), limit);
        ((!output.status.success()).then(|| words(&output)), took)
    }

    pub(super) fn empty_cache(&self) {
        self.client.run("rm", &["-rf".as_ref(), &self.cache()]);
    }

    /// Unmounts, and mounts again with the same cache.
    #[track_caller]
    pub(super) fn mount_again(&self, limit: Duration) -> Duration {
        self.umount();
        self.mount(limit)
    }

    #[track_caller]
    pub(super) fn umount(&self) {
        let mut command = self.client.workshop.world.esker(&["umount"]);
        command.arg(self.mountpoint());
        let (output, _) = ended(self.client.there(command), PATIENCE);
        assert!(output.status.success(), "unmounting failed: {}", words(&output));
    }

    pub(super) fn status(&self) -> Value {
        let mut command = self.client.workshop.world.esker(&["status", "--json"]);
        command.arg(self.mountpoint());
        let (output, _) = ended(self.client.there(command), PATIENCE);
        assert!(output.status.success(), "esker status failed: {}", words(&output));
        let all: Value = serde_json::from_slice(&output.stdout).expect("JSON from esker status");
        all["mounts"][0].clone()
    }

    /// Returns the daemon's log.
    pub(super) fn log(&self) -> String {
        self.client.workshop.world.logs()
    }

    /// Returns servers and proxies, and their failures.
    pub(super) fn route(&self) -> Value {
        self.status()["network"]["route"].clone()
    }

    pub(super) fn retries(&self) -> u64 {
        self.route()["retries"].as_u64().expect("a counter")
    }

    pub(super) fn received(&self) -> u64 {
        self.status()["network"]["received_bytes"].as_u64().expect("a counter")
    }

    #[track_caller]
    pub(super) fn wait_until(&self, what: &str, holds: impl Fn(&Value) -> bool) {
        let came = Pace::PROCESS.until(PATIENCE, || holds(&self.status()));
        assert!(came, "waiting for {what}: {:#}", self.status());
    }
}

impl Drop for Mount<'_> {
    fn drop(&mut self) {
        let mut command = self.client.workshop.world.esker(&["umount"]);
        command.arg(self.mountpoint());
        // It may not be mounted any more.
        let _ = self.client.there(command).output();
    }
}
