//! Operations of the disk that fail, and power that is lost: the repository always is one whole revision.

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::fs::{self, File};
use std::io;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use esker_admin::{KeyFolder, Repository};
use esker_format::name::RepositoryName;
use esker_store::{Disk, FileFacts, ServedDisk};
use esker_testkit::check::check;
use esker_testkit::listing::{Entry, of_folder};
use parking_lot::Mutex;

use crate::workshop::{NAME, Workshop, assert_same_trees, now, publish};

/// What a disk is asked to do that changes something.
#[derive(Clone, Debug)]
enum Change {
    Create { path: PathBuf, inode: u64 },
    Write { inode: u64, bytes: Vec<u8> },
    Sync { inode: u64 },
    Rename { from: PathBuf, to: PathBuf },
    Remove { path: PathBuf },
    SyncDir { path: PathBuf },
    SyncAll,
}

/// A disk that writes down what it does, and fails on demand.
struct Scripted {
    log: Mutex<Vec<Change>>,
    operations: AtomicU64,
    /// The operation that fails; all after it too if `for_good`.
    fails_at: u64,
    for_good: bool,
}

impl Scripted {
    fn healthy() -> Self {
        Self::failing(u64::MAX, false)
    }

    fn failing(fails_at: u64, for_good: bool) -> Self {
        Self { log: Mutex::default(), operations: AtomicU64::new(0), fails_at, for_good }
    }

    fn was_hit(&self) -> bool {
        self.operations.load(Ordering::Relaxed) > self.fails_at
    }

    fn step(&self) -> io::Result<()> {
        let number = self.operations.fetch_add(1, Ordering::Relaxed);
        if number == self.fails_at || self.for_good && number > self.fails_at {
            return Err(io::ErrorKind::StorageFull.into());
        }
        Ok(())
    }

    fn done(&self, change: Change) {
        self.log.lock().push(change);
    }
}

fn inode(file: &File) -> u64 {
    file.metadata().unwrap().ino()
}

impl Disk for Scripted {
    fn make_dir(&self, path: &Path) -> io::Result<()> {
        self.step()?;
        ServedDisk.make_dir(path)
    }

    fn create(&self, path: &Path) -> io::Result<File> {
        self.step()?;
        let file = ServedDisk.create(path)?;
        self.done(Change::Create { path: path.to_owned(), inode: inode(&file) });
        Ok(file)
    }

    fn create_spool(&self, path: &Path) -> io::Result<File> {
        self.create(path)
    }

    fn write(&self, file: &File, bytes: &[u8]) -> io::Result<()> {
        self.step()?;
        ServedDisk.write(file, bytes)?;
        self.done(Change::Write { inode: inode(file), bytes: bytes.to_vec() });
        Ok(())
    }

    fn sync(&self, file: &File) -> io::Result<()> {
        self.step()?;
        self.done(Change::Sync { inode: inode(file) });
        Ok(())
    }

    fn open(&self, path: &Path) -> io::Result<File> {
        self.step()?;
        ServedDisk.open(path)
    }

    fn read_exact_at(&self, file: &File, buffer: &mut [u8], offset: u64) -> io::Result<()> {
        self.step()?;
        ServedDisk.read_exact_at(file, buffer, offset)
    }

    fn rename(&self, from: &Path, to: &Path) -> io::Result<()> {
        self.step()?;
        ServedDisk.rename(from, to)?;
        self.done(Change::Rename { from: from.to_owned(), to: to.to_owned() });
        Ok(())
    }

    fn remove(&self, path: &Path) -> io::Result<()> {
        self.step()?;
        ServedDisk.remove(path)?;
        self.done(Change::Remove { path: path.to_owned() });
        Ok(())
    }

    fn list(&self, path: &Path) -> io::Result<Vec<OsString>> {
        self.step()?;
        ServedDisk.list(path)
    }

    fn facts(&self, path: &Path) -> io::Result<FileFacts> {
        self.step()?;
        ServedDisk.facts(path)
    }

    fn sync_dir(&self, path: &Path) -> io::Result<()> {
        self.step()?;
        self.done(Change::SyncDir { path: path.to_owned() });
        Ok(())
    }

    fn sync_all(&self, _path: &Path) -> io::Result<()> {
        self.step()?;
        self.done(Change::SyncAll);
        Ok(())
    }
}

/// A workshop with one revision published and another one ready in the source.
struct Scene {
    workshop: Workshop,
    old: Vec<Entry>,
    new: Vec<Entry>,
}

