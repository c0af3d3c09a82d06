//! Why something is prefetched, so that it can be called off.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use parking_lot::Mutex;

/// A reason to prefetch objects: the files that follow a trigger, the rest of a library. When it is over, what
/// is still queued for it alone is dropped and answered with
/// [`Cause::CalledOff`](crate::Cause::CalledOff); what is on its way comes. Cheap to clone.
#[derive(Clone)]
pub struct Errand(Arc<Inner>);

struct Inner {
    number: u64,
    over: AtomicBool,
    on_end: Mutex<Vec<OnEnd>>,
}

type OnEnd = Box<dyn FnOnce() + Send>;

impl Errand {
    /// Begins one.
    pub fn new() -> Self {
        static NEXT: AtomicU64 = AtomicU64::new(0);
        let number = NEXT.fetch_add(1, Ordering::Relaxed);
        Self(Arc::new(Inner { number, over: AtomicBool::new(false), on_end: Mutex::default() }))
    }

    /// Its number, which no other errand of this process has.
    pub fn number(&self) -> u64 {
        self.0.number
    }

    /// Ends it. So does dropping its last clone.
    pub fn end(&self) {
        self.0.end();
    }

    /// Whether it has ended.
    pub fn is_over(&self) -> bool {
        self.0.over.load(Ordering::Acquire)
    }

    /// Calls `tell` when it ends; at once if it has.
    pub fn on_end(&self, tell: impl FnOnce() + Send + 'static) {
        let mut on_end = self.0.on_end.lock();
        if self.is_over() {
            drop(on_end);
            tell();
        } else {
            on_end.push(Box::new(tell));
        }
    }
}

impl Inner {
    fn end(&self) {
        let told = {
            let mut on_end = self.on_end.lock();
            self.over.store(true, Ordering::Release);
            std::mem::take(&mut *on_end)
        };
        for tell in told {
            tell();
        }
    }
}

impl Drop for Inner {
    fn drop(&mut self) {
        self.end();
    }
}

impl Default for Errand {
    fn default() -> Self {
        Self::new()
    }
}

impl fmt::Debug for Errand {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let state = if self.is_over() { "over" } else { "open" };
        write!(f, "Errand({}, {state})", self.0.number)
    }
}
