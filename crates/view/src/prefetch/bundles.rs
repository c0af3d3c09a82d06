//! Fetches the specifications of bundles, and finds the files that they name in catalogs.

use std::sync::Arc;

use esker_format::bundle;
use esker_format::catalog::{EntryKind, Flags};
use esker_format::path::{join, split};
use esker_prefetch::bundles::{FileContent, FileLookup, FileObjects};
use esker_prefetch::objects as file_objects;
use esker_store::ObjectRequest;
use esker_vfs::NodeKey;

use crate::catalogs::WantedCatalog;
use crate::core::Core;
use crate::failure::Blocked;
use crate::lookup::Snapshot;
use crate::payload::NodeInfo;

use super::{Event, objects};

/// Fetches the specification beside a trigger, and sends one event with the result to the scheduler.
///
/// Returns false, without an event, if there is none.
pub(super) fn fetch_spec(core: &Arc<Core>, trigger: NodeKey, info: &NodeInfo) -> bool {
    let revision = core.current.load();
    let Some((wanted, directory)) = find_spec(&Snapshot::new(core, &revision), info) else { return false };
    objects::open(core, wanted, move |handle| Event::Spec { trigger, directory, handle });
    true
}

/// Returns the object of the specification beside a trigger, and their directory.
fn find_spec(snapshot: &Snapshot<'_>, trigger: &NodeInfo) -> Option<(ObjectRequest, Vec<u8>)> {
    let path = snapshot.path_of(trigger).ok()?;
    let (directory, name) = split(&path)?;
    let name = bundle::name_for(name)?;
    let mount = snapshot.resolve(directory).ok()?;
    let row = mount.find(mount.key_of_child(directory, &name)).ok()??;
    if row.size() > bundle::BYTES_MAX as u64 {
        return None;
    }
    // The reference client only supports specifications that are one object, too.
    Some((file_objects::whole(&row, &join(directory, &name))?, directory.to_vec()))
}

impl FileLookup for Snapshot<'_> {
    type Catalog = WantedCatalog;

    fn find(&self, path: &[u8], wants_chunks: bool) -> Result<Option<FileObjects>, WantedCatalog> {
        match find_file(self, path, wants_chunks) {
            Ok(found) => Ok(found),
            Err(Blocked::On(catalog)) => Err(catalog),
            Err(Blocked::Failed(_)) => Ok(None),
        }
    }
}

fn find_file(
    snapshot: &Snapshot<'_>,
    path: &[u8],
    wants_chunks: bool,
) -> Result<Option<FileObjects>, Blocked> {
    let Some((directory, name)) = split(path) else { return Ok(None) };
    let mount = snapshot.resolve(directory)?;
    let Some(row) = mount.find(mount.key_of_child(directory, name))? else { return Ok(None) };
    let size = row.size();
    if !row.flags().has(Flags::CHUNKED) {
        let content = file_objects::whole(&row, path).map(FileContent::Whole);
        return Ok(content.map(|content| FileObjects { size, content }));
    }
    let is_file = row.kind() == EntryKind::File && !row.flags().has(Flags::EXTERNAL);
    let Some(compression) = row.compression().filter(|_| is_file && wants_chunks) else { return Ok(None) };
    let content = FileContent::Chunked(mount.chunks(&row)?, compression);
    Ok(Some(FileObjects { size, content }))
}
