//! Manifest, `.cvmfspublished`: the newest revision of a repository.
//!
//! One line per field, with the key as first letter. The parsed fields are not verified; [`crate::trust`]
//! verifies them.

use std::fmt::Write as _;

use crate::hash::ContentHash;
use crate::keyed_lines;
use crate::object::{ObjectKind, ObjectName};
use crate::time::UnixTime;

/// Path of the manifest below the root of the repository.
pub const PATH: &str = ".cvmfspublished";

/// MD5 of the empty path, which every manifest names as the root.
pub const ROOT_PATH: &str = "d41d8cd98f00b204e9800998ecf8427e";

/// The fields of a manifest.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Manifest {
    /// `C`: the root catalog.
    pub root_catalog: ContentHash,
    /// `B`: the uncompressed size of the root catalog in bytes; zero if it is not recorded.
    pub root_catalog_size: u64,
    /// `R`: the MD5 of the path of the root, as written.
    pub root_path: String,
    /// `D`: seconds after which clients ask for a newer manifest.
    pub ttl: u32,
    /// `S`: the number of the revision.
    pub revision: u64,
    /// `G`: whether old content may be collected.
    pub garbage_collectable: bool,
    /// `A`: whether certificate, root catalog, history and metainfo also exist at alternative paths.
    pub alternative_paths: bool,
    /// `L`: the micro catalog, which no publisher writes.
    pub micro_catalog: Option<ContentHash>,
    /// `N`: the name of the repository, as written.
    pub name: Option<String>,
    /// `X`: the certificate of the publisher.
    pub certificate: Option<ContentHash>,
    /// `H`: the history database.
    pub history: Option<ContentHash>,
    /// `T`: the time of the signature.
    pub timestamp: UnixTime,
    /// `M`: the description of the repository.
    pub metainfo: Option<ContentHash>,
    /// `Y`: the reflog of the publisher.
    pub reflog: Option<ContentHash>,
}

/// Reasons why a manifest can't be read.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ManifestError {
    /// A field that every manifest has is missing.
    #[error("the manifest is incomplete: it has no field `{0}`")]
    Missing(char),
    /// A field has an invalid value.
    #[error("field `{key}` of the manifest does not hold {wanted}")]
    Field {
        /// Letter of the field.
        key: char,
        /// Expected kind of value.
        wanted: &'static str,
    },
}

impl Manifest {
    /// Returns the objects that it names.
    pub fn objects(&self) -> impl Iterator<Item = ObjectName> {
        let named = [
            (Some(self.root_catalog), ObjectKind::Catalog),
            (self.certificate, ObjectKind::Certificate),
            (self.history, ObjectKind::History),
            (self.metainfo, ObjectKind::Metainfo),
            (self.micro_catalog, ObjectKind::Micro),
        ];
        named.into_iter().filter_map(|(hash, kind)| Some(ObjectName::new(hash?, kind)))
    }

    /// Parses the fields up to the signature. Unknown fields are skipped.
    pub fn parse(bytes: &[u8]) -> Result<Self, ManifestError> {
        let lines = keyed_lines::parse(bytes);
        let fields = Fields(&lines);
        for key in [b'C', b'R', b'D', b'S'] {
            if !lines.contains_key(&key) {
                return Err(ManifestError::Missing(char::from(key)));
            }
        }
        let timestamp = i64::try_from(fields.number(b'T')?)
            .map_err(|_| ManifestError::Field { key: 'T', wanted: "a time" })?;
        Ok(Self {
            root_catalog: fields.hash(b'C')?.ok_or(ManifestError::Missing('C'))?,
            root_catalog_size: fields.number(b'B')?,
            root_path: fields.text(b'R').unwrap_or_default(),
            ttl: u32::try_from(fields.number(b'D')?)
                .map_err(|_| ManifestError::Field { key: 'D', wanted: "a number of 32 bits" })?,
            revision: fields.number(b'S')?,
            garbage_collectable: fields.switch(b'G'),
            alternative_paths: fields.switch(b'A'),
            micro_catalog: fields.hash(b'L')?,
            name: fields.text(b'N'),
            certificate: fields.hash(b'X')?,
            history: fields.hash(b'H')?,
            timestamp: UnixTime(timestamp),
            metainfo: fields.hash(b'M')?,
            reflog: fields.hash(b'Y')?,
        })
    }

