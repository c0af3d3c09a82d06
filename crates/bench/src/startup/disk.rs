//! What a warm run read from the disk, and whether it was warm at all.
//!
//! A page cache that was not dropped, or that another process filled again, makes a run look faster than a disk can be.
//! So the bytes that the block device read are compared with what lies in memory after the run.

use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::Path;

use anyhow::{Context, Result};
use serde::{Deserialize, Serialize};

use crate::hold;

/// A sector of /proc/diskstats, whatever the device's own are.
const SECTOR: u64 = 512;

/// A run is void when less than this part of its working set came from the device, in percent.
const LEAST_PERCENT: u64 = 90;

/// The block device below a folder.
#[derive(Clone, Copy, Debug)]
pub struct Disk {
    major: u32,
    minor: u32,
}

impl Disk {
    /// That of this folder; none where its file system is not on one device, or in memory.
    pub fn below(folder: &Path) -> Result<Option<Self>> {
        let meta = fs::metadata(folder).with_context(|| format!("can't look at {}", folder.display()))?;
        let disk = Self { major: rustix::fs::major(meta.dev()), minor: rustix::fs::minor(meta.dev()) };
        Ok(read_of(&stats()?, disk).map(|_| disk))
    }

    /// Bytes read from it since the machine started, by anybody.
    pub fn read(self) -> Result<u64> {
        read_of(&stats()?, self)
            .with_context(|| format!("device {}:{} is gone from /proc/diskstats", self.major, self.minor))
    }
}

fn stats() -> Result<String> {
    fs::read_to_string("/proc/diskstats").context("can't read /proc/diskstats")
}

/// The bytes read of one device, of the kernel's table (Documentation/admin-guide/iostats.rst: major, minor, name, reads,
/// reads merged, sectors read, …).
fn read_of(stats: &str, disk: Disk) -> Option<u64> {
    stats.lines().find_map(|line| {
        let mut fields = line.split_whitespace();
        let is_it = fields.next()?.parse() == Ok(disk.major) && fields.next()?.parse() == Ok(disk.minor);
        let sectors: u64 = fields.nth(3)?.parse().ok()?;
        is_it.then(|| sectors.saturating_mul(SECTOR))
    })
}

/// What a warm run read.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct DiskReads {
    /// Bytes read from the block device meanwhile, by anybody.
    pub device: u64,
    /// Bytes of the files below the root, or below the client's cache, that lay in memory afterwards.
    pub working_set: u64,
}

impl DiskReads {
    /// What `folder` has in memory now, beside what its disk read since it had read `before`.
    pub fn since(before: u64, disk: Disk, folder: &Path) -> Result<Self> {
        Ok(Self { device: disk.read()?.saturating_sub(before), working_set: hold::resident_bytes(folder)? })
    }

    /// Whether part of the working set was in memory before: such a run says nothing about a disk.
    pub fn is_void(&self) -> bool {
        self.device.saturating_mul(100) < self.working_set.saturating_mul(LEAST_PERCENT)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_table_of_the_kernel_is_understood() {
        let stats = "   7       0 loop0 11 0 22 0 0 0 0 0 0 0 0\n 254       0 vda 1 2 2048 4 5 6 7 8 0 9 10 11 12 13 14\n";
        assert_eq!(read_of(stats, Disk { major: 254, minor: 0 }), Some(1 << 20));
        assert_eq!(read_of(stats, Disk { major: 7, minor: 0 }), Some(22 * 512));
        assert_eq!(read_of(stats, Disk { major: 254, minor: 1 }), None);
        assert_eq!(read_of("254 0 vda", Disk { major: 254, minor: 0 }), None);
    }

    #[test]
    fn a_run_from_memory_is_void() {
        let folder = tempfile::tempdir().expect("a folder");
        fs::write(folder.path().join("file"), vec![1; 1 << 20]).expect("a file");
        let working_set = hold::resident_bytes(folder.path()).expect("a number");
        assert_eq!(working_set, 1 << 20, "what was just written is in memory");
        assert!(DiskReads { device: working_set / 2, working_set }.is_void());
        assert!(!DiskReads { device: working_set, working_set }.is_void());
    }

    #[test]
    fn memory_is_no_disk() {
        assert!(Disk::below(Path::new("/proc")).expect("a look").is_none());
    }
}
