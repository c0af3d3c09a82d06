//! The gateway's database: leases, what they uploaded, disabled repositories, and the audit log.
//!
//! A change is durable when [`Database::write`] returns: it is one transaction of redb, which is whole after a crash or a power
//! failure. Leases and records are JSON, so that later versions can add fields.

use std::collections::{BTreeMap, BTreeSet};
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::Path;

use esker_format::hash::ContentHash;
use esker_format::name::RepositoryName;
use parking_lot::RwLock;
use redb::backends::FileBackend;
use redb::{ReadableDatabase as _, ReadableTable as _, TableDefinition};
use serde::{Deserialize, Serialize};

use crate::lease::{Change, Lease, Leases, Millis};
use crate::token::Token;

const LEASES: TableDefinition<'_, &str, &[u8]> = TableDefinition::new("leases");
/// Catalogs by lease: a publisher may build a second revision on one that it has uploaded.
const CATALOGS: TableDefinition<'_, (&str, &str), ()> = TableDefinition::new("catalogs");
/// Bytes that were sent, by lease: of those whose key has a limit.
const SENT: TableDefinition<'_, &str, u64> = TableDefinition::new("sent");
/// Repositories that an operator disabled.
const DISABLED: TableDefinition<'_, &str, ()> = TableDefinition::new("disabled");
const AUDIT: TableDefinition<'_, u64, &[u8]> = TableDefinition::new("audit");
/// Records of the audit log that are kept.
const AUDIT_MAX: u64 = 100_000;

/// A record of the audit log. Field names are an interface.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Record {
    /// Time of the event.
    pub at: Millis,
    /// Name of the event.
    pub event: String,
    /// Name of the key that was used.
    pub key: String,
    /// Repository and directory.
    pub path: String,
    /// Beginning of the token of the lease.
    pub lease: String,
    /// Revision, reason of a refusal, or address of the publisher.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub detail: String,
}

/// The database can't be used.
#[derive(Debug, thiserror::Error)]
#[error("the gateway's database can't be used: {doing} failed")]
pub struct DatabaseError {
    doing: &'static str,
    source: Box<redb::Error>,
}

impl DatabaseError {
    fn closed(doing: &'static str) -> Self {
        Self { doing, source: Box::new(redb::Error::PreviousIo) }
    }

    fn of<E: Into<redb::Error>>(doing: &'static str) -> impl FnOnce(E) -> Self {
        move |error| Self { doing, source: Box::new(error.into()) }
    }
}

/// Opens the file of a database, or creates it.
pub type OpenFile = Box<dyn Fn() -> Result<redb::Database, redb::DatabaseError> + Send + Sync>;

/// The open database; no other process may open it meanwhile.
pub struct Database {
    /// None after a failure, until it was opened again.
    open: RwLock<Option<redb::Database>>,
    file: OpenFile,
}

impl Database {
    /// Opens a database, or creates one.
    pub fn open(path: &Path) -> Result<Self, DatabaseError> {
        let path = path.to_owned();
        // Tokens are for this user only.
        let file = move || {
            let mut options = std::fs::OpenOptions::new();
            options.read(true).write(true).create(true).truncate(false).mode(0o600).open(&path)
        };
        Self::with(Box::new(move || redb::Builder::new().create_with_backend(FileBackend::new(file()?)?)))
    }

    /// Opens a database by a function, which is called again after a failure.
    pub fn with(file: OpenFile) -> Result<Self, DatabaseError> {
        let database = Self { open: RwLock::new(None), file };
        database.open_file(&mut database.open.write())?;
        Ok(database)
    }

    fn open_file(&self, open: &mut Option<redb::Database>) -> Result<(), DatabaseError> {
        let database = (self.file)().map_err(DatabaseError::of("opening it"))?;
        let transaction = database.begin_write().map_err(DatabaseError::of("beginning a change"))?;
        let made = transaction
            .open_table(LEASES)
            .and_then(|_| transaction.open_table(CATALOGS).map(drop))
            .and_then(|()| transaction.open_table(SENT).map(drop))
            .and_then(|()| transaction.open_table(DISABLED).map(drop))
            .and_then(|()| transaction.open_table(AUDIT).map(drop));
        made.map_err(DatabaseError::of("making its tables"))?;
        transaction.commit().map_err(DatabaseError::of("making its tables"))?;
        *open = Some(database);
        Ok(())
    }

