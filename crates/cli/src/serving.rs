//! Defines the parts that server commands share: client limits, logs, metrics, TLS, signals, readiness.

pub(crate) mod storage;

use std::net::{AddrParseError, IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, TcpListener};
use std::os::fd::AsRawFd as _;
use std::path::{Path, PathBuf};
use std::str::FromStr;
use std::sync::{Arc, mpsc};
use std::time::Duration;

use esker_confine::Policy;
use esker_run::{Manager, Received, die_by, inherited_listeners, take_signals};
use esker_server::{
    AccessLog, ClientNetwork, ClientNetworks, Limits, LogForm, LogOutput, LogTarget, Served, Server, Stopper,
    TlsFiles,
};
use esker_store::CacheKind;
use rustix::thread::CapabilitySet;
use serde_json::{Value, json};

use crate::error::{Context, Failure, Kind, chain};
use crate::logging::{self, LogArgs};
use crate::output::parse_duration;
use crate::process::confine;
use crate::process::opener::Openable;
use crate::process::privileges::{self, Account, Service};
use crate::settings::environment::Environment;

/// Options of all servers.
#[derive(clap::Args, Debug)]
pub(crate) struct ServingArgs {
    /// Maximum number of open connections
    #[arg(long, value_name = "N", default_value_t = Limits::default().connections, help_heading = "Limits")]
    connections: usize,

    /// Maximum number of connections of one client address; further ones get status 429
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..), help_heading = "Limits")]
    client_connections: Option<u32>,

    /// Maximum number of requests of one client address in a second; further ones get status 429
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..), help_heading = "Limits")]
    client_rate: Option<u32>,

    /// Network of load balancers, as ADDRESS/BITS, which tell the addresses of their clients with the PROXY protocol
    #[arg(long, value_name = "NETWORK")]
    proxy_protocol: Vec<ClientNetwork>,

    /// File for a line about each request, or - for standard output; SIGHUP opens it again
    #[arg(long, value_name = "FILE", help_heading = "Logs and metrics")]
    access_log: Option<PathBuf>,

    /// Format of the access log
    #[arg(
        long,
        value_name = "FORMAT",
        default_value = "combined",
        requires = "access_log",
        help_heading = "Logs and metrics"
    )]
    access_log_format: LogFormArg,

    /// Address for Prometheus metrics, and for the state of a proxy [default: /metrics on the address of clients; for a proxy a
    /// free port of 127.0.0.1]
    #[arg(long, value_name = "ADDR:PORT", help_heading = "Logs and metrics")]
    metrics: Option<SocketAddr>,

    /// Time limit for responses in progress at the end
    #[arg(long, value_name = "DURATION", default_value = "10s", value_parser = parse_duration, help_heading = "Limits")]
    grace: Duration,

    /// User to run as after binding the address, if root starts it [default: esker if
    /// there is such a user, else ids that no user has; for a gateway the owner of the repositories]
    #[arg(long, value_name = "USER")]
    user: Option<String>,

    /// Print one JSON object when ready and one at the end
    #[arg(long)]
    pub(crate) json: bool,

    #[command(flatten)]
    pub(crate) log: LogArgs,
}

/// Address to listen on.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ListenAddress {
    address: SocketAddr,
    /// True for TLS, false for none; `None` for TLS if there is a certificate.
    secure: Option<bool>,
}

impl FromStr for ListenAddress {
    type Err = AddrParseError;

    fn from_str(text: &str) -> Result<Self, AddrParseError> {
        let (secure, address) = match text.split_once("://") {
            Some(("http", address)) => (Some(false), address),
            Some(("https", address)) => (Some(true), address),
            _ => (None, text),
        };
        Ok(Self { address: address.parse()?, secure })
    }
}

impl From<SocketAddr> for ListenAddress {
    fn from(address: SocketAddr) -> Self {
        Self { address, secure: None }
    }
}

/// Options of servers for TLS.
#[derive(clap::Args, Debug)]
pub(crate) struct TlsArgs {
    /// Certificate in PEM form for TLS, followed by those of its issuers; read again when it changes
    #[arg(long, value_name = "FILE", requires = "tls_key")]
    tls_cert: Option<PathBuf>,

