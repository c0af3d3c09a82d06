use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, TcpListener};
use std::path::{Path, PathBuf};
use std::sync::{Arc, mpsc};
use std::time::Duration;

use esker_run::{Received, die_by, inherited_listeners, notify, take_signals};
use esker_server::{
    AccessLog, GeoDatabase, Limits, LogForm, LogOutput, LogTarget, Options, Repositories, RootError, Server,
    Stopper, TlsFiles,
};
use rustix::thread::CapabilitySet;
use serde_json::json;

use crate::error::{Context, Failure, Kind, chain};
use crate::logging::LogArgs;
use crate::output::{Output, size};
use crate::process::privileges;
use crate::publisher::refuse_address;

/// Serves repositories over HTTP to Esker, CernVM-FS clients and browsers.
///
/// A folder is a repository or contains several; a repository added later is served without a restart. Clients
/// can access only the files that they need. It speaks HTTP/1.1 and HTTP/2, and TLS with a certificate. After Ctrl-C
/// or SIGTERM the server finishes the responses in progress; a second signal ends it at once. SIGHUP opens the access
/// log again and reads the certificate again; without either it ends the server. A socket that systemd passes is used
/// in place of --listen.
///
/// Example: esker serve /srv/cvmfs --listen 0.0.0.0:8000
#[derive(clap::Args, Debug)]
pub(crate) struct Args {
    /// Repository, or folder of repositories
    #[arg(value_name = "DIR", required = true)]
    folders: Vec<PathBuf>,

    /// Address to listen on; 0.0.0.0 or [::] for all addresses of this machine, port 0 for a free one
    #[arg(long, value_name = "ADDR:PORT", default_value = "127.0.0.1:8000")]
    listen: SocketAddr,

    /// Folder outside of the repositories that their links may lead into, such as the disk behind a linked data/; other
    /// links that lead out are not followed
    #[arg(long, value_name = "DIR")]
    follow: Vec<PathBuf>,

    /// Largest number of open connections
    #[arg(long, value_name = "COUNT", default_value_t = Limits::default().connections)]
    connections: usize,

    /// Largest number of connections of one client address; further ones get status 429
    #[arg(long, value_name = "COUNT", value_parser = clap::value_parser!(u32).range(1..))]
    client_connections: Option<u32>,

    /// Largest number of requests of one client address in a second; further ones get status 429
    #[arg(long, value_name = "COUNT", value_parser = clap::value_parser!(u32).range(1..))]
    client_rate: Option<u32>,

    /// Certificate in PEM form for TLS, followed by those of its issuers; read again when it changes
    #[arg(long, value_name = "FILE", requires = "tls_key")]
    tls_cert: Option<PathBuf>,

    /// Key of the certificate in PEM form
    #[arg(long, value_name = "FILE", requires = "tls_cert")]
    tls_key: Option<PathBuf>,

    /// File for a line about each request, or - for standard output; SIGHUP opens it again
    #[arg(long, value_name = "FILE")]
    access_log: Option<PathBuf>,

    /// Form of these lines
    #[arg(long, value_name = "FORM", default_value = "combined", requires = "access_log")]
    access_log_format: LogFormArg,

    /// Address for Prometheus metrics, in place of /metrics on the address of clients
    #[arg(long, value_name = "ADDR:PORT")]
    metrics: Option<SocketAddr>,

    /// Database of places in MaxMind's format, such as GeoLite2-City.mmdb, with which the Geo-API sorts servers
    #[arg(long, value_name = "FILE")]
    geo_database: Option<PathBuf>,

    /// Time limit in seconds for responses in progress when the server stops
    #[arg(long, value_name = "SECONDS", default_value_t = Limits::default().grace.as_secs())]
    grace: u64,

    /// User to run as after binding the address, if root starts it [default: esker if there is such a user, else root]
    #[arg(long, value_name = "USER")]
    user: Option<String>,

    /// Print one JSON object when ready and one at the end
    #[arg(long)]
    json: bool,

    #[command(flatten)]
    pub(crate) log: LogArgs,
}

/// Form of the lines of the access log.
#[derive(Clone, Copy, Debug, clap::ValueEnum)]
pub(super) enum LogFormArg {
    /// The form of Apache and nginx
    Combined,
    /// A JSON object
    Json,
}