impl Scene {
    /// `many` makes so many objects that they are made durable together instead of one by one.
    fn new(many: bool) -> Self {
        let workshop = Workshop::new();
        let top = workshop.source();
        fs::create_dir_all(top.join("nested/deeper")).unwrap();
        fs::write(top.join("nested/.cvmfscatalog"), b"").unwrap();
        fs::write(top.join("nested/deeper/file"), b"old").unwrap();
        fs::write(top.join("stays"), b"stays").unwrap();
        workshop.publish();
        let old = workshop.assert_equal().listing();
        fs::write(top.join("nested/deeper/file"), b"new").unwrap();
        fs::write(top.join("added"), b"added").unwrap();
        for number in 0..if many { 60 } else { 2 } {
            fs::write(top.join(format!("more {number}")), format!("{number}")).unwrap();
        }
        let new = of_folder(&top);
        Self { workshop, old, new }
    }

    /// A copy of the repository as it is before the second publish.
    fn copy(&self, folder: &Path) -> PathBuf {
        let root = folder.join(NAME);
        copy_tree(&self.workshop.root(), &root);
        root
    }

    fn open(&self, disk: Arc<dyn Disk>, root: &Path) -> Result<Repository, esker_admin::AdminError> {
        let name = RepositoryName::parse(NAME).unwrap();
        let keys: KeyFolder = self.workshop.keys();
        Repository::open_on(disk, root, &name, keys, now())
    }

    /// Asserts that a repository is in order and is one of the two revisions; tells whether it is the new one.
    fn judge(&self, root: &Path, when: &str) -> bool {
        let public = fs::read_to_string(self.workshop.keys().public_key_file()).unwrap();
        let findings = check(root, NAME, &public);
        // The reflog is replaced just before the head, so a head may name the one before.
        let problems: Vec<_> = findings
            .problems
            .iter()
            .filter(|problem| *problem != "the manifest names another reflog")
            .collect();
        assert!(problems.is_empty(), "{when}: {problems:#?}");
        let is_new = findings.revision == 2;
        assert_same_trees(if is_new { &self.new } else { &self.old }, &findings.listing());
        is_new
    }

    fn finish(&self, root: &Path, when: &str) {
        let repository =
            self.open(Arc::new(ServedDisk), root).unwrap_or_else(|error| panic!("{when}: {error}"));
        publish(&repository, &self.workshop.source(), "").unwrap_or_else(|error| panic!("{when}: {error}"));
        drop(repository);
        assert!(self.judge(root, when), "{when}: the retry publishes");
    }
}

/// Copies files and the folders that have any; making hundreds of empty ones would be most of the work.
fn copy_tree(from: &Path, to: &Path) {
    for entry in fs::read_dir(from).unwrap() {
        let entry = entry.unwrap();
        let target = to.join(entry.file_name());
        if entry.file_type().unwrap().is_dir() {
            copy_tree(&entry.path(), &target);
        } else {
            fs::create_dir_all(to).unwrap();
            fs::copy(entry.path(), target).unwrap();
        }
    }
}

#[test]
fn any_operation_of_the_disk_may_fail() {
    for many in [false, true] {
        let scene = Scene::new(many);
        for for_good in [false, true] {
            let mut hits = 0;
            // Many objects take many operations of the same kind; every few are enough of those.
            for number in (0..).step_by(if many { 7 } else { 1 }) {
                let folder = tempfile::tempdir().unwrap();
                let root = scene.copy(folder.path());
                let disk = Arc::new(Scripted::failing(number, for_good));
                let outcome = scene
                    .open(disk.clone(), &root)
                    .and_then(|repository| publish(&repository, &scene.workshop.source(), ""));
                if !disk.was_hit() {
                    assert!(outcome.unwrap().published);
                    break;
                }
                hits += 1;
                let when = format!("operation {number}, for good {for_good}, {outcome:?}");
                let is_new = scene.judge(&root, &when);
                // A failure to clean up after another one may go unseen, but none before the head is there.
                assert!(outcome.is_err() || is_new, "{when}");
                scene.finish(&root, &when);
            }
            assert!(hits > 20, "{hits}");
        }
    }
}

/// What a disk holds after power was lost.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Loss {
    /// Nothing that was not synced.
    Everything,
    /// All names, but no content that was not synced.
    Content,
}

