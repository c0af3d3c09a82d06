//! A disk that fails or crashes at a chosen operation.
//!
//! The live image is a real folder. Beside it stands what would be there after a power loss: names that were
//! synced, and content that was synced. A crash builds another folder: of the changes of names since the last
//! sync of their folder any subset has happened, in no order (so a file that was renamed may have its old name,
//! the new one, both or none); of content that was not synced there may be nothing, zeros, a part, or all.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::ffi::OsString;
use std::fs::{self, File};
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};

use esker_store::{Disk, FileFacts, RealDisk};
use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};

/// What is to go wrong.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Plan {
    Nothing,
    /// The operation with this number, counted from one, fails; so do all later ones, if `ever`.
    Fail {
        at: u64,
        ever: bool,
        errno: i32,
    },
    /// The power goes before the change with this number; reading operations don't count.
    Crash {
        at: u64,
        seed: u64,
    },
}

/// The disk; a clone is the same disk.
#[derive(Clone)]
pub(crate) struct FaultDisk(Arc<Mutex<Image>>);

struct Image {
    root: PathBuf,
    plan: Plan,
    operations: u64,
    changes: u64,
    struck: u64,
    /// After a crash: the folder that a restart finds.
    crashed: Option<tempfile::TempDir>,
    next_file: u64,
    files: HashMap<u64, Content>,
    /// Live names; folders have no number.
    live: BTreeMap<PathBuf, u64>,
    durable: BTreeMap<PathBuf, u64>,
    durable_folders: BTreeSet<PathBuf>,
    /// Changes of names since the last sync of their folder, in order.
    pending: Vec<(PathBuf, Change)>,
}

#[derive(Clone, Copy, Debug)]
enum Change {
    Add(u64),
    Remove,
    Folder,
}

/// What is known of a file's content.
#[derive(Default)]
struct Content {
    inode: u64,
    synced: Vec<u8>,
    /// Whether it was written to since.
    dirty: bool,
    /// The content of a file that has lost its last live name.
    kept: Option<Vec<u8>>,
}

impl FaultDisk {
    /// A disk on a folder all of whose present content is durable.
    pub(crate) fn new(root: &Path, plan: Plan) -> Self {
        let mut image = Image {
            root: root.to_owned(),
            plan,
            operations: 0,
            changes: 0,
            struck: 0,
            crashed: None,
            next_file: 0,
            files: HashMap::new(),
            live: BTreeMap::new(),
            durable: BTreeMap::new(),
            durable_folders: BTreeSet::new(),
            pending: Vec::new(),
        };
        image.adopt(root);
        Self(Arc::new(Mutex::new(image)))
    }

    /// How many operations there were, reading ones included.
    pub(crate) fn operations(&self) -> u64 {
        self.0.lock().unwrap().operations
    }

    /// How many of them changed something.
    pub(crate) fn changes(&self) -> u64 {
        self.0.lock().unwrap().changes
    }

    /// How many operations met the fault.
    pub(crate) fn struck(&self) -> u64 {
        self.0.lock().unwrap().struck
    }

    /// The operation that comes after so many others fails, once.
    pub(crate) fn fail_after(&self, operations: u64, errno: i32) {
        let mut image = self.0.lock().unwrap();
        image.plan = Plan::Fail { at: image.operations + operations, ever: false, errno };
    }

    /// From now on nothing fails.
    pub(crate) fn heal(&self) {
        self.0.lock().unwrap().plan = Plan::Nothing;
    }

    /// What a restart finds, if the crash happened.
    pub(crate) fn after_crash(&self) -> Option<tempfile::TempDir> {
        self.0.lock().unwrap().crashed.take()
    }

    /// What a restart would find if the power went now.
    pub(crate) fn crash_now(&self, seed: u64) -> tempfile::TempDir {
        self.0.lock().unwrap().build(seed)
    }

