//! Writes history, reflog, and the signed head.
//!
//! Under the lock the reflog goes before the head. Without one it goes after it: several publishers may be about to
//! replace the head, and only the one that does may write the reflog that its head names. Each reflog lists the objects
//! of the head before, so the publisher of the next head adds what one that was killed in between left out.

use std::collections::HashSet;

use esker_format::hash::ContentHash;
use esker_format::manifest::{self, Manifest};
use esker_format::object::{ObjectKind, ObjectName};
use esker_format::reflog::{self, Reflog};
use esker_format::time::UnixTime;
use esker_format::write::head::sign_manifest;
use esker_format::write::history::HistoryDraft;
use esker_format::write::reflog::ReflogDraft;
use esker_store::Swap;

use crate::back_off::BackOff;
use crate::encode::Encoder;
use crate::error::RepositoryError;
use crate::repository::DATABASE_MAX;
use crate::signed::SMALL_FILE_MAX;
use crate::spool::remember_reflog;

use super::carried_over;
use super::lock::HeadLock;
use super::pending;

/// Maximum number of attempts to store the reflog while earlier publishers store theirs.
const REFLOG_ATTEMPTS: u32 = 20;

/// Contents of the next head.
pub struct Next {
    /// Hash and plain size of the root catalog.
    pub root: (ContentHash, u64),
    /// Number of the revision.
    pub revision: u64,
    /// Seconds after which clients check for a newer revision.
    pub ttl: u32,
    /// Time of the signature.
    pub timestamp: UnixTime,
    /// The history; none keeps the published one.
    pub history: Option<HistoryDraft>,
    /// Root objects that are removed from the reflog.
    pub forgotten: HashSet<ContentHash>,
    /// Root catalog of another branch, which the reflog lists too.
    pub branch_root: Option<ContentHash>,
    /// True if old revisions may be collected; `None` keeps the published value.
    pub garbage_collectable: Option<bool>,
}

