//! Which workers of a session are there, and how long one waits for them when the mount is gone.

use std::time::{Duration, Instant};

use parking_lot::{Condvar, Mutex};

/// How long workers may take to come back once the mount is gone. Who doesn't waits for a disk that doesn't answer.
const GRACE: Duration = Duration::from_secs(2);

/// The workers.
#[derive(Debug)]
pub(crate) struct Attendance {
    state: Mutex<State>,
    changed: Condvar,
}

#[derive(Debug)]
struct State {
    present: usize,
    /// When a worker saw that the mount is gone.
    gone: Option<Instant>,
}

impl Attendance {
    /// So many are there.
    pub(crate) fn new(present: usize) -> Self {
        Self { state: Mutex::new(State { present, gone: None }), changed: Condvar::new() }
    }

    /// Another one comes.
    pub(crate) fn join(&self) {
        self.state.lock().present += 1;
    }

    /// One leaves, after cleaning up if it is the last. `is_gone` tells that the mount is.
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

    /// Whether the mount is gone.
    pub(crate) fn is_over(&self) -> bool {
        self.state.lock().gone.is_some()
    }

    /// Waits until the mount is gone and everybody left; tells how many are left behind.
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