    /// Key of the certificate in PEM form
    #[arg(long, value_name = "FILE", requires = "tls_cert")]
    tls_key: Option<PathBuf>,
}

impl TlsArgs {
    /// True if a certificate is named.
    pub(crate) fn is_given(&self) -> bool {
        self.tls_cert.is_some()
    }

    /// Reads the certificate and its key, if they are named.
    pub(crate) fn open(&self) -> Result<Option<Arc<TlsFiles>>, Failure> {
        let (Some(certificate), Some(key)) = (&self.tls_cert, &self.tls_key) else { return Ok(None) };
        let tls = TlsFiles::open(certificate, key).map_err(|error| {
            Failure::usage(chain(&error))
                .hint("name the certificate with its issuers and its key, both in PEM form, with --tls-cert and --tls-key")
        })?;
        Ok(Some(Arc::new(tls)))
    }

    /// Returns the files, which are opened for the server when they are others.
    pub(crate) fn files(&self) -> impl Iterator<Item = &PathBuf> {
        self.tls_cert.iter().chain(&self.tls_key)
    }
}

/// Form of the lines of the access log.
#[derive(Clone, Copy, Debug, clap::ValueEnum)]
enum LogFormArg {
    /// The form of Apache and nginx
    Combined,
    /// A JSON object
    Json,
}

/// Files and sockets that a server opens before it drops the privileges of root.
pub(crate) struct Opened {
    /// User to run as.
    pub(crate) account: Option<Account>,
    /// Sockets for clients.
    pub(crate) listeners: Vec<TcpListener>,
    /// Sockets for clients without TLS, where others have it.
    pub(crate) plain: Vec<TcpListener>,
    /// Socket for metrics, if they have one of their own.
    pub(crate) metrics: Option<TcpListener>,
    /// Service manager to which the server reports its state.
    pub(crate) manager: Arc<Manager>,
    log: Option<LogOutput>,
    /// Path of the access log, where it is opened again.
    log_path: Option<PathBuf>,
}

impl ServingArgs {
    /// Opens sockets and the access log; called before there are threads, because each has privileges of its own.
    pub(crate) fn open(
        &self,
        service: Service,
        addresses: &[ListenAddress],
        has_tls: bool,
    ) -> Result<Opened, Failure> {
        self.open_as(service.account(self.user.as_deref())?, addresses, has_tls)
    }

    /// Opens them for a server that runs as a given user.
    pub(crate) fn open_as(
        &self,
        account: Option<Account>,
        addresses: &[ListenAddress],
        has_tls: bool,
    ) -> Result<Opened, Failure> {
        let (listeners, plain) = listeners(addresses, has_tls)?;
        let metrics = self.metrics.map(|address| listen(address, "--metrics")).transpose()?;
        let log = log_output(self.access_log.as_deref())?;
        let log_path = self.access_log.clone().filter(|path| path.as_os_str() != "-");
        Ok(Opened { account, listeners, plain, metrics, manager: Arc::new(manager()), log, log_path })
    }

    /// Returns the user that is named.
    pub(crate) fn user(&self) -> Option<&str> {
        self.user.as_deref()
    }

    /// Returns the networks of load balancers.
    pub(crate) fn balancers(&self) -> Option<ClientNetworks> {
        let named = &self.proxy_protocol;
        (!named.is_empty()).then(|| ClientNetworks::new(named, "server"))
    }

    /// Returns the limits of clients.
    pub(crate) fn limits(&self) -> Limits {
        let connections = self.connections.clamp(1, connections_max());
        Limits {
            connections,
            listeners: (connections / 2).max(1),
            grace: self.grace,
            client_connections: self.client_connections.map(|count| count as usize),
            client_rate: self.client_rate,
            ..Limits::default()
        }
    }

    /// Starts the thread of the access log.
    pub(crate) fn start_log(&self, opened: &mut Opened) -> Result<Option<AccessLog>, Failure> {
        opened.log.take().map(|output| access_log(output, self.access_log_format)).transpose()
    }
}

impl Opened {
    /// Gives up the privileges of root, confines the process, and takes the signals that end a server.
    pub(crate) fn drop_privileges(
        &self,
        policy: Policy,
        openable: Openable,
        environment: &Environment,
    ) -> Result<mpsc::Receiver<Received>, Failure> {
        let openable = openable.log(self.log_path.as_deref());
        become_server(self.account.as_ref(), policy, openable, &self.manager, environment)?;
        signals()
    }
}

