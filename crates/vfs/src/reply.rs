//! Reply of a call, which may be delivered later.

use crate::{Requester, TreeError};

/// Reply to one call.
///
/// The tree delivers it at once on the calling thread if the result is known, otherwise later from any
/// thread. Dropping it without a result is a bug of the tree; the mount then answers `EIO`.
pub struct Reply<T> {
    deliver: Option<Deliver<T>>,
    requester: Requester,
}

type Deliver<T> = Box<dyn FnOnce(Result<T, TreeError>) + Send>;

impl<T> Reply<T> {
    /// Creates a reply that calls `deliver` once. `deliver` may run on any thread and must not block.
    pub fn new(deliver: impl FnOnce(Result<T, TreeError>) + Send + 'static) -> Self {
        Self { deliver: Some(Box::new(deliver)), requester: Requester::default() }
    }

    /// Sets the requester of the call.
    #[must_use]
    pub fn for_requester(mut self, requester: Requester) -> Self {
        self.requester = requester;
        self
    }

    /// Returns the requester of the call; an unknown one unless it was set.
    pub fn requester(&self) -> &Requester {
        &self.requester
    }

    /// Returns a reply for the same requester whose result is passed to `deliver` together with this one.
    pub fn through<U>(self, deliver: impl FnOnce(Result<U, TreeError>, Self) + Send + 'static) -> Reply<U>
    where
        T: 'static,
    {
        let requester = self.requester.clone();
        Reply::new(move |answer| deliver(answer, self)).for_requester(requester)
    }

    /// Delivers the result.
    pub fn give(mut self, answer: Result<T, TreeError>) {
        if let Some(deliver) = self.deliver.take() {
            deliver(answer);
        }
    }

    /// Delivers a value.
    pub fn ok(self, value: T) {
        self.give(Ok(value));
    }

    /// Delivers an error.
    pub fn err(self, error: impl Into<TreeError>) {
        self.give(Err(error.into()));
    }
}

impl<T: Send + 'static> Reply<T> {
    /// Calls `ask` with a reply and waits for the result. For tools and tests: a mount never blocks.
    pub fn wait(ask: impl FnOnce(Reply<T>)) -> Result<T, TreeError> {
        let (sender, receiver) = std::sync::mpsc::sync_channel(1);
        ask(Reply::new(move |answer| {
            // The receiver exists until the first result; a second one can't be sent.
            let _ = sender.send(answer);
        }));
        receiver.recv().unwrap_or_else(|_| Err(TreeError::dropped()))
    }
}

impl<T> Drop for Reply<T> {
    fn drop(&mut self) {
        if let Some(deliver) = self.deliver.take() {
            deliver(Err(TreeError::dropped()));
        }
    }
}
