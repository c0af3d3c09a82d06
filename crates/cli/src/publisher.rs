//! Common parts of the publisher's commands: folders of repositories and keys, output, failures.

mod ask;
mod branch;
mod collect;
mod failure;
mod gateway;
mod hooks;
mod interrupt;
mod lock;
mod master;
mod own;
mod passphrase;
mod profile_file;
mod report;
mod several;
mod shrink;
mod source;
mod storage;

use std::cell::RefCell;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{SystemTime, UNIX_EPOCH};

use esker_format::manifest;
use esker_format::name::RepositoryName;
use esker_format::time::UnixTime;
use esker_gateway::Session;
use esker_maintain::{Collected, ServerConf, remembered_spool};
use esker_publish::{Filter, Progress, PublishError, PublishOptions, Report, Shrink, TagRequest};
use esker_repository::{KeyFolder, RememberedGateway, RememberedStorage, Repository, RepositoryError};
use esker_run::give_signals_back;

use crate::error::{Context, Failure, Kind, warn};
use crate::output::QuietArgs;
use crate::process::limits::JobsArgs;
use crate::progress::ProgressMeter;
use crate::settings::Settings;

pub(crate) use ask::confirm;
pub(crate) use branch::BranchArgs;
pub(crate) use collect::collect_progress;
pub(crate) use failure::of_operation;
pub(crate) use gateway::{GatewayArgs, LeaseArgs, end_lease};
pub(crate) use hooks::{HELP as HOOKS_HELP, HookFacts, Hooked};
pub(crate) use interrupt::{Interrupt, Woken};
pub(crate) use lock::LockArgs;
pub(crate) use master::MasterArgs;
pub(crate) use own::{published_here, resolve};
pub(crate) use profile_file::{read_profile, write_profile};
pub(crate) use report::list_changes;
pub(crate) use several::{for_each, names_in, publishable};
pub(crate) use source::{DeflateArg, NoSource, SourceArgs, SourceOptions};
pub(crate) use storage::{BucketArgs, readable, refuse_address, storage_of, with_options};
use storage::{NamedStorage, attach, described};

/// Options for the storage and the keys of a repository.
#[derive(clap::Args, Clone, Debug, Default)]
pub(crate) struct PublisherArgs {
    /// Folder of repositories, each below its name, or the folder of this one; or a bucket, like s3://BUCKET/PREFIX, which
    /// is remembered [default: $ESKER_STORAGE, or /srv/cvmfs for root, else ~/.local/share/esker/repositories]
    #[arg(long, value_name = "DIR|URL", help_heading = "Storage and keys")]
    storage: Option<PathBuf>,

    /// URL of the server of the bucket that --storage names, like https://s3.example.org:9000 [default: $AWS_ENDPOINT_URL,
    /// else that of the provider]
    #[arg(long, value_name = "URL", help_heading = "Storage and keys")]
    endpoint: Option<String>,

    /// Folder of the keys NAME.key, NAME.crt, NAME.pub and NAME.masterkey [default: /etc/cvmfs/keys for root, else
    /// ~/.config/esker/keys]
    #[arg(long, value_name = "DIR", help_heading = "Storage and keys")]
    keys: Option<PathBuf>,

    /// Command that signs in place of NAME.key: it reads the bytes to sign from standard input and writes the
    /// signature to standard output [default: the one in NAME.key.signer in the keys folder, if there is no key]
    #[arg(long, value_name = "CMD", help_heading = "Storage and keys")]
    signer: Option<String>,
}

/// A repository of this publisher by its name, as most commands take it.
#[derive(clap::Args, Clone, Debug)]
pub(crate) struct NamedArgs {
    /// Name of the repository
    #[arg(value_name = "NAME")]
    pub(crate) name: String,

    #[command(flatten)]
    pub(crate) place: PublisherArgs,
}

impl NamedArgs {
    /// Finds the repository.
    pub(crate) fn place(&self, settings: &Settings) -> Result<Place, Failure> {
        self.place.place(&self.name, settings)
    }
}

/// Options of commands that change a repository.
#[derive(clap::Args, Clone, Debug)]
pub(crate) struct ChangeArgs {
    #[command(flatten)]
    pub(crate) lock: LockArgs,

