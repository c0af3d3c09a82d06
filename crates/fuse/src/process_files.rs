//! Reads files of /proc about other processes that the kernel may keep waiting for an answer of this mount.
//!
//! Reading `syscall` takes the lock that a process holds while it executes a program: `cred_guard_mutex` before Linux 5.7, also
//! while the program is read, which waits for this mount. `maps` takes that and the lock of the address space, which a page
//! fault holds while its page is read before Linux 5.1. A thread that waited for one of them would never answer the request
//! that the lock waits for.

use std::collections::HashSet;
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::LazyLock;
use std::time::Duration;

use esker_threads::watchdog;
use parking_lot::Mutex;

/// Time within which the kernel answers unless a lock is held: far more than a scheduler takes on a busy machine.
const TIMEOUT: Duration = Duration::from_millis(250);
/// Maximum number of reads that wait for locks at the same time.
const WAITING_MAX: usize = 64;

/// Files whose reads wait for a lock. Their threads end when the lock is free, or with the process.
static WAITING: LazyLock<Mutex<HashSet<PathBuf>>> = LazyLock::new(Mutex::default);

/// Content of a file of another process.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Text {
    Read(String),
    /// The file can't be read.
    Unreadable,
    /// The process has a lock that the file needs.
    Locked,
}

/// Reads a file; waits a moment at most, and not at all while another read of the file waits for a lock.
pub(crate) fn read(path: &Path) -> Text {
    {
        let mut waiting = WAITING.lock();
        if waiting.contains(path) {
            return Text::Locked;
        }
        if waiting.len() >= WAITING_MAX {
            return Text::Unreadable;
        }
        waiting.insert(path.to_owned());
    }
    let place = path.to_owned();
    let read = watchdog::begin("inspector", move || {
        let text = fs::read_to_string(&place);
        WAITING.lock().remove(&place);
        text
    });
    match read.map(|reading| reading.recv_timeout(TIMEOUT)) {
        Ok(Ok(Ok(text))) => Text::Read(text),
        Ok(Ok(Err(_))) => Text::Unreadable,
        Ok(Err(_)) => Text::Locked,
        // No thread can be started.
        Err(_) => {
            WAITING.lock().remove(path);
            Text::Unreadable
        }
    }
}

#[cfg(test)]
mod tests {
    use std::fs::OpenOptions;
    use std::io::Write;

    use esker_testkit::waiting::until;
    use rustix::fs::{CWD, FileType, Mode, mknodat};

    use super::*;

    /// A pipe without a writer keeps a reader waiting, as a lock does.
    #[test]
    fn a_file_that_waits_for_a_lock_is_left_and_waited_for_once() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("syscall");
        mknodat(CWD, &path, FileType::Fifo, Mode::from_raw_mode(0o600), 0).expect("a pipe");
        assert_eq!(read(&path), Text::Locked);
        assert!(WAITING.lock().contains(&path), "the fault was met");
        let began = std::time::Instant::now();
        (0..100).for_each(|_| assert_eq!(read(&path), Text::Locked));
        assert!(began.elapsed() < 50 * TIMEOUT, "further reads wait too");
        // The lock is free.
        OpenOptions::new().write(true).open(&path).expect("a reader").write_all(b"0 0x3").expect("read");
        assert!(until(100 * TIMEOUT, || !WAITING.lock().contains(&path)), "its thread has not ended");
        fs::remove_file(&path).expect("removing");
        assert_eq!(read(&path), Text::Unreadable);
        fs::write(&path, "0 0x3").expect("a file");
        assert_eq!(read(&path), Text::Read("0 0x3".to_owned()));
    }
}
