//! Fetches objects, with many requests under way at once, and stores them.

use std::collections::HashSet;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use crossbeam_channel::{Receiver, RecvTimeoutError, Sender, unbounded};
use esker_format::hash::ContentHash;
use esker_format::object::ObjectName;
use esker_repository::RepositoryError;
use esker_store::{Callback, StoreError, Stored, Urgency};
use parking_lot::{Condvar, Mutex};

use super::error::ReplicateError;
use super::options::{RESERVE, Replicate, ReplicateProgress};
use super::origin::{Origin, is_missing};
use super::replica::Replica;
use super::space;
use super::walk::plain_size;
use crate::hash_lists::{SortedSet, Sorter, minus};

/// Plain bytes of the objects that are requested or stored at once.
const BYTES_AT_ONCE: u64 = 128 << 20;
/// Assumed plain size of an object of unknown size.
const UNKNOWN_SIZE: u64 = 64 << 10;
/// Threads that store objects: one makes a batch durable while the others go on.
const WRITERS: usize = 3;
/// Stored bytes after which the free space is looked at again.
const SPACE_EVERY: u64 = 32 << 20;
/// Objects after which the progress is reported.
const REPORT_EVERY: u64 = 64;
/// Time after which objects get their names, if there are few: what a run that is killed loses.
const FLUSH_EVERY: Duration = Duration::from_secs(1);
/// Interval at which a waiting thread checks for a request to stop, because a signal only sets a flag.
pub(super) const STOP_EVERY: Duration = Duration::from_millis(100);
/// Number of objects from which object storage is listed rather than asked for each.
const LISTED_FROM: u64 = 1000;
/// Stored objects above this size are read into memory one at a time.
const LARGE: u64 = 32 << 20;

/// Fetches the objects of one replication.
pub(super) struct Fetcher<'f> {
    pub(super) options: &'f Replicate<'f>,
    pub(super) origin: &'f Origin,
    pub(super) replica: &'f Replica,
    /// Bytes that stay free on the file system.
    reserve: u64,
    slots: Mutex<Slots>,
    freed: Condvar,
    large: Mutex<()>,
    failed: AtomicBool,
    failure: Mutex<Option<ReplicateError>>,
    lost: Mutex<HashSet<ObjectName>>,
    unchecked: AtomicU64,
    flushed: Mutex<Instant>,
    done: AtomicU64,
    pub(super) total: AtomicU64,
    pub(super) objects: AtomicU64,
    pub(super) bytes: AtomicU64,
    pub(super) present: AtomicU64,
}

/// Objects that are requested or being stored.
#[derive(Debug, Default)]
struct Slots {
    requests: usize,
    bytes: u64,
}

struct Arrived {
    name: ObjectName,
    /// Bytes of its slot.
    counted: u64,
    outcome: Result<Stored, StoreError>,
}

impl<'f> Fetcher<'f> {
    pub(super) fn new(options: &'f Replicate<'f>, origin: &'f Origin, replica: &'f Replica) -> Self {
        let kept = replica.remembered.as_ref().and_then(|known| known.reserve);
        Self {
            options,
            origin,
            replica,
            reserve: options.reserve.or(kept).unwrap_or(RESERVE),
            slots: Mutex::default(),
            freed: Condvar::new(),
            large: Mutex::default(),
            failed: AtomicBool::new(false),
            failure: Mutex::default(),
            lost: Mutex::default(),
            unchecked: AtomicU64::new(0),
            flushed: Mutex::new(Instant::now()),
            done: AtomicU64::new(0),
            total: AtomicU64::new(0),
            objects: AtomicU64::new(0),
            bytes: AtomicU64::new(0),
            present: AtomicU64::new(0),
        }
    }

    /// Returns true if an object is stored.
    pub(super) fn is_here(&self, name: &ObjectName) -> Result<bool, RepositoryError> {
        Ok(match self.replica.sink.len_of(name)? {
            None => false,
            // Crashes of file systems and full disks leave empty files; only few objects have no byte.
            Some(0) => ContentHash::of(name.hash.algorithm(), b"") == name.hash,
            Some(_) => true,
        })
    }

