//! Folders and files of this machine.

use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::Path;

use esker_cache_share::location::network_of;
use rustix::fs::{Access, StatVfsMountFlags, access, statvfs};

use super::{Checking, add, shown};
use crate::{ConfiguredCache, Finding, Parameters, Severity};

/// Quota in bytes below which the check warns, as the reference does.
const QUOTA_LEAST: u64 = 1000 << 20;
/// Minimum free bytes for objects being fetched; with less the cache is full.
const ROOM_LEAST: u64 = 64 << 20;

/// True if a user other than the owner may change it.
pub(super) fn others_may_write(path: &Path) -> bool {
    fs::metadata(path).is_ok_and(|meta| meta.mode() & 0o022 != 0 && meta.mode() & 0o1000 == 0)
}

/// Checks the configuration files themselves.
pub(super) fn configuration(parameters: &Parameters, how: &Checking, findings: &mut Vec<Finding>) {
    if parameters.files().is_empty() {
        findings.push(Finding::new(
            Severity::Error,
            "there is no configuration: neither /etc/cvmfs/default.conf nor any other file",
            "write /etc/cvmfs/default.local, or copy /etc/cvmfs from a machine that has it",
        ));
    }
    for path in parameters.files().iter().filter(|path| others_may_write(&how.root.place(path))) {
        let what = "other users may change this file, and with it the mounts";
        findings.push(
            Finding::new(Severity::Error, what, format!("`chmod go-w {}`", shown(path))).at(shown(path)),
        );
    }
}

/// Checks the folder of the cache, and its free space.
pub(super) fn cache(parameters: &Parameters, findings: &mut Vec<Finding>) {
    let cache = match parameters.cache() {
        Ok(Some(cache)) => cache,
        Ok(None) => return,
        Err(error) => return add(findings, &error),
    };
    let ConfiguredCache { path, from: (parameter, origin), quota } = cache;
    let folder = path.parent().unwrap_or(&path).to_owned();
    let mut problem = |severity, what: String, mend: String| {
        findings.push(Finding::new(severity, format!("{parameter}: {what}"), mend).at(&origin));
    };
    let at = shown(&folder);
    match fs::metadata(&folder) {
        Err(error) => {
            let mend = format!("`mkdir -p {at}`, or set {parameter} to a folder that is there");
            return problem(Severity::Error, format!("can't have a cache in {at}: {error}"), mend);
        }
        Ok(meta) if !meta.is_dir() => {
            let mend = format!("set {parameter} to a folder");
            return problem(Severity::Error, format!("{at} is not a folder"), mend);
        }
        Ok(_) => {}
    }
    if let Ok(Some(kind)) = network_of(&folder) {
        let mend = format!("set {parameter} to a folder on a disk of this node");
        problem(Severity::Error, format!("{at} is on a network file system ({kind}), which may hang"), mend);
    }
    if others_may_write(&folder) {
        problem(
            Severity::Error,
            format!("others may write to {at}, and exchange the cache in it"),
            format!("`chmod go-w {at}`"),
        );
    }
    let Ok(disk) = statvfs(&folder) else { return };
    if disk.f_flag.contains(StatVfsMountFlags::RDONLY) {
        problem(
            Severity::Error,
            format!("{at} is on a disk that is read-only"),
            "mount it for writing".into(),
        );
    } else if access(&folder, Access::WRITE_OK).is_err() {
        let mend = "`chown` it to the mounting user; users without write access use their own cache".into();
        problem(Severity::Error, format!("{at} is not writable"), mend);
    }
    let (total, free) =
        (disk.f_blocks.saturating_mul(disk.f_frsize), disk.f_bavail.saturating_mul(disk.f_frsize));
    if free < ROOM_LEAST {
        let mend = "make room on its disk, or set it to a folder on another".into();
        problem(Severity::Error, format!("the disk of {at} is full"), mend);
    }
    let room = |bytes: u64| format!("{} MB", bytes >> 20);
    match quota {
        Some(quota) if quota > total => problem(
            Severity::Error,
            format!("the quota is {}, but the whole disk of {at} has {}", room(quota), room(total)),
            format!("set CVMFS_QUOTA_LIMIT to at most {}", (total >> 20) * 85 / 100),
        ),
        Some(quota) if quota / 100 * 115 > total => problem(
            Severity::Warning,
            format!("the quota of {} leaves less than 15 % of the disk of {at} free", room(quota)),
            format!("set CVMFS_QUOTA_LIMIT to at most {}", (total >> 20) * 85 / 100),
        ),
        Some(quota) if quota < QUOTA_LEAST => problem(
            Severity::Warning,
            format!("a quota of {} is too small for most software", room(quota)),
            "set CVMFS_QUOTA_LIMIT to 4000 or more".into(),
        ),
        _ => {}
    }
}

/// Checks the mount points of repositories.
pub(super) fn mounts(parameters: &Parameters, findings: &mut Vec<Finding>) {
    let setting = parameters.get("CVMFS_MOUNT_DIR");
    let folder = Path::new(setting.map_or("/cvmfs", |setting| &setting.value));
    if !folder.is_dir() {
        let what = format!("CVMFS_MOUNT_DIR: {} is not there", shown(folder));
        let finding =
            Finding::new(Severity::Error, what, format!("`mkdir -p {}`, or `esker setup`", shown(folder)));
        findings.push(Finding { place: setting.map(|setting| setting.origin.to_string()), ..finding });
    }
    let strict = matches!(parameters.switch("CVMFS_STRICT_MOUNT"), Ok(Some(true)));
    if strict && parameters.get("CVMFS_REPOSITORIES").is_none() {
        let place = parameters.get("CVMFS_STRICT_MOUNT").map(|setting| setting.origin.to_string());
        let what =
            "CVMFS_STRICT_MOUNT is on and CVMFS_REPOSITORIES lists nothing, so that nothing may be mounted";
        let mend = "list the repositories in CVMFS_REPOSITORIES in /etc/cvmfs/default.local";
        findings.push(Finding { place, ..Finding::new(Severity::Error, what, mend) });
    }
}
