//! The interface of predictors.

use esker_store::ObjectRequest;

use crate::event::{Action, Event, Purpose};
use crate::queue::Queue;
use crate::world::World;

/// Maximum number of retries of one prediction, since the attached catalogs may name more.
pub(crate) const TRIES_MAX: u32 = 8;

/// Source of candidates: it handles events, and queues what programs will probably read.
pub(crate) trait Predictor<C> {
    /// Handles an event; returns it if the predictors after this one may handle it, too.
    fn on(&mut self, event: Event<C>, context: &mut Context<'_, C>) -> Option<Event<C>>;

    /// Forgets what waits for objects: they are not fetched any more.
    fn clear(&mut self) {}
}

/// State that a predictor uses while it handles an event.
pub(crate) struct Context<'c, C> {
    pub(crate) world: &'c mut dyn World<Catalog = C>,
    pub(crate) queue: &'c mut Queue,
    /// Actions for the caller, in order.
    pub(crate) actions: Vec<Action<C>>,
    raised: Vec<Event<C>>,
}

impl<'c, C> Context<'c, C> {
    pub(crate) fn new(world: &'c mut dyn World<Catalog = C>, queue: &'c mut Queue) -> Self {
        Self { world, queue, actions: Vec::new(), raised: Vec::new() }
    }

    /// Raises an event that all predictors handle next, before those after the present one handle theirs.
    pub(crate) fn raise(&mut self, event: Event<C>) {
        self.raised.push(event);
    }

    /// Takes the raised events, the last one first.
    pub(crate) fn take_raised(&mut self) -> impl Iterator<Item = Event<C>> {
        std::mem::take(&mut self.raised).into_iter().rev()
    }

    /// Requests an object whose content decides what is prefetched next.
    pub(crate) fn open(&mut self, wanted: ObjectRequest, purpose: Purpose) {
        self.actions.push(Action::Open(wanted, purpose));
    }

    /// Requests the catalogs that a prediction lacked, and the event that repeats the prediction then.
    pub(crate) fn attach_missing(&mut self, again: impl FnOnce() -> Option<Event<C>>) {
        let missing = self.world.take_missing();
        if !missing.is_empty()
            && let Some(event) = again()
        {
            self.actions.push(Action::Attach(missing, event));
        }
    }
}
