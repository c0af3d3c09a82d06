//! Arguments that several commands share.

use std::ffi::OsString;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::time::Duration;

use esker_cache_share::BrokerAddress;
use esker_format::hash::ContentHash;
use esker_format::time::UnixTime;
use esker_fuse::KernelMask;
use esker_node::push::Push;
use esker_store::Order;
use esker_view::Pin;

use super::address::{path_at, split_tag, two_revisions};
use super::folders::{BROKER_SOCKET, MEMORY};
use super::tiers::{CACHE, TierArgs};
use crate::error::{Context, Failure, Kind};
use crate::output::{lossy, parse_duration, parse_size};
use crate::publisher::PublisherArgs;

/// Headings of the options in help.
const SERVERS: &str = "Servers and keys";
const REVISION: &str = "Revision";

/// Options for reaching and trusting a repository.
#[derive(clap::Args, Clone, Debug, Default)]
pub(crate) struct RepositoryArgs {
    /// Master public key: a file, a folder of *.pub files, or a CernVM-FS keys folder [default: as configured, or
    /// /etc/cvmfs/keys]
    #[arg(long, value_name = "FILE|DIR", help_heading = SERVERS)]
    pub(crate) public_key: Vec<PathBuf>,

    /// Fallback server, in order; with a NAME, replaces the configured ones
    #[arg(long, value_name = "URL", help_heading = SERVERS)]
    pub(crate) server: Vec<String>,

    /// Proxies: `|` separates proxies that share the load, `;` separates groups tried in order, DIRECT means no proxy;
    /// `http://USER:PASSWORD@HOST:PORT` authenticates
    #[arg(long, value_name = "GROUPS", help_heading = SERVERS)]
    pub(crate) proxy: Option<String>,

    /// Additional CA certificates for TLS, beside those of the system: a file or a folder of files
    #[arg(long, value_name = "FILE|DIR", help_heading = SERVERS)]
    pub(crate) ca: Vec<PathBuf>,

    /// Server for external data: files are requested by their path in the repository
    #[arg(long = "external-server", alias = "external", value_name = "URL", help_heading = SERVERS)]
    pub(crate) external: Vec<String>,

    /// Use HTTP/1.1 even with servers that offer HTTP/2 over TLS
    #[arg(long, help_heading = SERVERS)]
    pub(crate) no_http2: bool,

    /// Order in which servers are tried: as given, by measured round-trip time, or by distance (Geo-API of a server)
    /// [default: as configured, or given]
    #[arg(long, value_name = "given|round-trip|geo", help_heading = SERVERS)]
    pub(crate) server_order: Option<Order>,

    /// Fully qualified name of the repository, if the URL does not end with it
    #[arg(long, value_name = "NAME", help_heading = SERVERS)]
    pub(crate) fqrn: Option<String>,

    /// Cache folder, which mounts of one user may share, or `ram` for a cache in memory that ends with the mount
    /// [default: $ESKER_CACHE, or a folder in $SLURM_TMPDIR, $TMPDIR, /var/tmp or /tmp; for root /var/lib/esker]
    #[arg(long, value_name = "DIR|ram", help_heading = CACHE)]
    pub(crate) cache: Option<PathBuf>,

    /// Allow a cache folder on a network file system
    #[arg(long, help_heading = CACHE)]
    pub(crate) cache_on_network: bool,

    #[command(flatten)]
    pub(crate) tiers: TierArgs,

    /// Stream file contents uncached, for data that is read once
    #[arg(long, help_heading = CACHE)]
    pub(crate) streaming: bool,

    /// Socket of the broker whose cache to use [default: /run/esker-broker/socket of root, if it exists and no --cache
    /// is given]
    #[arg(long, value_name = "SOCKET", help_heading = CACHE)]
    broker: Option<PathBuf>,

    /// Trust a broker of this user id too
    #[arg(long, value_name = "UID", help_heading = CACHE)]
    broker_user: Option<u32>,

