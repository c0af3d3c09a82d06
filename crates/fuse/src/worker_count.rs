//! Counts the workers of a session, and limits the wait for them when the mount is gone.

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use parking_lot::{Condvar, Mutex};

/// Time limit for workers to end once the mount is gone. A worker that takes longer is blocked on a disk that
/// doesn't reply.
const GRACE: Duration = Duration::from_secs(2);

/// Number of workers, and the state of the shutdown.
#[derive(Debug)]
pub(crate) struct WorkerCount {
    state: Mutex<State>,
    changed: Condvar,
    /// True once no more requests are served because another process takes over.
    retiring: AtomicBool,
}

#[derive(Debug)]
struct State {
    present: usize,
    /// Time at which a worker saw that the mount is gone.
    gone: Option<Instant>,
}

impl WorkerCount {
    /// Makes the count of `present` workers.
    pub(crate) fn new(present: usize) -> Self {
        let state = Mutex::new(State { present, gone: None });
        Self { state, changed: Condvar::new(), retiring: AtomicBool::new(false) }
    }

    /// Lets workers serve no more requests, because another process takes over.
    pub(crate) fn retire(&self) {
        self.retiring.store(true, Ordering::SeqCst);
    }

    pub(crate) fn is_retiring(&self) -> bool {
        self.retiring.load(Ordering::SeqCst)
    }

    /// Adds a worker.
    pub(crate) fn join(&self) {
        self.state.lock().present += 1;
    }

    /// Removes a worker; the last one calls `clean_up` first. `is_gone` is true if the mount is gone.
    pub(crate) fn leave(&self, is_gone: bool, clean_up: impl FnOnce()) {
        let is_last = {
            let mut state = self.state.lock();
            if is_gone {
                state.gone.get_or_insert_with(Instant::now);
                self.changed.notify_all();
            }
            let is_last = state.present == 1;
            state.present -= usize::from(!is_last);
            is_last
        };
        if is_last {
            clean_up();
            self.state.lock().present -= 1;
        }
        self.changed.notify_all();
    }

    /// Returns whether the mount is gone.
    pub(crate) fn is_over(&self) -> bool {
        self.state.lock().gone.is_some()
    }

    /// Waits until the mount is gone and all workers ended; returns how many are still blocked.
    pub(crate) fn wait(&self) -> usize {
        let mut state = self.state.lock();
        while state.present > 0 {
            match state.gone {
                None => self.changed.wait(&mut state),
                Some(gone) => {
                    if self.changed.wait_until(&mut state, gone + GRACE).timed_out() {
                        break;
                    }
                }
            }
        }
        state.present
    }
}
