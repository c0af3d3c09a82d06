//! Table `properties`, which catalogs, histories and reflogs share: keys and values as text.

use std::collections::BTreeMap;

use crate::hash::ContentHash;
use crate::sqlite::{Database, SqliteError, Value};

/// Maximum number of properties, more than any database of a repository has.
const PROPERTIES_MAX: usize = 1000;

/// Properties of a database.
pub(crate) struct StoredProperties(BTreeMap<Vec<u8>, Vec<u8>>);

impl StoredProperties {
    pub(crate) fn read<B: AsRef<[u8]>>(database: &Database<B>) -> Result<Self, SqliteError> {
        let table = database.table("properties")?;
        let column =
            |column| table.column(column).ok_or(SqliteError::NoColumn { table: "properties", column });
        let (key, value) = (column("key")?, column("value")?);
        let mut pairs = BTreeMap::new();
        for row in table.rows().take(PROPERTIES_MAX) {
            let row = row?;
            if let (Some(key), Some(value)) = (as_bytes(row.get(key)), as_bytes(row.get(value))) {
                pairs.insert(key, value);
            }
        }
        Ok(Self(pairs))
    }

    /// Returns a value; an empty value counts as missing.
    pub(crate) fn bytes(&self, key: &str) -> Option<&[u8]> {
        self.0.get(key.as_bytes()).map(Vec::as_slice).filter(|value| !value.is_empty())
    }

    pub(crate) fn text(&self, key: &str) -> Option<&str> {
        std::str::from_utf8(self.bytes(key)?).ok()
    }

    /// Returns a value parsed from its text.
    pub(crate) fn parsed<T: std::str::FromStr>(&self, key: &str) -> Option<T> {
        self.text(key)?.trim().parse().ok()
    }

    /// Returns a hash; the all-zero hash counts as missing.
    pub(crate) fn hash(&self, key: &str) -> Option<ContentHash> {
        ContentHash::from_text_bytes(self.bytes(key)?).filter(|hash| !hash.is_null())
    }

    /// Returns the schema version; none if the text is not a number.
    pub(crate) fn version(&self) -> Option<f64> {
        // The first databases had no version.
        if self.bytes("schema").is_none() { Some(1.0) } else { self.parsed("schema") }
    }
}

/// Returns a value as bytes. Text columns return numbers as text, but some writers declare other columns.
fn as_bytes(value: Value<'_>) -> Option<Vec<u8>> {
    match value {
        Value::Text(bytes) | Value::Blob(bytes) => Some(bytes.to_vec()),
        other => other.text().map(String::into_bytes),
    }
}
