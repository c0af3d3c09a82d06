//! Writes to a folder that other nodes and other clients write to as well.
//!
//! An object is written in `txn/` under a unique name, and renamed. A file with an object's name is therefore whole
//! unless its writer's node crashed, and readers verify it. Modes are those of the reference client: folders `0770`,
//! files `0660`, so that the group shares them.

use std::ffi::OsString;
use std::fs::File;
use std::hash::{BuildHasher, RandomState};
use std::io::{self, Write};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};

use rustix::fs::{AtFlags, Mode, OFlags, fchmod, mkdirat, openat, renameat, unlinkat};

use super::folder::Folder;
use crate::objects::request::CacheKey;

/// Number of bytes copied or compared at once.
const PIECE: usize = 1 << 20;
const FOLDER_MODE: u32 = 0o770;
const FILE_MODE: u32 = 0o660;
/// Folder of unfinished files.
const TXN: &str = "txn";

/// The names of files that this process is writing.
pub(super) struct Alien {
    ours: u64,
    next: AtomicU64,
}

/// Returns an entry of a folder that an alien cache doesn't have; `None` if it is one, or empty. One has a folder for unfinished
/// files and folders of objects; before there are both, only these and what the reference client keeps beside them.
pub(super) fn foreign_entry(folder: &Path) -> io::Result<Option<OsString>> {
    let name = |path: &Path| path.file_name().unwrap_or_default().as_encoded_bytes().to_vec();
    let is_of_objects = |path: &Path| {
        let name = name(path);
        name.len() == 2 && name.iter().all(u8::is_ascii_hexdigit) && path.is_dir()
    };
    let has_objects = || {
        let entries = std::fs::read_dir(folder).into_iter().flatten().flatten();
        entries.map(|entry| entry.path()).any(|path| is_of_objects(&path))
    };
    let is_txn = |path: &Path| name(path) == TXN.as_bytes() && path.is_dir();
    let is_harmless = |path: &Path| {
        let is_known = [&b"quarantaine"[..], b"lost+found"].contains(&&name(path)[..]);
        is_of_objects(path) || is_txn(path) || is_known || name(path).starts_with(b".cvmfs")
    };
    crate::folder_owner::foreign_entry(folder, |path| is_txn(path) && has_objects(), is_harmless)
}

/// Makes the folder, for the group to share.
pub(super) fn make(folder: &Path) -> io::Result<()> {
    match std::fs::create_dir(folder) {
        Ok(()) => {}
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists => return Ok(()),
        Err(error) => return Err(error),
    }
    let made = File::open(folder)?;
    Ok(fchmod(&made, Mode::from_raw_mode(FOLDER_MODE))?)
}

impl Alien {
    pub(super) fn new() -> Self {
        // Nodes need not know of each other: 64 random bits are enough for the few files that are being written.
        Self { ours: RandomState::new().hash_one(std::process::id()), next: AtomicU64::new(0) }
    }

    /// Stores an object unless it exists; returns true if it was stored.
    pub(super) fn put(&self, folder: &Folder, key: &CacheKey, plain: &File, len: u64) -> io::Result<bool> {
        let name = key.hash.to_string();
        let (two, rest) = name.split_at(2);
        if let Ok((there, there_len)) = folder.open(&[two], rest)
            && there_len == len
            && same(&there, plain, len)?
        {
            return Ok(false);
        }
        let txn = enter_or_make(folder, TXN)?;
        let within = enter_or_make(folder, two)?;
        let unnamed = format!("esker-{:016x}-{}", self.ours, self.next.fetch_add(1, Ordering::Relaxed));
        let written = write(&txn, &unnamed, plain, len);
        let named = written.and_then(|()| Ok(renameat(&txn, &unnamed, &within, rest)?));
        if let Err(error) = named {
            // A leftover there is ignored by all readers.
            let _ = unlinkat(&txn, &unnamed, AtFlags::empty());
            return Err(error);
        }
        Ok(true)
    }
}

fn enter_or_make(folder: &Folder, name: &str) -> io::Result<OwnedFd> {
    match folder.enter(name) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => {}
        there => return there,
    }
    match mkdirat(&folder.fd, name, Mode::from_raw_mode(FOLDER_MODE)) {
        Ok(()) => {
            // The umask removed the group's bits. The new folder is opened to change its mode; a link in its place is
            // not followed.
            let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
            let made = openat(&folder.fd, name, flags, Mode::empty())?;
            fchmod(made.as_fd(), Mode::from_raw_mode(FOLDER_MODE))?;
        }
        Err(rustix::io::Errno::EXIST) => {}
        Err(error) => return Err(error.into()),
    }
    folder.enter(name)
}

fn write(txn: &OwnedFd, name: &str, plain: &File, len: u64) -> io::Result<()> {
    let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let mut file = File::from(openat(txn, name, flags, Mode::from_raw_mode(FILE_MODE))?);
    fchmod(&file, Mode::from_raw_mode(FILE_MODE))?;
    pieces(len, |at, room| {
        plain.read_exact_at(room, at)?;
        file.write_all(room)?;
        Ok(true)
    })
    .map(|_| ())
}

fn same(one: &File, other: &File, len: u64) -> io::Result<bool> {
    let mut further = vec![0; PIECE];
    pieces(len, |at, room| {
        let further = &mut further[..room.len()];
        one.read_exact_at(room, at)?;
        other.read_exact_at(further, at)?;
        Ok(room == further)
    })
}

/// Calls `each` for each piece of a file until it returns false; returns whether it never did.
fn pieces(len: u64, mut each: impl FnMut(u64, &mut [u8]) -> io::Result<bool>) -> io::Result<bool> {
    let mut room = vec![0; usize::try_from(len).map_or(PIECE, |len| len.min(PIECE))];
    let mut at = 0;
    while at < len {
        let count = usize::try_from(len - at).map_or(PIECE, |left| left.min(PIECE));
        if !each(at, &mut room[..count])? {
            return Ok(false);
        }
        at += count as u64;
    }
    Ok(true)
}
