//! The commits of one repository: one after the other, each for all publishers that wait for it.

use std::sync::Arc;

use esker_format::hash::ContentHash;
use parking_lot::Mutex;

use crate::lease::{Lease, Request};
use crate::target::{PublishFailure, Published};
use crate::token::Token;

/// Most requests that one commit carries out.
const JOINED_MAX: usize = 64;

/// A request that waits for its commit.
pub(super) struct Waiting {
    pub(super) token: Token,
    pub(super) lease: Lease,
    pub(super) request: Request,
    /// The root catalog that the publisher has built.
    pub(super) root: ContentHash,
    result: Mutex<Option<Result<Published, PublishFailure>>>,
}

impl Waiting {
    pub(super) fn new(token: Token, lease: Lease, request: Request, root: ContentHash) -> Self {
        Self { token, lease, request, root, result: Mutex::default() }
    }
}

/// The commits of one repository.
#[derive(Default)]
pub(super) struct Commits {
    turn: Mutex<()>,
    waiting: Mutex<Vec<Arc<Waiting>>>,
}

impl Commits {
    /// Returns the result of a request. The thread whose turn comes first carries out those of the others that wait with it, by
    /// `commit`, which returns their results in the same order.
    pub(super) fn run(
        &self,
        request: Waiting,
        commit: impl Fn(&[Arc<Waiting>]) -> Vec<Result<Published, PublishFailure>>,
    ) -> Result<Published, PublishFailure> {
        let own = Arc::new(request);
        self.waiting.lock().push(own.clone());
        let _turn = self.turn.lock();
        if let Some(result) = own.result.lock().take() {
            return result;
        }
        let joined = self.take(&own);
        for (request, result) in joined.iter().zip(commit(&joined)) {
            *request.result.lock() = Some(result);
        }
        let result = own.result.lock().take();
        result.unwrap_or_else(|| Err(PublishFailure::Failed("the commit has no result".into())))
    }

    /// Returns the number of requests that wait for their turn.
    pub(super) fn waiting(&self) -> usize {
        self.waiting.lock().len()
    }

    /// Takes a request, and others that may be carried out with it, from those that wait.
    fn take(&self, own: &Arc<Waiting>) -> Vec<Arc<Waiting>> {
        let mut joined = vec![own.clone()];
        self.waiting.lock().retain(|other| {
            let is_own = Arc::ptr_eq(other, own);
            let joins = joined.len() < JOINED_MAX
                && [own, other].iter().all(|waiting| waiting.request.may_be_joined());
            if joins && !is_own {
                joined.push(other.clone());
            }
            !is_own && !joins
        });
        joined
    }
}
