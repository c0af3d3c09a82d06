//! Moves changes from the revision that they were computed from to a later one.
//!
//! Each changed path is compared between both revisions. A path that is the same in both takes the change. One that the
//! later revision changed to the same thing needs none. Directories that both made, or whose times alone differ, are
//! joined. Everything else is a conflict, which is an error unless the publisher has chosen a side. Markers and bundles that
//! publishers make by themselves never are.

use esker_format::catalog::Flags;
use esker_format::write::catalog::Entry;
use esker_repository::{
    entry::{self, is_same_directory},
    path,
    published::Published,
};

use crate::changes::{Changes, NewTree};
use crate::choices::{Choices, Resolved, Side};
use crate::error::PublishError;
use crate::tidy::mend_groups;
use crate::trigger_flags::with_flags_mended;

use super::link_groups::{Listing, number_by_names};

/// Maximum number of listed paths of a conflict.
const NAMED_MAX: usize = 20;

/// Outcome of a rebase.
#[derive(Debug, PartialEq, Eq)]
enum Rebased {
    /// The changes fit the later revision.
    Done {
        /// Conflicts that the publisher has decided.
        decided: Vec<Resolved>,
    },
    /// Both revisions and the changes differ at these paths.
    Conflict {
        /// The first paths.
        paths: Vec<String>,
        /// Number of all paths.
        count: u64,
    },
}

/// Makes changes of a base fit a later revision; both with their numbers. Returns the conflicts that the choices of a transaction
/// decide; any other one is an error.
pub(crate) fn move_onto(
    (base, base_number): (&Published, u64),
    (head, head_number): (&Published, u64),
    changes: &mut Changes,
    choices: Option<&Choices>,
) -> Result<Vec<Resolved>, PublishError> {
    if base.root_hash() == head.root_hash() {
        return Ok(Vec::new());
    }
    match rebase(base, head, changes, choices.unwrap_or(&Choices::default()))? {
        Rebased::Done { decided } => Ok(decided),
        Rebased::Conflict { paths, count } => {
            let (base, head, is_transaction) = (base_number, head_number, choices.is_some());
            Err(PublishError::Conflict { paths, count, base, head, is_transaction })
        }
    }
}

/// Makes changes of `base` fit `head`.
fn rebase(
    base: &Published,
    head: &Published,
    changes: &mut Changes,
    choices: &Choices,
) -> Result<Rebased, PublishError> {
    let mine = changes.clone();
    let (decided, named, count) = Default::default();
    let mut rebase = Rebase { base, head, mine: &mine, choices, decided, named, count };
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
    Ok(Rebased::Done { decided: rebase.decided })
}

