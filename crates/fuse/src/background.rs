//! Background threads for calls of the tree.
//!
//! A tree may wait for a disk that doesn't answer. The thread that watches deadlines must never wait with it, so its
//! calls of the tree run on a few threads of their own. They are not joined.

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::mpsc::sync_channel;
use std::time::Duration;

use parking_lot::{Condvar, Mutex};

/// Maximum number of threads.
const THREADS_MAX: usize = 4;
/// Maximum number of queued tasks; further ones are dropped, and their senders must cope.
const WAITING_MAX: usize = 1 << 16;
/// Idle time after which a thread ends.
const IDLE: Duration = Duration::from_secs(1);

type Task = Box<dyn FnOnce() + Send>;

/// Queue and threads of background tasks.
#[derive(Default)]
pub(crate) struct Background {
    state: Mutex<State>,
    more: Condvar,
}

#[derive(Default)]
struct State {
    waiting: VecDeque<Task>,
    threads: usize,
    idle: usize,
}

impl Background {
    /// Queues a task; returns false if it was dropped, because the queue is full or no thread can be started.
    pub(crate) fn spawn(self: &Arc<Self>, task: impl FnOnce() + Send + 'static) -> bool {
        let mut state = self.state.lock();
        if state.waiting.len() >= WAITING_MAX {
            return false;
        }
        if state.idle <= state.waiting.len() && state.threads < THREADS_MAX {
            let background = Arc::clone(self);
            let started = esker_threads::spawn("fuse-background", move || background.work());
            state.threads += usize::from(started.is_ok());
        }
        let any = state.threads > 0;
        if any {
            state.waiting.push_back(Box::new(task));
            self.more.notify_one();
        }
        any
    }

    /// Queues a task and waits for it until the timeout; returns at once if all threads are busy.
    pub(crate) fn spawn_and_wait(self: &Arc<Self>, task: impl FnOnce() + Send + 'static, time: Duration) {
        let is_busy = {
            let state = self.state.lock();
            state.threads == THREADS_MAX && state.idle <= state.waiting.len()
        };
        let (done, over) = sync_channel(1);
        let task = move || {
            task();
            // The sender may have stopped waiting.
            let _ = done.try_send(());
        };
        if self.spawn(task) && !is_busy {
            // A disk that doesn't answer, or a thread that gets no processor: it goes on without us.
            let _ = over.recv_timeout(time);
        }
    }

    fn work(&self) {
        let mut state = self.state.lock();
        loop {
            if let Some(task) = state.waiting.pop_front() {
                drop(state);
                task();
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
    fn hanging_requests_block_only_a_few_threads() {
        let background = Arc::new(Background::default());
        let (go_on, hanging) = channel::<()>();
        let hanging = Arc::new(Mutex::new(hanging));
        let (told, done) = channel();
        for number in 0..3 * THREADS_MAX {
            let (hanging, told) = (Arc::clone(&hanging), told.clone());
            let task = move || {
                let _ = hanging.lock().recv();
                told.send(number).expect("a listener");
            };
            background.spawn_and_wait(task, Duration::from_millis(1));
        }
        assert_eq!(background.state.lock().threads, THREADS_MAX);
        drop(go_on);
        let mut all: Vec<_> = done.iter().take(3 * THREADS_MAX).collect();
        all.sort_unstable();
        assert!(all.into_iter().eq(0..3 * THREADS_MAX), "each is done once");
    }
}
