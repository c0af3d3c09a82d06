use std::net::Ipv4Addr;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use esker_confine::{Policy, Role};
use esker_format::name::RepositoryName;
use esker_server::proxy::{AllowedHost, CacheError, FindKeys, ProxyError, ProxyOptions, Upstream};
use esker_server::{ClientNetwork, ClientNetworks, Options, ProxyServer};
use esker_store::{Authorities, Proxies, without_passwords};
use serde_json::json;

use crate::error::{Context, Failure, Kind, chain};
use crate::output::{Output, parse_duration, parse_size, show, size};
use crate::process::confine;
use crate::process::opener::Openable;
use crate::process::privileges::Service;
use crate::serving::{self, Controls, ListenAddress, ServingArgs, TlsArgs};
use crate::settings::Settings;
use crate::settings::cache::default_server_size;
use crate::settings::public_keys::{master_keys, public_keys};

/// Caches repositories for the clients of a site, Esker's and CernVM-FS's.
///
/// Clients use it as their HTTP proxy (CVMFS_HTTP_PROXY=http://HOST:3128), or as a server of the repositories. It fetches
/// each object once, verifies it before any client gets a byte, and keeps it on disk. While the servers are away it serves
/// what it has. It forwards requests for repositories of the named servers only, and answers clients in private networks
/// unless others are named. At the address of --metrics its state is at /.esker/proxy as JSON.
///
/// Example: esker proxy --upstream http://server --cache /var/cache/esker-proxy --listen 0.0.0.0:3128
#[derive(clap::Args, Debug)]
pub(crate) struct Args {
    /// Server of repositories, at /cvmfs unless the URL has another path; further ones are used when those before fail
    #[arg(long, value_name = "URL", value_parser = Upstream::parse)]
    upstream: Vec<Upstream>,

    /// Network of clients, as ADDRESS/BITS [default: loopback, link-local, RFC 1918, RFC 6598, fc00::/7]; or a further host
    /// that clients may name, as HOST, HOST:PORT or *.DOMAIN; without a port 80 and 8000 are allowed
    #[arg(long, value_name = "NETWORK|HOST", value_parser = parse_allowed)]
    allow: Vec<Allowed>,

    /// Address to listen on; 0.0.0.0 or [::] for all addresses of this machine, port 0 for a free one. May be repeated; after
    /// http:// it has no TLS where others do
    #[arg(long, value_name = "ADDR:PORT", default_value = "127.0.0.1:3128")]
    listen: Vec<ListenAddress>,

    /// Proxies between this one and the servers, as `esker mount --proxy` has them [default: $http_proxy, else none]
    #[arg(long, value_name = "GROUPS")]
    parent: Option<String>,

    /// Folder for the cache, which only this proxy uses
    #[arg(long, value_name = "DIR")]
    cache: PathBuf,

    /// Maximum size of the cache [default: 100GiB, or half of a smaller disk]
    #[arg(long, alias = "cache-size", value_name = "SIZE", value_parser = parse_size)]
    quota: Option<u64>,

    /// Time for which a manifest is served without asking the servers
    #[arg(long, value_name = "DURATION", default_value = "10s", value_parser = parse_duration)]
    head_age: Duration,

    /// Time for which a manifest is served while the servers are away
    #[arg(long, value_name = "DURATION", default_value = "1d", value_parser = parse_duration)]
    stale_age: Duration,

    /// Other proxy of the site: each object is fetched by the proxy that owns it; needs --own-url
    #[arg(long, value_name = "URL", requires = "own_url")]
    peer: Vec<String>,

    /// URL of this proxy, as its peers name it
    #[arg(long, value_name = "URL")]
    own_url: Option<String>,

    /// Master public key of the repositories: a file, a folder of *.pub files, or a CernVM-FS keys folder [default:
    /// /etc/cvmfs/keys]; manifests of repositories without a key are checked for damage only
    #[arg(long, value_name = "FILE|DIR")]
    public_key: Vec<PathBuf>,

    /// Additional CA certificates for TLS, beside those of the system: a file or a folder of files
    #[arg(long, value_name = "FILE|DIR")]
    ca: Vec<PathBuf>,

