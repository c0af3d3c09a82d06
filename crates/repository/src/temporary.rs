//! Folder of temporary files for what is too large for memory.

use std::path::PathBuf;
use std::sync::OnceLock;

static FOLDER: OnceLock<PathBuf> = OnceLock::new();

/// Sets the folder of this process, for one that may not write to that of the system. Only the first call has an effect.
pub fn set_temporary_folder(folder: PathBuf) {
    let _ = FOLDER.set(folder);
}

/// Returns the folder.
pub(crate) fn temporary_folder() -> PathBuf {
    FOLDER.get().cloned().unwrap_or_else(std::env::temp_dir)
}
