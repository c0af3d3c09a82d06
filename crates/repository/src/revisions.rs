//! Revisions of a repository by name: tag, number or hash of the root catalog.

use std::sync::Arc;

use esker_format::hash::ContentHash;
use esker_format::history::{DEFAULT_BRANCH, History, Tag};
use esker_format::master_keys::MasterKeys;
use esker_format::name::RepositoryName;
use esker_format::object::ObjectKind;
use esker_format::reflog::{self, Reflog};
use esker_format::time::UnixTime;
use esker_format::trust::VerifiedHead;
use esker_format::write::history::{TRUNK, TRUNK_PREVIOUS};
use esker_store::Sink;
use serde::{Serialize, Serializer};

use crate::error::RepositoryError;
use crate::object_source::{ObjectSource, StoredObjects, WantedObject};
use crate::published::{OldCatalog, Published};
use crate::recent_objects::RecentObjects;
use crate::repository::{DATABASE_MAX, Repository};
use crate::signed::SignedFiles;
use crate::storage::OpenStorage;

/// Minimum length of a hash as text.
const HASH_LEN: usize = 40;

/// A revision of a repository.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Revision {
    /// Its number.
    #[serde(rename = "revision")]
    pub number: u64,
    /// Hash of its root catalog.
    #[serde(serialize_with = "as_hash")]
    pub root: ContentHash,
    /// Plain size of its root catalog.
    pub size: u64,
    /// Time of publication, in seconds since the epoch.
    #[serde(serialize_with = "as_seconds")]
    pub published: UnixTime,
    /// Hash of the root catalog of the revision before.
    #[serde(serialize_with = "as_optional_hash")]
    pub previous: Option<ContentHash>,
}

fn as_hash<S: Serializer>(hash: &ContentHash, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.collect_str(hash)
}

fn as_optional_hash<S: Serializer>(hash: &Option<ContentHash>, serializer: S) -> Result<S::Ok, S::Error> {
    match hash {
        Some(hash) => serializer.collect_str(hash),
        None => serializer.serialize_none(),
    }
}

fn as_seconds<S: Serializer>(time: &UnixTime, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.serialize_i64(time.0)
}

/// Reads revisions of a repository, local or remote; takes no lock.
pub struct Revisions {
    head: VerifiedHead,
    objects: Arc<dyn ObjectSource>,
    history: Option<History>,
    /// Root catalogs that the storage lists; empty for remote repositories.
    listed: Vec<ContentHash>,
}

impl Revisions {
    /// Opens the repository at a place with its public keys. The whitelist may have expired.
    pub fn open(
        place: impl OpenStorage,
        name: &RepositoryName,
        keys: &MasterKeys,
        now: UnixTime,
    ) -> Result<Self, RepositoryError> {
        let storage = place.storage()?;
        storage.require_head()?;
        let sink = storage.sink().clone();
        let signed = SignedFiles::read(&*sink, name)?;
        let head = signed.verify(name, keys, signed.valid_at(name, now)?)?;
        Self::stored(sink, head)
    }

    /// Reads a repository that is open for publishing, at a given head.
    pub fn of_head(repository: &Repository, head: VerifiedHead) -> Result<Self, RepositoryError> {
        Self::stored(repository.storage.sink().clone(), head)
    }

    fn stored(sink: Arc<dyn Sink>, head: VerifiedHead) -> Result<Self, RepositoryError> {
        // A damaged reflog is a fault of the storage, but no reason to refuse reading.
        let reflog = sink.read(reflog::PATH, DATABASE_MAX)?.and_then(|bytes| Reflog::parse(&bytes).ok());
        let references = reflog.iter().flat_map(|reflog| reflog.references());
        let catalogs = references.filter(|reference| reference.object.kind == ObjectKind::Catalog);
        let mut listed: Vec<_> = catalogs.map(|one| (one.timestamp, one.object.hash)).collect();
        listed.sort_by_key(|(timestamp, _)| std::cmp::Reverse(*timestamp));
        let listed = listed.into_iter().map(|(_, hash)| hash).collect();
        Ok(Self { listed, ..Self::new(head, Arc::new(StoredObjects(sink)))? })
    }

