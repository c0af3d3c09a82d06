//! What a catalog says about itself.

use crate::hash::ContentHash;
use crate::sqlite::Database;
use crate::stored_properties::StoredProperties;
use crate::time::UnixTime;

use super::CatalogError;

/// The version of a catalog's tables.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Schema {
    /// The version, 2.5 since 2013.
    pub version: f64,
    /// The backward-compatible revision of the version.
    pub revision: u32,
}

impl Schema {
    /// Versions are stored as decimal text and compared as the reference implementation does.
    const TOLERANCE: f64 = 0.0005;

    fn is(&self, version: f64) -> bool {
        (self.version - version).abs() < Self::TOLERANCE
    }

    /// Tells whether catalogs of this version are understood.
    fn is_readable(&self) -> bool {
        (self.version > 0.0 && self.version < 2.0 - Self::TOLERANCE) || self.is(2.4) || self.is(2.5)
    }
}

impl std::fmt::Display for Schema {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{} revision {}", self.version, self.revision)
    }
}

/// The properties of a catalog.
#[derive(Clone, Debug, PartialEq)]
pub struct Properties {
    /// The version of its tables.
    pub schema: Schema,
    /// How often this catalog was published.
    pub revision: u64,
    /// When it was last published.
    pub last_modified: Option<UnixTime>,
    /// The hash of this catalog's previous version.
    pub previous_revision: Option<ContentHash>,
    /// The directory a nested catalog was published for; empty for root catalogs.
    pub root_prefix: Vec<u8>,
    /// How long clients may trust a root catalog before they ask for a newer one, in seconds.
    pub ttl: Option<u32>,
    /// Whether content changes so often that it should not push other content out of caches.
    pub volatile: bool,
    /// Who may read a secured repository.
    pub authorization: Option<String>,
    /// The branch a root catalog belongs to.
    pub branch: Option<String>,
}

impl Properties {
    pub(super) fn read<B: AsRef<[u8]>>(database: &Database<B>) -> Result<Self, CatalogError> {
        let stored = StoredProperties::read(database)?;
        let number = |key: &str| stored.parsed::<u64>(key);
        let unreadable = || stored.text("schema").unwrap_or("?").chars().take(32).collect();
        let schema = Schema {
            version: stored.version().ok_or_else(|| CatalogError::Schema(unreadable()))?,
            revision: stored.parsed("schema_revision").unwrap_or(0),
        };
        if !schema.is_readable() {
            return Err(CatalogError::Schema(unreadable()));
        }
        Ok(Self {
            schema,
            revision: number("revision").unwrap_or(0),
            last_modified: stored.parsed("last_modified").map(UnixTime),
            previous_revision: stored.hash("previous_revision"),
            root_prefix: stored.bytes("root_prefix").unwrap_or_default().to_vec(),
            ttl: number("TTL").map(|value| u32::try_from(value).unwrap_or(u32::MAX)),
            volatile: number("volatile").is_some_and(|value| value != 0),
            authorization: stored.text("voms_authz").map(str::to_owned),
            branch: stored.text("branch").map(str::to_owned),
        })
    }
}
