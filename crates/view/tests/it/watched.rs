//! A store whose prefetches a test observes, and may change.

use std::ops::Range;
use std::sync::mpsc::Sender;
use std::sync::{Arc, Weak};

use esker_store::{
    Callback, CancelToken, Handle, Holder, ObjectRequest, ObjectStore, Room, StoreStatus, Warmed,
};
use esker_view::{View, ViewOptions};

use crate::support::Site;

/// Wraps [`ObjectStore::warm`].
type Warm = dyn Fn(&dyn ObjectStore, ObjectRequest, &CancelToken, Callback<Warmed>) + Send + Sync;

/// Wraps [`ObjectStore::get`].
type Get = dyn Fn(&dyn ObjectStore, ObjectRequest, Callback<Handle>) + Send + Sync;

struct Watched {
    inner: Arc<dyn ObjectStore>,
    get: Box<Get>,
    warm: Box<Warm>,
    read_ahead: Option<Sender<String>>,
}

/// Opens a view that checks for no new heads and prefetches, if enabled, through `warm`.
pub(crate) fn open(
    site: &Site,
    prefetch: bool,
    warm: impl Fn(&dyn ObjectStore, ObjectRequest, &CancelToken, Callback<Warmed>) + Send + Sync + 'static,
) -> Arc<View> {
    over(site, prefetch, Box::new(just_get), Box::new(warm))
}

/// Opens a view that checks for no new heads, prefetches through `warm`, and fetches demanded objects through `get`.
pub(crate) fn between(
    site: &Site,
    get: impl Fn(&dyn ObjectStore, ObjectRequest, Callback<Handle>) + Send + Sync + 'static,
    warm: impl Fn(&dyn ObjectStore, ObjectRequest, &CancelToken, Callback<Warmed>) + Send + Sync + 'static,
) -> Arc<View> {
    over(site, true, Box::new(get), Box::new(warm))
}

fn over(site: &Site, prefetch: bool, get: Box<Get>, warm: Box<Warm>) -> Arc<View> {
    let store = Arc::new(Watched { inner: Arc::clone(&site.store), get, warm, read_ahead: None });
    let ttl = Some(std::time::Duration::MAX);
    let options = ViewOptions { ttl, prefetch, ..ViewOptions::default() };
    View::open(store, site.heads(), options).unwrap()
}

fn just_get(inner: &dyn ObjectStore, wanted: ObjectRequest, done: Callback<Handle>) {
    inner.get(wanted, done);
}

/// Opens a view that reports everything it prefetches or reads ahead from the cache's disk.
pub(crate) fn view_reporting_to(site: &Site, options: ViewOptions, ahead: &Sender<String>) -> Arc<View> {
    let reported = ahead.clone();
    let warm =
        move |inner: &dyn ObjectStore, wanted: ObjectRequest, token: &CancelToken, done: Callback<Warmed>| {
            let what = wanted.what.clone();
            inner.warm(wanted, token, done);
            // The test may have dropped the receiver.
            let _ = reported.send(format!("fetch {what}"));
        };
    let read_ahead = Some(ahead.clone());
    let inner = Arc::clone(&site.store);
    let store = Watched { inner, get: Box::new(just_get), warm: Box::new(warm), read_ahead };
    View::open(Arc::new(store), site.heads(), options).unwrap()
}

impl ObjectStore for Watched {
    fn get(&self, wanted: ObjectRequest, done: Callback<Handle>) {
        (self.get)(&*self.inner, wanted, done);
    }

    fn warm(&self, wanted: ObjectRequest, token: &CancelToken, done: Callback<Warmed>) {
        (self.warm)(&*self.inner, wanted, token, done);
    }

    fn read_ahead(&self, wanted: &ObjectRequest, range: Range<u64>) -> bool {
        let is_there = self.inner.read_ahead(wanted, range.clone());
        if let Some(reported) = self.read_ahead.as_ref().filter(|_| is_there) {
            let _ = reported.send(format!("read {} {range:?}", wanted.what));
        }
        is_there
    }

    fn cached(&self, wanted: &ObjectRequest) -> Option<Handle> {
        self.inner.cached(wanted)
    }

    fn add_holder(&self, holder: Weak<dyn Holder>) {
        self.inner.add_holder(holder);
    }

    fn room(&self) -> Room {
        self.inner.room()
    }

    fn status(&self) -> StoreStatus {
        self.inner.status()
    }
}
