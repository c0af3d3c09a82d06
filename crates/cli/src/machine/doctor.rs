//! Checks this node for problems within a time limit, whatever is broken.
//!
//! Everything that may hang (a mount whose daemon is stuck, a disk that does not answer) is touched by a child process
//! that is detached if it doesn't return: a process that waits in the kernel can't always be ended, and neither can
//! one with such a thread. The rest runs in threads of this process. A check without a result in time is a finding
//! too.

mod caches;
mod machine;
mod mounts;
pub(crate) mod probe;

use std::sync::mpsc::{Sender, channel};
use std::time::{Duration, Instant};

use serde::Serialize;

use crate::settings::Settings;
pub(crate) use probe::{NoAnswer, ProbeResult, ProbeTarget, touch};

/// Time limit of all checks.
const LIMIT: Duration = Duration::from_secs(8);
/// Timeout of one probe.
const TIMEOUT: Duration = Duration::from_secs(4);

/// Severity of a finding.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Severity {
    /// The check found no problem.
    Good,
    /// The object works, but maybe not for long or not completely.
    Warning,
    /// The object does not work.
    Broken,
}

/// Result of one check. Field names are an interface.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub(crate) struct Finding {
    /// Name of the check: `device`, `namespaces`, `mount`…
    pub(crate) check: &'static str,
    /// Object of the check.
    pub(crate) object: String,
    pub(crate) grade: Severity,
    /// Description of the result.
    pub(crate) found: String,
    /// Advice.
    pub(crate) mend: Option<String>,
}

impl Finding {
    pub(crate) fn good(check: &'static str, object: impl Into<String>, found: impl Into<String>) -> Self {
        Self { check, object: object.into(), grade: Severity::Good, found: found.into(), mend: None }
    }

    pub(crate) fn warning(
        check: &'static str,
        object: impl Into<String>,
        found: impl Into<String>,
        mend: impl Into<String>,
    ) -> Self {
        let mend = Some(mend.into());
        Self { check, object: object.into(), grade: Severity::Warning, found: found.into(), mend }
    }

    pub(crate) fn broken(
        check: &'static str,
        object: impl Into<String>,
        found: impl Into<String>,
        mend: impl Into<String>,
    ) -> Self {
        Self { grade: Severity::Broken, ..Self::warning(check, object, found, mend) }
    }
}

/// One check, which runs for at most [`TIMEOUT`].
struct DoctorCheck {
    check: &'static str,
    object: String,
    examine: Box<dyn FnOnce() -> Vec<Finding> + Send>,
}

impl DoctorCheck {
    fn new(
        check: &'static str,
        object: impl Into<String>,
        examine: impl FnOnce() -> Vec<Finding> + Send + 'static,
    ) -> Self {
        Self { check, object: object.into(), examine: Box::new(examine) }
    }
}

/// Runs all checks; returns the findings in the order of the checks.
pub(crate) fn examine(settings: &Settings) -> Vec<Finding> {
    let deadline = Instant::now() + LIMIT;
    let mut checks = machine::checks(settings);
    checks.extend(mounts::checks(settings));
    checks.extend(caches::checks(settings));
    let (sender, receiver) = channel();
    let names: Vec<_> = checks.iter().map(|one| (one.check, one.object.clone())).collect();
    let mut found: Vec<Option<Vec<Finding>>> = Vec::new();
    found.resize_with(names.len(), || None);
    let mut left = 0;
    for (at, one) in checks.into_iter().enumerate() {
        match start(at, one, sender.clone()) {
            Ok(()) => left += 1,
            Err(finding) => found[at] = Some(vec![finding]),
        }
    }
    while left > 0 {
        let Ok((at, findings)) = receiver.recv_timeout(deadline.saturating_duration_since(Instant::now()))
        else {
            break;
        };
        found[at] = Some(findings);
        left -= 1;
    }
    let silent = |(check, object): (&'static str, String)| {
        let what = format!("it could not be checked within {LIMIT:?}");
        vec![Finding::broken(check, object, what, "check that its disk or mount responds")]
    };
    let all = found.into_iter().zip(names);
    all.flat_map(|(findings, name)| findings.unwrap_or_else(|| silent(name))).collect()
}

/// Starts a thread for each check: they wait, they don't compute.
fn start(at: usize, one: DoctorCheck, sender: Sender<(usize, Vec<Finding>)>) -> Result<(), Finding> {
    let DoctorCheck { check, object, examine } = one;
    let named = object.clone();
    let thread = std::thread::Builder::new().name("probe".into()).stack_size(256 << 10);
    // The receiver may have timed out.
    let started = thread.spawn(move || drop(sender.send((at, examine()))));
    started.map(drop).map_err(|error| {
        let what = format!("no thread can be started to check it: {error}");
        Finding::broken(check, named, what, "end processes, or raise the limit on them (ulimit -u)")
    })
}