    /// Print what would change, and change nothing
    #[arg(long)]
    pub(crate) dry_run: bool,

    #[command(flatten)]
    pub(crate) quiet: QuietArgs,

    /// Print JSON
    #[arg(long)]
    pub(crate) json: bool,
}

/// A repository of this publisher, by name.
pub(crate) struct Place {
    pub(crate) name: RepositoryName,
    pub(crate) root: PathBuf,
    pub(crate) keys: KeyFolder,
    /// Folder of CernVM-FS's state, if it may publish to the repository too.
    spool: Option<PathBuf>,
}

impl PublisherArgs {
    /// Returns the options for repositories and keys in these folders, or in the default ones.
    pub(crate) fn in_folders(storage: Option<&Path>, keys: Option<&Path>) -> Self {
        let owned = |path: Option<&Path>| path.map(ToOwned::to_owned);
        Self { storage: owned(storage), keys: owned(keys), ..Self::default() }
    }

    /// Returns the options for repositories in this storage, or in the default one.
    pub(crate) fn in_storage(storage: Option<&Path>) -> Self {
        Self { storage: storage.map(ToOwned::to_owned), ..Self::default() }
    }

    /// Returns the same options for a bucket at this server.
    pub(crate) fn with_endpoint(self, endpoint: Option<String>) -> Self {
        Self { endpoint, ..self }
    }

    /// True if the storage or the keys are named.
    pub(crate) fn is_given(&self) -> bool {
        self.storage.is_some() || self.keys.is_some()
    }

    /// True if the storage is named.
    pub(crate) fn is_storage_given(&self) -> bool {
        self.storage.is_some()
    }

    fn named_storage(&self) -> Result<Option<NamedStorage>, Failure> {
        self.storage.as_deref().map(|storage| NamedStorage::parse("--storage", storage)).transpose()
    }

    /// True if object storage is named.
    pub(crate) fn is_bucket_given(&self) -> Result<bool, Failure> {
        Ok(matches!(self.named_storage()?, Some(NamedStorage::Bucket(_))))
    }

    /// Returns the folder of repositories, or of the publisher's states of those in object storage.
    pub(crate) fn storage_folder(&self, settings: &Settings) -> Result<PathBuf, Failure> {
        match self.named_storage()? {
            Some(NamedStorage::Folder(folder)) => settings.storage(Some(&folder)),
            Some(NamedStorage::Bucket(_)) | None => settings.storage(None),
        }
    }

    /// Returns the folder of a repository, or of its publisher's state if it is in object storage.
    pub(crate) fn root(&self, name: &RepositoryName, settings: &Settings) -> Result<PathBuf, Failure> {
        self.root_for(name, None, settings)
    }

    fn root_for(
        &self,
        name: &RepositoryName,
        new: Option<&BucketArgs>,
        settings: &Settings,
    ) -> Result<PathBuf, Failure> {
        let root = Repository::locate(&self.storage_folder(settings)?, name);
        match self.named_storage()? {
            Some(NamedStorage::Bucket(url)) => attach(&url, name, &root, new, self.endpoint.as_deref())?,
            _ => self.refuse_bucket_options(&self.at_endpoint(&BucketArgs::default()))?,
        }
        Ok(root)
    }

    /// Returns the options of a bucket at the endpoint that is named.
    fn at_endpoint(&self, bucket: &BucketArgs) -> BucketArgs {
        bucket.clone().at(self.endpoint.clone())
    }

    /// Refuses options of buckets if none is named.
    fn refuse_bucket_options(&self, bucket: &BucketArgs) -> Result<(), Failure> {
        match bucket.given().filter(|_| !matches!(self.is_bucket_given(), Ok(true))) {
            Some(option) => Err(Failure::usage(format!("{option} is for repositories in object storage"))
                .hint("name the bucket with --storage s3://BUCKET/PREFIX")),
            None => Ok(()),
        }
    }

    /// Returns the bucket that a new repository would be in, without remembering it; none for a folder.
    pub(crate) fn planned_bucket(
        &self,
        name: &RepositoryName,
        bucket: &BucketArgs,
    ) -> Result<Option<RememberedStorage>, Failure> {
        let bucket = self.at_endpoint(bucket);
        self.refuse_bucket_options(&bucket)?;
        match self.named_storage()? {
            Some(NamedStorage::Bucket(url)) => described(&url, name, &bucket).map(Some),
            _ => Ok(None),
        }
    }