pub(crate) fn run(args: &Args) -> Result<(), Failure> {
    args.folders.iter().try_for_each(|folder| refuse_address("DIR", folder))?;
    // Before there are threads: each has privileges of its own.
    let account = privileges::named_or_usual(args.user.as_deref())?;
    let listeners = listeners(args.listen)?;
    let metrics = args.metrics.map(|address| listen(address, "--metrics")).transpose()?;
    // Files of root alone are opened before the privileges are gone.
    let tls = tls(args)?;
    let log_output = log_output(args.access_log.as_deref())?;
    let geo = args.geo_database.as_deref().map(GeoDatabase::open).transpose();
    let geo = geo.map_err(|error| {
        Failure::usage(chain(&error))
            .hint("name a database such as GeoLite2-City.mmdb with --geo-database FILE")
    })?;
    privileges::become_user(account.as_ref(), CapabilitySet::empty())?;
    let signals = signals()?;
    let repositories = Repositories::following(&args.folders, args.follow.clone()).map_err(|error| {
        let failure = Failure::usage(chain(&error));
        match error {
            RootError::Unreadable { .. } => match &account {
                Some(account) => failure.hint(format!(
                    "let user {} read it, or name another one with --user USER, such as root",
                    account.name
                )),
                None if rustix::process::geteuid().is_root() => failure.hint(
                    "root has given its privileges up by then: name the owner of the folder with --user USER",
                ),
                None => failure.hint("name a repository's folder, or a folder of them"),
            },
            RootError::Nameless { .. } => {
                failure.hint("a repository's folder holds a .cvmfspublished with its name")
            }
            RootError::Twice { .. } => failure.hint("serve only one of them"),
        }
    })?;
    let names: Vec<String> = repositories.names().iter().map(|name| name.as_str().to_owned()).collect();
    for (link, target) in repositories.refused_links() {
        let (link, folder) = (link.display(), target.display());
        tracing::warn!("{link} leads to {folder}, which is not served: allow it with --follow DIR");
    }
    let limits = Limits {
        connections: args.connections.clamp(1, connections_max()),
        listeners: (args.connections.clamp(1, connections_max()) / 2).max(1),
        grace: Duration::from_secs(args.grace),
        client_connections: args.client_connections.map(|count| count as usize),
        client_rate: args.client_rate,
        ..Limits::default()
    };
    let monitoring = metrics.as_ref().and_then(|listener| listener.local_addr().ok());
    let (tls, geo) = (tls.map(Arc::new), geo.map(Arc::new));
    let access_log = log_output.map(|output| access_log(output, args.access_log_format)).transpose()?;
    let options = Options { limits, tls: tls.clone(), access_log: access_log.clone(), metrics, geo };
    let server = Server::new(listeners, repositories, options).context(Kind::Failed, "can't serve")?;
    let url = url(server.address(), tls.is_some());
    let metrics_url = match monitoring {
        Some(address) => format!("{}/metrics", self::url(address, false)),
        None => format!("{url}/metrics"),
    };
    let controls = Controls { stopper: server.stopper(), tls, access_log };
    std::thread::Builder::new()
        .name("stop".into())
        .spawn(move || controls.follow(&signals))
        .context(Kind::Failed, "can't start a thread")?;
    announce(args, &url, &metrics_url, &names)?;
    if let Err(error) = notify("READY=1") {
        tracing::warn!("can't tell the service manager that the server is ready: {error}");
    }
    let served = server.run().context(Kind::Network, "the server ended")?;
    let mut out = Output::new();
    if args.json {
        out.json(&json!({
            "event": "stopped",
            "connections": served.connections,
            "requests": served.requests,
            "failures": served.failures,
            "broken_off": served.broken_off,
            "bytes": served.bytes,
            "cut": served.cut,
        }))?;
    } else {
        let cut = if served.cut == 0 { String::new() } else { format!(", {} connections cut", served.cut) };
        out.line(format!("served {} in {} answers{cut}", size(served.bytes), served.requests))?;
    }
    out.finish()
}

/// Prints the address once connections are accepted.
fn announce(args: &Args, url: &str, metrics: &str, names: &[String]) -> Result<(), Failure> {
    let mut out = Output::new();
    if args.json {
        let repositories: Vec<_> =
            names.iter().map(|name| json!({ "name": name, "url": format!("{url}/cvmfs/{name}") })).collect();
        out.json(&json!({
            "event": "ready",
            "url": url,
            "metrics": metrics,
            "pid": std::process::id(),
            "repositories": repositories,
        }))?;
    } else {
        out.line(format!("serving at {url}/"))?;
        for name in names {
            out.line(format!("  {url}/cvmfs/{name}"))?;
        }
        if names.is_empty() {
            out.line("  no repository yet; one that is put there will be served")?;
        }
    }
    out.finish()
}

