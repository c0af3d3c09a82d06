//! Settings of the process that serves a mount.

use esker_config::Tuning;
use rustix::thread::{CpuSet, sched_setaffinity};

/// Applies the settings to this process. Must be called before threads are started, which inherit them. Refusals of
/// the system are logged; the mount matters more.
pub(crate) fn apply(tuning: &Tuning) {
    if let Some(score) = tuning.oom_score
        && let Err(error) = std::fs::write("/proc/self/oom_score_adj", score.to_string())
    {
        tracing::warn!("CVMFS_OOM_SCORE_ADJ={score} has no effect: {error}");
    }
    if !tuning.cpus.is_empty() {
        let mut set = CpuSet::new();
        tuning.cpus.iter().filter(|cpu| **cpu < CpuSet::MAX_CPU).for_each(|cpu| set.set(*cpu));
        if let Err(error) = sched_setaffinity(None, &set) {
            tracing::warn!("CVMFS_CPU_AFFINITY={:?} has no effect: {error}", tuning.cpus);
        }
    }
}

/// Returns the name of a daemon. systemd spares those that begin with `@` at shutdown
/// (<https://systemd.io/ROOT_STORAGE_DAEMONS/>).
pub(crate) fn name(tuning: &Tuning) -> &'static str {
    if tuning.survives { "@esker" } else { "esker" }
}
