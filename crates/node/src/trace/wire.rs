//! Messages of a trace. Field names are an interface.

use esker_fuse::CallKind;
use esker_threads::waits::WaitTimes;
use serde::{Deserialize, Serialize};

use crate::status::Presentation;

/// Request for a trace.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct TraceRequest {
    /// Processes whose requests are reported.
    pub whose: TraceScope,
    /// Minimum duration of reported requests in microseconds.
    #[serde(default)]
    pub over_us: u64,
    /// True to make the kernel look up every name again.
    #[serde(default)]
    pub every_name: bool,
}

/// Processes whose requests are reported.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum TraceScope {
    /// All processes.
    All,
    /// The processes that the client has started, and their children.
    Children,
    /// This process and its children.
    Process(u32),
}

/// Reply to the request; the lines of the trace follow.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct TraceStart {
    /// Mount point.
    pub mountpoint: String,
    /// Name of the repository or image.
    pub repository: String,
    /// Revision that is shown; 0 for an image.
    pub revision: u64,
    /// True for an image.
    pub image: bool,
    /// File system through which programs see it.
    pub shown_with: Presentation,
    /// Process id of the daemon.
    pub daemon: u32,
    /// Warning, for example that callers can't be told apart.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub warning: Option<String>,
}

/// A line of a trace.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum TraceLine {
    /// A request and its reply.
    Call(Box<TracedCall>),
    /// The end of the trace.
    End(TraceEnd),
}

/// Counts of a trace that ended.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct TraceEnd {
    /// Number of reported requests.
    pub calls: u64,
    /// Number of requests that were not reported, because the client was too slow.
    pub dropped: u64,
}

/// A request of a program, and its reply.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct TracedCall {
    /// Process of the request.
    pub pid: u32,
    /// Thread of the request.
    pub tid: u32,
    /// Name of the process.
    pub command: String,
    /// Kind of the request.
    pub operation: Operation,
    /// Path below the mount point, beginning with `/`; of an unknown file its inode number.
    pub path: String,
    /// Start of the request, in nanoseconds of the monotonic clock.
    pub began_ns: u64,
    /// Time until the reply, in nanoseconds.
    pub took_ns: u64,
    /// Error number of the reply, 0 for success; 2 (ENOENT) for a missing name.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub errno: i32,
    /// Offset of a read in bytes.
    #[serde(default)]
    pub offset: u64,
    /// Bytes of the reply to a read.
    #[serde(default)]
    pub bytes: u64,
    /// Origin of the reply's data.
    pub source: Source,
    /// Server, folder or image of the origin.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub place: Option<String>,
    /// Time for which the request waited, by cause.
    pub waits: WaitsNs,
}

fn is_zero(number: &i32) -> bool {
    *number == 0
}

/// Kind of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Operation {
    /// A name was looked up.
    Lookup,
    /// Attributes were read (stat).
    Attributes,
    /// A directory was listed.
    List,
    /// A file was read or mapped.
    Read,
    /// The target of a symbolic link was read.
    Readlink,
    /// Extended attributes were read.
    Xattr,
    /// An ioctl was refused.
    Ioctl,
}

impl From<CallKind> for Operation {
    fn from(kind: CallKind) -> Self {
        match kind {
            CallKind::Lookup => Self::Lookup,
            CallKind::Attributes => Self::Attributes,
            CallKind::List => Self::List,
            CallKind::Read => Self::Read,
            CallKind::LinkTarget => Self::Readlink,
            CallKind::Xattr => Self::Xattr,
            CallKind::Ioctl => Self::Ioctl,
        }
    }
}

impl Operation {
    /// Returns the name of the operation, as in JSON.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Lookup => "lookup",
            Self::Attributes => "attributes",
            Self::List => "list",
            Self::Read => "read",
            Self::Readlink => "readlink",
            Self::Xattr => "xattr",
            Self::Ioctl => "ioctl",
        }
    }
}

/// Origin of a reply's data.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Source {
    /// Memory of the daemon: catalogs and decompressed blocks.
    Memory,
    /// The cache on disk.
    Cache,
    /// The file of an image.
    Image,
    /// A lower tier of the cache.
    Lower,
    /// Another process that fetches for this mount: the writer of the cache, or the broker.
    Process,
    /// A server.
    Network,
}

impl Source {
    /// Returns the name of the source, as in JSON.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Memory => "memory",
            Self::Cache => "cache",
            Self::Image => "image",
            Self::Lower => "lower",
            Self::Process => "process",
            Self::Network => "network",
        }
    }
}

/// Time for which a request waited, by cause, in nanoseconds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct WaitsNs {
    /// For a server.
    #[serde(default)]
    pub network: u64,
    /// For a local file.
    #[serde(default)]
    pub disk: u64,
    /// Decompression and verification.
    #[serde(default)]
    pub processing: u64,
    /// For a thread of the daemon.
    #[serde(default)]
    pub thread: u64,
}

impl From<WaitTimes> for WaitsNs {
    fn from(waits: WaitTimes) -> Self {
        let nanos = |time: std::time::Duration| u64::try_from(time.as_nanos()).unwrap_or(u64::MAX);
        Self {
            network: nanos(waits.network),
            disk: nanos(waits.disk),
            processing: nanos(waits.processing),
            thread: nanos(waits.thread),
        }
    }
}
