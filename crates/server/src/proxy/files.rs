//! Keeps the files of a repository that change, in memory, and its signed ones on disk, too.
//!
//! ```text
//! DIR/heads/GROUP/NAME/verified/   signed files that were verified with the repository's keys
//! DIR/heads/GROUP/NAME/            those that no key was known for
//! ```
//!
//! A verified manifest is the oldest one that is accepted from then on, also after a restart. One that wasn't verified is so only
//! for a short time after a server confirmed it: a forged one must not shut the repository out (docs/decisions/0169-heads-without-keys.md).

use std::collections::HashMap;
use std::fs::{self, File};
use std::io;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Weak};
use std::time::{Duration, Instant, SystemTime};

use bytes::Bytes;
use esker_format::hash::ContentHash;
use esker_format::manifest::{self, Manifest};
use esker_format::time::UnixTime;
use esker_format::trust::AcceptedHead;
use esker_format::whitelist::{self, Whitelist};
use parking_lot::Mutex;

use super::destinations::Group;
use super::disk::{DiskCache, record_use};
use super::flights::SharedTasks;
use super::objects::{Object, is_due};
use super::place::Revision;
use super::target::Folder;

/// Largest file that is kept.
pub(crate) const KEPT_MAX: u64 = 256 << 10;
/// Name of the folder of verified files.
const VERIFIED: &str = "verified";
/// Maximum number of files that are kept for one repository.
const FILES_MAX: usize = 64;
/// Interval at which the confirmation of a saved file is recorded on disk.
const RECORD: Duration = Duration::from_secs(60);

/// Returns true for the signed files, which are saved.
pub(crate) fn is_signed(path: &str) -> bool {
    path == manifest::PATH || path == whitelist::PATH
}

/// Content of a file when it was last confirmed.
#[derive(Clone, Debug)]
pub(crate) struct ConfirmedFile {
    /// The bytes; `None` if the upstream servers have no such file.
    pub(crate) content: Option<Object>,
    /// True if it was verified with the repository's keys.
    pub(crate) is_verified: bool,
    /// Time of the last confirmation by an upstream server.
    pub(crate) confirmed: SystemTime,
    /// Time of that confirmation by this process's clock; `None` if an earlier process had it.
    checked: Option<Instant>,
    /// Time before which the upstream servers are not asked again, because they failed.
    retry_at: Option<Instant>,
    /// Time at which the confirmation was recorded on disk.
    recorded: Option<Instant>,
    /// True if the file on disk has this content.
    is_saved: bool,
}

impl ConfirmedFile {
    pub(crate) fn new(content: Option<Object>, is_verified: bool) -> Self {
        let checked = Some(Instant::now());
        let confirmed = SystemTime::now();
        Self { content, is_verified, confirmed, checked, retry_at: None, recorded: None, is_saved: false }
    }

    /// Returns the bytes, if they are in memory, as those of kept files are.
    pub(crate) fn bytes(&self) -> Option<&Bytes> {
        match self.content.as_ref()? {
            Object::Bytes(bytes) => Some(bytes),
            Object::File(..) => None,
        }
    }

    /// Returns true if an upstream server confirmed it less than `age` ago.
    pub(crate) fn is_fresh(&self, age: Duration) -> bool {
        self.checked.is_some_and(|checked| checked.elapsed() < age)
    }

    /// Returns the time since an upstream server confirmed it.
    pub(crate) fn age(&self) -> Duration {
        self.confirmed.elapsed().unwrap_or_default()
    }

    /// Returns true if the upstream servers failed when they were asked last.
    pub(crate) fn has_failed(&self) -> bool {
        self.retry_at.is_some()
    }

    /// Returns true if the upstream servers failed a short time ago.
    pub(crate) fn waits(&self) -> bool {
        self.retry_at.is_some_and(|at| Instant::now() < at)
    }
}

/// Returns the head that a manifest describes.
pub(crate) fn head_of(bytes: &[u8]) -> Option<AcceptedHead> {
    let Manifest { revision, timestamp, root_catalog, .. } = Manifest::parse(bytes).ok()?;
    Some(AcceptedHead { revision, timestamp, root: root_catalog, whitelist: None })
}

