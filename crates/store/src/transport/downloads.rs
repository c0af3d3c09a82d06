//! Lists the requests that this process has sent to servers and that are not answered completely.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use parking_lot::Mutex;

use super::site::Site;
use super::source::Fetch;
use crate::priority::Urgency;

/// A request in flight to a server.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Download {
    /// URL of the repository on the server.
    pub server: String,
    /// Address of the proxy, if there is one.
    pub proxy: Option<String>,
    /// Description of the object.
    pub what: Arc<str>,
    /// Time since the request began.
    pub age: Duration,
    /// True for a prefetch, for which no program waits.
    pub prefetch: bool,
}

struct Begun {
    site: Arc<Site>,
    what: Arc<str>,
    since: Instant,
    prefetch: bool,
}

static IN_FLIGHT: Mutex<BTreeMap<u64, Begun>> = Mutex::new(BTreeMap::new());
static NEXT: AtomicU64 = AtomicU64::new(0);

/// A listed request; taken off the list on drop.
pub(super) struct Listed(u64);

/// Adds a request to the list.
pub(super) fn begin(site: &Arc<Site>, fetch: &Fetch) -> Listed {
    let number = NEXT.fetch_add(1, Ordering::Relaxed);
    let what = fetch.http.about.as_ref().unwrap_or(&fetch.what).clone();
    let prefetch = fetch.priority.urgency() == Urgency::Prefetch;
    let begun = Begun { site: site.clone(), what, since: Instant::now(), prefetch };
    IN_FLIGHT.lock().insert(number, begun);
    Listed(number)
}

impl Drop for Listed {
    fn drop(&mut self) {
        let begun = IN_FLIGHT.lock().remove(&self.0);
        // Outside the lock: it may be the last owner of a site.
        drop(begun);
    }
}

/// Returns the oldest requests in flight, at most `limit`, and the number of all.
pub fn in_flight(limit: usize) -> (Vec<Download>, usize) {
    let all = IN_FLIGHT.lock();
    let shown = all.values().take(limit).map(|begun| Download {
        server: begun.site.base.to_string(),
        proxy: begun.site.via.as_ref().map(ToString::to_string),
        what: begun.what.clone(),
        age: begun.since.elapsed(),
        prefetch: begun.prefetch,
    });
    (shown.collect(), all.len())
}
