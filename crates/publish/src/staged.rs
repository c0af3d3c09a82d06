//! Changes that are stored as a revision and not published, so that a command can run above them first.

use std::collections::BTreeSet;

use esker_format::object::ObjectName;

use crate::base::BaseRevision;
use crate::changes::Changes;
use crate::commit;
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
        let (origin, root, size, stored) = match commit::stage(context, changes, options)? {
            Some(staged) => {
                warnings.extend(staged.warnings);
                (staged.base, staged.root.0, Some(staged.root.1), staged.objects)
            }
            None => (context.base, context.base.root, context.base.size, BTreeSet::new()),
        };
        let origin = BaseRevision::from(origin);
        Ok(Self { base: BaseRevision { root, size, ..origin.clone() }, origin, stored, warnings })
    }
}
