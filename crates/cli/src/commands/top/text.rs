//! Texts of cells, and the tables without a terminal.

use std::time::Duration;

use super::snapshot::{MountRow, Snapshot};
use crate::commands::trace::time;
use crate::output::size;

/// Number of rows of each kind in a table without a terminal.
const ROWS: usize = 10;

/// Heads of the columns of mounts.
pub(super) const MOUNT_HEAD: [&str; 8] =
    ["REQ/S", "HIT", "BYTES/S", "WAIT", "LOAD", "FAILED", "STATE", "MOUNT"];

/// Returns the cells of a mount.
pub(super) fn mount_cells(row: &MountRow) -> [String; 8] {
    let rate = if row.requests_per_second < 10.0 {
        format!("{:.1}", row.requests_per_second)
    } else {
        format!("{:.0}", row.requests_per_second)
    };
    let user = row.user.map(|user| format!(" of user {user}")).unwrap_or_default();
    let reason = row.reason.as_ref().map(|reason| format!(": {reason}")).unwrap_or_default();
    [
        rate,
        row.hit_rate.map_or("-".to_owned(), |rate| format!("{:.0} %", rate * 100.0)),
        size(row.bytes_per_second as u64),
        row.waiting.to_string(),
        row.downloads.to_string(),
        row.failures.to_string(),
        row.state.to_owned(),
        format!("{}{user}{reason}", row.mountpoint),
    ]
}

/// Returns a time in microseconds with its unit.
pub(super) fn micros(micros: u64) -> String {
    time(Duration::from_micros(micros))
}

/// Returns the tables for one interval.
pub(super) fn table(snapshot: &Snapshot) -> String {
    let mut text = String::new();
    let mut line = |cells: &[String]| {
        let [requests, hit, bytes, waiting, load, failed, state, mount] = cells else { return };
        text.push_str(&format!(
            "{requests:>8} {hit:>6} {bytes:>10} {waiting:>5} {load:>5} {failed:>6} {state:8} {mount}\n"
        ));
    };
    line(&MOUNT_HEAD.map(str::to_owned));
    let mut mounts: Vec<&MountRow> = snapshot.mounts.iter().collect();
    mounts.sort_by(|a, b| b.requests_per_second.total_cmp(&a.requests_per_second));
    mounts.iter().for_each(|row| line(&mount_cells(row)));
    if snapshot.mounts.is_empty() {
        text.push_str("nothing is mounted\n");
    }
    for row in snapshot.servers.iter().take(ROWS) {
        let through = row.proxy.as_ref().map(|proxy| format!(" through {proxy}")).unwrap_or_default();
        text.push_str(&format!(
            "  load  {}{through}: {} for programs, {} prefetches; oldest {} {}\n",
            row.server,
            row.demands,
            row.prefetches,
            micros(row.oldest_us),
            row.oldest
        ));
    }
    for row in snapshot.waiting.iter().take(ROWS) {
        let (waited, operation) = (micros(row.waited_us), row.operation);
        text.push_str(&format!(
            "  wait  {} {}: {operation} {} for {waited}\n",
            row.pid, row.command, row.path
        ));
    }
    for row in snapshot.slowest.iter().take(ROWS) {
        let (took, operation) = (micros(row.took_us), row.operation);
        text.push_str(&format!("  slow  {took} {operation} {} from {}\n", row.path, row.source));
    }
    text
}

#[cfg(test)]
mod tests {
    use super::super::tests::example;
    use super::*;

    #[test]
    fn a_table_shows_mounts_downloads_processes_and_slow_paths() {
        let text = table(&example());
        for part in [
            "   REQ/S    HIT    BYTES/S  WAIT  LOAD FAILED STATE    MOUNT",
            "     100   90 %    2.0 KiB     1     3      2 serving  /cvmfs/a.test",
            "hanging  /cvmfs/b.test: no answer for 3 s",
            "  load  http://s: 1 for programs, 1 prefetches; oldest 70 µs /file-70",
            "  wait  4 cat?: read /cvmfs/a.test/a for 1.5 ms",
            "  slow  5.0 ms read /cvmfs/a.test/x from network",
        ] {
            assert!(text.contains(part), "{part}\n{text}");
        }
        assert!(table(&Snapshot::default()).contains("nothing is mounted"));
    }
}
