//! What the configuration says of the process that serves a mount.

use esker_node::parameters::Tuning;
use rustix::thread::{CpuSet, sched_setaffinity};

use crate::log;

/// Makes this process what it is to be. Call it before threads are started: they take after the one that starts them.
/// What the system does not allow is told in the log; a mount is worth more than its score.
pub(crate) fn apply(tuning: &Tuning) {
    if let Some(score) = tuning.oom_score
        && let Err(error) = std::fs::write("/proc/self/oom_score_adj", score.to_string())
    {
        log::line(&format!("CVMFS_OOM_SCORE_ADJ={score} has no effect: {error}"));
    }
    if !tuning.cpus.is_empty() {
        let mut set = CpuSet::new();
        tuning.cpus.iter().filter(|cpu| **cpu < CpuSet::MAX_CPU).for_each(|cpu| set.set(*cpu));
        if let Err(error) = sched_setaffinity(None, &set) {
            log::line(&format!("CVMFS_CPU_AFFINITY={:?} has no effect: {error}", tuning.cpus));
        }
    }
}

/// What a daemon is called. systemd lets those live that begin with `@` while it shuts down
/// (<https://systemd.io/ROOT_STORAGE_DAEMONS/>).
pub(crate) fn name(tuning: &Tuning) -> &'static str {
    if tuning.survives { "@esker" } else { "esker" }
}
