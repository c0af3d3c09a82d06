//! Names files in a cache folder.

use std::path::{Path, PathBuf};

use esker_format::hash::ContentHash;

use crate::objects::request::CacheKey;
use esker_format::compress::Compression;

/// Paths in a cache folder.
#[derive(Clone, Debug)]
pub(crate) struct Layout {
    pub(super) root: PathBuf,
    pub(super) objects: PathBuf,
    pub(super) txn: PathBuf,
    pub(super) heads: PathBuf,
    pub(super) index: PathBuf,
    pub(super) pins: PathBuf,
    pub(super) lock: PathBuf,
}

impl Layout {
    pub(super) fn new(root: &Path) -> Self {
        Self {
            root: root.to_owned(),
            objects: root.join("objects"),
            txn: root.join("txn"),
            heads: root.join("heads"),
            index: root.join("index"),
            pins: root.join("pins"),
            lock: root.join("lock"),
        }
    }

    /// Returns the folder of an object: the first two digits of its hash.
    pub(super) fn folder(&self, key: &CacheKey) -> PathBuf {
        let digits = key.hash.hex();
        self.objects.join(digits.get(..2).unwrap_or_default())
    }

    /// Returns the file of an object.
    pub(super) fn object(&self, key: &CacheKey) -> PathBuf {
        let name = key.to_string();
        self.folder(key).join(name.get(2..).unwrap_or_default())
    }

    /// Returns the key that a file name in a folder of `objects` encodes.
    pub(crate) fn key(folder: &str, name: &str) -> Option<CacheKey> {
        let (rest, suffix) = name.rsplit_once('.')?;
        let compression = match suffix {
            "z" => Compression::Zlib,
            "p" => Compression::Stored,
            "s" => Compression::Zstd,
            _ => return None,
        };
        let hash = ContentHash::parse(&format!("{folder}{rest}")).ok()?;
        Some(CacheKey { hash, compression })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use esker_format::hash::HashAlgorithm;

    #[test]
    fn names_round_trip() {
        let layout = Layout::new(Path::new("c"));
        for algorithm in [HashAlgorithm::Sha1, HashAlgorithm::Rmd160, HashAlgorithm::Shake128] {
            for compression in [Compression::Zlib, Compression::Stored, Compression::Zstd] {
                let key = CacheKey { hash: ContentHash::of(algorithm, b"x"), compression };
                let path = layout.object(&key);
                let name = path.file_name().unwrap().to_str().unwrap();
                let folder = path.parent().unwrap().file_name().unwrap().to_str().unwrap();
                assert_eq!(Layout::key(folder, name), Some(key));
                assert_eq!(CacheKey::from_bytes(&key.to_bytes()), Some(key));
                assert_eq!(CacheKey::try_from(String::from(key)), Ok(key));
            }
        }
        assert_eq!(Layout::key("ab", "cd"), None);
        let no_keys = ["", "0", "zz", &"00".repeat(23), &"f".repeat(44)];
        assert!(no_keys.into_iter().all(|text| CacheKey::try_from(text.to_owned()).is_err()));
    }
}
