//! Changes that are stored as a revision and not published, so that a command can run above them first.

use std::collections::BTreeSet;

use esker_format::object::ObjectName;

use crate::base::BaseRevision;
use crate::changes::Changes;
use crate::choices::Resolved;
use crate::commit::{self, StagedRevision};
use crate::error::PublishError;
use crate::revision::{Context, PublishOptions};

/// Changes that are stored and not published.
#[derive(Clone, Debug)]
pub struct Staged {
    /// The unpublished revision.
    pub base: BaseRevision,
    /// The published revision that it was made of.
    pub origin: BaseRevision,
    /// Objects that were stored for it, or that are used again.
    pub stored: BTreeSet<ObjectName>,
    /// Conflicts with a later revision that the publisher has decided.
    pub resolved: Vec<Resolved>,
    /// Problems that did not affect the revision.
    pub warnings: Vec<String>,
}

impl Staged {
    /// Stores the catalogs of changes. Without a difference both revisions are the same.
    pub(crate) fn new(
        context: &Context<'_>,
        changes: &Changes,
        options: &mut PublishOptions<'_>,
        mut warnings: Vec<String>,
    ) -> Result<Self, PublishError> {
        let StagedRevision { base, root: (root, size), objects: stored, resolved, warnings: more } =
            commit::stage(context, changes, options)?;
        warnings.extend(more);
        let origin = BaseRevision::from(base);
        Ok(Self { base: BaseRevision { root, size, ..origin.clone() }, origin, stored, resolved, warnings })
    }
}
