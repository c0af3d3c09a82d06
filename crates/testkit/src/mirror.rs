//! A web server on the loopback interface that serves a folder and misbehaves on command.
//!
//! It speaks HTTP/1.1 with keep-alive, `HEAD` and single ranges, one thread a connection. A [`Fault`] is attached
//! to the requests a predicate picks; the [`Rule`] that comes back counts how often it struck, so that a test can
//! assert that its fault was met ([`Rule::assert_hit`]). Whatever stalls or dawdles lets go when its rule is
//! lifted or the mirror is dropped.

mod connection;
mod fault;
mod link;
mod request;

use std::collections::BTreeMap;
use std::net::{Ipv4Addr, SocketAddr};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Condvar, Mutex};
use std::time::{Duration, Instant};

pub use fault::{Fault, Rule};
pub use request::Request;

use crate::loopback::Loopback;

/// A running server; stops when dropped.
#[derive(Debug)]
pub struct Mirror {
    shared: Arc<MirrorState>,
    listener: Loopback,
}

type Make = Box<dyn Fn(&str) -> Option<Vec<u8>> + Send + Sync>;

/// Generates content for paths without a file.
#[derive(Default)]
struct Maker(Mutex<Option<Make>>);

impl std::fmt::Debug for Maker {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Maker")
    }
}

/// State shared by the connections' threads.
#[derive(Debug)]
pub(crate) struct MirrorState {
    root: PathBuf,
    replaced: Mutex<BTreeMap<String, Vec<u8>>>,
    maker: Maker,
    /// Header lines of every successful response.
    fields: Mutex<String>,
    pub(crate) rules: fault::Rules,
    pub(crate) link: link::Link,
    log: Mutex<Vec<Request>>,
    logged: Condvar,
}

impl Mirror {
    /// Serves the files below `root` at a free port of 127.0.0.1.
    pub fn serve(root: impl Into<PathBuf>) -> Mirror {
        Mirror::serve_at(root, 0)
    }

    /// Starts a server at the port of a stopped one.
    pub fn serve_at(root: impl Into<PathBuf>, port: u16) -> Mirror {
        Mirror::serve_on(root, SocketAddr::from((Ipv4Addr::LOCALHOST, port)))
    }

    /// Starts a server at this address of the loopback interface.
    pub fn serve_on(root: impl Into<PathBuf>, address: SocketAddr) -> Mirror {
        let shared = Arc::new(MirrorState {
            root: root.into(),
            replaced: Mutex::default(),
            maker: Maker::default(),
            fields: Mutex::default(),
            rules: fault::Rules::default(),
            link: link::Link::default(),
            log: Mutex::default(),
            logged: Condvar::new(),
        });
        let theirs = Arc::clone(&shared);
        let listener = Loopback::listen(address, move |stream| connection::serve(stream, &theirs));
        Mirror { shared, listener }
    }

    /// Returns the address of a path on this server: `http://127.0.0.1:PORT/PATH`.
    pub fn url(&self, path: &str) -> String {
        format!("http://{}/{}", self.address(), path.trim_start_matches('/'))
    }

    /// Returns the address that the server listens at.
    pub fn address(&self) -> SocketAddr {
        self.listener.address()
    }

    /// Returns the port that the server listens at.
    pub fn port(&self) -> u16 {
        self.address().port()
    }

    /// Applies `fault` to every request whose path (with its leading slash) the predicate picks.
    pub fn fault(&self, picks: impl Fn(&str) -> bool + Send + Sync + 'static, fault: Fault) -> Rule {
        self.shared.rules.add(Box::new(picks), fault, u64::MAX)
    }

    /// Applies `fault` to the first `times` matching requests only.
    pub fn fault_times(
        &self,
        times: u64,
        picks: impl Fn(&str) -> bool + Send + Sync + 'static,
        fault: Fault,
    ) -> Rule {
        self.shared.rules.add(Box::new(picks), fault, times)
    }

    /// Serves `content` at a path from now on, instead of a file there.
    pub fn put(&self, path: &str, content: impl Into<Vec<u8>>) {
        let path = format!("/{}", path.trim_start_matches('/'));
        self.shared.replaced.lock().unwrap().insert(path, content.into());
    }