    /// Opens the database again after a failure, which ends the use of what was opened; returns the leases.
    pub fn reopen(&self) -> Result<Leases, DatabaseError> {
        let mut open = self.open.write();
        // The old one holds the lock of the file.
        *open = None;
        self.open_file(&mut open)?;
        drop(open);
        self.leases()
    }

    fn begin_read(&self, doing: &'static str) -> Result<redb::ReadTransaction, DatabaseError> {
        let open = self.open.read();
        let database = open.as_ref().ok_or_else(|| DatabaseError::closed(doing))?;
        database.begin_read().map_err(DatabaseError::of(doing))
    }

    fn begin_write(&self, doing: &'static str) -> Result<redb::WriteTransaction, DatabaseError> {
        let open = self.open.read();
        let database = open.as_ref().ok_or_else(|| DatabaseError::closed(doing))?;
        database.begin_write().map_err(DatabaseError::of(doing))
    }

    /// Reads all leases.
    pub fn leases(&self) -> Result<Leases, DatabaseError> {
        let failed = "reading leases";
        let transaction = self.begin_read(failed)?;
        let table = transaction.open_table(LEASES).map_err(DatabaseError::of(failed))?;
        let mut all = Vec::new();
        for row in table.iter().map_err(DatabaseError::of(failed))? {
            let (token, lease) = row.map_err(DatabaseError::of(failed))?;
            match serde_json::from_slice::<Lease>(lease.value()) {
                Ok(lease) => all.push((Token::named(token.value()), lease)),
                // Of a later version of the gateway: its publisher begins again.
                Err(error) => tracing::warn!("ignoring a lease that can't be read: {error}"),
            }
        }
        Ok(Leases::of(all))
    }

    /// Makes changes of leases and records of them durable.
    pub fn write(&self, changes: &[Change], records: &[Record]) -> Result<(), DatabaseError> {
        let failed = "writing leases";
        let transaction = self.begin_write(failed)?;
        {
            let mut leases = transaction.open_table(LEASES).map_err(DatabaseError::of(failed))?;
            let mut catalogs = transaction.open_table(CATALOGS).map_err(DatabaseError::of(failed))?;
            let mut sent = transaction.open_table(SENT).map_err(DatabaseError::of(failed))?;
            for change in changes {
                match change {
                    Change::Put(token, lease) => {
                        let text = serde_json::to_vec(lease).expect("a lease has text and numbers only");
                        leases.insert(token.secret(), &*text).map_err(DatabaseError::of(failed))?;
                    }
                    Change::Remove(token) => {
                        leases.remove(token.secret()).map_err(DatabaseError::of(failed))?;
                        sent.remove(token.secret()).map_err(DatabaseError::of(failed))?;
                        let of_lease = (token.secret(), "")..(token.secret(), "~");
                        catalogs.retain_in(of_lease, |_, ()| false).map_err(DatabaseError::of(failed))?;
                    }
                }
            }
            let mut audit = transaction.open_table(AUDIT).map_err(DatabaseError::of(failed))?;
            for record in records {
                let last = audit.last().map_err(DatabaseError::of(failed))?.map(|(number, _)| number.value());
                let number = last.map_or(0, |last| last.saturating_add(1));
                let text = serde_json::to_vec(record).expect("a record has text and numbers only");
                audit.insert(number, &*text).map_err(DatabaseError::of(failed))?;
                if let Some(old) = number.checked_sub(AUDIT_MAX) {
                    audit.remove(old).map_err(DatabaseError::of(failed))?;
                }
            }
        }
        transaction.commit().map_err(DatabaseError::of(failed))
    }

