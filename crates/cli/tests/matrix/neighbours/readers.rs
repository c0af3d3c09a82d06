//! Honest readers, and their state for the test.

use std::io::{self, Read};
use std::os::fd::AsFd;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Condvar, Mutex};
use std::time::{Duration, Instant};

use esker_testkit::object;
use esker_testkit::soak::Random;

use crate::test_env::PATIENCE;

/// A file and the SHA-256 of its content.
pub(super) struct File {
    pub(super) path: String,
    pub(super) sum: String,
    /// Its object and length, if it is one object.
    pub(super) object: Option<(String, u64)>,
}

/// Completed reads.
#[derive(Clone, Default)]
pub(super) struct Done {
    pub(super) reads: u64,
    pub(super) bytes: u64,
    pub(super) slowest: Duration,
}

/// Readers that compare the files of a mount with their digests.
pub(super) struct Readers {
    mount: PathBuf,
    files: Vec<File>,
    stop: AtomicBool,
    done: Mutex<Done>,
    more: Condvar,
}

/// Reads a file that the kernel forgets afterwards.
pub(super) fn read_anew(path: &Path) -> io::Result<Vec<u8>> {
    let mut file = std::fs::File::open(path)?;
    let mut bytes = Vec::new();
    file.read_to_end(&mut bytes)?;
    rustix::fs::fadvise(file.as_fd(), 0, None, rustix::fs::Advice::DontNeed)?;
    Ok(bytes)
}

impl Readers {
    pub(super) fn new(mount: PathBuf, files: Vec<File>) -> Readers {
        Readers { mount, files, stop: AtomicBool::new(false), done: Mutex::default(), more: Condvar::new() }
    }

    pub(super) fn mount(&self) -> &Path {
        &self.mount
    }

    pub(super) fn files(&self) -> &[File] {
        &self.files
    }

    pub(super) fn goes_on(&self) -> bool {
        !self.stop.load(Ordering::SeqCst)
    }

    pub(super) fn read(&self) -> Done {
        self.done.lock().expect("no reader failed").clone()
    }

    /// Reads files until told to stop; returns a failed or wrong read as the error.
    pub(super) fn read_on(&self, mut random: Random) -> Result<(), String> {
        while self.goes_on() {
            let file = &self.files[random.below(self.files.len())];
            let since = Instant::now();
            let read = read_anew(&self.mount.join(&file.path));
            let took = since.elapsed();
            let bytes = read.map_err(|error| format!("{}, after {took:?}: {error}", file.path))?;
            if object::sha256(&bytes) != file.sum {
                return Err(format!("{} has wrong bytes", file.path));
            }
            let mut done = self.done.lock().expect("the count");
            done.reads += 1;
            done.bytes += bytes.len() as u64;
            done.slowest = done.slowest.max(took);
            self.more.notify_all();
        }
        Ok(())
    }

    /// Waits for `more` honest reads; false if the test is over.
    pub(super) fn wait_for_reads(&self, more: u64) -> bool {
        let deadline = Instant::now() + 2 * PATIENCE;
        let mut done = self.done.lock().expect("the count");
        let goal = done.reads + more;
        while done.reads < goal && self.goes_on() {
            let left = deadline.saturating_duration_since(Instant::now());
            assert!(!left.is_zero(), "honest readers stand still at {} reads", done.reads);
            done = self.more.wait_timeout(done, left).expect("the count").0;
        }
        self.goes_on()
    }
}

/// Stops all readers on drop, however the test ends.
pub(super) struct Stop<'r, F: Fn()> {
    readers: &'r Readers,
    also: F,
    is_off: AtomicBool,
}

impl<'r, F: Fn()> Stop<'r, F> {
    pub(super) fn of(readers: &'r Readers, also: F) -> Self {
        Self { readers, also, is_off: AtomicBool::new(false) }
    }

    /// Continues the readers after a success.
    pub(super) fn not(&self) {
        self.is_off.store(true, Ordering::SeqCst);
    }
}

impl<F: Fn()> Drop for Stop<'_, F> {
    fn drop(&mut self) {
        if self.is_off.load(Ordering::SeqCst) {
            return;
        }
        self.readers.stop.store(true, Ordering::SeqCst);
        drop(self.readers.done.lock());
        self.readers.more.notify_all();
        (self.also)();
    }
}
