//! A tree in memory, mounted for the time of a test.

use std::fs::OpenOptions;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use esker_fuse::{Deadlines, KernelMask, Session, SessionOptions};
use esker_kernel_mount::{Mount, MountOptions, Unmount};
use esker_testkit::log_lines::LogLines;
use esker_testkit::memory_tree::MemoryTree;
use esker_testkit::skip;
pub(crate) use esker_testkit::waiting::until;
use parking_lot::{RwLock, RwLockReadGuard, RwLockWriteGuard};

/// Longer than anything in a test should take, on a machine that does other things as well.
pub(crate) const PATIENCE: Duration = Duration::from_secs(30);

/// Runs a test that needs `/dev/fuse`; without it, skips the test, or fails where tests must be complete.
pub(crate) fn with_fuse(test: impl FnOnce()) {
    match OpenOptions::new().read(true).write(true).open("/dev/fuse") {
        Ok(_) => test(),
        Err(e) => {
            let required =
                ["CI", "REQUIRE_FUSE"].iter().any(|v| std::env::var_os(v).is_some_and(|v| v != "0"));
            assert!(!required, "/dev/fuse can't be opened ({e}), but CI or REQUIRE_FUSE is set");
            skip!("/dev/fuse can't be opened: {e}");
        }
    }
}

/// Whether this process is root. Tests of what only root can do are skipped otherwise.
pub(crate) fn is_root() -> bool {
    rustix::process::geteuid().is_root()
}

/// The kernel's caches are one for all tests, so those that drop them and those that count on them take turns.
static CACHES: RwLock<()> = RwLock::new(());

/// No test of this program drops caches while this is held.
pub(crate) fn keep_caches() -> RwLockReadGuard<'static, ()> {
    CACHES.read()
}

/// No test of this program relies on caches while this is held.
pub(crate) fn drop_caches() -> RwLockWriteGuard<'static, ()> {
    CACHES.write()
}

/// Runs a check of what the kernel has cached until it holds, a few times at most. The machine may take
/// single pages out of the cache whenever it wants memory; what we do wrong we do wrong every time.
pub(crate) fn undisturbed<T>(check: impl Fn() -> Result<T, String>) -> T {
    let _caches = keep_caches();
    let mut last = String::new();
    for _ in 0..10 {
        match check() {
            Ok(result) => return result,
            Err(why) => last = why,
        }
    }
    panic!("{last}");
}

/// A mounted tree; unmounted when dropped.
pub(crate) struct Mounted {
    folder: Option<tempfile::TempDir>,
    pub(crate) tree: Arc<MemoryTree>,
    pub(crate) session: Arc<Session>,
    pub(crate) log: LogLines,
    /// Whether the test expects the log to hold something.
    pub(crate) quiet: bool,
}

impl Mounted {
    pub(crate) fn new(tree: MemoryTree, kernel: KernelMask) -> Self {
        Self::with(tree, SessionOptions { kernel, ..SessionOptions::default() })
    }

    pub(crate) fn with_deadlines(tree: MemoryTree, kernel: KernelMask, deadlines: Deadlines) -> Self {
        Self::with(tree, SessionOptions { kernel, deadlines, ..SessionOptions::default() })
    }

    pub(crate) fn with(tree: MemoryTree, options: SessionOptions) -> Self {
        let folder = tempfile::tempdir().expect("a folder");
        let mount = MountOptions { source: "memory".into(), ..MountOptions::default() };
        let mount = Mount::new(folder.path(), &mount).expect("mounted");
        Self::serve(mount, folder, tree, options)
    }

    pub(crate) fn serve(
        mount: Mount,
        folder: tempfile::TempDir,
        tree: MemoryTree,
        options: SessionOptions,
    ) -> Self {
        let tree = Arc::new(tree);
        let log = LogLines::collect();
        let options = SessionOptions { mountpoint: Some(folder.path().to_owned()), ..options };
        let served: Arc<dyn esker_vfs::Tree> = Arc::clone(&tree) as _;
        let session = Session::start(mount.into_device(), served, options).expect("a session");
        Self { folder: Some(folder), tree, session: Arc::new(session), log, quiet: true }
    }

    pub(crate) fn root(&self) -> &Path {
        self.folder.as_ref().expect("mounted").path()
    }

    pub(crate) fn path(&self, relative: &str) -> PathBuf {
        self.root().join(relative)
    }

    /// Requests of one kind so far.
    pub(crate) fn requests(&self, name: &str) -> u64 {
        self.session.counters().requests(name)
    }
}

impl Drop for Mounted {
    fn drop(&mut self) {
        // The answers that still wait would keep their callers, and so the mount.
        let _ = self.session.unmount(Unmount::Lazy);
        if std::thread::panicking() {
            return;
        }
        self.session.wait();
        assert_eq!(self.tree.held(), 0, "a mount that is gone holds nothing");
        assert_eq!(self.tree.violations(), Vec::<String>::new());
        if self.quiet {
            assert_eq!(self.log.all(), Vec::<String>::new(), "nothing to complain about");
        }
    }
}
