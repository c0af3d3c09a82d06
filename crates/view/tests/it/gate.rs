//! A store that delays objects, or fails to fetch them, on command.

use std::collections::HashMap;
use std::sync::{Arc, Weak};

use esker_format::hash::ContentHash;
use esker_store::{
    Callback, CancelToken, Cause, Handle, Holder, ObjectRequest, ObjectStore, Room, StoreError, StoreStatus,
    Warmed,
};
use parking_lot::{Condvar, Mutex};

pub(crate) struct Gate {
    inner: Arc<dyn ObjectStore>,
    state: Mutex<State>,
    changed: Condvar,
    holders: Mutex<Vec<Weak<dyn Holder>>>,
}

#[derive(Default)]
struct State {
    closed: HashMap<ContentHash, Closed>,
    waiting: Vec<(ObjectRequest, Callback<Handle>)>,
    asked: HashMap<ContentHash, u32>,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Closed {
    Waits,
    Fails,
}

impl Gate {
    pub(crate) fn before(inner: Arc<dyn ObjectStore>) -> Arc<Self> {
        Arc::new(Self { inner, state: Mutex::default(), changed: Condvar::new(), holders: Mutex::default() })
    }

    /// Delays an object until [`Gate::open`].
    pub(crate) fn close(&self, hash: ContentHash) {
        self.state.lock().closed.insert(hash, Closed::Waits);
    }

    /// Fails every request for an object as if the server were down, until [`Gate::open`].
    pub(crate) fn fail(&self, hash: ContentHash) {
        self.state.lock().closed.insert(hash, Closed::Fails);
    }

    /// Lets an object through, and wakes its waiters.
    pub(crate) fn open(&self, hash: ContentHash) {
        let mut state = self.state.lock();
        state.closed.remove(&hash);
        let (ready, waiting) =
            std::mem::take(&mut state.waiting).into_iter().partition(|(wanted, _)| wanted.name.hash == hash);
        state.waiting = waiting;
        drop(state);
        let ready: Vec<(ObjectRequest, Callback<Handle>)> = ready;
        for (wanted, done) in ready {
            self.inner.get(wanted, done);
        }
    }

    /// Waits until a request for an object waits.
    pub(crate) fn wait_for_waiter(&self, hash: ContentHash) {
        let mut state = self.state.lock();
        while !state.waiting.iter().any(|(wanted, _)| wanted.name.hash == hash) {
            self.changed.wait(&mut state);
        }
    }

    /// Returns the number of requests for an object.
    pub(crate) fn asked(&self, hash: ContentHash) -> u32 {
        self.state.lock().asked.get(&hash).copied().unwrap_or(0)
    }

    /// Returns the added holder.
    pub(crate) fn holder(&self) -> Arc<dyn Holder> {
        self.holders.lock().iter().find_map(Weak::upgrade).unwrap()
    }
}

impl ObjectStore for Gate {
    fn get(&self, wanted: ObjectRequest, done: Callback<Handle>) {
        let mut state = self.state.lock();
        *state.asked.entry(wanted.name.hash).or_default() += 1;
        match state.closed.get(&wanted.name.hash) {
            Some(Closed::Waits) => {
                state.waiting.push((wanted, done));
                self.changed.notify_all();
            }
            Some(Closed::Fails) => {
                drop(state);
                done.err(StoreError::new(wanted.label(), Cause::Broken("the test cut it".into())));
            }
            None => {
                drop(state);
                self.inner.get(wanted, done);
            }
        }
    }

    fn warm(&self, wanted: ObjectRequest, token: &CancelToken, done: Callback<Warmed>) {
        self.inner.warm(wanted, token, done);
    }

    fn cached(&self, wanted: &ObjectRequest) -> Option<Handle> {
        let open = !self.state.lock().closed.contains_key(&wanted.name.hash);
        if open { self.inner.cached(wanted) } else { None }
    }

    fn add_holder(&self, holder: Weak<dyn Holder>) {
        self.holders.lock().push(holder);
    }

    fn room(&self) -> Room {
        self.inner.room()
    }

    fn status(&self) -> StoreStatus {
        self.inner.status()
    }
}

/// The hash in the path of an object.
pub(crate) fn object_hash(path: &str) -> ContentHash {
    let digits: String = path.trim_start_matches("data/").chars().filter(|c| *c != '/').collect();
    ContentHash::parse(&digits[..40]).unwrap()
}
