//! The last accepted head of a repository and key set, on disk.
//!
//! ```text
//!   <cache>/heads/<repository>-<id of the key set>.head
//!   0  "ESKERHD1"
//!   8  accepted at, confirmed at (8 each, little endian, seconds since 1970)
//!  24  lengths of manifest, whitelist and certificate (4 each), then their bytes
//!  …   XXH3-128 of all bytes before (16)
//! ```
//!
//! The file keeps the evidence, not the verdict: every load verifies it again, as of the time it was accepted.
//! Written by `persist`, so after a crash there is the old head or the new one. Locking rule: several mounts
//! of a user may save; each takes the flock of `heads/lock` and never replaces a newer head.

use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use esker_format::hash::ContentHash;
use esker_format::name::RepositoryName;
use esker_format::time::UnixTime;
use xxhash_rust::xxh3::xxh3_128;

use crate::cache::disk::{Disk, persist};
use crate::file_lock::FileLock;

const MAGIC: &[u8; 8] = b"ESKERHD1";
/// Maximum size of the file in bytes, far above that of manifest, whitelist and certificate together.
const FILE_MAX: u64 = 16 << 20;

/// Signed texts that prove a head.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Evidence {
    pub(super) manifest: Vec<u8>,
    pub(super) whitelist: Vec<u8>,
    pub(super) certificate: Vec<u8>,
}

/// A saved head.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Saved {
    /// Time of verification.
    pub(super) accepted: UnixTime,
    /// Time of a server's last offer of this head.
    pub(super) confirmed: UnixTime,
    pub(super) evidence: Evidence,
}

/// File with the saved head of one repository and key set.
pub(super) struct SavedFile {
    disk: Arc<dyn Disk>,
    path: PathBuf,
    lock: PathBuf,
}

impl SavedFile {
    pub(super) fn new(disk: Arc<dyn Disk>, heads: &Path, name: &RepositoryName, keys: &ContentHash) -> Self {
        let path = heads.join(format!("{name}-{}.head", keys.hex()));
        Self { disk, path, lock: heads.join("lock") }
    }

    pub(super) fn path(&self) -> &Path {
        &self.path
    }

    /// Locks the file against other processes until the result is dropped, which is milliseconds later.
    pub(super) fn lock(&self) -> io::Result<FileLock> {
        FileLock::wait(&self.lock)
    }

    /// Reads the file; none if it is missing or damaged.
    pub(super) fn load(&self) -> Option<Saved> {
        let facts =
            self.disk.facts(&self.path).ok().filter(|facts| facts.regular && facts.len <= FILE_MAX)?;
        let file = self.disk.open(&self.path).ok()?;
        let mut bytes = vec![0; usize::try_from(facts.len).ok()?];
        self.disk.read_exact_at(&file, &mut bytes, 0).ok()?;
        Saved::decode(&bytes)
    }

    pub(super) fn save(&self, saved: &Saved) -> io::Result<()> {
        persist(&*self.disk, &self.path, &saved.encode()?)
    }

    /// Removes the file durably.
    pub(super) fn forget(&self) -> io::Result<()> {
        match self.disk.remove(&self.path) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
            _ => {}
        }
        match self.path.parent() {
            Some(folder) => self.disk.sync_dir(folder),
            None => Ok(()),
        }
    }
}

impl Saved {
    fn encode(&self) -> io::Result<Vec<u8>> {
        let parts = [&self.evidence.manifest, &self.evidence.whitelist, &self.evidence.certificate];
        let mut bytes = MAGIC.to_vec();
        bytes.extend_from_slice(&self.accepted.0.to_le_bytes());
        bytes.extend_from_slice(&self.confirmed.0.to_le_bytes());
        for part in parts {
            let len = u32::try_from(part.len()).map_err(|_| io::ErrorKind::FileTooLarge)?;
            bytes.extend_from_slice(&len.to_le_bytes());
        }
        for part in parts {
            bytes.extend_from_slice(part);
        }
        let digest = xxh3_128(&bytes);
        bytes.extend_from_slice(&digest.to_le_bytes());
        Ok(bytes)
    }

    fn decode(bytes: &[u8]) -> Option<Self> {
        let (body, digest) = bytes.split_last_chunk::<16>()?;
        if xxh3_128(body) != u128::from_le_bytes(*digest) {
            return None;
        }
        let (accepted, rest) = body.strip_prefix(MAGIC)?.split_first_chunk::<8>()?;
        let (confirmed, rest) = rest.split_first_chunk::<8>()?;
        let (lengths, mut rest) = rest.split_first_chunk::<12>()?;
        let mut part = |at: usize| -> Option<Vec<u8>> {
            let len = u32::from_le_bytes(*lengths.get(at..)?.first_chunk::<4>()?);
            let (part, after) = rest.split_at_checked(usize::try_from(len).ok()?)?;
            rest = after;
            Some(part.to_vec())
        };
        let evidence = Evidence { manifest: part(0)?, whitelist: part(4)?, certificate: part(8)? };
        rest.is_empty().then_some(Self {
            accepted: UnixTime(i64::from_le_bytes(*accepted)),
            confirmed: UnixTime(i64::from_le_bytes(*confirmed)),
            evidence,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_damaged_saved_head_is_ignored_as_a_whole() {
        let evidence =
            Evidence { manifest: b"manifest".to_vec(), whitelist: vec![], certificate: b"pem".to_vec() };
        let saved = Saved { accepted: UnixTime(5), confirmed: UnixTime(-7), evidence };
        let bytes = saved.encode().unwrap();
        assert_eq!(Saved::decode(&bytes), Some(saved));
        for cut in 0..bytes.len() {
            assert_eq!(Saved::decode(&bytes[..cut]), None);
        }
        for at in 0..bytes.len() {
            let mut changed = bytes.clone();
            changed[at] ^= 4;
            assert_eq!(Saved::decode(&changed), None);
        }
    }
}
