//! Reflog, `.cvmfsreflog`: the root objects on one server, from which garbage collection starts.

use crate::hash::ContentHash;
use crate::name::{NameError, RepositoryName};
use crate::object::{ObjectKind, ObjectName};
use crate::sqlite::{Database, SqliteError};
use crate::stored_properties::StoredProperties;
use crate::time::UnixTime;

/// Path of the reflog below the root of the repository; it is not compressed.
pub const PATH: &str = ".cvmfsreflog";

/// Root objects on one server.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Reflog {
    name: RepositoryName,
    references: Vec<Reference>,
}

/// A root object.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Reference {
    /// A root catalog, certificate, history or metainfo.
    pub object: ObjectName,
    /// Time at which the object was added on this server.
    pub timestamp: UnixTime,
}

/// Reasons why a reflog can't be read.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ReflogError {
    /// The database can't be read.
    #[error(transparent)]
    Database(#[from] SqliteError),
    /// The schema version is not supported.
    #[error("the reflog has a schema other than 1.0, which is not supported")]
    Schema,
    /// The database does not name its repository.
    #[error("the reflog does not name its repository")]
    NoName,
    /// The repository name is invalid.
    #[error("the reflog names an invalid repository: {0}")]
    Name(#[from] NameError),
    /// A reference has invalid values.
    #[error("row {rowid} of the reflog is damaged: {what}")]
    Reference {
        /// Number of the row.
        rowid: i64,
        /// Description of the fault.
        what: &'static str,
    },
}

impl Reflog {
    /// Reads the whole reflog.
    pub fn parse(bytes: &[u8]) -> Result<Self, ReflogError> {
        let database = Database::open(bytes)?;
        let stored = StoredProperties::read(&database)?;
        if !stored.version().is_some_and(|version| (version - 1.0).abs() < 0.0005) {
            return Err(ReflogError::Schema);
        }
        let name = RepositoryName::parse(stored.text("fqrn").ok_or(ReflogError::NoName)?)?;
        let table = database.table("refs")?;
        let column = |column| table.column(column).ok_or(SqliteError::NoColumn { table: "refs", column });
        let (hash, kind, timestamp) = (column("hash")?, column("type")?, column("timestamp")?);
        let mut references = Vec::new();
        for row in table.rows() {
            let row = row?;
            let fault = |what| ReflogError::Reference { rowid: row.rowid(), what };
            let kind = match row.get(kind).integer() {
                Some(0) => ObjectKind::Catalog,
                Some(1) => ObjectKind::Certificate,
                Some(2) => ObjectKind::History,
                Some(3) => ObjectKind::Metainfo,
                _ => return Err(fault("its type is unknown")),
            };
            let hash = row.get(hash).bytes().and_then(ContentHash::from_text_bytes);
            references.push(Reference {
                object: ObjectName::new(hash.ok_or_else(|| fault("it has no hash"))?, kind),
                timestamp: UnixTime(row.get(timestamp).integer().ok_or_else(|| fault("it has no time"))?),
            });
        }
        references.sort_by_key(|reference| std::cmp::Reverse(reference.timestamp));
        Ok(Self { name, references })
    }

    /// Returns the name of the repository.
    pub const fn name(&self) -> &RepositoryName {
        &self.name
    }

    /// Returns the root objects, newest first.
    pub fn references(&self) -> &[Reference] {
        &self.references
    }

    /// Returns the root objects that were added strictly before a time, newest first.
    pub fn before(&self, time: UnixTime) -> impl Iterator<Item = &Reference> {
        self.references.iter().filter(move |reference| reference.timestamp < time)
    }
}
