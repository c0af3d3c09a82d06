//! Retries predictions that lacked catalogs.

use std::sync::{Arc, Weak};

use esker_prefetch::elf_needed::NeededSearch;
use esker_prefetch::python_imports::PythonModule;
use esker_store::Handle;
use parking_lot::Mutex;

use crate::catalogs::{Attached, WantedCatalog};
use crate::core::Core;

use super::{Cluster, Event};

/// Maximum number of retries of one prediction, since the fetched catalogs may name more.
pub(super) const TRIES_MAX: u32 = 8;

/// Fetches the missing catalogs of a prediction, then retries it.
pub(super) fn fetch_catalogs(core: &Arc<Core>, retry: Retry, missing: Vec<WantedCatalog>) {
    if missing.is_empty() {
        return;
    }
    let retry = Mutex::new(Some(retry));
    let waiting = Arc::new(PendingRetry { core: Arc::downgrade(core), retry, attached: Mutex::default() });
    for wanted in missing {
        let waiting = Arc::clone(&waiting);
        let came = move |answer: Result<Arc<Attached>, _>| waiting.attached.lock().extend(answer);
        core.catalogs.attach_ahead(wanted, &core.prefetch.cancel_token, Box::new(came));
    }
}

/// Prediction to retry once catalogs have arrived.
pub(super) enum Retry {
    Neighbours { path: Vec<u8>, tries: u32 },
    PythonModule { module: PythonModule, handle: Handle },
    NeededSearch(NeededSearch),
    Cluster(Box<Cluster>),
}

/// A prediction that waits for catalogs; retried when the last of them has arrived or failed and dropped this.
struct PendingRetry {
    core: Weak<Core>,
    retry: Mutex<Option<Retry>>,
    attached: Mutex<Vec<Arc<Attached>>>,
}

impl Drop for PendingRetry {
    fn drop(&mut self) {
        let attached = std::mem::take(self.attached.get_mut());
        // If none arrived, a retry would lack them again.
        if !attached.is_empty()
            && let Some(core) = self.core.upgrade()
            && let Some(retry) = self.retry.get_mut().take()
        {
            core.prefetch.tell(match retry {
                Retry::Neighbours { path, tries } => Event::Catalogs { path, attached, tries },
                Retry::PythonModule { module, handle } => {
                    Event::PythonModule { module, handle: Some(handle), attached }
                }
                Retry::NeededSearch(need) => Event::Needed { need, attached },
                Retry::Cluster(cluster) => Event::Cluster { cluster, attached },
            });
        }
    }
}
