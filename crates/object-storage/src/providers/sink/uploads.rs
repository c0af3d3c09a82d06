//! Bounds and counts the uploads that are under way.

use std::collections::HashSet;
use std::sync::Arc;

use esker_format::object::ObjectName;
use esker_store::interruption::{POLL_INTERVAL, is_over};
use esker_store::{Cause, StoreError};
use parking_lot::{Condvar, Mutex, MutexGuard};

/// Maximum number of bytes that wait for being sent.
const BYTES_MAX: u64 = 128 << 20;

/// Uploads that are under way, and their first failure.
pub(super) struct Uploads {
    state: Mutex<State>,
    changed: Condvar,
    at_once: usize,
}

#[derive(Default)]
struct State {
    pending: HashSet<ObjectName>,
    bytes: u64,
    /// Objects that this process stored.
    stored: HashSet<ObjectName>,
    /// The first failure: no further uploads are begun, because the head must not be replaced any more.
    failure: Option<StoreError>,
}

/// An upload that is under way. It fails if it is dropped before its end.
pub(super) struct Upload {
    uploads: Arc<Uploads>,
    name: ObjectName,
    len: u64,
    outcome: Result<(), StoreError>,
}

impl Upload {
    /// Notes how the upload ended.
    pub(super) fn end(mut self, outcome: Result<(), StoreError>) {
        self.outcome = outcome;
    }
}

impl Drop for Upload {
    fn drop(&mut self) {
        let outcome = std::mem::replace(&mut self.outcome, Ok(()));
        self.uploads.end(&self.name, self.len, outcome);
    }
}

impl Uploads {
    pub(super) fn new(at_once: usize) -> Self {
        Self { state: Mutex::default(), changed: Condvar::new(), at_once }
    }

    /// Returns the number of requests at once.
    pub(super) fn at_once(&self) -> usize {
        self.at_once
    }

    /// Waits for room, and counts an upload that begins; none if the object is under way.
    pub(super) fn begin(
        uploads: &Arc<Self>,
        name: &ObjectName,
        len: u64,
    ) -> Result<Option<Upload>, StoreError> {
        let mut state = uploads.state.lock();
        loop {
            if let Some(failure) = &state.failure {
                return Err(failure.clone());
            }
            if state.pending.contains(name) {
                return Ok(None);
            }
            // An object that is larger than all room goes alone.
            let is_first = state.pending.is_empty();
            if is_first || (state.pending.len() < uploads.at_once && state.bytes + len <= BYTES_MAX) {
                state.pending.insert(*name);
                state.bytes += len;
                let outcome = Err(StoreError::new(name.path(), Cause::Closed));
                return Ok(Some(Upload { uploads: uploads.clone(), name: *name, len, outcome }));
            }
            uploads.wait(&mut state)?;
        }
    }

    /// Waits for a change, or for an interruption of the process.
    fn wait(&self, state: &mut MutexGuard<'_, State>) -> Result<(), StoreError> {
        self.changed.wait_for(state, POLL_INTERVAL);
        if is_over() { Err(StoreError::new("the storage", Cause::Interrupted)) } else { Ok(()) }
    }

    fn end(&self, name: &ObjectName, len: u64, outcome: Result<(), StoreError>) {
        let mut state = self.state.lock();
        state.pending.remove(name);
        state.bytes -= len;
        match outcome {
            Ok(()) => drop(state.stored.insert(*name)),
            Err(error) => drop(state.failure.get_or_insert(error)),
        }
        self.changed.notify_all();
    }

    /// Waits for the uploads that are under way; returns the first failure of all uploads so far.
    pub(super) fn flush(&self) -> Result<(), StoreError> {
        let mut state = self.state.lock();
        while !state.pending.is_empty() {
            self.wait(&mut state)?;
        }
        state.failure.clone().map_or(Ok(()), Err)
    }

    pub(super) fn is_pending(&self, name: &ObjectName) -> bool {
        self.state.lock().pending.contains(name)
    }

    /// Returns whether this process stored an object; another one may have deleted it since.
    pub(super) fn was_stored(&self, name: &ObjectName) -> bool {
        self.state.lock().stored.contains(name)
    }

    pub(super) fn forget(&self, names: &[ObjectName]) {
        let mut state = self.state.lock();
        for name in names {
            state.stored.remove(name);
        }
    }
}
