//! Mount position of a catalog, if it differs from where it was published.

use super::PathKey;

/// Position of a catalog in the tree that a reader sees.
///
/// A bound catalog was published for one directory (its root prefix) and is mounted at another.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Placement {
    mountpoint: Vec<u8>,
    root_prefix: Vec<u8>,
}

impl Placement {
    /// Creates the placement of a catalog with a root prefix at a mountpoint; both are empty for the root of
    /// the repository.
    pub fn new(mountpoint: impl Into<Vec<u8>>, root_prefix: impl Into<Vec<u8>>) -> Self {
        Self { mountpoint: mountpoint.into(), root_prefix: root_prefix.into() }
    }

    /// Returns the path at which the catalog is mounted.
    pub fn mountpoint(&self) -> &[u8] {
        &self.mountpoint
    }

    /// Converts a path in the reader's tree to the path in the catalog; none if it is not below the
    /// mountpoint.
    pub fn stored(&self, seen: &[u8]) -> Option<Vec<u8>> {
        replace_prefix(seen, &self.mountpoint, &self.root_prefix)
    }

    /// Converts a path in the catalog to the path in the reader's tree; none if it is not below the prefix.
    pub fn seen(&self, stored: &[u8]) -> Option<Vec<u8>> {
        replace_prefix(stored, &self.root_prefix, &self.mountpoint)
    }

    /// Returns the catalog's key of a path in the reader's tree.
    pub fn key(&self, seen: &[u8]) -> Option<PathKey> {
        if self.mountpoint == self.root_prefix {
            return below(seen, &self.mountpoint).map(|_| PathKey::of(seen));
        }
        self.stored(seen).map(|stored| PathKey::of(&stored))
    }
}

/// Returns the rest of a path that is the directory itself or below it.
fn below<'p>(path: &'p [u8], directory: &[u8]) -> Option<&'p [u8]> {
    path.strip_prefix(directory).filter(|rest| rest.is_empty() || rest.starts_with(b"/"))
}

fn replace_prefix(path: &[u8], from: &[u8], to: &[u8]) -> Option<Vec<u8>> {
    below(path, from).map(|rest| [to, rest].concat())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn paths_convert_both_ways() {
        let bound = Placement::new("/.cvmfs/snapshots/v1", "");
        assert_eq!(bound.stored(b"/.cvmfs/snapshots/v1/a/b"), Some(b"/a/b".to_vec()));
        assert_eq!(bound.stored(b"/.cvmfs/snapshots/v1"), Some(Vec::new()));
        assert_eq!(bound.stored(b"/.cvmfs/snapshots/v10/a"), None);
        assert_eq!(bound.seen(b"/a"), Some(b"/.cvmfs/snapshots/v1/a".to_vec()));
        assert_eq!(bound.key(b"/.cvmfs/snapshots/v1/a"), Some(PathKey::of(b"/a")));

        let nested = Placement::new("/pkg", "/pkg");
        assert_eq!(nested.key(b"/pkg/x"), Some(PathKey::of(b"/pkg/x")));
        assert_eq!(nested.key(b"/pk"), None);
    }
}
