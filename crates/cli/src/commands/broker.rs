use std::path::{Path, PathBuf};

use esker_cache_share::broker::{BrokerError, BrokerOptions, BrokerSocket, NodeBroker, Readers, Rules};
use esker_confine::{Policy, Role};
use esker_run::take_signals;
use esker_store::{CacheKind, DestinationRule, Destinations, LowerForm};
use rustix::thread::CapabilitySet;

use crate::error::{Context, Failure, Kind, chain, of_store};
use crate::logging::{self, LogArgs};
use crate::output::parse_size;
use crate::process::opener::Openable;
use crate::process::privileges::Service;
use crate::process::{confine, privileges};
use crate::settings::cache::default_quota;
use crate::settings::configuration;
use crate::settings::tiers::tier;
use crate::settings::{BROKER_SOCKET, Settings};

/// Runs the cache broker: one cache for all users of this node.
///
/// The broker runs until it is interrupted. Mounts use the broker of root at the default socket by default, and
/// another one with `--broker SOCKET --broker-user UID`.
///
/// Example: esker broker --quota 50G --allow secret.example.org=gid:2000
#[derive(clap::Args, Debug)]
pub(crate) struct Args {
    /// Cache folder [default: $ESKER_CACHE, or for root /var/lib/esker]
    #[arg(long, value_name = "DIR")]
    cache: Option<PathBuf>,

    /// Allow a cache folder on a network file system
    #[arg(long)]
    cache_on_network: bool,

    /// Maximum size of the cache, like 50G
    #[arg(long, value_name = "SIZE", value_parser = parse_size)]
    quota: Option<u64>,

    /// Folder that is read before the network: a cache of CernVM-FS (like /var/lib/cvmfs/shared) or Esker, or a
    /// preloaded one; not allowed when some repositories are restricted to some users
    #[arg(long, value_name = "DIR")]
    lower: Vec<PathBuf>,

    /// Socket to listen on, in a folder that only this user may write to; the folder is created if needed
    #[arg(long, value_name = "SOCKET", default_value = BROKER_SOCKET)]
    socket: PathBuf,

    /// Additional CA certificates for TLS, beside those of the system: a file or a folder of files
    #[arg(long, value_name = "FILE|DIR")]
    ca: Vec<PathBuf>,

    /// Destination of the broker's connections; `any` leaves out this node and link-local addresses
    #[arg(long, value_name = "any|ADDRESS|NETWORK|NAME", default_value = "any")]
    connect: Vec<DestinationRule>,

    /// User to run as after binding the socket, if root starts it; the cache folder must belong to that user [default:
    /// esker if there is such a user, else ids that no user has]
    #[arg(long, value_name = "USER")]
    user: Option<String>,

    /// Users that may read a repository: all, none, or user and group ids; root may always read it
    #[arg(long, value_name = "NAME=all|none|uid:N,gid:N,…", value_parser = parse_rule)]
    allow: Vec<(String, Readers)>,

    /// Users who may read repositories that no --allow names
    #[arg(long, value_name = "all|none|uid:N,gid:N,…", default_value = "all", value_parser = parse_readers)]
    others: Readers,

    #[command(flatten)]
    pub(crate) log: LogArgs,
}

fn parse_rule(text: &str) -> Result<(String, Readers), String> {
    let (name, readers) =
        text.split_once('=').ok_or_else(|| format!("{text:?} is not like NAME=uid:1000,gid:2000"))?;
    let name = esker_format::name::RepositoryName::parse(name).map_err(|error| error.to_string())?;
    Ok((name.to_string(), parse_readers(readers)?))
}

fn parse_readers(text: &str) -> Result<Readers, String> {
    let (mut uids, mut gids) = (Vec::new(), Vec::new());
    match text {
        "all" => return Ok(Readers::AllUsers),
        "none" => {}
        some => {
            for one in some.split(',') {
                let number = |text: &str| {
                    text.parse().map_err(|_| {
                        format!("{one:?} is not like uid:1000 or gid:2000: names are not known here")
                    })
                };
                match one.split_once(':') {
                    Some(("uid", uid)) => uids.push(number(uid)?),
                    Some(("gid", gid)) => gids.push(number(gid)?),
                    _ => return Err(format!("{one:?} is not all, none, uid:N or gid:N")),
                }
            }
        }
    }
    Ok(Readers::Only { uids, gids })
}

