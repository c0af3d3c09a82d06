//! Moves a transaction to another base revision.

use std::fs::DirBuilder;
use std::io;
use std::os::unix::fs::DirBuilderExt as _;

use esker_publish::Staged;

use super::{Origin, Transaction, removal};
use crate::error::{Context as _, Failure, Kind};
use crate::publisher::of_operation;

impl Transaction {
    /// Goes on above an unpublished revision that has the changes made so far, with an empty upper folder.
    pub(crate) fn go_on_above(&mut self, staged: &Staged) -> Result<(), Failure> {
        let before = self.record()?.clone();
        let origin = Origin { root: staged.origin.root.to_string(), root_size: staged.origin.size };
        let mut record = before.clone();
        record.layer = before.layer.saturating_add(1);
        record.revision = staged.base.revision;
        record.root = staged.base.root.to_string();
        record.root_size = staged.base.size;
        record.collections = staged.base.collections;
        record.origin = (origin.root != record.root).then_some(origin);
        let next = Self { id: self.id.clone(), folder: self.folder.clone(), record: Ok(record) };
        // Until the record is replaced the old base is needed, too.
        let also = before.origin.iter().map(|origin| origin.root.clone()).chain([before.root]).collect();
        if let Err(failure) = next.keep(also, &staged.stored) {
            self.keep_again();
            return Err(failure);
        }
        let failed = || format!("can't make a folder for transaction {}", self.id);
        next.make_layer().context(Kind::Failed, failed())?;
        let prepared = next.upper()?.prepare(&before.storage);
        prepared.map_err(|error| of_operation(&failed(), &error))?;
        next.write()?;
        let old = [self.upper_folder(), self.work_folder()];
        *self = next;
        self.keep_again();
        // What is left is removed with the transaction.
        if let Some(transactions) = self.folder.parent() {
            old.iter().for_each(|folder| drop(removal::remove(folder, transactions)));
        }
        Ok(())
    }

    /// Makes empty folders for the overlay.
    pub(super) fn make_layer(&self) -> io::Result<()> {
        for folder in [self.upper_folder(), self.work_folder()] {
            // Of an earlier attempt that was killed.
            removal::remove_tree(&folder)?;
            DirBuilder::new().mode(0o700).create(&folder)?;
        }
        Ok(())
    }
}
