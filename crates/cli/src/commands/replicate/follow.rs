//! Waits for the next revision: announced by an Esker server, or after a time.

use std::os::fd::{AsFd as _, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use esker_store::{Authorities, SseListener, SseOptions};
use rustix::event::{EventfdFlags, eventfd};
use serde::Deserialize;

use super::target::Target;
use super::{Args, Outcome};
use crate::error::Failure;
use crate::publisher::{Interrupt, Woken};

/// Longest silence of a stream of revisions: three heartbeats of an Esker server.
const SILENCE: Duration = Duration::from_secs(45);
/// First pause after a failed run; it doubles with each further one.
const PAUSE: Duration = Duration::from_secs(5);

/// Waits for new revisions of one repository.
pub(super) struct Follower<'f> {
    interrupt: &'f Interrupt,
    every: Duration,
    failures: u32,
    /// Newest revision that is here.
    known: Arc<AtomicU64>,
    /// Readable once a newer revision was announced; none without a stream.
    event: Option<Arc<OwnedFd>>,
    _listener: Option<SseListener>,
}

/// Event of an Esker server.
#[derive(Deserialize)]
struct Announced {
    repository: String,
    revision: u64,
}

impl<'f> Follower<'f> {
    /// Starts to listen to the first server, if the command is to go on.
    pub(super) fn new(args: &Args, interrupt: &'f Interrupt, target: &Target) -> Self {
        let known = Arc::new(AtomicU64::new(0));
        let event =
            args.follow.then(|| eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK).ok()).flatten();
        let event = event.map(Arc::new);
        let listener = event.as_ref().and_then(|event| {
            let url = target.urls.first().filter(|url| !url.starts_with("file://"))?;
            let listen = SseOptions {
                url: format!("{url}/.esker/revisions"),
                body: String::new(),
                silence: SILENCE,
                authorities: Authorities::default(),
            };
            let (name, known, event) = (target.name.to_string(), known.clone(), event.clone());
            #[expect(clippy::host_endian_bytes, reason = "the kernel adds a number of the host's byte order")]
            let heard = move |data: &[u8]| {
                if is_news(data, &name, known.load(Ordering::Relaxed)) {
                    // A counter that is full is readable as well.
                    let _ = rustix::io::write(&*event, &1_u64.to_ne_bytes());
                }
            };
            // Without a stream, the time decides.
            SseListener::start(listen, Arc::new(heard)).ok()
        });
        Self { interrupt, every: args.every, failures: 0, known, event, _listener: listener }
    }

    /// Notes the result of a run, and returns the longest wait until the next one.
    pub(super) fn after(&mut self, outcome: &Result<Outcome, Failure>) -> Duration {
        match outcome {
            Ok(Outcome::Replicated(done)) => self.known.store(done.revision, Ordering::Relaxed),
            Ok(Outcome::Planned(_)) => {}
            Err(_) => {
                self.failures = self.failures.saturating_add(1);
                let doubled = PAUSE.saturating_mul(1 << (self.failures - 1).min(16));
                return doubled.min(self.every);
            }
        }
        self.failures = 0;
        self.every
    }

    /// Waits for an announcement or until the time has passed; false if the command is to end.
    pub(super) fn wait(&self, time: Duration) -> bool {
        // After a failure, an announcement is no reason to hurry.
        let event = self.event.as_ref().filter(|_| self.failures == 0).map(|event| event.as_fd());
        let woken = self.interrupt.wait(event, Some(time));
        if let Some(event) = &self.event {
            let _ = rustix::io::read(&**event, &mut [0_u8; 8]);
        }
        !matches!(woken, Ok(Woken::Interrupted))
    }
}

/// Returns true if an event announces a newer revision of a repository.
fn is_news(data: &[u8], name: &str, known: u64) -> bool {
    serde_json::from_slice::<Announced>(data)
        .is_ok_and(|announced| announced.repository == name && announced.revision > known)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_newer_revision_of_the_repository_is_news() {
        let event = br#"{"repository":"a.test","revision":13,"root_hash":"x"}"#;
        assert!(is_news(event, "a.test", 12));
        assert!(!is_news(event, "a.test", 13) && !is_news(event, "b.test", 1));
        assert!(!is_news(b"nonsense", "a.test", 1));
    }
}
