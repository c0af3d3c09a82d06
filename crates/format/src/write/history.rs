//! Writes history databases, and updates the tags that move with every publish.

mod edits;

use crate::hash::ContentHash;
use crate::history::{Branch, DEFAULT_BRANCH, History, Tag};
use crate::name::RepositoryName;

use super::catalog::PROPERTIES;
use super::sqlite::{DatabaseBuilder, Value};

pub use edits::is_automatic;

/// Tag of the newest revision of the default branch.
pub const TRUNK: &str = "trunk";
/// Tag of the revision before the newest.
pub const TRUNK_PREVIOUS: &str = "trunk-previous";

/// Builder of a history.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HistoryDraft {
    name: RepositoryName,
    previous: Option<ContentHash>,
    tags: Vec<Tag>,
    branches: Vec<Branch>,
}

/// Reasons why a tag is rejected.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum TagError {
    /// The name can't be used.
    #[error("`{0}` can't be the name of a tag: it is reserved, empty, or has spaces in it")]
    Name(String),
    /// Another revision has the same tag.
    #[error("there is a tag `{0}` already")]
    Exists(String),
    /// There is no tag of this name.
    #[error("there is no tag `{0}`")]
    Unknown(String),
    /// The tag names this revision already.
    #[error("the tag `{0}` names this revision already")]
    Unmoved(String),
    /// The publisher moves the tag by itself.
    #[error("the tag `{0}` moves with every publish, and can't be changed by hand")]
    Reserved(String),
    /// The name of a branch can't be used.
    #[error(
        "`{0}` can't be the name of a branch: it is empty, or has characters other than letters, digits and _@./-"
    )]
    BranchName(String),
    /// A branch that is to begin exists.
    #[error("there is a branch `{0}` already")]
    BranchExists(String),
    /// There is no branch of this name.
    #[error("there is no branch `{0}`")]
    UnknownBranch(String),
    /// A revision of a branch has no name but its tag.
    #[error("a revision of the branch `{0}` needs a tag")]
    BranchWithoutTag(String),
}

/// Returns true for the tags that move with every publish.
pub fn is_reserved(name: &str) -> bool {
    [TRUNK, TRUNK_PREVIOUS].contains(&name)
}

impl HistoryDraft {
    /// Creates a history without tags.
    pub fn new(name: RepositoryName) -> Self {
        let trunk = Branch { name: DEFAULT_BRANCH.to_owned(), parent: None, initial_revision: 0 };
        Self { name, previous: None, tags: Vec::new(), branches: vec![trunk] }
    }

    /// Continues a history that was published as the object `previous`.
    pub fn continuing(history: &History, previous: ContentHash) -> Self {
        let mut draft = Self::new(history.name().clone());
        draft.previous = Some(previous);
        draft.tags = history.tags().to_vec();
        if !history.branches().is_empty() {
            draft.branches = history.branches().to_vec();
        }
        draft
    }

    /// Returns the current tags.
    pub fn tags(&self) -> &[Tag] {
        &self.tags
    }

    /// Adds a tag with a name that the publisher chose.
    pub fn add(&mut self, tag: Tag) -> Result<(), TagError> {
        if is_reserved(&tag.name) || tag.name.is_empty() || tag.name.contains(char::is_whitespace) {
            return Err(TagError::Name(tag.name));
        }
        if self.tags.iter().any(|known| known.name == tag.name) {
            return Err(TagError::Exists(tag.name));
        }
        self.tags.push(tag);
        Ok(())
    }

    /// Returns an unused tag name of the form `generic-…`.
    pub fn automatic_name(&self, time: crate::time::UnixTime) -> String {
        let compact = time.to_compact();
        let part = |from: usize, to: usize| compact.get(from..to).unwrap_or_default();
        let stamp = format!(
            "{}-{}-{}T{}:{}:{}Z",
            part(0, 4),
            part(4, 6),
            part(6, 8),
            part(8, 10),
            part(10, 12),
            part(12, 14)
        );
        let numbered = (1u32..).map(|number| format!("generic_{number}-{stamp}"));
        std::iter::once(format!("generic-{stamp}"))
            .chain(numbered)
            .find(|name| self.tags.iter().all(|tag| tag.name != *name))
            .unwrap_or_default()
    }