    /// Reads a repository whose head was verified, from another source.
    pub fn new(head: VerifiedHead, objects: Arc<dyn ObjectSource>) -> Result<Self, RepositoryError> {
        let history = head.history().map(|name| {
            let what = "the history";
            let wanted = WantedObject { name, compression: None, size: None, limit: DATABASE_MAX, what };
            History::parse(&objects.object(&wanted)?).map_err(RepositoryError::History)
        });
        let history = history.transpose()?;
        let objects: Arc<dyn ObjectSource> = Arc::new(RecentObjects::new(objects));
        Ok(Self { history, head, objects, listed: Vec::new() })
    }

    /// Returns the published head.
    pub fn published(&self) -> &VerifiedHead {
        &self.head
    }

    /// Returns the place of the objects.
    pub fn objects(&self) -> &Arc<dyn ObjectSource> {
        &self.objects
    }

    /// Returns the history; none if the repository has no tags.
    pub fn history(&self) -> Option<&History> {
        self.history.as_ref()
    }

    /// Returns all tags, newest first.
    pub fn tags(&self) -> &[Tag] {
        self.history.as_ref().map_or(&[], History::tags)
    }

    /// Returns the published revision.
    pub fn head(&self) -> Result<Revision, RepositoryError> {
        self.at(self.head.root_catalog().hash)
    }

    /// Returns the revision with this root catalog.
    pub fn at(&self, root: ContentHash) -> Result<Revision, RepositoryError> {
        let catalog = OldCatalog::read(&*self.objects, b"", root, None)?;
        let properties = catalog.catalog.properties();
        if !properties.root_prefix.is_empty() {
            let reason = "it is the hash of a nested catalog, and not of a root catalog".to_owned();
            return Err(RepositoryError::NoRevision { name: root.to_string(), reason });
        }
        let is_head = root == self.head.root_catalog().hash;
        Ok(Revision {
            number: if is_head { self.head.revision() } else { properties.revision },
            root,
            size: catalog.catalog.size(),
            published: properties.last_modified.unwrap_or(self.head.timestamp()),
            previous: properties.previous_revision.filter(|hash| !hash.is_null()),
        })
    }

    /// Finds a revision by tag, number, or hash of its root catalog. `tag:NAME` is always a tag, `rev:NUMBER` always a revision of
    /// the trunk; a name that means several revisions is refused.
    pub fn find(&self, name: &str) -> Result<Revision, RepositoryError> {
        let mut found: Vec<(Revision, String)> = Vec::new();
        for (meaning, unique, revision) in self.meanings(name) {
            let revision = match revision {
                // The text is a tag, too, and there is no revision of this number.
                Err(RepositoryError::NoRevision { .. }) if !found.is_empty() => continue,
                revision => revision?,
            };
            if found.iter().all(|(known, _)| known.root != revision.root) {
                found.push((revision, format!("{meaning} (`{unique}`)")));
            }
        }
        match found.len() {
            0 => {}
            1 => return Ok(found.swap_remove(0).0),
            _ => {
                let meanings = found.into_iter().map(|(_, meaning)| meaning).collect();
                return Err(RepositoryError::AmbiguousRevision { name: name.to_owned(), meanings });
            }
        }
        let reason = match name {
            TRUNK_PREVIOUS => {
                "there is no default undo target: the newest revision is the first one, or a rollback"
            }
            _ => "no tag has this name, and it is neither the number nor the hash of a revision",
        };
        Err(RepositoryError::NoRevision { name: name.to_owned(), reason: reason.to_owned() })
    }

    /// Returns all that a name may mean: a description, a name that means only this, and the revision.
    fn meanings(&self, name: &str) -> Vec<(String, String, Result<Revision, RepositoryError>)> {
        let of_tag = |tag: &Tag| self.at(tag.root_catalog).map_err(|error| self.collected(name, error));
        let tagged = |tag: &Tag| (format!("the tag {}", tag.name), format!("tag:{}", tag.name), of_tag(tag));
        let numbered =
            |number: u64| (format!("revision {number}"), format!("rev:{number}"), self.numbered(number));
        let tags = || self.tags().iter();
        let mut all: Vec<_> = tags().filter(|tag| tag.name == name).map(tagged).collect();
        if all.is_empty() && name == TRUNK {
            all.push(("the newest revision".to_owned(), TRUNK.to_owned(), self.head()));
        }
        if let Some(named) = name.strip_prefix("tag:") {
            all.extend(tags().filter(|tag| tag.name == named).map(tagged));
        }
        // A hash may consist of decimal digits only, but is longer than any number.
        let number = |text: &str| text.parse::<u64>().ok().filter(|_| text.len() < HASH_LEN);
        all.extend(name.strip_prefix("rev:").and_then(number).map(numbered));
        if let Some(number) = number(name) {
            let on_trunk = numbered(number);
            // Revisions of branches are named by their tags; their numbers only count beside one of the trunk.
            let branched = tags().filter(|tag| tag.branch != DEFAULT_BRANCH && tag.revision == number);
            let branched = branched.filter(|_| on_trunk.2.is_ok()).map(|tag| {
                let meaning = format!("revision {number} of the branch {}", tag.branch);
                (meaning, format!("tag:{}", tag.name), of_tag(tag))
            });
            let branched: Vec<_> = branched.collect();
            all.push(on_trunk);
            all.extend(branched);
        } else if let Ok(hash) = ContentHash::parse(name) {
            let revision = self.at(hash).map_err(|error| self.collected(name, error));
            all.push(("a root catalog".to_owned(), name.to_owned(), revision));
        }
        all
    }

