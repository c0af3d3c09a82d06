//! Makes a revision public: history, reflog, and last of all the signed head.

use esker_format::hash::ContentHash;
use esker_format::history::{DEFAULT_BRANCH, History, Tag};
use esker_format::manifest::{self, Manifest};
use esker_format::object::{ObjectKind, ObjectName};
use esker_format::reflog::{self, Reflog};
use esker_format::time::UnixTime;
use esker_format::write::head::sign_manifest;
use esker_format::write::history::HistoryDraft;
use esker_format::write::reflog::ReflogDraft;
use esker_store::Sink as _;

use crate::encode::Encoder;
use crate::error::AdminError;
use crate::kept;
use crate::repository::{DATABASE_MAX, Repository};
use crate::signed::read_object;

/// Tag for a revision, beside the automatic tags.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct TagRequest {
    /// Name of the tag; none for an automatic one.
    pub name: Option<String>,
    /// Description of the tag.
    pub description: String,
}

/// Origin of a revision's root catalog, by time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Made {
    /// The tagged revision is new.
    Now,
    /// The tagged revision was published at this time, and only the tag is new.
    Before(UnixTime),
}

/// A revision that is written completely and not yet public.
pub(crate) struct Commit<'r> {
    pub(crate) repository: &'r Repository,
    /// Hash and plain size of the root catalog.
    pub(crate) root: (ContentHash, u64),
    pub(crate) revision: u64,
    pub(crate) ttl: u32,
    pub(crate) now: UnixTime,
    pub(crate) made: Made,
}

impl Commit<'_> {
    /// Checks that a tag can be made, before anything is written.
    pub(crate) fn draft_history(
        repository: &Repository,
        tag: &TagRequest,
        now: UnixTime,
    ) -> Result<(HistoryDraft, Option<String>), AdminError> {
        let draft = match repository.head.history() {
            Some(object) => {
                let bytes = read_object(&*repository.sink, &object, None, DATABASE_MAX, "the history")?;
                let history = History::parse(&bytes).map_err(AdminError::History)?;
                HistoryDraft::continuing(&history, object.hash)
            }
            None => HistoryDraft::new(repository.name.clone()),
        };
        let automatic = || repository.settings.automatic_tags.then(|| draft.automatic_name(now));
        let name = tag.name.clone().or_else(automatic);
        if name.is_none() && !tag.description.is_empty() {
            return Err(AdminError::MessageWithoutTag);
        }
        if let Some(name) = &name {
            let probe = Tag {
                name: name.clone(),
                root_catalog: repository.head.root_catalog().hash,
                size: None,
                revision: 0,
                timestamp: now,
                description: String::new(),
                branch: DEFAULT_BRANCH.to_owned(),
            };
            draft.clone().add(probe)?;
        }
        Ok((draft, name))
    }

    /// Stores the remaining objects and replaces the head.
    pub(crate) fn publish(
        &self,
        mut history: HistoryDraft,
        tag: Option<String>,
        description: &str,
    ) -> Result<(), AdminError> {
        let repository = self.repository;
        let sink = &*repository.sink;
        let mut encoder = Encoder::for_metadata();
        let algorithm = repository.head.hash_algorithm();
        let mut room = Vec::new();
        let mut put = |plain: &[u8], kind| -> Result<ObjectName, AdminError> {
            let stored = encoder.encode(plain, &mut room)?;
            let name = ObjectName::new(ContentHash::of(algorithm, stored), kind);
            sink.put(&name, stored)?;
            Ok(name)
        };
        let head = Tag {
            name: tag.clone().unwrap_or_default(),
            root_catalog: self.root.0,
            size: Some(self.root.1),
            revision: self.revision,
            timestamp: match self.made {
                Made::Now => self.now,
                Made::Before(time) => time,
            },
            description: description.to_owned(),
            branch: DEFAULT_BRANCH.to_owned(),
        };
        if tag.is_some() {
            history.add(head.clone())?;
        }
        if self.made == Made::Now {
            history.advance(&head);
        }
        let history = put(&history.finish(), ObjectKind::History)?;
        let certificate = match kept::certificate(sink, &repository.head, repository.publisher.certificate())?
        {
            Some(published) => published,
            None => put(repository.publisher.certificate_pem().as_bytes(), ObjectKind::Certificate)?,
        };
        let metainfo = kept::metainfo(sink, &repository.head)?;
        sink.flush()?;
        let root = ObjectName::new(self.root.0, ObjectKind::Catalog);
        let objects: Vec<ObjectName> = [root, certificate, history].into_iter().chain(metainfo).collect();
        if repository.head.alternative_paths() {
            objects.iter().try_for_each(|object| sink.put_alternative(object))?;
        }
        let reflog = self.reflog(&objects)?;
        sink.put_root(reflog::PATH, &reflog)?;
        let reflog = ContentHash::of(algorithm, &reflog);
        if let Some(spool) = &repository.spool {
            spool.remember_reflog(&reflog)?;
        }
        let manifest = Manifest {
            root_catalog: self.root.0,
            root_catalog_size: self.root.1,
            ttl: self.ttl,
            revision: self.revision,
            certificate: Some(certificate.hash),
            history: Some(history.hash),
            timestamp: self.now,
            reflog: Some(reflog),
            metainfo: metainfo.map(|object| object.hash),
            micro_catalog: None,
            ..repository.head.manifest().clone()
        };
        let signed = sign_manifest(&manifest, repository.publisher.key()).map_err(AdminError::Signing)?;
        Ok(sink.put_root(manifest::PATH, &signed)?)
    }

    fn reflog(&self, objects: &[ObjectName]) -> Result<Vec<u8>, AdminError> {
        let repository = self.repository;
        let mut draft = match repository.sink.read(reflog::PATH, DATABASE_MAX)? {
            Some(bytes) => ReflogDraft::continuing(&Reflog::parse(&bytes).map_err(AdminError::Reflog)?),
            None => ReflogDraft::new(repository.name.clone()),
        };
        for object in objects {
            draft.add(*object, self.now);
        }
        Ok(draft.finish())
    }
}
