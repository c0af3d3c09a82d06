//! Compares what a gateway published with what it was given, where the gateway compares no revisions itself.
//!
//! ```text
//!   onto ── revisions of others ──► before ── the commit ──► published       in both differences: overwritten
//!   onto ── this publisher ──► built ── the gateway ──► published            in both differences: left out
//! ```
//!
//! The gateway of the reference puts the difference of two root catalogs on whatever the head names by then. If a publisher with
//! the keys, or one that the web server did not show yet, came in between, its changes of the same paths are gone without a word.
//! It also leaves out what it doesn't know, such as pipes, and splits hard links.

use std::collections::BTreeSet;
use std::sync::Arc;

use esker_format::hash::ContentHash;
use esker_format::trust::VerifiedHead;
use esker_repository::{
    BranchHead, TreeDiff, path,
    published::{OldCatalog, Published},
};

use crate::error::PublishError;

/// Most paths that are named.
const NAMED_MAX: usize = 20;
/// Most revisions between a commit and the look at the head after it.
const LATER_MAX: usize = 32;

/// A revision that a gateway was given.
pub(super) struct Given<'g> {
    /// For reading revisions.
    pub(super) published: &'g Published,
    /// Directory of the changes.
    pub(super) target: &'g [u8],
    /// Revision that it was built on.
    pub(super) onto: &'g BranchHead,
    /// Its root catalog.
    pub(super) built: ContentHash,
}

impl Given<'_> {
    /// Fails if its commit overwrote what others published in between. Returns a warning if that can't be found out, or if changes
    /// were left out. The number is none if the gateway's answer was lost.
    pub(super) fn check(
        &self,
        head: &VerifiedHead,
        revision: Option<u64>,
    ) -> Result<Option<String>, PublishError> {
        let next = self.onto.revision.saturating_add(1);
        let is_next = revision.unwrap_or(head.revision()) <= next;
        let newest = self.published.other((head.root_catalog().hash, head.root_catalog_size())).root()?;
        let published = match revision {
            Some(revision) => self.find(newest, revision)?,
            None => Some(newest).filter(|_| head.revision() == next),
        };
        let Some(published) = published else {
            return Ok((!is_next).then(|| {
                format!(
                    "others published since revision {}, and this gateway may have overwritten what they changed: that can't \
                     be found out",
                    self.onto.revision
                )
            }));
        };
        let properties = published.catalog.properties();
        let is_other = |before: &ContentHash| *before != self.onto.root && !before.is_null();
        if let Some(before) = properties.previous_revision.filter(is_other) {
            let (paths, count) = self.in_both((self.onto.root, before), (before, published.hash))?;
            if count > 0 {
                let (revision, before) = (properties.revision, properties.revision.saturating_sub(1));
                return Err(PublishError::Overwrote { paths, count, revision, before });
            }
        }
        let (paths, count) = self.in_both((self.onto.root, self.built), (self.built, published.hash))?;
        let more = count.saturating_sub(paths.len() as u64);
        let more = if more > 0 { format!(" and {more} more paths") } else { String::new() };
        Ok((count > 0).then(|| {
            format!("the gateway left out or changed what it published of {}{more}", paths.join(", "))
        }))
    }

    /// Finds a revision from a later one backwards.
    fn find(&self, newest: Arc<OldCatalog>, revision: u64) -> Result<Option<Arc<OldCatalog>>, PublishError> {
        let mut at = newest;
        for _ in 0..LATER_MAX {
            let properties = at.catalog.properties();
            let previous = properties.previous_revision.filter(|hash| !hash.is_null());
            match previous.filter(|_| properties.revision > revision) {
                Some(previous) => at = self.published.other((previous, None)).root()?,
                None => break,
            }
        }
        let is_found = at.catalog.properties().revision == revision;
        Ok(Some(at).filter(|_| is_found))
    }

    /// Returns the first paths of the directory at which two pairs of revisions differ, but for times, and their number.
    fn in_both(
        &self,
        first: (ContentHash, ContentHash),
        second: (ContentHash, ContentHash),
    ) -> Result<(Vec<String>, u64), PublishError> {
        let difference = |(old, new)| TreeDiff {
            objects: &*self.published.objects,
            old,
            new,
            within: Vec::new(),
            ignore_times: true,
        };
        let mut in_first = BTreeSet::new();
        difference(first).run(&mut |found| {
            if path::is_within(found.path, self.target) {
                in_first.insert(found.path.to_vec());
            }
            Ok(())
        })?;
        let (mut paths, mut count) = (Vec::new(), 0);
        difference(second).run(&mut |found| {
            // A change of type is two differences.
            if in_first.remove(found.path) {
                count += 1;
                if paths.len() < NAMED_MAX {
                    paths.push(path::shown(found.path));
                }
            }
            Ok(())
        })?;
        Ok((paths, count))
    }
}
