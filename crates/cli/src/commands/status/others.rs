//! Lists the mounts of other users: all registered ones for root, and the public facts of root's mounts for
//! others.

use std::path::Path;
use std::thread::{Scope, ScopedJoinHandle};
use std::time::Instant;

use esker_node::control::Response;
use esker_node::mounts::MountLine;
use esker_node::mounts::search::HolderSearch;
use esker_node::registry::users::UserMount;
use esker_node::status::MountStatus;
use serde_json::Value;

use super::{Mount, Shown, TIMEOUT};
use crate::machine::doctor::{ProbeResult, ProbeTarget, touch};
use crate::output::plain;

/// Maximum number of concurrent status requests; further mounts are listed with their registered facts only.
const ASKED_MAX: usize = 256;

/// True if a user has registered the mount of this line.
pub(super) fn is_registered(line: &MountLine, registered: &[UserMount]) -> bool {
    let is_it = |one: &UserMount| line.user == Some(one.user) && one.entry.mountpoint == line.mountpoint;
    registered.iter().any(is_it)
}

/// Requests the status of other users' daemons.
pub(super) fn ask_users<'scope, 'env>(
    scope: &'scope Scope<'scope, 'env>,
    all: &'env [UserMount],
    holders: &'env HolderSearch,
) -> Vec<ScopedJoinHandle<'scope, Option<Shown>>> {
    let deadline = Instant::now() + TIMEOUT;
    let ask = |at: usize, one: &'env UserMount| {
        scope.spawn(move || {
            let answer = match at < ASKED_MAX {
                true => one.ask(deadline).map_err(|error| error.to_string()),
                false => Err(format!("only the first {ASKED_MAX} mounts are asked")),
            };
            shown(one, answer, holders)
        })
    };
    all.iter().enumerate().map(|(at, one)| ask(at, one)).collect()
}

/// Returns the output for a user's mount. All texts are that user's statements.
fn shown(one: &UserMount, answer: Result<Response, String>, holders: &HolderSearch) -> Option<Shown> {
    let entry = &one.entry;
    if !one.alive && (entry.command.is_some() || entry.departed) {
        return None;
    }
    let (mountpoint, repository, url) =
        (plain(&entry.mountpoint.to_string_lossy()), plain(&entry.repository), plain(&entry.url));
    let pid = entry.pid;
    let mount = match answer {
        _ if !one.alive => Mount::Dead { mountpoint, repository, url, pid },
        Ok(Response::Status(status)) => match plain_status(&status) {
            Some(status) => Mount::Serving(Box::new(status)),
            None => {
                Mount::Silent { mountpoint, repository, url, pid, reason: "its answer makes no sense".into() }
            }
        },
        Ok(_) => Mount::Silent { mountpoint, repository, url, pid, reason: "it misunderstood".into() },
        Err(reason) => Mount::Silent { mountpoint, repository, url, pid, reason: plain(&reason) },
    };
    let held_elsewhere = holders.of(entry, one.alive);
    Some(Shown { user: Some(one.user), held_elsewhere, mount })
}

/// Returns the output for a user's mount without a registry entry.
pub(super) fn unregistered(line: &MountLine) -> Mount {
    let mountpoint = plain(&line.mountpoint.to_string_lossy());
    Mount::Unregistered { mountpoint, source: plain(&line.source_text()) }
}

/// Removes control characters from the texts of a status.
fn plain_status(status: &MountStatus) -> Option<MountStatus> {
    let mut value = serde_json::to_value(status).ok()?;
    make_plain(&mut value);
    serde_json::from_value(value).ok()
}

fn make_plain(value: &mut Value) {
    match value {
        Value::String(text) => *text = plain(text),
        Value::Array(all) => all.iter_mut().for_each(make_plain),
        Value::Object(all) => all.values_mut().for_each(make_plain),
        _ => {}
    }
}

/// Reads the public attributes of root's mounts.
pub(super) fn ask_shared<'scope, 'env>(
    scope: &'scope Scope<'scope, 'env>,
    lines: &'env [MountLine],
) -> Vec<ScopedJoinHandle<'scope, Shown>> {
    let ask = |line: &'env MountLine| {
        scope.spawn(move || {
            let (name, revision) = match touch(ProbeTarget::Revision, &line.mountpoint, TIMEOUT) {
                Ok(ProbeResult::Shows { name, revision }) => (name, revision),
                _ => (None, None),
            };
            let repository = plain(&name.unwrap_or_else(|| last_part(&line.source_text())));
            let mountpoint = plain(&line.mountpoint.to_string_lossy());
            Shown::at_its_place(Some(0), Mount::Shared { mountpoint, repository, revision })
        })
    };
    lines.iter().take(ASKED_MAX).map(ask).collect()
}

/// Returns the name at the end of a URL or a path: the part before it, or behind a `?`, may be confidential.
fn last_part(source: &str) -> String {
    let path = source.split(['?', '#']).next().unwrap_or_default().trim_end_matches('/');
    Path::new(path).file_name().map(|name| name.to_string_lossy().into_owned()).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_name_of_a_mount_source_is_shown() {
        for (source, name) in [
            ("sw.example.org", "sw.example.org"),
            ("http://user:secret@host/cvmfs/sw.example.org/", "sw.example.org"),
            ("/data/alice/private/image.sqfs", "image.sqfs"),
            ("http://host/image.sqfs?token=secret/x", "image.sqfs"),
            ("", ""),
        ] {
            assert_eq!(last_part(source), name, "{source}");
        }
    }

    #[test]
    fn texts_of_users_do_not_control_the_terminal() {
        let status = MountStatus {
            repository: "a\u{1b}[2Jb".into(),
            mountpoint: "/m\u{7}".into(),
            url: "http://x\r\n".into(),
            ..MountStatus::default()
        };
        let plain = plain_status(&status).expect("a status");
        let text = serde_json::to_string(&plain).expect("JSON");
        assert!(!text.contains("\\u00") && !text.contains("\\r"), "{text}");
        assert_eq!(plain.repository, "a?[2Jb");
    }

    #[test]
    fn names_of_users_mounts_do_not_control_the_terminal() {
        let line = MountLine {
            device: esker_node::mounts::Device { major: 0, minor: 1 },
            mountpoint: "/m\u{1b}[2J\n".into(),
            kind: "fuse.esker".to_owned(),
            source: "http://x\r\u{7}".into(),
            user: Some(1),
        };
        let Mount::Unregistered { mountpoint, source } = unregistered(&line) else { panic!("another state") };
        assert_eq!(mountpoint, "/m?[2J?");
        assert_eq!(source, "http://x??");
    }
}
