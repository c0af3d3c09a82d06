//! Demand before prefetch.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use parking_lot::Mutex;

/// How much somebody waits for an object.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Urgency {
    /// Nobody yet; it must not delay anything that somebody waits for.
    Prefetch,
    /// A program waits.
    Demand,
}

/// The urgency of one request on its way, which rises when a demand joins a prefetch.
#[derive(Clone)]
pub struct Priority(Arc<Inner>);

struct Inner {
    demand: AtomicBool,
    on_raise: Mutex<Vec<Box<dyn FnOnce() + Send>>>,
}

impl Priority {
    /// Starts with an urgency.
    pub fn new(urgency: Urgency) -> Self {
        let demand = AtomicBool::new(urgency == Urgency::Demand);
        Self(Arc::new(Inner { demand, on_raise: Mutex::new(Vec::new()) }))
    }

    /// The urgency now.
    pub fn urgency(&self) -> Urgency {
        if self.0.demand.load(Ordering::Acquire) { Urgency::Demand } else { Urgency::Prefetch }
    }

    /// Makes it a demand and tells everyone who queues it.
    pub fn raise(&self) {
        let told = {
            let mut on_raise = self.0.on_raise.lock();
            self.0.demand.store(true, Ordering::Release);
            std::mem::take(&mut *on_raise)
        };
        for tell in told {
            tell();
        }
    }

    /// Calls `tell` when the urgency rises; at once if it is a demand already.
    pub fn on_raise(&self, tell: impl FnOnce() + Send + 'static) {
        let mut on_raise = self.0.on_raise.lock();
        if self.urgency() == Urgency::Prefetch {
            on_raise.push(Box::new(tell));
        } else {
            drop(on_raise);
            tell();
        }
    }
}

impl fmt::Debug for Priority {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Priority").field(&self.urgency()).finish()
    }
}
