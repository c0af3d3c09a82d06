//! Requests to the bucket of a repository, by the paths of its files.

use std::hash::{BuildHasher, RandomState};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant, SystemTime};

use bytes::{Bytes, BytesMut};
use esker_store::StorageProblem;
use futures_util::stream::{self, BoxStream, StreamExt, TryStreamExt};
use md5::{Digest as _, Md5};
use object_store::path::Path;
use object_store::{
    Attribute, AttributeValue, Attributes, CopyOptions, GetOptions, GetResult, ObjectMeta, ObjectStore,
    PutMode, PutMultipartOptions, PutOptions, PutPayload, UpdateVersion,
};
use parking_lot::Mutex;

use super::failure::Failure;
use super::open::open;
use super::signed_puts::Signer;
use crate::settings::StorageSettings;
use crate::url::Bucket;

/// Length from which a body is sent in parts.
const PARTS_FROM: usize = 32 << 20;
/// Length of a part.
const PART: usize = 16 << 20;
/// Number of parts that are sent at once.
const PARTS_AT_ONCE: usize = 4;
/// Repetitions of operations beyond those of single requests, for answers that break off.
const ROUNDS: u32 = 4;
/// Time limit of a listing of the root folder, which has some dozens of files.
const ROOT_LISTED_WITHIN: Duration = Duration::from_secs(60);
/// Pause before the first of these repetitions; it doubles.
const PAUSE: Duration = Duration::from_millis(100);
/// Number of objects that one request deletes.
const DELETED_AT_ONCE: usize = 1000;

/// Kind of a file, which decides on the fields that clients and caches get with it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum FileKind {
    /// An object, whose content never changes.
    Object,
    /// A file in the root, which is replaced.
    Root,
}

