//! What a catalog says about itself.

use std::collections::BTreeMap;

use crate::hash::ContentHash;
use crate::sqlite::{Database, SqliteError, Value};
use crate::time::UnixTime;

use super::CatalogError;

/// More properties than any catalog has.
const PROPERTIES_MAX: usize = 1000;

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
        let stored = read_pairs(database)?;
        let text = |key: &str| stored.get(key).filter(|value| !value.is_empty());
        let number = |key: &str| text(key).and_then(|value| value.trim().parse::<u64>().ok());
        let schema = Schema {
            version: match text("schema") {
                Some(version) => version
                    .trim()
                    .parse()
                    .map_err(|_| CatalogError::Schema(version.chars().take(32).collect()))?,
                // The first catalogs did not say.
                None => 1.0,
            },
            revision: number("schema_revision").and_then(|value| u32::try_from(value).ok()).unwrap_or(0),
        };
        if !schema.is_readable() {
            return Err(CatalogError::Schema(schema.to_string()));
        }
        Ok(Self {
            schema,
            revision: number("revision").unwrap_or(0),
            last_modified: text("last_modified").and_then(|value| value.trim().parse().ok()).map(UnixTime),
            previous_revision: text("previous_revision")
                .and_then(|value| ContentHash::parse(value).ok())
                .filter(|hash| !hash.is_null()),
            root_prefix: text("root_prefix").map(|value| value.clone().into_bytes()).unwrap_or_default(),
            ttl: number("TTL").map(|value| u32::try_from(value).unwrap_or(u32::MAX)),
            volatile: number("volatile").is_some_and(|value| value != 0),
            authorization: text("voms_authz").cloned(),
            branch: text("branch").cloned(),
        })
    }
}

/// Reads a table of keys and values.
pub(crate) fn read_pairs<B: AsRef<[u8]>>(
    database: &Database<B>,
) -> Result<BTreeMap<String, String>, SqliteError> {
    let table = database.table("properties")?;
    let column = |column| table.column(column).ok_or(SqliteError::NoColumn { table: "properties", column });
    let (key, value) = (column("key")?, column("value")?);
    let mut pairs = BTreeMap::new();
    for row in table.rows().take(PROPERTIES_MAX) {
        let row = row?;
        if let (Some(key), value) = (row.get(key).text(), row.get(value)) {
            pairs.insert(
                key,
                if value == Value::Null { String::new() } else { value.text().unwrap_or_default() },
            );
        }
    }
    Ok(pairs)
}