    /// Do not use a broker
    #[arg(long, conflicts_with_all = ["broker", "broker_user"], help_heading = CACHE)]
    no_broker: bool,

    /// Print the cache folder and the reason for choosing it
    #[arg(short, long, help_heading = CACHE)]
    pub(crate) verbose: bool,

    /// Maximum size of the cache, like 500M or 20GiB
    #[arg(long, value_name = "SIZE", value_parser = parse_size, help_heading = CACHE)]
    pub(crate) quota: Option<u64>,

    /// Mount the last accepted revision without asking a server for a newer one
    #[arg(long, help_heading = SERVERS)]
    pub(crate) offline: bool,

    /// Accept a recreated repository whose revision is older than the last accepted one
    #[arg(long, help_heading = SERVERS)]
    pub(crate) forget_history: bool,

    /// Time without progress after which a request moves to another proxy or server
    #[arg(long, value_name = "DURATION", hide = true, value_parser = parse_duration)]
    pub(crate) timeout: Option<Duration>,

    /// Time after which a failed proxy or server is tried again
    #[arg(long, value_name = "DURATION", hide = true, value_parser = parse_duration)]
    pub(crate) reset_after: Option<Duration>,

    /// Time without progress after which a read fails
    #[arg(long, value_name = "DURATION", hide = true, value_parser = parse_duration)]
    pub(crate) deadline: Option<Duration>,
}

impl RepositoryArgs {
    /// Creates the options with which the publisher of `name` mounts it from its own folder.
    pub(crate) fn of_publisher(name: &str, public_key: PathBuf) -> Self {
        let (public_key, fqrn) = (vec![public_key], Some(name.to_owned()));
        Self { public_key, fqrn, no_broker: true, ..Self::default() }
    }

    /// Returns the arguments with absolute paths, for a process in another directory, and for comparing them.
    pub(crate) fn absolute(&self) -> Result<Self, Failure> {
        let mut all = self.clone();
        let cache = all.cache.iter_mut().filter(|folder| **folder != Path::new(MEMORY));
        let named = all.public_key.iter_mut().chain(&mut all.ca).chain(cache).chain(&mut all.broker);
        for path in named.chain(all.tiers.paths()) {
            let unknown = format!("can't tell where {} is", path.display());
            *path = std::path::absolute(&*path).context(Kind::Usage, unknown)?;
        }
        Ok(all)
    }

    /// Returns the arguments without a broker.
    pub(crate) fn without_broker(self) -> Self {
        Self { broker: None, broker_user: None, no_broker: true, ..self }
    }

    /// True if a broker is named.
    pub(crate) fn names_broker(&self) -> bool {
        self.broker.is_some()
    }

    /// Returns the broker to use. A cache folder on the command line excludes it.
    pub(crate) fn broker(&self) -> Option<BrokerAddress> {
        let (socket, is_named) = match (&self.broker, &self.cache) {
            _ if self.no_broker => return None,
            (Some(named), _) => (named.clone(), true),
            _ if self.tiers.any() => return None,
            (None, Some(_)) => return None,
            (None, None) => (PathBuf::from(BROKER_SOCKET), false),
        };
        let trusted = std::iter::once(0).chain(self.broker_user).collect();
        Some(BrokerAddress { socket, trusted, is_named })
    }
}

/// Options that select the revision to show; the newest by default.
#[derive(clap::Args, Clone, Debug, Default)]
#[group(multiple = false)]
pub(crate) struct PinArgs {
    /// Mount the revision with this tag; `esker revision --list` lists the tags
    #[arg(long, value_name = "NAME", help_heading = REVISION)]
    tag: Option<String>,

    /// Mount the newest tagged revision of this date (UTC), like 2026-01-31 or 2026-01-31T12:00:00Z
    #[arg(long, value_name = "DATE", value_parser = date, help_heading = REVISION)]
    date: Option<UnixTime>,

    /// Mount this root catalog hash, without checking that it was published
    #[arg(long, value_name = "HASH", help_heading = REVISION)]
    root_hash: Option<ContentHash>,
}

