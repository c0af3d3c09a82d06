//! The list of condemned objects on disk: written durably before anything else forgets them.
//!
//! ```text
//! magic 8 · state 1 · time 8 · records of 21, sorted · SHA-256 of all
//! ```

use std::path::{Path, PathBuf};
use std::sync::Arc;

use esker_format::time::UnixTime;
use esker_store::{Disk, persist, read_file};
use sha2::{Digest as _, Sha256};

use crate::error::AdminError;
use crate::hash_lists::{Owner, Record, Tagged};

const FILE: &str = "condemned";
const MAGIC: &[u8; 8] = b"ESKCOND1";
const DIGEST: usize = 32;
/// Largest size of the file in bytes: 400 million objects.
const FILE_MAX: u64 = 8 << 30;

/// What happens to condemned objects.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum State {
    /// They wait for the end of the grace time, and a publisher may take objects off the list.
    Waiting,
    /// They are being deleted.
    Deleting,
}

/// Condemned objects.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Condemned {
    pub(crate) state: State,
    /// When they were condemned.
    pub(crate) since: UnixTime,
    /// Their names, sorted.
    pub(crate) objects: Vec<Record>,
}

/// The file of the list.
pub(crate) struct CondemnedFile {
    disk: Arc<dyn Disk>,
    path: PathBuf,
}

impl CondemnedFile {
    /// Returns the file in a publisher's state folder.
    pub(crate) fn new(disk: Arc<dyn Disk>, state: &Path) -> Self {
        Self { disk, path: state.join(FILE) }
    }

    /// Reads the list; none if there is none. A damaged list counts as none: its objects are left over.
    pub(crate) fn read(&self) -> Result<Option<Condemned>, AdminError> {
        let bytes = read_file(&*self.disk, &self.path, FILE_MAX);
        let bytes = bytes.map_err(AdminError::file("reading", &self.path))?;
        Ok(bytes.and_then(|bytes| decode(&bytes)))
    }

    /// Replaces the list durably.
    pub(crate) fn write(&self, list: &Condemned) -> Result<(), AdminError> {
        persist(&*self.disk, &self.path, &encode(list)).map_err(AdminError::file("writing", &self.path))
    }

    /// Removes the list.
    pub(crate) fn remove(&self) -> Result<(), AdminError> {
        self.disk.remove(&self.path).map_err(AdminError::file("removing", &self.path))
    }
}

impl Condemned {
    /// Returns the records in order.
    pub(crate) fn iter(&self) -> impl Iterator<Item = Result<Tagged, AdminError>> {
        self.objects.iter().map(|record| Ok(Tagged { record: *record, owner: Owner::SHARED }))
    }
}

fn encode(list: &Condemned) -> Vec<u8> {
    let mut bytes = Vec::with_capacity(64 + list.objects.len() * Record::LEN);
    bytes.extend_from_slice(MAGIC);
    bytes.push(match list.state {
        State::Waiting => 0,
        State::Deleting => 1,
    });
    bytes.extend_from_slice(&list.since.0.to_le_bytes());
    list.objects.iter().for_each(|record| bytes.extend_from_slice(&record.0));
    let digest = Sha256::digest(&bytes);
    bytes.extend_from_slice(&digest);
    bytes
}

fn decode(bytes: &[u8]) -> Option<Condemned> {
    let (text, digest) = bytes.split_at_checked(bytes.len().checked_sub(DIGEST)?)?;
    if *Sha256::digest(text) != *digest {
        return None;
    }
    let (state, rest) = text.strip_prefix(MAGIC)?.split_first()?;
    let (since, rest) = rest.split_first_chunk::<8>()?;
    let (records, odd) = rest.as_chunks::<{ Record::LEN }>();
    let state = match state {
        0 => State::Waiting,
        1 => State::Deleting,
        _ => return None,
    };
    odd.is_empty().then(|| Condemned {
        state,
        since: UnixTime(i64::from_le_bytes(*since)),
        objects: records.iter().copied().map(Record).collect(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use esker_store::RealDisk;

    #[test]
    fn a_list_survives_its_file_and_a_damaged_one_counts_as_none() {
        let folder = tempfile::tempdir().unwrap();
        let file = CondemnedFile::new(Arc::new(RealDisk::PRIVATE), folder.path());
        assert_eq!(file.read().unwrap(), None);
        for state in [State::Waiting, State::Deleting] {
            let objects = vec![Record([1; Record::LEN]), Record([2; Record::LEN])];
            let list = Condemned { state, since: UnixTime(7), objects };
            file.write(&list).unwrap();
            assert_eq!(file.read().unwrap(), Some(list));
        }
        let mut bytes = std::fs::read(&file.path).unwrap();
        bytes[20] ^= 1;
        std::fs::write(&file.path, bytes).unwrap();
        assert_eq!(file.read().unwrap(), None);
        file.remove().unwrap();
        assert_eq!(file.read().unwrap(), None);
    }
}
