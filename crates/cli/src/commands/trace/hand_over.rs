//! Measures how long the kernel needs to hand a request over to a mount's daemon and the reply back.
//!
//! No counter of a daemon has this time: it begins before the daemon sees the request, and ends after the reply. The
//! kernel caches no reply to statfs(2), so each such call is one request, whose time in the daemon is in its counters.

use std::path::Path;
use std::time::{Duration, Instant};

use esker_node::control::Response;
use esker_threads::watchdog;

/// Number of calls. One takes some 20 µs.
const CALLS: u32 = 64;
/// Time limit for all of them, and for each status: a daemon that hangs delays the trace of the others.
pub(super) const TIMEOUT: Duration = Duration::from_secs(1);

/// Returns the mean time of one request outside of the daemon, or `None` if it can't be measured: if the daemon, which
/// `ask` asks for its status, gives none, or if this user may not use the mount.
pub(super) fn measure(mountpoint: &Path, ask: impl Fn() -> Option<Response>) -> Option<Duration> {
    let before = in_daemon(&ask()?)?;
    let place = mountpoint.to_owned();
    let calls = move || {
        let began = Instant::now();
        let outcome = (0..CALLS).try_for_each(|_| rustix::fs::statvfs(&place).map(|_| ()));
        outcome.map(|()| began.elapsed())
    };
    let wall = watchdog::within(TIMEOUT, calls)?.ok()?;
    let (requests, latency) = in_daemon(&ask()?)?;
    of_sums(wall, requests.checked_sub(before.0)?, latency.checked_sub(before.1)?)
}

/// Returns the number of requests for statfs(2) and the sum of their latencies.
fn in_daemon(response: &Response) -> Option<(u64, Duration)> {
    let Response::Status(status) = response else { return None };
    let of = status.requests.iter().find(|one| one.name == "STATFS");
    Some(of.map_or((0, Duration::ZERO), |one| (one.requests, Duration::from_micros(one.latency_us))))
}

/// Returns the mean of the time that the daemon did not count; `None` if other programs sent requests meanwhile.
fn of_sums(wall: Duration, requests: u64, latency: Duration) -> Option<Duration> {
    (requests == u64::from(CALLS)).then(|| wall.saturating_sub(latency) / CALLS)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_calls_of_this_process_are_measured() {
        let (wall, latency) = (Duration::from_micros(64 * 30), Duration::from_micros(64 * 10));
        assert_eq!(of_sums(wall, 64, latency), Some(Duration::from_micros(20)));
        assert_eq!(of_sums(wall, 65, latency), None);
        assert_eq!(of_sums(latency, 64, wall), Some(Duration::ZERO));
    }

    #[test]
    fn a_daemon_without_status_is_not_measured() {
        assert_eq!(measure(Path::new("/"), || None), None);
        assert_eq!(measure(Path::new("/"), || Some(Response::Done)), None);
    }
}
