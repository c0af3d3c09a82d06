//! The trusted head of a repository.
//!
//! A [`HeadKeeper`] asks the server for the manifest, the certificate it names and the whitelist, has `format` verify
//! them, and saves the last accepted head durably. An older head is never applied. If the server can't be reached it
//! goes on with the saved head, and reports that.

mod check;
mod saved;

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use esker_format::blacklist::Blacklist;
use esker_format::master_keys::MasterKeys;
use esker_format::name::RepositoryName;
use esker_format::time::UnixTime;
use esker_format::trust::{self, AcceptedHead, TrustError, VerifiedHead};
use parking_lot::Mutex;

use crate::cache::disk::{Disk, RealDisk};
use crate::callback::Callback;
use crate::clock::unix_now;
use crate::engine::Engine;
use crate::error::{Cause, StoreError};
use crate::objects::object_store::ObjectStore;
use crate::pool::Pool;
use crate::priority::Urgency;
use crate::transport::source::Source;
use check::{Check, Checked};
use saved::{Evidence, Saved, SavedFile};

/// Trust settings of a repository.
#[derive(Clone)]
pub struct HeadOptions {
    /// Disk of the saved heads.
    pub disk: Arc<dyn Disk>,
    /// Name of the repository.
    pub name: RepositoryName,
    /// Keys that may sign the whitelist.
    pub keys: MasterKeys,
    /// Blacklisted certificates and revisions.
    pub blacklist: Blacklist,
    /// Maximum age of a saved head at which it may start a mount without a server.
    pub offline_max_age: Duration,
    /// Function that returns the current time.
    pub now: Arc<dyn Fn() -> UnixTime + Send + Sync>,
}

/// Default of [`HeadOptions::offline_max_age`].
pub const OFFLINE_MAX_AGE: Duration = Duration::from_secs(30 * 86_400);

/// Seconds by which the saved time of confirmation may be outdated.
const CONFIRMED_STEP: i64 = 3600;

impl HeadOptions {
    /// Returns the default options with the system's clock.
    pub fn new(name: RepositoryName, keys: MasterKeys) -> Self {
        let now = || UnixTime(i64::try_from(unix_now()).unwrap_or(i64::MAX));
        Self {
            disk: Arc::new(RealDisk::PRIVATE),
            name,
            keys,
            blacklist: Blacklist::default(),
            offline_max_age: OFFLINE_MAX_AGE,
            now: Arc::new(now),
        }
    }
}

/// Keeps the head of one repository up to date. Cheap to clone.
#[derive(Clone)]
pub struct HeadKeeper {
    keeper: Arc<HeadStore>,
}

/// Result of [`HeadKeeper::start`].
#[derive(Clone, Debug)]
pub struct Started {
    /// The head to use.
    pub head: Arc<VerifiedHead>,
    /// Time and cause of the failure, if the head is a saved one because the server can't be used.
    pub offline: Option<Offline>,
}

/// Describes a server that can't be used.
#[derive(Clone, Debug)]
pub struct Offline {
    /// Time of a server's last confirmation of the head in use.
    pub since: UnixTime,
    /// Failure of the server.
    pub reason: StoreError,
}

/// Result of [`HeadKeeper::refresh`].
#[derive(Clone, Debug)]
pub enum Refreshed {
    /// The head is the same.
    Unchanged,
    /// A newer head is in use.
    New(Arc<VerifiedHead>),
    /// The server was unreachable or offered an untrusted head; the head stays.
    Offline(Offline),
}

/// State of a head, for display.
#[derive(Clone, Debug)]
pub struct HeadStatus {
    /// The head in use.
    pub head: Option<Arc<VerifiedHead>>,
    /// Time of verification of its signatures against the clock.
    pub accepted: UnixTime,
    /// Time of a server's last offer.
    pub confirmed: UnixTime,
    /// Failure of the last request to a server, if it failed.
    pub offline: Option<StoreError>,
    /// Failure to save the head, if any: after a restart an older one might be trusted.
    pub unsaved: Option<String>,
}

struct HeadStore {
    source: Arc<dyn Source>,
    store: Arc<dyn ObjectStore>,
    pool: Arc<Pool>,
    file: SavedFile,
    options: HeadOptions,
    state: Mutex<State>,
    /// Serialises accepting and confirming a head, which write to the disk; `state` is locked only briefly.
    accepting: Mutex<()>,
}

#[derive(Default)]
struct State {
    current: Option<Current>,
    offline: Option<StoreError>,
    unsaved: Option<String>,
}