    #[command(flatten)]
    tls: TlsArgs,

    #[command(flatten)]
    pub(crate) serving: ServingArgs,
}

/// Kind of destination that `--allow` names.
#[derive(Clone, Debug)]
enum Allowed {
    Clients(ClientNetwork),
    Host(AllowedHost),
}

/// Parses a network of clients, which has a slash, or a host, which has none.
fn parse_allowed(text: &str) -> Result<Allowed, String> {
    match text.contains('/') && !text.contains("://") {
        true => text.parse().map(Allowed::Clients),
        false => AllowedHost::parse(text).map(Allowed::Host).map_err(|error| error.to_string()),
    }
}

impl Args {
    fn hosts(&self) -> Vec<AllowedHost> {
        let hosts = self.allow.iter().filter_map(|allowed| match allowed {
            Allowed::Host(host) => Some(host.clone()),
            Allowed::Clients(_) => None,
        });
        hosts.collect()
    }

    fn clients(&self) -> ClientNetworks {
        let networks = self.allow.iter().filter_map(|allowed| match allowed {
            Allowed::Clients(network) => Some(network.clone()),
            Allowed::Host(_) => None,
        });
        ClientNetworks::new(&networks.collect::<Vec<_>>(), "proxy")
    }
}

pub(crate) fn run(args: Args, settings: &Settings) -> Result<(), Failure> {
    let hosts = args.hosts();
    if args.upstream.is_empty() && hosts.is_empty() {
        return Err(Failure::usage("no server is named that requests may go to")
            .hint("name the servers with --upstream URL, or hosts that clients name with --allow HOST"));
    }
    let keys = find_keys(&args.public_key, settings)?;
    let parents = parents(args.parent.as_deref(), settings)?;
    let mut opened = args.serving.open(Service::Proxy, &args.listen, args.tls.is_given())?;
    // Files of root alone are opened before the privileges are gone.
    let tls = args.tls.open()?;
    // State and metrics are nothing for clients.
    let monitor = match opened.metrics.take() {
        Some(listener) => listener,
        None => serving::listen((Ipv4Addr::LOCALHOST, 0).into(), "--metrics")?,
    };
    let cache = serving::cache_folder(&args.cache, opened.account.as_ref())?;
    let policy = policy(&args, &cache, settings);
    let openable = openable(&args, settings);
    let signals = opened.drop_privileges(policy, openable, &settings.environment)?;
    let options = ProxyOptions {
        own_url: args.own_url.clone(),
        peers: args.peer.clone(),
        cache_size: args.quota.unwrap_or_else(|| default_server_size(&cache)),
        head_age: args.head_age,
        stale_age: args.stale_age,
        keys,
        authorities: Authorities {
            paths: args.ca.iter().map(|path| path.to_string_lossy().into_owned()).collect(),
            ..Authorities::default()
        },
        upstreams: args.upstream.clone(),
        parents,
        allowed: hosts,
        ..ProxyOptions::new(cache)
    };
    let access_log = args.serving.start_log(&mut opened)?;
    let limits = args.serving.limits();
    let state = monitor.local_addr().context(Kind::Network, "the address of --metrics")?;
    let state = serving::url(state, false);
    let serving = Options {
        limits,
        access_log: access_log.clone(),
        metrics: Some(monitor),
        clients: Some(args.clients()),
        balancers: args.serving.balancers(),
        plain: opened.plain,
        tls: tls.clone(),
        ..Options::default()
    };
    let proxy = ProxyServer::new(opened.listeners, options, serving).map_err(|error| of_proxy(&error))?;
    let is_secure = tls.is_some() && proxy.is_secure();
    let url = serving::url(proxy.address(), is_secure);
    let manager = opened.manager.clone();
    Controls { stopper: proxy.stopper(), tls, access_log, manager, reload: None }.start(signals)?;
    let value = json!({
        "event": "ready",
        "url": url,
        "status": format!("{state}/.esker/proxy"),
        "metrics": format!("{state}/metrics"),
        "pid": std::process::id(),
    });
    show(args.serving.json, &value, |out| {
        out.line(format!("proxy at {url}/, state at {state}/.esker/proxy"))
    })?;
    serving::tell_ready(&opened.manager, "proxy");
    let (served, mut status) = proxy.run().map_err(|error| of_proxy(&error))?;
    let mut out = Output::new();
    if args.serving.json {
        status["event"] = "stopped".into();
        status["served"] = serving::counts(&served);
        out.json(&status)?;
    } else {
        let fetched = status["objects"]["fetched_bytes"].as_u64().unwrap_or_default();
        let (bytes, answers) = (size(served.bytes), served.requests);
        out.line(format!("served {bytes} in {answers} answers, fetched {}", size(fetched)))?;
    }
    out.finish()
}

