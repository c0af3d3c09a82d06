//! Plan of a publish: computed first, then executed or only shown.

use std::collections::{HashMap, HashSet};

use esker_format::bundle;
use esker_format::catalog::{Flags, PathKey};
use esker_format::hash::ContentHash;
use esker_format::write::catalog::Entry;
use esker_repository::{
    KindCounts, Settings,
    entry::{self, AUTO_MARKER, MARKER},
    path,
    published::{Listed, Published},
};
use serde::Serialize;

use crate::build_folder::Relocation;
use crate::changes::Changes;
use crate::error::PublishError;
use crate::file_index::{FileIndex, Record};
use crate::filter::Filter;
use crate::follow_rules::Rules;
use crate::graft::Grafts;
use crate::remarks::Remarks;
use crate::source::{Facts, SourceEntry, Time};
use crate::source_entry;

/// Counts of differences between the source and the published revision.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Differences {
    /// New entries.
    pub added: KindCounts,
    /// Changed entries.
    pub changed: KindCounts,
    /// Removed entries.
    pub removed: KindCounts,
    /// Unchanged entries.
    pub unchanged: KindCounts,
    /// Number of extended attributes that catalogs can't represent.
    pub xattrs_left_out: u64,
    /// Number of names that have no hard link to names of the same file in other directories.
    pub hard_links_split: u64,
    /// Number of devices, sockets and pipes that the settings leave out.
    pub special_left_out: u64,
    /// Number of files that lost their capabilities, since a transaction changed their content.
    pub capabilities_left_out: u64,
    /// Number of new entries without the default access control list of their directory, which a user's overlay lacks.
    pub default_acls_left_out: u64,
}

impl Differences {
    pub(crate) fn add_all(&mut self, other: &Self) {
        self.added.add_all(&other.added);
        self.changed.add_all(&other.changed);
        self.removed.add_all(&other.removed);
        self.unchanged.add_all(&other.unchanged);
    }

    /// Counts everything below a published directory as removed.
    pub(crate) fn add_removed_below(
        &mut self,
        published: &Published,
        directory: &[u8],
    ) -> Result<(), PublishError> {
        let mut waiting = vec![directory.to_vec()];
        while let Some(directory) = waiting.pop() {
            for entry in published.list(&directory)? {
                if !entry::is_profile_bundle(&entry) {
                    self.removed.add(&entry);
                }
                if entry.is_directory() {
                    waiting.push(path::join(&directory, &entry.name));
                }
            }
        }
        Ok(())
    }
}

/// Files of one source directory that must be read.
#[derive(Debug)]
pub(crate) struct ReadDirectory {
    /// The directory, below the source.
    pub(crate) relative: Vec<u8>,
    pub(crate) files: Vec<ReadFile>,
}

/// A file to read.
#[derive(Debug)]
pub(crate) struct ReadFile {
    pub(crate) name: Vec<u8>,
    pub(crate) facts: Facts,
    pub(crate) job: usize,
}

/// An entry whose content is unknown until its file is read.
#[derive(Debug)]
pub(crate) struct Waiting {
    pub(crate) directory: Vec<u8>,
    pub(crate) name: Vec<u8>,
    pub(crate) job: usize,
    pub(crate) facts: Facts,
    /// True if a later change of the file would show in its times.
    pub(crate) settled: bool,
}

/// Part of a plan for one directory.
#[derive(Debug, Default)]
pub(crate) struct DirectoryPlan {
    pub(crate) directory: Vec<u8>,
    pub(crate) puts: Vec<Entry>,
    pub(crate) removals: Vec<Vec<u8>>,
    /// Removed directories, which are removed with their contents.
    pub(crate) removed_directories: Vec<Vec<u8>>,
    /// The files to read, with the names that get their content. Jobs count from zero in each directory.
    pub(crate) reads: Vec<ReadFile>,
    pub(crate) waiting: Vec<(Vec<u8>, usize, Facts, bool)>,
    pub(crate) records: Vec<Record>,
    /// Directories of the source, and whether they were published before.
    pub(crate) subdirectories: Vec<(Vec<u8>, bool)>,
    pub(crate) differences: Differences,
    pub(crate) remarks: Remarks,
}

