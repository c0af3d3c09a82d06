//! Processes that are killed and started again.

use std::fs::File;
use std::io::{BufRead as _, BufReader};
use std::os::unix::fs::FileExt as _;
use std::process::{Child, ChildStdout, Command, Stdio};

use serde_json::Value;

/// Makes the command of a process; a server is to listen at this address.
type MakeCommand<'w> = Box<dyn Fn(&str) -> Command + Send + Sync + 'w>;

/// A process of the chain.
pub(super) struct Part<'w> {
    pub(super) name: &'static str,
    pub(super) kills: u64,
    command: MakeCommand<'w>,
    /// Address of a server; empty for a process that serves nothing.
    address: String,
    /// What the process says.
    log: File,
    running: Option<(Child, Option<BufReader<ChildStdout>>)>,
}

impl<'w> Part<'w> {
    /// Starts a server that prints its URL when it is ready. Each test has a loopback address of its own, so that no
    /// other process takes the port while the server is away.
    pub(super) fn server(name: &'static str, command: impl Fn(&str) -> Command + Send + Sync + 'w) -> Self {
        let [_, a, b, c] = std::process::id().to_be_bytes();
        Self::start_first(name, format!("127.{}.{b}.{c}:0", 64 + a % 64), Box::new(command))
    }

    /// Starts a process that serves nothing.
    pub(super) fn worker(name: &'static str, command: impl Fn() -> Command + Send + Sync + 'w) -> Self {
        Self::start_first(name, String::new(), Box::new(move |_| command()))
    }

    fn start_first(name: &'static str, address: String, command: MakeCommand<'w>) -> Self {
        let log = tempfile::tempfile().expect("a file");
        let mut part = Self { name, kills: 0, command, address, log, running: None };
        part.start();
        part
    }

    /// Returns the URL of a server.
    pub(super) fn url(&self) -> String {
        format!("http://{}", self.address)
    }

    /// Starts the process, at the address that it had.
    pub(super) fn start(&mut self) {
        let mut command = (self.command)(&self.address);
        command.stdin(Stdio::null()).stderr(self.log.try_clone().expect("a descriptor"));
        if self.address.is_empty() {
            let child = command.stdout(Stdio::null()).spawn().expect("esker");
            self.running = Some((child, None));
            return;
        }
        let mut child = command.stdout(Stdio::piped()).spawn().expect("esker");
        let mut output = BufReader::new(child.stdout.take().expect("a pipe"));
        let mut line = String::new();
        output.read_line(&mut line).expect("a line");
        let ready: Value = serde_json::from_str(&line).unwrap_or_else(|_| panic!("{}: `{line}`", self.name));
        let url = ready["url"].as_str().expect("a URL");
        self.address = url.strip_prefix("http://").expect("an HTTP URL").to_owned();
        self.running = Some((child, Some(output)));
    }

    /// Returns the last words of the process.
    pub(super) fn words(&self) -> String {
        let mut bytes = vec![0; 4096];
        let len = self.log.metadata().expect("its length").len();
        let read = self.log.read_at(&mut bytes, len.saturating_sub(4096)).expect("its log");
        format!("{}:\n{}\n", self.name, String::from_utf8_lossy(&bytes[..read]))
    }

    /// Kills the process.
    pub(super) fn kill(&mut self) {
        let Some((mut child, _)) = self.running.take() else { return };
        child.kill().expect("a signal");
        child.wait().expect("its end");
        self.kills += 1;
    }
}

impl Drop for Part<'_> {
    fn drop(&mut self) {
        if let Some((mut child, _)) = self.running.take() {
            // It may have ended by itself, which the test has seen elsewhere.
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}
