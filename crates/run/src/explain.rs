//! Explains why namespaces or `/dev/fuse` don't work on this machine, and gives advice.

use std::fmt;
use std::fs;
use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::path::PathBuf;

/// Step that failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Step {
    /// Making a user and a mount namespace.
    Namespace,
    /// Writing the user and group maps of the new namespace.
    Mapping,
    /// Building a root directory with the mount points in it.
    Root,
    /// Opening of `/dev/fuse`.
    Device,
    /// Mounting the opened `/dev/fuse`.
    Mount,
}

/// Describes why the system denies a command its namespaces: step, setting and remedy.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Blocked {
    /// Step that failed.
    pub step: Step,
    /// Error and its cause.
    pub cause: String,
    /// Advice for the user.
    pub remedy: String,
}

impl fmt::Display for Blocked {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self.step {
            Step::Namespace => "can't make a user namespace: ",
            Step::Mapping => "can't map the user into a new namespace: ",
            Step::Root => "can't build a root directory for the command: ",
            Step::Device => "can't open /dev/fuse: ",
            Step::Mount => "can't mount in a new namespace: ",
        })?;
        f.write_str(&self.cause)
    }
}

impl std::error::Error for Blocked {}

/// Settings of this machine that control namespaces. `None`: this kernel doesn't have the setting.
#[derive(Clone, Debug, Default)]
pub(crate) struct Facts {
    pub(crate) max_user_namespaces: Option<u64>,
    pub(crate) apparmor_restricts: Option<u64>,
    pub(crate) unprivileged_clone: Option<u64>,
    /// Mode, owner and group of `/dev/fuse`.
    pub(crate) device: Option<(u32, u32, u32)>,
    pub(crate) seccomp: bool,
    pub(crate) user_namespaces_built_in: bool,
}

impl Facts {
    pub(crate) fn gather() -> Self {
        let setting = |path: &str| fs::read_to_string(path).ok()?.trim().parse().ok();
        let status = fs::read_to_string("/proc/thread-self/status").unwrap_or_default();
        let seccomp =
            status.lines().any(|line| line.strip_prefix("Seccomp:").is_some_and(|mode| mode.trim() != "0"));
        let device = fs::metadata("/dev/fuse").ok();
        Self {
            max_user_namespaces: setting("/proc/sys/user/max_user_namespaces"),
            apparmor_restricts: setting("/proc/sys/kernel/apparmor_restrict_unprivileged_userns"),
            unprivileged_clone: setting("/proc/sys/kernel/unprivileged_userns_clone"),
            device: device.map(|meta| (meta.mode() & 0o7777, meta.uid(), meta.gid())),
            seccomp,
            user_namespaces_built_in: PathBuf::from("/proc/self/ns/user").exists(),
        }
    }
}

const INSTEAD: &str = "or use `esker mount`, which needs fusermount3 instead of namespaces";

/// Returns the reason why this process can't open `/dev/fuse`; `None` if it can.
pub fn device_blocked() -> Option<Blocked> {
    device_for_mount().err()
}

/// Opens `/dev/fuse` for a mount.
pub(crate) fn device_for_mount() -> Result<OwnedFd, Blocked> {
    let refused = |error: io::Error| explain(Step::Device, &error, &Facts::gather());
    let device = fs::OpenOptions::new().read(true).write(true).open("/dev/fuse").map_err(refused)?;
    let kind = device.metadata().map_err(refused)?.file_type();
    if kind.is_char_device() {
        return Ok(device.into());
    }
    let cause = "it is not a device".to_owned();
    let remedy = "ask the administrator for `rm /dev/fuse` and `mknod -m 666 /dev/fuse c 10 229`".to_owned();
    Err(Blocked { step: Step::Device, cause, remedy })
}

/// Finds the setting that explains `error` at `step`.
pub(crate) fn explain(step: Step, error: &io::Error, facts: &Facts) -> Blocked {
    let (cause, remedy) = match step {
        Step::Device => device(error, facts),
        Step::Namespace | Step::Mapping | Step::Mount | Step::Root => namespace(step, error, facts),
    };
    Blocked { step, cause, remedy }
}

