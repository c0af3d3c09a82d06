//! An upstream server with a repository, and proxies in front of it.

use std::io::BufReader;
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::os::unix::fs::symlink;
use std::path::Path;
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::Duration;

use esker_format::master_keys::MasterKeys;
use esker_server::proxy::{CacheError, ProxyError, ProxyOptions, Upstream};
use esker_server::{ClientNetworks, Options, ProxyServer, Stopper};
use esker_testkit::fixture::{FULL, Repository};
use esker_testkit::mirror::Mirror;
use esker_testkit::object;
use esker_testkit::waiting::until_some;
use serde_json::Value;
use tempfile::TempDir;

use crate::client::{Client, PATIENCE, Response};

pub(super) const MANIFEST: &str = "/cvmfs/full.test/.cvmfspublished";

/// A server with the fixture.
pub(super) struct Origin {
    pub(super) mirror: Mirror,
    pub(super) repository: Repository,
    _root: TempDir,
}

impl Origin {
    pub(super) fn start() -> Self {
        let repository = FULL.unpack();
        let root = tempfile::tempdir().expect("a folder");
        symlink(repository.document_root(), root.path().join("cvmfs")).expect("a link");
        let mirror = Mirror::serve(root.path());
        Self { mirror, repository, _root: root }
    }

    pub(super) fn url(&self) -> String {
        format!("http://{}", self.mirror.address())
    }

    /// Adds an object to the repository and returns its path on the server.
    pub(super) fn add(&self, plain: &[u8]) -> String {
        let hash = self.repository.store(plain, "");
        format!("/cvmfs/full.test/{}", object::path(&hash, ""))
    }

    /// Returns the stored bytes at a path on the server.
    pub(super) fn stored(&self, path: &str) -> Vec<u8> {
        self.repository.read(path.strip_prefix("/cvmfs/full.test/").expect("a path of the repository"))
    }

    /// Returns the number of requests for a path.
    pub(super) fn asked(&self, path: &str) -> usize {
        self.mirror.count(|other| other == path)
    }
}

/// A running proxy, stopped when it is dropped.
pub(super) struct Proxy {
    pub(super) address: SocketAddr,
    /// Address of its state.
    pub(super) monitor: SocketAddr,
    stopper: Stopper,
    thread: Option<JoinHandle<Value>>,
}

/// Returns options for a proxy of these servers that asks for each manifest.
pub(super) fn options(cache: &Path, upstreams: &[&Origin]) -> ProxyOptions {
    let upstreams = upstreams.iter().map(|origin| Upstream::parse(&origin.url()).expect("a URL")).collect();
    ProxyOptions { upstreams, head_age: Duration::ZERO, ..ProxyOptions::new(cache) }
}

/// Returns options for a proxy that knows the repository's key.
pub(super) fn with_keys(options: ProxyOptions) -> ProxyOptions {
    let keys = std::fs::read(FULL.public_key()).expect("a key");
    let keys = MasterKeys::parse(&keys).expect("a key");
    ProxyOptions { keys: Arc::new(move |_| Some(keys.clone())), ..options }
}

pub(super) fn socket() -> TcpListener {
    TcpListener::bind("127.0.0.1:0").expect("a free port")
}

impl Proxy {
    pub(super) fn start(options: ProxyOptions) -> Self {
        Self::on(socket(), options)
    }

    pub(super) fn on(listener: TcpListener, options: ProxyOptions) -> Self {
        Self::for_clients(listener, options, None)
    }

    pub(super) fn for_clients(
        listener: TcpListener,
        options: ProxyOptions,
        clients: Option<ClientNetworks>,
    ) -> Self {
        let monitor = socket();
        // A proxy that was stopped in this process may still end the last of its tasks, which hold the cache.
        let server = until_some(PATIENCE, || {
            let listener = listener.try_clone().expect("a descriptor");
            let metrics = Some(monitor.try_clone().expect("a descriptor"));
            let serving = Options { metrics, clients: clients.clone(), ..Options::default() };
            match ProxyServer::new(vec![listener], options.clone(), serving) {
                Err(ProxyError::Cache(CacheError::Busy { .. })) => None,
                other => Some(other.expect("a proxy")),
            }
        });
        let server = server.expect("the cache is free");
        let (address, stopper) = (server.address(), server.stopper());
        let thread = std::thread::spawn(move || server.run().expect("serving").1);
        let monitor = monitor.local_addr().expect("an address");
        Self { address, monitor, stopper, thread: Some(thread) }
    }

    pub(super) fn url(&self) -> String {
        format!("http://{}", self.address)
    }

    pub(super) fn client(&self) -> Client {
        let stream = TcpStream::connect(self.address).expect("connecting");
        stream.set_read_timeout(Some(PATIENCE)).expect("a deadline");
        Client(BufReader::new(stream))
    }

    /// Asks for a path or, as clients of a proxy do, for a URL.
    pub(super) fn get(&self, target: &str) -> Response {
        self.client().ask("GET", target, "")
    }

    pub(super) fn ask_monitor(&self, path: &str) -> Response {
        let stream = TcpStream::connect(self.monitor).expect("connecting");
        Client(BufReader::new(stream)).ask("GET", path, "")
    }

    pub(super) fn status(&self) -> Value {
        serde_json::from_slice(&self.ask_monitor("/.esker/proxy").body).expect("JSON")
    }

    /// Stops it and returns its last status.
    pub(super) fn stop(mut self) -> Value {
        self.stopper.stop();
        self.thread.take().expect("a thread").join().expect("the proxy's thread")
    }
}

impl Drop for Proxy {
    fn drop(&mut self) {
        self.stopper.stop();
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

/// Returns bytes that no compression makes smaller.
pub(super) fn noise(seed: u32, len: usize) -> Vec<u8> {
    let mut state = seed;
    let step = std::iter::repeat_with(move || {
        state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        state.to_le_bytes()[3]
    });
    step.take(len).collect()
}
