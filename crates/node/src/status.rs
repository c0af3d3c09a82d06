//! Status of a mount, in the form of `esker status --json`: the owners' snapshots, and the facts of the mount itself.

use std::path::PathBuf;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use esker_confine::Confinement;
use esker_store::{CacheStatus, NetworkStatus, SseStatus, TrafficStatus, WorkStatus};
use esker_threads::waits::WaitTimes;
use esker_view::ViewCounters;
use serde::{Deserialize, Serialize};

/// File system through which programs see a tree. A daemon of ours answers for data that it lacks.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Presentation {
    /// FUSE itself.
    #[default]
    Fuse,
    /// An overlay of the kernel, which answers ioctls ([`esker_kernel_mount::mount_overlay`]).
    Overlay,
    /// EROFS of the kernel, which keeps names and pages ([`esker_erofs::ErofsTree`]).
    Erofs,
}

/// The state of a mount. Times are seconds since the epoch.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct MountStatus {
    /// Mount point.
    #[serde(with = "esker_cache_share::shown_path")]
    pub mountpoint: PathBuf,
    /// Command of the `esker run` that made the mount for itself; absent for a mount that all users see.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub command: Option<String>,
    /// The repository's name.
    pub repository: String,
    /// Source of the mount.
    pub url: String,
    /// The daemon's process id.
    pub pid: u32,
    /// Time of mounting.
    pub mounted: u64,
    /// Number of the shown revision.
    pub revision: u64,
    /// True if the mount stays at this revision.
    pub fixed: bool,
    /// Tag by which the revision was requested.
    #[serde(default)]
    pub tag: Option<String>,
    /// File system through which programs see it.
    #[serde(default)]
    pub shown_with: Presentation,
    /// Restrictions of the daemon; absent if it has none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub confined: Option<Confinement>,
    /// Hash of the root catalog of the revision.
    pub root_hash: String,
    /// Time of the publisher's signature.
    pub published: Option<u64>,
    /// Until when the whitelist counts that the head was verified with; absent before one was.
    #[serde(default)]
    pub whitelist_expires: Option<u64>,
    /// Time since which this revision is shown, in seconds since the epoch.
    pub since: u64,
    /// Time of the repository's last reply.
    pub checked: u64,
    /// Time for which the last reply counts, in seconds; absent before there was one.
    #[serde(default)]
    pub ttl: Option<u64>,
    /// Reason why no check for a newer revision is possible.
    pub offline: Option<Offline>,
    /// Source of push notifications; absent without one.
    #[serde(default)]
    pub push: Option<Push>,
    /// The last failures, oldest first.
    pub errors: Vec<Failure>,
    /// Requests of the kernel, by kind.
    pub requests: Vec<Requests>,
    /// Requests of the kernel that wait for the network now.
    pub waiting: u64,
    /// Number of nodes that the kernel knows.
    pub nodes: u64,
    /// Notifications sent to the kernel.
    pub notifications: u64,
    /// Number of extra workers started, because all waited for a disk.
    #[serde(default)]
    pub hired: u64,
    /// Counters of the repository's view.
    pub view: ViewCounters,
    /// Bytes and objects from the network.
    pub fetched: TrafficStatus,
    /// State of the network.
    #[serde(default)]
    pub network: NetworkStatus,
    /// Time for which hashing, inflating and writing waited for a thread.
    #[serde(default)]
    pub work: WorkStatus,
    /// State of the cache.
    pub cache: Cache,
    /// Resources of the daemon.
    #[serde(default)]
    pub process: Process,
    /// Set if an image is mounted: its identity, and its reads. It has no revision, network or cache.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub image: Option<Image>,
}

/// A mounted image.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Image {
    /// Compression.
    pub codec: String,
    /// Size of a block in bytes.
    pub block_bytes: u64,
    /// Size of the image in bytes.
    pub bytes: u64,
    /// Number of blocks read and decompressed.
    pub blocks: u64,
    /// Stored bytes of these blocks.
    pub read_bytes: u64,
    /// Number of blocks read ahead.
    pub read_ahead: u64,
    /// Bytes of blocks in memory.
    pub kept_bytes: u64,
    /// Authentication of its bytes: `file` (by the file's permissions), `digest`, `repository`, or `no`.
    #[serde(default)]
    pub authenticated: String,
}

