//! Callbacks for results that may arrive later.

use std::sync::mpsc::RecvTimeoutError;

use crate::error::{Cause, StoreError};
use crate::interruption::{POLL_INTERVAL, is_over};

/// Receiver of the outcome of a request. Called exactly once, on any thread (perhaps the calling thread, before the
/// call returns); it must not block. Dropping it delivers [`Cause::Closed`].
pub struct Callback<T>(Option<Deliver<T>>);

type Deliver<T> = Box<dyn FnOnce(Result<T, StoreError>) + Send>;

impl<T> Callback<T> {
    /// Calls `deliver` with the outcome.
    pub fn new(deliver: impl FnOnce(Result<T, StoreError>) + Send + 'static) -> Self {
        Self(Some(Box::new(deliver)))
    }

    /// Calls the callback with the outcome.
    pub fn give(mut self, outcome: Result<T, StoreError>) {
        if let Some(deliver) = self.0.take() {
            deliver(outcome);
        }
    }

    /// Completes the request with a value.
    pub fn ok(self, value: T) {
        self.give(Ok(value));
    }

    /// Completes the request with an error.
    pub fn err(self, error: StoreError) {
        self.give(Err(error));
    }
}

impl<T: Send + 'static> Callback<T> {
    /// Calls a function with a callback and waits for the result, or for an interruption of the process. For tools, tests
    /// and start-up; never on a thread that serves others.
    pub fn wait(ask: impl FnOnce(Callback<T>)) -> Result<T, StoreError> {
        Self::wait_unless(ask, || false)
    }

    /// Waits like `wait`, also until `is_late` returns true, which is called at intervals.
    pub fn wait_unless(ask: impl FnOnce(Callback<T>), is_late: impl Fn() -> bool) -> Result<T, StoreError> {
        let (sender, receiver) = std::sync::mpsc::sync_channel(1);
        ask(Callback::new(move |outcome| {
            // The receiver lives until it has the one outcome.
            let _ = sender.send(outcome);
        }));
        loop {
            match receiver.recv_timeout(POLL_INTERVAL) {
                Ok(outcome) => return outcome,
                Err(RecvTimeoutError::Disconnected) => return Err(closed()),
                Err(RecvTimeoutError::Timeout) if is_late() || is_over() => {
                    return Err(StoreError::new("a request", Cause::Interrupted));
                }
                Err(RecvTimeoutError::Timeout) => {}
            }
        }
    }
}

impl<T> Drop for Callback<T> {
    fn drop(&mut self) {
        if let Some(deliver) = self.0.take() {
            deliver(Err(closed()));
        }
    }
}

fn closed() -> StoreError {
    StoreError::new("a request", Cause::Closed)
}
