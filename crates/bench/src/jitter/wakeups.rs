//! Counts how often the threads of a process were woken: their context switches, as the kernel counts them.

use std::collections::BTreeMap;
use std::fs;
use std::io;

/// Context switches of each thread of a process: its id, its name and the count.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Wakeups(BTreeMap<u32, (String, u64)>);

impl Wakeups {
    /// Reads the counts of all threads of a process.
    pub fn of(pid: u32) -> io::Result<Self> {
        let mut all = BTreeMap::new();
        for entry in fs::read_dir(format!("/proc/{pid}/task"))? {
            let entry = entry?;
            let Some(thread) = entry.file_name().to_str().and_then(|name| name.parse().ok()) else {
                continue;
            };
            // A thread may have ended since it was listed.
            let Ok(status) = fs::read_to_string(entry.path().join("status")) else { continue };
            all.insert(thread, (field(&status, "Name").to_owned(), switches(&status)));
        }
        Ok(Self(all))
    }

    /// Returns the wake-ups since an earlier reading; a thread that is new or gone counts as one.
    pub fn since(&self, before: &Self) -> u64 {
        self.by_thread(before).iter().map(|(_, count)| count).sum()
    }

    /// Returns the threads that woke since an earlier reading, with their counts.
    pub fn by_thread(&self, before: &Self) -> Vec<(String, u64)> {
        let now = self.0.iter().map(|(thread, (name, count))| {
            let known = before.0.get(thread);
            (name.clone(), known.map_or((*count).max(1), |(_, known)| count.saturating_sub(*known)))
        });
        let gone = before.0.iter().filter(|(thread, _)| !self.0.contains_key(thread));
        now.chain(gone.map(|(_, (name, _))| (name.clone(), 1))).filter(|(_, count)| *count > 0).collect()
    }
}

fn switches(status: &str) -> u64 {
    ["voluntary_ctxt_switches", "nonvoluntary_ctxt_switches"]
        .iter()
        .filter_map(|name| field(status, name).parse::<u64>().ok())
        .sum()
}

fn field<'a>(status: &'a str, name: &str) -> &'a str {
    let value = status.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':'));
    value.unwrap_or_default().trim()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(threads: &[(u32, &str, u64)]) -> Wakeups {
        Wakeups(threads.iter().map(|(thread, name, count)| (*thread, ((*name).to_owned(), *count))).collect())
    }

    #[test]
    fn both_kinds_of_switches_count() {
        let status = "Name:\tfuse-0\nvoluntary_ctxt_switches:\t40\nnonvoluntary_ctxt_switches:\t2\n";
        assert_eq!((field(status, "Name"), switches(status)), ("fuse-0", 42));
    }

    #[test]
    fn new_and_ended_threads_count_as_wake_ups() {
        let before = of(&[(1, "a", 5), (2, "b", 7)]);
        assert_eq!(before.since(&before), 0);
        let after = of(&[(1, "a", 5), (3, "c", 0)]);
        assert_eq!(after.by_thread(&before), [("c".to_owned(), 1), ("b".to_owned(), 1)]);
        assert_eq!(after.since(&before), 2);
        assert!(Wakeups::of(std::process::id()).is_ok_and(|own| !own.0.is_empty()));
    }
}
