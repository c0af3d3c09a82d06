//! Asks the daemons of all mounts for their state at the same time.

use std::path::Path;
use std::sync::mpsc::channel;
use std::time::{Duration, Instant};

use crate::control::{self, Request, Response};
use crate::registry::{self, RegistryError, users};
use crate::status::MountStatus;

/// Maximum number of mounts that are asked.
const ASKED_MAX: usize = 256;

/// Mount of a node, and its state if its daemon told it in time.
#[derive(Clone, Debug, PartialEq)]
pub struct ScrapedMount {
    /// The user who mounted it.
    pub user: u32,
    /// Mount point.
    pub mountpoint: String,
    /// Name of the repository.
    pub repository: String,
    /// State of the mount.
    pub status: Option<MountStatus>,
}

/// The mounts of a node.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Scrape {
    /// Mounts that all programs see, sorted by user and mount point.
    pub mounts: Vec<ScrapedMount>,
    /// Number of commands of `esker run` with mounts of their own. They come and go, so that they are only counted.
    pub commands: u64,
    /// Number of mounts beyond the limit, which were not asked.
    pub unasked: u64,
    /// Time for all of it.
    pub took: Duration,
}

/// Asks the daemons of this user's mounts, and as root those of all users. A daemon that doesn't reply within `patience`
/// is left behind.
pub fn scrape(runtime: &Path, is_root: bool, patience: Duration) -> Result<Scrape, RegistryError> {
    scrape_in(runtime, is_root.then(users::Places::default).as_ref(), patience)
}

fn scrape_in(
    runtime: &Path,
    others: Option<&users::Places>,
    patience: Duration,
) -> Result<Scrape, RegistryError> {
    let began = Instant::now();
    let deadline = began + patience;
    let me = rustix::process::geteuid().as_raw();
    let mut found = Scrape::default();
    let (told, answers) = channel();
    let mut ask = |user: u32,
                   entry: &registry::Entry,
                   alive: bool,
                   ask: Box<dyn FnOnce() -> Option<Response> + Send>| {
        if entry.command.is_some() {
            found.commands += u64::from(alive);
            return;
        }
        let at = found.mounts.len();
        if at >= ASKED_MAX {
            found.unasked += 1;
            return;
        }
        found.mounts.push(ScrapedMount {
            user,
            mountpoint: entry.mountpoint.display().to_string(),
            repository: entry.repository.clone(),
            status: None,
        });
        let told = told.clone();
        // A thread that can't be started is a mount without an answer.
        let _ = alive.then(|| {
            esker_threads::spawn("scrape", move || {
                // The scrape may be over.
                let _ = told.send((at, ask()));
            })
        });
    };
    for one in registry::all(runtime)? {
        let (entry, alive) = (one.entry.clone(), one.alive);
        ask(
            me,
            &entry,
            alive,
            Box::new(move || control::ask_by(&one.socket, &Request::Status, deadline).ok()),
        );
    }
    for one in others.map(users::of_users).unwrap_or_default() {
        let (user, entry, alive) = (one.user, one.entry.clone(), one.alive);
        ask(user, &entry, alive, Box::new(move || one.ask(deadline).ok()));
    }
    drop(told);
    while let Ok((at, response)) = answers.recv_timeout(deadline.saturating_duration_since(Instant::now())) {
        if let (Some(mount), Some(Response::Status(status))) = (found.mounts.get_mut(at), response) {
            mount.status = Some(*status);
        }
    }
    found.mounts.sort_by(|a, b| (a.user, &a.mountpoint).cmp(&(b.user, &b.mountpoint)));
    found.took = began.elapsed();
    Ok(found)
}

#[cfg(test)]
mod tests {
    use std::os::unix::net::UnixListener;
    use std::sync::Arc;

    use super::*;
    use crate::registry::{Entry, Registration};

    fn registered(runtime: &Path, mountpoint: &str, command: Option<&str>) -> Registration {
        let mut registration = Registration::take(runtime, Path::new(mountpoint)).expect("free");
        let entry = Entry {
            mountpoint: mountpoint.into(),
            command: command.map(str::to_owned),
            repository: format!("{}.test", mountpoint.trim_start_matches('/')),
            url: "file:///a".into(),
            cache: "/cache".into(),
            pid: std::process::id(),
            started: 1,
            supervisor: None,
            device: None,
            departed: false,
        };
        registration.describe(&entry).expect("written");
        registration
    }

    /// The hanging daemon accepts connections and never replies; the deaf one doesn't even accept.
    #[test]
    fn a_mount_that_hangs_does_not_hide_the_others() {
        let base = tempfile::tempdir().expect("a directory");
        let runtime = base.path().join("run");
        let (good, hanging, command) = (
            registered(&runtime, "/good", None),
            registered(&runtime, "/hanging", None),
            registered(&runtime, "/command", Some("make")),
        );
        let status = MountStatus { repository: "good.test".into(), revision: 7, ..MountStatus::default() };
        let reply = status.clone();
        let answer = Arc::new(move |_| Response::Status(Box::new(reply.clone())));
        let _control = control::listen(&good.socket()).expect("a socket").serve(answer).expect("a thread");
        let _listener = UnixListener::bind(hanging.socket()).expect("a socket");
        let found = scrape_in(&runtime, None, Duration::from_secs(1)).expect("a scrape");
        let names: Vec<_> =
            found.mounts.iter().map(|mount| (&*mount.repository, mount.status.is_some())).collect();
        assert_eq!(names, [("good.test", true), ("hanging.test", false)]);
        assert_eq!(found.mounts[0].status.as_ref(), Some(&status));
        assert_eq!((found.commands, found.unasked), (1, 0));
        drop(command);
    }
}
