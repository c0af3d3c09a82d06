//! Encodes paths, which are bytes, for Esker's own JSON files, exactly: a path that is no text is an array of its bytes.

use std::ffi::OsString;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::{Path, PathBuf};

use serde::{Deserialize, Deserializer, Serialize, Serializer};

#[derive(Deserialize)]
#[serde(untagged)]
enum Form {
    Text(PathBuf),
    Bytes(Vec<u8>),
}

pub(crate) fn serialize<S: Serializer>(path: &Path, to: S) -> Result<S::Ok, S::Error> {
    match path.to_str() {
        Some(text) => to.serialize_str(text),
        None => path.as_os_str().as_bytes().serialize(to),
    }
}

pub(crate) fn deserialize<'de, D: Deserializer<'de>>(from: D) -> Result<PathBuf, D::Error> {
    Ok(match Form::deserialize(from)? {
        Form::Text(path) => path,
        Form::Bytes(bytes) => OsString::from_vec(bytes).into(),
    })
}
