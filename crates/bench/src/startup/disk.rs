//! Reads from disk during a cold or warm run, and whether a warm run was warm.
//!
//! A page cache that was not dropped, or that another process filled again, makes a run look faster than a disk can
//! be. So the bytes that the block device read are compared with the bytes in memory after the run.

use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::Path;

use anyhow::{Context, Result};
use serde::Serialize;

use crate::hold;

/// Size of a sector in /proc/diskstats, whatever the sector size of the device.
const SECTOR: u64 = 512;

/// Minimum percentage of the working set that a valid run reads from the device.
const LEAST_PERCENT: u64 = 90;

/// The block device below a folder.
#[derive(Clone, Copy, Debug)]
pub struct Disk {
    major: u32,
    minor: u32,
}

impl Disk {
    /// Returns the disk of this folder; `None` if its file system is in memory or on several devices.
    pub fn below(folder: &Path) -> Result<Option<Self>> {
        let meta = fs::metadata(folder).with_context(|| format!("can't look at {}", folder.display()))?;
        let disk = Self { major: rustix::fs::major(meta.dev()), minor: rustix::fs::minor(meta.dev()) };
        Ok(read_of(&stats()?, disk).map(|_| disk))
    }

    /// Returns the device's reads since boot, by all processes.
    pub fn read(self) -> Result<Reads> {
        read_of(&stats()?, self)
            .with_context(|| format!("device {}:{} is gone from /proc/diskstats", self.major, self.minor))
    }
}

/// Reads of a device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Reads {
    requests: u64,
    bytes: u64,
}

fn stats() -> Result<String> {
    fs::read_to_string("/proc/diskstats").context("can't read /proc/diskstats")
}

/// Parses the reads of one device from /proc/diskstats (Documentation/admin-guide/iostats.rst: major, minor,
/// name, reads, reads merged, sectors read, …).
fn read_of(stats: &str, disk: Disk) -> Option<Reads> {
    stats.lines().find_map(|line| {
        let mut fields = line.split_whitespace();
        let is_it = fields.next()?.parse() == Ok(disk.major) && fields.next()?.parse() == Ok(disk.minor);
        let requests = fields.nth(1)?.parse().ok()?;
        let sectors: u64 = fields.nth(1)?.parse().ok()?;
        is_it.then(|| Reads { requests, bytes: sectors.saturating_mul(SECTOR) })
    })
}

/// Disk reads of a run.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct DiskReads {
    /// Requests that the block device completed during the run, for all processes.
    #[serde(default)]
    pub requests: u64,
    /// Bytes read from the device.
    pub device: u64,
    /// Bytes of the files below the root, or below the client's cache, that were in memory after a warm run.
    pub working_set: Option<u64>,
}

impl DiskReads {
    /// Returns the reads since `before`, and the bytes of `folder` in memory now.
    pub fn since(before: Reads, disk: Disk, folder: Option<&Path>) -> Result<Self> {
        let now = disk.read()?;
        Ok(Self {
            requests: now.requests.saturating_sub(before.requests),
            device: now.bytes.saturating_sub(before.bytes),
            working_set: folder.map(hold::resident_bytes).transpose()?,
        })
    }

    /// True if part of the working set was in memory before: such a run says nothing about a disk.
    pub fn is_void(&self) -> bool {
        let working_set = self.working_set.unwrap_or(0);
        self.device.saturating_mul(100) < working_set.saturating_mul(LEAST_PERCENT)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_disk_table_of_the_kernel_is_parsed() {
        let stats = "   7       0 loop0 11 0 22 0 0 0 0 0 0 0 0\n 254       0 vda 1 2 2048 4 5 6 7 8 0 9 10 11 12 13 14\n";
        let of = |major, minor| read_of(stats, Disk { major, minor });
        assert_eq!(of(254, 0), Some(Reads { requests: 1, bytes: 1 << 20 }));
        assert_eq!(of(7, 0), Some(Reads { requests: 11, bytes: 22 * 512 }));
        assert_eq!(read_of(stats, Disk { major: 254, minor: 1 }), None);
        assert_eq!(read_of("254 0 vda", Disk { major: 254, minor: 0 }), None);
    }

    #[test]
    fn a_run_from_memory_is_void() {
        let folder = tempfile::tempdir().expect("a folder");
        fs::write(folder.path().join("file"), vec![1; 1 << 20]).expect("a file");
        let working_set = hold::resident_bytes(folder.path()).expect("a number");
        assert_eq!(working_set, 1 << 20, "what was just written is in memory");
        let reads = |device| DiskReads { requests: 1, device, working_set: Some(working_set) };
        assert!(reads(working_set / 2).is_void());
        assert!(!reads(working_set).is_void());
        assert!(!DiskReads { working_set: None, ..reads(0) }.is_void(), "the working set is unknown");
    }

    #[test]
    fn a_file_system_in_memory_has_no_disk() {
        assert!(Disk::below(Path::new("/proc")).expect("a look").is_none());
    }
}