/// Inputs of every comparison.
pub(crate) struct Comparison<'r> {
    pub(crate) settings: &'r Settings,
    pub(crate) file_index: &'r FileIndex,
    pub(crate) rules: &'r Rules,
    pub(crate) filter: &'r Filter,
    /// Object of an empty file, and the flags of its stored form.
    pub(crate) empty: (ContentHash, Flags),
}

/// Seconds within which a file may change again without a change of its mtime: some file systems count in steps
/// of two seconds.
const CLOCK_STEP: i64 = 2;

impl Comparison<'_> {
    /// Compares a directory of the source with the published one. `found` has the entries of the source with
    /// their extended attributes, `grafts` the contents of those that are grafted, `facts` are those of the directory
    /// itself, `now` is no later than the look.
    pub(crate) fn compare(
        &self,
        directory: &[u8],
        facts: &Facts,
        found: Vec<(SourceEntry, Option<Vec<u8>>)>,
        grafts: &Grafts,
        old: Vec<Entry>,
        now: Time,
    ) -> Result<DirectoryPlan, PublishError> {
        let mut plan = DirectoryPlan { directory: directory.to_vec(), ..DirectoryPlan::default() };
        let mut old: HashMap<Vec<u8>, Entry> =
            old.into_iter().map(|entry| (entry.name.clone(), entry)).collect();
        if directory.is_empty() {
            old.remove(&path::RESERVED[1..]);
        }
        self.keep_markers(directory, facts, &found, &mut old, &mut plan)?;
        let mut groups = Groups::of(&found);
        let triggers = bundle_triggers(&found, &mut old, &mut plan);
        for (source, xattrs) in found {
            let mut new = source_entry::of_source(&source, xattrs, self.settings);
            self.filter.own(&mut new);
            groups.assign(&source, &mut new);
            let at = || path::join(directory, &new.name);
            plan.remarks.add_linked(&source.facts, u64::from(new.link_count), at);
            grafts.set_in(&mut new, &source.facts, self.settings);
            if triggers.contains(&(source.facts.device, source.facts.inode)) {
                new.flags.0 |= Flags::BUNDLE_TRIGGER;
            }
            let before = old.remove(&new.name);
            self.compare_entry(&source, new, before, now, &mut groups, &mut plan);
        }
        for (name, entry) in old {
            plan.differences.removed.add(&entry);
            if entry.is_directory() {
                plan.removed_directories.push(path::join(directory, &name));
            }
            plan.removals.push(name);
        }
        Ok(plan)
    }

    /// Keeps, adds or removes the markers that are not in the source.
    fn keep_markers(
        &self,
        directory: &[u8],
        facts: &Facts,
        found: &[(SourceEntry, Option<Vec<u8>>)],
        old: &mut HashMap<Vec<u8>, Entry>,
        plan: &mut DirectoryPlan,
    ) -> Result<(), PublishError> {
        let in_source = |name: &[u8]| found.iter().any(|(source, _)| source.name == name);
        if in_source(MARKER) || in_source(AUTO_MARKER) || directory.is_empty() {
            return Ok(());
        }
        if !self.rules.now.wants(directory) {
            let is_automatic = old.remove(AUTO_MARKER).is_some();
            let is_hidden = old.get(MARKER).is_some_and(|marker| marker.flags.has(Flags::HIDDEN));
            // No source can have a hidden one, and no new rule forbids this one.
            if is_automatic || is_hidden && !self.rules.drop(directory) {
                old.remove(MARKER);
            }
            return Ok(());
        }
        // One that the balance made is the rules' now; one that was in the source until now is no longer.
        let before = old.remove(MARKER);
        if before.as_ref().is_some_and(|marker| marker.flags.has(Flags::HIDDEN)) {
            return Ok(());
        }
        let mut owner = source_entry::of_facts(facts, self.settings);
        self.filter.own(&mut owner);
        let entry = self.marker(MARKER, 0o100_644, &owner);
        match before {
            Some(_) => plan.differences.changed.add(&entry),
            None => plan.differences.added.add(&entry),
        }
        plan.puts.push(entry);
        Ok(())
    }

    /// Returns a marker file for a directory, hidden from listings since the source does not have it.
    pub(crate) fn marker(&self, name: &[u8], mode: u32, directory: &Entry) -> Entry {
        entry::marker(name, mode, directory, self.empty)
    }

    fn compare_entry(
        &self,
        source: &SourceEntry,
        mut new: Entry,
        before: Option<Entry>,
        now: Time,
        groups: &mut Groups,
        plan: &mut DirectoryPlan,
    ) {
        let facts = &source.facts;
        let (path, key) = {
            let path = path::join(&plan.directory, &new.name);
            let key = PathKey::of(&path);
            (path, key)
        };
        if facts.is_directory() {
            let was_directory = before.as_ref().is_some_and(Entry::is_directory);
            plan.subdirectories.push((path.clone(), was_directory));
        }
        let mut must_wait = false;
        let is_grafted = new.hash.is_some() || !new.chunks.is_empty();
        if facts.is_file() && !is_grafted {
            let is_external = self.settings.external_data && !source_entry::is_control(&new.name);
            let settled = source.dated && facts.mtime.max(facts.ctime).seconds < now.seconds - CLOCK_STEP;
            let unchanged = before.as_ref().filter(|before| {
                let may_be = source.dated
                    && before.is_file()
                    && before.size == facts.size
                    && before.flags.has(Flags::EXTERNAL) == is_external;
                may_be && self.file_index.is_unchanged(key, facts, before)
            });
            match unchanged {
                Some(before) => {
                    entry::take_content(&mut new, before);
                    plan.records.push(Record::new(key, facts, &new));
                }
                None => {
                    let job = groups.job(source, plan);
                    plan.waiting.push((new.name.clone(), job, *facts, settled));
                    must_wait = true;
                }
            }
        }
        match before {
            Some(before) if !must_wait && entry::is_same(&before, &new) => {
                plan.differences.unchanged.add(&new)
            }
            Some(before) => {
                if before.is_directory() && !new.is_directory() {
                    plan.removed_directories.push(path);
                }
                entry::carry_unknown(&before, &mut new);
                plan.differences.changed.add(&new);
                plan.puts.push(new);
            }
            None => {
                plan.differences.added.add(&new);
                plan.puts.push(new);
            }
        }
    }
}

