//! Checks the cache folders of this user's mounts, and the folder for the next mount.

use std::collections::BTreeSet;
use std::path::PathBuf;

use esker_node::registry;

use super::probe::{NoAnswer, ProbeResult, ProbeTarget, touch};
use super::{DoctorCheck, Finding, TIMEOUT};
use crate::output::size;
use crate::settings::Settings;

/// Minimum free bytes of a cache's disk; with less the doctor reports a problem.
const FREE_LEAST: u64 = 64 << 20;
/// Free bytes of a cache's disk below which the doctor reports a warning.
const FREE_SOON: u64 = 1 << 30;

pub(super) fn checks(settings: &Settings) -> Vec<DoctorCheck> {
    let mounted = registry::all(&settings.runtime).unwrap_or_default();
    let folders: BTreeSet<PathBuf> = mounted.into_iter().map(|one| one.entry.cache).collect();
    let folders = folders.into_iter().filter(|folder| !folder.as_os_str().is_empty());
    let mounted = folders.map(|folder| (folder.display().to_string(), ProbeTarget::Cache, folder));
    // Whatever those have that are mounted: the next one needs a place.
    let next = ("of the next mount".to_owned(), ProbeTarget::DefaultCache, PathBuf::from("/"));
    let look = |(named, what, folder): (String, ProbeTarget, PathBuf)| {
        DoctorCheck::new("cache", named.clone(), move || vec![of_cache(named, touch(what, &folder, TIMEOUT))])
    };
    mounted.chain([next]).map(look).collect()
}

fn of_cache(named: String, touched: Result<ProbeResult, NoAnswer>) -> Finding {
    let other = "or name another folder with --cache DIR when mounting";
    match touched {
        Ok(ProbeResult::Writable { free, total, .. }) if free < FREE_LEAST => {
            full(named, &format!(": {} of {} are free", size(free), size(total)), other)
        }
        Ok(ProbeResult::Writable { network: Some(kind), .. }) => {
            let found = format!("it is on a network file system ({kind}), which may hang and is slow");
            Finding::warning("cache", named, found, "name a folder on a disk of this node with --cache DIR")
        }
        Ok(ProbeResult::Writable { free, total, .. }) if free < FREE_SOON => {
            let found = format!("its disk is nearly full: {} of {} are free", size(free), size(total));
            Finding::warning("cache", named, found, format!("make room on that disk, {other}"))
        }
        Ok(ProbeResult::Blocked { cause, remedy }) => Finding::broken("cache", named, cause, remedy),
        Ok(ProbeResult::Absent) => Finding::good("cache", named, "it will be made by the first mount"),
        Ok(ProbeResult::Failed { errno: libc::ENOSPC | libc::EDQUOT, .. }) => full(named, "", other),
        Ok(ProbeResult::Failed { errno: libc::EROFS, .. }) => {
            let found = "its disk is read-only, most likely after an error";
            Finding::broken(
                "cache",
                named,
                found,
                format!("check the kernel log and mount it read-write, {other}"),
            )
        }
        Ok(ProbeResult::Failed { call, text, .. }) => Finding::broken(
            "cache",
            named,
            format!("{call} fails: {text}"),
            format!("give it to its user with mode 0700, {other}"),
        ),
        Ok(_) => Finding::good("cache", named, "it can be written and has room"),
        Err(NoAnswer::Hangs) => {
            let found = format!("it did not respond within {TIMEOUT:?}: its disk hangs");
            Finding::broken("cache", named, found, format!("check the disk, {other}"))
        }
        Err(NoAnswer::Failed(why)) => {
            let found = format!("it could not be checked: {why}");
            Finding::warning("cache", named, found, "see whether processes can be started")
        }
    }
}

fn full(named: String, room: &str, other: &str) -> Finding {
    let found = format!("its disk is full{room}; reads continue without caching");
    Finding::broken("cache", named, found, format!("make room on that disk (`esker cache evict`), {other}"))
}