fn namespace(step: Step, error: &io::Error, facts: &Facts) -> (String, String) {
    let refused = matches!(error.raw_os_error(), Some(libc::EPERM | libc::EACCES));
    let out_of = matches!(error.raw_os_error(), Some(libc::ENOSPC | libc::EUSERS));
    let ask = |setting: &str| {
        format!(
            "ask the administrator for `sysctl -w {setting}` (and in /etc/sysctl.d for the next boot), {INSTEAD}"
        )
    };
    if !facts.user_namespaces_built_in {
        let cause = format!("{error}: this kernel is built without user namespaces");
        return (cause, "use `esker mount`, which needs fusermount3 instead of namespaces".into());
    }
    if step == Step::Namespace && out_of {
        let cause = match facts.max_user_namespaces {
            Some(0) => "user.max_user_namespaces is 0, which forbids them".to_owned(),
            Some(max) => format!(
                "user.max_user_namespaces is {max} and all are in use, or an outer container sets a lower limit"
            ),
            None => error.to_string(),
        };
        return (cause, ask("user.max_user_namespaces=15000"));
    }
    if refused && facts.apparmor_restricts.is_some_and(|value| value != 0) {
        let cause = "kernel.apparmor_restrict_unprivileged_userns is 1, which forbids them to programs without an AppArmor profile";
        return (cause.into(), ask("kernel.apparmor_restrict_unprivileged_userns=0"));
    }
    if refused && facts.unprivileged_clone == Some(0) {
        let cause = "kernel.unprivileged_userns_clone is 0, which forbids them to ordinary users";
        return (cause.into(), ask("kernel.unprivileged_userns_clone=1"));
    }
    if refused && facts.seccomp {
        let cause = format!("{error}: a seccomp filter (of a container runtime, most likely) is in force");
        return (cause, "start the container so that it may make namespaces (`--security-opt seccomp=unconfined` and `--device /dev/fuse`), or mount outside and bind the directory into it".into());
    }
    if refused && step == Step::Namespace {
        let cause = format!("{error}: this process runs in a chroot, or a security module forbids it");
        return (cause, format!("run it outside the chroot, {INSTEAD}"));
    }
    if refused && step == Step::Mapping {
        let cause =
            format!("{error}: the container dropped a capability (SETFCAP), or a security module forbids it");
        return (cause, INSTEAD.trim_start_matches("or ").into());
    }
    if step == Step::Mount && error.raw_os_error() == Some(libc::EINVAL) {
        let cause = format!("{error}: this process runs in a chroot whose root is not a mount point");
        return (cause, "bind that directory on itself before entering it (`mount --bind DIR DIR`), or run it outside the chroot".into());
    }
    if refused && step == Step::Mount {
        let cause =
            format!("{error}: the kernel may be older than Linux 4.18, or a security module forbids it");
        return (cause, INSTEAD.trim_start_matches("or ").into());
    }
    (error.to_string(), INSTEAD.trim_start_matches("or ").into())
}

fn device(error: &io::Error, facts: &Facts) -> (String, String) {
    match (error.raw_os_error(), facts.device) {
        (Some(libc::ENOENT), _) => (
            "it doesn't exist".into(),
            "ask the administrator for `modprobe fuse`; in a container start it with `--device /dev/fuse`".into(),
        ),
        (Some(libc::ENODEV | libc::ENXIO), _) => {
            ("the kernel module isn't loaded".into(), "ask the administrator for `modprobe fuse`".into())
        }
        (Some(libc::EACCES), Some((mode, uid, gid))) => (
            format!("its mode is {mode:04o} (owner {uid}, group {gid}), which doesn't let this user open it"),
            "ask the administrator for `chmod 0666 /dev/fuse`, the mode that Linux distributions give it; in a container, see that the device keeps its mode".into(),
        ),
        (Some(libc::EPERM), _) => (
            format!("{error}: the container or job isn't allowed to use this device"),
            "start the container with `--device /dev/fuse`, or ask the administrator to allow the device to jobs".into(),
        ),
        _ => (error.to_string(), INSTEAD.trim_start_matches("or ").into()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn facts() -> Facts {
        Facts { user_namespaces_built_in: true, max_user_namespaces: Some(1000), ..Facts::default() }
    }

    fn blocked(step: Step, errno: i32, facts: &Facts) -> String {
        let blocked = explain(step, &io::Error::from_raw_os_error(errno), facts);
        assert!(!blocked.remedy.is_empty());
        format!("{blocked}\n{}", blocked.remedy)
    }

    #[test]
    fn each_setting_is_named_with_its_remedy() {
        let none = Facts { max_user_namespaces: Some(0), ..facts() };
        let text = blocked(Step::Namespace, libc::ENOSPC, &none);
        assert!(text.contains("user.max_user_namespaces is 0") && text.contains("sysctl -w"), "{text}");

        let restricted = Facts { apparmor_restricts: Some(1), ..facts() };
        for step in [Step::Namespace, Step::Mapping, Step::Mount, Step::Root] {
            let text = blocked(step, libc::EACCES, &restricted);
            assert!(text.contains("apparmor_restrict_unprivileged_userns=0"), "{text}");
        }

        let debian = Facts { unprivileged_clone: Some(0), ..facts() };
        assert!(blocked(Step::Namespace, libc::EPERM, &debian).contains("unprivileged_userns_clone=1"));

        let filtered = Facts { seccomp: true, ..facts() };
        assert!(blocked(Step::Namespace, libc::EPERM, &filtered).contains("seccomp"));

        let closed = Facts { device: Some((0o600, 0, 0)), ..facts() };
        let text = blocked(Step::Device, libc::EACCES, &closed);
        assert!(text.contains("mode is 0600") && text.contains("chmod 0666 /dev/fuse"), "{text}");
        assert!(blocked(Step::Device, libc::ENOENT, &facts()).contains("modprobe fuse"));

        let without = Facts { user_namespaces_built_in: false, ..facts() };
        assert!(blocked(Step::Namespace, libc::EINVAL, &without).contains("built without"));
    }

    #[test]
    fn an_exhausted_namespace_limit_is_explained() {
        let text = blocked(Step::Namespace, libc::ENOSPC, &facts());
        assert!(text.contains("is 1000 and all are in use"), "{text}");
    }
}