/// Hard link groups of one directory.
struct Groups {
    /// For each file with several names here: its number, how many names, and the job that reads it.
    files: HashMap<(u64, u64), (u32, u32, Option<usize>)>,
    next: u32,
}

impl Groups {
    fn of(found: &[(SourceEntry, Option<Vec<u8>>)]) -> Self {
        let mut files: HashMap<(u64, u64), (u32, u32, Option<usize>)> = HashMap::new();
        for (source, _) in found {
            if source.facts.links > 1 && !source.facts.is_directory() {
                files.entry((source.facts.device, source.facts.inode)).or_default().1 += 1;
            }
        }
        files.retain(|_, (_, names, _)| *names > 1);
        Self { files, next: 0 }
    }

    fn assign(&mut self, source: &SourceEntry, entry: &mut Entry) {
        if let Some((number, names, _)) = self.files.get_mut(&(source.facts.device, source.facts.inode)) {
            if *number == 0 {
                self.next += 1;
                *number = self.next;
            }
            entry.hardlink_group = *number;
            entry.link_count = *names;
        }
    }

    /// Returns the job that reads a file; all hard links of a file share one job.
    fn job(&mut self, source: &SourceEntry, plan: &mut DirectoryPlan) -> usize {
        let shared = self.files.get_mut(&(source.facts.device, source.facts.inode));
        if let Some((_, _, Some(job))) = shared {
            return *job;
        }
        let job = plan.reads.len();
        plan.reads.push(ReadFile { name: source.name.clone(), facts: source.facts, job });
        if let Some((_, _, known)) = shared {
            *known = Some(job);
        }
        job
    }
}

