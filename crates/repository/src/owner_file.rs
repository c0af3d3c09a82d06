//! Reads files that only the owner of a repository sees.

use std::io;
use std::path::Path;

use esker_store::{Disk, read_file};

use crate::error::RepositoryError;

/// Reads a file of the publisher's state; none if there is none. There is none for other users either, who look at the
/// repository without it.
pub(crate) fn read(disk: &dyn Disk, path: &Path, limit: u64) -> Result<Option<Vec<u8>>, RepositoryError> {
    match read_file(disk, path, limit) {
        Err(error) if error.kind() == io::ErrorKind::PermissionDenied => Ok(None),
        text => text.map_err(RepositoryError::file("reading", path)),
    }
}
