//! Keys of paths in catalogs.

use std::fmt;

use md5::Digest as _;

/// MD5 of a path, by which catalogs find entries.
///
/// Paths start with `/` and have no trailing slash; the root of the repository is the empty path. Keys are
/// ordered like their two columns.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct PathKey {
    first: i64,
    second: i64,
}

impl PathKey {
    /// Parent key of the root entry of a repository.
    pub const NONE: Self = Self { first: 0, second: 0 };

    /// Returns the key of a path.
    pub fn of(path: &[u8]) -> Self {
        Self::from_digest(md5::Md5::digest(path).into())
    }

    /// Returns the key of the entry `name` in the directory `parent`.
    pub fn child(parent: &[u8], name: &[u8]) -> Self {
        let mut state = md5::Md5::new();
        state.update(parent);
        state.update(b"/");
        state.update(name);
        Self::from_digest(state.finalize().into())
    }

    /// Returns the key with these columns.
    pub const fn from_columns(first: i64, second: i64) -> Self {
        Self { first, second }
    }

    /// Returns the two columns that a catalog stores.
    pub const fn columns(self) -> (i64, i64) {
        (self.first, self.second)
    }

    /// Returns the key with this MD5.
    pub fn from_digest(digest: [u8; 16]) -> Self {
        let (first, second) = digest.split_at(8);
        let [first, second] = [first, second].map(|half| half.try_into().map_or(0, i64::from_le_bytes));
        Self { first, second }
    }

    /// Returns the MD5 digest.
    pub fn digest(self) -> [u8; 16] {
        let [first, second] = [self.first, self.second].map(|half| u128::from(half.cast_unsigned()));
        (second << 64 | first).to_le_bytes()
    }
}

impl fmt::Debug for PathKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.digest().iter().try_for_each(|byte| write!(f, "{byte:02x}"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_equal_known_md5_values() {
        for (path, first, second) in [
            ("", 338333539836370388, 9098107892288553193),
            ("/foo", 5745132282796244766, -5819618580357280866),
            ("/pkg", -8712665947923289936, -7380561147080855739),
            ("/pkg/sub", -1773883814442982847, -632697872870638654),
            ("/a/b", -79414819578584146, 8517581007188477988),
        ] {
            let key = PathKey::of(path.as_bytes());
            assert_eq!(key.columns(), (first, second), "{path}");
            assert_eq!(PathKey::from_digest(key.digest()), key);
            if let Some((parent, name)) = path.rsplit_once('/') {
                assert_eq!(PathKey::child(parent.as_bytes(), name.as_bytes()), key);
            }
        }
        assert_eq!(format!("{:?}", PathKey::of(b"")), "d41d8cd98f00b204e9800998ecf8427e");
    }
}
