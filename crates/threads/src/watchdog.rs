//! Runs work that may hang on threads that are detached then, and detects disks that hang.
//!
//! A thread that waits for such a disk can't be stopped. So the work runs on a thread of its own; if it takes long, a
//! small operation probes the disk, and when that doesn't return either, the work is detached.

use std::fs::{self, File};
use std::io;
use std::path::{Path, PathBuf};
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::time::{Duration, Instant};

use crate::spawn;

/// Minimum duration of work that is checked.
const CHECK_AFTER: Duration = Duration::from_secs(2);
/// Timeout of a small operation on a working disk.
pub const TIMEOUT: Duration = Duration::from_secs(10);

/// Error: a disk does not respond.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the disk under {} does not answer", folder.display())]
pub struct DiskHangs {
    /// A folder on the disk.
    pub folder: PathBuf,
}

/// Runs `work`, which uses the disk of `folder`, and detaches it if that disk hangs. Then threads of this process hang,
/// so that it should end.
pub fn unless_disk_hangs<T: Send + 'static>(
    folder: &Path,
    work: impl FnOnce() -> T + Send + 'static,
) -> Result<T, DiskHangs> {
    watch(folder, (CHECK_AFTER, TIMEOUT), work, touch)
}

/// Runs `work` and waits at most `patience`; for operations that are short unless a disk hangs.
pub fn within<T: Send + 'static>(patience: Duration, work: impl FnOnce() -> T + Send + 'static) -> Option<T> {
    start(work)?.recv_timeout(patience).ok()
}

fn watch<T: Send + 'static>(
    folder: &Path,
    (look_after, patience): (Duration, Duration),
    work: impl FnOnce() -> T + Send + 'static,
    touch: fn(&Path),
) -> Result<T, DiskHangs> {
    let hangs = || DiskHangs { folder: folder.to_owned() };
    let working = start(work).ok_or_else(hangs)?;
    let mut touching: Option<(Receiver<()>, Instant)> = None;
    loop {
        match working.recv_timeout(look_after) {
            Ok(done) => return Ok(done),
            // It panicked, which was reported.
            Err(RecvTimeoutError::Disconnected) => return Err(hangs()),
            Err(RecvTimeoutError::Timeout) => {}
        }
        match &touching {
            Some((touched, since)) if touched.try_recv().is_err() => {
                if since.elapsed() >= patience {
                    return Err(hangs());
                }
            }
            _ => {
                let place = folder.to_owned();
                touching = start(move || touch(&place)).map(|touched| (touched, Instant::now()));
            }
        }
    }
}

/// Starts `work` on a thread of its own, and returns the receiver of its result.
pub fn begin<T: Send + 'static>(
    name: &str,
    work: impl FnOnce() -> T + Send + 'static,
) -> io::Result<Receiver<T>> {
    let (done, outcome) = channel();
    let run = move || {
        // The caller may have timed out.
        let _ = done.send(work());
    };
    spawn(name, run).map(|_| outcome)
}

fn start<T: Send + 'static>(work: impl FnOnce() -> T + Send + 'static) -> Option<Receiver<T>> {
    begin("disk", work).ok()
}

/// Writes a byte to a new file on the disk of the folder and removes it. Whether that succeeds doesn't matter.
fn touch(folder: &Path) {
    if folder.as_os_str().is_empty() {
        return;
    }
    let place = folder.ancestors().find(|place| place.is_dir()).unwrap_or(folder);
    let path = place.join(format!(".esker-touch-{}", std::process::id()));
    let _ = File::create_new(&path).and_then(|file| std::io::Write::write_all(&mut &file, b"."));
    let _ = fs::remove_file(&path);
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc::sync_channel;

    use esker_testkit::waiting::until;

    use super::*;

    const SHORT: Duration = Duration::from_millis(20);

    #[test]
    fn work_on_a_working_disk_has_no_time_limit() {
        let folder = tempfile::tempdir().expect("a folder");
        let (go, wait) = sync_channel::<()>(0);
        // A real disk, beside whatever else the machine does.
        let patience = 50 * SHORT;
        std::thread::scope(|scope| {
            let work = move || wait.recv().is_ok();
            let working = scope.spawn(|| watch(folder.path(), (SHORT, patience), work, touch));
            assert!(!until(2 * patience, || working.is_finished()));
            go.send(()).expect("the work waits");
            assert_eq!(working.join().expect("no panic"), Ok(true));
        });
        // The work may end between the two steps of a probe, which goes on in its own thread.
        let is_empty = || fs::read_dir(folder.path()).expect("the folder").next().is_none();
        assert!(until(TIMEOUT, is_empty), "nothing is left");
    }

    #[test]
    fn work_on_a_hanging_disk_is_detached() {
        let hang = |_: &Path| std::thread::park();
        let left = watch(Path::new("/cache"), (SHORT, SHORT), std::thread::park, hang);
        assert_eq!(left.expect_err("it hangs").to_string(), "the disk under /cache does not answer");
        assert_eq!(within(SHORT, std::thread::park), None);
        assert_eq!(within(TIMEOUT, || 5), Some(5));
    }
}