    /// Moves the tags of the newest and the previous revision.
    ///
    /// `head` is the new revision; its name and description are replaced.
    pub fn advance(&mut self, head: &Tag) {
        self.tags.retain(|tag| tag.name != TRUNK_PREVIOUS);
        for tag in self.tags.iter_mut().filter(|tag| tag.name == TRUNK) {
            tag.name = TRUNK_PREVIOUS.to_owned();
            tag.description = "default undo target".to_owned();
        }
        self.tags.push(Tag {
            name: TRUNK.to_owned(),
            description: "current HEAD".to_owned(),
            branch: DEFAULT_BRANCH.to_owned(),
            ..head.clone()
        });
    }

    /// Returns the bytes of the database.
    pub fn finish(mut self) -> Vec<u8> {
        self.tags.sort_by(|a, b| (a.revision, a.timestamp, &a.name).cmp(&(b.revision, b.timestamp, &b.name)));
        let mut database = DatabaseBuilder::new();
        let rows: Vec<_> = self.branches.iter().map(branch_row).collect();
        database.keyed_table("branches", BRANCHES, "sqlite_autoindex_branches_1", &rows);
        let rows: Vec<_> = self.tags.iter().map(tag_row).collect();
        database.keyed_table("tags", TAGS, "sqlite_autoindex_tags_1", &rows);
        database.keyed_table("recycle_bin", RECYCLE_BIN, "sqlite_autoindex_recycle_bin_1", &[]);
        // A history without an earlier version records the all-zero hash.
        let previous = self.previous.map_or_else(|| "0".repeat(40), |hash| hash.to_string());
        let name = self.name.as_str().to_owned();
        let pairs =
            [("schema", "1.0"), ("schema_revision", "3"), ("fqrn", &name), ("previous_revision", &previous)];
        let rows: Vec<_> = pairs.iter().map(|(key, value)| vec![text(key), text(value)]).collect();
        database.keyed_table("properties", PROPERTIES, "sqlite_autoindex_properties_1", &rows);
        database.finish()
    }
}

const BRANCHES: &str = "CREATE TABLE branches (branch TEXT, parent TEXT, initial_revision INTEGER, \
    CONSTRAINT pk_branch PRIMARY KEY (branch), FOREIGN KEY (parent) REFERENCES branches (branch), \
    CHECK ((branch <> '') OR (parent IS NULL)), CHECK ((branch = '') OR (parent IS NOT NULL)))";
const TAGS: &str = "CREATE TABLE tags (name TEXT, hash TEXT, revision INTEGER, timestamp INTEGER, \
    channel INTEGER, description TEXT, size INTEGER, branch TEXT, CONSTRAINT pk_tags PRIMARY KEY (name), \
    FOREIGN KEY (branch) REFERENCES branches (branch))";
const RECYCLE_BIN: &str =
    "CREATE TABLE recycle_bin (hash TEXT, flags INTEGER, CONSTRAINT pk_hash PRIMARY KEY (hash))";

fn text(text: &str) -> Value<'_> {
    Value::text(text.as_bytes())
}

fn branch_row(branch: &Branch) -> Vec<Value<'_>> {
    vec![
        text(&branch.name),
        branch.parent.as_deref().map_or(Value::Null, text),
        Value::Integer(branch.initial_revision.cast_signed()),
    ]
}

