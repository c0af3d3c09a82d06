//! Requests of our own: whether what is out of use answers again, and which server answers soonest.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use esker_format::manifest;
use parking_lot::Mutex;

use super::Shared;
use super::ways::{Look, Way};
use crate::done::Done;
use crate::source::{Fetch, Stored};

/// How often it is looked where nothing else is said.
const USUAL: Duration = Duration::from_secs(300);
/// A manifest has some 20 short lines and a signature.
const MANIFEST_MAX: u64 = 64 << 10;

/// Each server is asked so often to see how soon it answers; the last answer counts, for which a connection was there.
const ROUNDS: u32 = 2;

/// How soon servers answer.
struct Race {
    /// Of each server, unless it failed.
    took: Mutex<Vec<Option<Duration>>>,
    running: AtomicUsize,
}

impl Shared {
    /// Asks every server, and uses the one that answers soonest from then on.
    pub(super) fn race(self: &Arc<Self>) {
        let count = self.bases.len();
        let race = Arc::new(Race { took: Mutex::new(vec![None; count]), running: AtomicUsize::new(count) });
        let Some(exit) = self.exit_to_sort_by() else { return };
        for server in (0..count).filter_map(|server| u32::try_from(server).ok()) {
            self.clone().time(Way { exit, server }, ROUNDS, race.clone());
        }
    }

    fn time(self: Arc<Self>, way: Way, rounds: u32, race: Arc<Race>) {
        let began = Instant::now();
        let source = self.taken(way).source;
        let answered = Done::new(move |outcome: Result<Stored, _>| {
            let is_good = outcome.is_ok();
            if let Some(took) = race.took.lock().get_mut(way.server as usize) {
                *took = is_good.then(|| began.elapsed());
            }
            if is_good && rounds > 1 {
                self.time(way, rounds - 1, race);
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
                self.ways.lock().sort(order);
            }
        });
        source.fetch(Fetch::new(manifest::PATH, "how soon it answers", MANIFEST_MAX), answered);
    }

    /// Asks on ways that were out of use for long enough, beside whatever is demanded.
    pub(super) fn look_at_what_is_due(self: &Arc<Self>) {
        let timings = &self.servers.timings;
        let next = timings.proxy_reset.into_iter().chain(timings.server_reset).min().unwrap_or(USUAL);
        let looks = self.ways.lock().due(Instant::now(), next);
        for look in looks {
            let (Look::Exit(way) | Look::Server(way)) = look;
            let shared = self.clone();
            let answered = Done::new(move |outcome: Result<Stored, _>| {
                if outcome.is_err() {
                    return;
                }
                let (is_news, what) = match look {
                    Look::Exit(way) => (shared.ways.lock().exits.answers(way.exit.id), way.exit.to_string()),
                    Look::Server(way) => {
                        let name = shared.bases[way.server as usize].to_string();
                        (shared.ways.lock().server_answers(way.server), name)
                    }
                };
                if is_news {
                    shared.came_back(&what);
                }
            });
            let fetch = Fetch::new(manifest::PATH, "whether it answers again", MANIFEST_MAX);
            self.taken(way).source.fetch(fetch, answered);
        }
    }
}
