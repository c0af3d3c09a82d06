//! Slots for uploads, which keys share.

use std::collections::BTreeMap;
use std::sync::Arc;

use parking_lot::Mutex;
use tokio::sync::Notify;

/// Slots that a key leaves to others while it is the only one with uploads.
const LEFT: usize = 4;

/// Slots for uploads. A key that waits or holds some has the same share as each other one.
pub(super) struct Slots {
    all: usize,
    keys: Mutex<BTreeMap<String, Use>>,
    freed: Notify,
}

/// Use of the slots by one key.
#[derive(Default)]
struct Use {
    held: usize,
    waiting: usize,
}

/// A slot, until it is dropped, or a place among those that wait for one.
pub(super) struct Slot {
    slots: Arc<Slots>,
    key: String,
    is_held: bool,
}

impl Slots {
    pub(super) fn new(all: usize) -> Arc<Self> {
        Arc::new(Self { all, keys: Mutex::default(), freed: Notify::new() })
    }

    /// Waits for a slot for a key.
    pub(super) async fn take(self: &Arc<Self>, key: &str) -> Slot {
        self.keys.lock().entry(key.to_owned()).or_default().waiting += 1;
        let mut slot = Slot { slots: self.clone(), key: key.to_owned(), is_held: false };
        loop {
            let freed = self.freed.notified();
            if self.try_take(&mut slot) {
                return slot;
            }
            freed.await;
        }
    }

    fn try_take(&self, slot: &mut Slot) -> bool {
        let mut keys = self.keys.lock();
        let (held, share) = (keys.values().map(|key| key.held).sum::<usize>(), self.share(keys.len()));
        let Some(key) = keys.get_mut(&slot.key) else { return false };
        if held >= self.all || key.held >= share {
            return false;
        }
        (key.held, key.waiting) = (key.held + 1, key.waiting - 1);
        slot.is_held = true;
        true
    }

    fn share(&self, keys: usize) -> usize {
        (self.all / keys.max(1)).clamp(1, self.all.saturating_sub(LEFT).max(1))
    }
}

impl Drop for Slot {
    fn drop(&mut self) {
        let mut keys = self.slots.keys.lock();
        if let Some(key) = keys.get_mut(&self.key) {
            let count = if self.is_held { &mut key.held } else { &mut key.waiting };
            *count = count.saturating_sub(1);
            if key.held + key.waiting == 0 {
                keys.remove(&self.key);
            }
        }
        drop(keys);
        // Shares may have grown, too.
        self.slots.freed.notify_waiters();
    }
}

#[cfg(test)]
mod tests {
    use std::future::Future;
    use std::pin::pin;
    use std::task::{Context, Poll, Waker};

    use super::*;

    /// Returns a slot if there is one now.
    fn now(slots: &Arc<Slots>, key: &str) -> Option<Slot> {
        match pin!(slots.take(key)).poll(&mut Context::from_waker(Waker::noop())) {
            Poll::Ready(slot) => Some(slot),
            Poll::Pending => None,
        }
    }

    fn all_now(slots: &Arc<Slots>, key: &str) -> Vec<Slot> {
        std::iter::from_fn(|| now(slots, key)).collect()
    }

    #[test]
    fn one_key_never_takes_all_slots() {
        let slots = Slots::new(16);
        let first = all_now(&slots, "a");
        assert_eq!(first.len(), 12);
        let second = all_now(&slots, "b");
        assert_eq!(second.len(), 4);
        drop((first, second));
        assert!(slots.keys.lock().is_empty());
        assert_eq!(all_now(&slots, "b").len(), 12);
    }

    #[test]
    fn keys_that_wait_get_their_share() {
        let slots = Slots::new(16);
        let mut first = all_now(&slots, "a");
        let second = all_now(&slots, "b");
        let mut waiting = pin!(slots.take("c"));
        let mut poll = || waiting.as_mut().poll(&mut Context::from_waker(Waker::noop()));
        assert!(poll().is_pending());
        // A third of 16, of which the first key has more.
        first.truncate(11);
        assert!(now(&slots, "a").is_none());
        let Poll::Ready(third) = poll() else { panic!("the slot is free") };
        first.truncate(5);
        assert!(now(&slots, "a").is_none(), "it has its share");
        drop((second, third));
        assert!(now(&slots, "a").is_some());
    }
}
