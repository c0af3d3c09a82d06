//! Mounts whose daemons are replaced through their supervisors.
//!
//! Other users may register what they like: entries that lie, and sockets that accept and never answer. So the time for
//! all mounts of one user is limited, and no user waits for another.

use std::io;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use parking_lot::Mutex;

use crate::registry::{self, Entry, RegistryError, users};
use crate::supervisor::{self, Replacement, UpgradeError};

/// Time limit for the replacement of a daemon and its roll-back; for another user, that of all mounts.
const REPLACE_TIMEOUT: Duration = Duration::from_secs(120);
/// Number of daemons of one user that are replaced at the same time.
const AT_ONCE: usize = 4;

/// A mount, and the socket of its supervisor.
pub struct Target {
    /// Entry in the registry.
    pub entry: Entry,
    user: u32,
    upgrades: Option<PathBuf>,
    /// Keeps the socket's path valid.
    _of_user: Option<users::UserMount>,
}

impl Target {
    /// Returns true if the mount has a supervisor.
    pub fn is_supervised(&self) -> bool {
        self.entry.supervisor.is_some() && self.upgrades.is_some()
    }

    /// Returns the options that the supervisor keeps.
    pub fn options(&self, deadline: Instant) -> io::Result<OwnedFd> {
        supervisor::options(self.socket()?, self.user, deadline)
    }

    /// Has the supervisor replace the daemon; returns the new process id.
    pub fn replace(&self, replacement: &Replacement, deadline: Instant) -> Result<u32, UpgradeError> {
        let socket = self.socket().map_err(UpgradeError::Unreachable)?;
        supervisor::request(socket, self.user, replacement, deadline)
    }

    fn socket(&self) -> io::Result<&Path> {
        self.upgrades.as_deref().ok_or_else(|| io::ErrorKind::NotFound.into())
    }
}

/// Returns the mounts of this user, registered in `runtime`, or of all users.
pub fn targets(all_users: bool, runtime: &Path) -> Result<Vec<Target>, RegistryError> {
    let user = rustix::process::geteuid().as_raw();
    let own = registry::all(runtime)?.into_iter().filter(|one| one.alive).map(|one| Target {
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

/// Acts on all mounts, which it gives with their positions, each user's beside the others', until a deadline. Returns the
/// results in the same order.
pub fn for_each<R: Send>(targets: &[Target], act: impl Fn(usize, &Target, Instant) -> R + Sync) -> Vec<R> {
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
    results.into_iter().filter_map(Mutex::into_inner).collect()
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
            let done = act(self.first + next, target, since.unwrap_or_else(Instant::now) + REPLACE_TIMEOUT);
            *result.lock() = Some(done);
        }
    }
}