#[derive(Clone)]
struct Current {
    head: Arc<VerifiedHead>,
    saved: Saved,
}

impl HeadKeeper {
    /// Creates a keeper that requests heads from `source`, takes certificates from `store`, and saves heads in
    /// the folder `heads` ([`Cache::heads`](crate::Cache::heads)).
    pub fn new(
        engine: &Engine,
        source: Arc<dyn Source>,
        store: Arc<dyn ObjectStore>,
        heads: &Path,
        options: HeadOptions,
    ) -> Self {
        let file = SavedFile::new(options.disk.clone(), heads, &options.name, &options.keys.id());
        let pool = engine.pool().clone();
        let (state, accepting) = (Mutex::default(), Mutex::default());
        Self { keeper: Arc::new(HeadStore { source, store, pool, file, options, state, accepting }) }
    }

    /// Finds the first head: the server's, or the saved one if the server can't be reached. If the server's head fails
    /// verification the saved one is not used, unless the server's is merely older or no manifest at all (the page of
    /// a captive portal).
    pub fn start(&self, done: Callback<Started>) {
        let keeper = self.keeper.clone();
        self.keeper.pool.spawn(Urgency::Demand, move || {
            let saved = keeper.load();
            let seen = saved.as_ref().map(|saved| saved.head.seen());
            let after = keeper.clone();
            let checked = Callback::new(move |outcome| {
                let pool = after.pool.clone();
                pool.run(Urgency::Demand, move || done.give(after.started(outcome, saved)));
            });
            Check::begin(keeper, None, seen, checked);
        });
    }

    /// Checks for a newer head on the server. Never fails: without an answer the head stays.
    pub fn refresh(&self, done: Callback<Refreshed>) {
        let current = self.keeper.state.lock().current.clone();
        let Some(current) = current else {
            let started =
                Callback::new(|outcome: Result<Started, _>| done.give(outcome.map(Refreshed::from)));
            return self.start(started);
        };
        let keeper = self.keeper.clone();
        let seen = Some(current.head.seen());
        let checked = Callback::new(move |outcome| {
            let pool = keeper.pool.clone();
            pool.run(Urgency::Demand, move || done.ok(keeper.refreshed(outcome)));
        });
        Check::begin(self.keeper.clone(), Some(current.saved.evidence.manifest), seen, checked);
    }

    /// Returns the name of the repository.
    pub fn name(&self) -> &RepositoryName {
        &self.keeper.options.name
    }

    /// Returns the first revision that the blacklist allows.
    pub fn floor(&self) -> u64 {
        let options = &self.keeper.options;
        options.blacklist.floor(&options.name).unwrap_or(0)
    }

    /// Returns the head in use.
    pub fn current(&self) -> Option<Arc<VerifiedHead>> {
        self.keeper.state.lock().current.as_ref().map(|current| current.head.clone())
    }

    /// Returns the state.
    pub fn status(&self) -> HeadStatus {
        let state = self.keeper.state.lock();
        let saved = state.current.as_ref().map(|current| &current.saved);
        HeadStatus {
            head: state.current.as_ref().map(|current| current.head.clone()),
            accepted: saved.map(|saved| saved.accepted).unwrap_or_default(),
            confirmed: saved.map(|saved| saved.confirmed).unwrap_or_default(),
            offline: state.offline.clone(),
            unsaved: state.unsaved.clone(),
        }
    }

    /// Forgets the last accepted head, so that a recreated repository (which begins with revision 1) can be used. Only
    /// on the user's request: it gives up the protection against old heads.
    pub fn forget_history(&self) -> Result<(), StoreError> {
        let keeper = &self.keeper;
        let forgotten = keeper.file.lock().and_then(|_lock| keeper.file.forget());
        keeper.state.lock().current = None;
        forgotten.map_err(|source| {
            let path = keeper.file.path().to_owned();
            StoreError::new(keeper.what(), Cause::Disk { doing: "forgetting", path, source })
        })
    }
}

impl From<Started> for Refreshed {
    fn from(started: Started) -> Self {
        match started.offline {
            Some(offline) => Refreshed::Offline(offline),
            None => Refreshed::New(started.head),
        }
    }
}

impl HeadStore {
    fn what(&self) -> String {
        format!("the head of {}", self.options.name)
    }

    fn now(&self) -> UnixTime {
        (self.options.now)()
    }

    fn verify(
        &self,
        evidence: &Evidence,
        now: UnixTime,
        seen: Option<AcceptedHead>,
    ) -> Result<VerifiedHead, TrustError> {
        trust::verify(&trust::Evidence {
            manifest: &evidence.manifest,
            whitelist: &evidence.whitelist,
            certificate: &evidence.certificate,
            keys: &self.options.keys,
            blacklist: &self.options.blacklist,
            name: &self.options.name,
            now,
            seen,
        })
    }

