//! Transactions on this machine: each has a folder with a record, the upper folder of its overlay, and a lock.
//!
//! ```text
//!  TRANSACTIONS/ID/record.json   repository, base revision, command; replaced as a whole
//!                  lock          held by the process that runs its command, publishes or drops it
//!                  upper/ work/  folders of the overlay; upper-N and work-N after the Nth rebase
//!                  cache/        objects of a bucket that needs credentials for reading
//!                  log           warnings of the process that holds an open one
//!                  lease         token of the lease, if a gateway publishes
//! ```
//!
//! Nothing but these folders is needed to list, show and drop a transaction: no key, no network, no mount.

mod line;
mod open;
mod opened;
mod rebase;
mod record;
mod removal;
mod session;

use std::fs::{self, DirBuilder};
use std::io::ErrorKind;
use std::os::unix::fs::DirBuilderExt as _;
use std::path::{Path, PathBuf};

use esker_format::hash::ContentHash;
use esker_format::time::UnixTime;
use esker_gateway::Session;
use esker_publish::{BaseRevision, Filter, Upper};
use esker_repository::{OpenWork, RememberedStorage};
use esker_store::{FileLock, Locking, RealDisk, persist, read_file};

use crate::error::{Context as _, Failure, Kind};
use crate::publisher::PublishingArgs;

pub(crate) use opened::{Inside, KEEPER, Opened, keep, named};
pub(crate) use record::{OnBranch, Origin, Outcome, Record};
pub(crate) use removal::{SWEEP, SweepArgs, sweep};
pub(crate) use session::RunningCommand;

/// Largest record; far more than one takes.
const RECORD_MAX: u64 = 16 << 20;
/// Transactions that may begin in the same second.
const SAME_SECOND_MAX: u32 = 1000;

/// The transactions of this user.
pub(crate) struct Transactions {
    folder: PathBuf,
}

/// Open or kept transaction of a repository.
pub(crate) struct Transaction {
    pub(crate) id: String,
    folder: PathBuf,
    /// The record; or why it can't be read.
    pub(crate) record: Result<Record, String>,
}

/// State of a transaction.
#[derive(Clone, Copy, Debug, PartialEq, Eq, serde::Serialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum State {
    /// A process holds its mount, which commands enter.
    Open,
    /// A process has it: its command runs, or it is being published or dropped.
    Running,
    /// The command of the transaction has ended.
    Kept,
    /// The processes of the transaction were killed before its command ended.
    Interrupted,
    /// The record of the transaction can't be read.
    Damaged,
}

impl Transactions {
    pub(crate) fn new(folder: PathBuf) -> Self {
        Self { folder }
    }

    pub(crate) fn folder(&self) -> &Path {
        &self.folder
    }

    /// Lists all transactions, the oldest first.
    pub(crate) fn list(&self) -> Result<Vec<Transaction>, Failure> {
        let failed = || format!("can't list the transactions in {}", self.folder.display());
        let entries = match fs::read_dir(&self.folder) {
            Err(error) if error.kind() == ErrorKind::NotFound => return Ok(Vec::new()),
            other => other.context(Kind::Failed, failed())?,
        };
        let mut all = Vec::new();
        for entry in entries {
            let entry = entry.context(Kind::Failed, failed())?;
            let is_folder = entry.file_type().is_ok_and(|kind| kind.is_dir());
            // Those with a dot were moved aside.
            if let Some(id) = entry.file_name().to_str().filter(|id| is_folder && !id.starts_with('.')) {
                all.push(Transaction::read(id, entry.path()));
            }
        }
        all.sort_by(|a, b| a.id.cmp(&b.id));
        Ok(all)
    }

    /// Finds the transaction with this id, or whose id starts so, or the only one of a repository.
    pub(crate) fn find(&self, wanted: &str) -> Result<Transaction, Failure> {
        let (mut exact, others): (Vec<_>, Vec<_>) =
            self.list()?.into_iter().partition(|one| one.id == wanted);
        if let Some(found) = exact.pop() {
            return Ok(found);
        }
        let is_meant = |one: &Transaction| {
            one.id.starts_with(wanted) || one.record.as_ref().is_ok_and(|record| record.repository == wanted)
        };
        let mut found: Vec<Transaction> = others.into_iter().filter(is_meant).collect();
        match (found.pop(), found.len()) {
            (Some(one), 0) => Ok(one),
            (Some(last), _) => {
                let ids: Vec<String> = found.into_iter().chain([last]).map(|one| one.id).collect();
                let what = format!("{wanted} means {} transactions: {}", ids.len(), ids.join(", "));
                Err(Failure::usage(what).hint("name one by its id"))
            }
            (None, _) => {
                let what = format!("there is no transaction {wanted} in {}", self.folder.display());
                Err(Failure::usage(what).hint("`esker transaction list` lists those that are there"))
            }
        }
    }