/// The changing files of one folder.
pub(crate) struct Files {
    cache: Arc<DiskCache>,
    /// Folder of the saved files.
    saved: PathBuf,
    all: Mutex<HashMap<String, ConfirmedFile>>,
    /// Files that are too large to be kept, while they are sent, by their paths.
    large: Mutex<HashMap<String, (ContentHash, Weak<File>)>>,
    pub(crate) flights: Arc<SharedTasks<(String, bool), ConfirmedFile>>,
    /// Head that is handed out in place of the kept one while no server that answers has that.
    older: Mutex<Option<ConfirmedFile>>,
    /// True while the upstream servers are unreachable; an outage is logged once.
    unreachable: AtomicBool,
}

impl Files {
    /// Opens the files of a folder and reads the saved ones; only verified ones if keys are known.
    pub(crate) fn open(cache: &Arc<DiskCache>, folder: &Folder, has_keys: bool) -> Self {
        let group = match &folder.group {
            Group::Upstreams => "upstreams".to_owned(),
            Group::Storage => "storage".to_owned(),
            Group::Host(origin) => {
                let is_plain = |letter: char| letter.is_ascii_alphanumeric() || ".-".contains(letter);
                origin.to_string().chars().map(|letter| if is_plain(letter) { letter } else { '_' }).collect()
            }
        };
        let saved = cache.heads().join(group).join(&folder.path);
        let mut all = HashMap::new();
        for path in [manifest::PATH, whitelist::PATH] {
            let unverified = if has_keys { None } else { read(&saved.join(path), false) };
            let verified = read(&saved.join(VERIFIED).join(path), true);
            if let Some(kept) = unverified.into_iter().chain(verified).max_by_key(|kept| kept.confirmed) {
                all.insert(path.to_owned(), kept);
            }
        }
        let (all, large, unreachable) = (Mutex::new(all), Mutex::default(), AtomicBool::new(false));
        let (flights, older) = (Arc::default(), Mutex::default());
        Self { cache: cache.clone(), saved, all, large, flights, older, unreachable }
    }

    /// Returns a file.
    pub(crate) fn get(&self, path: &str) -> Option<ConfirmedFile> {
        self.all.lock().get(path).cloned()
    }

    /// Returns the manifest to hand out in place of the kept one.
    pub(crate) fn older(&self, path: &str) -> Option<ConfirmedFile> {
        self.older.lock().clone().filter(|_| path == manifest::PATH)
    }

    /// Sets the manifest to hand out in place of the kept one, which stays the oldest that is accepted.
    pub(crate) fn set_older(&self, older: Option<ConfirmedFile>) {
        *self.older.lock() = older;
    }

    /// Returns the last head that was handed out.
    pub(crate) fn head(&self) -> Option<AcceptedHead> {
        head_of(self.get(manifest::PATH)?.bytes()?)
    }

    /// Returns the head that no accepted one is older than: the last one, if it was verified and keys are known. Without keys it
    /// is so for `lasting` after a server confirmed it.
    pub(crate) fn floor(&self, has_keys: bool, lasting: Duration) -> Option<AcceptedHead> {
        let kept = self.get(manifest::PATH)?;
        let is_floor = if has_keys { kept.is_verified } else { kept.is_fresh(lasting) };
        head_of(kept.bytes().filter(|_| is_floor)?)
    }

    /// Returns the time of the last verified whitelist.
    pub(crate) fn whitelist_time(&self) -> Option<UnixTime> {
        let kept = self.get(whitelist::PATH).filter(|kept| kept.is_verified)?;
        Whitelist::parse(kept.bytes()?).ok()?.created
    }

    /// Returns the file in place of another one with the same content that is being sent, or that one.
    pub(crate) fn share(&self, path: &str, hash: ContentHash, file: Arc<File>) -> Arc<File> {
        let mut large = self.large.lock();
        large.retain(|_, (_, file)| file.strong_count() > 0);
        let known = large.get(path).filter(|(known, _)| *known == hash).and_then(|(_, file)| file.upgrade());
        let file = known.unwrap_or(file);
        large.insert(path.to_owned(), (hash, Arc::downgrade(&file)));
        file
    }

