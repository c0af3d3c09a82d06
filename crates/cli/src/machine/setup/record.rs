//! Record of setup's changes, to undo exactly those.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use esker_format::hash::{ContentHash, HashAlgorithm};
use serde::{Deserialize, Serialize};

use super::machine::Machine;
use crate::error::Failure;

/// A change that setup made.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "lowercase")]
pub(super) enum Made {
    Folder { path: PathBuf },
    File { path: PathBuf, digest: String },
    Link { path: PathBuf, target: PathBuf },
    Line { path: PathBuf, text: String },
}

impl Made {
    fn path(&self) -> &Path {
        match self {
            Made::Folder { path }
            | Made::File { path, .. }
            | Made::Link { path, .. }
            | Made::Line { path, .. } => path,
        }
    }

    /// True if an entry is for the same object.
    fn is_about(&self, other: &Made) -> bool {
        match (self, other) {
            (Made::Line { path, text }, Made::Line { path: there, text: other }) => {
                path == there && text == other
            }
            (Made::Line { .. }, _) | (_, Made::Line { .. }) => false,
            _ => self.path() == other.path(),
        }
    }
}

/// Returns the digest by which setup detects a changed file.
pub(super) fn digest(bytes: &[u8]) -> String {
    ContentHash::of(HashAlgorithm::Shake128, bytes).to_string()
}

/// All changes that setup made, in order.
#[derive(Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Record {
    made: Vec<Made>,
}

impl Record {
    pub(super) fn read(machine: &Machine) -> Result<Self, Failure> {
        let place = machine.place(machine.record());
        let text = match fs::read(&place) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Self::default()),
            text => text.map_err(|error| machine.failed("read", machine.record(), &error))?,
        };
        serde_json::from_slice(&text).map_err(|error| {
            Failure::failed(format!("{} is damaged: {error}", place.display()))
                .hint("move it away; its changes then have to be undone by hand")
        })
    }

    pub(super) fn write(&self, machine: &Machine) -> Result<(), Failure> {
        let place = machine.place(machine.record());
        let written = serde_json::to_vec_pretty(self).map_err(io::Error::other).and_then(|mut text| {
            text.push(b'\n');
            place.parent().map_or(Ok(()), fs::create_dir_all)?;
            machine.write(&place, &text, 0o644)
        });
        written.map_err(|error| machine.failed("write", machine.record(), &error))
    }

    pub(super) fn has(&self, made: &Made) -> bool {
        self.made.contains(made)
    }

    /// Adds changes, and keeps those that earlier calls recorded for the same objects.
    pub(super) fn add(&mut self, made: impl Iterator<Item = Made>) {
        for entry in made {
            if !self.has(&entry) {
                self.made.push(entry);
            }
        }
    }

    /// Removes the recorded changes that are outdated, once all changes are made.
    pub(super) fn settle(&mut self, made: impl Iterator<Item = Made>) {
        for entry in made {
            self.made.retain(|other| *other == entry || !other.is_about(&entry));
        }
    }
}

/// Result of undoing one change.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Left {
    /// The object is removed.
    Gone(PathBuf),
    /// The object is still there, for this reason.
    Kept(PathBuf, &'static str),
}

/// Undoes all changes of setup that are still unchanged; `dry_run` only lists them.
pub(crate) fn undo(machine: &Machine, dry_run: bool) -> Result<Vec<Left>, Failure> {
    let record = Record::read(machine)?;
    let mut done = Vec::new();
    for made in record.made.iter().rev() {
        let path = made.path();
        let taken =
            take_back(machine, made, dry_run).map_err(|error| machine.failed("take back", path, &error))?;
        done.extend(match taken {
            Taken::Gone => Some(Left::Gone(path.to_owned())),
            Taken::NotThere => None,
            Taken::Kept(why) => Some(Left::Kept(path.to_owned(), why)),
        });
    }
    if !dry_run && !record.made.is_empty() {
        let place = machine.place(machine.record());
        fs::remove_file(&place).map_err(|error| machine.failed("remove", machine.record(), &error))?;
        // Those in which the record was. The cache is there as well, on most machines.
        for made in record.made.iter().rev().filter(|made| matches!(made, Made::Folder { .. })) {
            let _ = fs::remove_dir(machine.place(made.path()));
        }
    }
    Ok(done)
}

enum Taken {
    Gone,
    NotThere,
    Kept(&'static str),
}

fn take_back(machine: &Machine, made: &Made, dry_run: bool) -> io::Result<Taken> {
    let place = machine.place(made.path());
    let meta = match fs::symlink_metadata(&place) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Taken::NotThere),
        meta => meta?,
    };
    let remove = |unchanged: bool| {
        if !unchanged {
            return Ok(Taken::Kept("it was changed since"));
        }
        if dry_run { Ok(Taken::Gone) } else { fs::remove_file(&place).map(|()| Taken::Gone) }
    };
    match made {
        Made::File { digest: known, .. } => remove(meta.is_file() && digest(&fs::read(&place)?) == *known),
        Made::Link { target, .. } => remove(meta.is_symlink() && fs::read_link(&place)? == *target),
        Made::Line { text, .. } => take_line(machine, &place, text, dry_run),
        Made::Folder { .. } if dry_run => Ok(Taken::NotThere),
        Made::Folder { .. } => match fs::remove_dir(&place) {
            Ok(()) => Ok(Taken::Gone),
            Err(error) => match error.raw_os_error() {
                // Others use it, or it is a link by now.
                Some(libc::ENOTEMPTY | libc::EEXIST | libc::ENOTDIR) => Ok(Taken::NotThere),
                Some(libc::EBUSY) => Ok(Taken::Kept("something is mounted there")),
                _ => Err(error),
            },
        },
    }
}

fn take_line(machine: &Machine, place: &Path, text: &str, dry_run: bool) -> io::Result<Taken> {
    let (bytes, mode) = machine.read_with_mode(place)?;
    let mut found = false;
    let rest: Vec<&[u8]> = bytes
        .split_inclusive(|byte| *byte == b'\n')
        .filter(|line| {
            let same = line.strip_suffix(b"\n").unwrap_or(line) == text.as_bytes();
            found |= same;
            !same
        })
        .collect();
    match (found, dry_run) {
        (false, _) => Ok(Taken::Kept("the line in it was changed since")),
        (true, true) => Ok(Taken::Gone),
        (true, false) => machine.write(place, &rest.concat(), mode).map(|()| Taken::Gone),
    }
}
