//! Content of a report, whatever its form.

use super::collected::Collected;
use super::main_thread::Division;
use super::program::Watched;

/// Everything that a report shows.
pub(super) struct Report {
    pub(super) watched: Watched,
    pub(super) collected: Collected,
    /// Number of files in the table.
    pub(super) top: usize,
}

impl Report {
    /// Returns what the command's main thread did, if the kernel counted it.
    pub(super) fn main_thread(&self) -> Option<Division> {
        let Watched { pid, wall, scheduled, .. } = &self.watched;
        Some(Division::of((*scheduled)?, *pid, &self.collected.waits, *wall))
    }

    /// Returns facts that limit what the report says.
    pub(super) fn notes(&self) -> Vec<String> {
        let mut notes = Vec::new();
        for mount in &self.collected.mounts {
            let place = &mount.start.mountpoint;
            if mount.dropped > 0 {
                notes.push(format!("{} requests to {place} came too fast and are missing", mount.dropped));
            }
            if !mount.complete {
                notes.push(format!("the trace of {place} ended early: its daemon is gone or hangs"));
            }
            notes.extend(mount.start.warning.iter().map(|warning| format!("{place}: {warning}")));
        }
        notes.extend(self.collected.refused.iter().cloned());
        if self.collected.left_out > 0 {
            notes.push(format!(
                "{} requests beyond the limit of this report are left out",
                self.collected.left_out
            ));
        }
        notes
    }
}
