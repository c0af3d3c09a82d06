//! Names of stored objects, and their paths on a server.

use std::fmt;

use crate::hash::ContentHash;

/// Kind of a stored object; part of its name on the server, but not covered by its hash.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum ObjectKind {
    /// A whole regular file.
    File,
    /// One chunk of a chunked file.
    Chunk,
    /// A file catalog.
    Catalog,
    /// A history (tag) database.
    History,
    /// The description of the repository.
    Metainfo,
    /// The certificate of a publisher.
    Certificate,
    /// A micro catalog: defined by the format, but not in use.
    Micro,
}

impl ObjectKind {
    /// Returns true for file content: a file or a chunk.
    pub const fn is_content(self) -> bool {
        matches!(self, Self::File | Self::Chunk)
    }

    /// All kinds.
    pub const ALL: [Self; 7] = [
        Self::File,
        Self::Chunk,
        Self::Catalog,
        Self::History,
        Self::Metainfo,
        Self::Certificate,
        Self::Micro,
    ];

    /// Returns the letter at the end of the object's name, empty for whole files.
    pub const fn suffix(self) -> &'static str {
        match self {
            Self::File => "",
            Self::Chunk => "P",
            Self::Catalog => "C",
            Self::History => "H",
            Self::Metainfo => "M",
            Self::Certificate => "X",
            Self::Micro => "L",
        }
    }
}

impl fmt::Display for ObjectKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::File => "file",
            Self::Chunk => "chunk",
            Self::Catalog => "catalog",
            Self::History => "history",
            Self::Metainfo => "metainfo",
            Self::Certificate => "certificate",
            Self::Micro => "micro catalog",
        })
    }
}

/// Name of a stored object: the hash of its stored bytes, and its kind.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct ObjectName {
    /// The hash of the bytes as stored.
    pub hash: ContentHash,
    /// Kind of the object.
    pub kind: ObjectKind,
}

impl ObjectName {
    /// Creates a name.
    pub const fn new(hash: ContentHash, kind: ObjectKind) -> Self {
        Self { hash, kind }
    }

    /// Returns the path of the object below the root of the repository: `data/ab/cdef…`.
    pub fn path(&self) -> String {
        let digits = self.hash.hex();
        let (folder, rest) = digits.split_at(2);
        format!("data/{folder}/{rest}{}{}", self.hash.algorithm().tag(), self.kind.suffix())
    }

    /// Returns the alternative path of the object, for repositories whose manifest declares alternative
    /// paths.
    pub fn alternative_path(&self) -> String {
        format!(".cvmfsalt-{self}")
    }

    /// Parses the text form: a hash directly followed by the letter of the kind.
    pub fn parse(text: &str) -> Option<Self> {
        if let Ok(hash) = ContentHash::parse(text) {
            return Some(Self::new(hash, ObjectKind::File));
        }
        let (index, _) = text.char_indices().next_back()?;
        let (hash, letter) = text.split_at_checked(index)?;
        let kind = ObjectKind::ALL.into_iter().find(|kind| kind.suffix() == letter)?;
        Some(Self::new(ContentHash::parse(hash).ok()?, kind))
    }
}

impl fmt::Display for ObjectName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}{}", self.hash, self.kind.suffix())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::hash::HashAlgorithm;

    #[test]
    fn paths_are_derived_from_names() {
        let empty = ContentHash::parse("e8ec3d88b62ebf526e4e5a4ff6162a3aa48a6b78").unwrap();
        let file = ObjectName::new(empty, ObjectKind::File);
        assert_eq!(file.path(), "data/e8/ec3d88b62ebf526e4e5a4ff6162a3aa48a6b78");
        let catalog =
            ObjectName::new(ContentHash::new(HashAlgorithm::Rmd160, *empty.digest()), ObjectKind::Catalog);
        assert_eq!(catalog.path(), "data/e8/ec3d88b62ebf526e4e5a4ff6162a3aa48a6b78-rmd160C");
        assert_eq!(catalog.alternative_path(), ".cvmfsalt-e8ec3d88b62ebf526e4e5a4ff6162a3aa48a6b78-rmd160C");
    }

    #[test]
    fn names_survive_text_form() {
        for algorithm in [HashAlgorithm::Sha1, HashAlgorithm::Rmd160, HashAlgorithm::Shake128] {
            for kind in ObjectKind::ALL {
                let name = ObjectName::new(ContentHash::of(algorithm, b"x"), kind);
                assert_eq!(ObjectName::parse(&name.to_string()), Some(name));
            }
        }
        assert_eq!(ObjectName::parse(""), None);
        assert_eq!(ObjectName::parse("e8ec3d88b62ebf526e4e5a4ff6162a3aa48a6b78T"), None);
    }
}
