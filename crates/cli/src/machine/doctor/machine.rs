//! Checks the machine's requirements for mounting: the device, fusermount3, namespaces, the kernel, descriptors.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

use super::probe::{NoAnswer, ProbeResult, ProbeTarget, touch};
use super::{DoctorCheck, Finding, Severity, TIMEOUT};
use crate::settings::Settings;

/// Oldest kernel on which FUSE can be mounted in a user namespace.
const KERNEL_LEAST: (u32, u32) = (4, 18);
/// Minimum limit of open files: a daemon with a large cache opens some thousands.
const FILES_LEAST: u64 = 4096;

pub(super) fn checks(settings: &Settings) -> Vec<DoctorCheck> {
    let root = settings.root;
    let mut checks = vec![
        DoctorCheck::new("device", "/dev/fuse", || vec![device()]),
        DoctorCheck::new("kernel", "Linux", || vec![kernel()]),
        DoctorCheck::new("files", "RLIMIT_NOFILE", || vec![files()]),
    ];
    checks.push(DoctorCheck::new("confinement", "seccomp and Landlock", || vec![confinement()]));
    if !root {
        let both = || {
            let (mounting, running) = (fusermount(), namespaces());
            // Either is a way to use a repository.
            let usable = [&mounting, &running].iter().any(|finding| finding.grade == Severity::Good);
            let weigh = |finding: Finding| match finding.grade {
                Severity::Warning if !usable => Finding { grade: Severity::Broken, ..finding },
                _ => finding,
            };
            vec![weigh(mounting), weigh(running)]
        };
        checks.push(DoctorCheck::new("fusermount", "fusermount3", both));
    }
    checks
}

fn device() -> Finding {
    match esker_run::device_blocked() {
        None => Finding::good("device", "/dev/fuse", "it can be opened"),
        Some(blocked) => {
            let remedy = blocked.remedy.clone();
            Finding::broken("device", "/dev/fuse", blocked.to_string(), remedy)
        }
    }
}

fn confinement() -> Finding {
    let object = "seccomp and Landlock";
    let found = esker_confine::probe();
    if !found.seccomp {
        let cause = format!("daemons run without a filter of system calls: {found}");
        return Finding::warning("confinement", object, cause, "use a kernel with CONFIG_SECCOMP_FILTER");
    }
    match found.landlock {
        Some(version) => {
            let text = format!("daemons are confined to their system calls and paths (Landlock {version})");
            Finding::good("confinement", object, text)
        }
        None => Finding::good(
            "confinement",
            object,
            "daemons are confined to their system calls; this kernel has no Landlock for their paths",
        ),
    }
}

fn fusermount() -> Finding {
    let path = std::env::var_os("PATH").unwrap_or_default();
    let named = |folder: PathBuf| folder.join("fusermount3");
    let found = std::env::split_paths(&path).map(named).find(|path| path.is_file());
    let mend = "install the package fuse3; until then use `esker run`, which needs namespaces instead";
    match found {
        None => Finding::warning("fusermount", "fusermount3", "it is in no folder of PATH", mend),
        Some(path) if !is_set_uid(&path) => {
            let place = path.display();
            let mend = format!("as root: `chmod u+s {place}`; or use `esker run`");
            Finding::warning(
                "fusermount",
                place.to_string(),
                "it has no set-user-ID bit, so it can't mount",
                mend,
            )
        }
        Some(path) => Finding::good("fusermount", path.display().to_string(), "it can mount for all users"),
    }
}

fn is_set_uid(path: &Path) -> bool {
    fs::metadata(path).is_ok_and(|meta| meta.permissions().mode() & 0o4000 != 0)
}

fn namespaces() -> Finding {
    let object = "user namespaces";
    match touch(ProbeTarget::Namespaces, Path::new("/"), TIMEOUT) {
        Ok(ProbeResult::Blocked { cause, remedy }) => Finding::warning("namespaces", object, cause, remedy),
        Ok(_) => Finding::good("namespaces", object, "all users may create them"),
        Err(NoAnswer::Hangs) => {
            Finding::warning("namespaces", object, "making one does not end", "check the kernel log")
        }
        Err(NoAnswer::Failed(why)) => {
            Finding::warning("namespaces", object, why, "see whether processes can be started")
        }
    }
}

fn kernel() -> Finding {
    let release = rustix::system::uname().release().to_string_lossy().into_owned();
    let mut numbers =
        release.split(|c: char| !c.is_ascii_digit()).map(|part| part.parse::<u32>().unwrap_or(0));
    let version = (numbers.next().unwrap_or(0), numbers.next().unwrap_or(0));
    if version >= KERNEL_LEAST {
        return Finding::good("kernel", format!("Linux {release}"), "it has all that is needed");
    }
    let found = "FUSE can't be mounted in user namespaces, so `esker run` does not work";
    Finding::warning("kernel", format!("Linux {release}"), found, "use `esker mount`, or Linux 4.18 or newer")
}

fn files() -> Finding {
    let most = rustix::process::getrlimit(rustix::process::Resource::Nofile).maximum.unwrap_or(u64::MAX);
    if most >= FILES_LEAST {
        return Finding::good("files", "RLIMIT_NOFILE", "a daemon may open enough files");
    }
    let found = format!("a daemon may open only {most} files");
    let mend =
        format!("raise the hard limit to {FILES_LEAST} or more: /etc/security/limits.conf, LimitNOFILE=");
    Finding::warning("files", "RLIMIT_NOFILE", found, mend)
}
