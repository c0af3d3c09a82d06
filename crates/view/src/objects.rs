//! Lists the objects of files and of a revision, for commands that fill or pin the cache.

use std::sync::Arc;

use esker_format::object::{ObjectKind, ObjectName};
use esker_store::ObjectRequest;
use esker_vfs::{ErrorKind, Node, Reply, TreeError};

use crate::catalogs;
use crate::content::{outside, readable};
use crate::view::View;

impl View {
    /// Returns the objects of a regular file, in order. Waits until its catalog is attached.
    pub fn objects(&self, node: &Node) -> Result<Vec<ObjectRequest>, TreeError> {
        let (info, compression) = readable(node)?;
        let what = self.core.name_of(node);
        let place = Reply::wait(|reply| self.core.place_outside(node, reply))?;
        let wanted = |hash, kind, at, size| {
            let mut wanted = ObjectRequest::new(ObjectName::new(hash, kind), compression, &*what).size(size);
            wanted.external = place.as_deref().map(|place| outside(place, kind, at));
            wanted
        };
        if info.chunked {
            let node = *node;
            let chunks = Reply::wait(|reply| self.core.serve(reply, move |snapshot| snapshot.chunks(&node)))?;
            return Ok(chunks
                .iter()
                .map(|chunk| wanted(chunk.hash, ObjectKind::Chunk, chunk.offset, chunk.size))
                .collect());
        }
        let hash = info.content.ok_or_else(|| {
            TreeError::on(ErrorKind::Damaged, what.clone())
                .because("its catalog names no object with its content")
        })?;
        Ok(vec![wanted(hash, ObjectKind::File, 0, info.size)])
    }

    /// Returns the catalogs of the present revision that are mounted, as objects.
    pub fn catalogs(&self) -> Vec<ObjectRequest> {
        let revision = self.core.current.load();
        let mounts = revision.mounts();
        let attached = mounts.values().map(|mount| Arc::clone(&mount.attached));
        attached.map(|attached| catalogs::object_of(&attached)).collect()
    }
}
