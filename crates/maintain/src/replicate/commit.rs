//! Switches the head, once everything that it leads to is here.

use std::collections::{BTreeSet, HashSet};

use esker_format::hash::ContentHash;
use esker_format::object::{ObjectKind, ObjectName};
use esker_format::reflog::{self, Reflog};
use esker_format::time::UnixTime;
use esker_format::write::reflog::ReflogDraft;
use esker_format::{manifest, whitelist};
use esker_repository::{
    DATABASE_MAX, LOCK_WAIT, RepositoryError,
    head::{RootLock, wait_for_lock},
    spool::remember_reflog,
};
use esker_store::{LargeBytes, Swap};

use super::offer::Offer;
use super::options::{Replicate, ReplicateProgress};
use super::replica::Replica;
use crate::status_file;

/// File with the time of the last replication, as CernVM-FS writes it beside the status file.
const LAST: &str = ".cvmfs_last_snapshot";
/// File that lists the paths of a partial replica, for clients.
pub const PARTIAL: &str = ".cvmfs_partial_replica";

/// Result of switching the head.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[must_use]
pub(super) enum Switched {
    Done,
    /// A collect or another program changed the replica meanwhile.
    Again,
}

/// Parts of a new head other than the files and chunks, which are stored already.
#[derive(Default)]
pub(super) struct Prepared {
    /// The manifest that is replaced.
    pub(super) before: Option<Vec<u8>>,
    /// Number of begun and ended collects before the replica was compared.
    pub(super) collections: Option<u64>,
    /// Root catalogs that the reflog lists.
    pub(super) roots: Vec<ContentHash>,
    /// Catalogs that are staged, or here already; each list has those that lead only to catalogs of the lists before it.
    pub(super) catalogs: Vec<Vec<ContentHash>>,
    /// Certificate, history, description.
    pub(super) small: Vec<(ObjectName, LargeBytes)>,
    /// Condemned objects that the new head needs.
    pub(super) revived: BTreeSet<ObjectName>,
}

impl Prepared {
    fn has_catalog(&self, catalog: &ContentHash) -> bool {
        self.catalogs.iter().any(|level| level.contains(catalog))
    }
}

