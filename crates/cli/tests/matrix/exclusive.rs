//! Tests that measure time have the machine to themselves, as far as it is ours.

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

/// Somebody inside: one of many, or the only one.
pub(crate) struct Pass {
    alone: bool,
}

/// Comes in among others. Whoever is inside already may come in again, so nobody waits for those who want to be alone.
pub(crate) fn among_others() -> Pass {
    let mut running =
        LEFT.wait_while(running(), |running| running.alone).unwrap_or_else(PoisonError::into_inner);
    running.tests += 1;
    Pass { alone: false }
}

/// Comes in once nobody else is there, and stays alone.
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
