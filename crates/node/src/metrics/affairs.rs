//! The counters of the reference client's `internal affairs` that this client has, with the names of both.

use crate::status::MountStatus;

/// A counter with its name in the reference client.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ReferenceCounter {
    /// Name in the reference client; those of this client alone begin with `esker.`.
    pub name: &'static str,
    /// Description of the counted events.
    pub help: &'static str,
    /// Our metric of it, and the operation of its label, if it has one.
    pub metric: (&'static str, Option<&'static str>),
    /// The value now.
    pub value: u64,
}

type Row = (&'static str, &'static str, (&'static str, Option<&'static str>), fn(&MountStatus) -> u64);

/// Makes rows of name, help, our metric, the operation of its label, and value; values are of the named status.
macro_rules! rows {
    ($status:ident; $($name:literal, $help:literal, $metric:literal, $operation:expr, $value:expr;)*) => {
        &[$(($name, $help, ($metric, $operation), |$status| $value)),*]
    };
}

const ROWS: &[Row] = rows! { status;
    "cvmfs.n_fs_open", "Requests to open a file", "esker_mount_requests_total", Some("open"), of(status, "OPEN");
    "cvmfs.n_fs_dir_open", "Requests to open a folder", "esker_mount_requests_total", Some("opendir"), of(status, "OPENDIR");
    "cvmfs.n_fs_lookup", "Requests to look up a name", "esker_mount_requests_total", Some("lookup"), of(status, "LOOKUP");
    "cvmfs.n_fs_stat", "Requests for attributes", "esker_mount_requests_total", Some("getattr"), of(status, "GETATTR");
    "cvmfs.n_fs_statfs", "Requests for the size of the tree", "esker_mount_requests_total", Some("statfs"), of(status, "STATFS");
    "cvmfs.n_fs_read", "Requests to read a file", "esker_mount_requests_total", Some("read"), of(status, "READ");
    "cvmfs.n_fs_readlink", "Requests for the target of a link", "esker_mount_requests_total", Some("readlink"), of(status, "READLINK");
    "cvmfs.n_fs_forget", "Nodes that the kernel forgot one by one", "esker_mount_requests_total", Some("forget"), of(status, "FORGET");
    "cvmfs.n_io_error", "Failures", "esker_mount_failures_total", None, status.view.failures;
    "catalog_mgr.catalog_revision", "Number of the mounted revision", "esker_mount_revision", None, status.revision;
    "catalog_mgr.n_lookup_path", "Names looked up in catalogs", "esker_mount_lookups_total", None, status.view.lookups;
    "catalog_mgr.n_listing", "Folders listed from catalogs", "esker_mount_listings_total", None, status.view.lists;
    "catalog_mgr.n_lookup_xattrs", "Extended attributes read", "esker_mount_xattr_reads_total", None, status.view.xattrs;
    "download.sz_transferred_bytes", "Bytes received", "esker_mount_network_received_bytes_total", None, status.network.received_bytes;
    "download.n_requests", "Requests sent to servers", "esker_mount_network_requests_total", None, status.network.requests;
    "download.n_retries", "Repeated requests", "esker_mount_network_retries_total", None, status.network.route.retries;
    "download.n_proxy_failover", "Proxies marked down", "esker_mount_proxy_failovers_total", None, status.network.route.proxy_failovers;
    "download.n_host_failover", "Servers marked down", "esker_mount_server_failovers_total", None, status.network.route.server_failovers;
    "fetch.n_downloads", "Objects fetched", "esker_mount_objects_fetched_total", None, status.fetched.fetched;
    "fetch.n_invocations", "Objects wanted", "esker_mount_objects_wanted_total", None, wanted(status);
    "esker.n_waiting", "Requests of the kernel that wait", "esker_mount_requests_waiting", None, status.waiting;
    "esker.n_held", "Files that may be open", "esker_mount_files_held", None, status.view.held;
    "esker.n_catalogs", "Mounted catalogs", "esker_mount_catalogs", None, status.view.catalogs;
    "esker.n_switches", "Changes of the revision", "esker_mount_revision_switches_total", None, status.view.switches;
    "esker.n_misses", "Reads that waited for an object", "esker_mount_read_misses_total", None, status.view.misses;
    "esker.is_offline", "1 if no server answers", "esker_mount_offline", None, u64::from(status.offline.is_some());
    "esker.sz_cache", "Bytes in the cache", "esker_cache_bytes", None, status.cache.state.used;
    "esker.sz_cache_limit", "Quota of the cache in bytes", "esker_cache_quota_bytes", None, status.cache.state.quota;
    "esker.n_evicted", "Objects evicted from the cache", "esker_cache_evicted_objects_total", None, status.cache.state.evicted;
    "esker.n_disk_errors", "Failed operations on the disk of the cache", "esker_cache_disk_errors_total", None, status.cache.state.disk_errors;
    "esker.n_recoveries", "Servers and proxies that recovered", "esker_mount_recoveries_total", None, status.network.route.recoveries;
    "esker.n_nodes", "Nodes that the kernel knows", "esker_mount_nodes", None, status.nodes;
    "esker.us_network", "Microseconds for which requests waited for servers", "esker_mount_blocked_seconds_total", None, waited(status, |requests| requests.waits.network_us);
    "esker.us_disk", "Microseconds for which requests waited for local files", "esker_mount_blocked_seconds_total", None, waited(status, |requests| requests.waits.disk_us);
    "esker.us_processing", "Microseconds of decompression and verification", "esker_mount_blocked_seconds_total", None, waited(status, |requests| requests.waits.processing_us);
};

