//! Sums of traced requests by file, and the intervals in which threads waited.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::time::Duration;

use esker_node::trace::{Operation, Source, TraceEnd, TraceStart, TracedCall};

use super::blocked::Wait;
use crate::mounting::first_reads::FirstReads;

/// Maximum number of files, and of intervals, in a report.
const FILES_MAX: usize = 1 << 20;
const WAITS_MAX: usize = 1 << 22;

/// Results of the traces of all mounts.
#[derive(Debug, Default)]
pub(super) struct Collected {
    pub(super) mounts: Vec<MountTrace>,
    /// Files by number of the mount and path.
    pub(super) files: BTreeMap<(usize, String), FileUse>,
    pub(super) waits: Vec<Wait>,
    /// Processes with the names of their programs.
    pub(super) processes: BTreeMap<u32, String>,
    /// Time by program, mount and path, for flame graphs.
    pub(super) stacks: HashMap<(String, usize, String), u64>,
    pub(super) requests: u64,
    /// Requests without a place in this report.
    pub(super) left_out: u64,
    /// Reasons why mounts are not traced.
    pub(super) refused: Vec<String>,
}

/// Trace of one mount.
#[derive(Debug, Default)]
pub(super) struct MountTrace {
    pub(super) start: TraceStart,
    /// Time in which the kernel hands a request over and its reply back, if it could be measured.
    pub(super) hand_over: Option<Duration>,
    pub(super) requests: u64,
    pub(super) dropped: u64,
    /// First reads, for profiles.
    pub(super) first_reads: FirstReads<String>,
    /// True if the daemon reported the end.
    pub(super) complete: bool,
}

/// Use of one file, directory or name.
#[derive(Clone, Debug, Default)]
pub(super) struct FileUse {
    /// Number of requests by kind.
    pub(super) operations: BTreeMap<Operation, u64>,
    /// Number of replies that the name does not exist.
    pub(super) missing: u64,
    /// Number of other errors, and the last error number.
    pub(super) errors: u64,
    pub(super) errno: i32,
    /// Start of the first request, in nanoseconds of the monotonic clock.
    pub(super) first_ns: u64,
    pub(super) took_ns: u64,
    /// Times by cause: network, disk, decompression.
    pub(super) network_ns: u64,
    pub(super) disk_ns: u64,
    pub(super) processing_ns: u64,
    pub(super) bytes: u64,
    /// Bytes by source; requests without bytes count with 0.
    pub(super) sources: BTreeMap<Source, u64>,
    /// Servers, folders and images.
    pub(super) places: BTreeSet<String>,
    pub(super) pids: BTreeSet<u32>,
}

/// State of a file for its user.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Found {
    /// Content was read.
    Read,
    /// The directory was listed.
    Listed,
    /// The name or attributes were looked up, or a link was followed.
    LookedUp,
    /// The name does not exist.
    Missing,
    /// A request failed.
    Failed,
}

impl Found {
    pub(super) const fn name(self) -> &'static str {
        match self {
            Self::Read => "read",
            Self::Listed => "listed",
            Self::LookedUp => "looked_up",
            Self::Missing => "missing",
            Self::Failed => "failed",
        }
    }
}

impl FileUse {
    pub(super) fn requests(&self) -> u64 {
        self.operations.values().sum()
    }

    fn has(&self, operation: Operation) -> bool {
        self.operations.contains_key(&operation)
    }

    pub(super) fn found(&self) -> Found {
        if self.errors > 0 {
            Found::Failed
        } else if self.has(Operation::Read) {
            Found::Read
        } else if self.has(Operation::List) {
            Found::Listed
        } else if self.missing > 0 && self.missing == self.requests() {
            Found::Missing
        } else {
            Found::LookedUp
        }
    }

    /// Returns the source that is farthest away.
    pub(super) fn farthest(&self) -> Source {
        self.sources.keys().next_back().copied().unwrap_or(Source::Memory)
    }

    fn add(&mut self, call: &TracedCall) {
        if self.operations.is_empty() {
            self.first_ns = call.began_ns;
        }
        *self.operations.entry(call.operation).or_default() += 1;
        match call.errno {
            0 => {}
            libc::ENOENT if call.operation == Operation::Lookup => self.missing += 1,
            // A missing attribute is no failure.
            libc::ENODATA | libc::ENOSYS | libc::ERANGE => {}
            // A program asks if a file is a terminal.
            libc::ENOTTY if call.operation == Operation::Ioctl => {}
            errno => {
                self.errors += 1;
                self.errno = errno;
            }
        }
        self.first_ns = self.first_ns.min(call.began_ns);
        self.took_ns = self.took_ns.saturating_add(call.took_ns);
        self.network_ns = self.network_ns.saturating_add(call.waits.network);
        self.disk_ns = self.disk_ns.saturating_add(call.waits.disk);
        self.processing_ns = self.processing_ns.saturating_add(call.waits.processing);
        self.bytes = self.bytes.saturating_add(call.bytes);
        let of_source = self.sources.entry(call.source).or_default();
        *of_source = of_source.saturating_add(call.bytes);
        self.places.extend(call.place.clone());
        self.pids.insert(call.pid);
    }
}

