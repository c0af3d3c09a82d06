//! Image of a disk: its content now, and the content that would survive a power loss.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::fs::{self, File};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};

use super::{Loss, scratch};

pub(super) struct Image {
    root: PathBuf,
    next_file: u64,
    files: HashMap<u64, Content>,
    /// Live names with the number of their file; folders have none.
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

/// Content of a file, as written and as synced.
#[derive(Default)]
struct Content {
    inode: u64,
    synced: Vec<u8>,
    /// True if the file was written since the last sync.
    dirty: bool,
    /// The content of a file that has lost its last live name.
    kept: Option<Vec<u8>>,
    /// Target of a symbolic link.
    link: Option<PathBuf>,
}

impl Image {
    pub(super) fn of(root: &Path) -> Self {
        let mut image = Self {
            root: root.to_owned(),
            next_file: 0,
            files: HashMap::new(),
            live: BTreeMap::new(),
            durable: BTreeMap::new(),
            durable_folders: BTreeSet::new(),
            pending: Vec::new(),
        };
        image.adopt(root);
        image
    }

    fn adopt(&mut self, folder: &Path) {
        self.durable_folders.insert(folder.to_owned());
        for entry in fs::read_dir(folder).unwrap() {
            let entry = entry.unwrap();
            let (path, kind) = (entry.path(), entry.file_type().unwrap());
            if kind.is_dir() {
                self.adopt(&path);
                continue;
            }
            let content = if kind.is_symlink() {
                Content { link: Some(fs::read_link(&path).unwrap()), ..Content::default() }
            } else {
                let inode = entry.metadata().unwrap().ino();
                Content { inode, synced: fs::read(&path).unwrap(), ..Content::default() }
            };
            let number = self.number(content);
            self.live.insert(path.clone(), number);
            self.durable.insert(path, number);
        }
    }

    fn number(&mut self, content: Content) -> u64 {
        self.next_file += 1;
        self.files.insert(self.next_file, content);
        self.next_file
    }

    fn add(&mut self, path: &Path, content: Content) {
        let number = self.number(content);
        self.live.insert(path.to_owned(), number);
        self.pending.push((path.to_owned(), Change::Add(number)));
    }

    pub(super) fn made_folder(&mut self, path: &Path) {
        self.pending.push((path.to_owned(), Change::Folder));
    }

    pub(super) fn created(&mut self, path: &Path, file: &File) {
        let inode = file.metadata().unwrap().ino();
        self.add(path, Content { inode, dirty: true, ..Content::default() });
    }

    pub(super) fn linked(&mut self, target: &Path, path: &Path) {
        self.add(path, Content { link: Some(target.to_owned()), ..Content::default() });
    }

    /// Records a write to a file. An unnamed file is lost in a crash.
    pub(super) fn written(&mut self, file: &File) {
        let inode = file.metadata().unwrap().ino();
        let live = |content: &&mut Content| content.inode == inode && content.kept.is_none();
        if let Some(content) = self.files.values_mut().find(live) {
            content.dirty = true;
        }
    }

    /// Keeps the content of a file that is about to lose its live name; returns false if the image has no such file.
    pub(super) fn losing(&mut self, path: &Path) -> bool {
        let Some(number) = self.live.remove(path) else { return false };
        let content = self.files.get_mut(&number).unwrap();
        content.kept = fs::read(path).ok();
        true
    }

    pub(super) fn renamed(&mut self, from: &Path, to: &Path) {
        let number = self.live.remove(from).expect("a live file");
        self.live.insert(to.to_owned(), number);
        self.pending.push((from.to_owned(), Change::Remove));
        self.pending.push((to.to_owned(), Change::Add(number)));
    }

    pub(super) fn removed(&mut self, path: &Path) {
        self.pending.push((path.to_owned(), Change::Remove));
    }

    pub(super) fn sync(&mut self, file: &File) {
        let inode = file.metadata().unwrap().ino();
        let is_it = |number: &u64| self.files[number].inode == inode;
        let (path, number) = self.live.iter().find(|(_, number)| is_it(number)).expect("a live file");
        let (path, number) = (path.clone(), *number);
        self.sync_content(number, &path);
    }

    fn sync_content(&mut self, number: u64, path: &Path) {
        let content = self.files.get_mut(&number).unwrap();
        if content.dirty {
            content.synced = fs::read(path).unwrap();
            content.dirty = false;
        }
    }

    pub(super) fn sync_names(&mut self, folder: Option<&Path>) {
        for (path, change) in std::mem::take(&mut self.pending) {
            if folder.is_none_or(|folder| path.parent() == Some(folder)) {
                apply(&mut self.durable, &mut self.durable_folders, &path, change);
            } else {
                self.pending.push((path, change));
            }
        }
    }

    pub(super) fn sync_everything(&mut self) {
        let live: Vec<_> = self.live.iter().map(|(path, number)| (path.clone(), *number)).collect();
        for (path, number) in live {
            self.sync_content(number, &path);
        }
        self.sync_names(None);
    }

    /// Builds the folder that would remain after a power loss now.
    pub(super) fn after(&self, loss: Loss) -> tempfile::TempDir {
        let mut random = match loss {
            Loss::Some(seed) => Some(StdRng::seed_from_u64(seed)),
            _ => None,
        };
        let (mut names, mut folders) = (self.durable.clone(), self.durable_folders.clone());
        for (path, change) in &self.pending {
            let happened = random.as_mut().map_or(loss == Loss::Content, Rng::random);
            if happened {
                apply(&mut names, &mut folders, path, *change);
            }
        }
        let target = scratch();
        let place = |path: &Path| target.path().join(path.strip_prefix(&self.root).unwrap());
        for folder in &folders {
            // Sorted, so parents come first; entries of a lost folder are lost.
            if *folder != self.root && place(folder.parent().unwrap()).exists() {
                fs::create_dir(place(folder)).unwrap();
            }
        }
        for (path, number) in &names {
            // Locks don't survive.
            if !place(path).parent().unwrap().exists() || path.file_name().unwrap() == "lock" {
                continue;
            }
            match &self.files[number].link {
                Some(link) => std::os::unix::fs::symlink(link, place(path)).unwrap(),
                None => fs::write(place(path), self.content_after(*number, random.as_mut())).unwrap(),
            }
        }
        target
    }

    fn content_after(&self, number: u64, random: Option<&mut StdRng>) -> Vec<u8> {
        let content = &self.files[&number];
        let (true, Some(random)) = (content.dirty, random) else { return content.synced.clone() };
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
