//! Asks the kernel to release files, so that the cache may evict their objects.
//!
//! A mount that answers no OPEN doesn't see which files are open. But once the names of a file are invalidated, the
//! kernel forgets the file unless it is open or mapped: files that are not released are in use.

use std::time::{Duration, Instant};

use esker_store::{CacheKey, Holder};
use esker_vfs::{Change, Node};

use crate::attributes;
use crate::core::Core;
use crate::failure::Blocked;
use crate::identity;
use crate::lookup::Snapshot;
use crate::payload::NodeInfo;
use esker_format::path::split;

/// Time that the kernel has to release a batch.
///
/// It needs well below a millisecond for each file; an eviction thread that waits for files in use is only a little
/// late.
const TIMEOUT: Duration = Duration::from_millis(250);

impl Holder for Core {
    fn release(&self, victims: &[CacheKey]) -> Vec<bool> {
        let held = self.open_files.holders(victims);
        let mut names = Vec::new();
        {
            let revision = self.current.load();
            let snapshot = Snapshot::new(self, &revision);
            for node in held.iter().flatten() {
                // Names that can't be found now stay cached; then the kernel keeps the file, and so does the cache.
                let _ = snapshot.names_of(node, &mut names);
            }
        }
        if !names.is_empty() {
            self.tell(&names);
            let deadline = Instant::now() + TIMEOUT;
            self.open_files.wait_released(deadline, |held| held.holders(victims).iter().all(Vec::is_empty));
        }
        let left = self.open_files.holders(victims);
        victims.iter().zip(left).map(|(key, files)| !files.is_empty() || self.catalogs.holds(key)).collect()
    }
}

impl Core {
    /// Reports changes to all watchers; the caller holds no lock.
    pub(crate) fn tell(&self, changes: &[Change]) {
        let watchers = self.watchers.lock().clone();
        for watcher in watchers {
            watcher.changed(changes);
        }
    }
}

impl Snapshot<'_> {
    /// Adds all names that the current revision has for a file, including its hard links.
    fn names_of(&self, node: &Node, names: &mut Vec<Change>) -> Result<(), Blocked> {
        let info = NodeInfo::of(node)?;
        let path = self.path_of(&info)?;
        let Some((parent, own_name)) = split(&path) else { return Ok(()) };
        let dir = identity::directory(parent);
        names.push(Change::Name { dir, name: own_name.into() });
        let mount = self.resolve(parent)?;
        let Some(row) = mount.find(mount.key_of_child(parent, own_name))? else { return Ok(()) };
        let Some(group) = attributes::hardlink_group(&row) else { return Ok(()) };
        // Publishers keep hardlinks within one directory; a name elsewhere would keep the file in use.
        let children = mount.attached.catalog.children(mount.key_of(parent));
        for other in children.map_err(|error| mount.damaged(error))? {
            let other = other.map_err(|error| mount.damaged(error))?;
            if attributes::hardlink_group(&other) == Some(group) && other.name() != own_name {
                names.push(Change::Name { dir, name: other.name().into() });
            }
        }
        Ok(())
    }
}
