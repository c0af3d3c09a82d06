//! A slow link to the mirror, which all its connections share.

use std::io::{self, Write};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// Number of bytes in one send.
const PIECE: usize = 16 << 10;

/// Bandwidth of the mirror for all bodies together.
#[derive(Debug, Default)]
pub(crate) struct Link {
    speed: Mutex<Speed>,
    /// Order of responses, if the mirror sends one at a time.
    turns: Turns,
    /// Bytes of bodies that were sent.
    sent: AtomicU64,
}

#[derive(Debug, Default)]
struct Speed {
    bytes_per_second: Option<u64>,
    one_at_a_time: bool,
    /// Time until which the link is busy with earlier responses.
    busy_until: Option<Instant>,
}

/// Lock that its users get in the order in which they ask for it, which a mutex doesn't promise: a client takes a request
/// that later ones overtake for one that the server has lost.
#[derive(Debug, Default)]
struct Turns {
    numbers: Mutex<Numbers>,
    ended: Condvar,
}

#[derive(Debug, Default)]
struct Numbers {
    next: u64,
    current: u64,
}

/// Turn of a response, which ends when it is dropped.
#[derive(Debug)]
pub(crate) struct Turn<'l>(&'l Turns);

impl Turns {
    fn take(&self) -> Turn<'_> {
        let mut numbers = self.lock();
        let own = numbers.next;
        numbers.next += 1;
        let waiting = self.ended.wait_while(numbers, |numbers| numbers.current != own);
        drop(waiting.unwrap_or_else(PoisonError::into_inner));
        Turn(self)
    }

    fn lock(&self) -> MutexGuard<'_, Numbers> {
        self.numbers.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for Turn<'_> {
    fn drop(&mut self) {
        self.0.lock().current += 1;
        self.0.ended.notify_all();
    }
}

impl Link {
    pub(crate) fn narrow(&self, bytes_per_second: u64) {
        self.lock().bytes_per_second = Some(bytes_per_second);
    }

    pub(crate) fn one_at_a_time(&self) {
        self.lock().one_at_a_time = true;
    }

    /// Waits for the turn of a response, which holds it while it is sent; returns `None` if responses need no turns.
    pub(crate) fn turn(&self) -> Option<Turn<'_>> {
        let is_needed = self.lock().one_at_a_time;
        is_needed.then(|| self.turns.take())
    }

    /// Sends a body as fast as the link allows.
    pub(crate) fn send(&self, to: &mut impl Write, body: &[u8]) -> io::Result<()> {
        for piece in body.chunks(PIECE) {
            // The emulated link: the piece arrives when the link has had time for it.
            std::thread::sleep(self.wait_for(piece.len()));
            to.write_all(piece)?;
            self.sent.fetch_add(piece.len() as u64, Ordering::Relaxed);
        }
        Ok(())
    }

    /// Returns the number of bytes of bodies sent so far.
    pub(crate) fn sent(&self) -> u64 {
        self.sent.load(Ordering::Relaxed)
    }

    /// Reserves the link for `bytes` behind earlier reservations; returns the time until they are sent.
    fn wait_for(&self, bytes: usize) -> Duration {
        let mut speed = self.lock();
        let Some(bytes_per_second) = speed.bytes_per_second else { return Duration::ZERO };
        let now = Instant::now();
        let takes = Duration::from_secs_f64(bytes as f64 / bytes_per_second as f64);
        let until = speed.busy_until.map_or(now, |until| until.max(now)) + takes;
        speed.busy_until = Some(until);
        until - now
    }

    fn lock(&self) -> MutexGuard<'_, Speed> {
        self.speed.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
