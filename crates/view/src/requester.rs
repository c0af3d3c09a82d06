//! Translates requesters of a tree into those of the store.

use esker_store::Requester;

/// Returns the store's requester for a call, which tracks the progress of its fetches.
pub(crate) fn of(call: &esker_vfs::Requester) -> Requester {
    let requester = Requester { user: call.user(), ..Requester::default() };
    let progress = requester.progress.clone();
    call.follow(move || progress.last());
    let progress = requester.progress.clone();
    call.add_waits(move || progress.waits());
    requester
}
