//! A mount for the duration of a round.

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};

use crate::child::Ending;

/// A mount served by a process in the foreground, unmounted on drop.
pub(crate) struct Mounted {
    child: Ending,
    mountpoint: PathBuf,
    _folder: tempfile::TempDir,
}

impl Mounted {
    /// Mounts and waits until the mount answers.
    pub(crate) fn start(esker: &str, url: &str, key: &Path) -> Result<Self> {
        let folder = tempfile::Builder::new().prefix("esker-bench-").tempdir()?;
        let mountpoint = folder.path().join("mnt");
        std::fs::create_dir(&mountpoint)?;
        let mut command = Command::new(esker);
        command.args(["mount", url]).arg(&mountpoint).arg("--foreground").arg("--public-key").arg(key);
        command.arg("--cache").arg(folder.path().join("cache")).stdin(Stdio::null());
        let child = command.spawn().with_context(|| format!("can't start {esker}"))?;
        let mut mounted = Self { child: Ending(child), mountpoint, _folder: folder };
        let device =
            |path: &Path| std::fs::metadata(path).map(|facts| std::os::unix::fs::MetadataExt::dev(&facts));
        let around = device(mounted._folder.path())?;
        let deadline = Instant::now() + Duration::from_secs(60);
        while device(&mounted.mountpoint)? == around {
            ensure!(mounted.child.ended()?.is_none(), "{esker} can't mount {url}");
            ensure!(Instant::now() < deadline, "{url} isn't mounted after a minute");
            // A mount in the foreground reports nothing.
            std::thread::sleep(Duration::from_millis(10));
        }
        // What a start prefetches has come by then.
        std::fs::read_dir(&mounted.mountpoint)?.count();
        std::thread::sleep(Duration::from_secs(2));
        Ok(mounted)
    }

    pub(crate) fn pid(&self) -> u32 {
        self.child.pid()
    }

    pub(crate) fn mountpoint(&self) -> &Path {
        &self.mountpoint
    }

    /// Looks up so many new names in a second, until the result is dropped.
    pub(crate) fn look_up(&self, lookups: u32) -> LookingUp {
        let over = Arc::new(AtomicBool::new(false));
        let (stop, root) = (Arc::clone(&over), self.mountpoint.clone());
        let run = move || {
            let began = Instant::now();
            for number in 0_u32.. {
                if stop.load(Ordering::Relaxed) {
                    break;
                }
                // A missing name is what is looked up.
                let _ = std::fs::symlink_metadata(root.join(format!("missing-{number}")));
                let due = Duration::from_secs(1) * number / lookups;
                std::thread::sleep(due.saturating_sub(began.elapsed()));
            }
        };
        LookingUp { over, thread: Some(std::thread::spawn(run)) }
    }
}

/// A thread that looks up names, ended on drop.
pub(crate) struct LookingUp {
    over: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl Drop for LookingUp {
    fn drop(&mut self) {
        self.over.store(true, Ordering::Relaxed);
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}