/// Returns the proxies between this one and the servers.
fn parents(named: Option<&str>, settings: &Settings) -> Result<Proxies, Failure> {
    let by_variable = settings.environment.proxy();
    let Some(groups) = named.or(by_variable.map(|_| "auto")) else { return Ok(Proxies::direct()) };
    Proxies::parse(groups, by_variable).map_err(|error| {
        Failure::usage(format!("--parent {:?}: {error}", without_passwords(groups)))
            .hint("write it like 'http://squid1:3128|http://squid2:3128;DIRECT'")
    })
}

/// Returns what the proxy may read, and the cache that it may change. Of the usual folder of keys it may list names; that
/// folder has private keys, too.
fn policy(args: &Args, cache: &Path, settings: &Settings) -> Policy {
    let policy = confine::with_cache_folder(confine::of_server(Role::Proxy), cache);
    let named = args.public_key.iter().chain(&args.ca);
    named.filter(|path| path.is_dir()).fold(policy, Policy::reopen).list(&settings.keys)
}

/// Returns the files that are opened for the proxy when they are others.
fn openable(args: &Args, settings: &Settings) -> Openable {
    let files = args.public_key.iter().chain(&args.ca).chain(args.tls.files());
    files.fold(Openable::of_machine(), |openable, file| openable.file(file)).keys(&settings.keys)
}

fn of_proxy(error: &ProxyError) -> Failure {
    let failure = match error {
        ProxyError::NoDestination | ProxyError::NoOwnUrl | ProxyError::Destination(_) => {
            Failure::usage(chain(error))
        }
        _ => Failure::new(Kind::Failed, chain(error)),
    };
    match error {
        ProxyError::Cache(CacheError::Busy { .. }) => {
            failure.hint("stop the other proxy, or name another folder with --cache DIR")
        }
        ProxyError::Cache(CacheError::NotOurs { .. }) => {
            failure.hint("name a new or an empty folder with --cache DIR")
        }
        ProxyError::Cache(CacheError::Io { .. }) => {
            failure.hint("name a folder that the proxy may write to with --cache DIR")
        }
        ProxyError::NoOwnUrl => failure.hint("name this proxy as its peers do with --own-url URL"),
        _ => failure,
    }
}

/// Returns a function that finds the keys of a repository. Named keys are those of all repositories; of the usual folder
/// only keys named after the repository or its domain are taken.
fn find_keys(named: &[PathBuf], settings: &Settings) -> Result<FindKeys, Failure> {
    if !named.is_empty() {
        // A wrong name is an error now, and not when the first client comes.
        public_keys(named, "repository.invalid", settings)?;
    }
    let (named, settings) = (named.to_owned(), settings.clone());
    Ok(Arc::new(move |name: &RepositoryName| {
        if named.is_empty() && !has_keys(&settings.keys, name) {
            return None;
        }
        let keys = public_keys(&named, name.as_str(), &settings).and_then(master_keys);
        keys.inspect_err(|failure| tracing::warn!("the keys of {name} are not used: {}", failure.message))
            .ok()
    }))
}

fn has_keys(folder: &Path, name: &RepositoryName) -> bool {
    let domain = name.as_str().split_once('.').map(|(_, domain)| domain);
    folder.join(format!("{name}.pub")).is_file() || domain.is_some_and(|domain| folder.join(domain).is_dir())
}
