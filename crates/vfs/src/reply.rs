//! An answer that may come later.

use crate::{Requester, TreeError};

/// Where a tree puts the answer to one call: at once, on the calling thread, if it is known; otherwise
/// from whichever thread learns it. Dropping it unanswered is a bug in the tree; the mount then answers
/// `EIO` in its place.
pub struct Reply<T> {
    deliver: Option<Deliver<T>>,
    requester: Requester,
}

type Deliver<T> = Box<dyn FnOnce(Result<T, TreeError>) + Send>;

impl<T> Reply<T> {
    /// A reply that calls `deliver` once. It may run on any thread and must not block.
    pub fn new(deliver: impl FnOnce(Result<T, TreeError>) + Send + 'static) -> Self {
        Self { deliver: Some(Box::new(deliver)), requester: Requester::default() }
    }

    /// Names the requester that the answer is for.
    #[must_use]
    pub fn for_requester(mut self, requester: Requester) -> Self {
        self.requester = requester;
        self
    }

    /// Returns the requester that the answer is for; an unknown one unless it was named.
    pub fn requester(&self) -> &Requester {
        &self.requester
    }

    /// Answers.
    pub fn give(mut self, answer: Result<T, TreeError>) {
        if let Some(deliver) = self.deliver.take() {
            deliver(answer);
        }
    }

    /// Answers with a value.
    pub fn ok(self, value: T) {
        self.give(Ok(value));
    }

    /// Answers with an error.
    pub fn err(self, error: impl Into<TreeError>) {
        self.give(Err(error.into()));
    }
}

impl<T: Send + 'static> Reply<T> {
    /// Calls `ask` with a reply and waits for the answer. For tools and tests: a mount never waits.
    pub fn wait(ask: impl FnOnce(Reply<T>)) -> Result<T, TreeError> {
        let (sender, receiver) = std::sync::mpsc::sync_channel(1);
        ask(Reply::new(move |answer| {
            // The receiver lives until an answer came; a second one can't be sent.
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
