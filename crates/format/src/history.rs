//! History database: the named revisions (tags) of a repository, and its branches.

use crate::hash::ContentHash;
use crate::name::{NameError, RepositoryName};
use crate::object::{ObjectKind, ObjectName};
use crate::sqlite::{Database, SqliteError, Table, TableRow, Value};
use crate::stored_properties::StoredProperties;
use crate::time::UnixTime;

/// Default branch of all tags.
pub const DEFAULT_BRANCH: &str = "";

/// The tags and branches of a repository.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct History {
    name: RepositoryName,
    schema_revision: u32,
    previous: Option<ObjectName>,
    tags: Vec<Tag>,
    branches: Vec<Branch>,
}

/// A named revision.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Tag {
    /// Name of the tag.
    pub name: String,
    /// Hash of the root catalog.
    pub root_catalog: ContentHash,
    /// Uncompressed size of the root catalog in bytes, if it is recorded.
    pub size: Option<u64>,
    /// Number of the revision.
    pub revision: u64,
    /// Time at which the revision was published.
    pub timestamp: UnixTime,
    /// Description by the publisher.
    pub description: String,
    /// Branch of the tag.
    pub branch: String,
}

/// A line of revisions.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Branch {
    /// Name of the branch, empty for the default branch.
    pub name: String,
    /// Branch from which it started; none for the default branch.
    pub parent: Option<String>,
    /// Revision of its first tag.
    pub initial_revision: u64,
}

/// Reasons why a history can't be read.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum HistoryError {
    /// The database can't be read.
    #[error(transparent)]
    Database(#[from] SqliteError),
    /// The schema version is not supported.
    #[error("the history has a schema other than 1.0, which is not supported")]
    Schema,
    /// The database does not name its repository.
    #[error("the history does not name its repository")]
    NoName,
    /// The repository name is invalid.
    #[error("the history names an invalid repository: {0}")]
    Name(#[from] NameError),
    /// A tag has invalid values.
    #[error("tag `{name}` of the history is damaged: {what}")]
    Tag {
        /// Name of the tag.
        name: String,
        /// Description of the fault.
        what: &'static str,
    },
}

impl History {
    /// Reads the whole history.
    pub fn parse(bytes: &[u8]) -> Result<Self, HistoryError> {
        let database = Database::open(bytes)?;
        let stored = StoredProperties::read(&database)?;
        if !stored.version().is_some_and(|version| (version - 1.0).abs() < 0.0005) {
            return Err(HistoryError::Schema);
        }
        Ok(Self {
            name: RepositoryName::parse(stored.text("fqrn").ok_or(HistoryError::NoName)?)?,
            schema_revision: stored.parsed("schema_revision").unwrap_or(0),
            previous: stored.hash("previous_revision").map(|hash| ObjectName::new(hash, ObjectKind::History)),
            tags: read_tags(&database.table("tags")?)?,
            branches: database
                .find_table("branches")?
                .map_or(Ok(Vec::new()), |table| read_branches(&table))?,
        })
    }

    /// Returns the name of the repository.
    pub const fn name(&self) -> &RepositoryName {
        &self.name
    }

    /// Returns the schema revision; branches exist since revision 3.
    pub const fn schema_revision(&self) -> u32 {
        self.schema_revision
    }

    /// Returns the history that this one replaced.
    pub const fn previous(&self) -> Option<ObjectName> {
        self.previous
    }

    /// Returns all tags, newest first.
    pub fn tags(&self) -> &[Tag] {
        &self.tags
    }

    /// The branches; empty in histories that are older than branches.
    pub fn branches(&self) -> &[Branch] {
        &self.branches
    }

    /// Returns the tag with this name.
    pub fn find(&self, name: &str) -> Option<&Tag> {
        self.tags.iter().find(|tag| tag.name == name)
    }

    /// Returns the newest tag of the default branch that was published at or before a time.
    pub fn at(&self, time: UnixTime) -> Option<&Tag> {
        let published = self.tags.iter().filter(|tag| tag.timestamp <= time && tag.branch == DEFAULT_BRANCH);
        published.max_by_key(|tag| tag.revision)
    }

    /// Returns the newest tagged revision of a branch.
    pub fn branch_head(&self, branch: &str) -> Option<&Tag> {
        self.tags.iter().filter(|tag| tag.branch == branch).max_by_key(|tag| tag.revision)
    }
}

fn read_tags(table: &Table<'_>) -> Result<Vec<Tag>, HistoryError> {
    let column = |column| table.column(column).ok_or(SqliteError::NoColumn { table: "tags", column });
    let (name, hash) = (column("name")?, column("hash")?);
    let (revision, timestamp) = (column("revision")?, column("timestamp")?);
    let description = column("description")?;
    // Exist since schema revisions 1 and 3.
    let (size, branch) = (table.column("size"), table.column("branch"));
    let mut tags = Vec::new();
    for row in table.rows() {
        let row = row?;
        let tag_name = text(&row, Some(name));
        let fault = |what| HistoryError::Tag { name: tag_name.clone(), what };
        let root_catalog = row.get(hash).bytes().and_then(ContentHash::from_text_bytes);
        tags.push(Tag {
            root_catalog: root_catalog.ok_or_else(|| fault("it has no hash"))?,
            size: size.and_then(|column| unsigned(&row, column)).filter(|size| *size > 0),
            revision: unsigned(&row, revision).ok_or_else(|| fault("it has no revision"))?,
            timestamp: UnixTime(row.get(timestamp).integer().ok_or_else(|| fault("it has no time"))?),
            description: text(&row, Some(description)),
            branch: text(&row, branch),
            name: tag_name,
        });
    }
    tags.sort_by_key(|tag| std::cmp::Reverse((tag.timestamp, tag.revision)));
    Ok(tags)
}

fn read_branches(table: &Table<'_>) -> Result<Vec<Branch>, SqliteError> {
    let column = |column| table.column(column).ok_or(SqliteError::NoColumn { table: "branches", column });
    let (name, parent, initial) = (column("branch")?, column("parent")?, column("initial_revision")?);
    let branches = table.rows().map(|row| {
        let row = row?;
        Ok(Branch {
            name: text(&row, Some(name)),
            parent: (row.get(parent) != Value::Null).then(|| text(&row, Some(parent))),
            initial_revision: unsigned(&row, initial).unwrap_or(0),
        })
    });
    branches.collect()
}

fn text(row: &TableRow<'_>, column: Option<usize>) -> String {
    column.and_then(|column| row.get(column).text()).unwrap_or_default()
}

fn unsigned(row: &TableRow<'_>, column: usize) -> Option<u64> {
    u64::try_from(row.get(column).integer()?).ok()
}
