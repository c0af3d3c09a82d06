//! Waiting for the lock of another publisher.

use std::time::{Duration, Instant};

use esker_repository::RepositoryError;

use super::failure::OperationError;
use super::interrupt::{Interrupt, Woken};
use crate::output::{parse_duration, tell};
use crate::progress::ProgressMeter;

/// Interval of attempts to take the lock.
const RETRY: Duration = Duration::from_millis(250);

/// Options for waiting for another publisher.
#[derive(clap::Args, Clone, Copy, Debug, Default)]
pub(crate) struct LockArgs {
    /// Longest wait for the commit of another publisher or the transaction of CernVM-FS, like 90s or 10m; --wait
    /// alone has no limit [default: a minute for a commit, none for a transaction]
    #[arg(long, value_name = "DURATION", num_args = 0..=1, require_equals = true, default_missing_value = "",
        value_parser = patience)]
    wait: Option<LockTimeout>,
}

/// Time limit; `None` for no limit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct LockTimeout(Option<Duration>);

fn patience(text: &str) -> Result<LockTimeout, String> {
    if text.is_empty() {
        Ok(LockTimeout(None))
    } else {
        parse_duration(text).map(|time| LockTimeout(Some(time)))
    }
}

impl LockArgs {
    /// Returns the time limit of the option, if it is given: none for no limit.
    pub(crate) fn limit(self) -> Option<Option<Duration>> {
        self.wait.map(|LockTimeout(limit)| limit)
    }

    /// Repeats `attempt` while another publisher holds the lock, up to the time limit.
    pub(crate) fn when_free<T, E: OperationError + From<RepositoryError>>(
        &self,
        interrupt: &Interrupt,
        quiet: bool,
        mut attempt: impl FnMut() -> Result<T, E>,
    ) -> Result<T, E> {
        let begun = Instant::now();
        let mut waiting: Option<ProgressMeter> = None;
        loop {
            let error = match attempt() {
                Err(error) if is_locked(&error) => error,
                other => return other,
            };
            let Some(LockTimeout(limit)) = self.wait else { return Err(error) };
            let waited = begun.elapsed();
            if limit.is_some_and(|limit| waited >= limit) {
                return Err(error);
            }
            let meter = waiting.get_or_insert_with(|| {
                if !quiet {
                    error.repository().into_iter().for_each(tell_of_wait);
                }
                ProgressMeter::new(quiet)
            });
            meter.say(|| format!("waiting for another publisher for {} s", waited.as_secs()));
            let left = limit.map_or(RETRY, |limit| RETRY.min(limit.saturating_sub(waited)));
            match interrupt.wait(None, Some(left)) {
                Ok(Woken::TimedOut) => {}
                _ => return Err(RepositoryError::Interrupted.into()),
            }
        }
    }
}

/// Returns true if another publisher has the lock.
fn is_locked(error: &impl OperationError) -> bool {
    matches!(error.repository(), Some(RepositoryError::Locked { .. } | RepositoryError::Transaction(_)))
}

/// Prints which publisher the command waits for.
pub(super) fn tell_of_wait(error: &RepositoryError) {
    tell(&format!("esker: {error}; waiting until it is done (Ctrl-C to give up)\n"));
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn durations_are_parsed() {
        assert_eq!(patience(""), Ok(LockTimeout(None)));
        assert_eq!(patience("90s"), Ok(LockTimeout(Some(Duration::from_secs(90)))));
        assert!(patience("soon").is_err());
    }
}
