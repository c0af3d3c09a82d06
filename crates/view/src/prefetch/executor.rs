//! Passes events to the predictors, and performs what they request, in a thread.

use std::path::PathBuf;
use std::sync::atomic::Ordering;
use std::sync::mpsc::{Receiver, RecvTimeoutError};
use std::sync::{Arc, Weak};
use std::time::Duration;

use esker_prefetch::{
    Action, Ended, FAR_ROUND_TRIP, File, Observation, Outcome, Planner, Purpose, Read, SequenceStore, Source,
};
use esker_store::{Callback, Handle, ObjectRequest, Warmed};
use esker_vfs::Node;
use parking_lot::Mutex;

use super::world::{FolderCache, PresentWorld};
use super::{Event, Observed, PartRead, PlannerEvent};
use crate::catalogs::{Attached, WantedCatalog};
use crate::core::Core;
use crate::lookup::Snapshot;
use crate::payload::NodeInfo;

/// Idle time after which recorded sequences are saved.
const QUIET: Duration = Duration::from_secs(5);
/// Timeout for waiting without a limit.
const IDLE: Duration = Duration::from_secs(1 << 30);

/// Starts the thread, which ends with the core; `sequences` is the file of recorded sequences.
pub(crate) fn start(
    core: &Arc<Core>,
    inbox: Receiver<Event>,
    sequences: Option<PathBuf>,
) -> std::io::Result<()> {
    let (weak, budgets) = (Arc::downgrade(core), Arc::clone(&core.prefetch.budgets));
    let run = move || {
        let store = SequenceStore::new(sequences);
        let planner = Planner::new(store.load(Observation::All), budgets);
        let mut executor = Executor { planner, folder_cache: FolderCache::default(), is_far: false };
        executor.run(&weak, &inbox, &store);
        store.save(executor.planner.sequences());
    };
    let thread = std::thread::Builder::new().name("prefetch".into()).spawn(run)?;
    *core.prefetch.thread.lock() = Some(thread);
    Ok(())
}

/// The predictors of a view, and what the thread keeps for them.
struct Executor {
    planner: Planner,
    folder_cache: FolderCache,
    /// True if the server was far at the last miss.
    is_far: bool,
}

impl Executor {
    fn run(&mut self, core: &Weak<Core>, inbox: &Receiver<Event>, store: &SequenceStore) {
        loop {
            let saving = if self.planner.sequences().is_changed() { QUIET } else { IDLE };
            let event = match inbox.recv_timeout(self.planner.quiet_period().unwrap_or(saving)) {
                Ok(Event::Closed) | Err(RecvTimeoutError::Disconnected) => return,
                Ok(event) => Some(event),
                Err(RecvTimeoutError::Timeout) => None,
            };
            let Some(core) = core.upgrade() else { return };
            let is_open = !core.prefetch.cancel_token.is_cancelled();
            match event {
                Some(event) => self.handle(&core, event, is_open),
                None if self.planner.idle() => {}
                None => {
                    store.save(self.planner.sequences());
                    self.folder_cache.forget();
                }
            }
            if is_open {
                self.send_requests(&core);
            }
        }
    }

    fn handle(&mut self, core: &Arc<Core>, event: Event, is_open: bool) {
        let revision = core.current.load();
        let snapshot = Snapshot::new(core, &revision);
        let (event, attached) = match event {
            Event::Observed(observed) => {
                core.prefetch.backlog.fetch_sub(1, Ordering::Relaxed);
                if let Source::Server { .. } = observed.source {
                    let round_trip = core.store.round_trip();
                    self.is_far = round_trip.is_some_and(|round_trip| round_trip >= FAR_ROUND_TRIP);
                }
                let Some(read) = read_of(&snapshot, observed) else { return };
                if !is_open {
                    return self.planner.record(&read);
                }
                (PlannerEvent::Read(read), Vec::new())
            }
            Event::TriggerRead(node) => {
                let Some(file) = file_of(&snapshot, &node) else { return };
                (PlannerEvent::TriggerRead(file), Vec::new())
            }
            Event::Planned { event, attached } => (event, attached),
            Event::Earned | Event::Closed => return,
        };
        if is_open {
            let mut world = PresentWorld::new(core, &snapshot, &mut self.folder_cache, self.is_far);
            for action in self.planner.handle(event, &mut world) {
                perform(core, action);
            }
        }
        // The catalogs are mounted by now, if they were needed.
        drop(attached);
    }

