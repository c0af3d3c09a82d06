//! A repository in a bucket.
//!
//! Objects are uploaded in the background, a bounded number and size at once; [`Sink::flush`] waits for them. Every
//! object is whole: a server shows a put once it has all bytes, whose digest is part of the signature. So a stored
//! object is known by its length alone. What a server accepts is compared with the checksum or the length that it answers
//! with, or read back if the settings say so; the head is always read back.

mod uploads;

use std::cell::RefCell;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use bytes::Bytes;
use esker_format::manifest;
use esker_format::object::ObjectName;
use futures_util::stream::{self, StreamExt, TryStreamExt};
use parking_lot::Mutex;

use esker_store::{
    Cause, FileLock, Listed, Locking, Put, RequestThread, SignedPut, Sink, StoreError, StoredFiles, Swap,
};

use super::THREAD;
use super::open::public_url;
use super::probe::{is_remembered, probe, remember};
use super::replace::{Replaced, replace};
use super::requests::{FileKind, ReadFailure, Requests};
use crate::settings::StorageSettings;
use crate::url::Bucket;
use esker_store::StorageProblem;
use uploads::Uploads;

/// Length from which the server is asked for an object before it is sent. The caller waits for the answer, so asking for
/// smaller ones would cost more than sending them again.
const ASK_FROM: usize = 1 << 20;
/// Number of folders that are listed at once.
const LISTED_AT_ONCE: usize = 8;
/// Maximum number of names in memory while a repository is removed.
const REMOVED_AT_ONCE: usize = 100_000;
/// Size up to which a root file is read to be compared; a larger one is only equal to expected content of its size.
const ROOT_FILE_MAX: u64 = 1 << 20;

/// A repository in a bucket, to publish to.
pub struct ObjectSink {
    place: String,
    /// Endpoint and address, by which the probe is remembered.
    probed: String,
    lock: Option<PathBuf>,
    state: Option<PathBuf>,
    requests: Requests,
    uploads: Arc<Uploads>,
    /// True if conditional puts are known to be atomic.
    is_atomic: Mutex<bool>,
    /// True if the server is known to compare objects with the checksums that requests are signed for.
    compares: Mutex<Option<bool>>,
    thread: RequestThread,
}

impl ObjectSink {
    /// Opens a bucket, without a request to it.
    pub fn open(bucket: &Bucket, settings: &StorageSettings) -> Result<Self, StoreError> {
        let place = bucket.to_string();
        let failed = |problem| failure(&place, "opening", ".cvmfspublished", problem);
        let requests = Requests::new(bucket, settings).map_err(failed)?;
        let thread = RequestThread::start(THREAD).map_err(|error| {
            failed(StorageProblem::Unavailable(format!("a thread can't be started: {error}")))
        })?;
        let endpoint = public_url(bucket, settings).unwrap_or_default();
        Ok(Self {
            probed: format!("{place} {endpoint}"),
            place,
            lock: settings.lock.clone(),
            state: settings.state.clone(),
            requests,
            uploads: Arc::new(Uploads::new(settings.connections())),
            is_atomic: Mutex::new(false),
            compares: Mutex::default(),
            thread,
        })
    }

    fn failed(&self, doing: &'static str, key: &str) -> impl Fn(StorageProblem) -> StoreError + use<> {
        let (place, key) = (self.place.clone(), key.to_owned());
        move |problem| failure(&place, doing, &key, problem)
    }

    /// Makes sure that conditional puts are atomic, or that publishers have a lock: by the publisher's state, or by a
    /// probe.
    fn ensure_safe(&self) -> Result<(), StoreError> {
        if self.lock.is_some() {
            return Ok(());
        }
        let mut is_atomic = self.is_atomic.lock();
        if *is_atomic {
            return Ok(());
        }
        if !self.state.as_ref().is_some_and(|state| is_remembered(state, &self.probed)) {
            let probed = self.thread.wait_for(probe(&self.requests));
            probed.map_err(self.failed("probing conditional puts by", ".esker/probe"))?;
            if let Some(state) = &self.state {
                remember(state, &self.probed);
            }
        }
        *is_atomic = true;
        Ok(())
    }

    /// Returns the content of a file in the root.
    fn root_file(&self, name: &str, limit: u64) -> Result<Option<Bytes>, StoreError> {
        let found = self.thread.wait_for(self.requests.get(name, limit));
        match found {
            Ok(found) => Ok(found.map(|(bytes, _)| bytes)),
            Err(ReadFailure::TooLarge) => {
                Err(StoreError::new(name, Cause::TooLarge { limit }).from_place(self.describe()))
            }
            Err(ReadFailure::Problem(problem)) => Err(self.failed("reading", name)(problem)),
        }
    }

    fn delete_files(&self, files: &[String]) -> Result<(), StoreError> {
        let Some(first) = files.first() else { return Ok(()) };
        self.thread.wait_for(self.requests.delete(files)).map_err(self.failed("deleting", first))
    }
}

