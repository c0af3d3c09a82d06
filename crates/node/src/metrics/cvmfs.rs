//! Metrics under the names of the exporter for CernVM-FS clients (prometheus-cvmfs for 2.14), which sites have in their
//! dashboards and alerts.
//!
//! Left out is what this client doesn't have: timeouts, transfer times, and the trackers of `cvmfs_internal_*`.

use std::collections::BTreeSet;
use std::path::Path;
use std::time::{Duration, SystemTime};

use esker_store::without_passwords;
use esker_threads::watchdog;

use super::affairs::wanted;
use super::family::{Families, Family, Kind, label};
use super::scrape::{Scrape, ScrapedMount};
use crate::status::{MountStatus, seconds};

use Kind::{Counter, Gauge};

/// Time for a file system to tell its size.
const SIZE_TIMEOUT: Duration = Duration::from_millis(500);

/// Returns the metrics of the mounted repositories. The exporter knows one mount for each; here it is the first.
pub fn of_exporter(scrape: &Scrape) -> Vec<Family> {
    let mut all = Families::default();
    let mut known = BTreeSet::new();
    let now = seconds(SystemTime::now());
    for mount in &scrape.mounts {
        let Some(status) = mount.status.as_ref().filter(|status| status.image.is_none()) else { continue };
        if known.insert(&mount.repository) {
            add(&mut all, mount, status, now);
        }
    }
    all.into_inner()
}