    /// Notes that a lease uploaded catalogs. They are durable before the publisher gets its answer.
    pub fn note_catalogs(&self, token: &Token, hashes: &[ContentHash]) -> Result<(), DatabaseError> {
        self.note("noting catalogs", |transaction| {
            let mut catalogs = transaction.open_table(CATALOGS)?;
            for hash in hashes {
                catalogs.insert((token.secret(), &*hash.to_string()), ())?;
            }
            Ok(())
        })
    }

    /// Notes the number of bytes that a lease has sent, unless a later note has more.
    pub fn note_sent(&self, token: &Token, bytes: u64) -> Result<(), DatabaseError> {
        self.note("noting what a lease has sent", |transaction| {
            let mut sent = transaction.open_table(SENT)?;
            let before = sent.get(token.secret())?.map_or(0, |before| before.value());
            sent.insert(token.secret(), bytes.max(before))?;
            Ok(())
        })
    }

    /// Returns the number of bytes that leases have sent.
    pub fn sent(&self) -> Result<BTreeMap<Token, u64>, DatabaseError> {
        let failed = "reading what leases have sent";
        let transaction = self.begin_read(failed)?;
        let table = transaction.open_table(SENT).map_err(DatabaseError::of(failed))?;
        let rows = table.iter().map_err(DatabaseError::of(failed))?;
        let all = rows.map(|row| row.map(|(token, bytes)| (Token::named(token.value()), bytes.value())));
        all.collect::<Result<_, _>>().map_err(DatabaseError::of(failed))
    }

    /// Notes that a repository is disabled, or that it isn't any more.
    pub fn set_disabled(&self, name: &RepositoryName, is_disabled: bool) -> Result<(), DatabaseError> {
        self.note("noting disabled repositories", |transaction| {
            let mut disabled = transaction.open_table(DISABLED)?;
            match is_disabled {
                true => drop(disabled.insert(name.as_str(), ())?),
                false => drop(disabled.remove(name.as_str())?),
            }
            Ok(())
        })
    }

    /// Returns the disabled repositories.
    pub fn disabled(&self) -> Result<BTreeSet<RepositoryName>, DatabaseError> {
        let failed = "reading disabled repositories";
        let transaction = self.begin_read(failed)?;
        let table = transaction.open_table(DISABLED).map_err(DatabaseError::of(failed))?;
        let mut all = BTreeSet::new();
        for row in table.iter().map_err(DatabaseError::of(failed))? {
            let (name, _) = row.map_err(DatabaseError::of(failed))?;
            all.extend(RepositoryName::parse(name.value()).ok());
        }
        Ok(all)
    }

    /// Makes a change of one table durable.
    fn note(
        &self,
        doing: &'static str,
        change: impl FnOnce(&redb::WriteTransaction) -> Result<(), redb::Error>,
    ) -> Result<(), DatabaseError> {
        let transaction = self.begin_write(doing)?;
        change(&transaction).map_err(DatabaseError::of(doing))?;
        transaction.commit().map_err(DatabaseError::of(doing))
    }

    /// Returns true if a lease uploaded a catalog.
    pub fn has_catalog(&self, token: &Token, hash: &ContentHash) -> Result<bool, DatabaseError> {
        let failed = "reading catalogs";
        let transaction = self.begin_read(failed)?;
        let catalogs = transaction.open_table(CATALOGS).map_err(DatabaseError::of(failed))?;
        let found = catalogs.get((token.secret(), &*hash.to_string())).map_err(DatabaseError::of(failed))?;
        Ok(found.is_some())
    }

    /// Returns the newest records of the audit log, newest first.
    pub fn records(&self, count: usize) -> Result<Vec<Record>, DatabaseError> {
        let failed = "reading the audit log";
        let transaction = self.begin_read(failed)?;
        let audit = transaction.open_table(AUDIT).map_err(DatabaseError::of(failed))?;
        let mut all = Vec::new();
        for row in audit.iter().map_err(DatabaseError::of(failed))?.rev().take(count) {
            let (_, text) = row.map_err(DatabaseError::of(failed))?;
            all.extend(serde_json::from_slice(text.value()).ok());
        }
        Ok(all)
    }
}
