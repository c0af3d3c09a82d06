//! Tests that measure time have the machine to themselves, as far as it is ours.

use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};

#[derive(Default)]
struct Inside {
    worlds: usize,
    alone: bool,
}

static INSIDE: Mutex<Inside> = Mutex::new(Inside { worlds: 0, alone: false });
static LEFT: Condvar = Condvar::new();

fn inside() -> MutexGuard<'static, Inside> {
    INSIDE.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Somebody inside: one of many, or the only one.
pub(crate) struct Pass {
    alone: bool,
}

/// Comes in among others. Whoever is inside already may come in again, so nobody waits for those who want to be alone.
pub(crate) fn among_others() -> Pass {
    let mut inside = LEFT.wait_while(inside(), |inside| inside.alone).unwrap_or_else(PoisonError::into_inner);
    inside.worlds += 1;
    Pass { alone: false }
}

/// Comes in once nobody else is there, and stays alone.
pub(crate) fn alone() -> Pass {
    let others = |inside: &mut Inside| inside.alone || inside.worlds > 0;
    let mut inside = LEFT.wait_while(inside(), others).unwrap_or_else(PoisonError::into_inner);
    inside.alone = true;
    Pass { alone: true }
}

impl Drop for Pass {
    fn drop(&mut self) {
        let mut inside = inside();
        if self.alone {
            inside.alone = false;
        } else {
            inside.worlds -= 1;
        }
        LEFT.notify_all();
    }
}