    /// Fails if a folder has too little space for so many further bytes.
    fn check_space(&self, more: u64) -> Result<(), ReplicateError> {
        match self.replica.sink.folder() {
            Some(folder) => space::check(folder, more, self.reserve),
            None => Ok(()),
        }
    }

    /// Returns the objects of a set that object storage does not have, by one pass over its listing if the set is large:
    /// a request for each object would take longer.
    fn absent(&self, wanted: &SortedSet) -> Result<Option<SortedSet>, RepositoryError> {
        if self.replica.storage.is_folder() || wanted.len() < LISTED_FROM {
            return Ok(None);
        }
        let sorter =
            || Sorter::new(self.replica.disk().clone(), &self.replica.scratch(), self.options.buffer);
        let mut stored = sorter();
        stored.extend_listed(&*self.replica.sink, |listed| listed.len > 0)?;
        let (stored, mut absent) = (stored.finish()?, sorter());
        absent.extend_from(minus(wanted.iter(), stored.iter()))?;
        absent.finish().map(Some)
    }

    /// Fetches the objects of a set that are not here. An object that no server has is an error if it is required;
    /// otherwise it is returned.
    pub(super) fn fetch(
        &self,
        wanted: &SortedSet,
        required: bool,
    ) -> Result<HashSet<ObjectName>, ReplicateError> {
        self.check_space(0)?;
        self.total.fetch_add(wanted.len(), Ordering::Relaxed);
        let absent = self.absent(wanted)?;
        self.present
            .fetch_add(absent.as_ref().map_or(0, |absent| wanted.len() - absent.len()), Ordering::Relaxed);
        let (sender, receiver) = unbounded();
        std::thread::scope(|scope| {
            for _ in 0..WRITERS {
                let receiver = receiver.clone();
                scope.spawn(move || self.store(&receiver, required));
            }
            drop(receiver);
            if let Err(error) = self.request(absent.as_ref().unwrap_or(wanted), absent.is_some(), &sender) {
                self.fail(error);
            }
            // The writers end with the last response.
            drop(sender);
        });
        if self.options.stop.load(Ordering::Relaxed) {
            self.fail(RepositoryError::Interrupted.into());
        }
        if let Some(error) = self.failure.lock().take() {
            // The next run need not fetch again what arrived; the error that matters is the first one.
            let _ = self.replica.sink.flush();
            return Err(error);
        }
        self.replica.sink.flush()?;
        Ok(std::mem::take(&mut *self.lost.lock()))
    }

    /// Requests objects, of which those that are here are left out unless all are known to be absent.
    fn request(
        &self,
        wanted: &SortedSet,
        is_absent: bool,
        sender: &Sender<Arrived>,
    ) -> Result<(), ReplicateError> {
        for tagged in wanted.iter() {
            let tagged = tagged?;
            let Some(name) = tagged.record.name() else { continue };
            if self.options.stop.load(Ordering::Relaxed) {
                return Err(RepositoryError::Interrupted.into());
            }
            if self.failed.load(Ordering::Relaxed) {
                return Ok(());
            }
            if !is_absent && self.is_here(&name)? {
                self.present.fetch_add(1, Ordering::Relaxed);
                self.report();
                continue;
            }
            let size = plain_size(&tagged);
            let counted = size.unwrap_or(UNKNOWN_SIZE);
            if !self.take_slot(counted) {
                continue;
            }
            // Prefetches share a request, as far as the server has batches.
            let fetch = self.origin.fetch(&name, size.filter(|size| *size > 0), Urgency::Prefetch);
            let sender = sender.clone();
            self.origin.objects.fetch(
                fetch,
                Callback::new(move |outcome| {
                    // The writers outlive all requests.
                    let _ = sender.send(Arrived { name, counted, outcome });
                }),
            );
        }
        Ok(())
    }

