use std::path::PathBuf;
use std::sync::Arc;

use esker_confine::{Policy, Role};
use esker_format::name::RepositoryName;
use esker_server::proxy::StorageOptions;
use esker_server::{
    ClientNetwork, ClientNetworks, GeoDatabase, Options, Repositories, RootError, ServeError, Server,
};
use serde_json::json;

use crate::error::{Context, Failure, Kind, chain};
use crate::output::{Output, size};
use crate::process::confine;
use crate::process::opener::Openable;
use crate::process::privileges::Service;
use crate::publisher::refuse_address;
use crate::serving::storage::{self, StorageArgs, Stored};
use crate::serving::{self, Controls, ListenAddress, ServingArgs, TlsArgs};
use crate::settings::Settings;

/// Serves repositories over HTTP to Esker, CernVM-FS clients and browsers.
///
/// A folder is a repository or contains several; a repository added later is served without a restart. A repository in
/// object storage (s3://, gs://, az://) is served through a cache folder. Clients can access only the files that they
/// need. It speaks HTTP/1.1 and HTTP/2, and TLS with a certificate. After Ctrl-C
/// or SIGTERM the server finishes the responses in progress; a second signal ends it at once. SIGHUP opens the access
/// log again and reads the certificate again. A socket that systemd passes is used in place of --listen.
///
/// Example: esker serve /srv/cvmfs --listen 0.0.0.0:8000
#[derive(clap::Args, Debug)]
pub(crate) struct Args {
    /// Repository, or folder of repositories, or repository in object storage like s3://BUCKET/PREFIX/NAME; or the NAME of one
    /// that is published from this machine [default: $ESKER_STORAGE, or /srv/cvmfs for root, else
    /// ~/.local/share/esker/repositories]
    #[arg(value_name = "DIR|URL|NAME")]
    folders: Vec<PathBuf>,

    /// Address to listen on; 0.0.0.0 or [::] for all addresses of this machine, port 0 for a free one. May be repeated; after
    /// http:// it has no TLS where others do
    #[arg(long, value_name = "ADDR:PORT", default_value = "127.0.0.1:8000")]
    listen: Vec<ListenAddress>,

    /// Network of clients that are answered, as ADDRESS/BITS [default: all]
    #[arg(long, value_name = "NETWORK")]
    allow: Vec<ClientNetwork>,

    /// Folder outside of the repositories that their links may lead into, such as the disk behind a linked data/
    #[arg(long, alias = "follow", value_name = "DIR")]
    allow_links_to: Vec<PathBuf>,

    #[command(flatten)]
    tls: TlsArgs,

    /// Database of places in MaxMind's format, such as GeoLite2-City.mmdb, with which the Geo-API sorts servers
    #[arg(long, value_name = "FILE")]
    geo_database: Option<PathBuf>,

    #[command(flatten)]
    pub(crate) serving: ServingArgs,

    // The last one, because its heading is that of all options after it.
    #[command(flatten)]
    storage: StorageArgs,
}

