//! Subordinate ids: the user and group ids that `/etc/subuid` and `/etc/subgid` give a user for own namespaces.
//!
//! Package managers change owners of files and drop to users of their own, which the kernel allows only for ids that the user
//! namespace has. The programs `newuidmap` and `newgidmap`, which are set-user-ID root, write them into a namespace of
//! the same user; they have to run outside of it, so a child process that waits is made first:
//!
//! ```text
//!  process                        child
//!    │ fork ───────────────────────► waits at a pipe
//!    │ unshare(NEWUSER)              │
//!    │ closes its end ─────────────► │ newuidmap PID 0 UID 1  1 FIRST COUNT …
//!    │                               │ newgidmap PID 0 GID 1  1 FIRST COUNT …
//!    │ ◄──────────────── exit code ──┘
//! ```

use std::fs;
use std::io::{self, PipeWriter, Read};
use std::os::fd::AsRawFd;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use rustix::process::{Pid, WaitOptions, geteuid, waitpid};

use crate::container::accounts;
use crate::sys;

const UIDS: &str = "/etc/subuid";
const GIDS: &str = "/etc/subgid";
const NEWUIDMAP: &str = "newuidmap";
const NEWGIDMAP: &str = "newgidmap";

/// Folders of the programs if they are not in `$PATH`, which may be set for another system.
const USUAL: [&str; 2] = ["/usr/bin", "/usr/sbin"];

/// A range of ids: the first one, and how many there are.
pub(crate) type Range = (u32, u32);

/// The subordinate ids of a user, and the programs that map them.
#[derive(Debug)]
pub(crate) struct Subordinate {
    uids: Vec<Range>,
    gids: Vec<Range>,
    newuidmap: PathBuf,
    newgidmap: PathBuf,
}

/// A child process that maps ids once its parent has entered its namespace.
pub(crate) struct Mapper {
    child: Pid,
    go: PipeWriter,
}

/// Returns the reason why this user has no usable subordinate ids; `None` if there are some.
pub fn missing_ids() -> Option<String> {
    Subordinate::of_user().err()
}

/// Returns the ranges of users and of groups that root may give to containers.
pub(crate) fn of_root() -> (Vec<Range>, Vec<Range>) {
    let of = |file: &str| ranges(&fs::read(file).unwrap_or_default(), "root", 0);
    (of(UIDS), of(GIDS))
}

impl Subordinate {
    /// Finds the ranges of this process's user; otherwise says what is missing.
    pub(crate) fn of_user() -> Result<Self, String> {
        let uid = geteuid().as_raw();
        let name = user_name(uid);
        let ids = |file: &str| {
            let content = fs::read(file).unwrap_or_default();
            let found = ranges(&content, &name, uid);
            if found.is_empty() { Err(format!("{file} has no ids for {name}")) } else { Ok(found) }
        };
        let program = |name: &str| {
            let path = std::env::var_os("PATH").unwrap_or_default();
            let folders = std::env::split_paths(&path).chain(USUAL.map(PathBuf::from));
            let found =
                folders.map(|folder| folder.join(name)).find(|file| file.is_absolute() && file.is_file());
            found.ok_or_else(|| {
                format!("the program {name} is not installed (package uidmap or shadow-utils)")
            })
        };
        Ok(Self {
            uids: ids(UIDS)?,
            gids: ids(GIDS)?,
            newuidmap: program(NEWUIDMAP)?,
            newgidmap: program(NEWGIDMAP)?,
        })
    }

    /// Starts the child that will map the ids, with `uid` and `gid` as root. The process must have a single
    /// thread.
    pub(crate) fn prepare(self, uid: u32, gid: u32) -> io::Result<Mapper> {
        let (mut wait, go) = io::pipe()?;
        let parent = std::process::id().to_string();
        let held = go.as_raw_fd();
        let child = sys::in_child(move || {
            // The child's copy of the parent's end, or it would wait for itself.
            sys::close(held);
            // It ends when the parent closes its end, or is gone.
            let _ = wait.read(&mut [0]);
            let done = map(&self.newuidmap, &parent, uid, &self.uids)
                .and_then(|()| map(&self.newgidmap, &parent, gid, &self.gids));
            u8::from(done.is_err())
        });
        child.map(|child| Mapper { child, go })
    }
}

impl Mapper {
    /// Maps the ids into the namespace that this process has entered.
    pub(crate) fn finish(self) -> io::Result<()> {
        drop(self.go);
        let ended = rustix::io::retry_on_intr(|| waitpid(Some(self.child), WaitOptions::empty()))?;
        match ended.and_then(|(_, status)| status.exit_status()) {
            Some(0) => Ok(()),
            _ => Err(io::Error::other("newuidmap or newgidmap refused")),
        }
    }
}

fn map(program: &Path, process: &str, own: u32, ranges: &[Range]) -> io::Result<()> {
    let mut arguments = vec![process.to_owned(), "0".into(), own.to_string(), "1".into()];
    let mut inner = 1u32;
    for (first, count) in ranges {
        arguments.extend([inner, *first, *count].map(|number| number.to_string()));
        inner = inner.saturating_add(*count);
    }
    let mut command = Command::new(program);
    command.args(arguments).stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
    if command.status()?.success() { Ok(()) } else { Err(io::ErrorKind::PermissionDenied.into()) }
}

fn user_name(uid: u32) -> String {
    let passwd = fs::read("/etc/passwd").unwrap_or_default();
    let known = accounts::entry(&passwd, uid).and_then(|fields| fields.into_iter().next());
    known.or_else(|| std::env::var("USER").ok()).unwrap_or_else(|| uid.to_string())
}

/// Returns the ranges of a user, by name or number, in a file like `/etc/subuid`.
fn ranges(file: &[u8], name: &str, uid: u32) -> Vec<Range> {
    let number = uid.to_string();
    let text = String::from_utf8_lossy(file);
    let range = |line: &str| {
        let fields: Vec<&str> = line.trim().split(':').collect();
        let [user, first, count] = fields[..] else { return None };
        let (first, count) = (first.parse::<u32>().ok()?, count.parse::<u32>().ok()?);
        let is_theirs = user == name || user == number;
        (is_theirs && count > 0 && first.checked_add(count).is_some()).then_some((first, count))
    };
    text.lines().filter_map(range).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranges_are_found_by_name_and_number() {
        let file =
            b"ada:100000:65536\n# a comment\nbob:1:2\n1001:300000:10\nada:x:1\nada:5:0\nada:4294967295:9\n";
        assert_eq!(ranges(file, "ada", 1001), [(100_000, 65_536), (300_000, 10)]);
        assert_eq!(ranges(file, "bob", 7), [(1, 2)]);
        assert_eq!(ranges(file, "eve", 8), []);
    }
}
