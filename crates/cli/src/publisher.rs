//! What the commands of a publisher share: where repositories and keys lie, what was done, how it fails.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{SystemTime, UNIX_EPOCH};

use esker_admin::{
    AdminError, BundleCounts, Deflate, How, KeyFolder, Progress, Report, Repository, TagRequest,
};
use esker_format::name::RepositoryName;
use esker_format::time::UnixTime;
use esker_format::trust::TrustError;
use esker_run::take_signals;

use crate::commands::profile;
use crate::exit::{Context, Failure, Kind, chain, of_store, warn};
use crate::output::{Output, size};
use crate::settings::Settings;

/// Where a repository and its keys are.
#[derive(clap::Args, Clone, Debug)]
pub(crate) struct PublisherArgs {
    /// Folder of repositories, each in a folder of its name; or the folder of this one [default: /srv/cvmfs for
    /// root, else ~/.local/share/esker/repositories]
    #[arg(long, value_name = "DIR")]
    storage: Option<PathBuf>,

    /// Folder of the keys NAME.key, NAME.crt, NAME.pub and NAME.masterkey [default: /etc/cvmfs/keys for root, else
    /// ~/.config/esker/keys]
    #[arg(long, value_name = "DIR")]
    keys: Option<PathBuf>,
}

/// A repository of ours, by name.
pub(crate) struct Place {
    pub(crate) name: RepositoryName,
    pub(crate) root: PathBuf,
    pub(crate) keys: KeyFolder,
    /// Where CernVM-FS has its state, if it may publish to the repository too.
    spool: Option<PathBuf>,
}

impl PublisherArgs {
    pub(crate) fn place(&self, name: &str, settings: &Settings) -> Result<Place, Failure> {
        let name = RepositoryName::parse(name).context(Kind::Usage, "can't use this name")?;
        let root = Repository::locate(&settings.storage(self.storage.as_deref())?, &name);
        let keys = KeyFolder::new(settings.publisher_keys(self.keys.as_deref())?, &name);
        keys.exposed().iter().for_each(|key| warn_of_key(key));
        let spool = settings.spool(&name, &root);
        Ok(Place { name, root, keys, spool })
    }
}

/// Says that a private key is not private.
pub(crate) fn warn_of_key(key: &Path) {
    let key = key.display();
    warn(Some(&format!(
        "other users can read or change the private key {key}, and sign in your name; use `chmod 400 {key}`"
    )));
}

impl Place {
    pub(crate) fn open(&self) -> Result<Repository, Failure> {
        let failed = |error| of_admin(&format!("can't open {} for publishing", self.name), &error);
        let opened = Repository::open(&self.root, &self.name, self.keys.clone(), now());
        let mut repository = opened.map_err(failed)?;
        if let Some(spool) = &self.spool {
            repository.share_with_spool(spool).map_err(failed)?;
        }
        Ok(repository)
    }
}

/// How a publish is done and told of.
#[derive(clap::Args, Clone, Debug)]
pub(crate) struct HowArgs {
    /// Name of a tag for the new revision [default: generic-TIME]
    #[arg(long, value_name = "NAME")]
    pub(crate) tag: Option<String>,

    /// What the tag is about
    #[arg(long, value_name = "TEXT", requires = "tag")]
    pub(crate) message: Option<String>,

    /// A profile to keep with the repository: its bundles are written now and in every later revision
    #[arg(long, value_name = "FILE")]
    pub(crate) profile: Vec<PathBuf>,

    /// Say what would be done, and do nothing
    #[arg(long)]
    pub(crate) dry_run: bool,

    /// The zlib encoder: fast, or stock, whose objects get the same names as those of CernVM-FS
    #[arg(long, value_name = "fast|stock")]
    pub(crate) deflate: Option<DeflateArg>,

    /// Number of threads that compress [default: one for each core]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u16).range(1..))]
    pub(crate) threads: Option<u16>,

    /// Show no progress
    #[arg(long)]
    pub(crate) quiet: bool,

    /// Print the report as JSON
    #[arg(long)]
    pub(crate) json: bool,
}

#[derive(Clone, Copy, Debug, clap::ValueEnum)]
pub(crate) enum DeflateArg {
    Fast,
    Stock,
}

impl From<DeflateArg> for Deflate {
    fn from(arg: DeflateArg) -> Self {
        match arg {
            DeflateArg::Fast => Deflate::Fast,
            DeflateArg::Stock => Deflate::Stock,
        }
    }
}

impl HowArgs {
    /// What the library has to know of it.
    pub(crate) fn how<'p>(
        &self,
        stop: Arc<AtomicBool>,
        progress: &'p mut dyn FnMut(Progress),
    ) -> Result<How<'p>, Failure> {
        let description = self.message.clone().unwrap_or_default();
        let profiles = self.profile.iter().map(|file| profile::read(file)).collect::<Result<_, _>>()?;
        Ok(How {
            tag: TagRequest { name: self.tag.clone(), description },
            threads: self.threads(),
            stop,
            profiles,
            progress,
        })
    }

    fn threads(&self) -> usize {
        let cores = || std::thread::available_parallelism().map_or(1, usize::from);
        self.threads.map_or_else(cores, usize::from)
    }
}

/// The time that a revision gets.
pub(crate) fn now() -> UnixTime {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    UnixTime(i64::try_from(since.as_secs()).unwrap_or(i64::MAX))
}

