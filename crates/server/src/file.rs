//! Files of repositories, opened so that nothing but a regular file is ever sent.

use std::fs::{File, OpenOptions};
use std::io;
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;

use rustix::fs::OFlags;

/// A file and the length it had when it was opened.
#[derive(Debug)]
pub(crate) struct Opened {
    pub(crate) file: File,
    pub(crate) len: u64,
}

/// Opens a regular file. Links are followed: whoever runs the server may have put the data on another disk, and no
/// request can make one.
pub(crate) fn open(path: &Path) -> io::Result<Opened> {
    // A fifo that somebody put there must not hold us.
    let flags = OFlags::NONBLOCK | OFlags::NOCTTY;
    let file = OpenOptions::new().read(true).custom_flags(flags.bits().cast_signed()).open(path)?;
    let metadata = file.metadata()?;
    if !metadata.is_file() {
        return Err(io::ErrorKind::NotFound.into());
    }
    Ok(Opened { file, len: metadata.len() })
}
