//! Clients that have asked nothing yet, or not all of it.
//!
//! They take a descriptor and no place among those who are answered. When there are too many, the one that has been there for
//! longest leaves at once, so however many say nothing, a client that asks is answered.

use std::collections::BTreeMap;
use std::sync::Arc;

use parking_lot::Mutex;
use tokio::sync::Notify;

/// The clients whose first request is not complete.
#[derive(Debug)]
pub(crate) struct Lobby {
    most: usize,
    seats: Mutex<Seats>,
}

#[derive(Debug, Default)]
struct Seats {
    next: u64,
    taken: BTreeMap<u64, Arc<Notify>>,
}

/// A client's seat; free again on drop.
#[derive(Debug)]
pub(crate) struct Seat {
    lobby: Arc<Lobby>,
    number: u64,
    leave: Arc<Notify>,
}

impl Lobby {
    pub(crate) fn new(most: usize) -> Arc<Self> {
        Arc::new(Self { most, seats: Mutex::default() })
    }

    /// Takes a seat; if none is free, the client that has one for longest is told to leave.
    pub(crate) fn enter(self: &Arc<Self>) -> Seat {
        let leave = Arc::new(Notify::new());
        let mut seats = self.seats.lock();
        let number = seats.next;
        seats.next += 1;
        seats.taken.insert(number, leave.clone());
        if seats.taken.len() > self.most {
            seats.empty_one();
        }
        drop(seats);
        Seat { lobby: self.clone(), number, leave }
    }

    /// Tells the client that has a seat for longest to leave; whether there is one.
    pub(crate) fn empty_one(&self) -> bool {
        self.seats.lock().empty_one()
    }
}

impl Seats {
    fn empty_one(&mut self) -> bool {
        let first = self.taken.pop_first();
        first.map(|(_, leave)| leave.notify_one()).is_some()
    }
}

impl Seat {
    /// Waits until the client has to leave.
    pub(crate) async fn lost(&self) {
        self.leave.notified().await;
    }
}

impl Drop for Seat {
    fn drop(&mut self) {
        self.lobby.seats.lock().taken.remove(&self.number);
    }
}