    fn collected(&self, name: &str, error: RepositoryError) -> RepositoryError {
        match error {
            RepositoryError::Missing { object, .. } => RepositoryError::NoRevision {
                name: name.to_owned(),
                reason: format!(
                    "its root catalog (object {object}) is not there; it may have been collected"
                ),
            },
            error => error,
        }
    }

    /// Finds a revision by its number: among the tags, before the head, and among the other root catalogs.
    fn numbered(&self, number: u64) -> Result<Revision, RepositoryError> {
        let name = || number.to_string();
        if number > self.head.revision() {
            let reason = format!("the newest revision is {}", self.head.revision());
            return Err(RepositoryError::NoRevision { name: name(), reason });
        }
        // The chain of earlier revisions begins at the tag that is nearest.
        let on_trunk = self.tags().iter().filter(|tag| tag.branch == DEFAULT_BRANCH);
        let nearest = on_trunk.filter(|tag| tag.revision >= number).min_by_key(|tag| tag.revision);
        let start = nearest.map_or(self.head.root_catalog().hash, |tag| tag.root_catalog);
        let mut walk = self.before(start);
        loop {
            match walk.next() {
                Some(Ok(revision)) if revision.number == number => return Ok(revision),
                Some(Ok(revision)) if revision.number > number => {}
                Some(Err(error)) if !matches!(error, RepositoryError::Missing { .. }) => return Err(error),
                _ => break,
            }
        }
        let is_branched = |root: &&ContentHash| {
            let mut tags = self.tags().iter().filter(|tag| tag.root_catalog == **root);
            tags.any(|tag| tag.branch != DEFAULT_BRANCH)
        };
        for root in self.listed.iter().filter(|root| !is_branched(root)) {
            match self.at(*root) {
                Ok(revision) if revision.number == number => return Ok(revision),
                _ => {}
            }
        }
        let reason = "no tag names it, and the revisions after it don't lead to it any more".to_owned();
        Err(RepositoryError::NoRevision { name: name(), reason })
    }

    /// Returns true if the revision with this root catalog has a path.
    pub fn has_path(&self, root: ContentHash, path: &[u8]) -> Result<bool, RepositoryError> {
        let published = Published::of_root(self.objects.clone(), (root, None));
        Ok(published.entry(path)?.is_some())
    }

    /// Returns the number of the revision that a revision replaced, if that is still there.
    pub fn number_before(&self, revision: &Revision) -> Result<Option<u64>, RepositoryError> {
        let Some(previous) = revision.previous else { return Ok(None) };
        match self.at(previous) {
            Ok(found) => Ok(Some(found.number)),
            Err(RepositoryError::Missing { .. }) => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// Iterates over a revision and those before it, newest first. It ends with the first revision, or with an error
    /// if the next one is missing.
    pub fn before(&self, root: ContentHash) -> Earlier<'_> {
        Earlier { revisions: self, next: Some(root), last: None }
    }
}

/// Iterator over a revision and those before it.
pub struct Earlier<'r> {
    revisions: &'r Revisions,
    next: Option<ContentHash>,
    last: Option<u64>,
}

impl Iterator for Earlier<'_> {
    type Item = Result<Revision, RepositoryError>;

    fn next(&mut self) -> Option<Self::Item> {
        let revision = match self.revisions.at(self.next.take()?) {
            Ok(revision) => revision,
            Err(error) => return Some(Err(error)),
        };
        // Numbers fall, so that a chain that leads back to itself ends.
        if self.last.is_some_and(|last| revision.number >= last) {
            return None;
        }
        self.last = Some(revision.number);
        self.next = revision.previous;
        Some(Ok(revision))
    }
}