    /// Writes the fields in the order of the reference implementation, without signature.
    pub fn to_text(&self) -> String {
        let mut text = String::new();
        let yes_no = |value: bool| if value { "yes" } else { "no" };
        let mut line = |key: char, value: &dyn std::fmt::Display| {
            writeln!(text, "{key}{value}")
                .expect("writing to memory succeeds because a string takes every text");
        };
        line('C', &self.root_catalog);
        line('B', &self.root_catalog_size);
        line('R', &self.root_path);
        line('D', &self.ttl);
        line('S', &self.revision);
        line('G', &yes_no(self.garbage_collectable));
        line('A', &yes_no(self.alternative_paths));
        self.micro_catalog.iter().for_each(|hash| line('L', hash));
        self.name.iter().for_each(|name| line('N', name));
        for (key, hash) in [('X', &self.certificate), ('H', &self.history)] {
            hash.iter().for_each(|hash| line(key, hash));
        }
        line('T', &self.timestamp.0);
        for (key, hash) in [('M', &self.metainfo), ('Y', &self.reflog)] {
            hash.iter().for_each(|hash| line(key, hash));
        }
        text
    }
}

struct Fields<'l, 'b>(&'l std::collections::BTreeMap<u8, &'b [u8]>);

impl Fields<'_, '_> {
    fn text(&self, key: u8) -> Option<String> {
        self.0.get(&key).map(|value| String::from_utf8_lossy(value).into_owned())
    }

    fn switch(&self, key: u8) -> bool {
        self.0.get(&key) == Some(&&b"yes"[..])
    }

    /// Returns a number; a missing field is zero.
    fn number(&self, key: u8) -> Result<u64, ManifestError> {
        self.0.get(&key).map_or(Ok(0), |value| {
            keyed_lines::number(value)
                .ok_or(ManifestError::Field { key: char::from(key), wanted: "a decimal number" })
        })
    }

    fn hash(&self, key: u8) -> Result<Option<ContentHash>, ManifestError> {
        let Some(value) = self.0.get(&key) else { return Ok(None) };
        match ContentHash::from_text_bytes(value) {
            Some(hash) => Ok(Some(hash)),
            None => Err(ManifestError::Field { key: char::from(key), wanted: "a content hash" }),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const EXAMPLE: &str = "C1537bc934a79e999ee0d9e719240fe0ff2150b34\n\
        B16384\n\
        Rd41d8cd98f00b204e9800998ecf8427e\n\
        D240\n\
        S0\n\
        Gyes\n\
        Ano\n\
        Ntest.example.org\n\
        X58c341e0979a5cc9ab0280acacce9b364b298350\n\
        T1795249909\n\
        Y910a36c79b028f8f214ec62636946235f0d74ce1\n";

    #[test]
    fn an_example_is_parsed() {
        let manifest = Manifest::parse(EXAMPLE.as_bytes()).unwrap();
        assert_eq!(manifest.root_catalog.to_string(), "1537bc934a79e999ee0d9e719240fe0ff2150b34");
        assert_eq!(manifest.root_catalog_size, 16384);
        assert_eq!(manifest.root_path, ROOT_PATH);
        assert_eq!((manifest.ttl, manifest.revision), (240, 0));
        assert!(manifest.garbage_collectable && !manifest.alternative_paths);
        assert_eq!(manifest.name.as_deref(), Some("test.example.org"));
        assert_eq!(manifest.timestamp, UnixTime(1_795_249_909));
        assert_eq!(manifest.history, None);
        assert_eq!(manifest.to_text(), EXAMPLE);
    }

    #[test]
    fn unknown_fields_and_the_signature_are_skipped() {
        let text = format!("{EXAMPLE}Qfuture\nZtip\n--\nS99\n");
        assert_eq!(Manifest::parse(text.as_bytes()), Manifest::parse(EXAMPLE.as_bytes()));
    }

    #[test]
    fn invalid_fields_are_rejected_by_letter() {
        for (from, to, error) in [
            ("C1537", "Q1537", ManifestError::Missing('C')),
            ("Rd41", "Qd41", ManifestError::Missing('R')),
            ("D240", "Q240", ManifestError::Missing('D')),
            ("S0", "Q0", ManifestError::Missing('S')),
            ("C1537", "C153", ManifestError::Field { key: 'C', wanted: "a content hash" }),
            ("S0", "S-1", ManifestError::Field { key: 'S', wanted: "a decimal number" }),
            ("D240", "D4294967296", ManifestError::Field { key: 'D', wanted: "a number of 32 bits" }),
            ("T17", "T99999999999999999", ManifestError::Field { key: 'T', wanted: "a decimal number" }),
        ] {
            let text = EXAMPLE.replace(from, to);
            assert_eq!(Manifest::parse(text.as_bytes()), Err(error), "{to}");
        }
    }

    proptest! {
        #[test]
        fn a_parsed_manifest_survives_writing(lines in proptest::collection::vec((0usize..14, "[0-9a-f]{0,42}"), 0..8)) {
            let mut text = EXAMPLE.to_owned();
            for (key, value) in lines {
                let key = char::from(b"CBRDSGALNXHTMY"[key]);
                writeln!(text, "{key}{value}").unwrap();
            }
            if let Ok(manifest) = Manifest::parse(text.as_bytes()) {
                prop_assert_eq!(Manifest::parse(manifest.to_text().as_bytes()), Ok(manifest));
            }
        }
    }
}