    /// Makes `make` generate the content of every path without a file.
    pub fn make(&self, make: impl Fn(&str) -> Option<Vec<u8>> + Send + Sync + 'static) {
        *self.shared.maker.0.lock().unwrap() = Some(Box::new(make));
    }

    /// Adds or replaces a header field of every successful response and redirect.
    pub fn say(&self, name: &str, value: &str) {
        let mut fields = self.shared.fields.lock().unwrap();
        let others = fields.lines().filter(|line| !line.starts_with(&format!("{name}:")));
        let mut all: String = others.map(|line| format!("{line}\r\n")).collect();
        all.push_str(&format!("{name}: {value}\r\n"));
        *fields = all;
    }

    /// Limits the total rate of bodies from now on.
    pub fn narrow(&self, bytes_per_second: u64) {
        self.shared.link.narrow(bytes_per_second);
    }

    /// Returns the number of bytes of bodies sent so far.
    pub fn sent(&self) -> u64 {
        self.shared.link.sent()
    }

    /// Sends one response after the other from now on, in the order of arrival.
    pub fn one_at_a_time(&self) {
        self.shared.link.one_at_a_time();
    }

    /// Returns all requests so far, in the order of arrival.
    pub fn requests(&self) -> Vec<Request> {
        self.shared.log.lock().unwrap().clone()
    }

    /// Returns the number of arrived requests whose path matches the predicate.
    pub fn count(&self, picks: impl Fn(&str) -> bool) -> usize {
        self.shared.log.lock().unwrap().iter().filter(|request| picks(&request.path)).count()
    }

    /// Forgets the requests so far, to save memory in a long test; returns their number.
    pub fn forget(&self) -> u64 {
        std::mem::take(&mut *self.shared.log.lock().unwrap()).len() as u64
    }

    /// Returns the number of accepted connections.
    pub fn connections(&self) -> u64 {
        self.listener.connections()
    }

    /// Waits until `wanted` requests that the predicate picks have arrived; panics after a minute.
    pub fn wait_for(&self, wanted: usize, picks: impl Fn(&str) -> bool) {
        let deadline = Instant::now() + Duration::from_secs(60);
        let mut log = self.shared.log.lock().unwrap();
        loop {
            let seen = log.iter().filter(|request| picks(&request.path)).count();
            if seen >= wanted {
                return;
            }
            let left = deadline.saturating_duration_since(Instant::now());
            if left.is_zero() {
                // The thread that replies needs it to end.
                drop(log);
                panic!("the mirror saw {seen} of {wanted} requests within a minute");
            }
            log = self.shared.logged.wait_timeout(log, left).unwrap().0;
        }
    }

    /// Closes all connections, and new ones before a request is read.
    pub fn leave(&self) {
        self.listener.set_away(true);
        self.listener.break_connections();
    }

    /// Accepts connections again after [`Self::leave`].
    pub fn come_back(&self) {
        self.listener.set_away(false);
    }

    /// Stops the server: connections break, later ones are refused.
    pub fn stop(self) {}
}

impl Drop for Mirror {
    fn drop(&mut self) {
        self.shared.rules.lift_all();
    }
}

impl MirrorState {
    pub(crate) fn record(&self, request: &Request) {
        self.log.lock().unwrap().push(request.clone());
        self.logged.notify_all();
    }

    /// Returns the content at a path; none if it is missing or outside of the folder.
    pub(crate) fn content(&self, path: &str) -> Option<Vec<u8>> {
        if let Some(content) = self.replaced.lock().unwrap().get(path) {
            return Some(content.clone());
        }
        let relative = Path::new(path.trim_start_matches('/'));
        let plain = relative.components().all(|part| matches!(part, std::path::Component::Normal(_)));
        let there = if plain { std::fs::read(self.root.join(relative)).ok() } else { None };
        there.or_else(|| self.maker.0.lock().unwrap().as_ref().and_then(|make| make(path)))
    }

    /// Returns the header lines of a normal reply.
    pub(crate) fn fields(&self) -> String {
        self.fields.lock().unwrap().clone()
    }
}
