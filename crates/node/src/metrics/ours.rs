//! Metrics under our names, by the conventions of Prometheus: base units, `_total` for counters, no label for paths of
//! files.

use std::collections::BTreeSet;

use esker_store::{CacheStatus, Reach, without_passwords};

use super::affairs::wanted;
use super::family::{Families, Family, Histogram, Kind, Value, label};
use super::scrape::{Scrape, ScrapedMount};
use crate::status::{Image, MountStatus, Presentation};

type Label = (&'static str, String);
type Labels = Vec<Label>;
/// Name, help, kind and value of a metric with one sample for each mount.
type Row<T> = (&'static str, &'static str, Kind, fn(&T) -> Value);

use Kind::{Counter, Gauge};

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
                Some(image) => add_rows(&mut all, &labels(mount), image, &IMAGE),
                None => of_repository(&mut all, mount, status),
            }
            let folder = label(&status.cache.directory.display().to_string());
            // Mounts of a user share caches; a cache in memory belongs to its mount.
            if status.image.is_none() && caches.insert((mount.user, folder.clone())) {
                let of_cache = vec![("cache", folder), ("user", mount.user.to_string())];
                add_rows(&mut all, &of_cache, &status.cache.state, &CACHE);
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
    add_rows(all, &labels, status, &MOUNT);
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
    add_rows(all, &labels, status, &REPOSITORY);
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
        let Reach { name, active, out, .. } = reach;
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

/// Returns microseconds in seconds.
fn seconds(micros: u64) -> f64 {
    micros as f64 / 1e6
}

const MOUNT: [Row<MountStatus>; 10] = [
    ("esker_mount_start_timestamp_seconds", "Time of mounting", Gauge, |status| status.mounted.into()),
    ("esker_mount_requests_waiting", "Requests of the kernel that wait for other threads", Gauge, |status| {
        status.waiting.into()
    }),
    ("esker_mount_nodes", "Nodes that the kernel knows", Gauge, |status| status.nodes.into()),
    ("esker_mount_notifications_total", "Notifications sent to the kernel", Counter, |status| {
        status.notifications.into()
    }),
    (
        "esker_mount_extra_workers_total",
        "Workers started because all others were blocked",
        Counter,
        |status| status.hired.into(),
    ),
    ("esker_mount_recent_failures", "Failures that the status lists", Gauge, |status| {
        (status.errors.len() as u64).into()
    }),
    ("esker_mount_last_failure_timestamp_seconds", "Time of the last failure, or 0", Gauge, |status| {
        status.errors.iter().map(|failure| failure.time).max().unwrap_or(0).into()
    }),
    ("esker_mount_process_resident_bytes", "Memory of the daemon", Gauge, |status| {
        status.process.resident_bytes.into()
    }),
    ("esker_mount_process_open_fds", "Open descriptors of the daemon", Gauge, |status| {
        status.process.descriptors.into()
    }),
    ("esker_mount_process_max_fds", "Limit of open descriptors of the daemon", Gauge, |status| {
        status.process.descriptors_limit.into()
    }),
];

const IMAGE: [Row<Image>; 6] = [
    ("esker_image_bytes", "Size of the image", Gauge, |image| image.bytes.into()),
    ("esker_image_block_bytes", "Size of a block of the image", Gauge, |image| image.block_bytes.into()),
    ("esker_image_blocks_read_total", "Blocks read and decompressed", Counter, |image| image.blocks.into()),
    ("esker_image_read_bytes_total", "Stored bytes of these blocks", Counter, |image| {
        image.read_bytes.into()
    }),
    ("esker_image_blocks_read_ahead_total", "Blocks read ahead", Counter, |image| image.read_ahead.into()),
    ("esker_image_cached_bytes", "Bytes of blocks and metadata in memory", Gauge, |image| {
        image.kept_bytes.into()
    }),
];

const REPOSITORY: [Row<MountStatus>; 37] = [
    ("esker_mount_revision", "Number of the mounted revision", Gauge, |status| status.revision.into()),
    ("esker_mount_fixed", "1 if the mount stays at its revision", Gauge, |status| status.fixed.into()),
    ("esker_mount_shown_timestamp_seconds", "Time since which the revision is mounted", Gauge, |status| {
        status.since.into()
    }),
    (
        "esker_mount_checked_timestamp_seconds",
        "Time of the last successful check for a newer revision",
        Gauge,
        |status| status.checked.into(),
    ),
    ("esker_mount_offline", "1 if no check for a newer revision succeeds", Gauge, |status| {
        status.offline.is_some().into()
    }),
    ("esker_mount_cache_writer", "1 if the daemon of the mount writes its cache", Gauge, |status| {
        status.cache.writer.into()
    }),
    ("esker_mount_catalogs", "Mounted catalogs", Gauge, |status| status.view.catalogs.into()),
    ("esker_mount_lookups_total", "Names looked up in catalogs", Counter, |status| {
        status.view.lookups.into()
    }),
    ("esker_mount_listings_total", "Folders listed from catalogs", Counter, |status| {
        status.view.lists.into()
    }),
    ("esker_mount_reads_total", "Reads of files", Counter, |status| status.view.reads.into()),
    ("esker_mount_read_misses_total", "Reads that waited for an object", Counter, |status| {
        status.view.misses.into()
    }),
    ("esker_mount_xattr_reads_total", "Reads of extended attributes", Counter, |status| {
        status.view.xattrs.into()
    }),
    ("esker_mount_revision_switches_total", "Changes of the mounted revision", Counter, |status| {
        status.view.switches.into()
    }),
    ("esker_mount_files_held", "Files that may be open", Gauge, |status| status.view.held.into()),
    ("esker_mount_failures_total", "Failures", Counter, |status| status.view.failures.into()),
    ("esker_mount_objects_wanted_total", "Objects wanted from the cache", Counter, |status| {
        wanted(status).into()
    }),
    ("esker_mount_object_hits_total", "Objects found in the cache", Counter, |status| {
        status.fetched.hits.into()
    }),
    ("esker_mount_objects_fetched_total", "Objects fetched", Counter, |status| status.fetched.fetched.into()),
    ("esker_mount_fetched_bytes_total", "Stored size of the fetched objects", Counter, |status| {
        status.fetched.fetched_bytes.into()
    }),
    (
        "esker_mount_objects_joined_total",
        "Requests for objects that were being fetched already",
        Counter,
        |status| status.fetched.joined.into(),
    ),
    ("esker_mount_object_failures_total", "Failed requests for objects", Counter, |status| {
        status.fetched.failed.into()
    }),
    (
        "esker_mount_prefetched_objects_total",
        "Objects fetched before a program asked for them",
        Counter,
        |status| status.fetched.prefetched.into(),
    ),
    ("esker_mount_prefetched_bytes_total", "Stored size of these objects", Counter, |status| {
        status.fetched.prefetched_bytes.into()
    }),
    (
        "esker_mount_prefetched_used_objects_total",
        "Prefetched objects that a program used",
        Counter,
        |status| status.fetched.prefetched_used.into(),
    ),
    (
        "esker_mount_prefetched_used_bytes_total",
        "Stored size of prefetched objects that a program used",
        Counter,
        |status| status.fetched.prefetched_used_bytes.into(),
    ),
    ("esker_mount_prefetch_failures_total", "Failed prefetches", Counter, |status| {
        status.fetched.prefetches_failed.into()
    }),
    ("esker_mount_prefetches_queued", "Prefetches that wait or run", Gauge, |status| {
        status.fetched.warming.into()
    }),
    ("esker_mount_network_requests_total", "Requests sent to servers", Counter, |status| {
        status.network.requests.into()
    }),
    ("esker_mount_network_connections_total", "Connections opened", Counter, |status| {
        status.network.connections.into()
    }),
    ("esker_mount_network_received_bytes_total", "Bytes received in responses", Counter, |status| {
        status.network.received_bytes.into()
    }),
    ("esker_mount_network_round_trip_seconds", "Least recent round trip, or 0", Gauge, |status| {
        seconds(status.network.round_trip_us).into()
    }),
    ("esker_mount_network_delivery_bytes_per_second", "Largest recent delivery rate", Gauge, |status| {
        status.network.bytes_per_second.into()
    }),
    ("esker_mount_network_window", "Limit of concurrent requests for starting prefetches", Gauge, |status| {
        status.network.window.into()
    }),
    ("esker_mount_network_retries_total", "Repeated requests", Counter, |status| {
        status.network.route.retries.into()
    }),
    ("esker_mount_server_failovers_total", "Servers marked down", Counter, |status| {
        status.network.route.server_failovers.into()
    }),
    ("esker_mount_proxy_failovers_total", "Proxies marked down", Counter, |status| {
        status.network.route.proxy_failovers.into()
    }),
    ("esker_mount_recoveries_total", "Servers and proxies that recovered", Counter, |status| {
        status.network.route.recoveries.into()
    }),
];

const CACHE: [Row<CacheStatus>; 19] = [
    ("esker_cache_bytes", "Bytes of objects in the cache", Gauge, |cache| cache.used.into()),
    ("esker_cache_quota_bytes", "Quota of the cache; 0 without a limit", Gauge, |cache| cache.quota.into()),
    (
        "esker_cache_hard_limit_bytes",
        "Limit up to which objects in use may exceed the quota",
        Gauge,
        |cache| cache.hard_limit.into(),
    ),
    ("esker_cache_objects", "Objects in the cache", Gauge, |cache| cache.objects.into()),
    ("esker_cache_pinned_bytes", "Bytes of pinned objects", Gauge, |cache| cache.pinned.into()),
    ("esker_cache_pinned_objects", "Pinned objects", Gauge, |cache| cache.pinned_objects.into()),
    ("esker_cache_open_fds", "Open descriptors of objects", Gauge, |cache| cache.descriptors.into()),
    ("esker_cache_open_fds_peak", "Largest number of open descriptors of objects", Gauge, |cache| {
        cache.descriptors_peak.into()
    }),
    ("esker_cache_max_fds", "Limit of open descriptors of objects", Gauge, |cache| {
        cache.descriptors_limit.into()
    }),
    ("esker_cache_evicted_objects_total", "Evicted objects", Counter, |cache| cache.evicted.into()),
    (
        "esker_cache_spared_objects_total",
        "Objects spared by eviction because they were in use",
        Counter,
        |cache| cache.spared.into(),
    ),
    ("esker_cache_over_quota_total", "Evictions that ended above the quota", Counter, |cache| {
        cache.over_quota.into()
    }),
    ("esker_cache_unkept_objects_total", "Objects served without being cached", Counter, |cache| {
        cache.unkept.into()
    }),
    ("esker_cache_disk_errors_total", "Failed operations on local files", Counter, |cache| {
        cache.disk_errors.into()
    }),
    ("esker_cache_damaged_objects_total", "Objects found damaged on disk", Counter, |cache| {
        cache.damaged.into()
    }),
    ("esker_cache_lower_found_objects_total", "Objects found in lower caches", Counter, |cache| {
        cache.lower.found.into()
    }),
    ("esker_cache_lower_found_bytes_total", "Bytes of objects found in lower caches", Counter, |cache| {
        cache.lower.found_bytes.into()
    }),
    (
        "esker_cache_lower_refused_objects_total",
        "Files of lower caches that failed verification",
        Counter,
        |cache| cache.lower.refused.into(),
    ),
    (
        "esker_cache_lower_late_requests_total",
        "Requests to lower caches that made no progress",
        Counter,
        |cache| cache.lower.late.into(),
    ),
];
