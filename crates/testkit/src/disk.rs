//! Simulates a disk that fails, crashes or reports at a chosen operation.
//!
//! The live image is a real folder. Beside it is the state after a power loss: synced names and synced content. A
//! crash builds another folder. Any subset of the name changes since the last sync of their folder has happened, in
//! any order (so a renamed file may have its old name, the new one, both or none); content that was not synced may be
//! missing, zeros, partial, or complete.

mod image;
mod small;
mod tmpfs;

use std::ffi::OsString;
use std::fs::File;
use std::io;
use std::path::Path;
use std::sync::{Arc, Mutex, RwLock, RwLockWriteGuard};

use esker_store::{Disk, FileFacts, RealDisk};

use image::Image;
pub use small::SmallDisk;
pub use tmpfs::Tmpfs;

/// Folder for temporary files in memory, if the machine has it.
const MEMORY: &str = "/dev/shm";

/// Makes a temporary folder in memory, for disks whose power loss is only simulated.
pub fn scratch() -> tempfile::TempDir {
    tempfile::tempdir_in(MEMORY).or_else(|_| tempfile::tempdir()).unwrap()
}

/// Makes a temporary file in memory.
pub(crate) fn scratch_file() -> tempfile::NamedTempFile {
    tempfile::NamedTempFile::new_in(MEMORY).or_else(|_| tempfile::NamedTempFile::new()).unwrap()
}

/// Fault to inject.
#[derive(Clone, Copy, Debug)]
pub enum Plan {
    /// No fault.
    Nothing,
    /// Operations fail.
    Fail {
        /// Number of the first failing operation, from one.
        at: u64,
        /// True if all later operations fail, too.
        ever: bool,
        /// Error number of the failure.
        errno: i32,
    },
    /// The power fails.
    Crash {
        /// Number of the change before which the power fails; reading operations don't count.
        at: u64,
        /// Seed of the choice of surviving data.
        seed: u64,
    },
}

/// Extent of a power loss: which unsynced data is lost.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Loss {
    /// All unsynced data.
    Everything,
    /// All content, but no name.
    Content,
    /// Some names and some content; the seed decides.
    Some(u64),
}

/// A disk with fault injection; a clone is the same disk.
#[derive(Clone)]
pub struct FaultDisk {
    state: Arc<Mutex<State>>,
    inner: Arc<dyn Disk>,
    /// Held for reading during each read of a file.
    reads: Arc<RwLock<()>>,
}

struct State {
    image: Image,
    plan: Plan,
    operations: u64,
    changes: u64,
    struck: u64,
    /// Folder that a restart finds after the crash.
    crashed: Option<tempfile::TempDir>,
    watcher: Option<Watcher>,
}

type Watcher = Box<dyn FnMut(Moment<'_>) + Send>;

/// The point in time before a change.
pub struct Moment<'d> {
    /// Number of the change, from one.
    pub change: u64,
    image: &'d Image,
}

impl Moment<'_> {
    /// Returns the folder that a restart finds after a power loss now.
    pub fn crash(&self, loss: Loss) -> tempfile::TempDir {
        self.image.after(loss)
    }
}

impl FaultDisk {
    /// Makes a disk on a folder whose present content is durable. New files belong to their owner only.
    pub fn new(root: &Path, plan: Plan) -> Self {
        let state = State {
            image: Image::of(root),
            plan,
            operations: 0,
            changes: 0,
            struck: 0,
            crashed: None,
            watcher: None,
        };
        Self { state: Arc::new(Mutex::new(state)), inner: Arc::new(RealDisk::PRIVATE), reads: Arc::default() }
    }

    /// Returns the disk with another disk for making files.
    pub fn making(&self, inner: impl Disk + 'static) -> Self {
        Self { inner: Arc::new(inner), ..self.clone() }
    }

    /// Lets reads of files wait until the guard is dropped.
    pub fn hold_reads(&self) -> RwLockWriteGuard<'_, ()> {
        self.reads.write().unwrap()
    }

    /// Calls `watcher` before every change.
    pub fn before_each_change(&self, watcher: impl FnMut(Moment<'_>) + Send + 'static) {
        self.state.lock().unwrap().watcher = Some(Box::new(watcher));
    }

    /// Returns the number of operations, including reads.
    pub fn operations(&self) -> u64 {
        self.state.lock().unwrap().operations
    }

    /// Returns the number of changing operations.
    pub fn changes(&self) -> u64 {
        self.state.lock().unwrap().changes
    }

    /// Returns the number of operations that met the fault.
    pub fn struck(&self) -> u64 {
        self.state.lock().unwrap().struck
    }

    /// Makes one operation fail, after `operations` others.
    pub fn fail_after(&self, operations: u64, errno: i32) {
        let mut state = self.state.lock().unwrap();
        state.plan = Plan::Fail { at: state.operations + operations, ever: false, errno };
    }

    /// Ends all faults.
    pub fn heal(&self) {
        self.state.lock().unwrap().plan = Plan::Nothing;
    }

    /// Returns the folder that a restart finds, if the crash happened.
    pub fn after_crash(&self) -> Option<tempfile::TempDir> {
        self.state.lock().unwrap().crashed.take()
    }

    /// Returns the folder that a restart finds after a power loss now.
    pub fn crash_now(&self, loss: Loss) -> tempfile::TempDir {
        self.state.lock().unwrap().image.after(loss)
    }

    fn read<T>(&self, operation: impl FnOnce() -> io::Result<T>) -> io::Result<T> {
        self.state.lock().unwrap().step(false)?;
        operation()
    }

    fn change<T>(&self, operation: impl FnOnce(&mut Image) -> io::Result<T>) -> io::Result<T> {
        let mut state = self.state.lock().unwrap();
        state.step(true)?;
        operation(&mut state.image)
    }
}