impl PinArgs {
    /// Returns the pinned revision, if the options name one.
    pub(crate) fn pin(&self) -> Option<Pin> {
        let tag = self.tag.clone().map(Pin::Tag);
        tag.or(self.date.map(Pin::Date)).or(self.root_hash.map(Pin::Root))
    }
}

fn push(text: &str) -> Result<Push, String> {
    match text {
        "server" => Ok(Push::Server),
        "off" => Ok(Push::Off),
        url if url.starts_with("http://") || url.starts_with("https://") => {
            Ok(Push::Notifications(url.to_owned()))
        }
        _ => Err(format!("{text:?} is neither `server` nor `off` nor a URL")),
    }
}

fn date(text: &str) -> Result<UnixTime, String> {
    let bad = || format!("{text:?} is not a date: write it like 2026-01-31 or 2026-01-31T12:00:00Z");
    UnixTime::parse_iso(text).ok_or_else(bad)
}

/// Options for the revision that a mount shows and for what it fetches.
#[derive(clap::Args, Clone, Debug)]
pub(crate) struct ViewArgs {
    #[command(flatten)]
    pin: PinArgs,

    /// Stay at the current revision; programs start faster, because the kernel caches more
    #[arg(long, help_heading = REVISION)]
    pub(crate) fixed: bool,

    /// Source of revision events: `server` is the repository's own server, if it is reached directly and sends them; a
    /// URL is a CernVM-FS notification server [default: as configured, or server]
    #[arg(long, value_name = "server|off|URL", value_parser = push, help_heading = REVISION)]
    pub(crate) push: Option<Push>,

    /// Disable prefetching
    #[arg(long, help_heading = REVISION)]
    pub(crate) no_prefetch: bool,
}

impl ViewArgs {
    /// Returns the pinned revision, or none for the newest.
    pub(crate) fn pin(&self) -> Option<Pin> {
        self.pin.pin().or(self.fixed.then_some(Pin::Head))
    }

    /// Refuses options that name a revision of one repository where several are mounted.
    pub(crate) fn refuse_single_revision(&self) -> Result<(), Failure> {
        let option = match self.pin.pin() {
            Some(Pin::Tag(_)) => "--tag",
            Some(Pin::Root(_)) => "--root-hash",
            Some(Pin::Date(_) | Pin::Head) | None => return Ok(()),
        };
        Err(Failure::usage(format!("{option} names a revision of one repository, and several are mounted"))
            .hint("use --date, which selects a revision of each"))
    }

    /// Refuses options that name a revision of something other than a repository; an image in one is that of its head.
    pub(crate) fn refuse_revision(&self, what: &str) -> Result<(), Failure> {
        let option = match self.pin.pin() {
            Some(Pin::Tag(_)) => "--tag",
            Some(Pin::Date(_)) => "--date",
            Some(Pin::Root(_)) => "--root-hash",
            Some(Pin::Head) | None => return Ok(()),
        };
        Err(Failure::usage(format!("{option} names a revision of a repository, and {what} is none"))
            .hint("leave it out"))
    }
}

/// Options for tests.
#[derive(clap::Args, Clone, Debug)]
pub(crate) struct TestingArgs {
    /// Use only features of this kernel version
    #[arg(long, value_name = "4.18|5.14|6.18", hide = true)]
    pub(crate) kernel: Option<KernelMask>,

    /// Time between two checks for a new revision
    #[arg(long, value_name = "DURATION", hide = true, value_parser = parse_duration)]
    pub(crate) ttl: Option<Duration>,
}

/// Path in a repository, for the commands that read without mounting.
#[derive(clap::Args, Clone, Debug)]
pub(crate) struct PlaceArgs {
    /// Repository and path, separated by a colon: http://server/cvmfs/NAME:/path, NAME:/path or NAME@TAG:/path; NAME is
    /// configured, or published from this machine
    #[arg(value_name = "URL|NAME[@TAG][:/PATH]")]
    place: OsString,

    /// Path, if the first argument has none
    #[arg(value_name = "PATH")]
    path: Option<OsString>,