fn add(all: &mut Families, mount: &ScrapedMount, status: &MountStatus, now: u64) {
    let repo = vec![("repo", label(&mount.repository))];
    let with = |more: Vec<(&'static str, String)>| repo.iter().cloned().chain(more).collect::<Vec<_>>();
    let version = env!("CARGO_PKG_VERSION");
    let about = with(vec![
        ("mountpoint", label(&mount.mountpoint)),
        ("version", version.to_owned()),
        ("revision", status.revision.to_string()),
    ]);
    all.add(Gauge, ("cvmfs_repo", "Version of the client, and revision"), about, 1);
    let (network, process, view) = (&status.network, &status.process, &status.view);
    let cache = &status.cache.state;
    let opened = |name: &str| {
        let requests = status.requests.iter().find(|requests| requests.name == name);
        requests.map_or(0, |requests| requests.requests.saturating_sub(requests.errors))
    };
    let last_failure = status.errors.iter().map(|failure| failure.time).max().unwrap_or(0);
    for (name, help, value) in [
        ("cvmfs_cache_cached_bytes", "Bytes of objects in the cache", cache.used),
        ("cvmfs_cache_pinned_bytes", "Bytes of pinned objects", cache.pinned),
        ("cvmfs_cache_total_size_bytes", "Quota of the cache", cache.quota),
        ("cvmfs_repo_version", "Version of the client as a number", version_number(version)),
        ("cvmfs_repo_revision", "Number of the mounted revision", status.revision),
        ("cvmfs_repo_nclg", "Mounted catalogs", view.catalogs),
        ("cvmfs_repo_mount_timestamp_seconds", "Time of mounting", status.mounted),
        (
            "cvmfs_repo_expires_seconds",
            "Time until a newer revision is looked for; 0 for a fixed one",
            match status.fixed {
                true => 0,
                false => status.checked.saturating_add(status.ttl.unwrap_or(0)).saturating_sub(now),
            },
        ),
        ("cvmfs_cache_mode", "1: the cache can be written", 1),
        ("cvmfs_sys_useddirp", "Open folders", opened("OPENDIR").saturating_sub(opened("RELEASEDIR"))),
        ("cvmfs_sys_ndiropen", "Folders that were opened", opened("OPENDIR")),
        ("cvmfs_sys_inode_max", "Largest number of an inode", u64::MAX),
        ("cvmfs_sys_memory_usage_bytes", "Memory of the daemon", process.resident_bytes),
        ("cvmfs_sys_usedfd", "Files that may be open", view.held),
        ("cvmfs_sys_maxfd", "Limit of open descriptors of the daemon", process.descriptors_limit),
        ("cvmfs_sys_pid", "Process of the daemon", status.pid.into()),
        ("cvmfs_sys_last_ioerr_timestamp_seconds", "Time of the last failure, or 0", last_failure),
        ("cvmfs_sys_drainout_mode", "0: this client doesn't need it", 0),
        ("cvmfs_sys_maintenance_mode", "0: this client doesn't need it", 0),
        ("cvmfs_sys_nfs_mode", "0: every mount can be exported", 0),
    ] {
        all.add(Gauge, (name, help), repo.clone(), value);
    }
    for (name, help, value) in [
        ("cvmfs_repo_uptime_seconds", "Time since mounting", now.saturating_sub(status.mounted)),
        ("cvmfs_net_rx_bytes_total", "Bytes received", network.received_bytes),
        ("cvmfs_net_ndownload_total", "Objects fetched", status.fetched.fetched),
        ("cvmfs_sys_nioerr_total", "Failures", view.failures),
    ] {
        all.add(Counter, (name, help), repo.clone(), value);
    }
    for (name, help, micros) in [
        ("cvmfs_sys_cpu_user_seconds_total", "Processor time of the daemon", process.cpu_user_us),
        (
            "cvmfs_sys_cpu_system_seconds_total",
            "Processor time of the kernel for the daemon",
            process.cpu_system_us,
        ),
    ] {
        all.add(Counter, (name, help), repo.clone(), micros as f64 / 1e6);
    }
    let wanted = wanted(status).max(1);
    let hits = status.fetched.hits as f64 * 100.0 / wanted as f64;
    // Evictions are not counted by the hour.
    all.add(Gauge, ("cvmfs_cache_ncleanup24", "-1: cleanups are not counted"), repo.clone(), -1.0);
    all.add(Gauge, ("cvmfs_cache_hitrate", "Percentage of objects found in the cache"), repo.clone(), hits);
    // Another user may have named any folder, also one of a file system that answers nothing.
    let is_own = mount.user == rustix::process::geteuid().as_raw();
    if let Some((size, free)) = is_own.then(|| disk(&status.cache.directory)).flatten() {
        let physical = ("cvmfs_cache_physical_size_bytes", "Size of the file system of the cache");
        all.add(Gauge, physical, repo.clone(), size);
        let available = ("cvmfs_cache_physical_avail_bytes", "Free bytes of the file system of the cache");
        all.add(Gauge, available, repo.clone(), free);
    }
    for (group, proxies) in status.network.route.proxies.iter().enumerate() {
        for proxy in proxies {
            let name = label(&without_passwords(&proxy.name));
            let of_group = with(vec![("group", group.to_string()), ("url", name.clone())]);
            all.add(Gauge, ("cvmfs_net_proxy", "Proxies of the repository"), of_group, 1);
            if proxy.active {
                let active = ("cvmfs_net_active_proxy", "Proxy that requests go through");
                all.add(Gauge, active, with(vec![("proxy", name)]), 1);
            }
        }
    }
}

/// Returns the size of the folder's file system and what is free of it, unless it doesn't answer.
fn disk(folder: &Path) -> Option<(u64, u64)> {
    let folder = folder.to_owned();
    let about = watchdog::within(SIZE_TIMEOUT, move || rustix::fs::statvfs(&folder).ok())??;
    Some((about.f_blocks.saturating_mul(about.f_frsize), about.f_bavail.saturating_mul(about.f_frsize)))
}

/// Returns a version as one number: two digits each for the parts behind the first.
fn version_number(version: &str) -> u64 {
    let parts = version.split(['.', '-']).take(3).map(|part| part.parse::<u64>().unwrap_or(0).min(99));
    parts.chain(std::iter::repeat(0)).take(3).fold(0, |number, part| number * 100 + part)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::metrics::Value;

    #[test]
    fn versions_are_comparable_numbers() {
        assert_eq!(version_number("2.13.2"), 21_302);
        assert_eq!(version_number("0.1.0-rc1"), 100);
    }

    #[test]
    fn a_repository_is_exported_once() {
        let mount = |user: u32, revision| ScrapedMount {
            user,
            mountpoint: format!("/cvmfs/{user}"),
            repository: "a.test".into(),
            status: Some(MountStatus { revision, ..MountStatus::default() }),
        };
        let scrape = Scrape { mounts: vec![mount(0, 7), mount(1000, 8)], ..Scrape::default() };
        let all = of_exporter(&scrape);
        let revision = all.iter().find(|family| family.name == "cvmfs_repo_revision").expect("a revision");
        assert_eq!(revision.samples.len(), 1);
        assert_eq!(revision.samples[0].value, Value::Whole(7));
    }
}
