//! Catalogs of a new revision, written on top of a given head.

use std::collections::BTreeSet;

use esker_format::object::{ObjectKind, ObjectName};
use esker_format::time::UnixTime;
use esker_repository::{BranchHead, ReadHead, entry::objects_of, published::Published};

use crate::balance;
use crate::catalogs::{Built, CatalogBuilder};
use crate::changes::{Changes, NewTree};
use crate::choices::Resolved;
use crate::error::PublishError;
use crate::limits::{self, OverLimits};
use crate::report::AddedBundles;
use crate::revision::{Context, PublishOptions};

use super::rebase::move_onto;

/// Changes on top of a head, with their catalogs stored.
pub(super) struct Prepared {
    pub(super) head: ReadHead,
    /// The revision that is replaced: that of the head, or of another branch.
    pub(super) onto: BranchHead,
    pub(super) bundles: AddedBundles,
    /// Conflicts that the publisher has decided.
    pub(super) resolved: Vec<Resolved>,
    /// The new catalogs; none if nothing changes.
    pub(super) written: Option<Written>,
}

/// The catalogs of a new revision.
pub(super) struct Written {
    pub(super) root: Built,
    pub(super) revision: u64,
    pub(super) ttl: u32,
    pub(super) now: UnixTime,
    /// Number of catalogs, and their stored bytes.
    pub(super) catalogs: (u64, u64),
    /// Objects of all new and changed entries, and of the catalogs.
    pub(super) objects: BTreeSet<ObjectName>,
    pub(super) over_limits: OverLimits,
}

impl Prepared {
    /// Rebases changes onto a head, and stores the catalogs durably.
    pub(super) fn new(
        context: &Context<'_>,
        changes: &Changes,
        head: ReadHead,
        options: &PublishOptions<'_>,
    ) -> Result<Self, PublishError> {
        let mut changes = changes.clone();
        let branch = options.tag.branch.as_ref();
        let onto = BranchHead::find(context.repository, &head.verified, branch)?;
        let published = context.published.other((onto.root, onto.size));
        let base = (&context.published, context.base.revision);
        let choices = context.choices.as_ref();
        let resolved = move_onto(base, (&published, onto.revision), &mut changes, choices)?;
        let bundles = context.add_bundles(&published, &mut changes, &options.profiles, true)?;
        let written = match changes.is_empty() {
            true => None,
            false => Some(write(context, &published, &mut changes, (&head, &onto), options.threads)?),
        };
        Ok(Self { head, onto, bundles, resolved, written })
    }

    /// Returns the objects that the changes and the new catalogs name.
    pub(super) fn objects(&self) -> BTreeSet<ObjectName> {
        self.written.as_ref().map(|written| written.objects.clone()).unwrap_or_default()
    }
}

fn write(
    context: &Context<'_>,
    published: &Published,
    changes: &mut Changes,
    (head, onto): (&ReadHead, &BranchHead),
    threads: usize,
) -> Result<Written, PublishError> {
    let sink = context.repository.sink();
    let outlines = balance::decide(published, changes, &context.comparison())?;
    let limits = &context.repository.settings().limits;
    let over_limits = limits::all(limits, published, changes, &outlines)?.enforced(limits)?;
    context.put_empty()?;
    let revision = onto.revision.saturating_add(1);
    let ttl = published.root()?.catalog.properties().ttl;
    let ttl = context.repository.settings().ttl.or(ttl).unwrap_or(head.verified.ttl());
    // Never before the published one, whatever the clock says, since clients refuse an older head.
    let now = context.now.max(head.verified.timestamp());
    let tree = NewTree { published, changes };
    let algorithm = head.verified.hash_algorithm();
    let (replaces, built) = Default::default();
    let builder =
        CatalogBuilder { tree, sink, algorithm, revision, replaces, recount: false, now, ttl, built };
    let root = builder.run(&outlines, threads)?;
    sink.flush()?;
    let built = builder.built.into_inner();
    let catalogs = (built.len() as u64, built.values().map(|built| built.stored_bytes).sum());
    let names = built.values().map(|built| ObjectName::new(built.hash, ObjectKind::Catalog));
    let objects = changes.entries().flat_map(objects_of).chain(names).collect();
    Ok(Written { root, revision, ttl, now, catalogs, objects, over_limits })
}
