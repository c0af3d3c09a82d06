//! A file or catalog that exceeds a limit in the settings.

use std::fmt;

use serde::Serialize;

use crate::shrink::grouped;

/// A file or catalog that exceeds a limit.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct OverLimit {
    /// Path of the file, or of the root directory of the catalog.
    pub path: String,
    /// Bytes of the file, or entries of the catalog.
    pub size: u64,
    /// The limit.
    pub limit: u64,
    /// Name of the setting with the limit.
    pub setting: &'static str,
}

/// Name of the setting with the limit for files.
pub(crate) const FILE: &str = "file_size_limit";

impl fmt::Display for OverLimit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (what, unit) = if self.setting == FILE { ("", "bytes") } else { ("the catalog of ", "entries") };
        let (size, limit) = (grouped(self.size), grouped(self.limit));
        write!(
            f,
            "{what}`{}` has {size} {unit}, more than the limit of {limit} ({})",
            self.path, self.setting
        )
    }
}