    fn operate<T>(
        &self,
        changing: bool,
        operation: impl FnOnce(&mut Image) -> io::Result<T>,
    ) -> io::Result<T> {
        let mut image = self.0.lock().unwrap();
        image.operations += 1;
        image.changes += u64::from(changing);
        match image.plan {
            Plan::Fail { at, ever, errno } if image.operations == at || (ever && image.operations > at) => {
                image.struck += 1;
                return Err(io::Error::from_raw_os_error(errno));
            }
            Plan::Crash { at, seed } if changing && image.changes == at => {
                image.struck += 1;
                let crashed = image.build(seed);
                image.crashed = Some(crashed);
            }
            _ => {}
        }
        // With the power off, nothing happens any more.
        if matches!(image.plan, Plan::Crash { at, .. } if image.changes >= at) {
            return Err(io::Error::other("the power is off"));
        }
        operation(&mut image)
    }
}

impl Image {
    fn adopt(&mut self, folder: &Path) {
        self.durable_folders.insert(folder.to_owned());
        for entry in fs::read_dir(folder).unwrap() {
            let path = entry.unwrap().path();
            if path.is_dir() {
                self.adopt(&path);
            } else {
                let synced = fs::read(&path).unwrap();
                let number = self.number(Content {
                    inode: fs::metadata(&path).unwrap().ino(),
                    synced,
                    ..Content::default()
                });
                self.live.insert(path.clone(), number);
                self.durable.insert(path, number);
            }
        }
    }

    fn number(&mut self, content: Content) -> u64 {
        self.next_file += 1;
        self.files.insert(self.next_file, content);
        self.next_file
    }

    /// Notes that a file was written to. One without a name is gone after a crash, whatever it held.
    fn written(&mut self, file: &File) {
        let inode = file.metadata().unwrap().ino();
        let live = |content: &&mut Content| content.inode == inode && content.kept.is_none();
        if let Some(content) = self.files.values_mut().find(live) {
            content.dirty = true;
        }
    }

    fn created(&mut self, path: &Path, file: &File) {
        let inode = file.metadata().unwrap().ino();
        let number = self.number(Content { inode, dirty: true, ..Content::default() });
        self.live.insert(path.to_owned(), number);
        self.pending.push((path.to_owned(), Change::Add(number)));
    }

    /// Keeps the content of a file that is about to lose its live name.
    fn losing(&mut self, path: &Path) -> Option<u64> {
        let number = self.live.remove(path)?;
        let content = self.files.get_mut(&number).unwrap();
        content.kept = fs::read(path).ok();
        Some(number)
    }

    fn sync_content(&mut self, number: u64, path: &Path) {
        let content = self.files.get_mut(&number).unwrap();
        content.synced = fs::read(path).unwrap();
        content.dirty = false;
    }

    fn sync_names(&mut self, folder: Option<&Path>) {
        for (path, change) in std::mem::take(&mut self.pending) {
            if folder.is_none_or(|folder| path.parent() == Some(folder)) {
                apply(&mut self.durable, &mut self.durable_folders, &path, change);
            } else {
                self.pending.push((path, change));
            }
        }
    }

    /// Builds what is there after a power loss now.
    fn build(&self, seed: u64) -> tempfile::TempDir {
        let mut random = StdRng::seed_from_u64(seed);
        let (mut names, mut folders) = (self.durable.clone(), self.durable_folders.clone());
        for (path, change) in &self.pending {
            if random.random() {
                apply(&mut names, &mut folders, path, *change);
            }
        }
        let target = tempfile::tempdir().unwrap();
        let place = |path: &Path| target.path().join(path.strip_prefix(&self.root).unwrap());
        for folder in &folders {
            // Sorted, so parents come first; what lies in a folder that was lost is lost.
            if folder.parent().is_none_or(|parent| *folder == self.root || folders.contains(parent)) {
                fs::create_dir_all(place(folder)).unwrap();
            }
        }
        for (path, number) in &names {
            if place(path).parent().unwrap().exists() && path.file_name().unwrap() != "lock" {
                fs::write(place(path), self.content_after(*number, &mut random)).unwrap();
            }
        }
        target
    }

    fn content_after(&self, number: u64, random: &mut StdRng) -> Vec<u8> {
        let content = &self.files[&number];
        if !content.dirty {
            return content.synced.clone();
        }
        let live = || {
            let path = self.live.iter().find(|(_, there)| **there == number).map(|(path, _)| path);
            path.map(|path| fs::read(path).unwrap())
        };
        let mut live = content.kept.clone().or_else(live).unwrap_or_default();
        let cut = random.random_range(0..=live.len());
        match random.random_range(0..6) {
            0 => live.clear(),
            1 => live.fill(0),
            2 => live.truncate(cut),
            3 => live[cut..].fill(0),
            4 => live.clone_from(&content.synced),
            _ => {}
        }
        live
    }
}

