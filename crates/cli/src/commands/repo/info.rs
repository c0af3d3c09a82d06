use std::path::{Path, PathBuf};
use std::time::Duration;

use esker_format::certificate::Certificate;
use esker_format::manifest::{self, Manifest};
use esker_format::master_keys::MasterKeys;
use esker_format::name::RepositoryName;
use esker_format::time::UnixTime;
use esker_maintain::{InfoContext, MirrorServer, Problem, RepositoryInfo, remembered_spool};
use esker_repository::{KeyFolder, ReplicaState, Storage};
use esker_store::StoredFiles as _;

use crate::error::{Failure, Kind, chain, of_store};
use crate::output::{Output, lossy, show, size};
use crate::publisher::{PublisherArgs, now, of_operation};
use crate::settings::Settings;
use crate::settings::public_keys::public_keys;
use crate::transaction::{Transaction, Transactions};

/// Longest wait for one file of a repository at a URL.
const TIMEOUT: Duration = Duration::from_secs(60);

/// Describes a repository: head, signatures, whitelist, tags, settings and keys.
///
/// A part that can't be read is shown with the reason, and the exit code is 0 nevertheless. It is 4 for signatures that are
/// wrong.
///
/// Example: esker repo info sw.example.org
#[derive(clap::Args, Debug)]
pub(crate) struct Args {
    /// Name of a repository in the storage folder, folder of a repository, or URL
    #[arg(value_name = "NAME|DIR|URL")]
    place: String,

    #[command(flatten)]
    publisher: PublisherArgs,

    /// Master public key or a folder of them, to verify the signatures with [default: those that a replica was made with,
    /// NAME.pub in the keys folder, else /etc/cvmfs/keys]
    #[arg(long, value_name = "FILE|DIR")]
    public_key: Vec<PathBuf>,

    /// Folder of open transactions [default: as of `esker transaction`]
    #[arg(long, value_name = "DIR")]
    transactions: Option<PathBuf>,

    /// Ask the servers of a replica for their newest revision
    #[arg(long)]
    online: bool,

    /// Print JSON
    #[arg(long)]
    json: bool,
}

pub(super) fn run(args: &Args, settings: &Settings) -> Result<(), Failure> {
    let info = if args.place.contains("://") { remote(args, settings)? } else { local(args, settings)? };
    show(args.json, &info, |out| print(out, &info))?;
    match info.signatures_verified {
        Some(false) => {
            Err(Failure::new(Kind::Damaged, format!("the signatures of {} are wrong", info.place)))
        }
        _ => Ok(()),
    }
}

fn remote(args: &Args, settings: &Settings) -> Result<RepositoryInfo, Failure> {
    let url = args.place.trim_end_matches('/');
    let files = MirrorServer::new(url, Some(TIMEOUT))
        .map_err(|error| of_store(&format!("can't use {url}"), &error))?;
    let name = url.rsplit('/').next().and_then(|last| RepositoryName::parse(last).ok());
    let (keys, refused) = keys(args, name.as_ref(), None, settings);
    let context = InfoContext { place: url.to_owned(), name, keys, own: None, now: now() };
    let mut info = RepositoryInfo::read(&files, &context);
    info.problems.extend(refused);
    if info.revision.is_none() {
        let why = info.problems.first().map(|problem| problem.text.clone()).unwrap_or_default();
        return Err(Failure::failed(format!("there is no repository at {url}: {why}")));
    }
    Ok(info)
}

fn local(args: &Args, settings: &Settings) -> Result<RepositoryInfo, Failure> {
    let named = Path::new(&args.place);
    let is_folder = args.place.contains('/') || named.join(manifest::PATH).exists();
    let (root, name) = if is_folder {
        let root = std::path::absolute(named)?;
        (root.clone(), name_of(&root))
    } else {
        let name = RepositoryName::parse(&args.place).map_err(|error| Failure::usage(error.to_string()))?;
        (args.publisher.root(&name, settings)?, Some(name))
    };
    if !root.is_dir() {
        return Err(Failure::usage(format!("there is no repository in {}", root.display()))
            .hint("`esker repo list` lists those in the storage folder; --storage DIR names another one"));
    }
    let folder = name.as_ref().and_then(|name| args.publisher.keys(name, settings).ok());
    let (own, mut refused) = own_certificate(folder.as_ref());
    // A replica is verified with the keys that it was made with, whatever keys this machine has.
    let replica = ReplicaState::read(&root).ok().flatten().filter(|_| args.public_key.is_empty());
    let (keys, unread) = match replica.and_then(|replica| replica.master_keys().ok()) {
        Some(keys) => (Some(keys), Vec::new()),
        None => keys(args, name.as_ref(), folder.as_ref(), settings),
    };
    refused.extend(unread);
    let storage = Storage::open(&root).map_err(|error| of_operation("can't open the storage", &error))?;
    let place = storage.describe();
    let context = InfoContext { place, name: name.clone(), keys, own, now: now() };
    let mut info = RepositoryInfo::read(&**storage.sink(), &context);
    info.problems.extend(refused);
    info.add_replica(&root);
    if info.replica.is_none() {
        info.add_publisher(&root, folder.as_ref());
    } else if args.online {
        ask_upstream(&mut info);
    }
    let spool =
        name.clone().and_then(|name| settings.spool(&name, &root)).or_else(|| remembered_spool(&root));
    let marker = spool.map(|spool| spool.join("in_transaction.lock")).filter(|marker| marker.exists());
    info.transactions.extend(marker.map(|marker| marker.display().to_string()));
    let open = settings.transactions(args.transactions.as_deref()).map(Transactions::new);
    if let (Ok(open), Some(name)) = (open, &info.repository) {
        info.transactions.extend(open.of_repository(name).iter().map(Transaction::line));
    }
    Ok(info)
}

