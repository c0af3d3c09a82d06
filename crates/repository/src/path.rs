//! Paths in a repository: bytes that start with a slash, or nothing at all for the root.

pub use esker_format::path::{join, split};

use crate::error::RepositoryError;

/// Iterates over a path and its parent directories from the root (the empty path) down.
pub fn ancestry(path: &[u8]) -> impl Iterator<Item = &[u8]> {
    let ends = path.iter().enumerate().filter(|(_, byte)| **byte == b'/').map(|(end, _)| end);
    ends.chain([path.len()]).map(|end| &path[..end])
}

/// Returns true if a path is a directory itself or below it.
pub fn is_within(path: &[u8], directory: &[u8]) -> bool {
    path.strip_prefix(directory).is_some_and(|rest| rest.is_empty() || rest.starts_with(b"/"))
}

/// Normalises a path from the command line to its form in the repository.
pub fn normalise(typed: &[u8]) -> Result<Vec<u8>, RepositoryError> {
    let refused =
        |reason| RepositoryError::Target { path: String::from_utf8_lossy(typed).into_owned(), reason };
    let mut path = Vec::with_capacity(typed.len());
    for component in typed.split(|byte| *byte == b'/') {
        match component {
            b"" | b"." => {}
            b".." => return Err(refused("`..` is not allowed")),
            name if name.len() > NAME_MAX => return Err(refused("a name in it is longer than 255 bytes")),
            name if name.contains(&0) => return Err(refused("it has a zero byte in it")),
            name => {
                path.push(b'/');
                path.extend_from_slice(name);
            }
        }
    }
    if is_within(&path, RESERVED) {
        return Err(refused("`/.cvmfs` belongs to the repository itself"));
    }
    Ok(path)
}

/// The directory in which repositories show their own snapshots; never published to.
pub const RESERVED: &[u8] = b"/.cvmfs";
/// The longest name that Linux allows.
const NAME_MAX: usize = 255;

/// Formats a path for messages.
pub fn shown(path: &[u8]) -> String {
    if path.is_empty() { "/".to_owned() } else { String::from_utf8_lossy(path).into_owned() }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn paths_in_every_form_are_normalised() {
        assert_eq!(normalise(b"a//b/./c/").unwrap(), b"/a/b/c");
        assert_eq!(normalise(b"/").unwrap(), b"");
        assert_eq!(normalise(b"").unwrap(), b"");
        for bad in [&b"/a/../b"[..], b"..", b"/.cvmfs", b".cvmfs/x", &[b'x'; 256], b"a\0b"] {
            assert!(normalise(bad).is_err(), "{bad:?}");
        }
        assert!(normalise(b"/.cvmfsx").is_ok());
        assert_eq!(split(b"/a/b"), Some((&b"/a"[..], &b"b"[..])));
        assert_eq!(split(b"/a"), Some((&b""[..], &b"a"[..])));
        assert_eq!(split(b""), None);
        assert_eq!(ancestry(b"/a/b").collect::<Vec<_>>(), [&b""[..], b"/a", b"/a/b"]);
        assert_eq!(ancestry(b"").collect::<Vec<_>>(), [&b""[..]]);
        assert!(is_within(b"/a/b", b"/a") && is_within(b"/a", b"/a") && is_within(b"/a", b""));
        assert!(!is_within(b"/ab", b"/a"));
    }
}
