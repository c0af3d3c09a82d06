//! Opens a repository with its view, from arguments and settings.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use esker_cache_share::location::CacheLocation;
use esker_cache_share::memory::is_memory;
use esker_cache_share::watchdog;
use esker_format::blacklist::Blacklist;
use esker_format::master_keys::MasterKeys;
use esker_format::name::RepositoryName;
use esker_fuse::{Deadlines, SessionOptions};
use esker_node::push::Push;
use esker_node::repository::{Repository, RepositoryOptions};
use esker_node::status::seconds;
use esker_store::Servers;
use esker_vfs::{ErrorKind, Time};
use esker_view::{Ownership, Pin, View, ViewOptions, ViewStatus};

use crate::error::{Context, Failure, Kind, of_store, of_tree};
use crate::log;
use crate::settings::Settings;
use crate::settings::args::{
    Address, RepositoryArgs, TestingArgs, ViewArgs, public_keys, servers, split_tag, two_revisions,
};
use crate::settings::cache_folder;
use crate::settings::resolve::{self, Configured, NamedRepository};
use crate::trees::entry::time_text;

/// Blacklist of CernVM-FS installations.
const BLACKLIST: &str = "/etc/cvmfs/blacklist";

/// Everything to open a repository, checked as far as possible without network.
pub(crate) struct ResolvedRepository {
    pub(crate) address: Address,
    pub(crate) options: RepositoryOptions,
    pub(crate) configured: Configured,
    /// Tag of the revision, if the repository was named with one.
    tag: Option<String>,
}

impl ResolvedRepository {
    /// Finds a repository by its URL, or by its name in the configuration; both may be followed by `@` and a tag.
    pub(crate) fn new(place: &str, args: &RepositoryArgs, settings: &Settings) -> Result<Self, Failure> {
        let (place, tag) = split_tag(place)?;
        let mut found = Self::untagged(place, args, settings)?;
        found.tag = tag.map(str::to_owned);
        Ok(found)
    }

    fn untagged(place: &str, args: &RepositoryArgs, settings: &Settings) -> Result<Self, Failure> {
        if resolve::is_name(place) {
            return Self::named(place, args, settings);
        }
        let address = Address::parse(place, args.fqrn.as_deref())?;
        let name = RepositoryName::parse(&address.name).map_err(|error| Failure::usage(error.to_string()))?;
        let servers = servers(&address.url, args)?;
        let keys = public_keys(&args.public_key, &address.name, settings)?;
        let blacklist = blacklist(Path::new(BLACKLIST))?;
        let cache = cache_folder::with_quota(settings, args)?;
        Self::of(name, servers, keys, blacklist, cache, (args, settings), Configured::default())
    }

    fn named(name: &str, args: &RepositoryArgs, settings: &Settings) -> Result<Self, Failure> {
        let NamedRepository { name, servers, keys, blacklist: list, place, quota, configured } =
            NamedRepository::find(name, args, settings)?;
        Self::of(name, servers, keys, blacklist(&list)?, (place, quota), (args, settings), configured)
    }

    fn of(
        name: RepositoryName,
        servers: Servers,
        keys: Vec<(PathBuf, Vec<u8>)>,
        blacklist: Blacklist,
        (place, quota): (CacheLocation, u64),
        (args, settings): (&RepositoryArgs, &Settings),
        configured: Configured,
    ) -> Result<Self, Failure> {
        let keys = master_keys(keys)?;
        if args.verbose {
            place_lines(&place).iter().for_each(|line| log::line(line));
        }
        let address = Address { url: servers.url().to_owned(), name: name.to_string() };
        let named = args.tiers.any();
        let lower = if named { args.tiers.tiers(settings)? } else { configured.lower.clone() };
        // The broker doesn't know the lower folders of this mount; but the user named the broker, and this mount uses
        // them while it is away.
        let streaming = args.streaming || configured.streaming;
        let configured_here = streaming || is_memory(&place.path) || !(named || lower.is_empty());
        let broker = args.broker().filter(|_| args.names_broker() || !configured_here);
        let options = RepositoryOptions {
            servers,
            name,
            keys,
            blacklist,
            quota,
            lower,
            cache: place.path,
            streaming,
            broker,
            offline: args.offline,
            forget_history: args.forget_history,
            deadline: args.deadline,
            log: log::of_store(),
        };
        Ok(Self { address, options, configured, tag: None })
    }

    /// Returns the source of push notifications.
    pub(crate) fn push(&self, said: Option<&Push>) -> Push {
        self.configured.push(said)
    }

    /// True if the repository was named with a tag.
    pub(crate) fn is_tagged(&self) -> bool {
        self.tag.is_some()
    }