fn failure(place: &str, doing: &'static str, key: &str, problem: StorageProblem) -> StoreError {
    let (key, bucket) = (key.to_owned(), place.to_owned());
    StoreError::new("the storage", Cause::Bucket { doing, key, bucket, problem })
}

/// Returns the folders of objects.
fn object_folders() -> impl Iterator<Item = String> {
    (0..=u8::MAX).map(|byte| format!("data/{byte:02x}"))
}

impl StoredFiles for ObjectSink {
    fn describe(&self) -> String {
        self.place.clone()
    }

    fn read(&self, path: &str, limit: u64) -> Result<Option<Vec<u8>>, StoreError> {
        Ok(self.root_file(path, limit)?.map(Vec::from))
    }

    fn read_to(&self, path: &str, to: &mut dyn Write) -> Result<Option<u64>, StoreError> {
        let failed = self.failed("reading", path);
        let Some((len, mut pieces)) = self.thread.wait_for(self.requests.pieces(path)).map_err(&failed)?
        else {
            return Ok(None);
        };
        let mut copied = 0;
        while let Some(piece) = self.thread.wait_for(pieces.try_next()).map_err(&failed)? {
            copied += piece.len() as u64;
            to.write_all(&piece).map_err(|source| {
                let cause = Cause::Disk { doing: "copying", path: path.into(), source };
                StoreError::new("the storage", cause).from_place(self.describe())
            })?;
        }
        if copied != len {
            let problem = StorageProblem::Damaged(format!("{copied} of {len} bytes came"));
            return Err(failed(problem));
        }
        Ok(Some(len))
    }
}

impl Sink for ObjectSink {
    fn folder(&self) -> Option<&Path> {
        None
    }

    fn make_folders(&self) -> Result<(), StoreError> {
        self.list_root().map(drop)
    }

    fn prepare(&self) -> Result<(), StoreError> {
        self.ensure_safe()
    }

    fn lock_root(&self) -> Result<Option<Locking>, StoreError> {
        self.ensure_safe()?;
        let Some(path) = &self.lock else { return Ok(None) };
        let locking = FileLock::try_take(path).map_err(|source| {
            StoreError::new("the storage", Cause::Disk { doing: "locking", path: path.clone(), source })
        })?;
        Ok(Some(locking))
    }

    fn put(&self, name: &ObjectName, stored: &[u8]) -> Result<Put, StoreError> {
        if self.uploads.is_pending(name) {
            return Ok(Put::Present);
        }
        let is_asked_for = stored.len() >= ASK_FROM || self.uploads.was_stored(name);
        if is_asked_for && self.len_of(name)? == Some(stored.len() as u64) {
            return Ok(Put::Present);
        }
        self.put_anew(name, stored)
    }

    fn put_anew(&self, name: &ObjectName, stored: &[u8]) -> Result<Put, StoreError> {
        let Some(upload) = Uploads::begin(&self.uploads, name, stored.len() as u64)? else {
            return Ok(Put::Present);
        };
        let bytes = Bytes::copy_from_slice(stored);
        let (requests, file) = (self.requests.clone(), name.path());
        let failed = self.failed("storing", &file);
        self.thread.start_task(async move {
            let outcome = requests.put(&file, bytes, FileKind::Object).await;
            upload.end(outcome.map_err(failed));
        });
        Ok(Put::Stored)
    }

    fn has(&self, name: &ObjectName, len: u64) -> Result<bool, StoreError> {
        Ok(self.uploads.is_pending(name) || self.len_of(name)? == Some(len))
    }

    fn len_of(&self, name: &ObjectName) -> Result<Option<u64>, StoreError> {
        let file = name.path();
        self.thread.wait_for(self.requests.len_of(&file)).map_err(self.failed("looking for", &file))
    }

    fn at_once(&self) -> usize {
        self.uploads.at_once()
    }

    fn missing(&self, names: &[ObjectName]) -> Result<Vec<ObjectName>, StoreError> {
        let asked = stream::iter(names).map(|name| async move {
            let found = self.requests.len_of(&name.path()).await?;
            Ok(found.is_none().then_some(*name))
        });
        let missing = asked.buffered(self.at_once()).try_filter_map(async |missing| Ok(missing));
        self.thread.wait_for(missing.try_collect()).map_err(self.failed("looking for", "data"))
    }

    fn signed_puts(
        &self,
        objects: &[(ObjectName, u64)],
        valid: Duration,
    ) -> Result<Option<Vec<SignedPut>>, StoreError> {
        let Some(signer) = &self.requests.signer else { return Ok(None) };
        let mut compares = self.compares.lock();
        let is_checked = match *compares {
            Some(known) => known,
            None => {
                let probed = self.thread.wait_for(signer.probe(&self.requests));
                *compares.insert(probed.map_err(self.failed("probing checksums by", ".esker/probe-put"))?)
            }
        };
        drop(compares);
        let signed = self.thread.wait_for(async {
            let mut signed = Vec::new();
            for (name, len) in objects {
                signed.push(signer.put(&self.requests, (name, *len), (is_checked, valid)).await?);
            }
            Ok(signed)
        });
        signed.map(Some).map_err(self.failed("signing requests for", "data"))
    }