/// Starts the opener, drops the privileges of root, and confines the process.
pub(crate) fn become_server(
    account: Option<&Account>,
    policy: Policy,
    openable: Openable,
    manager: &Manager,
    environment: &Environment,
) -> Result<(), Failure> {
    openable.start(environment)?;
    // Both sockets are connected while it is still allowed.
    let sockets = [manager.socket().map(|socket| socket.as_raw_fd()), logging::connect()];
    privileges::become_user(account, CapabilitySet::empty())?;
    let policy = sockets.into_iter().flatten().fold(policy, Policy::send_only);
    confine::enforce(|| policy.prepare(), environment);
    Ok(())
}

/// Returns the absolute path of the cache folder, made for the user of the server.
pub(crate) fn cache_folder(cache: &Path, account: Option<&Account>) -> Result<PathBuf, Failure> {
    let cache =
        std::path::absolute(cache).context(Kind::Usage, format!("--cache {} is no path", cache.display()))?;
    if let Some(account) = account {
        // A folder of something else is not given away; opening the cache says whose it is.
        if CacheKind::Proxy.foreign_entry(&cache).is_ok_and(|entry| entry.is_some()) {
            return Ok(cache);
        }
        privileges::give_folder(&cache, account, false)
            .context(Kind::Failed, format!("can't give {} to user {}", cache.display(), account.name))?;
    }
    Ok(cache)
}

/// Connects to the service manager, if there is one; the server also runs without it.
pub(crate) fn manager() -> Manager {
    Manager::connect()
        .inspect_err(|error| tracing::warn!("can't connect to the service manager: {error}"))
        .unwrap_or_default()
}

/// Tells the service manager that the server is ready; one that is gone is no failure.
pub(crate) fn tell_ready(manager: &Manager, server: &str) {
    confine::tell();
    if let Err(error) = manager.tell("READY=1") {
        tracing::warn!("can't tell the service manager that the {server} is ready: {error}");
    }
}

/// Returns the counts of a server that ended.
pub(crate) fn counts(served: &Served) -> Value {
    json!({
        "connections": served.connections,
        "requests": served.requests,
        "failures": served.failures,
        "broken_off": served.broken_off,
        "bytes": served.bytes,
        "cut": served.cut,
    })
}

/// Handles the signals that end the server; called before any other thread starts.
pub(crate) fn signals() -> Result<mpsc::Receiver<Received>, Failure> {
    let (sender, receiver) = mpsc::channel();
    take_signals(&[libc::SIGTERM, libc::SIGINT, libc::SIGHUP], move |received| {
        // The receiver is gone before the server runs, and after.
        if sender.send(received).is_err() {
            die_by(received.signal);
        }
    })
    .context(Kind::Failed, "can't handle signals")?;
    Ok(receiver)
}

/// Parts of a server that signals act on.
pub(crate) struct Controls {
    pub(crate) stopper: Stopper,
    pub(crate) tls: Option<Arc<TlsFiles>>,
    pub(crate) access_log: Option<AccessLog>,
    pub(crate) manager: Arc<Manager>,
    /// Reads further files again.
    pub(crate) reload: Option<Box<dyn Fn() + Send>>,
}

impl Controls {
    /// Acts on signals, in a separate thread.
    pub(crate) fn start(self, signals: mpsc::Receiver<Received>) -> Result<(), Failure> {
        let started = std::thread::Builder::new().name("stop".into()).spawn(move || self.follow(&signals));
        started.context(Kind::Failed, "can't start a thread").map(drop)
    }

    /// Reads files again at SIGHUP, stops the server at the first other signal and ends the process at the second.
    fn follow(&self, signals: &mpsc::Receiver<Received>) {
        let mut stops = false;
        while let Ok(received) = signals.recv() {
            if received.signal == libc::SIGHUP {
                self.reload();
            } else if stops {
                die_by(received.signal);
            } else {
                stops = true;
                // A manager that is gone needs no news.
                let _ = self.manager.tell("STOPPING=1");
                self.stopper.stop();
            }
        }
    }

