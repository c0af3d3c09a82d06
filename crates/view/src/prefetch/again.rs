//! Guesses that lack catalogs.

use std::sync::{Arc, Weak};

use esker_store::Handle;
use parking_lot::Mutex;

use crate::catalogs::{Attached, WantedCatalog};
use crate::core::Core;

use super::Event;
use super::announced::Cluster;
use super::modules::Module;
use super::needed::Need;

/// How often catalogs are fetched for one guess, as those found may name more.
pub(super) const TRIES_MAX: u32 = 8;

/// Fetches the catalogs that a guess lacked, then makes it again.
pub(super) fn attach(core: &Arc<Core>, again: Again, missing: Vec<WantedCatalog>) {
    if missing.is_empty() {
        return;
    }
    let again = Mutex::new(Some(again));
    let waiting = Arc::new(Waiting { core: Arc::downgrade(core), again, attached: Mutex::default() });
    for wanted in missing {
        let waiting = Arc::clone(&waiting);
        let came = move |answer: Result<Arc<Attached>, _>| waiting.attached.lock().extend(answer);
        core.catalogs.attach_ahead(wanted, &core.prefetch.errand, Box::new(came));
    }
}

/// What is tried again once catalogs have come.
pub(super) enum Again {
    Near { path: Vec<u8>, tries: u32 },
    Module { module: Module, handle: Handle },
    Need(Need),
    Cluster(Box<Cluster>),
}

/// A guess that waits for catalogs; made again when the last of them has come or failed and let go of this.
struct Waiting {
    core: Weak<Core>,
    again: Mutex<Option<Again>>,
    attached: Mutex<Vec<Arc<Attached>>>,
}

impl Drop for Waiting {
    fn drop(&mut self) {
        let attached = std::mem::take(self.attached.get_mut());
        // If none came, it would only be tried in vain again.
        if !attached.is_empty()
            && let Some(core) = self.core.upgrade()
            && let Some(again) = self.again.get_mut().take()
        {
            core.prefetch.tell(match again {
                Again::Near { path, tries } => Event::Catalogs { path, attached, tries },
                Again::Module { module, handle } => Event::Module { module, handle: Some(handle), attached },
                Again::Need(need) => Event::Needed { need, attached },
                Again::Cluster(cluster) => Event::Cluster { cluster, attached },
            });
        }
    }
}