impl State {
    fn step(&mut self, changing: bool) -> io::Result<()> {
        self.operations += 1;
        self.changes += u64::from(changing);
        if changing && let Some(mut watcher) = self.watcher.take() {
            watcher(Moment { change: self.changes, image: &self.image });
            self.watcher = Some(watcher);
        }
        match self.plan {
            Plan::Fail { at, ever, errno } if self.operations == at || (ever && self.operations > at) => {
                self.struck += 1;
                return Err(io::Error::from_raw_os_error(errno));
            }
            Plan::Crash { at, seed } if changing && self.changes == at => {
                self.struck += 1;
                self.crashed = Some(self.image.after(Loss::Some(seed)));
            }
            _ => {}
        }
        // With the power off, nothing happens any more.
        if matches!(self.plan, Plan::Crash { at, .. } if self.changes >= at) {
            return Err(io::Error::other("the power is off"));
        }
        Ok(())
    }
}

impl Disk for FaultDisk {
    fn make_dir(&self, path: &Path) -> io::Result<()> {
        self.change(|image| {
            let new = !path.exists();
            self.inner.make_dir(path)?;
            if new {
                image.made_folder(path);
            }
            Ok(())
        })
    }

    fn create(&self, path: &Path) -> io::Result<File> {
        self.change(|image| {
            let file = self.inner.create(path)?;
            image.created(path, &file);
            Ok(file)
        })
    }

    fn create_spool(&self, path: &Path) -> io::Result<File> {
        self.change(|image| {
            let file = self.inner.create_spool(path)?;
            image.created(path, &file);
            Ok(file)
        })
    }

    fn create_nameless(&self, folder: &Path) -> io::Result<Option<File>> {
        self.change(|_| self.inner.create_nameless(folder))
    }

    /// Names a file, and records it in the image: a file without a name is lost in a crash.
    fn name(&self, file: &File, path: &Path) -> io::Result<()> {
        self.change(|image| {
            self.inner.name(file, path)?;
            image.created(path, file);
            Ok(())
        })
    }

    fn reopen(&self, file: &File) -> io::Result<File> {
        self.read(|| self.inner.reopen(file))
    }

    /// Writes in two steps, since a failure or a crash may occur in the middle of a write.
    fn write(&self, file: &File, bytes: &[u8]) -> io::Result<()> {
        let (first, second) = bytes.split_at(bytes.len() / 2);
        for half in [first, second] {
            self.change(|image| {
                image.written(file);
                self.inner.write(file, half)
            })?;
        }
        Ok(())
    }

    fn sync(&self, file: &File) -> io::Result<()> {
        self.change(|image| {
            image.sync(file);
            Ok(())
        })
    }

    fn open(&self, path: &Path) -> io::Result<File> {
        self.read(|| self.inner.open(path))
    }

    fn read_exact_at(&self, file: &File, buffer: &mut [u8], offset: u64) -> io::Result<()> {
        let _held = self.reads.read().unwrap();
        self.read(|| self.inner.read_exact_at(file, buffer, offset))
    }

    fn rename(&self, from: &Path, to: &Path) -> io::Result<()> {
        self.change(|image| {
            if !to.parent().unwrap().exists() {
                return Err(io::ErrorKind::NotFound.into());
            }
            image.losing(to);
            self.inner.rename(from, to)?;
            image.renamed(from, to);
            Ok(())
        })
    }

    fn link(&self, target: &Path, path: &Path) -> io::Result<()> {
        self.change(|image| {
            self.inner.link(target, path)?;
            image.linked(target, path);
            Ok(())
        })
    }

    /// Permissions never survive a crash.
    fn set_mode(&self, path: &Path, mode: u32) -> io::Result<()> {
        self.change(|_| self.inner.set_mode(path, mode))
    }

    fn remove(&self, path: &Path) -> io::Result<()> {
        self.change(|image| {
            let lost = image.losing(path);
            self.inner.remove(path)?;
            if lost {
                image.removed(path);
            }
            Ok(())
        })
    }

    /// A crash may bring the folder back, empty.
    fn remove_dir(&self, path: &Path) -> io::Result<()> {
        self.change(|_| self.inner.remove_dir(path))
    }

    fn list(&self, path: &Path) -> io::Result<Vec<OsString>> {
        self.read(|| self.inner.list(path))
    }

    fn facts(&self, path: &Path) -> io::Result<FileFacts> {
        self.read(|| self.inner.facts(path))
    }

    fn sync_dir(&self, path: &Path) -> io::Result<()> {
        self.change(|image| {
            image.sync_names(Some(path));
            Ok(())
        })
    }

    fn sync_all(&self, _path: &Path) -> io::Result<()> {
        self.change(|image| {
            image.sync_everything();
            Ok(())
        })
    }
}