pub(crate) fn run(args: Args, settings: &Settings) -> Result<(), Failure> {
    let account = Service::Broker.account(args.user.as_deref())?;
    let place = settings.cache(args.cache.as_deref(), args.cache_on_network)?;
    let socket = std::path::absolute(&args.socket)
        .context(Kind::Usage, format!("can't listen at {}", args.socket.display()))?;
    make_folder(&socket)?;
    let listening = BrokerSocket::bind(&socket).map_err(of_broker)?;
    let quota = args.quota.unwrap_or_else(|| default_quota(&place));
    let rules = Rules { repositories: args.allow.into_iter().collect(), others: args.others };
    let cache = place.path;
    // Before there are threads: each has privileges of its own.
    // A folder of something else is not given away; opening the cache says whose it is.
    let is_ours = CacheKind::Mounts.foreign_entry(&cache).is_ok_and(|entry| entry.is_none());
    if let Some(account) = account.as_ref().filter(|_| is_ours) {
        let failed = format!("can't give the cache {} to user {}", cache.display(), account.name);
        privileges::give_folder(&cache, account, true).context(Kind::Failed, failed)?;
    }
    // Settings may name authorities anywhere.
    let authorities = configuration::authorities(&configuration::load(settings, None), &args.ca)?;
    let files = authorities.paths.iter().map(Path::new);
    let openable = files.fold(Openable::of_machine(), |openable, file| openable.file(file));
    openable.start(&settings.environment)?;
    // The cache that a CernVM-FS client left is its user's.
    let kept = if args.lower.is_empty() { CapabilitySet::empty() } else { CapabilitySet::DAC_READ_SEARCH };
    privileges::become_user(account.as_ref(), kept)?;
    let policy = confine::of_server(Role::Broker).write(socket.parent().unwrap_or(&socket));
    let policy = confine::with_cache_folder(policy, &cache);
    let policy = args.lower.iter().fold(policy, Policy::reopen);
    let named = || authorities.paths.iter().map(Path::new);
    let policy = named().filter(|path| path.is_dir()).fold(policy, Policy::reopen);
    let policy = logging::connect().into_iter().fold(policy, Policy::send_only);
    // A folder of something else gets no socket; opening the cache says whose it is.
    let listening = if is_ours { listening.with_caches(&cache, &rules) } else { listening };
    confine::enforce(|| policy.prepare(), &settings.environment);
    let (tell, told) = std::sync::mpsc::channel();
    take_signals(&[libc::SIGTERM, libc::SIGINT, libc::SIGHUP], move |_| {
        // The receiver is in the rest of this function.
        let _ = tell.send(());
    })
    .context(Kind::Failed, "can't handle signals")?;
    let lower: Result<Vec<_>, _> =
        args.lower.iter().map(|folder| tier("--lower", folder, LowerForm::Adopted, settings)).collect();
    let lower = lower?;
    if !lower.is_empty() && !rules.are_open() {
        return Err(Failure::usage("--lower may hold objects of restricted repositories")
            .hint("have the broker serve those without --lower"));
    }
    let destinations = Destinations::Named(args.connect);
    let options = BrokerOptions {
        cache: cache.clone(),
        quota,
        lower,
        socket: socket.clone(),
        rules,
        destinations,
        authorities,
    };
    let broker = NodeBroker::start_on(listening, options).map_err(of_broker)?;
    tracing::info!("serving the cache {} at {}", cache.display(), socket.display());
    confine::tell();
    // An error means that all senders are gone, which ends it too.
    let _ = told.recv();
    drop(broker);
    tracing::info!("stopped");
    Ok(())
}

fn of_broker(error: BrokerError) -> Failure {
    match error {
        BrokerError::Store(error) => of_store("can't serve a cache", &error),
        error @ BrokerError::File(_) => Failure::failed(chain(&error))
            .hint("the socket must be in a folder that this user owns and no other user may write to"),
    }
}

/// Makes the folder of the socket, which every user must be able to enter.
fn make_folder(socket: &std::path::Path) -> Result<(), Failure> {
    use std::os::unix::fs::DirBuilderExt;
    let Some(folder) = socket.parent() else { return Ok(()) };
    let made = std::fs::DirBuilder::new().mode(0o755).create(folder);
    match made {
        Err(error) if error.kind() != std::io::ErrorKind::AlreadyExists => {
            Err(Failure::failed(format!("can't make {}: {error}", folder.display())))
        }
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn access_rules_are_parsed() {
        let only = |uids: &[u32], gids: &[u32]| Readers::Only { uids: uids.to_vec(), gids: gids.to_vec() };
        assert_eq!(parse_rule("a.test=uid:1,gid:2,uid:3"), Ok(("a.test".to_owned(), only(&[1, 3], &[2]))));
        assert_eq!(parse_readers("all"), Ok(Readers::AllUsers));
        assert_eq!(parse_readers("none"), Ok(only(&[], &[])));
        for bad in ["", "uid", "uid:root", "uid:-1", "user:1", "uid:1,", "all,none"] {
            assert!(parse_readers(bad).is_err(), "{bad:?} was taken for a rule");
        }
        assert!(parse_rule("a.test").is_err() && parse_rule("../x=all").is_err());
    }
}
