//! Collects after a publish, as the repository's settings say. The publish is done, so a failure is a warning.

use std::sync::Mutex;

use esker_maintain::{Collect, CollectProgress, Collected};
use esker_repository::Repository;

use super::{Interrupt, now};
use crate::error::{chain_after, warn};
use crate::progress::ProgressMeter;

/// Returns true if the settings ask for a collect now.
pub(super) fn is_due(repository: &Repository) -> bool {
    match Collect::is_due(repository, now()) {
        Ok(is_due) => is_due,
        Err(error) => {
            warn(Some(&format!("nothing was collected: {error}")));
            false
        }
    }
}

/// Collects; none after a failure.
pub(super) fn run(
    repository: &Repository,
    interrupt: &Interrupt,
    threads: usize,
    quiet: bool,
) -> Option<Collected> {
    let meter = Mutex::new(ProgressMeter::new(quiet));
    let progress = |progress| {
        if let Ok(mut meter) = meter.try_lock() {
            meter.say(|| collect_progress(repository.name().as_str(), progress));
        }
    };
    let mut collect = Collect::automatic(repository, &progress);
    collect.threads = threads;
    collect.stop = interrupt.flag();
    let outcome = collect.run(repository, now());
    drop(meter);
    outcome
        .inspect_err(|error| {
            let what = "the revision is published, but nothing was collected";
            warn(Some(&format!("{what}: {}; `esker collect` does it again", chain_after(what, error))));
        })
        .ok()
}

/// Returns the line about the progress of a collect.
pub(crate) fn collect_progress(name: &str, progress: CollectProgress) -> String {
    match progress {
        CollectProgress::Mark { kept, dropped } => {
            format!("{name}: reading {kept} kept and {dropped} dropped revisions")
        }
        CollectProgress::Delete { done, total } => format!("{name}: deleted {done} of {total} objects"),
    }
}