fn tag_row(tag: &Tag) -> Vec<Value<'_>> {
    vec![
        text(&tag.name),
        Value::text(tag.root_catalog.to_string().into_bytes()),
        Value::Integer(tag.revision.cast_signed()),
        Value::Integer(tag.timestamp.0),
        Value::Integer(0),
        text(&tag.description),
        Value::Integer(tag.size.unwrap_or(0).cast_signed()),
        text(&tag.branch),
    ]
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::hash::HashAlgorithm;
    use crate::time::UnixTime;

    fn tag(name: &str, revision: u64) -> Tag {
        Tag {
            name: name.to_owned(),
            root_catalog: ContentHash::of(HashAlgorithm::Rmd160, &revision.to_le_bytes()),
            size: Some(4096 * revision),
            revision,
            timestamp: UnixTime(1_700_000_000 + revision.cast_signed()),
            description: format!("revision {revision}, \u{fc}mlaut"),
            branch: String::new(),
        }
    }

    fn names(draft: &HistoryDraft) -> Vec<(String, u64)> {
        let mut names: Vec<_> = draft.tags.iter().map(|tag| (tag.name.clone(), tag.revision)).collect();
        names.sort();
        names
    }

    #[test]
    fn tags_move_and_are_read_back() {
        let mut draft = HistoryDraft::new(RepositoryName::parse("a.test").unwrap());
        let time = UnixTime(1_729_238_467);
        for revision in 1..=3 {
            let mut named = tag("", revision);
            named.name = draft.automatic_name(time);
            draft.add(named.clone()).unwrap();
            draft.advance(&named);
        }
        let expected = [
            ("generic-2024-10-18T08:01:07Z", 1),
            ("generic_1-2024-10-18T08:01:07Z", 2),
            ("generic_2-2024-10-18T08:01:07Z", 3),
            ("trunk", 3),
            ("trunk-previous", 2),
        ];
        assert_eq!(names(&draft), expected.map(|(name, revision)| (name.to_owned(), revision)));
        let bytes = draft.clone().finish();
        let history = History::parse(&bytes).unwrap();
        assert_eq!((history.schema_revision(), history.name().as_str()), (3, "a.test"));
        assert_eq!(history.previous(), None);
        assert_eq!(history.find("trunk").unwrap().description, "current HEAD");
        assert_eq!(history.find("trunk-previous").unwrap().root_catalog, tag("", 2).root_catalog);
        let previous = ContentHash::of(HashAlgorithm::Rmd160, &bytes);
        let next = HistoryDraft::continuing(&history, previous);
        assert_eq!(names(&next), names(&draft));
        assert_eq!(History::parse(&next.finish()).unwrap().previous().unwrap().hash, previous);
    }

    #[test]
    fn invalid_tags_are_rejected() {
        let mut draft = HistoryDraft::new(RepositoryName::parse("a.test").unwrap());
        draft.add(tag("v1", 1)).unwrap();
        assert_eq!(draft.add(tag("v1", 2)), Err(TagError::Exists("v1".to_owned())));
        for name in ["", "trunk", "trunk-previous", "a b", "a\tb"] {
            assert_eq!(draft.add(tag(name, 2)), Err(TagError::Name(name.to_owned())));
        }
    }

    #[test]
    fn sqlite_reads_the_same_history() {
        let mut draft = HistoryDraft::new(RepositoryName::parse("a.test").unwrap());
        draft.branches.push(Branch {
            name: "dev".to_owned(),
            parent: Some(String::new()),
            initial_revision: 2,
        });
        draft.add(Tag { branch: "dev".to_owned(), ..tag("d", 2) }).unwrap();
        draft.advance(&tag("", 1));
        let file = tempfile::NamedTempFile::new().unwrap();
        std::fs::write(file.path(), draft.finish()).unwrap();
        let database = rusqlite::Connection::open(file.path()).unwrap();
        let text = |sql: &str| database.query_row(sql, [], |row| row.get::<_, String>(0)).unwrap();
        assert_eq!(text("PRAGMA integrity_check"), "ok");
        assert_eq!(text("SELECT group_concat(name || channel || branch) FROM tags"), "trunk0,d0dev");
        let violations =
            database.prepare("PRAGMA foreign_key_check").unwrap().query_map([], |_| Ok(())).unwrap().count();
        assert_eq!(violations, 0);
    }
}
