//! Notes the outcome of a check where monitors and pages read it.

use std::path::Path;
use std::sync::atomic::AtomicBool;

use esker_format::time::UnixTime;
use esker_repository::{LOCK_WAIT, ReplicaState, RepositoryError, Storage, head::wait_for_lock};

use super::options::CheckReport;
use crate::status_file;

/// Writes time and outcome of a whole check to `.cvmfs_status.json`, as `cvmfs_server check` does.
pub fn note_outcome(
    root: &Path,
    report: &CheckReport,
    now: UnixTime,
    stop: &AtomicBool,
) -> Result<(), RepositoryError> {
    let storage = Storage::open(root)?;
    let is_replica = ReplicaState::read(storage.place())?.is_some();
    let _lock = wait_for_lock(&storage, is_replica, (Some(LOCK_WAIT), |_| {}), stop)?;
    let is_good = report.findings.is_empty() && report.more == 0;
    let outcome = if is_good { "succeeded" } else { "failed" };
    let fields = [("last_check", &*status_file::date(now)), ("check_status", outcome)];
    status_file::set(&**storage.sink(), &fields)
}