impl Replicate<'_> {
    /// Stores the catalogs and switches the head.
    pub(super) fn switch(
        &self,
        replica: &Replica,
        offer: &Offer,
        prepared: &Prepared,
        now: UnixTime,
    ) -> Result<Switched, RepositoryError> {
        (self.progress)(ReplicateProgress::Commit);
        let sink = &*replica.sink;
        let lock = wait_for_lock(&replica.storage, true, (Some(LOCK_WAIT), |_| {}), &self.stop)?;
        if !keep(replica, prepared)? {
            return Ok(Switched::Again);
        }
        for (name, stored) in &prepared.small {
            sink.put(name, stored)?;
        }
        sink.flush()?;
        // Before the catalogs: what a collect finds below `data` has to be reachable from a root that it knows.
        let reflog = self.reflog(replica, prepared, now)?;
        sink.put_root(reflog::PATH, &reflog)?;
        self.tell_spool(replica, offer, &reflog)?;
        for level in &prepared.catalogs {
            for catalog in level {
                let name = ObjectName::new(*catalog, ObjectKind::Catalog);
                match replica.staged(catalog)? {
                    Some(stored) => drop(sink.put_anew(&name, &stored)?),
                    None if sink.len_of(&name)?.is_some() => {}
                    None => {
                        let what = "a staged catalog".to_owned();
                        return Err(RepositoryError::Missing { what, object: name.to_string() });
                    }
                }
            }
            // A catalog that is here stands for its subtree, also after a flush that failed half way.
            sink.flush()?;
        }
        self.check_root(replica, offer)?;
        if offer.head.alternative_paths() {
            sink.put_alternative(&offer.head.root_catalog())?;
            prepared.small.iter().try_for_each(|(name, _)| sink.put_alternative(name))?;
        }
        let paths = self.path_texts();
        if !paths.is_empty() {
            sink.put_root(PARTIAL, format!("{}\n", paths.join("\n")).as_bytes())?;
        }
        sink.put_root(whitelist::PATH, &offer.whitelist)?;
        lock.as_ref().map_or(Ok(()), RootLock::confirm)?;
        if sink.replace_root(manifest::PATH, &offer.manifest, prepared.before.as_deref())? == Swap::Moved {
            return Ok(Switched::Again);
        }
        if paths.is_empty() {
            replica.remove_root_file(PARTIAL)?;
        }
        self.set_status(replica, now)?;
        Ok(Switched::Done)
    }

    /// Writes the time of a successful replication, and its source.
    pub(super) fn set_status(&self, replica: &Replica, now: UnixTime) -> Result<(), RepositoryError> {
        let date = status_file::date(now);
        let source = without_users(&self.servers);
        status_file::set(&*replica.sink, &[("last_snapshot", &date), ("source", &source)])?;
        Ok(replica.sink.put_root(LAST, format!("{date}\n").as_bytes())?)
    }

    /// Brings the checksum of the reflog up to date where CernVM-FS compares it: its collect refuses any other reflog.
    pub(super) fn tell_spool(
        &self,
        replica: &Replica,
        offer: &Offer,
        reflog: &[u8],
    ) -> Result<(), RepositoryError> {
        let Some(spool) = &self.spool else { return Ok(()) };
        let hash = ContentHash::of(offer.head.hash_algorithm(), reflog);
        remember_reflog(&*replica.storage.disks().served, spool, &hash)
    }

    fn reflog(
        &self,
        replica: &Replica,
        prepared: &Prepared,
        now: UnixTime,
    ) -> Result<Vec<u8>, RepositoryError> {
        let stored = replica.sink.read(reflog::PATH, DATABASE_MAX)?;
        let known = stored.and_then(|bytes| Reflog::parse(&bytes).ok());
        let listed: HashSet<ObjectName> =
            known.iter().flat_map(Reflog::references).map(|reference| reference.object).collect();
        let mut draft = match &known {
            Some(known) => ReflogDraft::continuing(known),
            None => ReflogDraft::new(self.name.clone()),
        };
        let roots = prepared.roots.iter().map(|root| ObjectName::new(*root, ObjectKind::Catalog));
        let small = prepared.small.iter().map(|(name, _)| *name);
        for object in roots.chain(small).filter(|object| !listed.contains(object)) {
            draft.add(object, now);
        }
        Ok(draft.finish())
    }

    /// Reads the root catalog back: heads without their root catalog were published by other programs.
    fn check_root(&self, replica: &Replica, offer: &Offer) -> Result<(), RepositoryError> {
        let root = offer.head.root_catalog();
        match replica.stored(&root, DATABASE_MAX)? {
            Some(_) => Ok(()),
            None => {
                let what = "the root catalog of the new head".to_owned();
                Err(RepositoryError::Missing { what, object: root.to_string() })
            }
        }
    }
}

/// Takes the objects of the new head off the list of condemned ones; false if a collect began or ended since the replica
/// was compared, or deleted one of them.
fn keep(replica: &Replica, prepared: &Prepared) -> Result<bool, RepositoryError> {
    let Some(folder) = replica.condemned() else { return Ok(true) };
    if Some(folder.collections()?) != prepared.collections {
        return Ok(false);
    }
    let Some(mut list) = folder.read()? else { return Ok(true) };
    list.revive(&prepared.revived.iter().copied().collect::<Vec<_>>())?;
    for object in &prepared.revived {
        let is_stored_now =
            prepared.has_catalog(&object.hash) || prepared.small.iter().any(|(name, _)| name == object);
        if !is_stored_now && replica.sink.len_of(object)?.is_none() {
            return Ok(false);
        }
    }
    Ok(true)
}

/// Returns URLs without users and passwords, which all clients would see.
fn without_users(servers: &str) -> String {
    let without = |url: &str| match url.split_once("://") {
        Some((scheme, rest)) => {
            let (host, path) = rest.split_once('/').map_or((rest, None), |(host, path)| (host, Some(path)));
            let host = host.rsplit('@').next().unwrap_or(host);
            path.map_or_else(|| format!("{scheme}://{host}"), |path| format!("{scheme}://{host}/{path}"))
        }
        None => url.to_owned(),
    };
    servers.split(';').map(without).collect::<Vec<_>>().join(";")
}

#[cfg(test)]
mod tests {
    use super::without_users;

    #[test]
    fn the_source_in_the_status_has_no_password() {
        let servers = "http://a:8000/cvmfs/x;https://user:pass@b/x@y;file:///srv/x";
        assert_eq!(without_users(servers), "http://a:8000/cvmfs/x;https://b/x@y;file:///srv/x");
    }
}