    /// Sends requests for the next candidates to the store.
    fn send_requests(&mut self, core: &Arc<Core>) {
        while let Some(candidate) = self.planner.next(|event| core.prefetch.announce(event)) {
            let (key, weak) = (candidate.wanted.key(), Arc::downgrade(core));
            let ended = move |answer: Result<Warmed, _>| {
                let outcome = match answer {
                    Ok(Warmed::Fetched(_)) => Outcome::Fetched,
                    Ok(Warmed::Here) => Outcome::WasThere,
                    Err(_) => Outcome::Failed,
                };
                if let Some(core) = weak.upgrade() {
                    core.prefetch.tell(Event::planned(PlannerEvent::Ended(Ended { key, outcome })));
                }
            };
            core.store.warm(candidate.wanted, &core.prefetch.cancel_token, Callback::new(ended));
        }
    }
}

/// Returns a read as predictors see it; `None` if its node was made by another program.
fn read_of(snapshot: &Snapshot<'_>, observed: Observed) -> Option<Read> {
    let Observed { node, read: PartRead { key, at, range, .. }, source } = observed;
    let file = file_of(snapshot, &node)?;
    Some(Read { file, key, at, range, source, is_guided: false, is_among_modules: false, chunks: None })
}

fn file_of(snapshot: &Snapshot<'_>, node: &Node) -> Option<File> {
    let info = NodeInfo::of(node).ok()?;
    Some(File {
        node: *node,
        path: snapshot.path_of(&info).ok(),
        size: info.size,
        is_chunked: info.chunked,
        is_trigger: info.bundle,
        compression: info.compression,
        content: info.content_key(),
    })
}

fn perform(core: &Arc<Core>, action: Action<WantedCatalog>) {
    match action {
        Action::Open(wanted, purpose) => open(core, wanted, purpose),
        Action::Attach(missing, event) => attach(core, missing, event),
        Action::Continue(event) => core.prefetch.tell(Event::planned(event)),
    }
}

/// Prefetches and opens an object, and sends one event with the result.
fn open(core: &Arc<Core>, wanted: ObjectRequest, purpose: Purpose) {
    let (weak, retry) = (Arc::downgrade(core), wanted.clone());
    let opened = Callback::new(move |answer: Result<Handle, _>| {
        if let Some(core) = weak.upgrade() {
            core.prefetch.tell(Event::planned(PlannerEvent::Opened(purpose, answer.ok())));
        }
    });
    let weak = Arc::downgrade(core);
    let warmed = move |answer: Result<_, _>| match (answer, weak.upgrade()) {
        (Ok(_), Some(core)) => core.store.get(retry, opened),
        (Err(error), _) => opened.err(error),
        (Ok(_), None) => {}
    };
    core.store.warm(wanted, &core.prefetch.cancel_token, Callback::new(warmed));
}

/// Attaches catalogs, and sends the event when all have arrived or failed.
fn attach(core: &Arc<Core>, missing: Vec<WantedCatalog>, event: PlannerEvent) {
    let event = Mutex::new(Some(event));
    let waiting = Arc::new(WaitingEvent { core: Arc::downgrade(core), event, attached: Mutex::default() });
    for wanted in missing {
        let waiting = Arc::clone(&waiting);
        let came = move |answer: Result<Arc<Attached>, _>| waiting.attached.lock().extend(answer);
        core.catalogs.attach_ahead(wanted, &core.prefetch.cancel_token, Box::new(came));
    }
}

/// An event that waits for catalogs; sent when the last of them has arrived or failed and dropped this.
struct WaitingEvent {
    core: Weak<Core>,
    event: Mutex<Option<PlannerEvent>>,
    attached: Mutex<Vec<Arc<Attached>>>,
}

impl Drop for WaitingEvent {
    fn drop(&mut self) {
        let attached = std::mem::take(self.attached.get_mut());
        // If none arrived, a retry would lack them again.
        if !attached.is_empty()
            && let Some(core) = self.core.upgrade()
            && let Some(event) = self.event.get_mut().take()
        {
            core.prefetch.tell(Event::Planned { event, attached });
        }
    }
}
