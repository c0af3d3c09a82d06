//! Moves changes from the revision that they were computed from to a later one.
//!
//! Each changed path is compared between both revisions. A path that is the same in both takes the change. One that the
//! later revision changed to the same thing needs none. Directories that both made, or whose times alone differ, are
//! joined. Everything else is a conflict. Markers and bundles that publishers make by themselves never are.

use std::collections::BTreeMap;

use esker_format::catalog::Flags;
use esker_format::write::catalog::Entry;
use esker_repository::{entry, path, published::Published};

use crate::changes::{Changes, DirectoryChange, NewTree};
use crate::error::PublishError;
use crate::trigger_flags::with_flags_mended;

/// Maximum number of listed paths of a conflict.
const NAMED_MAX: usize = 20;

/// Outcome of a rebase.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Rebased {
    /// The changes fit the later revision.
    Done,
    /// Both revisions and the changes differ at these paths.
    Conflict {
        /// The first paths.
        paths: Vec<String>,
        /// Number of all paths.
        count: u64,
    },
}

/// Makes changes of `base` fit `head`.
pub(super) fn rebase(
    base: &Published,
    head: &Published,
    changes: &mut Changes,
) -> Result<Rebased, PublishError> {
    let mut rebase = Rebase { base, head, named: Vec::new(), count: 0 };
    rebase.root(changes)?;
    let mut mixed = Vec::new();
    for directory in changes.paths() {
        let is_mixed = rebase.directory(&directory, changes)?;
        mixed.extend(is_mixed.then_some(directory));
    }
    if rebase.count > 0 {
        return Ok(Rebased::Conflict { paths: rebase.named, count: rebase.count });
    }
    // A specification of one side may announce a file of the other.
    for directory in
        mixed.iter().filter(|directory| changes.get(directory).is_some()).cloned().collect::<Vec<_>>()
    {
        for entry in with_flags_mended(NewTree { published: head, changes }, &directory)? {
            changes.put(&directory, entry);
        }
    }
    Ok(Rebased::Done)
}

struct Rebase<'r> {
    base: &'r Published,
    head: &'r Published,
    named: Vec<String>,
    count: u64,
}

/// Decision about one entry of the change.
enum Verdict {
    /// The change of the entry stays.
    Apply,
    /// The head has the same change already.
    Drop,
    /// The change stays, and the entry gets these attributes.
    Join(Entry),
    /// Both sides changed the path.
    Conflict,
    /// The removal of a directory, or its replacement, stays if nothing below it changed.
    ApplyIfSameBelow,
}

impl Rebase<'_> {
    fn conflict(&mut self, path: &[u8]) {
        if self.named.len() < NAMED_MAX {
            self.named.push(path::shown(path));
        }
        self.count += 1;
    }

    fn root(&mut self, changes: &mut Changes) -> Result<(), PublishError> {
        let Some(ours) = changes.root.clone() else { return Ok(()) };
        let (old, new) = (self.base.entry(b"")?, self.head.entry(b"")?);
        match judge(old.as_ref(), new.as_ref(), Some(&ours)) {
            Verdict::Apply | Verdict::ApplyIfSameBelow => {}
            Verdict::Drop => changes.root = None,
            Verdict::Join(joined) => changes.root = Some(joined),
            Verdict::Conflict => self.conflict(b""),
        }
        Ok(())
    }

    /// Rebases the changes in one directory; returns true if the later revision changed the directory, too.
    fn directory(&mut self, directory: &[u8], changes: &mut Changes) -> Result<bool, PublishError> {
        if self.base.owner(directory)?.hash == self.head.owner(directory)?.hash {
            return Ok(false);
        }
        let Some(change) = changes.get(directory).cloned() else { return Ok(false) };
        let is_directory = |entry: Option<Entry>| entry.is_some_and(|entry| entry.is_directory());
        if is_directory(self.base.entry(directory)?) && !is_directory(self.head.entry(directory)?) {
            // What both removed is gone, and times of directories go with it; anything else has no place any more.
            let old = listed(self.base, directory)?;
            let is_idle = |name: &Vec<u8>, ours: &Option<Entry>| match (old.get(name), ours) {
                (_, None) => true,
                (Some(old), Some(ours)) => same_directory(old, ours),
                (None, Some(_)) => false,
            };
            match change.entries.iter().all(|(name, ours)| is_idle(name, ours)) {
                true => changes.forget(directory),
                false => self.conflict(directory),
            }
            return Ok(false);
        }
        let (old, new) = (listed(self.base, directory)?, listed(self.head, directory)?);
        for (name, ours) in &change.entries {
            let path = path::join(directory, name);
            let verdict = judge(old.get(name), new.get(name), ours.as_ref());
            match verdict {
                Verdict::Apply => {}
                Verdict::Drop => changes.revert(directory, name),
                Verdict::Join(joined) => changes.put(directory, joined),
                Verdict::Conflict => self.conflict(&path),
                Verdict::ApplyIfSameBelow => self.compare_below(&path)?,
            }
        }
        self.groups(directory, &change, &old, &new);
        if change.fresh {
            let others = |name: &&Vec<u8>| !change.entries.contains_key(*name);
            self.compare_names(directory, &old, &new, others)?;
        }
        Ok(true)
    }

    /// Hard links are numbered within their directory. Numbers of ours mean nothing once the other side changed them.
    fn groups(
        &mut self,
        directory: &[u8],
        change: &DirectoryChange,
        old: &BTreeMap<Vec<u8>, Entry>,
        new: &BTreeMap<Vec<u8>, Entry>,
    ) {
        let numbers = |entries: &BTreeMap<Vec<u8>, Entry>| -> Vec<(Vec<u8>, u32)> {
            let grouped = entries.iter().filter(|(_, entry)| entry.hardlink_group != 0);
            grouped.map(|(name, entry)| (name.clone(), entry.hardlink_group)).collect()
        };
        if numbers(old) == numbers(new) {
            return;
        }
        let ours = change.entries.iter().filter(|(name, entry)| {
            let grouped = entry.as_ref().is_some_and(|entry| entry.hardlink_group != 0);
            grouped && !matches!(judge(old.get(*name), new.get(*name), entry.as_ref()), Verdict::Conflict)
        });
        for (name, _) in ours {
            self.conflict(&path::join(directory, name));
        }
    }

    /// Finds conflicts with the removal of a directory and all its entries.
    fn compare_below(&mut self, directory: &[u8]) -> Result<(), PublishError> {
        let mut waiting = vec![directory.to_vec()];
        while let Some(directory) = waiting.pop() {
            if self.base.owner(&directory)?.hash == self.head.owner(&directory)?.hash {
                continue;
            }
            let (old, new) = (listed(self.base, &directory)?, listed(self.head, &directory)?);
            waiting.extend(self.compare(&directory, &old, &new, |_| true));
        }
        Ok(())
    }

    fn compare_names(
        &mut self,
        directory: &[u8],
        old: &BTreeMap<Vec<u8>, Entry>,
        new: &BTreeMap<Vec<u8>, Entry>,
        which: impl Fn(&&Vec<u8>) -> bool,
    ) -> Result<(), PublishError> {
        for below in self.compare(directory, old, new, which) {
            self.compare_below(&below)?;
        }
        Ok(())
    }

    /// Compares entries of a directory; returns the directories that are in both.
    fn compare(
        &mut self,
        directory: &[u8],
        old: &BTreeMap<Vec<u8>, Entry>,
        new: &BTreeMap<Vec<u8>, Entry>,
        which: impl Fn(&&Vec<u8>) -> bool,
    ) -> Vec<Vec<u8>> {
        let mut below = Vec::new();
        let added = new.keys().filter(|name| !old.contains_key(*name));
        for name in old.keys().chain(added).filter(which) {
            let path = path::join(directory, name);
            match (old.get(name), new.get(name)) {
                (Some(old), Some(new)) if same_directory(old, new) => below.push(path),
                // Both sides removed it.
                (Some(_), None) => {}
                (old, new) if same(old, new) || is_made(old) && is_made(new) => {}
                _ => self.conflict(&path),
            }
        }
        below
    }
}

