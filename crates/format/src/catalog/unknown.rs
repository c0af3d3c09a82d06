//! Finds what a catalog holds beyond schema 2.5, revision 7: what a newer publisher, or another one, added.
//!
//! Properties and counters are pairs, which a rewritten catalog can carry. What else is found would be lost with it.

use std::collections::BTreeSet;

use crate::hash::ContentHash;
use crate::sqlite::{Database, SqliteError, Value};

use super::Schema;
use super::row::COLUMNS;
use super::statistics::is_counter;

/// Newest revision of schema 2.5 that is written, too.
pub(crate) const REVISION: u32 = 7;
/// Oldest version whose tables and columns are all known; older catalogs are upgraded.
const COMPARED_FROM: f64 = 2.35;

/// Tables of the schema, with their columns.
const TABLES: [(&str, &[&str]); 6] = [
    ("catalog", &COLUMNS),
    ("chunks", &["md5path_1", "md5path_2", "offset", "size", "hash"]),
    ("nested_catalogs", MOUNTPOINTS),
    ("bind_mountpoints", MOUNTPOINTS),
    ("statistics", &["counter", "value"]),
    ("properties", &["key", "value"]),
];
const MOUNTPOINTS: &[&str] = &["path", "sha1", "size"];
/// Properties with a known meaning.
const PROPERTIES: [&str; 10] = [
    "schema",
    "schema_revision",
    "revision",
    "last_modified",
    "previous_revision",
    "root_prefix",
    "TTL",
    "volatile",
    "voms_authz",
    "branch",
];
/// Column of schema 1 that revisions of schema 2 replaced.
const REPLACED_COLUMN: &str = "inode";
/// Prefix of SQLite's own tables.
const INTERNAL: &str = "sqlite_";

/// A value of a property or counter that is carried as it is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum CarriedValue {
    /// No value.
    Null,
    /// An integer.
    Integer(i64),
    /// A text.
    Text(Vec<u8>),
    /// Bytes.
    Blob(Vec<u8>),
}

/// A property or a counter: its name and its value.
pub type CarriedRow = (Vec<u8>, CarriedValue);

/// Parts of a catalog that this version doesn't know.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct UnknownParts {
    /// Descriptions of tables, columns and other parts that a rewritten catalog would lack.
    pub parts: Vec<String>,
    /// All properties; a rewritten catalog has those of its own in place of theirs.
    pub properties: Vec<CarriedRow>,
    /// Counters with unknown names.
    pub counters: Vec<CarriedRow>,
}

impl UnknownParts {
    /// Returns descriptions of the properties and counters that only this catalog has, and that go if it goes.
    pub fn pairs_of_its_own(&self) -> impl Iterator<Item = String> {
        let is_unknown = |(key, _): &&CarriedRow| !PROPERTIES.iter().any(|known| known.as_bytes() == key);
        let shown = |name: &[u8]| String::from_utf8_lossy(name).into_owned();
        let properties = self.properties.iter().filter(is_unknown);
        let properties = properties.map(move |(key, _)| format!("the property `{}`", shown(key)));
        properties.chain(self.counters.iter().map(move |(name, _)| format!("the counter `{}`", shown(name))))
    }

    /// Finds the unknown parts of a catalog.
    pub(super) fn of<B: AsRef<[u8]>>(database: &Database<B>, schema: Schema) -> Result<Self, SqliteError> {
        let mut found = Self::default();
        if schema.version > COMPARED_FROM {
            found.schema(database, schema)?;
        }
        found.nested_hashes(database)?;
        found.properties = found.pairs(database, "properties", ["key", "value"])?;
        found.counters = found.pairs(database, "statistics", ["counter", "value"])?;
        found.counters.retain(|(name, _)| !std::str::from_utf8(name).is_ok_and(is_counter));
        Ok(found)
    }

    fn schema<B: AsRef<[u8]>>(&mut self, database: &Database<B>, schema: Schema) -> Result<(), SqliteError> {
        if schema.revision > REVISION {
            self.parts.push(format!("revision {} of its schema", schema.revision));
        }
        self.parts.extend(database.others().map(|(kind, name)| format!("the {kind} `{name}`")));
        for name in database.table_names().filter(|name| !name.starts_with(INTERNAL)) {
            let Some((_, known)) = TABLES.iter().find(|(known, _)| known.eq_ignore_ascii_case(name)) else {
                self.parts.push(format!("the table `{name}`"));
                continue;
            };
            let is_known = |column: &&str| {
                known.iter().any(|known| known.eq_ignore_ascii_case(column)) || *column == REPLACED_COLUMN
            };
            let Some(table) = database.find_table(name)? else { continue };
            let unknown = table.columns().filter(|column| !is_known(column));
            self.parts.extend(unknown.map(|column| format!("the column `{column}` of table `{name}`")));
        }
        Ok(())
    }

    /// Finds hashes of nested catalogs that are no hashes of a known kind, such as those of a new algorithm.
    fn nested_hashes<B: AsRef<[u8]>>(&mut self, database: &Database<B>) -> Result<(), SqliteError> {
        for name in ["nested_catalogs", "bind_mountpoints"] {
            let Some(table) = database.find_table(name)? else { continue };
            let (Some(path), Some(hash)) = (table.column("path"), table.column("sha1")) else { continue };
            for row in table.rows() {
                let row = row?;
                let is_readable = match row.get(hash).bytes() {
                    None | Some(b"") => true,
                    Some(text) => ContentHash::from_text_bytes(text).is_some(),
                };
                if !is_readable {
                    let path = row.get(path).text().unwrap_or_default();
                    self.parts.push(format!("the hash of the nested catalog {path}"));
                }
            }
        }
        Ok(())
    }

    /// Reads a table of pairs. What is no pair with a name of its own is an unknown part.
    fn pairs<B: AsRef<[u8]>>(
        &mut self,
        database: &Database<B>,
        name: &str,
        columns: [&str; 2],
    ) -> Result<Vec<CarriedRow>, SqliteError> {
        let Some(table) = database.find_table(name)? else { return Ok(Vec::new()) };
        let [Some(key), Some(value)] = columns.map(|column| table.column(column)) else {
            return Ok(Vec::new());
        };
        let (mut pairs, mut names) = (Vec::new(), BTreeSet::new());
        for row in table.rows() {
            let row = row?;
            let name_of_row = row.get(key).bytes().map(<[u8]>::to_vec);
            match (name_of_row, carried(row.get(value))) {
                (Some(key), Some(value)) if names.insert(key.clone()) => pairs.push((key, value)),
                _ => self.parts.push(format!("row {} of table `{name}`", row.rowid())),
            }
        }
        Ok(pairs)
    }
}

fn carried(value: Value<'_>) -> Option<CarriedValue> {
    Some(match value {
        Value::Null => CarriedValue::Null,
        Value::Integer(number) => CarriedValue::Integer(number),
        Value::Text(text) => CarriedValue::Text(text.to_vec()),
        Value::Blob(bytes) => CarriedValue::Blob(bytes.to_vec()),
        Value::Real(_) => return None,
    })
}