pub(crate) fn run(args: &Args, settings: &Settings) -> Result<(), Failure> {
    let (mut folders, buckets) = storage::split(&args.folders, settings)?;
    if args.folders.is_empty() {
        folders.push(settings.storage(None)?);
    }
    folders.iter().try_for_each(|folder| refuse_address("DIR", folder))?;
    // A wrong command line opens no socket.
    args.storage.check(&buckets)?;
    let mut opened = args.serving.open(Service::Serve, &args.listen, args.tls.is_given())?;
    // Files of root alone are opened before the privileges are gone.
    let tls = args.tls.open()?;
    let geo = args.geo_database.as_deref().map(GeoDatabase::open).transpose();
    let geo = geo.map_err(|error| {
        Failure::usage(chain(&error))
            .hint("name a database such as GeoLite2-City.mmdb with --geo-database FILE")
    })?;
    let storages = args.storage.options(&buckets, opened.account.as_ref())?;
    let policy = policy(args, &folders, storages.as_ref());
    let signals = opened.drop_privileges(policy, openable(args, &buckets), &settings.environment)?;
    let repositories = Repositories::following(&folders, args.allow_links_to.clone()).map_err(|error| {
        let failure = Failure::usage(chain(&error));
        match error {
            RootError::Unreadable { source, .. } if source.kind() == std::io::ErrorKind::NotFound => failure
                .hint("`esker repo create NAME` makes it where publishers have it; or name another folder"),
            RootError::Unreadable { .. } => match &opened.account {
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
    let stored = storages.iter().flat_map(|storages| &storages.repositories);
    let stored: Vec<RepositoryName> = stored.map(|repository| repository.name.clone()).collect();
    let names = repositories.names().into_iter().chain(stored);
    let names: Vec<String> = names.map(|name| name.as_str().to_owned()).collect();
    for (link, target) in repositories.refused_links() {
        let (link, folder) = (link.display(), target.display());
        tracing::warn!("{link} leads to {folder}, which is not served: allow it with --allow-links-to DIR");
    }
    let monitoring = opened.metrics.as_ref().and_then(|listener| listener.local_addr().ok());
    let geo = geo.map(Arc::new);
    let access_log = args.serving.start_log(&mut opened)?;
    let options = Options {
        limits: args.serving.limits(),
        clients: (!args.allow.is_empty()).then(|| ClientNetworks::new(&args.allow, "server")),
        balancers: args.serving.balancers(),
        plain: opened.plain,
        tls: tls.clone(),
        access_log: access_log.clone(),
        metrics: opened.metrics,
        geo,
        storages,
        ..Options::default()
    };
    let server = Server::new(opened.listeners, repositories, options).map_err(|error| match &error {
        ServeError::Cache(error) => storage::of_cache(error),
        error => Failure::new(Kind::Failed, format!("can't serve: {}", chain(error))),
    })?;
    let urls: Vec<String> =
        server.addresses().into_iter().map(|(address, secure)| serving::url(address, secure)).collect();
    let url = urls.first().cloned().unwrap_or_default();
    let metrics_url = match monitoring {
        Some(address) => format!("{}/metrics", serving::url(address, false)),
        None => format!("{url}/metrics"),
    };
    let manager = opened.manager.clone();
    Controls { stopper: server.stopper(), tls, access_log, manager, reload: None }.start(signals)?;
    announce(args, &urls, &metrics_url, &names)?;
    serving::tell_ready(&opened.manager, "server");
    let served = server.run().context(Kind::Network, "the server ended")?;
    let mut out = Output::new();
    if args.serving.json {
        let mut ended = serving::counts(&served);
        ended["event"] = "stopped".into();
        out.json(&ended)?;
    } else {
        let cut = if served.cut == 0 { String::new() } else { format!(", {} connections cut", served.cut) };
        out.line(format!("served {} in {} answers{cut}", size(served.bytes), served.requests))?;
    }
    out.finish()
}

/// Returns what the server may read: the folders, also once they are others.
fn policy(args: &Args, folders: &[PathBuf], storages: Option<&StorageOptions>) -> Policy {
    let policy = confine::of_server(Role::Serve);
    let policy = folders.iter().chain(&args.allow_links_to).fold(policy, Policy::reopen);
    match storages {
        Some(storages) => args.storage.permit(policy, storages),
        None => policy,
    }
}

/// Returns the files that are opened for the server when they are others: also a key that its user can't read.
fn openable(args: &Args, buckets: &[Stored]) -> Openable {
    let files = args.tls.files().chain(args.storage.authorities(buckets));
    files.fold(Openable::of_machine(), |openable, file| openable.file(file))
}

/// Prints the address once connections are accepted.
fn announce(args: &Args, urls: &[String], metrics: &str, names: &[String]) -> Result<(), Failure> {
    let mut out = Output::new();
    let url = urls.first().map_or("", String::as_str);
    if args.serving.json {
        let repositories: Vec<_> =
            names.iter().map(|name| json!({ "name": name, "url": format!("{url}/cvmfs/{name}") })).collect();
        out.json(&json!({
            "event": "ready",
            "url": url,
            "urls": urls,
            "metrics": metrics,
            "pid": std::process::id(),
            "repositories": repositories,
        }))?;
    } else {
        urls.iter().try_for_each(|url| out.line(format!("serving at {url}/")))?;
        for name in names {
            out.line(format!("  {url}/cvmfs/{name}"))?;
        }
        if names.is_empty() {
            out.line("  no repository yet; one that is put there will be served")?;
        }
    }
    out.finish()
}

#[cfg(test)]
mod tests {
    use std::net::Ipv4Addr;

    use clap::Parser as _;

    use super::*;

    #[derive(clap::Parser)]
    struct Line {
        #[command(flatten)]
        args: Args,
    }

    #[test]
    fn a_folder_that_is_not_there_is_named_and_privileges_are_not_blamed() {
        let base = tempfile::tempdir().expect("a folder");
        let absent = base.path().join("absent").display().to_string();
        let settings = Settings::from_environment().expect("settings");
        let Line { args } = Line::parse_from(["serve", &absent, "--listen", "127.0.0.1:0"]);
        let failure = run(&args, &settings).expect_err("no folder");
        let hint = failure.hint.clone().unwrap_or_default();
        assert!(failure.message.contains(&absent) && hint.contains("repo create"), "{failure:?}");
    }

    /// A wrong command line opens no socket.
    #[test]
    fn an_address_that_is_no_storage_is_refused_first() {
        let taken = std::net::TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).expect("a free port");
        let address = taken.local_addr().expect("its address").to_string();
        let settings = Settings::from_environment().expect("settings");
        for place in ["s3://bucket/x", "sftp://host/x", "http://host/x", "s3:x"] {
            let Line { args } = Line::parse_from(["serve", place, "--listen", &address]);
            let failure = run(&args, &settings).expect_err("an address");
            assert!(failure.message.contains(place), "{}", failure.message);
        }
    }
}
