//! Writes the marker of a graft and the empty file beside it.

use std::ffi::OsStr;
use std::fs::{self, File, FileTimes, Metadata, OpenOptions};
use std::io;
use std::os::unix::ffi::OsStrExt as _;
use std::os::unix::fs::{PermissionsExt as _, symlink};
use std::path::{Path, PathBuf};

use esker_publish::Graft;
use esker_store::{RealDisk, persist};

use crate::error::{Context as _, Failure, Kind};

/// A file to graft.
pub(super) struct Target {
    file: PathBuf,
    marker: PathBuf,
}

impl Target {
    /// Returns the target at a path. A file with content is refused, since it would be lost.
    pub(super) fn new(path: &Path) -> Result<Self, Failure> {
        let name = path.file_name().ok_or_else(|| {
            Failure::usage(format!("{} has no file name", path.display()))
                .hint("name a file with --output PATH")
        })?;
        match path.symlink_metadata() {
            Ok(facts) if !facts.is_file() || facts.len() > 0 => {
                return Err(Failure::usage(format!(
                    "{} is there already, and is no empty file",
                    path.display()
                ))
                .hint("name another file with --output PATH"));
            }
            _ => {}
        }
        let marker = path.with_file_name(OsStr::from_bytes(&Graft::marker_of(name.as_bytes())));
        Ok(Self { file: path.to_owned(), marker })
    }

    /// Writes marker and file; the file gets mode and time of `like`.
    pub(super) fn write(&self, graft: &Graft, like: Option<&Metadata>) -> Result<(), Failure> {
        let failed = |path: &Path| format!("can't write {}", path.display());
        persist(&RealDisk::SERVED, &self.marker, graft.to_text().as_bytes())
            .context(Kind::Failed, failed(&self.marker))?;
        self.write_file(like).context(Kind::Failed, failed(&self.file))
    }

    fn write_file(&self, like: Option<&Metadata>) -> io::Result<()> {
        let file: File = OpenOptions::new().write(true).create(true).truncate(false).open(&self.file)?;
        if let Some(like) = like {
            file.set_permissions(fs::Permissions::from_mode(like.permissions().mode() & 0o7777))?;
            file.set_times(FileTimes::new().set_modified(like.modified()?))?;
        }
        Ok(())
    }
}

/// Makes a folder with the mode of another one, unless it is there.
pub(super) fn make_folder(like: &Path, folder: &Path) -> Result<(), Failure> {
    let make = || -> io::Result<()> {
        if folder.is_dir() {
            return Ok(());
        }
        fs::create_dir(folder)?;
        fs::set_permissions(folder, like.metadata()?.permissions())
    };
    make().context(Kind::Failed, format!("can't make the folder {}", folder.display()))
}

/// Copies a symlink; one that is there already stays.
pub(super) fn copy_link(from: &Path, to: &Path) -> Result<(), Failure> {
    let copy = || match symlink(fs::read_link(from)?, to) {
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists => Ok(()),
        other => other,
    };
    copy().context(Kind::Failed, format!("can't copy the symlink {}", from.display()))
}