    /// Makes the folder of a new transaction, and takes it.
    pub(crate) fn create(
        &self,
        mut record: Record,
        now: UnixTime,
    ) -> Result<(Transaction, FileLock), Failure> {
        let failed = |path: &Path| format!("can't make the folder of a transaction, {}", path.display());
        let private = |path: &Path, all: bool| DirBuilder::new().mode(0o700).recursive(all).create(path);
        private(&self.folder, true).context(Kind::Failed, failed(&self.folder))?;
        // Of one whose deletion was killed.
        removal::sweep_later(&self.folder);
        let digits: String = now.to_string().chars().filter(char::is_ascii_digit).collect();
        let time = format!("{}-{}", &digits[..8.min(digits.len())], &digits[8.min(digits.len())..]);
        for number in 1..=SAME_SECOND_MAX {
            let id = if number == 1 { time.clone() } else { format!("{time}-{number}") };
            let folder = self.folder.join(&id);
            match private(&folder, false) {
                Err(error) if error.kind() == ErrorKind::AlreadyExists => continue,
                other => other.context(Kind::Failed, failed(&folder))?,
            }
            record.id.clone_from(&id);
            let transaction = Transaction { id, folder, record: Ok(record) };
            let lock = transaction.take()?;
            transaction.make_layer().context(Kind::Failed, failed(&transaction.folder))?;
            transaction.write()?;
            return Ok((transaction, lock));
        }
        Err(Failure::failed(failed(&self.folder)).hint("repeat this in a second"))
    }
}

const UPPER: &str = "upper";
const WORK: &str = "work";
const CACHE: &str = "cache";
const LOCK: &str = "lock";
const LOG: &str = "log";
const LEASE: &str = "lease";
const RECORD: &str = "record.json";

impl Transaction {
    fn read(id: &str, folder: PathBuf) -> Self {
        let path = folder.join(RECORD);
        let record = match read_file(&RealDisk::PRIVATE, &path, RECORD_MAX) {
            Ok(Some(text)) => serde_json::from_slice::<Record>(&text).map_err(|error| error.to_string()),
            Ok(None) => Err("there is no record".to_owned()),
            Err(error) => Err(error.to_string()),
        };
        Self { id: id.to_owned(), folder, record }
    }

    /// Returns the record, which all but listing and dropping needs.
    pub(crate) fn record(&self) -> Result<&Record, Failure> {
        self.record.as_ref().map_err(|reason| {
            let path = self.folder.join(RECORD);
            Failure::new(
                Kind::Damaged,
                format!("transaction {}: can't read {}: {reason}", self.id, path.display()),
            )
            .hint(format!(
                "the changes are in {}; `esker transaction abort {}` drops them",
                self.upper_folder().display(),
                self.id
            ))
        })
    }

    fn write(&self) -> Result<(), Failure> {
        let what = || format!("can't write the record of transaction {}", self.id);
        let text = serde_json::to_vec_pretty(self.record()?)
            .map_err(|error| Failure::failed(format!("{}: {error}", what())))?;
        persist(&RealDisk::PRIVATE, &self.folder.join(RECORD), &text).context(Kind::Failed, what())
    }

    /// Notes how the command ended. The changes are there without it, so a full disk is no failure.
    pub(crate) fn note(&mut self, outcome: Option<Outcome>) {
        if let Ok(record) = &mut self.record {
            record.outcome = outcome;
            record.open = None;
            let _ = self.write();
        }
    }

    /// Adds the tag and the message of later options, for the next note.
    pub(crate) fn add_words(&mut self, how: &PublishingArgs) {
        if let Ok(record) = &mut self.record {
            let PublishingArgs { tag, message, .. } = record.with_words(how);
            (record.tag, record.message) = (tag, message);
        }
    }

