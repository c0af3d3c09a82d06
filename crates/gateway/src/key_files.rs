//! Writes the files of publishers' keys: for the gateway as JSON, for publishers as the reference has them.

use std::fs::OpenOptions;
use std::io::{self, Write as _};
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::{Path, PathBuf};

use esker_store::open_own_file;

use crate::keys::{PublisherKey, Secret};

/// Longest name of a key.
const NAME_MAX: usize = 64;

/// Returns true if a key may have a name: it is a word of the key file, and the name of one.
pub fn is_key_name(name: &str) -> bool {
    let is_plain = |byte: u8| byte.is_ascii_alphanumeric() || b"._-@".contains(&byte);
    (1..=NAME_MAX).contains(&name.len()) && name.bytes().all(is_plain) && !name.starts_with(['.', '-'])
}

/// Returns the file of a key in a folder.
pub fn key_file(folder: &Path, name: &str) -> PathBuf {
    folder.join(format!("{name}.json"))
}

/// Writes the file of a key. It is the whole new one or the old one, belongs to the owner of the folder, and no other user can
/// read it.
pub fn write_key(folder: &Path, name: &str, key: &PublisherKey) -> io::Result<()> {
    let new = folder.join(format!(".{name}.new"));
    let mut file = open_own_file(&new, OpenOptions::new().write(true).truncate(true))?;
    serde_json::to_writer_pretty(&mut file, key).map_err(io::Error::from)?;
    file.write_all(b"\n")?;
    file.sync_all()?;
    std::fs::rename(&new, key_file(folder, name))?;
    std::fs::File::open(folder)?.sync_all()
}

/// Writes the file that a publisher gets. It must not exist, and no other user can read it.
pub fn write_plain_key(file: &Path, name: &str, secret: &Secret) -> io::Result<()> {
    let mut file = OpenOptions::new().write(true).create_new(true).mode(0o600).open(file)?;
    writeln!(file, "plain_text {name} {}", secret.text())?;
    file.sync_all()
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt as _;

    use super::*;
    use crate::keys::{KeyRing, plain_key};

    #[test]
    fn written_keys_are_read_again_and_are_private() {
        let folder = tempfile::tempdir().unwrap();
        let key = PublisherKey { secret: Secret::random(), ..PublisherKey::default() };
        for _ in 0..2 {
            write_key(folder.path(), "ci", &key).unwrap();
        }
        let ring = KeyRing::read(folder.path()).unwrap();
        assert_eq!(ring.iter().collect::<Vec<_>>(), [("ci", &key)]);
        let plain = folder.path().join("ci.gw");
        write_plain_key(&plain, "ci", &key.secret).unwrap();
        assert_eq!(plain_key(&plain).unwrap(), ("ci".to_owned(), key.secret.text().to_owned()));
        for file in [key_file(folder.path(), "ci"), plain.clone()] {
            assert_eq!(std::fs::metadata(file).unwrap().permissions().mode() & 0o777, 0o600);
        }
        let again = write_plain_key(&plain, "ci", &key.secret).unwrap_err();
        assert_eq!(again.kind(), io::ErrorKind::AlreadyExists);
    }

    #[test]
    fn names_of_keys_are_names_of_files_and_words() {
        for name in ["ci", "build-7", "a.b_c@d", &"x".repeat(64)] {
            assert!(is_key_name(name), "{name}");
        }
        for name in ["", ".x", "-x", "a/b", "a b", "ä", "a\n", &"x".repeat(65)] {
            assert!(!is_key_name(name), "{name}");
        }
    }
}
