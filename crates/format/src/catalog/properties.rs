//! Properties of a catalog.

use crate::hash::ContentHash;
use crate::sqlite::Database;
use crate::stored_properties::StoredProperties;
use crate::time::UnixTime;

use super::CatalogError;

/// Version of a catalog's schema.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Schema {
    /// Schema version, 2.5 since 2013.
    pub version: f64,
    /// Backward-compatible revision of the schema version.
    pub revision: u32,
}

impl Schema {
    /// Versions are stored as decimal text and compared with this tolerance, as in the reference
    /// implementation.
    const TOLERANCE: f64 = 0.0005;

    fn is(&self, version: f64) -> bool {
        (self.version - version).abs() < Self::TOLERANCE
    }

    /// Returns true if catalogs of this version are supported.
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
    /// Version of the schema.
    pub schema: Schema,
    /// Revision of the catalog: how often it was published.
    pub revision: u64,
    /// Time of the last publish.
    pub last_modified: Option<UnixTime>,
    /// Hash of this catalog's previous version.
    pub previous_revision: Option<ContentHash>,
    /// Directory for which a nested catalog was published; empty for root catalogs.
    pub root_prefix: Vec<u8>,
    /// Seconds for which clients may use a root catalog before they check for a newer one.
    pub ttl: Option<u32>,
    /// True if content changes so often that it should not evict other content from caches.
    pub volatile: bool,
    /// Authorization of a secured repository.
    pub authorization: Option<String>,
    /// Branch of a root catalog.
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