    /// Waits until another request may begin; false if none may any more.
    fn take_slot(&self, bytes: u64) -> bool {
        // What is under way arrives as fast as the network allows, so that it is no more than what a second may bring.
        let rate = self.options.pace.as_ref().and_then(|pace| pace.rate());
        let at_once = rate.map_or(BYTES_AT_ONCE, |rate| rate.min(BYTES_AT_ONCE));
        let mut slots = self.slots.lock();
        while slots.requests > 0
            && (slots.requests >= self.options.requests.max(1) || slots.bytes.saturating_add(bytes) > at_once)
        {
            if self.is_over() {
                return false;
            }
            self.freed.wait_for(&mut slots, STOP_EVERY);
        }
        slots.requests += 1;
        slots.bytes = slots.bytes.saturating_add(bytes);
        true
    }

    /// Returns true after a failure, or once the caller wants to stop.
    fn is_over(&self) -> bool {
        self.failed.load(Ordering::Relaxed) || self.options.stop.load(Ordering::Relaxed)
    }

    fn store(&self, receiver: &Receiver<Arrived>, required: bool) {
        loop {
            let Arrived { name, counted, outcome } = match receiver.recv_timeout(STOP_EVERY) {
                Ok(arrived) => arrived,
                Err(RecvTimeoutError::Disconnected) => return,
                // Requests under way are not waited for: over a slow network they take long.
                Err(RecvTimeoutError::Timeout) if self.is_over() => return,
                Err(RecvTimeoutError::Timeout) => {
                    self.flush_in_time().unwrap_or_else(|error| self.fail(error));
                    continue;
                }
            };
            if let Err(error) = self.store_one(name, outcome, required) {
                self.fail(error);
            }
            let mut slots = self.slots.lock();
            slots.requests -= 1;
            slots.bytes = slots.bytes.saturating_sub(counted);
            drop(slots);
            self.freed.notify_one();
        }
    }

    fn store_one(
        &self,
        name: ObjectName,
        outcome: Result<Stored, StoreError>,
        required: bool,
    ) -> Result<(), ReplicateError> {
        let stored = match outcome {
            _ if self.options.stop.load(Ordering::Relaxed) => return Ok(()),
            // After a failure too: the next run need not fetch it again.
            Ok(stored) => stored,
            Err(error) if is_missing(&error) && !required => {
                self.lost.lock().insert(name);
                return Ok(());
            }
            Err(error) => return Err(error.into()),
        };
        let len = stored.len();
        self.options.pace.iter().for_each(|pace| pace.wait(len));
        let _alone = (len > LARGE).then(|| self.large.lock());
        if self.unchecked.fetch_add(len, Ordering::Relaxed).saturating_add(len) >= SPACE_EVERY {
            self.unchecked.store(0, Ordering::Relaxed);
            self.check_space(len)?;
        }
        let path = name.path();
        let bytes = stored.into_bytes().map_err(RepositoryError::file("reading back", path.as_ref()))?;
        // It is not here, or empty.
        self.replica.sink.put_anew(&name, &bytes)?;
        self.objects.fetch_add(1, Ordering::Relaxed);
        self.bytes.fetch_add(len, Ordering::Relaxed);
        self.report();
        self.flush_in_time()
    }

    /// Makes objects durable from time to time, so that a run that is killed loses little over a slow network.
    fn flush_in_time(&self) -> Result<(), ReplicateError> {
        let Some(mut flushed) = self.flushed.try_lock() else { return Ok(()) };
        if flushed.elapsed() < FLUSH_EVERY {
            return Ok(());
        }
        self.replica.sink.flush()?;
        *flushed = Instant::now();
        Ok(())
    }

    fn report(&self) {
        let done = self.done.fetch_add(1, Ordering::Relaxed) + 1;
        if done.is_multiple_of(REPORT_EVERY) {
            let (total, bytes) = (self.total.load(Ordering::Relaxed), self.bytes.load(Ordering::Relaxed));
            (self.options.progress)(ReplicateProgress::Objects { done, total, bytes });
        }
    }

    /// Ends the current fetch early, without an error of its own.
    pub(super) fn give_up(&self) {
        self.failed.store(true, Ordering::Relaxed);
    }

    /// Keeps the first failure; what is requested still arrives and is dropped.
    fn fail(&self, error: ReplicateError) {
        self.failed.store(true, Ordering::Relaxed);
        self.failure.lock().get_or_insert(error);
        self.freed.notify_all();
    }
}