/// Length and pieces of a file.
pub(crate) type FileBody = (u64, BoxStream<'static, Result<Bytes, StorageProblem>>);

/// Version of a file, for conditional puts.
pub(crate) type Version = UpdateVersion;

/// Condition of a put.
#[derive(Clone, Debug)]
pub(crate) enum Condition {
    /// The file is missing.
    Missing,
    /// The file has this version.
    Is(Version),
}

/// Requests to a bucket. Cheap to clone.
#[derive(Clone)]
pub(crate) struct Requests {
    bucket: Arc<Bucket>,
    store: Arc<dyn ObjectStore>,
    /// Client that deletes objects one by one.
    one_by_one: Arc<dyn ObjectStore>,
    /// Signer of requests that others send.
    pub(super) signer: Option<Arc<Signer>>,
    /// True if the server refused to delete many objects with one request.
    deletes_singly: Arc<Mutex<bool>>,
    storage_class: Option<Arc<str>>,
    read_back: bool,
    /// Time after which an operation is not repeated any more.
    patience: Duration,
    /// True while all known versions (ETags) of the server are MD5 digests of contents.
    has_md5_tags: Arc<AtomicBool>,
}

impl Requests {
    pub(crate) fn new(bucket: &Bucket, settings: &StorageSettings) -> Result<Self, StorageProblem> {
        let opened = open(bucket, settings)?;
        Ok(Self {
            bucket: Arc::new(bucket.clone()),
            store: opened.store,
            one_by_one: opened.one_by_one,
            signer: opened.signer,
            deletes_singly: Arc::default(),
            storage_class: settings.storage_class.as_deref().map(Arc::from),
            read_back: settings.read_back,
            patience: settings.stall(),
            has_md5_tags: Arc::default(),
        })
    }

    fn path(&self, file: &str) -> Result<Path, StorageProblem> {
        let key = self.bucket.key(file);
        Path::parse(&key).map_err(|error| StorageProblem::BadSettings(format!("the key `{key}`: {error}")))
    }

    fn attributes(&self, kind: FileKind, file: &str) -> Attributes {
        let (content, cache) = match kind {
            FileKind::Object => ("application/octet-stream", "public, max-age=31536000, immutable"),
            // As CernVM-FS has it: caches ask again after a minute.
            FileKind::Root => (content_type(file), "max-age=61"),
        };
        let mut attributes = Attributes::new();
        attributes.insert(Attribute::ContentType, content.into());
        attributes.insert(Attribute::CacheControl, cache.into());
        if kind == FileKind::Object
            && let Some(class) = &self.storage_class
        {
            attributes.insert(Attribute::StorageClass, class.to_string().into());
        }
        attributes
    }

    /// Returns the fields with which an object is stored.
    pub(super) fn fields_of_object(&self) -> Vec<(String, String)> {
        let attributes = self.attributes(FileKind::Object, "");
        let field = |(attribute, value): (&Attribute, &AttributeValue)| {
            let name = match attribute {
                Attribute::ContentType => "content-type",
                Attribute::CacheControl => "cache-control",
                Attribute::StorageClass => "x-amz-storage-class",
                _ => return None,
            };
            Some((name.to_owned(), value.to_string()))
        };
        attributes.iter().filter_map(field).collect()
    }

    /// Returns a file of at most `limit` bytes with its version; none if it is missing.
    pub(crate) async fn get(&self, file: &str, limit: u64) -> Result<Option<(Bytes, Version)>, ReadFailure> {
        let path = self.path(file)?;
        let got = self.repeated(|| async {
            let got = self.store.get_opts(&path, GetOptions::default()).await?;
            let size = got.meta.size;
            if size > limit {
                return Ok(Err(ReadFailure::TooLarge));
            }
            let version = Version { e_tag: got.meta.e_tag.clone(), version: got.meta.version.clone() };
            let mut bytes = BytesMut::new();
            let mut pieces = got.into_stream();
            while let Some(piece) = pieces.try_next().await? {
                bytes.extend_from_slice(&piece);
                if bytes.len() as u64 > size {
                    return Ok(Err(ReadFailure::TooLarge));
                }
            }
            Ok(Ok((bytes.freeze(), version)))
        });
        match got.await {
            Ok(Ok(found)) => Ok(Some(found)),
            Ok(Err(failure)) => Err(failure),
            Err(Failure::Missing) => Ok(None),
            Err(failure) => Err(failure.problem().into()),
        }
    }

    /// Returns the length and the pieces of a file; none if it is missing.
    pub(crate) async fn pieces(&self, file: &str) -> Result<Option<FileBody>, StorageProblem> {
        let path = self.path(file)?;
        body(self.repeated(|| self.store.get_opts(&path, GetOptions::default())).await)
    }

    /// Does the same as [`Self::pieces`], without repetitions beyond those of `object_store`: for callers that can't wait.
    pub(crate) async fn pieces_soon(&self, file: &str) -> Result<Option<FileBody>, StorageProblem> {
        let path = self.path(file)?;
        body(self.store.get_opts(&path, GetOptions::default()).await.map_err(Failure::from))
    }

    /// Returns the length of a file; none if it is missing.
    pub(crate) async fn len_of(&self, file: &str) -> Result<Option<u64>, StorageProblem> {
        let path = self.path(file)?;
        let options = GetOptions { head: true, ..GetOptions::default() };
        match self.repeated(|| self.store.get_opts(&path, options.clone())).await {
            Ok(got) => Ok(Some(got.meta.size)),
            Err(Failure::Missing) => Ok(None),
            Err(failure) => Err(failure.problem()),
        }
    }

    /// Stores a file, whether or not it exists.
    pub(crate) async fn put(&self, file: &str, bytes: Bytes, kind: FileKind) -> Result<(), StorageProblem> {
        let path = self.path(file)?;
        let attributes = self.attributes(kind, file);
        let mut last = None;
        let begun = Instant::now();
        for round in 0..ROUNDS {
            if round > 0 && begun.elapsed() >= self.patience {
                break;
            }
            pause(round).await;
            let stored = match bytes.len() >= PARTS_FROM {
                true => self.put_parts(&path, bytes.clone(), attributes.clone()).await.map(|()| None),
                false => {
                    let options = PutOptions { attributes: attributes.clone(), ..PutOptions::default() };
                    let payload = PutPayload::from_bytes(bytes.clone());
                    self.store.put_opts(&path, payload, options).await.map(|stored| stored.e_tag)
                }
            };
            let stored = match stored.map_err(Failure::from) {
                Ok(tag) => self.verify(&path, &bytes, tag).await,
                Err(failure) => Err(failure),
            };
            match stored {
                Ok(()) => return Ok(()),
                // The server may take it the next time.
                Err(failure @ Failure::Problem(StorageProblem::Damaged(_))) => last = Some(failure),
                // Another request for the same file is under way, which is none of a conditional put here.
                Err(failure @ Failure::Condition) => last = Some(failure),
                Err(failure) if failure.may_pass() => last = Some(failure),
                Err(failure) => return Err(failure.problem()),
            }
        }
        Err(last.unwrap_or(Failure::Condition).problem())
    }

    /// Makes sure that a server stored what it accepted: by the digest that it answered with, or else by the length that it
    /// tells, or by reading all of it.
    async fn verify(&self, path: &Path, bytes: &Bytes, tag: Option<String>) -> Result<(), Failure> {
        let damaged = |text: String| Failure::Problem(StorageProblem::Damaged(text));
        let tag = tag.unwrap_or_default();
        let is_md5 = is_md5_of(&tag, bytes);
        if is_md5 {
            self.has_md5_tags.store(true, Ordering::Relaxed);
        } else if self.has_md5_tags.load(Ordering::Relaxed) && is_md5_tag(&tag) {
            return Err(damaged(format!("the server stored other bytes as `{path}` than were sent")));
        }
        if is_md5 && !self.read_back {
            return Ok(());
        }
        let options = GetOptions { head: !self.read_back, ..GetOptions::default() };
        let found = match self.store.get_opts(path, options).await.map_err(Failure::from) {
            Ok(found) => found,
            Err(Failure::Missing) => {
                return Err(damaged(format!("the server accepted `{path}` and does not have it")));
            }
            Err(failure) => return Err(failure),
        };
        let len = found.meta.size;
        if len != bytes.len() as u64 {
            return Err(damaged(format!(
                "the server has {len} bytes as `{path}`, and {} were sent",
                bytes.len()
            )));
        }
        if self.read_back && found.bytes().await? != *bytes {
            return Err(damaged(format!("the server has other bytes as `{path}` than were sent")));
        }
        Ok(())
    }

    async fn put_parts(&self, path: &Path, bytes: Bytes, attributes: Attributes) -> object_store::Result<()> {
        let options = PutMultipartOptions { attributes, ..PutMultipartOptions::default() };
        let mut upload = self.store.put_multipart_opts(path, options).await?;
        let starts = (0..bytes.len()).step_by(PART);
        let parts: Vec<_> = starts
            .map(|start| bytes.slice(start..bytes.len().min(start + PART)))
            .map(|part| upload.put_part(PutPayload::from_bytes(part)))
            .collect();
        let sent = stream::iter(parts).buffer_unordered(PARTS_AT_ONCE).try_collect::<Vec<()>>().await;
        let stored = match sent {
            Ok(_) => upload.complete().await.map(drop),
            Err(error) => Err(error),
        };
        if stored.is_err() {
            // A completion whose answer is lost leaves no upload, but the object.
            let options = GetOptions { head: true, ..GetOptions::default() };
            let found = self.store.get_opts(path, options).await;
            if found.is_ok_and(|found| found.meta.size == bytes.len() as u64) {
                return Ok(());
            }
            // The error that matters is the first one; servers remove uploads that nothing completes.
            let _ = upload.abort().await;
        }
        stored
    }

    /// Stores a file in the root if a condition holds. A failure says nothing of whether it was stored.
    pub(crate) async fn put_if(
        &self,
        file: &str,
        bytes: &Bytes,
        condition: Condition,
    ) -> Result<(), Failure> {
        let path = self.path(file).map_err(Failure::Problem)?;
        let mode = match condition {
            Condition::Missing => PutMode::Create,
            Condition::Is(version) => PutMode::Update(version),
        };
        let attributes = self.attributes(FileKind::Root, file);
        let options = PutOptions { mode, attributes, ..PutOptions::default() };
        let put = self.store.put_opts(&path, PutPayload::from_bytes(bytes.clone()), options);
        put.await.map(drop).map_err(Failure::from)
    }

    /// Copies a file within the bucket.
    pub(crate) async fn copy(&self, from: &str, to: &str) -> Result<(), StorageProblem> {
        let (from, to) = (self.path(from)?, self.path(to)?);
        let copied = self.repeated(|| self.store.copy_opts(&from, &to, CopyOptions::default())).await;
        copied.map_err(Failure::problem)
    }

    /// Passes the paths, lengths and times of all files below a folder of the repository to `visit`, in the order of their
    /// keys, until it returns false. A listing that breaks off goes on after the last key, and one that begins again is an
    /// error: it would never end.
    pub(crate) async fn list(
        &self,
        folder: &str,
        visit: &mut dyn FnMut(&str, u64, SystemTime) -> bool,
    ) -> Result<(), StorageProblem> {
        let prefix = match self.bucket.key(folder).trim_end_matches('/') {
            "" => None,
            prefix => {
                Some(Path::parse(prefix).map_err(|error| StorageProblem::BadSettings(error.to_string()))?)
            }
        };
        let mut last: Option<Path> = None;
        let mut repetition = Repetition::default();
        let (mut round, mut progress) = (0, Instant::now());
        loop {
            pause(round).await;
            let mut pages: BoxStream<'static, object_store::Result<ObjectMeta>> = match &last {
                None => self.store.list(prefix.as_ref()),
                Some(last) => self.store.list_with_offset(prefix.as_ref(), last),
            };
            let failure = loop {
                match pages.next().await {
                    None => return Ok(()),
                    Some(Ok(found)) => {
                        // A long listing may break off more often.
                        (round, progress) = (0, Instant::now());
                        if repetition.is_again(&found.location) {
                            let text = format!("it lists {} again and again", found.location);
                            return Err(StorageProblem::Damaged(text));
                        }
                        if let Some(file) = self.bucket.path_of(found.location.as_ref())
                            && !visit(file, found.size, found.last_modified.into())
                        {
                            return Ok(());
                        }
                        last = Some(found.location);
                    }
                    Some(Err(error)) => break Failure::from(error),
                }
            };
            round += 1;
            if round >= ROUNDS || progress.elapsed() >= self.patience || !failure.may_pass() {
                return Err(failure.problem());
            }
        }
    }

    /// Returns the names of the files in the root of the repository.
    pub(crate) async fn list_root(&self) -> Result<Vec<String>, StorageProblem> {
        let prefix = (!self.bucket.prefix.is_empty()).then(|| Path::parse(&self.bucket.prefix)).transpose();
        let prefix = prefix.map_err(|error| StorageProblem::BadSettings(error.to_string()))?;
        // The library collects all pages, so a listing without an end would fill the memory.
        let listed = self.repeated(|| self.store.list_with_delimiter(prefix.as_ref()));
        let found = tokio::time::timeout(ROOT_LISTED_WITHIN, listed).await.map_err(|_| {
            let limit = ROOT_LISTED_WITHIN.as_secs();
            StorageProblem::Unavailable(format!("the listing of the root folder has no end after {limit} s"))
        })?;
        let found = found.map_err(Failure::problem)?;
        let names = found.objects.iter().filter_map(|object| self.bucket.path_of(object.location.as_ref()));
        Ok(names.map(str::to_owned).collect())
    }

    /// Removes files; missing ones are no error.
    pub(crate) async fn delete(&self, files: &[String]) -> Result<(), StorageProblem> {
        for batch in files.chunks(DELETED_AT_ONCE) {
            let paths: Vec<Path> = batch.iter().map(|file| self.path(file)).collect::<Result<_, _>>()?;
            let (mut round, begun) = (0, Instant::now());
            while let Err(failure) = self.delete_batch(&paths).await {
                round += 1;
                match failure {
                    Failure::Unsupported(_) if !*self.deletes_singly.lock() => {
                        *self.deletes_singly.lock() = true
                    }
                    failure if round < ROUNDS && begun.elapsed() < self.patience && failure.may_pass() => {
                        pause(round).await;
                    }
                    failure => return Err(failure.problem()),
                }
            }
        }
        Ok(())
    }

    async fn delete_batch(&self, paths: &[Path]) -> Result<(), Failure> {
        let singly = *self.deletes_singly.lock();
        let store = if singly { &self.one_by_one } else { &self.store };
        let all = stream::iter(paths.to_vec()).map(Ok).boxed();
        let mut deleted = store.delete_stream(all);
        while let Some(outcome) = deleted.next().await {
            match outcome.map_err(Failure::from) {
                Ok(_) | Err(Failure::Missing) => {}
                Err(failure) => return Err(failure),
            }
        }
        Ok(())
    }

    /// Repeats an operation that fails for a reason that may pass.
    async fn repeated<T>(
        &self,
        mut operation: impl AsyncFnMut() -> object_store::Result<T>,
    ) -> Result<T, Failure> {
        let (mut round, begun) = (0, Instant::now());
        loop {
            match operation().await.map_err(Failure::from) {
                Err(failure)
                    if failure.may_pass() && round + 1 < ROUNDS && begun.elapsed() < self.patience =>
                {
                    round += 1;
                    pause(round).await;
                }
                outcome => return outcome,
            }
        }
    }
}