impl HeadLock<'_> {
    /// Stores the remaining objects and replaces the head, if it still is the one that was read under the lock. All
    /// objects that the next head leads to have to be put.
    pub fn publish(&self, next: Next) -> Result<Swap, RepositoryError> {
        let repository = self.repository;
        let sink = repository.sink();
        let head = &self.head().verified;
        if repository.is_replica() && next.history.is_none() {
            // The head of a replica is signed elsewhere, and names another reflog.
            let reflog = self.reflog(&[], &next.forgotten, next.timestamp)?;
            sink.put_root(reflog::PATH, &reflog)?;
            if let Some(spool) = &repository.replica_spool {
                let hash = ContentHash::of(head.hash_algorithm(), &reflog);
                remember_reflog(&*repository.disks().served, spool, &hash)?;
            }
            return Ok(Swap::Replaced);
        }
        let publisher = repository.publisher()?;
        let mut encoder = Encoder::for_metadata();
        let algorithm = head.hash_algorithm();
        let mut room = Vec::new();
        let mut put = |plain: &[u8], kind| -> Result<ObjectName, RepositoryError> {
            let stored = encoder.encode(plain, &mut room)?;
            let name = ObjectName::new(ContentHash::of(algorithm, stored), kind);
            sink.put(&name, stored)?;
            Ok(name)
        };
        let history = match next.history {
            Some(draft) => Some(put(&draft.finish(), ObjectKind::History)?),
            None => head.history(),
        };
        let certificate = match carried_over::certificate(sink, head, publisher.certificate())? {
            Some(published) => published,
            None => put(publisher.certificate_pem().as_bytes(), ObjectKind::Certificate)?,
        };
        let metainfo = carried_over::metainfo(sink, head)?;
        sink.flush()?;
        let root = ObjectName::new(next.root.0, ObjectKind::Catalog);
        let branch_root = next.branch_root.map(|root| ObjectName::new(root, ObjectKind::Catalog));
        let objects: Vec<ObjectName> =
            [root, certificate].into_iter().chain(history).chain(metainfo).chain(branch_root).collect();
        if head.alternative_paths() {
            objects.iter().try_for_each(|object| sink.put_alternative(object))?;
        }
        let listed = self.reflog(&objects, &next.forgotten, next.timestamp)?;
        let (private, state) = (&*repository.disks().private, repository.state());
        if self.is_exclusive() {
            let stored = sink.read(reflog::PATH, DATABASE_MAX)?;
            let is_named =
                |bytes: &Vec<u8>| head.manifest().reflog == Some(ContentHash::of(algorithm, bytes));
            if let Some(before) = stored.filter(is_named) {
                pending::keep(private, state, &before)?;
            }
            sink.put_root(reflog::PATH, &listed)?;
        } else {
            pending::keep(private, state, &listed)?;
        }
        let reflog = ContentHash::of(algorithm, &listed);
        if let Some(spool) = &repository.spool {
            spool.remember_reflog(&reflog)?;
        }
        let before = head.manifest().clone();
        let manifest = Manifest {
            root_catalog: next.root.0,
            root_catalog_size: next.root.1,
            ttl: next.ttl,
            revision: next.revision,
            certificate: Some(certificate.hash),
            history: history.map(|object| object.hash),
            timestamp: next.timestamp,
            reflog: Some(reflog),
            metainfo: metainfo.map(|object| object.hash),
            micro_catalog: None,
            garbage_collectable: next.garbage_collectable.unwrap_or(before.garbage_collectable),
            ..before
        };
        let signed = sign_manifest(&manifest, publisher.key()).map_err(RepositoryError::Signing)?;
        if sink.replace_root(manifest::PATH, &signed, Some(&self.head().bytes))? == Swap::Moved {
            return Ok(Swap::Moved);
        }
        if !self.is_exclusive()
            && let Err(error) = self.follow_with_reflog(&listed, &signed)
        {
            // The revision is public all the same, and the next publisher completes the reflog.
            tracing::warn!(%error, "the reflog was not written; the next publish does that");
            return Ok(Swap::Replaced);
        }
        // The revision is public; what stays is removed by the next publisher.
        let _ = pending::drop_kept(private, state);
        Ok(Swap::Replaced)
    }

    /// Replaces the head with one of the same revision, so that every publisher that read the head before has to read it
    /// again. Returns false if another publisher was faster.
    pub fn fence(&self, now: UnixTime) -> Result<bool, RepositoryError> {
        let same = self.same_revision(now);
        // Equal bytes would be no other head.
        let timestamp = same.timestamp.max(UnixTime(self.head().verified.timestamp().0.saturating_add(1)));
        Ok(self.publish(Next { timestamp, ..same })? == Swap::Replaced)
    }

    /// Stores the reflog of a head that is public already, unless a later publisher has replaced that head: its reflog
    /// lists everything that this one does.
    fn follow_with_reflog(&self, reflog: &[u8], head: &[u8]) -> Result<(), RepositoryError> {
        let sink = self.repository.sink();
        let mut back_off = BackOff::default();
        for _ in 0..REFLOG_ATTEMPTS {
            let stored = sink.read(reflog::PATH, DATABASE_MAX)?;
            let is_public = sink.read(manifest::PATH, SMALL_FILE_MAX)?.as_deref() == Some(head);
            if !is_public || stored.as_deref() == Some(reflog) {
                return Ok(());
            }
            if sink.replace_root(reflog::PATH, reflog, stored.as_deref())? == Swap::Replaced {
                return Ok(());
            }
            back_off.pause();
        }
        Err(RepositoryError::Contended { attempts: REFLOG_ATTEMPTS })
    }

    fn reflog(
        &self,
        objects: &[ObjectName],
        forgotten: &HashSet<ContentHash>,
        time: UnixTime,
    ) -> Result<Vec<u8>, RepositoryError> {
        let repository = self.repository;
        let mut draft = match repository.sink().read(reflog::PATH, DATABASE_MAX)? {
            Some(bytes) => ReflogDraft::continuing(&Reflog::parse(&bytes).map_err(RepositoryError::Reflog)?),
            None => ReflogDraft::new(repository.name.clone()),
        };
        draft.remove(forgotten);
        if !self.is_exclusive() {
            let before = &self.head().verified;
            let named =
                [Some(before.root_catalog()), before.certificate(), before.history(), before.metainfo()];
            for object in named.into_iter().flatten() {
                if !draft.lists(&object.hash) {
                    draft.add(object, before.timestamp());
                }
            }
        }
        for object in objects {
            draft.add(*object, time);
        }
        Ok(draft.finish())
    }
}
