//! Provides `/proc` and `/sys` of a contained command: read-only or hidden where they show or change the machine.
//!
//! The lists are those of runc and podman. What is mounted over stays so: the command gets a user namespace below the
//! one of these mounts.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use rustix::mount::{MountFlags, UnmountFlags, mount, mount_bind, mount_bind_recursive, unmount};

use super::bind::mounts_at;
use super::build::{mount_tmpfs, read_only};
use super::{BindOptions, Stage, WORK};

/// Files and directories below `/proc` that can't be read.
const HIDDEN_PROCESSES: [&str; 15] = [
    "acpi",
    "asound",
    "interrupts",
    "kcore",
    "keys",
    "key-users",
    "kmsg",
    "kpagecount",
    "kpageflags",
    "latency_stats",
    "sched_debug",
    "scsi",
    "timer_list",
    "timer_stats",
    "vmcore",
];
/// Files and directories below `/proc` that can't be written.
const READ_ONLY_PROCESSES: [&str; 7] = ["bus", "dynamic_debug", "fs", "irq", "mtrr", "sys", "sysrq-trigger"];
/// Directories below `/sys` that can't be read.
const HIDDEN_SYSTEM: [&str; 7] = [
    "dev/block",
    "devices/virtual/powercap",
    "firmware",
    "fs/selinux",
    "hypervisor",
    "kernel/debug",
    "kernel/security",
];
/// Directory of processors, each of which counts how often it was too hot.
const PROCESSORS: &str = "devices/system/cpu";
const THROTTLED: &str = "thermal_throttle";

/// Mounts a new `/proc`. The kernel refuses it within other containers, which hide parts of theirs.
pub(super) fn processes(stage: &Stage, target: &Path) -> io::Result<()> {
    or_nothing(target, new_processes(stage, target))
}

/// Shows the host's `/sys`, read-only and without what is mounted in it.
pub(super) fn system(stage: &Stage, target: &Path) -> io::Result<()> {
    or_nothing(target, host_system(stage, target))
}

/// Unmounts what could not be hidden completely.
fn or_nothing(target: &Path, made: io::Result<()>) -> io::Result<()> {
    made.inspect_err(|_| while unmount(target, UnmountFlags::DETACH).is_ok() {})
}

fn new_processes(stage: &Stage, target: &Path) -> io::Result<()> {
    let flags = MountFlags::NOSUID | MountFlags::NODEV | MountFlags::NOEXEC;
    mount("proc", target, "proc", flags, c"")?;
    for name in READ_ONLY_PROCESSES {
        let path = target.join(name);
        if path.exists() {
            mount_bind_recursive(&path, &path)?;
            BindOptions::READ_ONLY.apply(&path, stage)?;
        }
    }
    hide(stage, HIDDEN_PROCESSES.into_iter().map(|name| target.join(name)))
}

fn host_system(stage: &Stage, target: &Path) -> io::Result<()> {
    // The kernel binds it only with the mounts below it, for users other than root.
    mount_bind_recursive(stage.host(Path::new("/sys")), target)?;
    let options = BindOptions { no_exec: true, no_suid: true, no_dev: true, ..BindOptions::READ_ONLY };
    options.apply(target, stage)?;
    let mounts = mounts_at(target, stage)?.into_iter().skip(1);
    let throttled = fs::read_dir(target.join(PROCESSORS)).into_iter().flatten().flatten();
    let throttled = throttled.map(|processor| processor.path().join(THROTTLED));
    hide(stage, mounts.chain(HIDDEN_SYSTEM.into_iter().map(|name| target.join(name))).chain(throttled))
}

/// Mounts something empty over each of these paths that exists.
fn hide(stage: &Stage, paths: impl Iterator<Item = PathBuf>) -> io::Result<()> {
    let empty = empty_directory()?;
    // The host's device: an image can't put another file in its place.
    let null = stage.host(Path::new("/dev/null"));
    for path in paths {
        match fs::symlink_metadata(&path) {
            Ok(meta) if meta.is_dir() => mount_bind(&empty, &path)?,
            Ok(meta) if !meta.is_symlink() => mount_bind(&null, &path)?,
            // It is absent, or below another one that is hidden.
            _ => {}
        }
    }
    Ok(())
}

/// Returns an empty directory that can't be written.
fn empty_directory() -> io::Result<PathBuf> {
    let path = Path::new(WORK).join("empty");
    if !path.exists() {
        fs::create_dir(&path)?;
        mount_tmpfs(&path, "mode=0555,size=4k")?;
        read_only(&path)?;
    }
    Ok(path)
}
