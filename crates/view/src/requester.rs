//! Translates requesters of a tree into those of the store.

use esker_store::{ObjectOrigin, Requester};
use esker_vfs::Origin;

/// Returns the store's requester for a call, which tracks the progress of its fetches.
pub(crate) fn of(call: &esker_vfs::Requester) -> Requester {
    let requester = Requester { user: call.user(), ..Requester::default() };
    let progress = requester.progress.clone();
    call.follow(move || progress.last());
    let progress = requester.progress.clone();
    call.add_waits(move || progress.waits());
    call.may_come_from(|| {
        let progress = requester.progress.clone();
        Box::new(move || progress.origin().map(origin))
    });
    requester
}

fn origin(origin: ObjectOrigin) -> Origin {
    match origin {
        ObjectOrigin::Server(url) => Origin::Server(url),
        ObjectOrigin::Lower(path) => Origin::Lower(path),
        ObjectOrigin::Process(path) => Origin::Process(path),
    }
}
