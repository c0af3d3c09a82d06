//! A store of which a test sees, and may change, what is fetched ahead.

use std::ops::Range;
use std::sync::mpsc::Sender;
use std::sync::{Arc, Weak};

use esker_store::{
    Callback, CancelToken, Handle, Holder, ObjectRequest, ObjectStore, Room, StoreStatus, Warmed,
};
use esker_view::{View, ViewOptions};

use crate::support::Site;

/// What stands between a view and [`ObjectStore::warm`].
type Warm = dyn Fn(&dyn ObjectStore, ObjectRequest, &CancelToken, Callback<Warmed>) + Send + Sync;

/// What stands between a view and [`ObjectStore::get`].
type Get = dyn Fn(&dyn ObjectStore, ObjectRequest, Callback<Handle>) + Send + Sync;

struct Watched {
    inner: Arc<dyn ObjectStore>,
    get: Box<Get>,
    warm: Box<Warm>,
    read_ahead: Option<Sender<String>>,
}

/// A view that looks for no new heads and fetches ahead, if it is to, through `warm`.
pub(crate) fn open(
    site: &Site,
    prefetch: bool,
    warm: impl Fn(&dyn ObjectStore, ObjectRequest, &CancelToken, Callback<Warmed>) + Send + Sync + 'static,
) -> Arc<View> {
    over(site, prefetch, Box::new(just_get), Box::new(warm))
}

/// A view that looks for no new heads, fetches ahead through `warm`, and gets what it serves through `get`.
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

/// A view with these options, and who is told of everything that is fetched ahead or read from the cache's disk.
pub(crate) fn findings(site: &Site, options: ViewOptions, ahead: &Sender<String>) -> Arc<View> {
    let findings = ahead.clone();
    let warm = move |inner: &dyn ObjectStore,
                     wanted: ObjectRequest,
                     errand: &CancelToken,
                     done: Callback<Warmed>| {
        let what = wanted.what.clone();
        inner.warm(wanted, errand, done);
        // The test may have seen enough.
        let _ = findings.send(format!("fetch {what}"));
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

    fn warm(&self, wanted: ObjectRequest, errand: &CancelToken, done: Callback<Warmed>) {
        (self.warm)(&*self.inner, wanted, errand, done);
    }

    fn read_ahead(&self, wanted: &ObjectRequest, range: Range<u64>) -> bool {
        let is_there = self.inner.read_ahead(wanted, range.clone());
        if let Some(findings) = self.read_ahead.as_ref().filter(|_| is_there) {
            let _ = findings.send(format!("read {} {range:?}", wanted.what));
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