/// The files below a folder after the first changes of a log and a loss of power.
fn survivors(base: &Path, log: &[Change], loss: Loss) -> BTreeMap<PathBuf, Vec<u8>> {
    #[derive(Clone, Default)]
    struct Content {
        written: Vec<u8>,
        synced: Vec<u8>,
    }
    let mut contents: BTreeMap<u64, Content> = BTreeMap::new();
    let (mut live, mut durable): (BTreeMap<PathBuf, u64>, BTreeMap<PathBuf, u64>) = Default::default();
    let mut next = u64::MAX;
    let mut folders = vec![base.to_owned()];
    while let Some(folder) = folders.pop() {
        for entry in fs::read_dir(&folder).unwrap() {
            let entry = entry.unwrap();
            if entry.file_type().unwrap().is_dir() {
                folders.push(entry.path());
                continue;
            }
            let bytes = fs::read(entry.path()).unwrap();
            contents.insert(next, Content { written: bytes.clone(), synced: bytes });
            live.insert(entry.path(), next);
            next -= 1;
        }
    }
    durable.clone_from(&live);
    for change in log {
        match change {
            Change::Create { path, inode } => {
                contents.insert(*inode, Content::default());
                live.insert(path.clone(), *inode);
            }
            Change::Write { inode, bytes } => contents.get_mut(inode).unwrap().written.extend(bytes),
            Change::Sync { inode } => {
                let content = contents.get_mut(inode).unwrap();
                content.synced.clone_from(&content.written);
            }
            Change::Rename { from, to } => {
                let inode = live.remove(from).unwrap();
                live.insert(to.clone(), inode);
            }
            Change::Remove { path } => {
                live.remove(path);
            }
            Change::SyncDir { path } => {
                durable.retain(|file, _| file.parent() != Some(path));
                durable.extend(
                    live.iter()
                        .filter(|(file, _)| file.parent() == Some(path))
                        .map(|(file, inode)| (file.clone(), *inode)),
                );
            }
            Change::SyncAll => {
                durable.clone_from(&live);
                contents.values_mut().for_each(|content| content.synced.clone_from(&content.written));
            }
        }
    }
    let names = if loss == Loss::Everything { durable } else { live };
    names.into_iter().map(|(path, inode)| (path, contents[&inode].synced.clone())).collect()
}

#[test]
fn power_may_be_lost_at_any_point() {
    for many in [false, true] {
        let scene = Scene::new(many);
        let folder = tempfile::tempdir().unwrap();
        let root = scene.copy(folder.path());
        let disk = Arc::new(Scripted::healthy());
        let repository = scene.open(disk.clone(), &root).unwrap();
        publish(&repository, &scene.workshop.source(), "").unwrap();
        drop(repository);
        let log = disk.log.lock().clone();
        assert!(log.len() > 30, "{log:?}");
        let before = tempfile::tempdir().unwrap();
        let base = scene.copy(before.path());
        // The log speaks of the folder it was written for.
        let moved = |path: &Path| base.join(path.strip_prefix(&root).unwrap());
        let log: Vec<Change> = log.into_iter().map(|change| rebase(change, &moved)).collect();
        let mut seen = [0, 0];
        for loss in [Loss::Everything, Loss::Content] {
            for end in 0..=log.len() {
                let image = tempfile::tempdir().unwrap();
                let root = image.path().join(NAME);
                for (path, bytes) in survivors(&base, &log[..end], loss) {
                    let target = root.join(path.strip_prefix(&base).unwrap());
                    fs::create_dir_all(target.parent().unwrap()).unwrap();
                    fs::write(target, bytes).unwrap();
                }
                let when = format!("{loss:?} lost after {end} of {} changes", log.len());
                let is_new = scene.judge(&root, &when);
                seen[usize::from(is_new)] += 1;
                if end % 5 == 0 {
                    scene.finish(&root, &when);
                }
            }
        }
        assert!(seen.iter().all(|count| *count > 0), "{seen:?}");
    }
}

fn rebase(change: Change, moved: &dyn Fn(&Path) -> PathBuf) -> Change {
    match change {
        Change::Create { path, inode } => Change::Create { path: moved(&path), inode },
        Change::Rename { from, to } => Change::Rename { from: moved(&from), to: moved(&to) },
        Change::Remove { path } => Change::Remove { path: moved(&path) },
        Change::SyncDir { path } => Change::SyncDir { path: moved(&path) },
        other => other,
    }
}