    /// Opens the repository: fetches and verifies the head, and fetches the root catalog.
    pub(crate) fn open(self, view: &ViewOptions) -> Result<(Repository, Arc<View>), Failure> {
        let what = format!("can't open {} at {}", self.address.name, self.address.url);
        let (folder, mut view) = (self.options.cache.clone(), view.clone());
        if let Some(tag) = &self.tag {
            if view.pin.is_some() {
                return Err(two_revisions(&format!("{}@{tag}", self.address.name)));
            }
            view.pin = Some(Pin::Tag(tag.clone()));
        }
        watchdog::unless_disk_hangs(&folder, move || self.open_on_its_disk(&what, &view)).unwrap_or_else(
            |error| {
                let failure = Failure::failed(format!("can't open the cache: {error}"));
                Err(failure.hint("check the disk, or name another folder with --cache DIR"))
            },
        )
    }

    fn open_on_its_disk(self, what: &str, view: &ViewOptions) -> Result<(Repository, Arc<View>), Failure> {
        let streaming = self.options.streaming;
        let repository = Repository::open(self.options).map_err(|error| of_store(what, &error))?;
        let mut view = self.configured.applied_to(view);
        // Without a cache, prefetching is useless.
        view.prefetch &= !streaming;
        let options = ViewOptions { sequences: Some(repository.sequences()), ..view.clone() };
        match View::open(repository.store.clone(), repository.heads.clone(), options) {
            Ok(view) => Ok((repository, view)),
            Err(error) => {
                repository.close();
                let failure = of_tree(what, &error);
                let unnamed =
                    error.kind == ErrorKind::NotFound && matches!(view.pin, Some(Pin::Tag(_) | Pin::Date(_)));
                let list =
                    format!("`esker revision --list {}` lists the revisions with names", self.address.url);
                Err(if unnamed { failure.hint(list) } else { failure })
            }
        }
    }
}

/// Returns lines that say where the cache is, and why not elsewhere.
pub(crate) fn place_lines(place: &CacheLocation) -> Vec<String> {
    let chosen = format!("the cache is {}, because of {}", place.path.display(), place.from);
    let passed = place.passed_over.iter().map(|one| format!("passed over: {one}"));
    std::iter::once(chosen).chain(passed).collect()
}

fn master_keys(texts: Vec<(PathBuf, Vec<u8>)>) -> Result<MasterKeys, Failure> {
    let mut keys: Option<MasterKeys> = None;
    for (path, text) in texts {
        let added = match &mut keys {
            Some(keys) => keys.add(&text),
            None => MasterKeys::parse(&text).map(|first| keys = Some(first)),
        };
        added.context(Kind::Usage, format!("{} can't be used as a public key", path.display()))?;
    }
    keys.ok_or_else(|| Failure::usage("there is no public key"))
}

fn blacklist(path: &Path) -> Result<Blacklist, Failure> {
    match std::fs::read(path) {
        Ok(text) => Ok(Blacklist::parse(&text)),
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(Blacklist::default()),
        Err(error) => Err(Failure::usage(format!("can't read the blacklist {}: {error}", path.display()))),
    }
}

/// Returns the options of a mount's view for this user.
pub(crate) fn mount_options(settings: &Settings, view: &ViewArgs, testing: &TestingArgs) -> ViewOptions {
    ViewOptions { pin: view.pin(), ttl: testing.ttl, prefetch: !view.no_prefetch, ..view_options(settings) }
}

/// Returns the options of a view for this user.
pub(crate) fn view_options(settings: &Settings) -> ViewOptions {
    let ownership = if settings.root {
        Ownership::AsPublished
    } else {
        let uid = rustix::process::geteuid().as_raw();
        Ownership::Claim { uid, gid: rustix::process::getegid().as_raw() }
    };
    // Variant symlinks are expanded from the environment, as CernVM-FS does.
    let variables: BTreeMap<String, String> = std::env::vars_os()
        .filter_map(|(name, value)| Some((name.into_string().ok()?, value.into_string().ok()?)))
        .collect();
    ViewOptions { ownership, variables, ..ViewOptions::default() }
}

/// Returns the options of a session.
pub(crate) fn session_options(args: &RepositoryArgs, testing: Option<&TestingArgs>) -> SessionOptions {
    let mut deadlines = Deadlines::default();
    if let Some(deadline) = args.deadline {
        deadlines =
            Deadlines { lookup: deadline, attributes: deadline, list: deadline, read: deadline, ..deadlines };
    }
    let kernel = testing.and_then(|testing| testing.kernel).unwrap_or_default();
    SessionOptions { kernel, deadlines, log: log::of_session(), ..SessionOptions::default() }
}

/// Returns the warning of a view that uses an old head because no server replies.
pub(crate) fn offline_warning(status: &ViewStatus) -> Option<String> {
    let offline = status.offline.as_ref()?;
    let secs = i64::try_from(seconds(offline.since)).unwrap_or(i64::MAX);
    Some(format!(
        "{} is shown at revision {}, which its server last confirmed at {} UTC: {}",
        status.repository,
        status.revision,
        time_text(Time { secs, nanos: 0 }),
        offline.reason
    ))
}