    fn flush(&self) -> Result<(), StoreError> {
        self.uploads.flush()
    }

    fn put_root(&self, name: &str, bytes: &[u8]) -> Result<(), StoreError> {
        let put = self.requests.put(name, Bytes::copy_from_slice(bytes), FileKind::Root);
        self.thread.wait_for(put).map_err(self.failed("writing", name))
    }

    fn replace_root(&self, name: &str, bytes: &[u8], expected: Option<&[u8]>) -> Result<Swap, StoreError> {
        self.ensure_safe()?;
        if self.lock.is_some() {
            // The caller holds the lock.
            let limit = ROOT_FILE_MAX.max(expected.map_or(0, |content| content.len() as u64));
            let found = match self.root_file(name, limit) {
                Err(error) if matches!(error.cause(), Cause::TooLarge { .. }) => return Ok(Swap::Moved),
                found => found?,
            };
            if found.as_deref() != expected {
                return Ok(Swap::Moved);
            }
            return self.put_root(name, bytes).map(|()| Swap::Replaced);
        }
        let bytes = Bytes::copy_from_slice(bytes);
        let replaced = self.thread.wait_for(replace(&self.requests, name, &bytes, expected));
        match replaced.map_err(self.failed("replacing", name))? {
            Replaced::No => return Ok(Swap::Moved),
            Replaced::Yes if name == manifest::PATH => {}
            Replaced::Yes => return Ok(Swap::Replaced),
        }
        // Clients follow it, so the server's word is not enough. Another publisher may have replaced it by now.
        let shown = self.root_file(name, ROOT_FILE_MAX)?;
        if shown.as_deref() == expected && shown.as_deref() != Some(&bytes[..]) {
            let text = "the server accepted the head, and shows the one before".to_owned();
            return Err(self.failed("replacing", name)(StorageProblem::Damaged(text)));
        }
        Ok(Swap::Replaced)
    }

    fn remove_root(&self, name: &str) -> Result<(), StoreError> {
        self.delete_files(&[name.to_owned()])
    }

    fn list_root(&self) -> Result<Vec<String>, StoreError> {
        self.thread.wait_for(self.requests.list_root()).map_err(self.failed("listing", "."))
    }

    fn put_alternative(&self, name: &ObjectName) -> Result<(), StoreError> {
        let to = name.alternative_path();
        let copied = self.thread.wait_for(self.requests.copy(&name.path(), &to));
        copied.map_err(self.failed("writing", &to))
    }

    fn list(&self, visit: &mut dyn FnMut(Listed)) -> Result<(), StoreError> {
        let visit = RefCell::new(visit);
        let listed = stream::iter(object_folders()).map(|folder| {
            let visit = &visit;
            async move {
                let mut found = |file: &str, len: u64, modified: SystemTime| {
                    let hash = file.strip_prefix("data/").map(|rest| rest.replacen('/', "", 1));
                    // Files that are no objects are skipped.
                    if let Some(name) = hash.and_then(|hash| ObjectName::parse(&hash)) {
                        (visit.borrow_mut())(Listed { name, len, modified });
                    }
                    true
                };
                self.requests.list(&folder, &mut found).await
            }
        });
        let listed = self.thread.wait_for(listed.buffer_unordered(LISTED_AT_ONCE).try_collect());
        listed.map_err(self.failed("listing", "data"))
    }

    fn delete(&self, names: &[ObjectName]) -> Result<(), StoreError> {
        self.uploads.forget(names);
        let files: Vec<String> = names.iter().map(ObjectName::path).collect();
        self.delete_files(&files)
    }

    fn remove_all(&self) -> Result<(), StoreError> {
        let heads: Vec<String> = self.list_root()?;
        self.delete_files(&heads)?;
        // One folder after the other, so that no list of a large repository is kept in memory.
        for folder in object_folders().chain([String::new()]) {
            let mut before = None;
            loop {
                let mut files = Vec::new();
                let listed = self.thread.wait_for(self.requests.list(&folder, &mut |file, _, _| {
                    files.push(file.to_owned());
                    files.len() < REMOVED_AT_ONCE
                }));
                listed.map_err(self.failed("listing", &folder))?;
                let Some(first) = files.first().cloned() else { break };
                if before.as_ref() == Some(&first) {
                    let text = format!("it lists {first} although that was removed");
                    return Err(self.failed("removing", &first)(StorageProblem::Damaged(text)));
                }
                self.delete_files(&files)?;
                if files.len() < REMOVED_AT_ONCE && !folder.is_empty() {
                    break;
                }
                before = Some(first);
            }
        }
        Ok(())
    }
}
