//! Maps digests of content to stored objects, so that equal content is compressed once, whatever encoder and
//! publisher stored it.
//!
//! ```text
//! content/00 … content/ff   one file for each first byte of the digest
//! file: magic (16)  records, sorted (64 each)  SHA-1 of all before (20)
//! record: SHA-256 of the plain bytes (32)  algorithm, compression, kind, 0 (1 each)  hash of the object (20)
//!         its stored length (8)
//! ```
//!
//! The files are never made durable: a damaged one fails its digest and counts as empty, as do those of the form
//! before, and everything in them can be computed from the repository. An entry is only believed if its object is
//! there and has that length, so that what was cut is stored anew.

use std::collections::HashMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use esker_format::compress::Compression;
use esker_format::hash::{ContentHash, HashAlgorithm};
use esker_format::object::{ObjectKind, ObjectName};
use esker_repository::{Repository, RepositoryError, state};
use esker_store::{Disk, make_dirs, read_file, replace};
use parking_lot::Mutex;
use sha2::{Digest as _, Sha256};

const MAGIC: &[u8; 16] = b"esker-content-2\n";
const RECORD_LEN: usize = 64;
const DIGEST_LEN: usize = 20;
const SHARDS: usize = 256;
/// Maximum size of a file in bytes, above that of an index of a billion objects.
const FILE_MAX: u64 = 1 << 30;

/// Digest of plain content with its encoding: the key of the content index.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) struct ContentKey {
    digest: [u8; 32],
    form: [u8; 4],
}

impl ContentKey {
    /// Returns the key of content for an encoding.
    pub(crate) fn of(
        plain: &[u8],
        algorithm: HashAlgorithm,
        compression: Compression,
        kind: ObjectKind,
    ) -> Self {
        let kind = if kind == ObjectKind::Chunk { 1 } else { 0 };
        let form = [algorithm.to_flag(), compression.to_flag(), kind, 0];
        Self { digest: Sha256::digest(plain).into(), form }
    }

    /// Returns the key of the same content in another encoding.
    pub(crate) fn with(self, compression: Compression) -> Self {
        let [algorithm, _, kind, last] = self.form;
        Self { form: [algorithm, compression.to_flag(), kind, last], ..self }
    }

    fn object(&self, digest: [u8; 20]) -> Option<ObjectName> {
        let algorithm = HashAlgorithm::from_flag(self.form[0])?;
        let kind = if self.form[2] == 1 { ObjectKind::Chunk } else { ObjectKind::File };
        Some(ObjectName::new(ContentHash::new(algorithm, digest), kind))
    }
}

/// The digest and stored length of an object.
type Stored = ([u8; 20], u64);

#[derive(Debug, Default)]
struct Shard {
    /// Entries of the file; none until the first use.
    entries: Option<HashMap<ContentKey, Stored>>,
    changed: bool,
}

/// Content index of one repository.
pub(crate) struct ContentIndex {
    disk: Arc<dyn Disk>,
    state: PathBuf,
    folder: PathBuf,
    shards: Vec<Mutex<Shard>>,
    /// True to write what has changed also if the publish fails.
    is_kept: bool,
}

impl ContentIndex {
    /// Returns the index of a repository, without reading it.
    pub(crate) fn of(repository: &Repository) -> Self {
        Self::new(repository.disks().private.clone(), repository.state())
    }

    /// Creates the index in a publisher's folder, without reading it.
    fn new(disk: Arc<dyn Disk>, state: &Path) -> Self {
        let shards = (0..SHARDS).map(|_| Mutex::default()).collect();
        Self { disk, state: state.to_owned(), folder: state.join(state::CONTENTS), shards, is_kept: false }
    }

    /// Has what changes written also by a publish that fails or is interrupted: its objects are stored, and the next one
    /// needs to know them.
    pub(crate) fn kept(mut self) -> Self {
        self.is_kept = true;
        self
    }

    /// Looks content up in the index; returns the object and its stored length.
    pub(crate) fn find(&self, key: &ContentKey) -> Option<(ObjectName, u64)> {
        let mut shard = self.shard(key).lock();
        let stored = self.entries(&mut shard, key).get(key).copied();
        drop(shard);
        let (digest, len) = stored?;
        key.object(digest).map(|object| (object, len))
    }

    /// Adds content and its object to the index.
    pub(crate) fn insert(&self, key: ContentKey, object: &ObjectName, len: u64) {
        let stored = (*object.hash.digest(), len);
        let mut shard = self.shard(&key).lock();
        let before = self.entries(&mut shard, &key).insert(key, stored);
        shard.changed |= before != Some(stored);
    }

    /// Writes the changed parts of the index.
    pub(crate) fn write(&self) -> Result<(), RepositoryError> {
        let mut made_folder = false;
        for (number, shard) in self.shards.iter().enumerate() {
            let mut shard = shard.lock();
            let (true, Some(entries)) = (shard.changed, &shard.entries) else { continue };
            if !made_folder {
                make_dirs(&*self.disk, &self.folder)
                    .map_err(RepositoryError::file("making folder", &self.folder))?;
                made_folder = true;
            }
            let path = self.folder.join(format!("{number:02x}"));
            let _lock = state::lock(&self.state)?;
            // Another publisher may have written it since it was read.
            let mut all = self.read(&path);
            all.extend(entries);
            replace(&*self.disk, &path, &encode(&all)).map_err(RepositoryError::file("writing", &path))?;
            shard.changed = false;
        }
        Ok(())
    }

