//! A slow link to the mirror, which all its connections share.

use std::io::{self, Write};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// Number of bytes in one send.
const PIECE: usize = 16 << 10;

/// Bandwidth of the mirror for all bodies together.
#[derive(Debug, Default)]
pub(crate) struct Link {
    speed: Mutex<Speed>,
    /// Lock that a mirror holds while it sends a response, if it sends one at a time.
    turn: Mutex<()>,
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

impl Link {
    pub(crate) fn narrow(&self, bytes_per_second: u64) {
        self.lock().bytes_per_second = Some(bytes_per_second);
    }

    pub(crate) fn one_at_a_time(&self) {
        self.lock().one_at_a_time = true;
    }

    /// Returns the guard that a response holds while it is sent.
    pub(crate) fn turn(&self) -> Option<MutexGuard<'_, ()>> {
        let is_needed = self.lock().one_at_a_time;
        is_needed.then(|| self.turn.lock().unwrap_or_else(PoisonError::into_inner))
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
