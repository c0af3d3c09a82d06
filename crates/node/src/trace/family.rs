//! Decides which threads belong to a traced program: itself and its children, found through their parents in procfs.

use std::fs;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use std::collections::HashMap;

use parking_lot::Mutex;

use super::wire::TraceScope;

/// Time for which an answer about a thread counts: its number may be given to another one.
const FRESH: Duration = Duration::from_secs(1);
/// Maximum number of remembered threads.
const SEEN_MAX: usize = 1 << 16;
/// Maximum number of ancestors of a process that are looked at.
const DEPTH_MAX: usize = 256;

/// Process of a thread.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Member {
    pub(super) pid: u32,
    pub(super) command: Arc<str>,
}

/// Threads of a program and its children.
pub(super) struct Family {
    proc: Option<Arc<Path>>,
    wanted: Wanted,
    seen: Mutex<HashMap<u32, Seen>>,
}

#[derive(Clone, Copy)]
enum Wanted {
    All,
    /// Below this process, and perhaps the process itself.
    Below(u32, bool),
}

struct Seen {
    at: Instant,
    member: Option<Member>,
}

/// Facts of a thread in procfs.
struct Status {
    command: Arc<str>,
    pid: u32,
    parent: u32,
}

impl Family {
    /// Returns the wanted threads; `client` is the process that wants to know.
    pub(super) fn new(proc: Option<Arc<Path>>, whose: TraceScope, client: u32) -> Self {
        let wanted = match whose {
            TraceScope::All => Wanted::All,
            TraceScope::Children => Wanted::Below(client, false),
            TraceScope::Process(pid) => Wanted::Below(pid, true),
        };
        Self { proc, wanted, seen: Mutex::default() }
    }

    /// Returns true if requests of a thread are wanted. Only where that depends on the thread, it is looked up.
    pub(super) fn may_want(&self, tid: u32) -> bool {
        matches!(self.wanted, Wanted::All) || self.find(tid).is_some()
    }

    /// Returns the process of a thread if it is wanted.
    pub(super) fn find(&self, tid: u32) -> Option<Member> {
        if tid == 0 {
            return None;
        }
        let now = Instant::now();
        if let Some(seen) = self.seen.lock().get(&tid)
            && now.saturating_duration_since(seen.at) < FRESH
        {
            return seen.member.clone();
        }
        let member = self.look(tid);
        let mut seen = self.seen.lock();
        if seen.len() >= SEEN_MAX {
            seen.clear();
        }
        seen.insert(tid, Seen { at: now, member: member.clone() });
        member
    }

    fn look(&self, tid: u32) -> Option<Member> {
        let status = self.status(tid);
        match self.wanted {
            Wanted::All => Some(status.map_or_else(
                || Member { pid: tid, command: "?".into() },
                |status| Member { pid: status.pid, command: status.command },
            )),
            Wanted::Below(root, itself) => {
                let status = status?;
                let is_member = if status.pid == root { itself } else { self.is_below(status.parent, root) };
                is_member.then_some(Member { pid: status.pid, command: status.command })
            }
        }
    }

    /// Returns true if a process is `root`, or has it or a known member among its ancestors.
    fn is_below(&self, mut pid: u32, root: u32) -> bool {
        for _ in 0..DEPTH_MAX {
            if pid == root {
                return true;
            }
            if pid <= 1 {
                return false;
            }
            if self.seen.lock().get(&pid).is_some_and(|seen| seen.member.is_some()) {
                return true;
            }
            let Some(status) = self.status(pid) else { return false };
            pid = status.parent;
        }
        false
    }

    fn status(&self, tid: u32) -> Option<Status> {
        let text = fs::read_to_string(self.proc.as_ref()?.join(tid.to_string()).join("status")).ok()?;
        let field = |name: &str| Some(text.lines().find_map(|line| line.strip_prefix(name))?.trim());
        Some(Status {
            command: field("Name:")?.into(),
            pid: field("Tgid:")?.parse().ok()?,
            parent: field("PPid:")?.parse().ok()?,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Writes the procfs of threads: number, process, parent.
    fn proc(threads: &[(u32, u32, u32)]) -> (tempfile::TempDir, Arc<Path>) {
        let folder = tempfile::tempdir().expect("a folder");
        for (tid, pid, parent) in threads {
            let place = folder.path().join(tid.to_string());
            fs::create_dir(&place).expect("created");
            let text =
                format!("Name:\tprogram{pid}\nState:\tS\nTgid:\t{pid}\nPid:\t{tid}\nPPid:\t{parent}\n");
            fs::write(place.join("status"), text).expect("written");
        }
        let path = folder.path().into();
        (folder, path)
    }

    fn pids(family: &Family, tids: &[u32]) -> Vec<Option<u32>> {
        tids.iter().map(|tid| family.find(*tid).map(|member| member.pid)).collect()
    }

    #[test]
    fn children_and_threads_of_a_program_belong_to_it() {
        let (_folder, proc) = proc(&[(10, 10, 1), (20, 20, 10), (21, 20, 10), (30, 30, 20), (40, 40, 1)]);
        let tids = [10, 20, 21, 30, 40, 50, 0];
        let of = |whose| pids(&Family::new(Some(proc.clone()), whose, 10), &tids);
        let none = None;
        assert_eq!(of(TraceScope::Children), [none, Some(20), Some(20), Some(30), none, none, none]);
        assert_eq!(of(TraceScope::Process(20)), [none, Some(20), Some(20), Some(30), none, none, none]);
        assert_eq!(of(TraceScope::All), [Some(10), Some(20), Some(20), Some(30), Some(40), Some(50), none]);
        let member = Family::new(Some(proc), TraceScope::All, 1).find(21).expect("it is there");
        assert_eq!(&*member.command, "program20");
    }

    #[test]
    fn a_child_of_a_known_member_belongs_to_the_program_after_it_lost_its_parent() {
        let (folder, proc) = proc(&[(20, 20, 10), (30, 30, 20)]);
        let family = Family::new(Some(proc), TraceScope::Process(10), 1);
        assert_eq!(pids(&family, &[20]), [Some(20)]);
        fs::remove_dir_all(folder.path().join("20")).expect("removed");
        assert_eq!(pids(&family, &[30]), [Some(30)], "its parent was a member");
    }

    #[test]
    fn without_procfs_nothing_but_everything_can_be_traced() {
        assert_eq!(pids(&Family::new(None, TraceScope::Process(5), 1), &[5]), [None]);
        assert_eq!(pids(&Family::new(None, TraceScope::All, 1), &[5]), [Some(5)]);
    }
}
