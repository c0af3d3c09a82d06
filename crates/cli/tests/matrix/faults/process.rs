//! Real servers and proxies: nginx and squid, each with a configuration and a folder of its own at a free port.

use std::fs;
use std::io::{Read, Write};
use std::net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use esker_testkit::waiting::{until, until_some};
use rustix::process::{Pid, Signal, kill_process};

use crate::test_env::PATIENCE;
use crate::test_user::TestUser;

/// A running nginx or squid, or the place where one ran.
pub(crate) struct Process {
    person: TestUser,
    arguments: Vec<String>,
    folder: PathBuf,
    pub(crate) address: SocketAddr,
    child: Option<Child>,
    /// Listener in its place that never replies.
    mute: Option<TcpListener>,
}

impl Process {
    /// Starts an nginx that serves `root`, or without one forwards to any server. Files in its folder make it
    /// misbehave while they exist (see [`Process::flag`]).
    pub(super) fn nginx(person: TestUser, folder: PathBuf, root: Option<&Path>, bad: [&Path; 2]) -> Process {
        let address = free_port();
        let flag = |name: &str, then: &str| format!("if (-f {}/{name}) {{ {then} }}\n", folder.display());
        let page = "<!DOCTYPE html><html><body>Please log in.</body></html>";
        let mut location: String = [500, 503, 404, 429, 444]
            .map(|status| flag(&status.to_string(), &format!("return {status};")))
            .concat();
        location += &flag("html", &format!("return 200 '{page}';"));
        location += &flag("corrupt", "rewrite ^ /corrupt$uri last;");
        location += &flag("truncate", "rewrite ^ /truncated$uri last;");
        location += &flag("slow", "limit_rate 100;");
        location += &flag("steady", "limit_rate 200k;");
        let serve = match root {
            Some(root) => format!("location / {{ root {};\n{location} }}", root.display()),
            None => format!("location / {{ proxy_pass http://$http_host$request_uri;\n{location} }}"),
        };
        let damaged = ["corrupt", "truncated"];
        let damaged: String = damaged
            .iter()
            .zip(bad)
            .map(|(name, folder)| format!("location /{name}/ {{ internal; alias {}/; }}\n", folder.display()))
            .collect();
        Process::nginx_with(person, folder, address, &format!("{serve} {damaged}"))
    }

    fn nginx_with(person: TestUser, folder: PathBuf, address: SocketAddr, serve: &str) -> Process {
        let config = format!(
            "daemon off; master_process off; pid {0}/pid; error_log {0}/error.log;\n\
             events {{ worker_connections 256; }}\n\
             http {{ access_log {0}/access.log; client_body_temp_path {0}/b; proxy_temp_path {0}/p; \
             fastcgi_temp_path {0}/f; uwsgi_temp_path {0}/u; scgi_temp_path {0}/s; etag off;\n\
             server {{ listen {address}; {serve} }} }}\n",
            folder.display()
        );
        let arguments = ["nginx", "-p", ".", "-e", "error.log", "-c"].map(String::from).to_vec();
        Process::start(person, folder, arguments, config, address)
    }

    /// Starts a squid that forwards to any server, with its cache in memory.
    pub(super) fn squid(person: TestUser, folder: PathBuf) -> Process {
        Process::squid_with(person, folder, "")
    }

    /// Starts a squid with the source address `from`.
    pub(crate) fn squid_from(person: TestUser, folder: PathBuf, from: Ipv4Addr) -> Process {
        Process::squid_with(person, folder, &format!("tcp_outgoing_address {from}\n"))
    }

    /// Starts an nginx that serves `root` to `only`, and to no other client.
    pub(crate) fn nginx_for(person: TestUser, folder: PathBuf, root: &Path, only: Ipv4Addr) -> Process {
        let address = free_port();
        let serve = format!("location / {{ root {}; allow {only}; deny all; }}", root.display());
        Process::nginx_with(person, folder, address, &serve)
    }

    fn squid_with(person: TestUser, folder: PathBuf, lines: &str) -> Process {
        let address = free_port();
        let config = format!(
            "http_port {address}\nhttp_access allow all\ncache_mem 32 MB\nmaximum_object_size_in_memory 8 MB\n\
             access_log stdio:{0}/access.log\ncache_log {0}/cache.log\npid_filename {0}/pid\n\
             coredump_dir {0}\nvisible_hostname faults\npinger_enable off\nnetdb_filename none\n\
             max_filedescriptors 1024\nshutdown_lifetime 0 seconds\n{lines}",
            folder.display()
        );
        // Its shared memory has names that all on a machine share, but for this one.
        let name = squid_name(address);
        let arguments = ["squid", "-N", "-n", &name, "-f"].map(String::from).to_vec();
        Process::start(person, folder, arguments, config, address)
    }

    fn start(
        person: TestUser,
        folder: PathBuf,
        mut arguments: Vec<String>,
        config: String,
        address: SocketAddr,
    ) -> Process {
        person.does(|| fs::create_dir_all(&folder)).expect("a folder for a server");
        let file = folder.join("config");
        person.does(|| fs::write(&file, config)).expect("writing a configuration");
        arguments.push(file.display().to_string());
        let mut process = Process { person, arguments, folder, address, child: None, mute: None };
        process.run();
        process
    }