    /// Loads the saved head and verifies it as of its acceptance, but with the current blacklist.
    fn load(&self) -> Option<Current> {
        let saved = self.file.load()?;
        let head = self.verify(&saved.evidence, saved.accepted, None).ok()?;
        Some(Current { head: Arc::new(head), saved })
    }

    fn started(
        &self,
        outcome: Result<Checked, StoreError>,
        saved: Option<Current>,
    ) -> Result<Started, StoreError> {
        let reason = match outcome {
            Ok(Checked::New(new)) => match self.accept(new) {
                Ok(head) => return Ok(Started { head, offline: None }),
                Err(error) => error,
            },
            Ok(Checked::Same) => unreachable!("nothing is the same because nothing was known at a start"),
            Err(error) => error,
        };
        let Some(saved) = saved.filter(|_| may_go_on(&reason)) else { return Err(reason) };
        let since = saved.saved.confirmed;
        let age = u64::try_from(self.now().0.saturating_sub(since.0)).unwrap_or(0);
        let max_age = self.options.offline_max_age;
        if Duration::from_secs(age) > max_age {
            let cause = Cause::SavedHeadTooOld { since, max_age, reason: Box::new(reason) };
            return Err(StoreError::new(self.what(), cause));
        }
        let head = saved.head.clone();
        let mut state = self.state.lock();
        state.current = Some(saved);
        state.offline = Some(reason.clone());
        Ok(Started { head, offline: Some(Offline { since, reason }) })
    }

    fn refreshed(&self, outcome: Result<Checked, StoreError>) -> Refreshed {
        let reason = match outcome {
            Ok(Checked::Same) => {
                self.confirm();
                return Refreshed::Unchanged;
            }
            Ok(Checked::New(new)) => match self.accept(new) {
                Ok(head) => return Refreshed::New(head),
                Err(error) => error,
            },
            Err(error) => error,
        };
        let mut state = self.state.lock();
        state.offline = Some(reason.clone());
        let since = state.current.as_ref().map(|current| current.saved.confirmed).unwrap_or_default();
        Refreshed::Offline(Offline { since, reason })
    }

    /// Makes a verified head the current one and saves it, unless a newer one was accepted meanwhile.
    fn accept(&self, mut new: Current) -> Result<Arc<VerifiedHead>, StoreError> {
        let now = self.now();
        new.saved.accepted = now;
        new.saved.confirmed = now;
        let _accepting = self.accepting.lock();
        let lock = self.file.lock();
        let current = self.state.lock().current.clone();
        for newest in [self.load(), current].into_iter().flatten() {
            let seen = Some(newest.head.seen());
            if let Err(error) = self.verify(&new.saved.evidence, now, seen) {
                return Err(StoreError::new(self.what(), Cause::Untrusted(error)));
            }
        }
        let saved = lock.and_then(|_lock| self.file.save(&new.saved));
        let head = new.head.clone();
        let mut state = self.state.lock();
        state.unsaved = saved.err().map(|error| self.unsaved(&error));
        state.offline = None;
        state.current = Some(new);
        Ok(head)
    }

    /// Records that a server offered the current head again.
    fn confirm(&self) {
        let _accepting = self.accepting.lock();
        let now = self.now();
        let mut state = self.state.lock();
        state.offline = None;
        let Some(current) = &mut state.current else { return };
        if now.0.saturating_sub(current.saved.confirmed.0) <= CONFIRMED_STEP {
            return;
        }
        current.saved.confirmed = now;
        let saved = current.saved.clone();
        drop(state);
        let is_ours = |there: &Saved| there.evidence == saved.evidence;
        let written = self.file.lock().and_then(|_lock| {
            // Another mount may have gone on to a newer head.
            if self.file.load().as_ref().is_none_or(is_ours) { self.file.save(&saved) } else { Ok(()) }
        });
        self.state.lock().unsaved = written.err().map(|error| self.unsaved(&error));
    }

    fn unsaved(&self, error: &std::io::Error) -> String {
        format!("saving `{}`: {error}", self.file.path().display())
    }
}

/// Returns whether a mount may start from its saved head after this failure.
fn may_go_on(reason: &StoreError) -> bool {
    match reason.cause() {
        Cause::Untrusted(error) => error.is_older() || matches!(error, TrustError::Manifest(_)),
        _ => true,
    }
}