/// Handles the signals that end the server; called before any other thread starts.
pub(super) fn signals() -> Result<mpsc::Receiver<Received>, Failure> {
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

/// What signals act on.
pub(super) struct Controls {
    pub(super) stopper: Stopper,
    pub(super) tls: Option<Arc<TlsFiles>>,
    pub(super) access_log: Option<AccessLog>,
}

impl Controls {
    /// Reads files again at SIGHUP, stops the server at the first other signal and ends the process at the second.
    pub(super) fn follow(&self, signals: &mpsc::Receiver<Received>) {
        let mut stops = false;
        while let Ok(received) = signals.recv() {
            if received.signal == libc::SIGHUP && (self.tls.is_some() || self.access_log.is_some()) {
                self.reload();
            } else if stops {
                die_by(received.signal);
            } else {
                stops = true;
                // A manager that is gone needs no news.
                let _ = notify("STOPPING=1");
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
    }
}

/// Returns the sockets for clients: those that the service manager passes, or else one at the address.
pub(super) fn listeners(address: SocketAddr) -> Result<Vec<TcpListener>, Failure> {
    let passed =
        inherited_listeners().context(Kind::Failed, "can't use the sockets of the service manager")?;
    if passed.is_empty() { Ok(vec![listen(address, "--listen")?]) } else { Ok(passed) }
}

pub(super) fn listen(address: SocketAddr, option: &str) -> Result<TcpListener, Failure> {
    Server::listen(address).map_err(|error| {
        Failure::new(Kind::Network, chain(&error)).hint(format!(
            "choose another address or port with {option} ADDR:PORT; port 0 takes any free one"
        ))
    })
}

fn tls(args: &Args) -> Result<Option<TlsFiles>, Failure> {
    let (Some(certificate), Some(key)) = (&args.tls_cert, &args.tls_key) else { return Ok(None) };
    let tls = TlsFiles::open(certificate, key).map_err(|error| {
        Failure::usage(chain(&error))
            .hint("name the certificate with its issuers and its key, both in PEM form, with --tls-cert and --tls-key")
    })?;
    Ok(Some(tls))
}

/// Opens the file of the access log, without a thread.
pub(super) fn log_output(path: Option<&Path>) -> Result<Option<LogOutput>, Failure> {
    let Some(path) = path else { return Ok(None) };
    let target = if path.as_os_str() == "-" { LogTarget::Stdout } else { LogTarget::File(path.to_owned()) };
    let output = LogOutput::open(target).map_err(|error| {
        Failure::new(Kind::Failed, format!("can't open the access log {}: {error}", path.display()))
            .hint("name a file in a folder that the server may write to with --access-log FILE")
    })?;
    Ok(Some(output))
}

pub(super) fn access_log(output: LogOutput, form: LogFormArg) -> Result<AccessLog, Failure> {
    let form = match form {
        LogFormArg::Combined => LogForm::Combined,
        LogFormArg::Json => LogForm::Json,
    };
    AccessLog::start(output, form).context(Kind::Failed, "can't start a thread")
}

/// Returns the limit of connections. A connection needs a socket and a file, an idle one a socket, and the rest of the
/// process a few more.
pub(super) fn connections_max() -> usize {
    let limit = rustix::process::getrlimit(rustix::process::Resource::Nofile).current;
    limit
        .map_or(usize::MAX, |limit| usize::try_from(limit.saturating_sub(128) / 3).unwrap_or(usize::MAX))
        .max(1)
}

/// Returns the server's URL for this machine.
pub(super) fn url(address: SocketAddr, is_secure: bool) -> String {
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

    /// A wrong command line opens no socket.
    #[test]
    fn an_address_in_place_of_a_folder_is_refused_first() {
        let taken = std::net::TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).expect("a free port");
        let args = Args {
            folders: vec!["s3://bucket/x".into()],
            listen: taken.local_addr().expect("its address"),
            follow: Vec::new(),
            connections: 1,
            grace: 1,
            client_connections: None,
            client_rate: None,
            tls_cert: None,
            tls_key: None,
            access_log: None,
            access_log_format: LogFormArg::Combined,
            metrics: None,
            geo_database: None,
            user: None,
            json: false,
            log: LogArgs::default(),
        };
        let failure = run(&args).expect_err("an address");
        assert!(failure.message.starts_with("DIR s3://bucket/x"), "{}", failure.message);
    }
}