    /// Starts it, again if it was stopped, and waits until it listens.
    pub(super) fn run(&mut self) {
        self.mute = None;
        let program = find(&self.arguments[0]);
        let mut command = self.person.command(program);
        command.args(&self.arguments[1..]).current_dir(&self.folder);
        command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
        self.child = Some(command.spawn().unwrap_or_else(|error| panic!("{}: {error}", self.arguments[0])));
        // It doesn't report that it listens; each check is a connection.
        let listens = until(PATIENCE, || {
            let ended = self.child.as_mut().and_then(|child| child.try_wait().expect("its state"));
            assert!(ended.is_none(), "{} ended: {ended:?}\n{}", self.arguments[0], self.said());
            TcpStream::connect(self.address).is_ok()
        });
        assert!(listens, "{} doesn't listen", self.arguments[0]);
    }

    fn said(&self) -> String {
        let read = |name: &str| fs::read_to_string(self.folder.join(name)).unwrap_or_default();
        format!("{}{}", read("error.log"), read("cache.log"))
    }

    /// Kills it: connections break, new ones are refused.
    pub(super) fn stop(&mut self) {
        if let Some(mut child) = self.child.take() {
            child.kill().expect("killing what we started");
            child.wait().expect("its end");
        }
    }

    /// Kills it, and listens in its place without ever replying.
    pub(super) fn mute(&mut self) {
        self.stop();
        self.mute = until_some(PATIENCE, || TcpListener::bind(self.address).ok());
        assert!(self.mute.is_some(), "{} is not free", self.address);
    }

    /// Stops or continues the process.
    pub(super) fn freeze(&self, frozen: bool) {
        let child = self.child.as_ref().expect("a running process");
        let pid = Pid::from_child(child);
        kill_process(pid, if frozen { Signal::STOP } else { Signal::CONT }).expect("a signal");
    }

    /// Makes an nginx misbehave, or behave again: a status, `html`, `corrupt`, `truncate`, `slow` or `steady`.
    pub(super) fn flag(&self, name: &str, on: bool) {
        let path = self.folder.join(name);
        self.person.does(|| if on { fs::write(path, "") } else { fs::remove_file(path) }).expect("a flag");
    }

    /// Returns the number of answered requests.
    pub(crate) fn answered(&self) -> usize {
        fs::read_to_string(self.folder.join("access.log")).map_or(0, |log| log.lines().count())
    }

    /// Returns the number of requests that an nginx has answered to this address; all earlier ones are counted.
    pub(super) fn answered_to(&self, address: Ipv4Addr) -> usize {
        // It does one thing after the other, so that all others are in its log once it answers this one.
        let mut stream = TcpStream::connect(self.address).expect("a connection");
        stream.set_read_timeout(Some(PATIENCE)).expect("a deadline");
        stream.write_all(b"GET /the-last-of-all HTTP/1.0\r\n\r\n").expect("a request");
        stream.read_to_end(&mut Vec::new()).expect("an answer");
        let log = fs::read_to_string(self.folder.join("access.log")).unwrap_or_default();
        let from = format!("{address} ");
        log.lines().filter(|line| line.starts_with(&from) && !line.contains("the-last-of-all")).count()
    }

    pub(crate) fn url(&self) -> String {
        format!("http://{}", self.address)
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        if let Some(mut child) = self.child.take() {
            // It may have ended by itself.
            let _ = child.kill();
            let _ = child.wait();
        }
        // Files of a killed squid; its owner may remove them.
        let name = format!("{}-", squid_name(self.address));
        for entry in fs::read_dir("/dev/shm").into_iter().flatten().flatten() {
            if entry.file_name().to_string_lossy().starts_with(&name) {
                self.person.does(|| _ = fs::remove_file(entry.path()));
            }
        }
    }
}

/// Letters and digits; no two that run at once have the same port.
fn squid_name(address: SocketAddr) -> String {
    format!("esker{}p{}", std::process::id(), address.port())
}

/// Returns a free port, because neither program chooses one itself. If another program takes it first, it ends, and
/// the test reports that.
fn free_port() -> SocketAddr {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).expect("a free port");
    listener.local_addr().expect("its address")
}

/// Finds a program also in folders of administrators, which are not on every user's path.
fn find(program: &str) -> PathBuf {
    let places = ["/usr/sbin", "/usr/bin", "/usr/local/sbin", "/usr/local/bin"];
    let found = places.iter().map(|place| Path::new(place).join(program)).find(|path| path.exists());
    found.unwrap_or_else(|| panic!("{program} is not installed; scripts/needs.sh says how"))
}

/// Returns the result and its duration.
pub(super) fn timed<T>(what: impl FnOnce() -> T) -> (T, Duration) {
    let start = Instant::now();
    let outcome = what();
    (outcome, start.elapsed())
}

/// Copies a repository with every file changed.
pub(super) fn spoil(from: &Path, to: &Path, change: fn(Vec<u8>) -> Vec<u8>) {
    fs::create_dir_all(to).expect("a folder");
    for entry in fs::read_dir(from).expect("a folder") {
        let entry = entry.expect("an entry");
        let (path, copy) = (entry.path(), to.join(entry.file_name()));
        if path.is_dir() {
            spoil(&path, &copy, change);
        } else {
            fs::write(copy, change(fs::read(path).expect("a file"))).expect("a copy");
        }
    }
}

/// Runs a command that must end in time.
pub(crate) fn ended(mut command: Command, limit: Duration) -> (std::process::Output, Duration) {
    let child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().expect("starting it");
    let (told, outcome) = std::sync::mpsc::channel();
    let pid = Pid::from_child(&child);
    let start = Instant::now();
    std::thread::spawn(move || told.send(child.wait_with_output()));
    match outcome.recv_timeout(limit) {
        Ok(output) => (output.expect("its output"), start.elapsed()),
        Err(_) => {
            let _ = kill_process(pid, Signal::KILL);
            panic!("{command:?} took longer than {limit:?}");
        }
    }
}
