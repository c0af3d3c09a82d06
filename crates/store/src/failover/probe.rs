//! Probes whether a server or proxy that was marked down replies again, and which server is fastest.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use esker_format::manifest;
use parking_lot::Mutex;

use super::Router;
use super::route_table::{Probe, Route};
use crate::callback::Callback;
use crate::transport::source::{Fetch, Stored};

/// Default time between probes.
const USUAL: Duration = Duration::from_secs(300);
/// Maximum size of a manifest, which has some 20 short lines and a signature.
const MANIFEST_MAX: u64 = 64 << 10;

/// Requests to each server when timing it; the last one counts, because it has a connection already.
const ROUNDS: u32 = 2;

/// Response times of servers.
struct Race {
    /// Response time of each server; `None` for a failed one.
    took: Mutex<Vec<Option<Duration>>>,
    running: AtomicUsize,
}

impl Router {
    /// Times every server, and uses the fastest from then on.
    pub(super) fn race(self: &Arc<Self>) {
        let count = self.bases.len();
        let race = Arc::new(Race { took: Mutex::new(vec![None; count]), running: AtomicUsize::new(count) });
        let Some(egress) = self.egress_to_sort_by() else { return };
        for server in (0..count).filter_map(|server| u32::try_from(server).ok()) {
            self.clone().time(Route { egress, server }, ROUNDS, race.clone());
        }
    }

    fn time(self: Arc<Self>, route: Route, rounds: u32, race: Arc<Race>) {
        let began = Instant::now();
        let source = self.route_source(route).source;
        let answered = Callback::new(move |outcome: Result<Stored, _>| {
            let is_good = outcome.is_ok();
            if let Some(took) = race.took.lock().get_mut(route.server as usize) {
                *took = is_good.then(|| began.elapsed());
            }
            if is_good && rounds > 1 {
                self.time(route, rounds - 1, race);
            } else if race.running.fetch_sub(1, Ordering::Relaxed) == 1 {
                let took = race.took.lock().clone();
                let mut order: Vec<u32> =
                    (0..took.len()).filter_map(|server| u32::try_from(server).ok()).collect();
                order.sort_by_key(|server| {
                    took.get(*server as usize).copied().flatten().unwrap_or(Duration::MAX)
                });
                if self.servers.most > 0 {
                    order.truncate(self.servers.most);
                }
                self.routes.lock().sort(order);
            }
        });
        source.fetch(Fetch::new(manifest::PATH, "how soon it answers", MANIFEST_MAX), answered);
    }

    /// Probes routes that are due, in parallel to demands.
    pub(super) fn probe_due(self: &Arc<Self>) {
        let timings = &self.servers.timings;
        let next = timings.proxy_reset.into_iter().chain(timings.server_reset).min().unwrap_or(USUAL);
        let probes = self.routes.lock().due(Instant::now(), next);
        for probe in probes {
            let (Probe::Egress(route) | Probe::Server(route)) = probe;
            let router = self.clone();
            let answered = Callback::new(move |outcome: Result<Stored, _>| {
                if outcome.is_err() {
                    return;
                }
                let (is_news, what) = match probe {
                    Probe::Egress(route) => {
                        (router.routes.lock().egresses.answers(route.egress.id), route.egress.to_string())
                    }
                    Probe::Server(route) => {
                        let name = router.bases[route.server as usize].to_string();
                        (router.routes.lock().server_answers(route.server), name)
                    }
                };
                if is_news {
                    router.came_back(&what);
                }
            });
            let fetch = Fetch::new(manifest::PATH, "whether it answers again", MANIFEST_MAX);
            self.route_source(route).source.fetch(fetch, answered);
        }
    }
}