fn body(got: Result<GetResult, Failure>) -> Result<Option<FileBody>, StorageProblem> {
    match got {
        Ok(got) => {
            let size = got.meta.size;
            let pieces = got.into_stream().map_err(|error| Failure::from(error).problem());
            Ok(Some((size, pieces.boxed())))
        }
        Err(Failure::Missing) => Ok(None),
        Err(failure) => Err(failure.problem()),
    }
}

/// Waits before a repetition; not at all before the first attempt.
pub(super) async fn pause(round: u32) {
    if round > 0 {
        // Writers that failed together don't come back together.
        let random = RandomState::new().hash_one(round) % 1024;
        let pause = PAUSE.saturating_mul(1 << (round - 1).min(6));
        tokio::time::sleep(pause / 2 + pause.saturating_mul(random as u32) / 1024).await;
    }
}

fn content_type(file: &str) -> &'static str {
    match file.rsplit_once('.') {
        Some((_, "json")) => "application/json",
        Some((_, "html")) => "text/html",
        _ => "application/x-cvmfs",
    }
}

/// Failure of reading a file.
#[derive(Debug)]
pub(crate) enum ReadFailure {
    /// The file is larger than allowed.
    TooLarge,
    /// Another failure.
    Problem(StorageProblem),
}

impl From<StorageProblem> for ReadFailure {
    fn from(problem: StorageProblem) -> Self {
        Self::Problem(problem)
    }
}

/// Returns true if a version has the form of an MD5 digest.
fn is_md5_tag(tag: &str) -> bool {
    let digits = tag.trim_matches('"');
    digits.len() == 32 && digits.bytes().all(|byte| byte.is_ascii_hexdigit())
}

/// Returns true if a version is the MD5 digest of some bytes.
fn is_md5_of(tag: &str, bytes: &[u8]) -> bool {
    is_md5_tag(tag) && tag.trim_matches('"').eq_ignore_ascii_case(&format!("{:x}", Md5::digest(bytes)))
}

/// Finds out whether a sequence of keys repeats itself, with one key in memory (Brent's cycle detection, 1980): the key at
/// each power of two is compared with those after it.
#[derive(Default)]
struct Repetition {
    checkpoint: Option<Path>,
    seen: u64,
}

impl Repetition {
    /// Takes the next key; returns true if it was there before.
    fn is_again(&mut self, key: &Path) -> bool {
        if self.checkpoint.as_ref() == Some(key) {
            return true;
        }
        self.seen += 1;
        if self.seen.is_power_of_two() {
            self.checkpoint = Some(key.clone());
        }
        false
    }
}