struct Rebase<'r> {
    base: &'r Published,
    head: &'r Published,
    /// The changes as they were computed from the base.
    mine: &'r Changes,
    choices: &'r Choices,
    decided: Vec<Resolved>,
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
    /// Notes a conflict, and returns the side that the publisher has chosen.
    fn conflict(&mut self, path: &[u8]) -> Option<Side> {
        let side = self.choices.side(path);
        let shown = path::shown(path);
        match side {
            Some(side) => self.decided.push(Resolved { path: shown, side }),
            None => {
                self.count += 1;
                self.named.extend((self.named.len() < NAMED_MAX).then_some(shown));
            }
        }
        side
    }

    fn root(&mut self, changes: &mut Changes) -> Result<(), PublishError> {
        let Some(ours) = changes.root.clone() else { return Ok(()) };
        let (old, new) = (self.base.entry(b"")?, self.head.entry(b"")?);
        match judge(old.as_ref(), new.as_ref(), Some(&ours)) {
            Verdict::Apply | Verdict::ApplyIfSameBelow => {}
            Verdict::Drop => changes.root = None,
            Verdict::Join(joined) => changes.root = Some(joined),
            Verdict::Conflict => {
                if self.conflict(b"") == Some(Side::Theirs) {
                    changes.root = None;
                }
            }
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
                (Some(old), Some(ours)) => is_same_directory(old, ours),
                (None, Some(_)) => false,
            };
            if change.entries.iter().all(|(name, ours)| is_idle(name, ours)) {
                changes.forget(directory);
                return Ok(false);
            }
            match self.conflict(directory) {
                Some(Side::Ours) => self.remake(directory, changes)?,
                Some(Side::Theirs) => changes.forget_below(directory),
                None => {}
            }
            return Ok(false);
        }
        let (mut old, mut new) = (listed(self.base, directory)?, listed(self.head, directory)?);
        let tree = NewTree { published: self.base, changes: self.mine };
        let mut mine = by_name(tree.list(directory)?);
        let has_groups = number_by_names([&mut old, &mut new, &mut mine]);
        for name in change.entries.keys() {
            let path = path::join(directory, name);
            match judge(old.get(name), new.get(name), mine.get(name)) {
                Verdict::Apply => {}
                Verdict::Drop => changes.revert(directory, name),
                Verdict::Join(joined) => changes.put(directory, joined),
                Verdict::Conflict => {
                    if self.conflict(&path) == Some(Side::Theirs) {
                        if !new.get(name).is_some_and(Entry::is_directory) {
                            changes.forget_below(&path);
                        }
                        changes.revert(directory, name);
                    }
                }
                Verdict::ApplyIfSameBelow => {
                    if self.compare_below(&path)? {
                        changes.revert(directory, name);
                    }
                }
            }
        }
        if has_groups {
            self.mend_groups(directory, &mine, new.clone(), changes)?;
        }
        if change.fresh {
            let others = |name: &&Vec<u8>| !change.entries.contains_key(*name);
            if self.compare_names(directory, &old, &new, others)? {
                changes.touch(directory).fresh = false;
            }
        }
        Ok(true)
    }

    /// Makes a directory again that the head lacks, with what the changes put in it.
    fn remake(&self, directory: &[u8], changes: &mut Changes) -> Result<(), PublishError> {
        let mine = NewTree { published: self.base, changes: self.mine };
        for path in path::ancestry(directory) {
            let Some((parent, _)) = path::split(path) else { continue };
            let there = NewTree { published: self.head, changes }.entry(path)?;
            if !there.is_some_and(|entry| entry.is_directory())
                && let Some(entry) = mine.entry(path)?
            {
                changes.put(parent, entry);
            }
        }
        let old = listed(self.base, directory)?;
        for (name, ours) in self.mine.get(directory).iter().flat_map(|change| &change.entries) {
            let is_idle = |ours: &Entry| old.get(name).is_some_and(|old| is_same_directory(old, ours));
            if ours.as_ref().is_none_or(is_idle) {
                changes.revert(directory, name);
            }
        }
        Ok(())
    }

    /// Gives the groups of hard links that both sides left in a directory their numbers and counts.
    fn mend_groups(
        &self,
        directory: &[u8],
        mine: &Listing,
        mut merged: Listing,
        changes: &mut Changes,
    ) -> Result<(), PublishError> {
        for (name, ours) in changes.get(directory).iter().flat_map(|change| &change.entries) {
            let Some(ours) = ours else {
                merged.remove(name);
                continue;
            };
            let hardlink_group = mine.get(name).map_or(0, |mine| mine.hardlink_group);
            merged.insert(name.clone(), Entry { hardlink_group, ..ours.clone() });
        }
        let mut merged: Vec<Entry> = merged.into_values().collect();
        mend_groups(&mut merged);
        let group = |entry: &Entry| (entry.hardlink_group, entry.link_count);
        let before = by_name(NewTree { published: self.head, changes }.list(directory)?);
        for entry in merged.into_iter().filter(|entry| !entry.is_directory()) {
            if before.get(&entry.name).is_some_and(|before| group(before) != group(&entry)) {
                changes.put(directory, entry);
            }
        }
        Ok(())
    }

    /// Finds conflicts with the removal of a directory and all its entries. Returns true if the head's side is chosen for one,
    /// which keeps all of them.
    fn compare_below(&mut self, directory: &[u8]) -> Result<bool, PublishError> {
        let mut keeps = false;
        let mut waiting = vec![directory.to_vec()];
        while let Some(directory) = waiting.pop() {
            if self.base.owner(&directory)?.hash == self.head.owner(&directory)?.hash {
                continue;
            }
            let (old, new) = (listed(self.base, &directory)?, listed(self.head, &directory)?);
            let (below, is_kept) = self.compare(&directory, &old, &new, |_| true);
            waiting.extend(below);
            keeps |= is_kept;
        }
        Ok(keeps)
    }

    fn compare_names(
        &mut self,
        directory: &[u8],
        old: &Listing,
        new: &Listing,
        which: impl Fn(&&Vec<u8>) -> bool,
    ) -> Result<bool, PublishError> {
        let (below, mut keeps) = self.compare(directory, old, new, which);
        for directory in below {
            keeps |= self.compare_below(&directory)?;
        }
        Ok(keeps)
    }

    /// Compares entries of a directory; returns the directories that are in both, and true if the head's side is chosen for a
    /// conflict.
    fn compare(
        &mut self,
        directory: &[u8],
        old: &Listing,
        new: &Listing,
        which: impl Fn(&&Vec<u8>) -> bool,
    ) -> (Vec<Vec<u8>>, bool) {
        let (mut below, mut keeps) = (Vec::new(), false);
        let added = new.keys().filter(|name| !old.contains_key(*name));
        for name in old.keys().chain(added).filter(which) {
            let path = path::join(directory, name);
            match (old.get(name), new.get(name)) {
                (Some(old), Some(new)) if is_same_directory(old, new) => below.push(path),
                // Both sides removed it.
                (Some(_), None) => {}
                (old, new) if same(old, new) || is_made(old) && is_made(new) => {}
                _ => keeps |= self.conflict(&path) == Some(Side::Theirs),
            }
        }
        (below, keeps)
    }
}

