//! Status of a mount, in the form of `esker status --json`.

use std::path::PathBuf;
use std::time::{SystemTime, UNIX_EPOCH};

pub use esker_cache_share::status::{Lower, Reach, Route};
use serde::{Deserialize, Serialize};

/// File system through which programs see a tree. A daemon of ours answers for data that it lacks.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Presentation {
    /// FUSE itself.
    #[default]
    Fuse,
    /// An overlay of the kernel, which answers ioctls ([`esker_fuse::mount::mount_overlay`]).
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
    /// The command of `esker run` for which alone it is mounted; absent for a mount that all see.
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
    pub view: View,
    /// Bytes and objects from the network.
    pub fetched: Fetched,
    /// State of the network.
    #[serde(default)]
    pub network: Network,
    /// Time for which hashing, inflating and writing waited for a thread.
    #[serde(default)]
    pub work: Work,
    /// State of the cache.
    pub cache: Cache,
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
    /// True if the stream is open.
    pub connected: bool,
    /// Number of events since the mount.
    pub events: u64,
    /// Cause of the failure to open the stream.
    pub failure: Option<String>,
}

impl From<&esker_store::SseListener> for Push {
    fn from(listening: &esker_store::SseListener) -> Self {
        let esker_store::SseStatus { connected, events, failure } = listening.status();
        Self { url: listening.url().to_owned(), connected, events, failure }
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
}

/// Counters of the view.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct View {
    /// Number of attached catalogs.
    pub catalogs: u64,
    /// Number of lookups.
    pub lookups: u64,
    /// Number of listings.
    pub lists: u64,
    /// Number of reads.
    pub reads: u64,
    /// Number of reads that waited for an object.
    pub misses: u64,
    /// Number of changes of the revision since the mount.
    pub switches: u64,
    /// Number of files that programs may have open.
    pub held: u64,
}

/// Objects fetched of this repository since its cache was opened, also by other mounts that share the cache.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Fetched {
    /// Number of objects.
    pub objects: u64,
    /// Stored size of these objects in bytes.
    pub bytes: u64,
    /// Number of prefetched objects.
    #[serde(default)]
    pub prefetched_objects: u64,
    /// Stored size of prefetched objects in bytes.
    #[serde(default)]
    pub prefetched_bytes: u64,
    /// Of the prefetched objects, those that were used since.
    #[serde(default)]
    pub prefetched_used_objects: u64,
    /// Stored size of the used ones in bytes.
    #[serde(default)]
    pub prefetched_used_bytes: u64,
    /// Number of failed prefetches.
    #[serde(default)]
    pub prefetches_failed: u64,
    /// Number of prefetches in the queue or in flight.
    #[serde(default)]
    pub prefetches_queued: u64,
}

/// Requests to servers, their results, and the state of the route.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Network {
    /// Number of requests sent.
    pub requests: u64,
    /// Number of connections opened.
    pub connections: u64,
    /// Bytes of answers, without their headers.
    pub received_bytes: u64,
    /// The least round trip lately, in microseconds; 0 before there was a connection.
    pub round_trip_us: u64,
    /// The fastest delivery lately.
    pub bytes_per_second: u64,
    /// Limit of concurrent requests for starting prefetches.
    pub window: u64,
    /// Servers and proxies, and their failures.
    #[serde(default)]
    pub route: Route,
}

/// Time for which work waited for a thread.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Work {
    /// Waits of demanded objects.
    pub demand: Waits,
    /// Waits of prefetches.
    pub prefetch: Waits,
    /// Waits of both while a thread was idle.
    pub idle: Waits,
}

/// Waits, as powers of two.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Waits {
    /// Number of jobs.
    pub jobs: u64,
    /// Median wait in microseconds.
    pub half_us: u64,
    /// 99th percentile in microseconds.
    pub p99_us: u64,
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
    /// Bytes in use.
    pub bytes: u64,
    /// Quota in bytes; 0 for no limit.
    pub quota: u64,
    /// Number of objects in the cache.
    pub objects: u64,
    /// Number of objects evicted since the writer opened the cache.
    pub evicted: u64,
    /// Number of objects that are checked before their first use, because the last writer was killed.
    pub unchecked: u64,
    /// Number of objects that were read uncached, for lack of room or because the disk failed.
    pub unkept: u64,
    /// Number of failed operations on the disk.
    pub disk_errors: u64,
    /// Objects from lower cache folders.
    #[serde(default)]
    pub lower: Lower,
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
            busy_us: u64::try_from(counters.busy.as_micros()).unwrap_or(u64::MAX),
        }
    }
}

impl From<&esker_view::ViewCounters> for View {
    fn from(counters: &esker_view::ViewCounters) -> Self {
        Self {
            catalogs: counters.catalogs,
            lookups: counters.lookups,
            lists: counters.lists,
            reads: counters.reads,
            misses: counters.misses,
            switches: counters.switches,
            held: counters.held,
        }
    }
}

impl From<&esker_store::TrafficStatus> for Fetched {
    fn from(traffic: &esker_store::TrafficStatus) -> Self {
        Self {
            objects: traffic.fetched,
            bytes: traffic.fetched_bytes,
            prefetched_objects: traffic.prefetched,
            prefetched_bytes: traffic.prefetched_bytes,
            prefetched_used_objects: traffic.prefetched_used,
            prefetched_used_bytes: traffic.prefetched_used_bytes,
            prefetches_failed: traffic.prefetches_failed,
            prefetches_queued: traffic.warming,
        }
    }
}

impl From<&esker_store::NetworkStatus> for Network {
    fn from(network: &esker_store::NetworkStatus) -> Self {
        Self {
            requests: network.requests,
            connections: network.connections,
            received_bytes: network.received_bytes,
            round_trip_us: network.round_trip_us,
            bytes_per_second: network.bytes_per_second,
            window: network.window,
            route: Route::from(&network.route),
        }
    }
}

impl From<&esker_store::WorkStatus> for Work {
    fn from(work: &esker_store::WorkStatus) -> Self {
        let waits = |waits: &esker_store::WaitStatus| Waits {
            jobs: waits.jobs,
            half_us: waits.half_us,
            p99_us: waits.p99_us,
        };
        Self { demand: waits(&work.demand), prefetch: waits(&work.prefetch), idle: waits(&work.idle) }
    }
}

/// Seconds since the epoch; a time before it counts as the epoch.
pub fn seconds(time: SystemTime) -> u64 {
    time.duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs())
}
