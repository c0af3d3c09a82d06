//! Requesters of a tree, as the store knows them.

use esker_store::Requester;

/// Returns the store's requester for a call, which follows the progress of what is got for it.
pub(crate) fn of(call: &esker_vfs::Requester) -> Requester {
    let requester = Requester { user: call.user(), ..Requester::default() };
    let progress = requester.progress.clone();
    call.follow(move || progress.last());
    requester
}
