//! Asking the kernel to let go of files, so that the cache may drop their objects.
//!
//! A mount that answers no OPEN doesn't see who has a file open. But once the kernel was told to forget a
//! file's names it forgets the file, unless somebody has it open or mapped: what isn't let go is in use.

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

/// How long the kernel has to let go of a batch. It takes it well below a millisecond for each file; an
/// eviction thread that waits in vain for files in use is only a little late.
const PATIENCE: Duration = Duration::from_millis(250);

impl Holder for Core {
    fn release(&self, victims: &[CacheKey]) -> Vec<bool> {
        let held = self.open_files.holders(victims);
        let mut names = Vec::new();
        {
            let revision = self.current.load();
            let snapshot = Snapshot::new(self, &revision);
            for node in held.iter().flatten() {
                // Names that can't be found now stay; then the kernel keeps the file, and so do we.
                let _ = snapshot.names_of(node, &mut names);
            }
        }
        if !names.is_empty() {
            self.tell(&names);
            let deadline = Instant::now() + PATIENCE;
            self.open_files.wait_released(deadline, |held| held.holders(victims).iter().all(Vec::is_empty));
        }
        let left = self.open_files.holders(victims);
        victims.iter().zip(left).map(|(key, files)| !files.is_empty() || self.catalogs.holds(key)).collect()
    }
}

impl Core {
    /// Tells all watchers; the caller holds no lock.
    pub(crate) fn tell(&self, changes: &[Change]) {
        let watchers = self.watchers.lock().clone();
        for watcher in watchers {
            watcher.changed(changes);
        }
    }
}

impl Snapshot<'_> {
    /// Adds every name that the present revision has for a file, all those of its hardlink group.
    fn names_of(&self, node: &Node, names: &mut Vec<Change>) -> Result<(), Blocked> {
        let info = NodeInfo::of(node)?;
        let path = self.path_of(&info)?;
        let Some((parent, own_name)) = split(&path) else { return Ok(()) };
        let dir = identity::directory(parent);
        names.push(Change::Name { dir, name: own_name.into() });
        let mount = self.resolve(parent)?;
        let Some(row) = mount.find(mount.key_of_child(parent, own_name))? else { return Ok(()) };
        let Some(group) = attributes::hardlink_group(&row) else { return Ok(()) };
        // Publishers keep hardlinks within one directory; a name elsewhere would keep the file held.
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