    fn reload(&self) {
        if let Some(log) = &self.access_log {
            log.reopen();
        }
        if let Some(Err(error)) = self.tls.as_ref().map(|tls| tls.reload()) {
            tracing::warn!("keeping the old certificate: {}", chain(&error));
        }
        if let Some(reload) = &self.reload {
            reload();
        }
    }
}

/// Returns the sockets for clients, those with TLS apart from those that have none: the ones that the service manager passes, or
/// else ones at the addresses.
fn listeners(
    addresses: &[ListenAddress],
    has_tls: bool,
) -> Result<(Vec<TcpListener>, Vec<TcpListener>), Failure> {
    let passed = inherited()?;
    if !passed.is_empty() {
        return Ok((passed, Vec::new()));
    }
    if let Some(secure) = addresses.iter().find(|listen| listen.secure == Some(true) && !has_tls) {
        return Err(Failure::usage(format!("--listen https://{}: there is no certificate", secure.address))
            .hint("name one with --tls-cert and --tls-key"));
    }
    let (plain, usual): (Vec<_>, Vec<_>) =
        addresses.iter().partition(|listen| has_tls && listen.secure == Some(false));
    let open = |all: Vec<&ListenAddress>| {
        all.into_iter().map(|one| listen(one.address, "--listen")).collect::<Result<Vec<_>, _>>()
    };
    Ok((open(usual)?, open(plain)?))
}

/// Returns the sockets that the service manager passes. Called once.
pub(crate) fn inherited() -> Result<Vec<TcpListener>, Failure> {
    inherited_listeners().context(Kind::Failed, "can't use the sockets of the service manager")
}

/// Opens a listening socket; `option` is named in failures.
pub(crate) fn listen(address: SocketAddr, option: &str) -> Result<TcpListener, Failure> {
    Server::listen(address).map_err(|error| {
        Failure::new(Kind::Network, chain(&error)).hint(format!(
            "choose another address or port with {option} ADDR:PORT; port 0 takes any free one"
        ))
    })
}

/// Opens the file of the access log, without a thread.
fn log_output(path: Option<&Path>) -> Result<Option<LogOutput>, Failure> {
    let Some(path) = path else { return Ok(None) };
    let target = if path.as_os_str() == "-" { LogTarget::Stdout } else { LogTarget::File(path.to_owned()) };
    let output = LogOutput::open(target).map_err(|error| {
        Failure::new(Kind::Failed, format!("can't open the access log {}: {error}", path.display()))
            .hint("name a file in a folder that the server may write to with --access-log FILE")
    })?;
    Ok(Some(output))
}

fn access_log(output: LogOutput, form: LogFormArg) -> Result<AccessLog, Failure> {
    let form = match form {
        LogFormArg::Combined => LogForm::Combined,
        LogFormArg::Json => LogForm::Json,
    };
    AccessLog::start(output, form).context(Kind::Failed, "can't start a thread")
}

/// Returns the limit of connections. A connection needs a socket and a file, an idle one a socket, and the rest of the
/// process a few more.
fn connections_max() -> usize {
    let limit = rustix::process::getrlimit(rustix::process::Resource::Nofile).current;
    limit
        .map_or(usize::MAX, |limit| usize::try_from(limit.saturating_sub(128) / 3).unwrap_or(usize::MAX))
        .max(1)
}

/// Returns the server's URL for this machine.
pub(crate) fn url(address: SocketAddr, is_secure: bool) -> String {
    let ip = match address.ip() {
        IpAddr::V4(ip) if ip.is_unspecified() => Ipv4Addr::LOCALHOST.into(),
        IpAddr::V6(ip) if ip.is_unspecified() => Ipv6Addr::LOCALHOST.into(),
        ip => ip,
    };
    let scheme = if is_secure { "https" } else { "http" };
    format!("{scheme}://{}", SocketAddr::new(ip, address.port()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn urls_can_be_used_as_they_are() {
        for (address, expected) in [
            ("127.0.0.1:8000", "http://127.0.0.1:8000"),
            ("0.0.0.0:80", "http://127.0.0.1:80"),
            ("[::]:80", "http://[::1]:80"),
            ("10.1.2.3:80", "http://10.1.2.3:80"),
        ] {
            assert_eq!(url(address.parse().expect("an address"), false), expected);
        }
    }
}