    #[command(flatten)]
    pin: PinArgs,

    #[command(flatten)]
    pub(crate) repository: RepositoryArgs,

    /// Options that say where a NAME published from this machine is looked up.
    #[command(flatten)]
    pub(crate) published: PublisherArgs,
}

/// A repository and a path in it, as the arguments name them.
pub(crate) struct Located<'a> {
    /// The URL or the name.
    pub(crate) repository: &'a str,
    /// The path in the repository.
    pub(crate) path: &'a [u8],
    /// Pinned revision, if the command line names one.
    pub(crate) pin: Option<Pin>,
}

impl PlaceArgs {
    /// Creates the arguments for a repository that another argument names.
    pub(crate) fn of(place: String, repository: RepositoryArgs) -> Self {
        let (pin, published) = Default::default();
        Self { place: place.into(), path: None, repository, pin, published }
    }

    /// Splits the place into repository, revision and path; the path is the root if none is given.
    pub(crate) fn locate(&self) -> Result<Located<'_>, Failure> {
        let place = self.place.as_bytes();
        let (url, after) = match path_at(place) {
            Some(at) => (&place[..at], Some(&place[at + 1..])),
            None => (place, None),
        };
        let path = match (after, &self.path) {
            (None, Some(path)) => path.as_bytes(),
            (after, None) => after.unwrap_or(b"/"),
            (Some(_), Some(_)) => {
                return Err(Failure::usage("there are two paths: one after the URL and one of its own"));
            }
        };
        let url = std::str::from_utf8(url)
            .map_err(|_| Failure::usage(format!("{} is not the address of a repository", lossy(url))))?;
        let pin = self.pin.pin();
        Ok(match split_tag(url)? {
            (url, None) => Located { repository: url, path, pin },
            (_, Some(_)) if pin.is_some() => return Err(two_revisions(url)),
            (repository, Some(tag)) => Located { repository, path, pin: Some(Pin::Tag(tag.to_owned())) },
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_may_have_a_tag() {
        #[derive(clap::Parser)]
        struct Call {
            #[command(flatten)]
            place: PlaceArgs,
        }
        let locate = |words: &[&str]| {
            let line = std::iter::once("ls").chain(words.iter().copied());
            let call = <Call as clap::Parser>::try_parse_from(line).expect("a call");
            let found = call.place.locate().map_err(|failure| failure.message);
            found.map(|found| {
                (found.repository.to_owned(), found.path.to_vec(), found.pin.map(|pin| format!("{pin:?}")))
            })
        };
        let tag = |tag: &str| Some(format!("{:?}", Pin::Tag(tag.to_owned())));
        let place = |name: &str, path: &str, pin| Ok((name.to_owned(), path.as_bytes().to_vec(), pin));
        assert_eq!(locate(&["a.test@v1:/x"]), place("a.test", "/x", tag("v1")));
        let time = "generic-2026-11-27T08:00:00Z";
        assert_eq!(locate(&[&format!("a.test@{time}:/x")]), place("a.test", "/x", tag(time)));
        assert_eq!(locate(&["a.test@v1", "/x"]), place("a.test", "/x", tag("v1")));
        assert_eq!(locate(&["a.test:/x@y"]), place("a.test", "/x@y", None));
        assert_eq!(locate(&["http://u@h/a.test:/x"]), place("http://u@h/a.test", "/x", None));
        assert_eq!(locate(&["http://u@h/a.test@v1:/x"]), place("http://u@h/a.test", "/x", tag("v1")));
        assert_eq!(locate(&["/srv/a.test@v1:/x"]), place("/srv/a.test", "/x", tag("v1")));
        assert_eq!(locate(&["http://u@h.org:/x"]), place("http://u@h.org", "/x", None));
        assert!(locate(&["a.test@v1:/x", "--tag", "v2"]).is_err_and(|said| said.contains("two revisions")));
        assert!(locate(&["a.test@:/x"]).is_err_and(|said| said.contains("no tag")));
    }
}
