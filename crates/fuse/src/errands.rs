//! What has to be asked or told of the tree by nobody's worker.
//!
//! A tree may wait for a disk that doesn't answer. The thread that watches deadlines must never wait with it, so what it
//! has to do with the tree is done by a few threads of their own. They are not waited for.

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::mpsc::sync_channel;
use std::thread::Builder;
use std::time::Duration;

use parking_lot::{Condvar, Mutex};

/// Most threads.
const THREADS_MAX: usize = 4;
/// Most errands that wait; further ones are not done, which whoever sends them has to be fine with.
const WAITING_MAX: usize = 1 << 16;
/// A thread without an errand for so long ends.
const IDLE: Duration = Duration::from_secs(1);

type Errand = Box<dyn FnOnce() + Send>;

/// The errands.
#[derive(Default)]
pub(crate) struct Errands {
    state: Mutex<State>,
    more: Condvar,
}

#[derive(Default)]
struct State {
    waiting: VecDeque<Errand>,
    threads: usize,
    idle: usize,
}

impl Errands {
    /// Has something done; whether it will be.
    pub(crate) fn send(self: &Arc<Self>, errand: impl FnOnce() + Send + 'static) -> bool {
        let mut state = self.state.lock();
        if state.waiting.len() >= WAITING_MAX {
            return false;
        }
        if state.idle <= state.waiting.len() && state.threads < THREADS_MAX {
            let errands = Arc::clone(self);
            let started = Builder::new().name("fuse-errand".into()).spawn(move || errands.work());
            state.threads += usize::from(started.is_ok());
        }
        let any = state.threads > 0;
        if any {
            state.waiting.push_back(Box::new(errand));
            self.more.notify_one();
        }
        any
    }

    /// Has something done, and waits so long for it, unless all threads have something to do already.
    pub(crate) fn send_and_wait(self: &Arc<Self>, errand: impl FnOnce() + Send + 'static, time: Duration) {
        let is_busy = {
            let state = self.state.lock();
            state.threads == THREADS_MAX && state.idle <= state.waiting.len()
        };
        let (done, over) = sync_channel(1);
        let errand = move || {
            errand();
            // Who sent it may not wait any more.
            let _ = done.try_send(());
        };
        if self.send(errand) && !is_busy {
            // A disk that doesn't answer, or a thread that gets no processor: it goes on without us.
            let _ = over.recv_timeout(time);
        }
    }

    fn work(&self) {
        let mut state = self.state.lock();
        loop {
            if let Some(errand) = state.waiting.pop_front() {
                drop(state);
                errand();
                state = self.state.lock();
                continue;
            }
            state.idle += 1;
            let timed_out = self.more.wait_for(&mut state, IDLE).timed_out();
            state.idle -= 1;
            if timed_out && state.waiting.is_empty() {
                state.threads -= 1;
                return;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc::channel;

    use super::*;

    #[test]
    fn errands_that_hang_hold_up_a_few_threads_and_nobody_else() {
        let errands = Arc::new(Errands::default());
        let (go_on, hanging) = channel::<()>();
        let hanging = Arc::new(Mutex::new(hanging));
        let (told, done) = channel();
        for number in 0..3 * THREADS_MAX {
            let (hanging, told) = (Arc::clone(&hanging), told.clone());
            let errand = move || {
                let _ = hanging.lock().recv();
                told.send(number).expect("a listener");
            };
            errands.send_and_wait(errand, Duration::from_millis(1));
        }
        assert_eq!(errands.state.lock().threads, THREADS_MAX);
        drop(go_on);
        let mut all: Vec<_> = done.iter().take(3 * THREADS_MAX).collect();
        all.sort_unstable();
        assert!(all.into_iter().eq(0..3 * THREADS_MAX), "each is done once");
    }
}
