//! Records which source files were published, so that unchanged ones are not read again.
//!
//! ```text
//! magic (16)  records, sorted by key (80 each)  SHA-1 of all before (20)
//! record: key (16)  size, inode, mtime, mtime ns, ctime, ctime ns (8 each)  content (16)
//! ```
//!
//! A record says: the file that was published at this path had these attributes, and the catalog had this
//! content for it. It counts only while both are still so, so an outdated record does no harm, and
//! the file as a whole may be lost at any time. Of two publishers of one target, the later one's records stay.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use esker_format::catalog::PathKey;
use esker_format::hash::{ContentHash, HashAlgorithm, Hasher};
use esker_format::write::catalog::Entry;
use esker_repository::{RepositoryError, entry::STORAGE_BITS, state};
use esker_store::{Disk, make_dirs, persist, read_file};

use crate::source::Facts;

const MAGIC: &[u8; 16] = b"esker-known-1\n\0\0";
const RECORD_LEN: usize = 80;
const DIGEST_LEN: usize = 20;
/// Maximum size of a file in bytes, above that of the records of a hundred million files.
const FILE_MAX: u64 = 8 << 30;

/// Digest of the stored location of a file's content.
type ContentId = [u8; 16];

/// Attributes and content of one published file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Record {
    key: PathKey,
    numbers: [i64; 6],
    content: ContentId,
}

impl Record {
    pub(crate) fn new(key: PathKey, facts: &Facts, entry: &Entry) -> Self {
        Self { key, numbers: numbers(facts), content: content_id(entry) }
    }

    fn encode(&self, out: &mut Vec<u8>) {
        out.extend_from_slice(&self.key.digest());
        self.numbers.iter().for_each(|number| out.extend_from_slice(&number.to_le_bytes()));
        out.extend_from_slice(&self.content);
    }

    fn decode(bytes: &[u8]) -> Option<Self> {
        let (key, rest) = bytes.split_first_chunk::<16>()?;
        let (words, content) = rest.split_at_checked(48)?;
        let mut numbers = [0; 6];
        for (number, word) in numbers.iter_mut().zip(words.chunks_exact(8)) {
            *number = i64::from_le_bytes(word.try_into().ok()?);
        }
        Some(Self { key: PathKey::from_digest(*key), numbers, content: content.try_into().ok()? })
    }
}

fn numbers(facts: &Facts) -> [i64; 6] {
    [
        facts.size.cast_signed(),
        facts.inode.cast_signed(),
        facts.mtime.seconds,
        i64::from(facts.mtime.nanoseconds),
        facts.ctime.seconds,
        i64::from(facts.ctime.nanoseconds),
    ]
}

fn content_id(entry: &Entry) -> ContentId {
    let mut hasher = Hasher::new(HashAlgorithm::Sha1);
    hasher.update(&(entry.flags.0 & STORAGE_BITS).to_le_bytes());
    if let Some(hash) = entry.hash {
        hasher.update(hash.digest());
    }
    for chunk in &entry.chunks {
        hasher.update(&chunk.offset.to_le_bytes());
        hasher.update(&chunk.size.to_le_bytes());
        hasher.update(chunk.hash.digest());
    }
    let [id @ .., _, _, _, _] = *hasher.finish().digest();
    id
}

/// The records of one target directory.
pub(crate) struct FileIndex {
    disk: Arc<dyn Disk>,
    state: PathBuf,
    path: PathBuf,
    bytes: Vec<u8>,
}

impl FileIndex {
    /// Reads the index of a target directory; empty if the file is missing or damaged.
    pub(crate) fn read(disk: Arc<dyn Disk>, state: &Path, target: &[u8]) -> Self {
        let name = ContentHash::of(HashAlgorithm::Sha1, target).hex();
        let path = state.join(state::KNOWN_FILES).join(name);
        let bytes = read_file(&*disk, &path, FILE_MAX).ok().flatten();
        Self { disk, state: state.to_owned(), path, bytes: bytes.and_then(checked).unwrap_or_default() }
    }

    /// Returns an empty index, for publishers that compare nothing with it.
    pub(crate) fn none(disk: Arc<dyn Disk>) -> Self {
        Self { disk, state: PathBuf::new(), path: PathBuf::new(), bytes: Vec::new() }
    }

    /// Returns true if a file is unchanged since it was published as `entry`, whose path has this key.
    pub(crate) fn is_unchanged(&self, key: PathKey, facts: &Facts, entry: &Entry) -> bool {
        self.find(key).is_some_and(|record| record == Record::new(key, facts, entry))
    }

    fn find(&self, key: PathKey) -> Option<Record> {
        let (records, _) = self.bytes.as_chunks::<RECORD_LEN>();
        let wanted = key.digest();
        let at = records.binary_search_by(|record| record[..16].cmp(&wanted[..])).ok()?;
        Record::decode(&records[at])
    }

    /// Replaces the records by those of the publish that just ended.
    pub(crate) fn write(&self, mut records: Vec<Record>) -> Result<(), RepositoryError> {
        records.sort_unstable_by_key(|record| record.key.digest());
        let mut bytes = Vec::with_capacity(records.len() * RECORD_LEN + MAGIC.len() + DIGEST_LEN);
        bytes.extend_from_slice(MAGIC);
        records.iter().for_each(|record| record.encode(&mut bytes));
        if bytes.get(MAGIC.len()..) == Some(&self.bytes) {
            return Ok(());
        }
        let digest = ContentHash::of(HashAlgorithm::Sha1, &bytes);
        bytes.extend_from_slice(digest.digest());
        let folder = self.path.parent().unwrap_or(&self.path);
        make_dirs(&*self.disk, folder).map_err(RepositoryError::file("making folder", folder))?;
        let _lock = state::lock(&self.state)?;
        persist(&*self.disk, &self.path, &bytes).map_err(RepositoryError::file("writing", &self.path))
    }
}

/// Returns the records of a file whose digest is right.
fn checked(bytes: Vec<u8>) -> Option<Vec<u8>> {
    let (rest, digest) = bytes.split_last_chunk::<DIGEST_LEN>()?;
    let intact = ContentHash::of(HashAlgorithm::Sha1, rest).digest() == digest;
    let records = rest.strip_prefix(MAGIC)?;
    (intact && records.len().is_multiple_of(RECORD_LEN)).then(|| records.to_vec())
}
