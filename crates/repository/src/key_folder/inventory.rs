//! Lists the key files of a repository, and the faults of each.

use std::fs;
use std::os::unix::fs::{MetadataExt as _, PermissionsExt as _};
use std::path::PathBuf;

use serde::Serialize;

use super::{CERTIFICATE, KeyFolder, MASTER, PRIVATE, PUBLIC, is_exposed};

/// A file that belongs to the keys of a repository.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct KeyFile {
    /// Role: `master key`, `public key`, `publisher key`, `certificate`, a signer in place of a key, or a file of a
    /// rotation.
    pub role: &'static str,
    /// Path.
    pub path: PathBuf,
    /// True if the file exists.
    pub present: bool,
    /// Permissions in octal digits.
    pub mode: Option<String>,
    /// True if a passphrase protects the key; `None` for a file that is no readable private key.
    pub encrypted: Option<bool>,
    /// True if other users can read or change a private key.
    pub exposed: bool,
}

/// Roles of key files and the ends of their names: the usual ones, and those of signers and rotations.
const USUAL: [(&str, &str); 4] = [
    ("master key", MASTER),
    ("public key", PUBLIC),
    ("publisher key", PRIVATE),
    ("certificate", CERTIFICATE),
];
const OTHERS: [(&str, &str); 8] = [
    ("signer of the master key", "masterkey.signer"),
    ("signer of the publisher key", "key.signer"),
    ("next publisher key", "next.key"),
    ("next certificate", "next.crt"),
    ("signer of the next publisher key", "next.key.signer"),
    ("publisher key before", "old.key"),
    ("certificate before", "old.crt"),
    ("signer of the publisher key before", "old.key.signer"),
];

impl KeyFolder {
    /// Lists the key files; the four usual ones also if they are missing.
    pub fn inventory(&self) -> Vec<KeyFile> {
        let describe = |(role, extension)| self.describe(role, extension);
        let others = OTHERS.into_iter().map(describe).filter(|file| file.present);
        USUAL.into_iter().map(describe).chain(others).collect()
    }

    fn describe(&self, role: &'static str, extension: &str) -> KeyFile {
        let path = self.file(extension);
        let facts = fs::metadata(&path).ok();
        let private = extension == MASTER || extension.ends_with(PRIVATE);
        let text = facts.as_ref().filter(|_| private).and_then(|facts| {
            let small = facts.is_file() && facts.size() < 1 << 16;
            small.then(|| fs::read_to_string(&path).ok()).flatten()
        });
        KeyFile {
            role,
            present: facts.is_some(),
            mode: facts.map(|facts| format!("{:04o}", facts.permissions().mode() & 0o7777)),
            encrypted: text.map(|text| text.contains("ENCRYPTED")),
            exposed: private && is_exposed(&path),
            path,
        }
    }
}