/// Asks the servers of a replica for their head, the first that answers.
fn ask_upstream(info: &mut RepositoryInfo) {
    let servers = info.replica.as_ref().map(|replica| replica.servers.clone()).unwrap_or_default();
    let mut refused = String::new();
    for url in servers.split(';') {
        let read = MirrorServer::new(url, Some(TIMEOUT));
        let read = read.and_then(|files| files.read(manifest::PATH, 1 << 20));
        match read.map(|bytes| bytes.and_then(|bytes| Manifest::parse(&bytes).ok())) {
            Ok(Some(head)) => return info.add_upstream(&head),
            Ok(None) => refused = format!("{url} has no manifest"),
            Err(error) => refused = chain(&error),
        }
    }
    info.problems.push(Problem { part: "replica", text: refused });
}

/// Returns the name in the manifest of a folder, or that of the folder.
fn name_of(root: &Path) -> Option<RepositoryName> {
    let storage = Storage::open(root).ok();
    let read = storage.and_then(|storage| storage.sink().read(manifest::PATH, 1 << 20).ok().flatten());
    let name = read.and_then(|bytes| Manifest::parse(&bytes).ok()?.name);
    let folder = || root.file_name().map(|last| lossy(last.as_encoded_bytes()));
    RepositoryName::parse(&name.or_else(folder)?).ok()
}

fn own_certificate(folder: Option<&KeyFolder>) -> (Option<Certificate>, Vec<Problem>) {
    let Some(path) = folder.map(KeyFolder::certificate_file).filter(|path| path.exists()) else {
        return (None, Vec::new());
    };
    let read = std::fs::read(&path).map_err(|error| error.to_string());
    match read.and_then(|text| Certificate::parse(&text).map_err(|error| error.to_string())) {
        Ok(certificate) => (Some(certificate), Vec::new()),
        Err(why) => {
            let text = format!("{}: {why}", path.display());
            (None, vec![Problem { part: "own certificate", text }])
        }
    }
}

/// Finds the master public keys: named ones, the publisher's, those of this machine.
fn keys(
    args: &Args,
    name: Option<&RepositoryName>,
    folder: Option<&KeyFolder>,
    settings: &Settings,
) -> (Option<MasterKeys>, Vec<Problem>) {
    let refused = |text: String| (None, vec![Problem { part: "public key", text }]);
    if let Some(folder) = folder.filter(|_| args.public_key.is_empty())
        && folder.public_key_file().exists()
    {
        return match folder.public() {
            Ok(keys) => (Some(keys), Vec::new()),
            Err(error) => refused(crate::error::chain(&error)),
        };
    }
    let Some(name) = name else { return (None, Vec::new()) };
    match public_keys(&args.public_key, name.as_str(), settings) {
        Err(_) if args.public_key.is_empty() => (None, Vec::new()),
        Err(failure) => refused(failure.message),
        Ok(files) => {
            let text: Vec<u8> =
                files.into_iter().flat_map(|(_, text)| text.into_iter().chain(*b"\n")).collect();
            match MasterKeys::parse(&text) {
                Ok(keys) => (Some(keys), Vec::new()),
                Err(error) => refused(error.to_string()),
            }
        }
    }
}