fn of(status: &MountStatus, name: &str) -> u64 {
    status.requests.iter().find(|one| one.name == name).map_or(0, |one| one.requests)
}

pub(super) fn wanted(status: &MountStatus) -> u64 {
    status.fetched.hits.saturating_add(status.fetched.fetched)
}

fn waited(status: &MountStatus, cause: fn(&crate::status::Requests) -> u64) -> u64 {
    status.requests.iter().map(cause).fold(0, u64::saturating_add)
}

/// Returns the counters of a mount.
pub fn affairs(status: &MountStatus) -> Vec<ReferenceCounter> {
    ROWS.iter()
        .map(|&(name, help, metric, value)| ReferenceCounter { name, help, metric, value: value(status) })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::metrics::{Scrape, ScrapedMount, families};
    use crate::status::Requests;

    /// Every request that a row counts must have come, or its operation would have no sample.
    #[test]
    fn every_counter_of_internal_affairs_is_a_sample_of_ours() {
        let names = ["OPEN", "OPENDIR", "LOOKUP", "GETATTR", "STATFS", "READ", "READLINK", "FORGET"];
        let request = |name: &&'static str| {
            Requests::from(&esker_fuse::OpcodeCounters { name, requests: 1, ..Default::default() })
        };
        let status = MountStatus { requests: names.iter().map(request).collect(), ..MountStatus::default() };
        let affairs = affairs(&status);
        let mount = ScrapedMount {
            user: 0,
            mountpoint: "/cvmfs/a.test".into(),
            repository: "a.test".into(),
            status: Some(status),
        };
        let ours = families(&Scrape { mounts: vec![mount], ..Scrape::default() });
        for ReferenceCounter { name, metric: (metric, operation), .. } in affairs {
            let family = ours.iter().find(|family| family.name == metric);
            let family = family.unwrap_or_else(|| panic!("{name}: there is no {metric}"));
            let has_operation = |sample: &crate::metrics::Sample| {
                operation.is_none_or(|operation| sample.labels.contains(&("operation", operation.to_owned())))
            };
            assert!(family.samples.iter().any(has_operation), "{name}: {metric} lacks {operation:?}");
        }
    }
}