    /// Removes all entries: some name objects that are no longer stored.
    pub(crate) fn forget(&self) {
        for (number, shard) in self.shards.iter().enumerate() {
            *shard.lock() = Shard { entries: Some(HashMap::new()), changed: false };
            // What stays there is found to be wrong again.
            let _ = state::remove(&*self.disk, &self.folder.join(format!("{number:02x}")));
        }
    }

    fn shard(&self, key: &ContentKey) -> &Mutex<Shard> {
        &self.shards[usize::from(key.digest[0])]
    }

    fn entries<'s>(&self, shard: &'s mut Shard, key: &ContentKey) -> &'s mut HashMap<ContentKey, Stored> {
        shard.entries.get_or_insert_with(|| self.read(&self.folder.join(format!("{:02x}", key.digest[0]))))
    }

    fn read(&self, path: &Path) -> HashMap<ContentKey, Stored> {
        let bytes = read_file(&*self.disk, path, FILE_MAX).ok().flatten();
        bytes.and_then(|bytes| decode(&bytes)).unwrap_or_default()
    }
}

impl Drop for ContentIndex {
    fn drop(&mut self) {
        if self.is_kept {
            // The failure of the publish is reported; without the index its objects are stored again.
            let _ = self.write();
        }
    }
}

fn encode(entries: &HashMap<ContentKey, Stored>) -> Vec<u8> {
    let mut sorted: Vec<_> = entries.iter().collect();
    sorted.sort_unstable();
    let mut bytes = MAGIC.to_vec();
    for (key, (object, len)) in sorted {
        bytes.extend_from_slice(&key.digest);
        bytes.extend_from_slice(&key.form);
        bytes.extend_from_slice(object);
        bytes.extend_from_slice(&len.to_le_bytes());
    }
    let digest = ContentHash::of(HashAlgorithm::Sha1, &bytes);
    bytes.extend_from_slice(digest.digest());
    bytes
}

fn decode(bytes: &[u8]) -> Option<HashMap<ContentKey, Stored>> {
    let (rest, digest) = bytes.split_last_chunk::<DIGEST_LEN>()?;
    if ContentHash::of(HashAlgorithm::Sha1, rest).digest() != digest {
        return None;
    }
    let (records, []) = rest.strip_prefix(MAGIC)?.as_chunks::<RECORD_LEN>() else { return None };
    let decode = |record: &[u8; RECORD_LEN]| {
        let (digest, rest) = record.split_first_chunk::<32>()?;
        let (form, rest) = rest.split_first_chunk::<4>()?;
        let (object, len) = rest.split_first_chunk::<20>()?;
        let stored = (*object, u64::from_le_bytes(len.try_into().ok()?));
        Some((ContentKey { digest: *digest, form: *form }, stored))
    };
    records.iter().map(decode).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn entries_that_another_publisher_wrote_meanwhile_stay() {
        let folder = tempfile::tempdir().unwrap();
        let key = |number: u32| {
            let plain = number.to_le_bytes();
            ContentKey::of(&plain, HashAlgorithm::Sha1, Compression::Zlib, ObjectKind::File)
        };
        let object = ObjectName::new(ContentHash::of(HashAlgorithm::Sha1, b"object"), ObjectKind::File);
        let open = || ContentIndex::new(Arc::new(esker_store::RealDisk::PRIVATE), folder.path());
        let (first, second) = (open(), open());
        for number in 0..2000 {
            let index = if number % 2 == 0 { &first } else { &second };
            index.insert(key(number), &object, 1);
        }
        first.write().unwrap();
        second.write().unwrap();
        assert!((0..2000).all(|number| open().find(&key(number)).is_some()));
    }

    #[test]
    fn a_kept_index_is_written_when_a_publish_fails() {
        let folder = tempfile::tempdir().unwrap();
        let key = ContentKey::of(b"plain", HashAlgorithm::Sha1, Compression::Zlib, ObjectKind::File);
        let object = ObjectName::new(ContentHash::of(HashAlgorithm::Sha1, b"object"), ObjectKind::File);
        let open = || ContentIndex::new(Arc::new(esker_store::RealDisk::PRIVATE), folder.path());
        open().insert(key, &object, 6);
        assert_eq!(open().find(&key), None, "as in a dry run");
        open().kept().insert(key, &object, 6);
        assert_eq!(open().find(&key), Some((object, 6)));
    }

    #[test]
    fn entries_last_and_damage_is_noticed() {
        let folder = tempfile::tempdir().unwrap();
        let key = |text: &str| {
            ContentKey::of(text.as_bytes(), HashAlgorithm::Rmd160, Compression::Zstd, ObjectKind::Chunk)
        };
        let object = |text: &str| {
            ObjectName::new(ContentHash::of(HashAlgorithm::Rmd160, text.as_bytes()), ObjectKind::Chunk)
        };
        let open = || ContentIndex::new(Arc::new(esker_store::RealDisk::PRIVATE), folder.path());
        let index = open();
        let texts: Vec<String> = (0..1000).map(|number| number.to_string()).collect();
        texts.iter().for_each(|text| index.insert(key(text), &object(text), 7));
        index.write().unwrap();
        let again = open();
        for text in &texts {
            assert_eq!(again.find(&key(text)), Some((object(text), 7)));
        }
        assert_eq!(again.find(&key("none")), None);
        let other = ContentKey::of(b"1", HashAlgorithm::Rmd160, Compression::Zlib, ObjectKind::Chunk);
        assert_eq!(again.find(&other), None);

        let damaged = folder.path().join("content").join(format!("{:02x}", key("5").digest[0]));
        let mut bytes = std::fs::read(&damaged).unwrap();
        let middle = bytes.len() / 2;
        bytes[middle] ^= 1;
        std::fs::write(&damaged, bytes).unwrap();
        assert_eq!(open().find(&key("5")), None);
    }
}
