//! Runs the prefetch scheduler in a thread.

use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::sync::mpsc::{Receiver, RecvTimeoutError};
use std::time::Duration;

use esker_prefetch::{Observation, SequenceStore};

use crate::core::Core;

use super::Event;
use super::scheduler::Scheduler;

/// Idle time after which recorded sequences are saved.
const QUIET: Duration = Duration::from_secs(5);
/// Timeout for waiting without a limit.
const IDLE: Duration = Duration::from_secs(1 << 30);

/// Starts the scheduler, which ends with the core; `sequences` is the file of recorded sequences.
pub(crate) fn start(
    core: &Arc<Core>,
    inbox: Receiver<Event>,
    sequences: Option<PathBuf>,
) -> std::io::Result<()> {
    let weak = Arc::downgrade(core);
    let plan = move || {
        let store = SequenceStore::new(sequences);
        let mut scheduler = Scheduler::new(weak.clone(), store.load(Observation::All));
        loop {
            let saving = if scheduler.learned.is_changed() { QUIET } else { IDLE };
            let event = match inbox.recv_timeout(scheduler.remaining.quiet_period().unwrap_or(saving)) {
                Ok(Event::Closed) | Err(RecvTimeoutError::Disconnected) => break,
                Ok(event) => Some(event),
                Err(RecvTimeoutError::Timeout) => None,
            };
            let Some(core) = weak.upgrade() else { break };
            let Some(event) = event else {
                if !scheduler.remaining.begin() {
                    store.save(&mut scheduler.learned);
                    scheduler.release_caches();
                }
                if !core.prefetch.cancel_token.is_cancelled() {
                    scheduler.send_requests(&core);
                }
                continue;
            };
            if matches!(event, Event::Missed(_) | Event::FirstRead(_)) {
                core.prefetch.backlog.fetch_sub(1, Ordering::Relaxed);
                scheduler.remaining.wait();
            }
            if core.prefetch.cancel_token.is_cancelled() {
                scheduler.record_event(&core, &event);
                continue;
            }
            scheduler.handle(&core, event);
            scheduler.send_requests(&core);
        }
        store.save(&mut scheduler.learned);
    };
    let thread = std::thread::Builder::new().name("prefetch".into()).spawn(plan)?;
    *core.prefetch.thread.lock() = Some(thread);
    Ok(())
}
