//! Users who mount and read.

use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::Command;

use esker_testkit::skip_part;
use esker_testkit::tree_scan::Ownership;
use rustix::process::{Gid, Uid};

use crate::sys::with_default_signals;

/// The ordinary user of root's tests: `bin` or `daemon`, which every distribution has, because `fusermount3` needs a
/// named user.
const BORROWED: u32 = 1;

/// A user and a group.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct TestUser {
    pub(crate) uid: u32,
    pub(crate) gid: u32,
}

impl TestUser {
    /// Returns the user who runs the tests.
    pub(crate) fn myself() -> TestUser {
        TestUser { uid: rustix::process::geteuid().as_raw(), gid: rustix::process::getegid().as_raw() }
    }

    /// Returns an ordinary user: the one who runs the tests, unless that is root.
    pub(crate) fn ordinary() -> TestUser {
        let myself = TestUser::myself();
        if myself.is_root() { TestUser { uid: BORROWED, gid: BORROWED } } else { myself }
    }

    /// Returns root, if root runs the tests: for operations of root alone.
    pub(crate) fn root() -> Option<TestUser> {
        Some(TestUser::myself()).filter(|person| person.is_root())
    }

    /// Returns all users that can be tested here: root, if root runs the tests, and an ordinary user. The lack of root
    /// is reported.
    pub(crate) fn all() -> Vec<TestUser> {
        let (myself, ordinary) = (TestUser::myself(), TestUser::ordinary());
        if myself == ordinary {
            skip_part!("only root mounts as root");
            vec![ordinary]
        } else {
            vec![myself, ordinary]
        }
    }

    pub(crate) fn is_root(self) -> bool {
        self.uid == 0
    }

    /// Returns whose the files in a mount of this person should be.
    pub(crate) fn ownership(self) -> Ownership {
        if self.is_root() { Ownership::Published } else { Ownership::Claimed(self.uid, self.gid) }
    }

    /// Runs a function on a thread with this user's rights.
    pub(crate) fn does<T: Send>(self, what: impl FnOnce() -> T + Send) -> T {
        std::thread::scope(|scope| {
            let thread = scope.spawn(move || {
                if self != TestUser::myself() {
                    let (uid, gid) = (Uid::from_raw(self.uid), Gid::from_raw(self.gid));
                    rustix::thread::set_thread_groups(&[]).expect("dropping groups");
                    rustix::thread::set_thread_res_gid(gid, gid, gid).expect("becoming another group");
                    rustix::thread::set_thread_res_uid(uid, uid, uid).expect("becoming another user");
                }
                what()
            });
            match thread.join() {
                Ok(done) => done,
                Err(panic) => std::panic::resume_unwind(panic),
            }
        })
    }

    /// Returns a command that runs as this user, independent of the tests' own start: actions of signals are not
    /// inherited.
    pub(crate) fn command(self, program: impl AsRef<Path>) -> Command {
        let mut command = Command::new(program.as_ref());
        if self != TestUser::myself() {
            command.uid(self.uid).gid(self.gid);
        }
        with_default_signals(&mut command);
        command
    }
}
