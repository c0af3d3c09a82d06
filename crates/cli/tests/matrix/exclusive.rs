//! Runs tests that measure time while no other test runs.

use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};

#[derive(Default)]
struct Running {
    tests: usize,
    alone: bool,
}

static RUNNING: Mutex<Running> = Mutex::new(Running { tests: 0, alone: false });
static LEFT: Condvar = Condvar::new();

fn running() -> MutexGuard<'static, Running> {
    RUNNING.lock().unwrap_or_else(PoisonError::into_inner)
}

/// A running test: one of many, or the only one.
pub(crate) struct Pass {
    alone: bool,
}

/// Starts beside other tests. A test that runs already may start again, so it doesn't wait for exclusive ones.
pub(crate) fn among_others() -> Pass {
    let mut running =
        LEFT.wait_while(running(), |running| running.alone).unwrap_or_else(PoisonError::into_inner);
    running.tests += 1;
    Pass { alone: false }
}

/// Starts once no other test runs, and keeps others from starting.
pub(crate) fn alone() -> Pass {
    let others = |running: &mut Running| running.alone || running.tests > 0;
    let mut running = LEFT.wait_while(running(), others).unwrap_or_else(PoisonError::into_inner);
    running.alone = true;
    Pass { alone: true }
}

impl Drop for Pass {
    fn drop(&mut self) {
        let mut running = running();
        if self.alone {
            running.alone = false;
        } else {
            running.tests -= 1;
        }
        LEFT.notify_all();
    }
}
