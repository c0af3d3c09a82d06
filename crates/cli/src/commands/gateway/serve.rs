//! The server of the gateway: its user, its files, and its end.

use std::collections::{BTreeMap, BTreeSet};
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::sync::{Arc, mpsc};
use std::time::Duration;

use esker_confine::{Policy, Role};
use esker_format::name::RepositoryName;
use esker_gateway::{
    BLOCKING_THREADS, Database, Gateway, GatewayOptions, KeyRing, OpenTarget, PublishFailure,
    PublishedRepository, steady_clock,
};
use esker_repository::{RememberedStorage, set_temporary_folder};
use esker_server::{ClientNetwork, ClientNetworks, Options, Server};
use esker_store::{RealDisk, make_dirs};
use serde_json::json;

use super::StateArgs;
use super::publishers::{Publishers, Renewal};
use crate::error::{Context, Failure, Kind, chain};
use crate::output::{Output, parse_duration, size};
use crate::process::confine;
use crate::process::limits::cores;
use crate::process::opener::Openable;
use crate::process::privileges::{self, Account};
use crate::publisher::{Place, PublisherArgs, of_operation};
use crate::serving::storage::with_credentials;
use crate::serving::{self, Controls, ServingArgs, TlsArgs};
use crate::settings::Settings;

/// Time for which the gateway repeats the answer to a commit.
const RESULT_KEPT: i64 = 24 * 3600 * 1000;
/// Time between two searches for leases that ended and keys that changed.
const SEARCH: Duration = Duration::from_secs(2);
/// File of the database in the folder of the gateway.
const DATABASE: &str = "leases.redb";
/// Configuration of access of CernVM-FS's gateway.
const ACCESS: &str = "etc/cvmfs/gateway/repo.json";

#[derive(clap::Args, Debug)]
pub(super) struct ServerArgs {
    /// Folder of repositories, each below its name, or the folder of one; or a bucket, like s3://BUCKET/PREFIX [default:
    /// $ESKER_STORAGE, or /srv/cvmfs for root, else ~/.local/share/esker/repositories]
    #[arg(long, value_name = "DIR|URL", help_heading = "Storage and keys")]
    storage: Option<PathBuf>,

    /// URL of the server of the bucket that --storage names, like https://s3.example.org:9000 [default: $AWS_ENDPOINT_URL,
    /// else that of the provider]
    #[arg(long, value_name = "URL", help_heading = "Storage and keys")]
    endpoint: Option<String>,

    /// Folder of the repositories' keys NAME.key, NAME.crt and NAME.pub [default: /etc/cvmfs/keys for root, else
    /// ~/.config/esker/keys]
    #[arg(long, value_name = "DIR", help_heading = "Storage and keys")]
    keys: Option<PathBuf>,

    #[command(flatten)]
    state: StateArgs,

    /// Configuration of CernVM-FS's gateway, whose publishers keep their keys [default: /etc/cvmfs/gateway/repo.json for
    /// root, if there is one]
    #[arg(long, value_name = "FILE", help_heading = "Storage and keys")]
    access_config: Option<PathBuf>,

    /// Longest lifetime of a lease that is not renewed
    #[arg(long, value_name = "DURATION", default_value = "2h", value_parser = parse_duration, help_heading = "Limits")]
    lease_time: Duration,

    /// Let publishers store large objects in the S3 bucket themselves, with URLs that are signed for one object each and end with the
    /// lease; publishers must reach the bucket's endpoint as the gateway does
    #[arg(long, help_heading = "Storage and keys")]
    signed_uploads: bool,

    /// Address to listen on; 0.0.0.0 or [::] for all addresses of this machine, port 0 for a free one
    #[arg(long, value_name = "ADDR:PORT", default_value = "127.0.0.1:4929")]
    listen: SocketAddr,

    /// Network of clients that are answered, as ADDRESS/BITS [default: all]
    #[arg(long, value_name = "NETWORK")]
    allow: Vec<ClientNetwork>,

    #[command(flatten)]
    tls: TlsArgs,

    #[command(flatten)]
    pub(super) serving: ServingArgs,
}

impl ServerArgs {
    /// Returns the place of the repositories and their keys.
    fn place(&self) -> PublisherArgs {
        let named = PublisherArgs::in_folders(self.storage.as_deref(), self.keys.as_deref());
        named.with_endpoint(self.endpoint.clone())
    }
}

/// Repositories of a gateway by their names.
type Places = BTreeMap<RepositoryName, Arc<Place>>;

