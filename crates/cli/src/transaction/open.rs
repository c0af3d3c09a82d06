//! Tells repositories of their open transactions, so that a collect keeps the base revisions.

use std::collections::{BTreeSet, HashSet};
use std::path::Path;

use esker_format::object::ObjectName;
use esker_repository::{OpenWork, RememberedGateway, RememberedStorage, RepositoryError, TransactionFolder};

use super::{Transaction, Transactions};
use crate::error::{Failure, warn};

/// Digits of the number of a folder of transactions that an id has.
const DIGITS: usize = 8;

impl Transaction {
    /// Describes the transaction for its repository.
    pub(super) fn open_work(&self) -> Result<OpenWork, Failure> {
        let record = self.record()?;
        let what = format!("can't tell {} of transaction {}", record.repository, self.id);
        let folder = std::path::absolute(&self.folder).map_err(|error| Failure::failed(error.to_string()))?;
        let transaction =
            TransactionFolder::of(&folder).map_err(|error| Failure::failed(format!("{what}: {error}")))?;
        let origin = record.origin.iter().map(|origin| origin.root.clone());
        let number = &transaction.number[..DIGITS.min(transaction.number.len())];
        Ok(OpenWork {
            id: format!("transaction-{number}-{}", self.id),
            what: format!("transaction {} of user {}", self.id, rustix::process::geteuid().as_raw()),
            roots: [record.root.clone()].into_iter().chain(origin).collect(),
            started: record.started,
            transaction: Some(transaction),
        })
    }

    /// Records the transaction in its repository. Fails if a collect takes the base, or an object that was stored for it.
    pub(crate) fn keep_base(&self, stored: &BTreeSet<ObjectName>) -> Result<(), Failure> {
        self.keep(Vec::new(), stored)
    }

    /// Records the transaction as [`Self::keep_base`] does, with more root catalogs to keep.
    pub(super) fn keep(&self, also: Vec<String>, stored: &BTreeSet<ObjectName>) -> Result<(), Failure> {
        let failed =
            |error: RepositoryError| crate::publisher::of_operation("can't begin a transaction", &error);
        let record = self.record()?;
        if RememberedGateway::is_at(&record.storage) {
            // The process that collects has another state folder.
            return Ok(());
        }
        let mut work = self.open_work()?;
        work.roots.extend(also);
        work.begin(&record.storage, stored, Some(record.collections)).map_err(failed)
    }

    /// Records the transaction with its own roots only, which it has kept all the time.
    pub(super) fn keep_again(&self) {
        if let (Ok(work), Ok(record)) = (self.open_work(), &self.record)
            && !RememberedGateway::is_at(&record.storage)
        {
            // A record with more roots keeps more, until the transaction ends.
            let _ = work.begin(&record.storage, &BTreeSet::new(), None);
        }
    }

    /// Tells a repository in object storage that the transaction has ended; in a folder, its removal does.
    pub(crate) fn release_base(&self) {
        if let (Ok(open), Ok(record)) = (self.open_work(), &self.record)
            && RememberedStorage::is_at(&record.storage)
        {
            // A collect notices that the folder is gone.
            let _ = OpenWork::end(&record.storage, &open.id);
        }
    }
}

impl Transactions {
    /// Records the transactions of a repository that versions without such records began.
    pub(crate) fn keep_bases(&self, place: &Path) -> Result<(), RepositoryError> {
        let open = self.list().unwrap_or_default();
        let open: Vec<Transaction> = open
            .into_iter()
            .filter(|one| one.record.as_ref().is_ok_and(|record| record.storage == place))
            .collect();
        if open.is_empty() {
            return Ok(());
        }
        let known: HashSet<String> = OpenWork::list(place)?.into_iter().map(|work| work.id).collect();
        for transaction in open {
            let Ok(work) = transaction.open_work() else { continue };
            if !known.contains(&work.id)
                && let Err(error) = work.begin(place, &BTreeSet::new(), None)
            {
                warn(Some(&format!("transaction {} can't be kept: {error}", transaction.id)));
            }
        }
        Ok(())
    }
}
