//! A store of which a test sees, and may change, what is fetched ahead.

use std::sync::{Arc, Weak};

use esker_store::{Done, Errand, Handle, Holder, ObjectStore, Room, StoreStatus, Wanted, Warmed};
use esker_view::{View, ViewOptions};

use crate::support::Site;

/// What stands between a view and [`ObjectStore::warm`].
type Warm = dyn Fn(&dyn ObjectStore, Wanted, &Errand, Done<Warmed>) + Send + Sync;

struct Watched {
    inner: Arc<dyn ObjectStore>,
    warm: Box<Warm>,
}

/// A view that looks for no new heads and fetches ahead, if it is to, through `warm`.
pub(crate) fn open(
    site: &Site,
    prefetch: bool,
    warm: impl Fn(&dyn ObjectStore, Wanted, &Errand, Done<Warmed>) + Send + Sync + 'static,
) -> Arc<View> {
    let store = Arc::new(Watched { inner: Arc::clone(&site.store), warm: Box::new(warm) });
    let ttl = Some(std::time::Duration::MAX);
    let options = ViewOptions { ttl, prefetch, ..ViewOptions::default() };
    View::open(store, site.keeper(), options).unwrap()
}

impl ObjectStore for Watched {
    fn get(&self, wanted: Wanted, done: Done<Handle>) {
        self.inner.get(wanted, done);
    }

    fn warm(&self, wanted: Wanted, errand: &Errand, done: Done<Warmed>) {
        (self.warm)(&*self.inner, wanted, errand, done);
    }

    fn cached(&self, wanted: &Wanted) -> Option<Handle> {
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