pub(super) fn run(args: ServerArgs, settings: &Settings) -> Result<(), Failure> {
    let state = args.state.folder(settings)?;
    let keys = settings.publisher_keys(args.keys.as_deref())?;
    let publishers = Publishers {
        folder: args.state.publishers(settings)?,
        access: args.access_config.clone().or_else(|| usual_access(settings)),
        keys: keys.clone(),
    };
    make_dirs(&RealDisk::PRIVATE, &publishers.folder)
        .context(Kind::Failed, format!("can't make {}", publishers.folder.display()))?;
    // Files of root alone are read before the privileges are gone, and opened by another process from then on.
    let ring = publishers.read().map_err(|error| of_keys(&error))?;
    let places = places(&args, &ring, settings)?;
    let account = account(&args, &places, settings)?;
    if let Some(account) = &account {
        privileges::give_folder(&state, account, true)
            .context(Kind::Failed, format!("can't give {} to user {}", state.display(), account.name))?;
    }
    let mut opened = args.serving.open_as(account, &[args.listen.into()], args.tls.is_given())?;
    let tls = args.tls.open()?;
    // Files of its user in the folder of temporary files are not the gateway's to change.
    set_temporary_folder(state.clone());
    // Modes of published files can't be changed once the process is confined.
    privileges::let_others_read();
    let openable = openable(&args, (&ring, &keys), &places, settings);
    let storage = PublisherArgs::in_storage(args.storage.as_deref()).storage_folder(settings)?;
    let policy = policy([&state, &storage], &places);
    let signals = opened.drop_privileges(policy, openable, &settings.environment)?;
    warn_of_repositories(&places);

    let names: Vec<String> = places.keys().map(ToString::to_string).collect();
    let gateway = open(&args, &state, ring, places, settings)?;
    let monitoring = opened.metrics.as_ref().and_then(|listener| listener.local_addr().ok());
    let access_log = args.serving.start_log(&mut opened)?;
    let options = Options {
        limits: args.serving.limits(),
        balancers: args.serving.balancers(),
        clients: (!args.allow.is_empty()).then(|| ClientNetworks::new(&args.allow, "gateway")),
        tls: tls.clone(),
        access_log: access_log.clone(),
        metrics: opened.metrics,
        blocking_threads: Some(BLOCKING_THREADS),
        ..Options::default()
    };
    let server = Server::of_router(opened.listeners, esker_gateway::service(gateway.clone()), options)
        .map_err(|error| Failure::failed(format!("can't serve: {}", chain(&error))))?;
    let renewal = Arc::new(Renewal::new(publishers, gateway.clone()));
    // Dropped at the end, which ends the thread.
    let (_running, ended) = mpsc::channel();
    let searching = renewal.clone();
    let search = move || search(&gateway, &searching, &ended);
    esker_threads::spawn("gateway", search).context(Kind::Failed, "can't start a thread")?;

    let url = serving::url(server.address(), tls.is_some());
    let metrics_url = match monitoring {
        Some(address) => format!("{}/metrics", serving::url(address, false)),
        None => format!("{url}/metrics"),
    };
    let manager = opened.manager.clone();
    let reload: Box<dyn Fn() + Send> = Box::new(move || renewal.read_again());
    Controls { stopper: server.stopper(), tls, access_log, manager, reload: Some(reload) }.start(signals)?;
    announce(args.serving.json, &url, &metrics_url, &names)?;
    serving::tell_ready(&opened.manager, "gateway");
    let served = server.run().context(Kind::Network, "the gateway ended")?;
    let mut out = Output::new();
    if args.serving.json {
        let mut ended = serving::counts(&served);
        ended["event"] = "stopped".into();
        out.json(&ended)?;
    } else {
        out.line(format!("answered {} requests with {}", served.requests, size(served.bytes)))?;
    }
    out.finish()
}

fn usual_access(settings: &Settings) -> Option<PathBuf> {
    Some(settings.config_root.join(ACCESS)).filter(|file| settings.root && file.exists())
}

fn of_keys(error: &esker_gateway::KeyError) -> Failure {
    Failure::usage(chain(error))
        .hint("`esker gateway key list` shows the keys; `esker gateway key add` makes one")
}

/// Finds the repositories that any key is for.
fn places(args: &ServerArgs, ring: &KeyRing, settings: &Settings) -> Result<Places, Failure> {
    let named = args.place();
    let place = |name: &RepositoryName| Ok((name.clone(), Arc::new(named.place(name.as_str(), settings)?)));
    ring.repositories().iter().map(place).collect()
}

/// Returns the user to run as, for root: the named one, or the owner of the repositories.
fn account(args: &ServerArgs, places: &Places, settings: &Settings) -> Result<Option<Account>, Failure> {
    if let user @ Some(_) = args.serving.user() {
        return privileges::named(user);
    }
    let storage = PublisherArgs::in_storage(args.storage.as_deref()).storage_folder(settings)?;
    let folders = places.values().map(|place| &place.root).filter(|folder| folder.is_dir());
    let unused = Some(&storage).filter(|folder| places.is_empty() && folder.is_dir());
    let hint = "run a gateway for each of them, or name a user that may change both with --user USER";
    privileges::common_owner(folders.chain(unused), hint)
}