    /// Returns the last revision that was handed out.
    pub(crate) fn revision(&self) -> Option<Revision> {
        Some(Manifest::parse(self.get(manifest::PATH)?.bytes()?).ok()?.into())
    }

    /// Keeps a file that an upstream server sent, and saves a signed one. Where that fails, it is handed out all the same, and
    /// saved at its next confirmation: should an older one be handed out after a restart, clients refuse it.
    pub(crate) fn keep(&self, path: &str, content: Option<Object>, is_verified: bool) -> ConfirmedFile {
        let mut kept = ConfirmedFile::new(content, is_verified);
        let before = self.get(path);
        if let (true, Some(bytes)) = (is_signed(path), kept.bytes().cloned()) {
            let recorded = before.as_ref().and_then(|before| before.recorded);
            let is_same = before.as_ref().is_some_and(|before| {
                before.is_saved && before.is_verified == is_verified && before.bytes() == Some(&bytes)
            });
            let recorded = if is_same { recorded } else { None };
            let file = if is_verified { self.saved.join(VERIFIED) } else { self.saved.clone() }.join(path);
            kept.recorded = self.save(&file, &bytes, recorded, is_same).unwrap_or_else(|error| {
                if is_due() {
                    tracing::warn!("can't save {}, which is served all the same: {error}", file.display());
                }
                None
            });
            kept.is_saved = kept.recorded.is_some();
        }
        let len = kept.content.as_ref().map_or(0, Object::len);
        let mut all = self.all.lock();
        if len > KEPT_MAX {
            all.remove(path);
            return kept;
        }
        if all.len() >= FILES_MAX && !all.contains_key(path) {
            let others = all.iter().filter(|(path, _)| !is_signed(path));
            let oldest = others.min_by_key(|(_, kept)| kept.confirmed).map(|(path, _)| path.clone());
            oldest.and_then(|oldest| all.remove(&oldest));
        }
        all.insert(path.to_owned(), kept.clone());
        kept
    }

    fn save(
        &self,
        file: &Path,
        bytes: &[u8],
        recorded: Option<Instant>,
        is_same: bool,
    ) -> io::Result<Option<Instant>> {
        if recorded.is_some_and(|at| at.elapsed() < RECORD) {
            return Ok(recorded);
        }
        let is_recorded = is_same && record_use(file).unwrap_or(false);
        if !is_recorded {
            self.cache.save(file, bytes)?;
        }
        Ok(Some(Instant::now()))
    }

    /// Records that the upstream servers failed; they are asked for the file again after `pause`.
    pub(crate) fn failed(&self, path: &str, pause: Duration) {
        if let Some(kept) = self.all.lock().get_mut(path) {
            kept.retry_at = Some(Instant::now() + pause);
        }
    }

    /// Records whether the upstream servers are unreachable; returns true if that changed.
    pub(crate) fn set_unreachable(&self, unreachable: bool) -> bool {
        self.unreachable.swap(unreachable, Ordering::Relaxed) != unreachable
    }

    /// Returns true while the upstream servers are unreachable.
    pub(crate) fn is_unreachable(&self) -> bool {
        self.unreachable.load(Ordering::Relaxed)
    }
}

fn read(path: &Path, is_verified: bool) -> Option<ConfirmedFile> {
    let facts = fs::metadata(path).ok().filter(|facts| facts.len() <= KEPT_MAX)?;
    let content = Bytes::from(fs::read(path).ok()?);
    let confirmed = facts.modified().ok()?;
    Some(ConfirmedFile {
        content: Some(Object::Bytes(content)),
        is_verified,
        confirmed,
        checked: None,
        retry_at: None,
        recorded: None,
        is_saved: true,
    })
}

impl From<Manifest> for Revision {
    fn from(manifest: Manifest) -> Self {
        let Manifest { revision, root_catalog, timestamp, .. } = manifest;
        Self { number: revision, root: root_catalog.to_string(), signed: timestamp.0 }
    }
}