fn listed(published: &Published, directory: &[u8]) -> Result<Listing, PublishError> {
    Ok(by_name(published.list(directory)?))
}

fn by_name(entries: Vec<Entry>) -> Listing {
    entries.into_iter().map(|entry| (entry.name.clone(), entry)).collect()
}

fn judge(old: Option<&Entry>, new: Option<&Entry>, ours: Option<&Entry>) -> Verdict {
    let is_directory = |entry: Option<&Entry>| entry.is_some_and(Entry::is_directory);
    let removes = is_directory(old) && !is_directory(ours);
    match (old, new, ours) {
        _ if same(new, ours) => Verdict::Drop,
        // It was only renumbered: another group of hard links came or went.
        (Some(old), _, Some(ours)) if !ours.is_directory() && entry::is_same(old, ours) => Verdict::Drop,
        (Some(old), Some(new), _) if removes && is_same_directory(old, new) => Verdict::ApplyIfSameBelow,
        _ if same(old, new) || is_made(old) && is_made(new) => Verdict::Apply,
        // Nothing but times: they go with a directory that is gone; what is new in it is found there.
        (Some(old), Some(new), Some(ours)) if is_same_directory(old, ours) && new.is_directory() => {
            Verdict::Join(later(new, ours))
        }
        (Some(old), _, Some(ours)) if is_same_directory(old, ours) => Verdict::Drop,
        // Both made the directory: what was there first stays.
        (None, Some(new), Some(ours)) if is_same_directory(new, ours) => Verdict::Drop,
        (Some(old), Some(new), Some(ours)) if is_same_directory(old, new) && ours.is_directory() => {
            Verdict::Join(later(ours, new))
        }
        (Some(_), Some(new), Some(ours)) if is_same_directory(new, ours) => Verdict::Join(later(ours, new)),
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

/// Returns true if an entry is missing, or one that publishers create automatically.
fn is_made(entry: Option<&Entry>) -> bool {
    entry.is_none_or(|entry| entry.is_file() && entry.flags.has(Flags::HIDDEN))
}