    /// Returns the place of a new repository in a bucket with these options. The second value is true if this call
    /// stored the bucket's URL there.
    pub(crate) fn new_place(
        &self,
        name: &str,
        bucket: &BucketArgs,
        settings: &Settings,
    ) -> Result<(Place, bool), Failure> {
        let bucket = self.at_endpoint(bucket);
        self.refuse_bucket_options(&bucket)?;
        let parsed = RepositoryName::parse(name).context(Kind::Usage, "can't use this name")?;
        let root = Repository::locate(&self.storage_folder(settings)?, &parsed);
        let is_known = RememberedStorage::is_at(&root);
        let root = self.root_for(&parsed, Some(&bucket), settings)?;
        let is_new = !is_known && RememberedStorage::is_at(&root);
        let place = self.place_at(name, &root, settings)?;
        place.keys.exposed().iter().for_each(|key| warn_of_key(key));
        Ok((place, is_new))
    }

    /// Returns the keys of a repository.
    pub(crate) fn keys(&self, name: &RepositoryName, settings: &Settings) -> Result<KeyFolder, Failure> {
        let folder = KeyFolder::new(settings.publisher_keys(self.keys.as_deref())?, name);
        let folder = folder.with_signer(self.signer.clone()).with_prepared_signers(give_signals_back);
        Ok(folder.with_passphrases(passphrase::source(settings)))
    }

    /// Returns the keys of a repository in another folder.
    pub(crate) fn keys_in(&self, folder: &Path, name: &RepositoryName, settings: &Settings) -> KeyFolder {
        let folder = KeyFolder::new(folder, name).with_prepared_signers(give_signals_back);
        folder.with_passphrases(passphrase::source(settings))
    }

    /// Returns the repository in a folder.
    pub(crate) fn place_at(&self, name: &str, root: &Path, settings: &Settings) -> Result<Place, Failure> {
        let name = RepositoryName::parse(name).context(Kind::Usage, "can't use this name")?;
        let keys = self.keys(&name, settings)?;
        let spool = settings.spool(&name, root).or_else(|| remembered_spool(root));
        let spool = spool.filter(|_| !publishes_through_gateway(&name, settings));
        Ok(Place { name, root: root.to_owned(), keys, spool })
    }

    pub(crate) fn place(&self, name: &str, settings: &Settings) -> Result<Place, Failure> {
        let parsed = RepositoryName::parse(name).context(Kind::Usage, "can't use this name")?;
        let root = self.root(&parsed, settings)?;
        let place = self.place_at(name, &root, settings)?;
        place.keys.exposed().iter().for_each(|key| warn_of_key(key));
        Ok(place)
    }
}

/// Returns true if CernVM-FS on this machine publishes to the repository through a gateway. Its transactions lease directories then,
/// and exclude no other publisher.
fn publishes_through_gateway(name: &RepositoryName, settings: &Settings) -> bool {
    let folder = settings.config_root.join("etc/cvmfs/repositories.d").join(name.as_str());
    let conf = ServerConf::read(&folder.join("server.conf"));
    conf.is_ok_and(|conf| {
        conf.get("CVMFS_UPSTREAM_STORAGE").is_some_and(|storage| storage.starts_with("gw,"))
    })
}

/// Warns if other users can read a private key.
pub(crate) fn warn_of_key(key: &Path) {
    let key = key.display();
    warn(Some(&format!(
        "other users can read or change the private key {key}, and sign in your name; use `chmod 400 {key}`"
    )));
}

impl Place {
    /// Returns the folder of CernVM-FS's state, if it may publish to the repository too.
    pub(crate) fn spool_folder(&self) -> Option<&Path> {
        self.spool.as_deref()
    }

    /// Returns true if the repository exists and this user has its publisher's certificate and public key.
    pub(crate) fn is_ours(&self) -> bool {
        let keys = [self.keys.public_key_file(), self.keys.certificate_file()];
        let is_here = self.root.join(manifest::PATH).exists() || RememberedStorage::is_at(&self.root);
        is_here && keys.iter().all(|key| key.exists())
    }