fn apply(names: &mut BTreeMap<PathBuf, u64>, folders: &mut BTreeSet<PathBuf>, path: &Path, change: Change) {
    match change {
        Change::Add(number) => {
            names.insert(path.to_owned(), number);
        }
        Change::Remove => {
            names.remove(path);
        }
        Change::Folder => {
            folders.insert(path.to_owned());
        }
    }
}

impl Disk for FaultDisk {
    fn make_dir(&self, path: &Path) -> io::Result<()> {
        self.operate(true, |image| {
            let new = !path.exists();
            RealDisk.make_dir(path)?;
            if new {
                image.pending.push((path.to_owned(), Change::Folder));
            }
            Ok(())
        })
    }

    fn create(&self, path: &Path) -> io::Result<File> {
        self.operate(true, |image| {
            let file = RealDisk.create(path)?;
            image.created(path, &file);
            Ok(file)
        })
    }

    fn create_spool(&self, path: &Path) -> io::Result<File> {
        self.operate(true, |image| {
            let file = RealDisk.create_spool(path)?;
            image.created(path, &file);
            Ok(file)
        })
    }

    fn write(&self, file: &File, bytes: &[u8]) -> io::Result<()> {
        let half = bytes.len() / 2;
        let whole = self.operate(true, |image| {
            image.written(file);
            RealDisk.write(file, bytes)
        });
        if whole.is_err() && !matches!(self.0.lock().unwrap().plan, Plan::Crash { .. }) {
            // A write that fails may have written a part.
            RealDisk.write(file, &bytes[..half])?;
        }
        whole
    }

    fn sync(&self, file: &File) -> io::Result<()> {
        self.operate(true, |image| {
            let inode = file.metadata()?.ino();
            let is_it = |number: &u64| image.files[number].inode == inode;
            let (path, number) = image.live.iter().find(|(_, number)| is_it(number)).expect("a live file");
            let (path, number) = (path.clone(), *number);
            image.sync_content(number, &path);
            Ok(())
        })
    }

    fn open(&self, path: &Path) -> io::Result<File> {
        self.operate(false, |_| RealDisk.open(path))
    }

    fn read_exact_at(&self, file: &File, buffer: &mut [u8], offset: u64) -> io::Result<()> {
        self.operate(false, |_| RealDisk.read_exact_at(file, buffer, offset))
    }

    fn rename(&self, from: &Path, to: &Path) -> io::Result<()> {
        self.operate(true, |image| {
            if !to.parent().unwrap().exists() {
                return Err(io::ErrorKind::NotFound.into());
            }
            image.losing(to);
            RealDisk.rename(from, to)?;
            let number = image.live.remove(from).expect("a live file");
            image.live.insert(to.to_owned(), number);
            image.pending.push((from.to_owned(), Change::Remove));
            image.pending.push((to.to_owned(), Change::Add(number)));
            Ok(())
        })
    }

    fn remove(&self, path: &Path) -> io::Result<()> {
        self.operate(true, |image| {
            image.losing(path);
            RealDisk.remove(path)?;
            image.pending.push((path.to_owned(), Change::Remove));
            Ok(())
        })
    }

    fn list(&self, path: &Path) -> io::Result<Vec<OsString>> {
        self.operate(false, |_| RealDisk.list(path))
    }

    fn facts(&self, path: &Path) -> io::Result<FileFacts> {
        self.operate(false, |_| RealDisk.facts(path))
    }

    fn sync_dir(&self, path: &Path) -> io::Result<()> {
        self.operate(true, |image| {
            image.sync_names(Some(path));
            Ok(())
        })
    }

    fn sync_all(&self, _path: &Path) -> io::Result<()> {
        self.operate(true, |image| {
            let live: Vec<_> = image.live.iter().map(|(path, number)| (path.clone(), *number)).collect();
            for (path, number) in live {
                image.sync_content(number, &path);
            }
            image.sync_names(None);
            Ok(())
        })
    }
}
