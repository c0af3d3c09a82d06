//! Encodes paths, which are bytes, as text in JSON for users. Bytes that are no text are replaced.

use std::path::{Path, PathBuf};

use serde::{Deserialize, Deserializer, Serializer};

/// Writes a path as text.
pub fn serialize<S: Serializer>(path: &Path, to: S) -> Result<S::Ok, S::Error> {
    to.serialize_str(&path.to_string_lossy())
}

/// Reads a path from text.
pub fn deserialize<'de, D: Deserializer<'de>>(from: D) -> Result<PathBuf, D::Error> {
    PathBuf::deserialize(from)
}
