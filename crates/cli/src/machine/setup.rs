//! Changes of `esker setup` to a machine: files to write, and to remove exactly.

pub(crate) mod content;
mod machine;
mod record;
pub(crate) mod services;
pub(crate) mod serving;

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

pub(crate) use content::OURS;
pub(crate) use machine::Machine;
pub(crate) use record::{Left, undo};

use crate::error::Failure;
use record::{Made, Record, digest};

/// An object that a machine should have. Paths are absolute, as seen on that machine.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Item {
    /// A folder.
    Folder(PathBuf),
    /// A file that only Esker writes.
    File { path: PathBuf, text: Vec<u8>, mode: u32 },
    /// A symbolic link.
    Link { path: PathBuf, target: PathBuf },
    /// A line in a file of the machine.
    Line { path: PathBuf, text: String },
}

impl Item {
    pub(crate) fn path(&self) -> &Path {
        match self {
            Item::Folder(path)
            | Item::File { path, .. }
            | Item::Link { path, .. }
            | Item::Line { path, .. } => path,
        }
    }

    fn made(&self) -> Made {
        match self.clone() {
            Item::Folder(path) => Made::Folder { path },
            Item::File { path, text, .. } => Made::File { path, digest: digest(&text) },
            Item::Link { path, target } => Made::Link { path, target },
            Item::Line { path, text } => Made::Line { path, text },
        }
    }

    /// Returns the description of the change.
    pub(crate) fn words(&self) -> String {
        let path = self.path().display();
        match self {
            Item::Folder(_) => format!("make the folder {path}"),
            Item::File { .. } => format!("write {path}"),
            Item::Link { target, .. } => format!("link {path} to {}", target.display()),
            Item::Line { text, .. } => format!("add to {path}: {text}"),
        }
    }
}

/// Plan of the changes to a machine.
#[derive(Debug)]
pub(crate) struct Plan {
    /// Items that are missing or recorded by an earlier call, in the order of their creation.
    pub(crate) missing: Vec<Item>,
    /// Items that exist already.
    pub(crate) there: Vec<Item>,
    record: Record,
}

impl Plan {
    /// Compares the wanted state of a machine with its files. Foreign files are never replaced.
    pub(crate) fn new(machine: &Machine, wanted: Vec<Item>) -> Result<Self, Failure> {
        let record = Record::read(machine)?;
        let mut plan = Plan { missing: Vec::new(), there: Vec::new(), record };
        let mut foreign = Vec::new();
        let mut wanted = wanted;
        wanted.extend(machine.record().parent().map(|folder| Item::Folder(folder.to_owned())));
        for item in with_folders(machine, wanted) {
            match state(machine, &item, &plan.record) {
                Ok(State::There) => plan.there.push(item),
                Ok(State::Missing) => plan.missing.push(item),
                Ok(State::Foreign) => foreign.push(item.path().display().to_string()),
                Err(error) => return Err(machine.failed("look at", item.path(), &error)),
            }
        }
        if foreign.is_empty() {
            return Ok(plan);
        }
        Err(Failure::failed(format!("these are there already, and not as setup wrote them: {}", foreign.join(", ")))
            .hint("nothing was changed; move them away, or mount elsewhere with `esker setup mount --side-by-side` or --mount-dir"))
    }

    /// Creates missing items. Each item is recorded before it is created, so that `--undo` finds it after a
    /// crash.
    pub(crate) fn apply(mut self, machine: &Machine) -> Result<(), Failure> {
        if self.missing.is_empty() {
            return Ok(());
        }
        self.record.add(self.missing.iter().map(Item::made));
        self.record.write(machine)?;
        for item in &self.missing {
            make(machine, item).map_err(|error| machine.failed("make", item.path(), &error))?;
        }
        self.record.settle(self.missing.iter().map(Item::made));
        self.record.write(machine)
    }
}

enum State {
    There,
    Missing,
    Foreign,
}

fn state(machine: &Machine, item: &Item, record: &Record) -> io::Result<State> {
    let place = machine.place(item.path());
    let meta = match fs::symlink_metadata(&place) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(State::Missing),
        meta => meta?,
    };
    let state = |same: bool, ours: bool| match (same, ours) {
        (true, _) => State::There,
        (false, true) => State::Missing,
        (false, false) => State::Foreign,
    };
    Ok(match item {
        Item::Folder(_) => state(fs::metadata(&place)?.is_dir(), false),
        Item::File { text, .. } if meta.is_file() => {
            let found = fs::read(&place)?;
            let made = Made::File { path: item.path().to_owned(), digest: digest(&found) };
            state(found == *text, record.has(&made))
        }
        Item::Link { target, .. } if meta.is_symlink() => {
            let found = fs::read_link(&place)?;
            let made = Made::Link { path: item.path().to_owned(), target: found.clone() };
            state(found == *target, record.has(&made))
        }
        Item::Line { text, .. } => {
            let found = fs::read(&place)?;
            state(found.split(|byte| *byte == b'\n').any(|line| line == text.as_bytes()), true)
        }
        _ => State::Foreign,
    })
}

fn make(machine: &Machine, item: &Item) -> io::Result<()> {
    let place = machine.place(item.path());
    match item {
        Item::Folder(_) => match fs::create_dir(&place) {
            Err(error) if error.kind() != io::ErrorKind::AlreadyExists => Err(error),
            _ => machine.set_mode(&place, 0o755),
        },
        Item::File { text, mode, .. } => machine.write(&place, text, *mode),
        Item::Link { target, .. } => {
            // A link of an earlier call; the plan has seen that it is ours.
            match fs::remove_file(&place) {
                Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
                _ => {}
            }
            std::os::unix::fs::symlink(target, &place)
        }
        Item::Line { text, .. } => {
            let (mut all, mode) = machine.read_with_mode(&place)?;
            if all.last().is_some_and(|last| *last != b'\n') {
                all.push(b'\n');
            }
            all.extend_from_slice(text.as_bytes());
            all.push(b'\n');
            machine.write(&place, &all, mode)
        }
    }
}

/// Adds missing folders before the items in them.
fn with_folders(machine: &Machine, items: Vec<Item>) -> Vec<Item> {
    let mut all: Vec<Item> = Vec::new();
    for item in items {
        let mut missing: Vec<_> = item.path().ancestors().skip(1).collect();
        missing.retain(|folder| *folder != Path::new("/") && !machine.place(folder).is_dir());
        for folder in missing.into_iter().rev() {
            let folder = Item::Folder(folder.to_owned());
            if !all.contains(&folder) {
                all.push(folder);
            }
        }
        if !all.contains(&item) {
            all.push(item);
        }
    }
    all
}

#[cfg(test)]
mod tests;
