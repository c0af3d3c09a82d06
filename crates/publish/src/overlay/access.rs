//! Makes the entries of an upper folder readable for their owner while they are published.
//!
//! A command may leave files that their own owner can't read. Without root's rights the publisher gives itself the
//! permission, and takes it back at the end. Each mode is recorded durably beside the upper folder first, so that a
//! publisher that is killed in between loses none.

use std::collections::BTreeMap;
use std::ffi::OsStr;
use std::fs::{File, OpenOptions};
use std::io::{ErrorKind, Write as _};
use std::os::unix::ffi::OsStrExt as _;
use std::path::{Path, PathBuf};

use esker_repository::{RepositoryError, path};
use esker_store::open_own_file;
use rustix::fs::{AtFlags, CWD, Mode, chmodat};

use crate::error::PublishError;
use crate::source::Source;

/// Name of the record, beside the upper folder.
const RECORD: &str = "modes";
/// Largest record.
const RECORD_MAX: u64 = 1 << 30;

/// Permissions of the owner to read a file, and to list and enter a directory.
const FILE: u32 = 0o400;
const DIRECTORY: u32 = 0o500;

/// The modes that entries have; dropping it gives them back.
pub(super) struct Access {
    upper: PathBuf,
    record: PathBuf,
    modes: BTreeMap<Vec<u8>, u32>,
}

impl Access {
    /// Opens all entries of an upper folder to their owner. Root needs nothing of that.
    pub(super) fn open(upper: &Path) -> Result<Self, PublishError> {
        restore(upper)?;
        let mut access = Self { upper: upper.to_owned(), record: record_of(upper), modes: BTreeMap::new() };
        if !rustix::process::geteuid().is_root() {
            access.open_all()?;
        }
        Ok(access)
    }

    /// Returns the mode of an entry, if it is another one for the time being.
    pub(super) fn mode(&self, path: &[u8]) -> Option<u32> {
        self.modes.get(path).copied()
    }

    fn open_all(&mut self) -> Result<(), PublishError> {
        let root = Source::open(&self.upper)?;
        let mut record: Option<File> = None;
        let mut waiting = vec![Vec::new()];
        while let Some(directory) = waiting.pop() {
            let folder = root.open_directory(&directory)?;
            for entry in root.list(&folder, &directory)? {
                let at = path::join(&directory, &entry.name);
                let needed = match entry.facts.mode & 0o170_000 {
                    0o040_000 => DIRECTORY,
                    0o100_000 => FILE,
                    _ => continue,
                };
                if entry.facts.mode & needed != needed {
                    self.note(&mut record, &at, entry.facts.mode)?;
                    let wider = Mode::from_raw_mode((entry.facts.mode | needed) & 0o7777);
                    chmodat(&folder, OsStr::from_bytes(&entry.name), wider, AtFlags::empty())
                        .map_err(root.failed("changing the mode of", &at))?;
                }
                if entry.facts.is_directory() {
                    waiting.push(at);
                }
            }
        }
        Ok(())
    }

    fn note(&mut self, record: &mut Option<File>, at: &[u8], mode: u32) -> Result<(), PublishError> {
        let failed = || RepositoryError::file("writing", &self.record);
        let file = match record {
            Some(file) => file,
            None => {
                let made = open_own_file(&self.record, OpenOptions::new().append(true));
                record.insert(made.map_err(failed())?)
            }
        };
        let line = [format!("{:o} ", mode & 0o7777).as_bytes(), at, b"\0"].concat();
        file.write_all(&line).and_then(|()| file.sync_all()).map_err(failed())?;
        self.modes.insert(at.to_vec(), mode);
        Ok(())
    }
}

impl Drop for Access {
    fn drop(&mut self) {
        // The record stays if that fails, and the next use of the folder tries again.
        let _ = restore(&self.upper);
    }
}

fn record_of(upper: &Path) -> PathBuf {
    upper.parent().unwrap_or(upper).join(RECORD)
}

/// Gives the entries of an upper folder back the modes that an earlier publisher recorded.
pub(super) fn restore(upper: &Path) -> Result<(), PublishError> {
    let record = record_of(upper);
    let text = match std::fs::metadata(&record) {
        Ok(facts) if facts.len() <= RECORD_MAX => std::fs::read(&record),
        Ok(_) => Err(ErrorKind::FileTooLarge.into()),
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(()),
        Err(error) => Err(error),
    };
    let text = text.map_err(RepositoryError::file("reading", &record))?;
    // Directories were opened before their entries, so that they are closed after them.
    for line in text.split(|byte| *byte == 0).rev().filter(|line| !line.is_empty()) {
        let Some(space) = line.iter().position(|byte| *byte == b' ') else { continue };
        let mode =
            std::str::from_utf8(&line[..space]).ok().and_then(|text| u32::from_str_radix(text, 8).ok());
        let (Some(mode), Some(below)) = (mode, line[space + 1..].strip_prefix(b"/")) else { continue };
        let path = upper.join(OsStr::from_bytes(below));
        // An entry may be gone by now.
        let _ = chmodat(CWD, &path, Mode::from_raw_mode(mode & 0o7777), AtFlags::empty());
    }
    Ok(std::fs::remove_file(&record).map_err(RepositoryError::file("removing", &record))?)
}