/// A head that can't be looked up.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Offline {
    /// Start of the failure, in seconds since the epoch.
    pub since: u64,
    /// Latest cause of the failure.
    pub reason: String,
}

/// Source of push notifications.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Push {
    /// URL of the event stream.
    pub url: String,
    /// Status of the stream.
    #[serde(flatten)]
    pub stream: SseStatus,
}

impl From<&esker_store::SseListener> for Push {
    fn from(listening: &esker_store::SseListener) -> Self {
        Self { url: listening.url().to_owned(), stream: listening.status() }
    }
}

/// A failure of one cause and its count.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Failure {
    /// Time of the failure.
    pub time: u64,
    /// File or directory, or other object of the failure.
    pub object: String,
    /// The error with its causes.
    pub cause: String,
    /// Process of the request, if it is known.
    pub caller: Option<u32>,
}

/// Kernel requests of one kind.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Requests {
    /// The protocol's name of the request.
    pub name: String,
    /// Number of requests.
    pub requests: u64,
    /// Number of requests that got an error.
    pub errors: u64,
    /// Number of requests that waited for the network.
    pub parked: u64,
    /// Microseconds that worker threads spent on them.
    pub busy_us: u64,
    /// Microseconds from the arrival of each request to its reply.
    #[serde(default)]
    pub latency_us: u64,
    /// Of that time, what was spent waiting.
    #[serde(default)]
    pub waits: Waits,
    /// Number of requests by latency: less than 1, 2, 4, … microseconds; the last number is for all longer ones.
    #[serde(default)]
    pub latencies: Vec<u64>,
}

/// Waits in microseconds, by cause.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Waits {
    /// Waits for a server.
    pub network_us: u64,
    /// Waits for a local file.
    pub disk_us: u64,
    /// Decompression and verification.
    pub processing_us: u64,
    /// Waits for a thread or a free descriptor.
    pub thread_us: u64,
}

impl Waits {
    /// Returns the waits with the names of their causes.
    pub const fn by_cause(&self) -> [(&'static str, u64); 4] {
        [
            ("network", self.network_us),
            ("disk", self.disk_us),
            ("processing", self.processing_us),
            ("thread", self.thread_us),
        ]
    }
}

impl From<WaitTimes> for Waits {
    fn from(times: WaitTimes) -> Self {
        let [network_us, disk_us, processing_us, thread_us] = times.all().map(micros);
        Self { network_us, disk_us, processing_us, thread_us }
    }
}

/// Resources of the daemon.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Process {
    /// Microseconds of processor time in the daemon.
    pub cpu_user_us: u64,
    /// Microseconds of processor time in the kernel on its behalf.
    pub cpu_system_us: u64,
    /// Bytes in memory.
    pub resident_bytes: u64,
    /// Number of open descriptors.
    pub descriptors: u64,
    /// Limit of open descriptors.
    pub descriptors_limit: u64,
}

/// State of the cache.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Cache {
    /// Path of the cache folder.
    #[serde(with = "esker_cache_share::shown_path")]
    pub directory: PathBuf,
    /// True if this daemon writes the cache; other daemons are its clients.
    pub writer: bool,
    /// Socket of the node's broker, if objects come through it; the folder then has only this user's heads.
    pub broker: Option<PathBuf>,
    /// Reason of the node's broker, if it refused.
    pub broker_refused: Option<String>,
    /// Counters of the cache.
    #[serde(flatten)]
    pub state: CacheStatus,
}

impl Failure {
    /// Returns the failure of a cache's disk, with its time. Reads succeed while a server has the
    /// object, but each of them fetches it.
    pub(crate) fn of_cache((time, cause): (u64, String)) -> Self {
        Self { time, object: "the cache".into(), cause, caller: None }
    }
}

impl From<esker_view::Failure> for Failure {
    fn from(failure: esker_view::Failure) -> Self {
        let esker_view::Failure { time, object, cause, caller } = failure;
        Self { time: seconds(time), object, cause, caller }
    }
}

impl From<&esker_fuse::OpcodeCounters> for Requests {
    fn from(counters: &esker_fuse::OpcodeCounters) -> Self {
        Self {
            name: counters.name.to_owned(),
            requests: counters.requests,
            errors: counters.errors,
            parked: counters.parked,
            busy_us: micros(counters.busy),
            latency_us: micros(counters.latency),
            waits: counters.waits.into(),
            latencies: counters.latencies.to_vec(),
        }
    }
}

