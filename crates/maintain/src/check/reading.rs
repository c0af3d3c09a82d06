//! Results of reading objects, and the pace of it.

use std::time::{Duration, Instant};

use parking_lot::Mutex;

/// Result of reading one folder.
#[derive(Default)]
pub(super) struct Folder {
    pub(super) objects: u64,
    pub(super) bytes: u64,
    pub(super) damaged: Vec<(String, String)>,
    pub(super) strange: Vec<String>,
    pub(super) missing: Vec<String>,
}

/// Keeps all threads together below a rate.
pub(super) struct Pace {
    rate: Option<u64>,
    begun: Instant,
    read: Mutex<u64>,
}

impl Pace {
    pub(super) fn new(rate: Option<u64>) -> Self {
        Self { rate: rate.filter(|rate| *rate > 0), begun: Instant::now(), read: Mutex::new(0) }
    }

    /// Waits until this many more bytes are within the rate.
    pub(super) fn wait(&self, bytes: u64) {
        let Some(rate) = self.rate else { return };
        let total = {
            let mut read = self.read.lock();
            *read += bytes;
            *read
        };
        let due = Duration::from_secs_f64(total as f64 / rate as f64);
        // The rate limit: this worker pauses until the bytes that all workers read are due.
        std::thread::sleep(due.saturating_sub(self.begun.elapsed()));
    }
}
