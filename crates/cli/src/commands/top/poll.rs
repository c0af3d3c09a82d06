//! Asks each daemon for its activity in a separate thread, so that a hanging one delays no other.

use std::collections::BTreeMap;
use std::io;
use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use super::known::{Key, Known, Tracing};
use super::snapshot::Snapshot;
use crate::settings::Settings;
use esker_node::control::{self, Request, Response};
use esker_node::registry::{self, users};
use esker_node::trace::client::Subscription;
use esker_node::trace::{Activity, TraceLine, TraceRequest, TraceScope};

/// Time limit for the reply of a daemon.
const TIMEOUT: Duration = Duration::from_secs(5);
/// Minimum duration of slow requests in microseconds.
const SLOW_US: u64 = 1_000;
/// Maximum number of slow requests that are remembered for a mount.
const SLOW_MAX: usize = 512;
/// Maximum number of mounts.
const MOUNTS_MAX: usize = 1024;

#[derive(Default)]
struct Shared {
    mounts: Mutex<BTreeMap<Key, Known>>,
    answered: Condvar,
}

/// Asks the daemons of all mounts.
pub(super) struct Poller {
    runtime: PathBuf,
    root: bool,
    shared: Arc<Shared>,
}

/// Way to a daemon.
enum Daemon {
    Own(PathBuf),
    Users(Box<users::UserMount>),
}

impl Daemon {
    fn connect(&self) -> io::Result<UnixStream> {
        match self {
            Self::Own(socket) => UnixStream::connect(socket),
            Self::Users(mount) => mount.connect(),
        }
    }

    fn activity(&self) -> Result<Activity, String> {
        let response = match self {
            Self::Own(socket) => {
                control::ask(socket, &Request::Activity, TIMEOUT).map_err(|error| error.source.to_string())?
            }
            Self::Users(mount) => mount
                .request(&Request::Activity, Instant::now() + TIMEOUT)
                .map_err(|error| error.to_string())?,
        };
        match response {
            Response::Activity(activity) => Ok(*activity),
            Response::Failed { message } => Err(message),
            _ => Err("its daemon is of another build, which reports no activity".to_owned()),
        }
    }
}

impl Poller {
    pub(super) fn new(settings: &Settings) -> Self {
        Self { runtime: settings.runtime.clone(), root: settings.root, shared: Arc::default() }
    }

    /// Asks all daemons that have answered the last time. Waits for none.
    pub(super) fn poll(&self) {
        let daemons = self.daemons();
        let mut mounts = self.shared.mounts();
        mounts.values_mut().for_each(|known| known.is_listed = false);
        let mut to_ask = Vec::new();
        for (key, repository, command, daemon) in daemons {
            let known = mounts.entry(key.clone()).or_default();
            (known.repository, known.command, known.is_listed) = (repository, command, true);
            if known.asked.is_none() {
                known.asked = Some(Instant::now());
                let begins = matches!(known.tracing, Tracing::None);
                if begins {
                    known.tracing = Tracing::Begun;
                }
                to_ask.push((key, daemon, begins));
            }
        }
        mounts.retain(|_, known| known.is_listed || known.asked.is_some());
        drop(mounts);
        for (key, daemon, begins) in to_ask {
            let (shared, of_thread) = (self.shared.clone(), key.clone());
            let spawned = esker_threads::spawn("top-ask", move || shared.ask(&of_thread, daemon, begins));
            if spawned.is_err() {
                self.shared.answered(&key, Err("no thread can be started".to_owned()));
            }
        }
    }

    /// Lists the mounts of this user; for root, those of all users.
    fn daemons(&self) -> Vec<(Key, String, Option<String>, Daemon)> {
        let own = registry::all(&self.runtime).unwrap_or_default();
        let theirs = if self.root { users::of_users(&users::Places::default()) } else { Vec::new() };
        let own = own.into_iter().filter(|one| one.alive).map(|one| {
            let entry = one.entry;
            let key = (None, entry.mountpoint.display().to_string(), entry.pid);
            (key, entry.repository, entry.command, Daemon::Own(one.socket))
        });
        let theirs = theirs.into_iter().filter(|one| one.alive).map(|one| {
            let entry = one.entry.clone();
            let key = (Some(one.user), entry.mountpoint.display().to_string(), entry.pid);
            (key, entry.repository, entry.command, Daemon::Users(Box::new(one)))
        });
        own.chain(theirs).take(MOUNTS_MAX).collect()
    }

    /// Waits until all daemons have answered, at most `patience`.
    pub(super) fn wait_for_answers(&self, patience: Duration) {
        let deadline = Instant::now() + patience;
        let mut mounts = self.shared.mounts();
        while mounts.values().any(|known| known.asked.is_some()) {
            let left = deadline.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return;
            }
            let waited = self.shared.answered.wait_timeout(mounts, left);
            mounts = waited.unwrap_or_else(PoisonError::into_inner).0;
        }
    }

    pub(super) fn snapshot(&self) -> Snapshot {
        Snapshot::of(&self.shared.mounts(), Instant::now())
    }
}

impl Drop for Poller {
    fn drop(&mut self) {
        for known in self.shared.mounts().values() {
            if let Tracing::Running(stop) = &known.tracing {
                stop.cut();
            }
        }
    }
}

impl Shared {
    fn mounts(&self) -> MutexGuard<'_, BTreeMap<Key, Known>> {
        self.mounts.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn ask(self: &Arc<Self>, key: &Key, daemon: Daemon, begins_trace: bool) {
        self.answered(key, daemon.activity());
        if begins_trace {
            self.trace(key, &daemon);
        }
    }

    fn answered(&self, key: &Key, answer: Result<Activity, String>) {
        if let Some(known) = self.mounts().get_mut(key) {
            known.asked = None;
            match answer {
                Ok(activity) => {
                    known.before = known.now.replace(activity);
                    known.failure = None;
                }
                Err(failure) => known.failure = Some(failure),
            }
        }
        self.answered.notify_all();
    }

    /// Reads slow requests until the connection ends.
    fn trace(&self, key: &Key, daemon: &Daemon) {
        let set = |tracing| {
            if let Some(known) = self.mounts().get_mut(key) {
                known.tracing = tracing;
            }
        };
        let request = TraceRequest { whose: TraceScope::All, over_us: SLOW_US, every_name: false };
        let begun = daemon.connect().and_then(|stream| Subscription::on(stream, &request, TIMEOUT));
        let Ok(mut subscription) = begun else { return set(Tracing::None) };
        let Ok(stop) = subscription.stopper() else { return set(Tracing::None) };
        set(Tracing::Running(stop));
        while let Ok(Some(TraceLine::Call(call))) = subscription.next_line() {
            let mut mounts = self.mounts();
            let Some(known) = mounts.get_mut(key) else { return };
            if known.slow.len() >= SLOW_MAX {
                known.slow.pop_front();
            }
            known.slow.push_back(*call);
        }
        set(Tracing::None);
    }
}
