//! Prefetches objects whose content decides what is prefetched next.

use std::sync::Arc;

use esker_store::{Callback, Handle, ObjectRequest};

use crate::core::Core;

use super::Event;

/// Prefetches and opens an object, and sends one event with the result to the scheduler.
pub(super) fn open(
    core: &Arc<Core>,
    wanted: ObjectRequest,
    event: impl FnOnce(Option<Handle>) -> Event + Send + 'static,
) {
    let (weak, retry) = (Arc::downgrade(core), wanted.clone());
    let opened = Callback::new(move |answer: Result<Handle, _>| {
        if let Some(core) = weak.upgrade() {
            core.prefetch.tell(event(answer.ok()));
        }
    });
    let weak = Arc::downgrade(core);
    let warmed = move |answer: Result<_, _>| match (answer, weak.upgrade()) {
        (Ok(_), Some(core)) => core.store.get(retry, opened),
        (Err(error), _) => opened.err(error),
        (Ok(_), None) => {}
    };
    core.store.warm(wanted, &core.prefetch.cancel_token, Callback::new(warmed));
}