impl Collected {
    pub(super) fn new(starts: Vec<TraceStart>, refused: Vec<String>) -> Self {
        let mounts = starts.into_iter().map(|start| MountTrace { start, ..MountTrace::default() });
        Self { mounts: mounts.collect(), refused, ..Self::default() }
    }

    /// Sets the time of a hand-over for each mount, in the order of their starts.
    pub(super) fn set_hand_over(&mut self, times: impl IntoIterator<Item = Option<Duration>>) {
        for (mount, time) in self.mounts.iter_mut().zip(times) {
            mount.hand_over = time;
        }
    }

    /// Adds a request to the mount of this number.
    pub(super) fn add(&mut self, number: usize, call: &TracedCall) {
        self.requests += 1;
        let mut hand_over = Duration::ZERO;
        if let Some(mount) = self.mounts.get_mut(number) {
            mount.requests += 1;
            hand_over = mount.hand_over.unwrap_or_default();
        }
        let key = (number, call.path.clone());
        if self.waits.len() >= WAITS_MAX || (self.files.len() >= FILES_MAX && !self.files.contains_key(&key))
        {
            self.left_out += 1;
            return;
        }
        self.files.entry(key).or_default().add(call);
        self.waits.push(Wait::of(call, hand_over));
        if let Some(mount) = self.mounts.get_mut(number)
            && (call.operation, call.errno) == (Operation::Read, 0)
        {
            mount.first_reads.add(
                &call.path,
                call.offset..call.offset.saturating_add(call.bytes),
                call.began_ns,
            );
        }
        if !self.processes.contains_key(&call.pid) && self.processes.len() < FILES_MAX {
            self.processes.insert(call.pid, call.command.clone());
        }
        let stack = (call.command.clone(), number, call.path.clone());
        let sum = self.stacks.entry(stack).or_default();
        *sum = sum.saturating_add(call.took_ns);
    }

    /// Records the end of a mount's trace; none if it ended early.
    pub(super) fn ended(&mut self, number: usize, end: Option<TraceEnd>) {
        if let Some(mount) = self.mounts.get_mut(number) {
            mount.complete = end.is_some();
            mount.dropped = end.unwrap_or_default().dropped;
        }
    }

    /// Returns the path of a file in the file system.
    pub(super) fn full_path(&self, number: usize, path: &str) -> String {
        let mountpoint = self.mounts.get(number).map_or("", |mount| mount.start.mountpoint.as_str());
        full_path(mountpoint, path)
    }
}

/// Returns the path of a file of a mount in the file system.
pub(crate) fn full_path(mountpoint: &str, path: &str) -> String {
    let path = if path == "/" { "" } else { path };
    let between = if path.starts_with('(') { "/" } else { "" };
    format!("{}{between}{path}", mountpoint.trim_end_matches('/'))
}

#[cfg(test)]
mod tests {
    use super::super::tests::call;
    use super::*;

    #[test]
    fn requests_of_a_file_are_summed() {
        let start = TraceStart { mountpoint: "/cvmfs/a.test/".into(), ..TraceStart::default() };
        let mut all = Collected::new(vec![start], Vec::new());
        let missing = TracedCall { errno: libc::ENOENT, ..call("/no", Operation::Lookup) };
        let server = Some("http://server".to_owned());
        let read = call("/a", Operation::Read);
        let read = TracedCall { bytes: 10, source: Source::Network, place: server, began_ns: 3_000, ..read };
        let failed = TracedCall { errno: libc::EIO, ..call("/bad", Operation::Read) };
        for one in
            [call("/a", Operation::Lookup), read.clone(), read, missing, call("/", Operation::List), failed]
        {
            all.add(0, &one);
        }
        all.ended(0, Some(TraceEnd { calls: 6, dropped: 2 }));
        let of = |path: &str| all.files.get(&(0, path.to_owned())).expect(path);
        let a = of("/a");
        assert_eq!((a.requests(), a.bytes, a.took_ns, a.first_ns), (3, 20, 1_500, 1_000));
        assert_eq!((a.farthest(), a.places.len(), a.found()), (Source::Network, 1, Found::Read));
        assert_eq!(of("/no").found(), Found::Missing);
        assert_eq!(of("/").found(), Found::Listed);
        assert_eq!(of("/bad").found(), Found::Failed);
        assert_eq!(all.full_path(0, "/a"), "/cvmfs/a.test/a");
        assert_eq!(all.full_path(0, "/"), "/cvmfs/a.test");
        assert_eq!(all.full_path(0, "(inode 5)"), "/cvmfs/a.test/(inode 5)");
        let mount = &all.mounts[0];
        assert_eq!((mount.requests, mount.dropped, mount.complete), (6, 2, true));
    }
}
