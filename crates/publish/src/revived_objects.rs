//! Objects that an earlier revision needs and the newest one does not: a collect may have condemned them.

use std::collections::BTreeSet;

use esker_format::hash::ContentHash;
use esker_format::object::{ObjectKind, ObjectName};
use esker_repository::{ObjectSource, RepositoryError, TreeDiff, WantedObject, entry::objects_of, path};
use esker_store::LargeBytes;
use parking_lot::Mutex;

/// Notes which catalogs are read.
struct NotedCatalogs<'r> {
    objects: &'r dyn ObjectSource,
    read: Mutex<BTreeSet<ObjectName>>,
}

impl ObjectSource for NotedCatalogs<'_> {
    fn object(&self, wanted: &WantedObject<'_>) -> Result<LargeBytes, RepositoryError> {
        if wanted.name.kind == ObjectKind::Catalog {
            self.read.lock().insert(wanted.name);
        }
        self.objects.object(wanted)
    }
}

/// Returns the objects of the revision `target` that the revision `head` may lack.
pub(crate) fn revived_objects(
    objects: &dyn ObjectSource,
    head: ContentHash,
    target: ContentHash,
) -> Result<BTreeSet<ObjectName>, RepositoryError> {
    let noted = NotedCatalogs { objects, read: Mutex::default() };
    let mut found = BTreeSet::new();
    // The virtual directory is compared only on request.
    for within in [&b""[..], path::RESERVED] {
        let diff =
            TreeDiff { objects: &noted, old: head, new: target, within: within.to_vec(), ignore_times: true };
        let compared = diff.run(&mut |one| {
            found.extend(one.new.into_iter().flat_map(objects_of));
            Ok(())
        });
        match compared {
            Ok(_) | Err(RepositoryError::NoSuchPath(_)) => {}
            Err(error) => return Err(error),
        }
    }
    found.extend(noted.read.into_inner());
    Ok(found)
}
