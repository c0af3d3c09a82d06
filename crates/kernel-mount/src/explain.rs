//! Explanations of a refused mount, with the setting to change.

use std::fs;
use std::io;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;

use crate::DEVICE;

const NOT_A_DIRECTORY: &str = "it is not a directory";

/// Explains why `/dev/fuse` can't be opened.
pub(crate) fn device(error: &io::Error) -> String {
    match error.raw_os_error() {
        Some(libc::ENOENT) => "it does not exist: load the kernel module (modprobe fuse), or in a container \
                               pass the device through (--device /dev/fuse)"
            .into(),
        Some(libc::ENODEV | libc::ENXIO) => "the kernel has no FUSE: load the module (modprobe fuse)".into(),
        Some(libc::EACCES) => {
            let mode = fs::metadata(DEVICE).map_or_else(|_| "unknown".into(), |m| mode_text(&m));
            format!("its mode {mode} keeps you out; an administrator can allow it with chmod 0666 {DEVICE}")
        }
        Some(libc::EPERM) => "a device policy (a container's, or the cgroup's) forbids it: pass the device \
                              through (--device /dev/fuse)"
            .into(),
        _ => error.to_string(),
    }
}

fn mode_text(metadata: &fs::Metadata) -> String {
    format!("{:04o}", metadata.permissions().mode() & 0o7777)
}

/// Explains why mount(2) failed.
pub(crate) fn mount(error: &io::Error, mountpoint: &Path) -> String {
    match error.raw_os_error() {
        Some(libc::EPERM) => {
            let setting = namespace_setting().unwrap_or_else(|| {
                "mounting needs root, fusermount3, or a user namespace of one's own".into()
            });
            format!("not permitted: {setting}")
        }
        Some(libc::ENOENT) => "there is no such directory".into(),
        Some(libc::ENOTDIR) => NOT_A_DIRECTORY.into(),
        // The kernel compares the type of the root with that of the mountpoint.
        Some(libc::EINVAL) if mountpoint.metadata().is_ok_and(|m| !m.is_dir()) => NOT_A_DIRECTORY.into(),
        Some(libc::ENODEV) => "the kernel has no FUSE: load the module (modprobe fuse)".into(),
        Some(libc::EINVAL) => {
            "the kernel refuses it: /dev/fuse was opened in another user namespace, or the \
                               kernel is older than 4.18 and can't mount FUSE in one"
                .into()
        }
        _ => error.to_string(),
    }
}

/// Explains why umount2(2) failed.
pub(crate) fn unmount(error: &io::Error) -> String {
    match error.raw_os_error() {
        Some(libc::EBUSY) => "a program still uses it (fuser -vm shows which)".into(),
        Some(libc::EINVAL) => "nothing is mounted there".into(),
        Some(libc::ENOENT) => "there is no such directory".into(),
        _ => error.to_string(),
    }
}

/// Returns the kernel setting that denies user namespaces to unprivileged users, if one does.
pub fn namespace_setting() -> Option<String> {
    let read = |name: &str| fs::read_to_string(format!("/proc/sys/{name}")).ok()?.trim().parse::<u64>().ok();
    if read("user/max_user_namespaces") == Some(0) {
        return Some(
            "user.max_user_namespaces is 0; an administrator can set it: sysctl user.max_user_namespaces=15000"
                .into(),
        );
    }
    if read("kernel/unprivileged_userns_clone") == Some(0) {
        return Some(
            "kernel.unprivileged_userns_clone is 0; an administrator can set it: sysctl \
             kernel.unprivileged_userns_clone=1"
                .into(),
        );
    }
    if read("kernel/apparmor_restrict_unprivileged_userns").is_some_and(|v| v != 0) {
        return Some(
            "kernel.apparmor_restrict_unprivileged_userns is 1; an administrator can set it to 0, or give \
             esker an AppArmor profile with userns"
                .into(),
        );
    }
    None
}
