//! Searches for the processes that hold a mount whose place is gone here.

use std::sync::OnceLock;

use super::holders::{Holder, Scan};
use super::{MountLine, all};
use crate::registry::Entry;

/// Finds holders of mounts; the mounts of other namespaces are read once, when they are first needed.
pub struct HolderSearch {
    here: Vec<MountLine>,
    scan: OnceLock<Scan>,
}

impl HolderSearch {
    /// Reads the mounts of this namespace.
    pub fn read() -> Self {
        Self { here: all().unwrap_or_default(), scan: OnceLock::new() }
    }

    /// Returns the namespaces that hold a mount; `None` if it is at its place here, or in the namespace of its daemon, or if
    /// its daemon was killed.
    pub fn of(&self, entry: &Entry, alive: bool) -> Option<Vec<Holder>> {
        // The device number of a killed daemon's mount may be another mount's by now. A command's mount is at no path of
        // the host, and one that is being made has no device yet.
        if !alive || entry.command.is_some() || (entry.device.is_none() && !entry.departed) {
            return None;
        }
        let is_it =
            |line: &MountLine| line.mountpoint == entry.mountpoint && Some(line.device) == entry.device;
        if self.here.iter().any(is_it) {
            return None;
        }
        let scan = self.scan.get_or_init(Scan::read);
        (!scan.has_process(&entry.held(), entry.pid)).then(|| scan.holders(&entry.held()))
    }
}