    /// Opens the repository for a collect, which a replica allows too.
    pub(crate) fn open_for_collect(
        &self,
        lock: LockArgs,
        interrupt: &Interrupt,
        quiet: bool,
    ) -> Result<Repository, Failure> {
        let failed = |error| of_operation(&format!("can't open {}", self.name), &error);
        if self.replica()?.is_none() {
            return self.open(lock, interrupt, quiet);
        }
        let mut repository = Repository::open_replica(&self.root, &self.name, now()).map_err(failed)?;
        if let Some(spool) = &self.spool {
            repository.tell_spool(spool);
        }
        if let Some(limit) = lock.limit() {
            repository.wait_for_lock(limit, if quiet { |_| {} } else { lock::tell_of_wait });
        }
        Ok(repository)
    }

    /// Opens the repository for publishing, after waiting for other publishers if that is requested.
    pub(crate) fn open(
        &self,
        lock: LockArgs,
        interrupt: &Interrupt,
        quiet: bool,
    ) -> Result<Repository, Failure> {
        let mut repository = lock
            .when_free(interrupt, quiet, || self.try_open())
            .map_err(|error| of_operation(&format!("can't open {} for publishing", self.name), &error))?;
        if let Some(limit) = lock.limit() {
            repository.wait_for_lock(limit, if quiet { |_| {} } else { lock::tell_of_wait });
        }
        Ok(repository)
    }

    pub(crate) fn try_open(&self) -> Result<Repository, RepositoryError> {
        if let Some(gateway) = RememberedGateway::read(&self.root)? {
            return Repository::open_at_gateway(&self.root, &self.name, &gateway, None, now());
        }
        let mut repository = Repository::open(&self.root, &self.name, self.keys.clone(), now())?;
        if let Some(spool) = &self.spool {
            repository.share_with_spool(spool)?;
        }
        Ok(repository)
    }
}

/// A publish by a command: what it is made to.
pub(crate) struct Publishing<'a> {
    pub(crate) place: &'a Place,
    pub(crate) repository: &'a Repository,
    pub(crate) interrupt: &'a Interrupt,
    /// Directory of the repository that changes, if it is one.
    pub(crate) path: Option<&'a Path>,
    /// Id of the transaction whose changes are published.
    pub(crate) transaction: Option<&'a str>,
}

/// Options of publishing commands.
#[derive(clap::Args, Clone, Debug)]
pub(crate) struct PublishingArgs<S: clap::Args = SourceArgs> {
    /// Tag for the new revision, or for the published one if nothing changed [default: generic-TIME]
    #[arg(long, value_name = "NAME")]
    pub(crate) tag: Option<String>,

    /// Description of the revision, stored with its tag
    #[arg(long, value_name = "TEXT")]
    pub(crate) message: Option<String>,

    #[command(flatten)]
    pub(crate) source: S,

    /// Profile to add to the repository; this and each later revision has file bundles made from it
    #[arg(long, value_name = "FILE")]
    pub(crate) profile: Vec<PathBuf>,

    /// Print the changes (the first 50 paths; all with --json), and publish nothing
    #[arg(long)]
    pub(crate) dry_run: bool,

    /// Remove more than half of the repository's entries without confirmation; fewer than 10 entries never need it
    #[arg(long)]
    pub(crate) allow_shrink: bool,

    #[command(flatten)]
    pub(crate) lock: LockArgs,

    #[command(flatten)]
    pub(crate) jobs: JobsArgs,

    #[command(flatten)]
    pub(crate) quiet: QuietArgs,

    /// Print JSON
    #[arg(long)]
    pub(crate) json: bool,
}

impl<S: SourceOptions> PublishingArgs<S> {
    /// Leases what is to change, if a gateway publishes; none for a dry run.
    pub(crate) fn lease(&self, place: &Place, args: LeaseArgs<'_>) -> Result<Option<Arc<Session>>, Failure> {
        if self.dry_run { Ok(None) } else { place.lease(args, self.lock, self.quiet.is_set()) }
    }

    /// Opens the repository with the settings that apply to this publish only.
    pub(crate) fn open(
        &self,
        place: &Place,
        session: Option<&Arc<Session>>,
        interrupt: &Interrupt,
    ) -> Result<Repository, Failure> {
        let mut repository = match session {
            Some(session) => place.open_leased(session)?,
            None => place.open(self.lock, interrupt, self.quiet.is_set())?,
        };
        self.source.apply(repository.settings_mut());
        Ok(repository)
    }

