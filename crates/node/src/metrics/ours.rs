//! Metrics under our names, by the conventions of Prometheus: base units, `_total` for counters, no label for paths of
//! files.

use std::collections::BTreeSet;

use esker_store::{CacheStatus, EndpointStatus, without_passwords};

use super::affairs::wanted;
use super::family::{Families, Family, Histogram, Kind, Value, label};
use super::scrape::{Scrape, ScrapedMount};
use crate::status::{Image, MountStatus, Presentation};

type Label = (&'static str, String);
type Labels = Vec<Label>;
/// Name, help, kind and value of a metric with one sample for each mount.
type Row<T> = (&'static str, &'static str, Kind, fn(&T) -> Value);

use Kind::{Counter, Gauge};

/// Makes rows of kind, name, help and value; values are of the named status.
macro_rules! rows {
    ($from:ident: $type:ty; $($kind:ident, $name:literal, $help:literal, $value:expr;)*) => {
        &[$(($name, $help, $kind, |$from: &$type| Value::from($value))),*]
    };
}

/// Returns all metrics of a node.
pub fn families(scrape: &Scrape) -> Vec<Family> {
    let mut all = Families::default();
    let version = vec![("version", env!("CARGO_PKG_VERSION").to_owned())];
    all.add(Gauge, ("esker_build_info", "Version of the program that reports"), version, 1);
    all.add(Gauge, ("esker_mounts", "Mounts that all programs see"), Vec::new(), scrape.mounts.len() as u64);
    let commands = ("esker_run_commands", "Commands of esker run with mounts of their own");
    all.add(Gauge, commands, Vec::new(), scrape.commands);
    let unasked = ("esker_mounts_unasked", "Mounts beyond the limit of a scrape");
    all.add(Gauge, unasked, Vec::new(), scrape.unasked);
    let took = ("esker_scrape_duration_seconds", "Time for asking all mounts");
    all.add(Gauge, took, Vec::new(), scrape.took.as_secs_f64());
    let mut caches = BTreeSet::new();
    for mount in &scrape.mounts {
        let up = ("esker_mount_up", "1 if the daemon of the mount replies in time");
        all.add(Gauge, up, labels(mount), mount.status.is_some());
        if let Some(status) = &mount.status {
            of_mount(&mut all, mount, status);
            match &status.image {
                Some(image) => add_rows(&mut all, &labels(mount), image, IMAGE),
                None => of_repository(&mut all, mount, status),
            }
            let folder = label(&status.cache.directory.display().to_string());
            // Mounts of a user share caches; a cache in memory belongs to its mount.
            if status.image.is_none() && caches.insert((mount.user, folder.clone())) {
                let of_cache = vec![("cache", folder), ("user", mount.user.to_string())];
                add_rows(&mut all, &of_cache, &status.cache.state, CACHE);
            }
        }
    }
    all.into_inner()
}

fn labels(mount: &ScrapedMount) -> Labels {
    vec![
        ("repository", label(&mount.repository)),
        ("mountpoint", label(&mount.mountpoint)),
        ("user", mount.user.to_string()),
    ]
}

fn with(labels: &[Label], name: &'static str, value: &str) -> Labels {
    labels.iter().cloned().chain([(name, label(value))]).collect()
}

fn add_rows<T>(all: &mut Families, labels: &[Label], from: &T, rows: &[Row<T>]) {
    for (name, help, kind, value) in rows {
        all.add(*kind, (name, help), labels.to_vec(), value(from));
    }
}

fn of_mount(all: &mut Families, mount: &ScrapedMount, status: &MountStatus) {
    let labels = labels(mount);
    let shown_with = match status.shown_with {
        Presentation::Fuse => "fuse",
        Presentation::Overlay => "overlay",
        Presentation::Erofs => "erofs",
    };
    let kind = if status.image.is_some() { "image" } else { "repository" };
    let info = labels.iter().cloned().chain([("kind", kind.into()), ("shown_with", shown_with.into())]);
    all.add(Gauge, ("esker_mount_info", "Kind of the mount"), info.collect(), 1);
    add_rows(all, &labels, status, MOUNT);
    for (mode, time) in [("user", status.process.cpu_user_us), ("system", status.process.cpu_system_us)] {
        let cpu = ("esker_mount_process_cpu_seconds_total", "Processor time of the daemon");
        all.add(Counter, cpu, with(&labels, "mode", mode), seconds(time));
    }
    for one in &status.requests {
        let labels = with(&labels, "operation", &one.name.to_ascii_lowercase());
        for (name, help, value) in [
            ("esker_mount_requests_total", "Requests of the kernel", one.requests),
            ("esker_mount_request_errors_total", "Requests of the kernel that got an error", one.errors),
            (
                "esker_mount_requests_parked_total",
                "Requests of the kernel that waited for other threads",
                one.parked,
            ),
        ] {
            all.add(Counter, (name, help), labels.clone(), value);
        }
        let callbacks =
            ("esker_mount_callback_seconds_total", "Time of worker threads in requests of the kernel");
        all.add(Counter, callbacks, labels.clone(), seconds(one.busy_us));
        for (cause, time) in one.waits.by_cause() {
            let blocked = (
                "esker_mount_blocked_seconds_total",
                "Time for which requests of the kernel waited, by cause",
            );
            all.add(Counter, blocked, with(&labels, "cause", cause), seconds(time));
        }
        let latency = (
            "esker_mount_request_duration_seconds",
            "Time from the arrival of a request of the kernel to its reply",
        );
        let histogram = Histogram::of_classes(&one.latencies, one.latency_us);
        all.add(Kind::Histogram, latency, labels, Value::Histogram(histogram));
    }
}

fn of_repository(all: &mut Families, mount: &ScrapedMount, status: &MountStatus) {
    let labels = labels(mount);
    add_rows(all, &labels, status, REPOSITORY);
    let times = [
        ("esker_mount_published_timestamp_seconds", "Time of the publisher's signature", status.published),
        (
            "esker_mount_whitelist_expiry_timestamp_seconds",
            "Time at which the whitelist expires",
            status.whitelist_expires,
        ),
        (
            "esker_mount_offline_since_timestamp_seconds",
            "Time of the first failed check for a newer revision",
            status.offline.as_ref().map(|offline| offline.since),
        ),
    ];
    for (name, help, time) in times {
        if let Some(time) = time {
            all.add(Gauge, (name, help), labels.clone(), time);
        }
    }
    if let Some(push) = &status.push {
        let connected = ("esker_mount_push_connected", "1 if the server announces new revisions");
        all.add(Gauge, connected, labels.clone(), push.stream.connected);
        let events = ("esker_mount_push_events_total", "Announcements of new revisions");
        all.add(Counter, events, labels.clone(), push.stream.events);
    }
    let route = &status.network.route;
    let servers = route.servers.iter().map(|server| (server, None));
    let groups = route.proxies.iter().enumerate();
    let proxies = groups.flat_map(|(group, proxies)| proxies.iter().map(move |proxy| (proxy, Some(group))));
    for (reach, group) in servers.chain(proxies) {
        let EndpointStatus { name, active, out, .. } = reach;
        let name = without_passwords(name);
        let (up, used, labels) = match group {
            None => (
                ("esker_mount_server_up", "1 unless the server is marked down"),
                ("esker_mount_server_active", "1 if requests go to this server"),
                with(&labels, "server", &name),
            ),
            Some(group) => (
                ("esker_mount_proxy_up", "1 unless the proxy is marked down"),
                ("esker_mount_proxy_active", "1 if requests go through this proxy"),
                with(&with(&labels, "proxy", &name), "group", &group.to_string()),
            ),
        };
        all.add(Gauge, up, labels.clone(), !out);
        all.add(Gauge, used, labels, *active);
    }
    for (kind, waits) in
        [("demand", &status.work.demand), ("prefetch", &status.work.prefetch), ("idle", &status.work.idle)]
    {
        let labels = with(&labels, "kind", kind);
        let jobs = ("esker_mount_work_jobs_total", "Jobs that hash, decompress and write objects");
        all.add(Counter, jobs, labels.clone(), waits.jobs);
        let half = ("esker_mount_work_wait_median_seconds", "Median wait of these jobs for a thread");
        all.add(Gauge, half, labels.clone(), seconds(waits.half_us));
        let most = ("esker_mount_work_wait_p99_seconds", "99th percentile of these waits");
        all.add(Gauge, most, labels, seconds(waits.p99_us));
    }
}

/// Returns the time of the last failure, or 0.
fn last_failure(status: &MountStatus) -> u64 {
    status.errors.iter().map(|failure| failure.time).max().unwrap_or(0)
}

/// Returns microseconds in seconds.
fn seconds(micros: u64) -> f64 {
    micros as f64 / 1e6
}

const MOUNT: &[Row<MountStatus>] = rows! { status: MountStatus;
    Gauge, "esker_mount_start_timestamp_seconds", "Time of mounting", status.mounted;
    Gauge, "esker_mount_requests_waiting", "Requests of the kernel that wait for other threads", status.waiting;
    Gauge, "esker_mount_nodes", "Nodes that the kernel knows", status.nodes;
    Counter, "esker_mount_notifications_total", "Notifications sent to the kernel", status.notifications;
    Counter, "esker_mount_extra_workers_total", "Workers started because all others were blocked", status.hired;
    Gauge, "esker_mount_recent_failures", "Failures that the status lists", status.errors.len() as u64;
    Gauge, "esker_mount_last_failure_timestamp_seconds", "Time of the last failure, or 0", last_failure(status);
    Gauge, "esker_mount_process_resident_bytes", "Memory of the daemon", status.process.resident_bytes;
    Gauge, "esker_mount_process_open_fds", "Open descriptors of the daemon", status.process.descriptors;
    Gauge, "esker_mount_process_max_fds", "Limit of open descriptors of the daemon", status.process.descriptors_limit;
};

const IMAGE: &[Row<Image>] = rows! { image: Image;
    Gauge, "esker_image_bytes", "Size of the image", image.bytes;
    Gauge, "esker_image_block_bytes", "Size of a block of the image", image.block_bytes;
    Counter, "esker_image_blocks_read_total", "Blocks read and decompressed", image.blocks;
    Counter, "esker_image_read_bytes_total", "Stored bytes of these blocks", image.read_bytes;
    Counter, "esker_image_blocks_read_ahead_total", "Blocks read ahead", image.read_ahead;
    Gauge, "esker_image_cached_bytes", "Bytes of blocks and metadata in memory", image.kept_bytes;
};

const REPOSITORY: &[Row<MountStatus>] = rows! { status: MountStatus;
    Gauge, "esker_mount_revision", "Number of the mounted revision", status.revision;
    Gauge, "esker_mount_fixed", "1 if the mount stays at its revision", status.fixed;
    Gauge, "esker_mount_shown_timestamp_seconds", "Time since which the revision is mounted", status.since;
    Gauge, "esker_mount_checked_timestamp_seconds", "Time of the last successful check for a newer revision", status.checked;
    Gauge, "esker_mount_offline", "1 if no check for a newer revision succeeds", status.offline.is_some();
    Gauge, "esker_mount_cache_writer", "1 if the daemon of the mount writes its cache", status.cache.writer;
    Gauge, "esker_mount_catalogs", "Mounted catalogs", status.view.catalogs;
    Counter, "esker_mount_lookups_total", "Names looked up in catalogs", status.view.lookups;
    Counter, "esker_mount_listings_total", "Folders listed from catalogs", status.view.lists;
    Counter, "esker_mount_reads_total", "Reads of files", status.view.reads;
    Counter, "esker_mount_read_misses_total", "Reads that waited for an object", status.view.misses;
    Counter, "esker_mount_xattr_reads_total", "Reads of extended attributes", status.view.xattrs;
    Counter, "esker_mount_revision_switches_total", "Changes of the mounted revision", status.view.switches;
    Gauge, "esker_mount_files_held", "Files that may be open", status.view.held;
    Counter, "esker_mount_failures_total", "Failures", status.view.failures;
    Counter, "esker_mount_objects_wanted_total", "Objects wanted from the cache", wanted(status);
    Counter, "esker_mount_object_hits_total", "Objects found in the cache", status.fetched.hits;
    Counter, "esker_mount_objects_fetched_total", "Objects fetched", status.fetched.fetched;
    Counter, "esker_mount_fetched_bytes_total", "Stored size of the fetched objects", status.fetched.fetched_bytes;
    Counter, "esker_mount_objects_joined_total", "Requests for objects that were being fetched already", status.fetched.joined;
    Counter, "esker_mount_object_failures_total", "Failed requests for objects", status.fetched.failed;
    Counter, "esker_mount_prefetched_objects_total", "Objects fetched before a program asked for them", status.fetched.prefetched;
    Counter, "esker_mount_prefetched_bytes_total", "Stored size of these objects", status.fetched.prefetched_bytes;
    Counter, "esker_mount_prefetched_used_objects_total", "Prefetched objects that a program used", status.fetched.prefetched_used;
    Counter, "esker_mount_prefetched_used_bytes_total", "Stored size of prefetched objects that a program used", status.fetched.prefetched_used_bytes;
    Counter, "esker_mount_prefetch_failures_total", "Failed prefetches", status.fetched.prefetches_failed;
    Gauge, "esker_mount_prefetches_queued", "Prefetches that wait or run", status.fetched.warming;
    Counter, "esker_mount_network_requests_total", "Requests sent to servers", status.network.requests;
    Counter, "esker_mount_network_connections_total", "Connections opened", status.network.connections;
    Counter, "esker_mount_network_received_bytes_total", "Bytes received in responses", status.network.received_bytes;
    Gauge, "esker_mount_network_round_trip_seconds", "Least recent round trip, or 0", seconds(status.network.round_trip_us);
    Gauge, "esker_mount_network_delivery_bytes_per_second", "Largest recent delivery rate", status.network.bytes_per_second;
    Gauge, "esker_mount_network_window", "Limit of concurrent requests for starting prefetches", status.network.window;
    Counter, "esker_mount_network_retries_total", "Repeated requests", status.network.route.retries;
    Counter, "esker_mount_server_failovers_total", "Servers marked down", status.network.route.server_failovers;
    Counter, "esker_mount_proxy_failovers_total", "Proxies marked down", status.network.route.proxy_failovers;
    Counter, "esker_mount_recoveries_total", "Servers and proxies that recovered", status.network.route.recoveries;
};

const CACHE: &[Row<CacheStatus>] = rows! { cache: CacheStatus;
    Gauge, "esker_cache_bytes", "Bytes of objects in the cache", cache.used;
    Gauge, "esker_cache_quota_bytes", "Quota of the cache; 0 without a limit", cache.quota;
    Gauge, "esker_cache_hard_limit_bytes", "Limit up to which objects in use may exceed the quota", cache.hard_limit;
    Gauge, "esker_cache_objects", "Objects in the cache", cache.objects;
    Gauge, "esker_cache_pinned_bytes", "Bytes of pinned objects", cache.pinned;
    Gauge, "esker_cache_pinned_objects", "Pinned objects", cache.pinned_objects;
    Gauge, "esker_cache_open_fds", "Open descriptors of objects", cache.descriptors;
    Gauge, "esker_cache_open_fds_peak", "Largest number of open descriptors of objects", cache.descriptors_peak;
    Gauge, "esker_cache_max_fds", "Limit of open descriptors of objects", cache.descriptors_limit;
    Counter, "esker_cache_evicted_objects_total", "Evicted objects", cache.evicted;
    Counter, "esker_cache_spared_objects_total", "Objects spared by eviction because they were in use", cache.spared;
    Counter, "esker_cache_over_quota_total", "Evictions that ended above the quota", cache.over_quota;
    Counter, "esker_cache_unkept_objects_total", "Objects served without being cached", cache.unkept;
    Counter, "esker_cache_disk_errors_total", "Failed operations on local files", cache.disk_errors;
    Counter, "esker_cache_damaged_objects_total", "Objects found damaged on disk", cache.damaged;
    Counter, "esker_cache_lower_found_objects_total", "Objects found in lower caches", cache.lower.found;
    Counter, "esker_cache_lower_found_bytes_total", "Bytes of objects found in lower caches", cache.lower.found_bytes;
    Counter, "esker_cache_lower_refused_objects_total", "Files of lower caches that failed verification", cache.lower.refused;
    Counter, "esker_cache_lower_late_requests_total", "Requests to lower caches that made no progress", cache.lower.late;
};