fn listed(published: &Published, directory: &[u8]) -> Result<BTreeMap<Vec<u8>, Entry>, PublishError> {
    Ok(published.list(directory)?.into_iter().map(|entry| (entry.name.clone(), entry)).collect())
}

fn judge(old: Option<&Entry>, new: Option<&Entry>, ours: Option<&Entry>) -> Verdict {
    let is_directory = |entry: Option<&Entry>| entry.is_some_and(Entry::is_directory);
    let removes = is_directory(old) && !is_directory(ours);
    match (old, new, ours) {
        _ if same(new, ours) => Verdict::Drop,
        (Some(old), Some(new), _) if removes && same_directory(old, new) => Verdict::ApplyIfSameBelow,
        _ if same(old, new) || is_made(old) && is_made(new) => Verdict::Apply,
        // Nothing but times: they go with a directory that is gone; what is new in it is found there.
        (Some(old), Some(new), Some(ours)) if same_directory(old, ours) && new.is_directory() => {
            Verdict::Join(later(new, ours))
        }
        (Some(old), _, Some(ours)) if same_directory(old, ours) => Verdict::Drop,
        // Both made the directory: what was there first stays.
        (None, Some(new), Some(ours)) if same_directory(new, ours) => Verdict::Drop,
        (Some(old), Some(new), Some(ours)) if same_directory(old, new) && ours.is_directory() => {
            Verdict::Join(later(ours, new))
        }
        (Some(_), Some(new), Some(ours)) if same_directory(new, ours) => Verdict::Join(later(ours, new)),
        _ => Verdict::Conflict,
    }
}

/// Returns a directory with the later one of two times.
fn later(ours: &Entry, new: &Entry) -> Entry {
    let times = (ours.mtime, ours.mtime_ns).max((new.mtime, new.mtime_ns));
    Entry { mtime: times.0, mtime_ns: times.1, ..ours.clone() }
}

fn same(a: Option<&Entry>, b: Option<&Entry>) -> bool {
    match (a, b) {
        (None, None) => true,
        (Some(a), Some(b)) => entry::is_same(a, b),
        _ => false,
    }
}

/// Tells whether two entries are directories with the same mode, owner and attributes; their times may differ.
fn same_directory(a: &Entry, b: &Entry) -> bool {
    let (mtime, mtime_ns) = (b.mtime, b.mtime_ns);
    a.is_directory() && b.is_directory() && entry::is_same(&Entry { mtime, mtime_ns, ..a.clone() }, b)
}

/// Returns true if an entry is missing, or one that publishers create automatically.
fn is_made(entry: Option<&Entry>) -> bool {
    entry.is_none_or(|entry| entry.is_file() && entry.flags.has(Flags::HIDDEN))
}
