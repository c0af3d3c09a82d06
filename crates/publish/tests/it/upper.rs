//! Publishes an upper folder that is made by hand, without a mount.

use std::path::Path;

use esker_publish::{BaseRevision, PublishError, PublishUpper, Report, Upper};
use esker_repository::Repository;

use crate::workshop::{Workshop, now, options};

/// Publishes what `change` puts in an upper folder above the published revision.
pub(crate) fn publish_upper(workshop: &Workshop, change: impl FnOnce(&Path)) -> Result<Report, PublishError> {
    publish_upper_to(&workshop.root(), &workshop.open(), change)
}

/// The same for an open repository in a folder.
pub(crate) fn publish_upper_to(
    root: &Path,
    repository: &Repository,
    change: impl FnOnce(&Path),
) -> Result<Report, PublishError> {
    let folder = tempfile::tempdir().unwrap();
    let upper = Upper {
        folder: folder.path().to_owned(),
        base: BaseRevision::published(repository),
        origin: None,
        claimed: None,
        within: Vec::new(),
        filter: Default::default(),
    };
    upper.prepare(root).unwrap();
    change(folder.path());
    let mut progress = |_| ();
    PublishUpper { upper, choices: Default::default(), options: options(&mut progress) }
        .run(repository, now())
}