fn print(out: &mut Output, info: &RepositoryInfo) -> Result<(), Failure> {
    let name = info.repository.clone().unwrap_or_else(|| "a repository".to_owned());
    let title = out.name(format!("{name} — {}", info.place).as_bytes()).into_owned();
    out.line(out.bold(&lossy(&title)))?;
    let time = |seconds: i64| UnixTime(seconds).to_string();
    let mut lines: Vec<(&str, String)> = Vec::new();
    if let Some(revision) = info.revision {
        let published = info.published.map(time).unwrap_or_default();
        lines.push(("revision", format!("{revision}, signed {published}")));
    }
    if let Some(root) = &info.root_hash {
        let bytes = info.root_catalog_bytes.map(|bytes| format!(" ({})", size(bytes))).unwrap_or_default();
        lines.push(("root catalog", format!("{root}{bytes}")));
    }
    let yes = |value: bool| if value { "yes" } else { "no" }.to_owned();
    lines.extend(info.ttl.map(|ttl| ("TTL", format!("{ttl} s"))));
    lines.extend(info.hash_algorithm.clone().map(|algorithm| ("hashes", algorithm)));
    lines.extend(info.garbage_collectable.map(|value| ("collectable", yes(value))));
    lines.extend(
        info.signatures_verified
            .map(|value| ("signatures", if value { "verified" } else { "wrong" }.to_owned())),
    );
    if let Some(list) = &info.whitelist {
        let how = if list.expired { "expired at" } else { "valid until" };
        let count = list.certificates.len();
        lines.push((
            "whitelist",
            format!("{how} {}, {count} certificate{}", time(list.expires), plural(count)),
        ));
    }
    if let Some(certificate) = &info.certificate {
        lines.push(("certificate", certificate.fingerprint.clone()));
        lines.push(("", format!("{}, until {}", certificate.subject, time(certificate.expires))));
    }
    if let Some(tags) = info.tags {
        let branches = info.branches.filter(|branches| *branches > 1);
        let branches = branches.map(|branches| format!(" on {branches} branches")).unwrap_or_default();
        lines.push(("tags", format!("{tags}{branches}")));
    }
    lines.extend(info.reflog_entries.map(|entries| ("reflog", format!("{entries} objects"))));
    if let Some(replica) = &info.replica {
        lines.push(("replica of", esker_store::without_passwords(&replica.servers)));
        let source = if replica.online { "the server has" } else { "at the last run, the server had" };
        let lag = replica.lag_seconds.filter(|_| replica.behind > 0);
        let lag = lag.map(|lag| format!(", signed {lag} s later")).unwrap_or_default();
        lines.push((
            "lag",
            format!("{} revisions; {source} revision {}{lag}", replica.behind, replica.upstream_revision),
        ));
        if !replica.paths.is_empty() {
            lines.push(("only the paths", replica.paths.join(" ")));
        }
        lines.extend(replica.revisions.map(|number| ("tagged revisions", format!("the newest {number}"))));
        for skipped in &replica.left_out {
            let which = match skipped.tags.is_empty() {
                true => "a revision without a tag".to_owned(),
                false => format!("revision {} ({})", skipped.revision, skipped.tags.join(", ")),
            };
            lines.push(("left out", out.warning(&format!("{which}: {}", skipped.reason))));
        }
        let failed = replica.failure.as_ref();
        lines.extend(
            failed.map(|why| {
                ("last run", out.warning(&format!("failed at {}: {why}", time(replica.attempted))))
            }),
        );
    }
    for (label, text) in [
        ("last collection", &info.last_gc),
        ("last replication", &info.last_snapshot),
        ("last check", &info.last_check),
    ] {
        lines.extend(text.clone().map(|text| (label, text)));
    }
    lines.extend(info.master_replica.map(|value| ("may be replicated", yes(value))));
    lines.extend(info.transactions.iter().map(|marker| ("in transaction", marker.clone())));
    let changed = info.settings.iter().filter(|setting| !setting.default);
    let changed: Vec<_> =
        changed.filter_map(|setting| Some(format!("{}={}", setting.name, setting.value.as_ref()?))).collect();
    if !info.settings.is_empty() {
        lines.push(("settings", if changed.is_empty() { "as new".to_owned() } else { changed.join(" ") }));
    }
    for key in &info.keys {
        let state = match (&key.mode, key.encrypted) {
            (None, _) => "not here".to_owned(),
            (Some(mode), Some(true)) => format!("mode {mode}, with passphrase"),
            (Some(mode), _) => format!("mode {mode}"),
        };
        lines.push((key.role, format!("{} ({state})", key.path.display())));
    }
    lines.extend(info.problems.iter().map(|problem| (problem.part, out.warning(&problem.text))));
    for (label, text) in lines {
        let line = out.name(format!("  {label:<20} {text}").as_bytes()).into_owned();
        out.line(line)?;
    }
    for warning in &info.warnings {
        out.line(format!("  {}", out.warning(&format!("warning: {warning}"))))?;
    }
    Ok(())
}

fn plural(count: usize) -> &'static str {
    if count == 1 { "" } else { "s" }
}