    /// Notes the lease of a transaction that a gateway publishes, and keeps it after the session.
    pub(crate) fn note_lease(&self, session: &Session) -> Result<(), Failure> {
        let what = format!("can't note the lease of transaction {}", self.id);
        let written = persist(&RealDisk::PRIVATE, &self.folder.join(LEASE), session.token().as_bytes());
        written.context(Kind::Failed, what)?;
        session.keep(true);
        Ok(())
    }

    /// Returns the token of the lease; none if this user has the keys, or if it can't be read: then another one is needed.
    pub(crate) fn lease(&self) -> Option<String> {
        let token = read_file(&RealDisk::PRIVATE, &self.folder.join(LEASE), RECORD_MAX);
        String::from_utf8(token.ok()??).ok()
    }

    /// Takes the transaction for this process.
    pub(crate) fn take(&self) -> Result<FileLock, Failure> {
        let path = self.folder.join(LOCK);
        match FileLock::try_take(&path).context(Kind::Failed, format!("can't lock {}", path.display()))? {
            Locking::Taken(lock) => Ok(lock),
            Locking::Held(holder) => {
                let process = holder.pid.map_or_else(String::new, |pid| format!(" (process {pid})"));
                Err(match self.opened() {
                    Some(_) => Failure::failed(format!("transaction {} is open", self.id))
                        .hint(format!("`esker transaction enter {}` runs a command in it", self.id)),
                    None => Failure::failed(format!("transaction {} is running{process}", self.id))
                        .hint("repeat this when its command has ended"),
                })
            }
        }
    }

    pub(crate) fn state(&self) -> State {
        match &self.record {
            _ if self.opened().is_some() => State::Open,
            _ if matches!(FileLock::try_take(&self.folder.join(LOCK)), Ok(Locking::Held(_))) => {
                State::Running
            }
            Err(_) => State::Damaged,
            Ok(record) if record.outcome.is_some() => State::Kept,
            Ok(_) => State::Interrupted,
        }
    }

    pub(crate) fn upper_folder(&self) -> PathBuf {
        self.layer(UPPER)
    }

    pub(crate) fn work_folder(&self) -> PathBuf {
        self.layer(WORK)
    }

    fn layer(&self, name: &str) -> PathBuf {
        match self.record.as_ref().map_or(0, |record| record.layer) {
            0 => self.folder.join(name),
            layer => self.folder.join(format!("{name}-{layer}")),
        }
    }

    /// Returns the log of the process that holds the transaction open.
    pub(crate) fn log_file(&self) -> PathBuf {
        self.folder.join(LOG)
    }

    /// Returns the folder for a cache that no other process uses.
    pub(crate) fn cache_folder(&self) -> PathBuf {
        self.folder.join(CACHE)
    }

    /// Returns the upper folder with its base, as the publisher reads it.
    pub(crate) fn upper(&self) -> Result<Upper, Failure> {
        let record = self.record()?;
        let base = |root: &str, size| -> Result<BaseRevision, Failure> {
            let root = ContentHash::parse(root)
                .context(Kind::Damaged, format!("transaction {} has no base revision", self.id))?;
            let (revision, collections) = (record.revision, record.collections);
            Ok(BaseRevision { revision, root, size, collections })
        };
        let origin = record.origin.as_ref();
        Ok(Upper {
            folder: self.upper_folder(),
            base: base(&record.root, record.root_size)?,
            origin: origin.map(|origin| base(&origin.root, origin.root_size)).transpose()?,
            claimed: record.claimed,
            within: record.path.clone().into_bytes(),
            filter: Filter::default(),
        })
    }

    /// Removes the transaction with all its changes.
    pub(crate) fn remove(self, lock: FileLock) -> Result<(), Failure> {
        let open = self.open_work();
        let folder = self.folder;
        let outcome = match folder.parent() {
            Some(transactions) => removal::remove(&folder, transactions),
            None => removal::remove_tree(&folder),
        };
        drop(lock);
        if let (Ok(open), Ok(record), Ok(())) = (open, &self.record, &outcome)
            && !RememberedStorage::is_at(&record.storage)
        {
            // The next collect notices that the folder is gone.
            let _ = OpenWork::end(&record.storage, &open.id);
        }
        outcome.context(Kind::Failed, format!("can't remove all of {}", folder.display()))
    }
}