/// Returns the bundle triggers by device and inode, so that all hard links of one are found.
///
/// A trigger has a specification beside it, in the source or made from a profile. A specification made from a profile
/// is not compared; it is removed with its trigger, and replaced by one in the source.
fn bundle_triggers(
    found: &[(SourceEntry, Option<Vec<u8>>)],
    old: &mut HashMap<Vec<u8>, Entry>,
    plan: &mut DirectoryPlan,
) -> HashSet<(u64, u64)> {
    let files = || found.iter().map(|(source, _)| source).filter(|source| source.facts.is_file());
    let names: HashSet<&[u8]> = files().map(|source| source.name.as_slice()).collect();
    let mut triggers: HashSet<Vec<u8>> =
        names.iter().filter_map(|name| bundle::trigger_of(name)).map(<[u8]>::to_vec).collect();
    let ours: Vec<Vec<u8>> = old
        .values()
        .filter(|entry| entry::is_profile_bundle(entry))
        .map(|entry| entry.name.clone())
        .collect();
    for name in ours {
        old.remove(&name);
        match bundle::trigger_of(&name).filter(|trigger| names.contains(trigger)) {
            Some(trigger) => _ = triggers.insert(trigger.to_vec()),
            None => plan.removals.push(name),
        }
    }
    let is_trigger = |source: &&SourceEntry| triggers.contains(&source.name);
    files().filter(is_trigger).map(|source| (source.facts.device, source.facts.inode)).collect()
}

/// Everything that a publish will change.
#[derive(Debug, Default)]
pub(crate) struct Plan {
    pub(crate) changes: Changes,
    pub(crate) reads: Vec<ReadDirectory>,
    pub(crate) waiting: Vec<Waiting>,
    pub(crate) records: Vec<Record>,
    pub(crate) differences: Differences,
    pub(crate) remarks: Remarks,
    pub(crate) jobs: usize,
    pub(crate) bytes_to_read: u64,
    /// Paths to rewrite in files; none to publish them as they are.
    pub(crate) relocation: Option<Relocation>,
}

impl Plan {
    /// Returns a plan that reads only those files whose published entry has the same size.
    pub(crate) fn take_doubtful(&mut self, published: &Published) -> Result<Self, PublishError> {
        let mut jobs: HashMap<usize, usize> = HashMap::new();
        let mut listed = Listed::default();
        let mut doubtful = Self { relocation: self.relocation.take(), ..Self::default() };
        for mut waiting in std::mem::take(&mut self.waiting) {
            let before =
                listed.find(published, &waiting.directory, &waiting.name)?.filter(|before| before.is_file());
            if before.is_some_and(|before| before.size == waiting.facts.size) {
                let next = jobs.len();
                waiting.job = *jobs.entry(waiting.job).or_insert(next);
                doubtful.waiting.push(waiting);
            }
        }
        doubtful.jobs = jobs.len();
        for mut directory in std::mem::take(&mut self.reads) {
            directory.files.retain_mut(|file| match jobs.get(&file.job) {
                Some(job) => {
                    file.job = *job;
                    true
                }
                None => false,
            });
            doubtful.bytes_to_read += directory.files.iter().map(|file| file.facts.size).sum::<u64>();
            if !directory.files.is_empty() {
                doubtful.reads.push(directory);
            }
        }
        Ok(doubtful)
    }

    /// Adds the plan of one directory, whose path below the source is `relative`.
    pub(crate) fn absorb(&mut self, relative: &[u8], part: DirectoryPlan) {
        self.differences.add_all(&part.differences);
        self.remarks.absorb(part.remarks);
        self.records.extend(part.records);
        for name in &part.removals {
            self.changes.remove(&part.directory, name);
        }
        for entry in part.puts {
            self.changes.put(&part.directory, entry);
        }
        let first = self.jobs;
        self.jobs += part.reads.len();
        self.waiting.extend(part.waiting.into_iter().map(|(name, job, facts, settled)| Waiting {
            directory: part.directory.clone(),
            name,
            job: first + job,
            facts,
            settled,
        }));
        if !part.reads.is_empty() {
            let mut files = part.reads;
            for file in &mut files {
                file.job += first;
                self.bytes_to_read += file.facts.size;
            }
            self.reads.push(ReadDirectory { relative: relative.to_vec(), files });
        }
    }
}

#[cfg(test)]
mod tests;