/// Set when the user wants the command to end; it then ends at the next point where nothing is half done.
pub(crate) fn stop_on_signals() -> Result<Arc<AtomicBool>, Failure> {
    let stop = Arc::new(AtomicBool::new(false));
    let set = stop.clone();
    take_signals(&[libc::SIGTERM, libc::SIGINT, libc::SIGHUP], move |_| set.store(true, Ordering::Relaxed))
        .context(Kind::Failed, "can't take over signals")?;
    Ok(stop)
}

/// Prints what was done.
pub(crate) fn print_report(report: &Report, dry_run: bool, json: bool) -> Result<(), Failure> {
    let mut out = Output::new();
    if json {
        out.json(report)?;
        return out.finish();
    }
    let differences = &report.differences;
    let (added, changed, removed) =
        (differences.added.total(), differences.changed.total(), differences.removed.total());
    let summary = format!(
        "{added} added, {changed} changed, {removed} removed, {} unchanged",
        differences.unchanged.total()
    );
    if dry_run {
        out.line(format!("would publish: {summary}"))?;
        out.line(format!("would read     {} files, {}", report.files_read, size(report.bytes_read)))?;
        return out.finish();
    }
    if report.published {
        out.line(out.bold(&format!("revision {}", report.revision)))?;
        out.line(format!("  root      {}", report.root))?;
        if let Some(tag) = &report.tag {
            out.line(format!("  tag       {tag}"))?;
        }
    } else {
        out.line(format!("nothing changed; revision {} stays", report.revision))?;
    }
    out.line(format!("  entries   {summary}"))?;
    if differences.xattrs_left_out > 0 {
        let text = format!(
            "{} extended attributes were left out, since catalogs hold none that are longer than 255 bytes or have no \
             proper name",
            differences.xattrs_left_out
        );
        out.line(format!("  {}", out.warning(&text)))?;
    }
    if report.bundles.bundles > 0 {
        let BundleCounts { bundles, files, files_missing } = report.bundles;
        let missing =
            if files_missing > 0 { format!("; {files_missing} more are not there") } else { String::new() };
        out.line(format!("  bundles   {bundles}, of {files} files{missing}"))?;
    }
    for warning in &report.warnings {
        out.line(format!("  {}", out.warning(warning)))?;
    }
    out.line(format!("  read      {} files, {}", report.files_read, size(report.bytes_read)))?;
    out.line(format!(
        "  stored    {} objects, {}; {} were there already, {}",
        report.objects_stored,
        size(report.object_bytes_stored),
        report.objects_present,
        size(report.object_bytes_present)
    ))?;
    out.line(format!("  catalogs  {} written, {}", report.catalogs_written, size(report.catalog_bytes)))?;
    let seconds = &report.seconds;
    out.line(format!(
        "  time      {:.1} s: compare {:.1}, store {:.1}, catalogs {:.1}, commit {:.1}",
        seconds.total, seconds.scan, seconds.store, seconds.catalogs, seconds.commit
    ))?;
    out.finish()
}

/// A failure of a publisher's command.
pub(crate) fn of_admin(what: &str, error: &AdminError) -> Failure {
    let kind = match error {
        AdminError::Storage(error) => return of_store(what, error),
        AdminError::Interrupted => Kind::Interrupted,
        AdminError::NoRepository(_)
        | AdminError::Exists(_)
        | AdminError::Key { .. }
        | AdminError::NoKey { .. }
        | AdminError::PublicKey { .. }
        | AdminError::Certificate { .. }
        | AdminError::OtherMaster { .. }
        | AdminError::StillNeeded { .. }
        | AdminError::NotListed(_)
        | AdminError::Target { .. }
        | AdminError::Settings { .. }
        | AdminError::Profile { .. }
        | AdminError::NoProfile(_)
        | AdminError::Tag(_)
        | AdminError::Dirtab { .. } => Kind::Usage,
        AdminError::Untrusted { .. }
        | AdminError::Missing { .. }
        | AdminError::Corrupt { .. }
        | AdminError::Compressed { .. }
        | AdminError::Catalog { .. }
        | AdminError::History(_)
        | AdminError::Reflog(_) => Kind::Damaged,
        _ => Kind::Failed,
    };
    let failure = Failure::new(kind, format!("{what}: {}", chain(error)));
    match error {
        AdminError::NoRepository(_) => {
            failure.hint("make one with `esker repo create NAME`, or name its folder with --storage DIR")
        }
        AdminError::Exists(_) => {
            failure.hint("publish to it with `esker publish NAME DIR`, or choose another name")
        }
        AdminError::Key { .. }
        | AdminError::NoKey { .. }
        | AdminError::PublicKey { .. }
        | AdminError::Certificate { .. }
        | AdminError::OtherMaster { .. } => failure.hint("name the folder of the keys with --keys DIR"),
        AdminError::Untrusted { source, .. } if matches!(**source, TrustError::WhitelistExpired { .. }) => {
            failure.hint("sign the whitelist again with `esker repo resign NAME`")
        }
        AdminError::StillNeeded { .. } => {
            failure.hint("publish with the certificate in the keys folder first, then repeat this")
        }
        AdminError::Transaction(_) => failure.hint("publish or abort it with `cvmfs_server` first"),
        AdminError::Locked { .. } => failure.hint("wait until it is done"),
        AdminError::NotListed(_) => {
            failure.hint("the owner of the master key puts it there with `esker repo resign NAME`")
        }
        AdminError::NoProfile(_) => failure.hint("`esker profile list NAME` says which there are"),
        _ => failure,
    }
}