    /// Publishes with `work`, shows progress, prints the report, and collects if that is due.
    pub(crate) fn publish(
        &self,
        of: &Publishing<'_>,
        work: impl FnOnce(PublishOptions<'_>) -> Result<Report, PublishError>,
        what: &str,
    ) -> Result<(), Failure> {
        let report = self.publish_quietly(of, work, what)?;
        self.print(of, &report)
    }

    /// Publishes with `work` and shows progress.
    pub(crate) fn publish_quietly(
        &self,
        of: &Publishing<'_>,
        work: impl FnOnce(PublishOptions<'_>) -> Result<Report, PublishError>,
        what: &str,
    ) -> Result<Report, Failure> {
        let (root, name) = (&of.place.root, of.place.name.as_str());
        let path = of.path.map(Path::as_os_str);
        let facts = HookFacts { tag: self.tag.as_deref(), revision: None, transaction: of.transaction, path };
        if !self.dry_run {
            Hooked::Publish.before(root, name, facts)?;
        }
        let report = self.work(of.place, of.interrupt, work, what)?;
        if !self.dry_run {
            let revision = Some(report.revision);
            Hooked::Publish.after(root, name, HookFacts { tag: report.tag.as_deref(), revision, ..facts });
        }
        Ok(report)
    }

    /// Prints the report of a publish, and collects if that is due.
    pub(crate) fn print(&self, of: &Publishing<'_>, report: &Report) -> Result<(), Failure> {
        let print = |collected: Option<&Collected>| {
            report::print(report, (of.transaction, collected), self.dry_run, self.json)
        };
        let is_due = report.published && of.repository.gateway().is_none() && collect::is_due(of.repository);
        if self.dry_run || !is_due {
            return print(None);
        }
        // The reader of the report may be gone: that is no reason not to collect.
        let printed = if self.json { Ok(()) } else { print(None) };
        let collected = collect::run(of.repository, of.interrupt, self.jobs.count(), self.quiet.is_set());
        printed?;
        match self.json {
            true => print(collected.as_ref()),
            false => collected.iter().try_for_each(report::print_collected),
        }
    }

    /// Does `work` and shows its progress.
    pub(crate) fn work<T>(
        &self,
        place: &Place,
        interrupt: &Interrupt,
        work: impl FnOnce(PublishOptions<'_>) -> Result<T, PublishError>,
        what: &str,
    ) -> Result<T, Failure> {
        let meter = RefCell::new(ProgressMeter::new(self.quiet.is_set()));
        let mut progress = |progress| meter.borrow_mut().show(progress);
        let mut confirm_shrink = |shrink: Shrink| {
            meter.borrow_mut().clear();
            self.allow_shrink || shrink::ask(shrink, place.name.as_str(), interrupt)
        };
        let done = work(self.how(interrupt, &mut progress, &mut confirm_shrink)?);
        drop(meter);
        done.map_err(|error| of_operation(&format!("{} {what}", place.name), &error))
    }

    fn how<'p>(
        &self,
        interrupt: &Interrupt,
        progress: &'p mut dyn FnMut(Progress),
        confirm_shrink: &'p mut dyn FnMut(Shrink) -> bool,
    ) -> Result<PublishOptions<'p>, Failure> {
        let description = self.message.clone().unwrap_or_default();
        let profiles = self.profile.iter().map(|file| read_profile(file)).collect::<Result<_, _>>()?;
        Ok(PublishOptions {
            tag: TagRequest { name: self.tag.clone(), description, branch: None },
            threads: self.jobs.count(),
            stop: interrupt.flag(),
            profiles,
            filter: self.source.filter()?,
            progress,
            confirm_shrink,
        })
    }

    /// Returns which paths of the source are ignored, and the maps of owners.
    pub(crate) fn filter(&self) -> Result<Filter, Failure> {
        self.source.filter()
    }
}

/// Returns the time of the revision.
pub(crate) fn now() -> UnixTime {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    UnixTime(i64::try_from(since.as_secs()).unwrap_or(i64::MAX))
}
