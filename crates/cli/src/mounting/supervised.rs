//! Chooses mounts whose daemons are to be replaced, and asks their supervisors.
//!
//! Other users may register what they like: entries that lie, and sockets that accept and never answer. So the time for
//! all mounts of one user is limited, and no user waits for another.

use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use esker_node::mounts;
use esker_node::registry::{self, Entry, users};
use esker_node::supervisor::{self, Replacement, UpgradeError};

use crate::error::{Context, Failure, Kind, chain};
use crate::settings::Settings;

/// Time limit for the replacement of a daemon and its roll-back; for another user, that of all mounts.
const PATIENCE: Duration = Duration::from_secs(120);
/// Number of daemons of one user that are replaced at the same time.
const AT_ONCE: usize = 4;

/// A mount, and the sockets of its processes.
pub(crate) struct Target {
    pub(crate) entry: Entry,
    user: u32,
    upgrades: Option<PathBuf>,
    /// Keeps the socket's path valid.
    _of_user: Option<users::UserMount>,
}

/// Result for a mount. The names are an interface.
#[derive(Clone, Copy, Debug, PartialEq, Eq, serde::Serialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Outcome {
    /// `--dry-run` was given.
    Planned,
    Upgraded,
    Reloaded,
    /// The settings are the ones that the mount has.
    Unchanged,
    /// The new daemon didn't serve the mount, and the one before does.
    RolledBack,
    /// The mount has no supervisor.
    Skipped,
    Failed,
}

impl Outcome {
    pub(crate) const fn word(self) -> &'static str {
        match self {
            Self::Planned => "planned",
            Self::Upgraded => "upgraded",
            Self::Reloaded => "reloaded",
            Self::Unchanged => "unchanged",
            Self::RolledBack => "rolled back",
            Self::Skipped => "skipped",
            Self::Failed => "failed",
        }
    }
}

/// Result of a replacement: the new process id, or the reason of a failure.
pub(crate) type Replaced = Result<u32, (Outcome, String)>;

impl Target {
    /// Returns the reason why the daemon can't be replaced, if it has no supervisor.
    pub(crate) fn refusal(&self) -> Option<String> {
        let is_supervised = self.entry.supervisor.is_some() && self.upgrades.is_some();
        let why = "it was mounted without a supervisor; unmount it and mount it again";
        (!is_supervised).then(|| why.to_owned())
    }

    /// Returns the options that the supervisor keeps.
    pub(crate) fn options(&self, deadline: Instant) -> std::io::Result<OwnedFd> {
        let socket = self.upgrades.as_ref().ok_or(std::io::ErrorKind::NotFound)?;
        supervisor::options(socket, self.user, deadline)
    }

    /// Has the supervisor replace the daemon.
    pub(crate) fn replace(&self, replacement: &Replacement, deadline: Instant) -> Replaced {
        let Some(socket) = &self.upgrades else { return Err((Outcome::Skipped, String::new())) };
        supervisor::request(socket, self.user, replacement, deadline).map_err(|error| match error {
            UpgradeError::RolledBack(why) => (Outcome::RolledBack, why),
            error => (Outcome::Failed, chain(&error)),
        })
    }
}

/// Returns the mounts of this user, or of all users.
fn all(all_users: bool, settings: &Settings) -> Result<Vec<Target>, Failure> {
    let user = rustix::process::geteuid().as_raw();
    let own = registry::all(&settings.runtime).context(Kind::Failed, "can't look up the mounts")?;
    let own = own.into_iter().filter(|one| one.alive).map(|one| Target {
        entry: one.entry,
        user,
        upgrades: Some(one.upgrades),
        _of_user: None,
    });
    let mut all: Vec<Target> = own.collect();
    if all_users {
        let theirs = users::of_users(&users::Places::default()).into_iter().filter(|one| one.alive);
        all.extend(theirs.map(|one| Target {
            entry: one.entry.clone(),
            user: one.user,
            upgrades: one.upgrades(),
            _of_user: Some(one),
        }));
    }
    all.retain(|one| one.entry.command.is_none());
    Ok(all)
}

/// Returns the mounts that the arguments name, or all.
pub(crate) fn chosen(
    named: &[PathBuf],
    all_users: bool,
    settings: &Settings,
) -> Result<Vec<Target>, Failure> {
    if all_users && !settings.root {
        return Err(Failure::usage("--all-users is for root").hint("leave it out to act on your own mounts"));
    }
    let mut all = all(all_users, settings)?;
    if named.is_empty() {
        return Ok(all);
    }
    let mut is_named = vec![false; all.len()];
    for name in named {
        let path = mounts::canonical(name).unwrap_or_else(|_| name.clone());
        let mut found = false;
        for (one, is_named) in all.iter().zip(&mut is_named) {
            if one.entry.mountpoint == path || Path::new(&one.entry.repository) == name {
                (found, *is_named) = (true, true);
            }
        }
        if !found {
            let failure = Failure::failed(format!("{} is no mount of yours", name.display()));
            return Err(failure.hint("`esker status` lists all that are"));
        }
    }
    let mut is_named = is_named.into_iter();
    all.retain(|_| is_named.next().unwrap_or(false));
    Ok(all)
}

/// Acts on all mounts, which it gives with their positions, each user's beside the others', until a deadline. Returns the
/// results in the same order.
pub(crate) fn for_each<R: Send>(
    targets: &[Target],
    act: impl Fn(usize, &Target, Instant) -> R + Sync,
) -> Vec<R> {
    let own = rustix::process::geteuid().as_raw();
    let began = Instant::now();
    let results: Vec<Mutex<Option<R>>> = targets.iter().map(|_| Mutex::new(None)).collect();
    let (all, mut rest) = (&*results, &*results);
    // Those of one user are beside each other.
    let users: Vec<Queue<'_, R>> = targets
        .chunk_by(|a, b| a.user == b.user)
        .map(|targets| {
            let first = all.len() - rest.len();
            let (results, others) = rest.split_at(targets.len());
            rest = others;
            Queue { first, targets, results, next: AtomicUsize::new(0) }
        })
        .collect();
    let act = &act;
    std::thread::scope(|scope| {
        for queue in &users {
            let since = queue.targets.iter().any(|one| one.user != own).then_some(began);
            for _ in 0..AT_ONCE.min(queue.targets.len()) {
                scope.spawn(move || queue.work(act, since));
            }
        }
    });
    let result = |result: Mutex<Option<R>>| result.into_inner().unwrap_or_else(PoisonError::into_inner);
    results.into_iter().filter_map(result).collect()
}

/// The mounts of a user that are still to be acted on.
struct Queue<'a, R> {
    /// Position of the first of them among all mounts.
    first: usize,
    targets: &'a [Target],
    results: &'a [Mutex<Option<R>>],
    next: AtomicUsize,
}

impl<R> Queue<'_, R> {
    /// Acts on the next mounts. Each has its own time, or all have one since an instant.
    fn work(&self, act: impl Fn(usize, &Target, Instant) -> R, since: Option<Instant>) {
        loop {
            let next = self.next.fetch_add(1, Ordering::Relaxed);
            let Some((target, result)) = self.targets.get(next).zip(self.results.get(next)) else { return };
            let done = act(self.first + next, target, since.unwrap_or_else(Instant::now) + PATIENCE);
            *result.lock().unwrap_or_else(PoisonError::into_inner) = Some(done);
        }
    }
}