fn micros(time: Duration) -> u64 {
    u64::try_from(time.as_micros()).unwrap_or(u64::MAX)
}

/// Seconds since the epoch; a time before it counts as the epoch.
pub fn seconds(time: SystemTime) -> u64 {
    time.duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs())
}

#[cfg(test)]
mod tests {
    use esker_store::{EndpointStatus, RouteStatus};
    use serde_json::Value;

    use super::*;

    /// Adds the names of a value's fields, with the names of the objects that they are in.
    fn add_names(prefix: &str, value: &Value, names: &mut Vec<String>) {
        match value {
            Value::Object(fields) => {
                for (name, value) in fields {
                    let path = if prefix.is_empty() { name.clone() } else { format!("{prefix}.{name}") };
                    add_names(&path, value, names);
                }
            }
            Value::Array(items) if items.iter().any(|item| item.is_object() || item.is_array()) => {
                items.iter().for_each(|item| add_names(prefix, item, names));
            }
            _ => names.push(prefix.to_owned()),
        }
    }

    /// Scripts read these names, and an `esker status` of another build does.
    #[test]
    fn the_status_keeps_its_field_names() {
        let reach =
            EndpointStatus { since: Some(1), why: Some("no answer".into()), ..EndpointStatus::default() };
        let route = RouteStatus {
            servers: vec![reach.clone()],
            proxies: vec![vec![reach]],
            ..RouteStatus::default()
        };
        let status = MountStatus {
            command: Some("ls".into()),
            offline: Some(Offline { since: 1, reason: "no answer".into() }),
            push: Some(Push { url: "http://h".into(), stream: SseStatus::default() }),
            errors: vec![Failure::of_cache((1, "full".into()))],
            requests: vec![Requests::from(&esker_fuse::OpcodeCounters::default())],
            network: NetworkStatus { route, ..NetworkStatus::default() },
            image: Some(Image::default()),
            ..MountStatus::default()
        };
        let json = serde_json::to_value(&status).expect("JSON");
        let mut names = Vec::new();
        add_names("", &json, &mut names);
        names.sort();
        let expected = [
            "cache: broker broker_refused bytes damaged descriptors descriptors_limit descriptors_peak directory \
             disk_errors disk_failure evicted hard_limit leftovers lower.found lower.found_bytes lower.given \
             lower.late lower.refused objects opened_unclean over_quota pinned_bytes pinned_objects quota spared \
             unchecked unkept walked writer",
            ": checked command",
            "errors: caller cause object time",
            "fetched: bytes failed hits joined objects prefetched_bytes prefetched_objects prefetched_used_bytes \
             prefetched_used_objects prefetches_failed prefetches_queued",
            ": fixed hired",
            "image: authenticated block_bytes blocks bytes codec kept_bytes read_ahead read_bytes",
            ": mounted mountpoint",
            "network: bytes_per_second connections received_bytes requests round_trip_us route.last_error \
             route.proxies.active route.proxies.name route.proxies.out route.proxies.since route.proxies.why \
             route.proxy_failovers route.recoveries route.retries route.server_failovers route.servers.active \
             route.servers.name route.servers.out route.servers.since route.servers.why window",
            ": nodes notifications",
            "offline: reason since",
            ": pid",
            "process: cpu_system_us cpu_user_us descriptors descriptors_limit resident_bytes",
            ": published",
            "push: connected events failure url",
            ": repository",
            "requests: busy_us errors latencies latency_us name parked requests waits.disk_us waits.network_us \
             waits.processing_us waits.thread_us",
            ": revision root_hash shown_with since tag ttl url",
            "view: catalogs failures held lists lookups misses reads switches xattrs",
            ": waiting whitelist_expires",
            "work: demand.half_us demand.jobs demand.p99_us idle.half_us idle.jobs idle.p99_us prefetch.half_us \
             prefetch.jobs prefetch.p99_us",
        ];
        let expected: Vec<String> = expected
            .iter()
            .filter_map(|group| group.split_once(": "))
            .flat_map(|(object, names)| {
                let dot = if object.is_empty() { "" } else { "." };
                names.split_whitespace().map(move |name| format!("{object}{dot}{name}"))
            })
            .collect();
        assert_eq!(names, expected);
        assert_eq!(serde_json::from_value::<MountStatus>(json).expect("a status"), status);
    }
}
