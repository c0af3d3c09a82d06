//! Predicts what bundles name: lists of files that publishers write beside a trigger.

use std::collections::HashMap;
use std::time::{Duration, Instant};

use esker_store::Handle;
use esker_vfs::NodeKey;

use crate::candidate::Candidate;
use crate::cluster::{BundleObject, CatalogRequest, Cluster, Next};
use crate::event::{Action, Event, Purpose, Source};
use crate::predictor::{Context, Predictor};
use crate::world::File;

/// Minimum time between two fetches of one trigger's bundle.
const AGAIN_AFTER: Duration = Duration::from_secs(60);
/// Maximum number of triggers whose last fetch is remembered.
const RECENT_MAX: usize = 4096;
/// Tracks when the bundle of each trigger was fetched last.
#[derive(Default)]
struct RecentTriggers(HashMap<NodeKey, Instant>);

impl RecentTriggers {
    /// Returns true if the bundle of a trigger should be fetched now, and records the fetch.
    fn begin(&mut self, trigger: NodeKey, now: Instant) -> bool {
        if self.0.len() >= RECENT_MAX {
            self.0.retain(|_, last| now.duration_since(*last) < AGAIN_AFTER);
            if self.0.len() >= RECENT_MAX {
                return false;
            }
        }
        let is_due = self.0.get(&trigger).is_none_or(|last| now.duration_since(*last) >= AGAIN_AFTER);
        if is_due {
            self.0.insert(trigger, now);
        }
        is_due
    }

    /// Removes a trigger whose bundle could not be fetched, so that the next read fetches it again.
    fn forget(&mut self, trigger: &NodeKey) {
        self.0.remove(trigger);
    }
}

/// Predicts what bundles name.
#[derive(Default)]
pub(crate) struct Bundles {
    recent: RecentTriggers,
    /// Number of the last cluster: the objects of the newest are fetched first.
    serial: u64,
}

impl Bundles {
    /// Requests the specification of a trigger's bundle.
    fn trigger_read<C>(&mut self, file: &File, context: &mut Context<'_, C>) {
        let trigger = file.node.key;
        if !self.recent.begin(trigger, Instant::now()) {
            return;
        }
        let path = file.path.as_deref();
        let Some((wanted, directory)) = path.and_then(|path| context.world.bundle_of(path)) else {
            return self.recent.forget(&trigger);
        };
        context.queue.remaining.await_spec();
        context.open(wanted, Purpose::Bundle { trigger, directory });
    }

    /// Continues with a specification; `None` if it could not be fetched.
    fn spec_opened<C: CatalogRequest>(
        &mut self,
        (trigger, directory): (NodeKey, &[u8]),
        handle: Option<&Handle>,
        context: &mut Context<'_, C>,
    ) {
        if handle.is_none() {
            self.recent.forget(&trigger);
        }
        context.queue.remaining.spec_arrived();
        self.serial += 1;
        if let Some(cluster) = handle.and_then(|it| Cluster::of_spec(self.serial, it, directory)) {
            let replaced = context.queue.remaining.leave(cluster.files());
            context.queue.withdraw(replaced);
            context.raise(Event::Cluster(Box::new(cluster)));
        }
        context.raise(Event::BundleArrived);
    }
}

/// Queues the next objects of a cluster.
fn resolve<C: CatalogRequest>(mut cluster: Box<Cluster<C>>, context: &mut Context<'_, C>) {
    let turn = cluster.turn(&*context.world);
    for BundleObject { place: (read, part), wanted, size, range, arrival, chunk } in turn.objects {
        if cluster.learned {
            // Most of it is in the cache, and is read from its disk.
            if !context.world.read_ahead(&wanted, range) {
                context.queue.push_learned(Candidate::new(wanted, size));
            }
            continue;
        }
        if chunk {
            context.queue.remaining.announce(&arrival.path);
        }
        let key = wanted.key();
        context.queue.push_published((cluster.serial, read, part), Candidate::new(wanted, size));
        if context.world.has_listener() {
            context.queue.expect_arrival(key, arrival);
        }
    }
    match turn.next {
        Next::Turn => context.actions.push(Action::Continue(Event::Cluster(cluster))),
        Next::Catalogs(missing) => {
            context.actions.push(Action::Attach(missing, Event::Cluster(cluster)));
        }
        Next::Done => {}
    }
}

impl<C: CatalogRequest> Predictor<C> for Bundles {
    fn on(&mut self, event: Event<C>, context: &mut Context<'_, C>) -> Option<Event<C>> {
        match event {
            Event::Read(read) => {
                if read.file.is_trigger && matches!(read.source, Source::Server { .. }) {
                    self.trigger_read(&read.file, context);
                }
                return Some(Event::Read(read));
            }
            Event::TriggerRead(file) => self.trigger_read(&file, context),
            Event::Opened(Purpose::Bundle { trigger, directory }, handle) => {
                self.spec_opened((trigger, &directory), handle.as_ref(), context);
            }
            Event::Cluster(cluster) => resolve(cluster, context),
            other => return Some(other),
        }
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_trigger_fetches_its_bundle_once_in_a_while() {
        let mut recent = RecentTriggers::default();
        let now = Instant::now();
        let key = |number: usize| {
            let mut bytes = [0; 16];
            bytes[..8].copy_from_slice(&number.to_le_bytes());
            NodeKey(bytes)
        };
        assert!(recent.begin(key(1), now) && !recent.begin(key(1), now));
        assert!(recent.begin(key(2), now));
        recent.forget(&key(2));
        assert!(recent.begin(key(2), now), "it was not to be had");
        assert!(!recent.begin(key(1), now + AGAIN_AFTER / 2), "nothing new");
        assert!(recent.begin(key(1), now + AGAIN_AFTER), "and that puts nothing off");
        for number in 3..RECENT_MAX + 10 {
            recent.begin(key(number), now + AGAIN_AFTER);
        }
        assert!(recent.0.len() <= RECENT_MAX, "what is old made room, and no more is taken");
        assert!(!recent.begin(key(RECENT_MAX + 100), now + AGAIN_AFTER));
        assert!(recent.begin(key(RECENT_MAX + 100), now + 3 * AGAIN_AFTER));
    }
}
