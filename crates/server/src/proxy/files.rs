//! Keeps the files of a repository that change, in memory, and its signed ones on disk, too.

use std::collections::HashMap;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant, SystemTime};

use bytes::Bytes;
use esker_format::manifest::{self, Manifest};
use esker_format::trust::AcceptedHead;
use esker_format::whitelist;
use parking_lot::Mutex;

use super::destinations::Group;
use super::disk::{DiskCache, record_use};
use super::flights::Flights;
use super::objects::is_due;
use super::place::Revision;
use super::target::Folder;

/// Largest file that is kept.
const KEPT_MAX: usize = 256 << 10;
/// Largest number of files that are kept for one repository.
const FILES_MAX: usize = 64;
/// Interval at which the confirmation of a saved file is recorded on disk.
const RECORD: Duration = Duration::from_secs(60);

/// Returns true for the signed files, which are saved.
pub(crate) fn is_signed(path: &str) -> bool {
    path == manifest::PATH || path == whitelist::PATH
}

/// Content of a file when it was last confirmed.
#[derive(Clone, Debug)]
pub(crate) struct Kept {
    /// The bytes; `None` if the upstream servers have no such file.
    pub(crate) content: Option<Bytes>,
    /// Time of the last confirmation by an upstream server.
    pub(crate) confirmed: SystemTime,
    /// The same since the start of this process.
    checked: Option<Instant>,
    /// Time before which the upstream servers are not asked again, because they failed.
    retry_at: Option<Instant>,
    /// Time at which the confirmation was recorded on disk.
    recorded: Option<Instant>,
    /// True if the file on disk has this content.
    is_saved: bool,
}

impl Kept {
    pub(crate) fn new(content: Option<Bytes>) -> Self {
        let checked = Some(Instant::now());
        let confirmed = SystemTime::now();
        Self { content, confirmed, checked, retry_at: None, recorded: None, is_saved: false }
    }

    /// Returns true if an upstream server confirmed it less than `age` ago.
    pub(crate) fn is_fresh(&self, age: Duration) -> bool {
        self.checked.is_some_and(|checked| checked.elapsed() < age)
    }

    /// Returns the time since an upstream server confirmed it.
    pub(crate) fn age(&self) -> Duration {
        self.confirmed.elapsed().unwrap_or_default()
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
    all: Mutex<HashMap<String, Kept>>,
    pub(crate) flights: Arc<Flights<(String, bool), Kept>>,
    /// True while the upstream servers fail, so that this is logged once.
    away: AtomicBool,
}

impl Files {
    /// Opens the files of a folder and reads the saved ones.
    pub(crate) fn open(cache: &Arc<DiskCache>, folder: &Folder) -> Self {
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
            if let Some(kept) = read(&saved.join(path)) {
                all.insert(path.to_owned(), kept);
            }
        }
        let (all, away) = (Mutex::new(all), AtomicBool::new(false));
        Self { cache: cache.clone(), saved, all, flights: Arc::default(), away }
    }

    /// Returns a file.
    pub(crate) fn get(&self, path: &str) -> Option<Kept> {
        self.all.lock().get(path).cloned()
    }

    /// Returns the last head that was handed out.
    pub(crate) fn head(&self) -> Option<AcceptedHead> {
        head_of(&self.get(manifest::PATH)?.content?)
    }

    /// Returns the last revision that was handed out.
    pub(crate) fn revision(&self) -> Option<Revision> {
        let manifest = self.get(manifest::PATH)?.content?;
        Some(Manifest::parse(&manifest).ok()?.into())
    }

    /// Keeps a file that an upstream server sent, and saves a signed one. Where that fails, it is handed out all the same, and
    /// saved at its next confirmation: should an older one be handed out after a restart, clients refuse it.
    pub(crate) fn keep(&self, path: &str, content: Option<Bytes>) -> Kept {
        let mut kept = Kept::new(content);
        let before = self.get(path);
        if let (true, Some(bytes)) = (is_signed(path), &kept.content) {
            let recorded = before.as_ref().and_then(|before| before.recorded);
            let is_same =
                before.as_ref().is_some_and(|before| before.is_saved && before.content == kept.content);
            let recorded = if is_same { recorded } else { None };
            kept.recorded = self.save(path, bytes, recorded, is_same).unwrap_or_else(|error| {
                if is_due() {
                    let file = self.saved.join(path);
                    tracing::warn!("can't save {}, which is served all the same: {error}", file.display());
                }
                None
            });
            kept.is_saved = kept.recorded.is_some();
        }
        let len = kept.content.as_ref().map_or(0, Bytes::len);
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
        path: &str,
        bytes: &[u8],
        recorded: Option<Instant>,
        is_same: bool,
    ) -> io::Result<Option<Instant>> {
        if recorded.is_some_and(|at| at.elapsed() < RECORD) {
            return Ok(recorded);
        }
        let file = self.saved.join(path);
        let is_recorded = is_same && record_use(&file).unwrap_or(false);
        if !is_recorded {
            self.cache.save(&file, bytes)?;
        }
        Ok(Some(Instant::now()))
    }

    /// Records that the upstream servers failed; they are asked for the file again after `pause`.
    pub(crate) fn failed(&self, path: &str, pause: Duration) {
        if let Some(kept) = self.all.lock().get_mut(path) {
            kept.retry_at = Some(Instant::now() + pause);
        }
    }

    /// Records whether the upstream servers fail; returns true if that is new.
    pub(crate) fn set_away(&self, away: bool) -> bool {
        self.away.swap(away, Ordering::Relaxed) != away
    }

    /// Returns true while the upstream servers fail.
    pub(crate) fn is_away(&self) -> bool {
        self.away.load(Ordering::Relaxed)
    }
}

fn read(path: &Path) -> Option<Kept> {
    let facts = fs::metadata(path).ok().filter(|facts| facts.len() <= KEPT_MAX as u64)?;
    let content = Bytes::from(fs::read(path).ok()?);
    let confirmed = facts.modified().ok()?;
    Some(Kept {
        content: Some(content),
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