/// Returns what the gateway may change: its own folder, and the repositories with the folder in which new ones appear. Keys are
/// opened by another process, so that it can't read those beside them.
fn policy(folders: [&Path; 2], places: &Places) -> Policy {
    let policy = folders.into_iter().fold(confine::of_server(Role::Gateway), Policy::write);
    let policy = places.values().fold(policy, |policy, place| {
        let lock = remembered(place).and_then(|known| known.settings.lock);
        let lock = lock.as_deref().and_then(Path::parent);
        [Some(place.root.as_path()), place.spool_folder(), lock]
            .into_iter()
            .flatten()
            .fold(policy, Policy::write)
    });
    with_credentials(policy)
}

fn remembered(place: &Place) -> Option<RememberedStorage> {
    RememberedStorage::read(&place.root).ok().flatten()
}

/// Returns the files that are opened for the gateway: keys of repositories, and others that may be exchanged.
fn openable(
    args: &ServerArgs,
    (ring, keys): (&KeyRing, &Path),
    places: &Places,
    settings: &Settings,
) -> Openable {
    let authorities = places.values().filter_map(|place| remembered(place)?.settings.ca);
    let named = args.tls.files().chain(ring.files()).chain(&settings.passphrase_file).cloned();
    let openable =
        named.chain(authorities).fold(Openable::of_machine(), |openable, file| openable.file(&file));
    let folders: BTreeSet<&Path> = places.values().map(|place| place.keys.folder()).chain([keys]).collect();
    folders.into_iter().fold(openable, Openable::signing_keys)
}

/// Warns of repositories that can't be published to now.
fn warn_of_repositories(places: &Places) {
    for (name, place) in places {
        if let Err(error) = place.try_open() {
            let failure = of_operation(&format!("can't publish to {name}"), &error);
            tracing::warn!("{}", failure.message);
        }
    }
}

fn open(
    args: &ServerArgs,
    state: &Path,
    ring: KeyRing,
    places: Places,
    settings: &Settings,
) -> Result<Arc<Gateway>, Failure> {
    let named = args.place();
    let settings = settings.clone();
    let open: OpenTarget = Box::new(move |name| {
        let failed = |text: String| PublishFailure::Failed(text.into());
        let place = match places.get(name) {
            Some(place) => place.clone(),
            None => {
                Arc::new(named.place(name.as_str(), &settings).map_err(|failure| failed(failure.message))?)
            }
        };
        let opened = PublishedRepository::new(Box::new(move || place.try_open()), cores());
        Ok(Arc::new(opened.map_err(|error| failed(chain(&error)))?))
    });
    let options = GatewayOptions {
        lease_max: i64::try_from(args.lease_time.as_millis()).unwrap_or(i64::MAX),
        result_kept: RESULT_KEPT,
        temporary: state.to_owned(),
        signed_puts: args.signed_uploads,
        clock: steady_clock(),
    };
    let unusable = |error: &dyn std::error::Error| {
        Failure::failed(chain(error)).hint(
            "name a folder that no other gateway uses, and that this user may write to, with --state DIR",
        )
    };
    let database = Database::open(&state.join(DATABASE)).map_err(|error| unusable(&error))?;
    let gateway = Gateway::new(database, ring, open, options).map_err(|error| unusable(&error))?;
    Ok(Arc::new(gateway))
}

/// Ends leases that expired, and takes keys that changed, until the sender is gone.
fn search(gateway: &Gateway, renewal: &Renewal, ended: &mpsc::Receiver<()>) {
    while ended.recv_timeout(SEARCH) == Err(mpsc::RecvTimeoutError::Timeout) {
        if let Err(error) = gateway.expire() {
            tracing::warn!("can't end expired leases: {}", chain(&error));
        }
        renewal.read_again();
    }
}

/// Prints the address once connections are accepted.
fn announce(json: bool, url: &str, metrics: &str, names: &[String]) -> Result<(), Failure> {
    let url = format!("{url}/api/v1");
    let mut out = Output::new();
    if json {
        out.json(&json!({
            "event": "ready",
            "url": url,
            "metrics": metrics,
            "pid": std::process::id(),
            "repositories": names,
        }))?;
    } else {
        out.line(format!("gateway at {url}"))?;
        for name in names {
            out.line(format!("  {name}"))?;
        }
        if names.is_empty() {
            out.line("  no key of a publisher yet: `esker gateway key add` makes one")?;
        }
    }
    out.finish()
}
