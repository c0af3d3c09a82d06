use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::path::PathBuf;
use std::sync::mpsc;
use std::time::Duration;

use esker_run::{Received, die_by, take_signals};
use esker_server::{Limits, Repositories, RootError, Server, Stopper};
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
/// can access only the files that they need. After Ctrl-C or SIGTERM the server finishes the responses in
/// progress; a second signal ends it at once.
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

pub(crate) fn run(args: &Args) -> Result<(), Failure> {
    args.folders.iter().try_for_each(|folder| refuse_address("DIR", folder))?;
    // Before there are threads: each has privileges of its own.
    let account = privileges::named_or_usual(args.user.as_deref())?;
    let listener = Server::listen(args.listen).map_err(|error| {
        Failure::new(Kind::Network, chain(&error))
            .hint("choose another address or port with --listen ADDR:PORT; port 0 takes any free one")
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
        ..Limits::default()
    };
    let server = Server::on(listener, repositories, limits).context(Kind::Failed, "can't serve")?;
    let url = url(server.address());
    let stopper = server.stopper();
    std::thread::Builder::new()
        .name("stop".into())
        .spawn(move || stop(&signals, &stopper))
        .context(Kind::Failed, "can't start a thread")?;
    announce(args, &url, &names)?;
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
fn announce(args: &Args, url: &str, names: &[String]) -> Result<(), Failure> {
    let mut out = Output::new();
    if args.json {
        let repositories: Vec<_> =
            names.iter().map(|name| json!({ "name": name, "url": format!("{url}/cvmfs/{name}") })).collect();
        out.json(&json!({
            "event": "ready",
            "url": url,
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

/// Stops the server at the first signal and ends the process at the second.
pub(super) fn stop(signals: &mpsc::Receiver<Received>, stopper: &Stopper) {
    if signals.recv().is_ok() {
        stopper.stop();
    }
    if let Ok(again) = signals.recv() {
        die_by(again.signal);
    }
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
pub(super) fn url(address: SocketAddr) -> String {
    let ip = match address.ip() {
        IpAddr::V4(ip) if ip.is_unspecified() => Ipv4Addr::LOCALHOST.into(),
        IpAddr::V6(ip) if ip.is_unspecified() => Ipv6Addr::LOCALHOST.into(),
        ip => ip,
    };
    format!("http://{}", SocketAddr::new(ip, address.port()))
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
            assert_eq!(url(address.parse().expect("an address")), expected);
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
            user: None,
            json: false,
            log: LogArgs::default(),
        };
        let failure = run(&args).expect_err("an address");
        assert!(failure.message.starts_with("DIR s3://bucket/x"), "{}", failure.message);
    }
}
