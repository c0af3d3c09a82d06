//! The reflog, `.cvmfsreflog`: the root objects that one server holds, which garbage collection starts from.

use crate::hash::ContentHash;
use crate::name::{NameError, RepositoryName};
use crate::object::{ObjectKind, ObjectName};
use crate::sqlite::{Database, SqliteError};
use crate::stored_properties::StoredProperties;
use crate::time::UnixTime;

/// Where a server keeps it, below the root of the repository; it is not compressed.
pub const PATH: &str = ".cvmfsreflog";

/// The root objects that one server holds.
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
    /// When it was added on this server.
    pub timestamp: UnixTime,
}

/// Why a reflog can't be read.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ReflogError {
    /// The database can't be read.
    #[error(transparent)]
    Database(#[from] SqliteError),
    /// The version of the tables is not known.
    #[error("the reflog has a schema other than 1.0, which is not supported")]
    Schema,
    /// The database does not say whose reflog it is.
    #[error("the reflog does not name its repository")]
    NoName,
    /// The name of its repository is none.
    #[error("the reflog names an impossible repository: {0}")]
    Name(#[from] NameError),
    /// A reference makes no sense.
    #[error("row {rowid} of the reflog is damaged: {what}")]
    Reference {
        /// The row.
        rowid: i64,
        /// What is wrong with it.
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

    /// The repository it belongs to.
    pub const fn name(&self) -> &RepositoryName {
        &self.name
    }

    /// The root objects, newest first.
    pub fn references(&self) -> &[Reference] {
        &self.references
    }

    /// The root objects that were added strictly before a time, newest first.
    pub fn before(&self, time: UnixTime) -> impl Iterator<Item = &Reference> {
        self.references.iter().filter(move |reference| reference.timestamp < time)
    }
}
