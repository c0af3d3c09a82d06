//! Converts the members of an archive into changes.

use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};

use esker_format::write::catalog::Entry;
use esker_repository::{
    RepositoryError, Settings,
    entry::{self, MARKER},
    path,
};

use crate::build_folder::{interpreter, leads_out};
use crate::changes::{Changes, NewTree};
use crate::error::PublishError;
use crate::filter::Filter;
use crate::graft::{self, Graft, grafted_by};
use crate::limits;
use crate::pipeline::Content;
use crate::plan::Differences;
use crate::remarks::{RemarkKind, Remarks};
use crate::revision::Context;
use crate::source_entry;
use crate::trigger_flags::with_flags_mended;

use super::{Member, Owner, links};

type Directory = Vec<u8>;
type Name = Vec<u8>;

/// Collects the changes that an archive makes.
pub(super) struct Collector<'r> {
    context: &'r Context<'r>,
    owner: Owner,
    /// Directory into which the archive is unpacked, with published symlinks resolved.
    target: Vec<u8>,
    /// Paths of entries of the archive that are no directories.
    brought: HashSet<Vec<u8>>,
    /// Directory of the last entry: its name in the archive, and its path in the repository.
    last_directory: Option<(Vec<u8>, Vec<u8>)>,
    unknown_types: u64,
    changes: Changes,
    /// Deleted paths; published entries at and below them must not reappear.
    deleted: BTreeSet<Vec<u8>>,
    /// Index of the job that stores the content of each file, by path.
    jobs: HashMap<Vec<u8>, usize>,
    next_job: usize,
    /// Names of the same file in one directory, by its first name.
    links: BTreeMap<(Directory, Name), Vec<Name>>,
    /// Grafts by the path of their file.
    grafts: HashMap<Vec<u8>, Graft>,
    /// Special files that the settings leave out.
    left_out: HashSet<Vec<u8>>,
    /// Counts of removed and skipped entries.
    counted: Differences,
    remarks: Remarks,
    /// Scripts that start an interpreter by an absolute path: path, folder and name of the interpreter.
    scripts: Vec<(Vec<u8>, Vec<u8>, Vec<u8>)>,
    /// Paths to delete that do not exist.
    missing: Vec<Vec<u8>>,
    /// Number of removed entries that the archive adds again.
    returned: u64,
    /// Number of those that are directories replaced by files: they count as changed, not as removed.
    replaced: u64,
}

fn refused_graft(marker: &[u8], reason: String) -> PublishError {
    PublishError::Graft { path: path::shown(marker).into(), reason }
}

/// Changes that an archive makes.
pub(super) struct Collected {
    pub(super) changes: Changes,
    pub(super) differences: Differences,
    pub(super) remarks: Remarks,
    /// Number of entries of an unknown type.
    pub(super) unknown_types: u64,
    /// Paths to delete that do not exist.
    pub(super) missing: Vec<Vec<u8>>,
    /// Number of removed entries that the archive adds again.
    returned: u64,
}

impl Collected {
    /// Returns the number of entries that are removed and not added again.
    pub(super) fn gone(&self) -> u64 {
        self.differences.removed.total().saturating_sub(self.returned)
    }
}

impl<'r> Collector<'r> {
    pub(super) fn new(context: &'r Context<'r>, owner: Owner) -> Self {
        Self {
            context,
            owner,
            target: Vec::new(),
            brought: HashSet::new(),
            last_directory: None,
            unknown_types: 0,
            changes: Changes::default(),
            deleted: BTreeSet::new(),
            jobs: HashMap::new(),
            next_job: 0,
            links: BTreeMap::new(),
            grafts: HashMap::new(),
            left_out: HashSet::new(),
            counted: Differences::default(),
            remarks: Remarks::default(),
            scripts: Vec::new(),
            missing: Vec::new(),
            returned: 0,
            replaced: 0,
        }
    }

    pub(super) fn settings(&self) -> &Settings {
        self.context.repository.settings()
    }

    pub(super) fn filter(&self) -> &Filter {
        &self.context.filter
    }

    /// Returns true if rules leave out an entry of the archive, or a directory that it is in.
    pub(super) fn ignores(&self, named: &[u8], is_directory: bool) -> bool {
        let names = named.split(|byte| *byte == b'/').filter(|name| !matches!(*name, b"" | b"."));
        let path = names.fold(Vec::new(), |path, name| path::join(&path, name));
        path::ancestry(&path)
            .any(|above| self.filter().ignores(above, is_directory || above.len() < path.len()))
    }

    /// Returns true if the archive added the entry at this path and it is no directory.
    pub(super) fn has_brought(&self, path: &[u8]) -> bool {
        self.brought.contains(path)
    }

    pub(super) fn tree(&self) -> NewTree<'_> {
        NewTree { published: &self.context.published, changes: &self.changes }
    }

    /// Creates the target directory of the archive and its parents; returns its path.
    pub(super) fn enter(&mut self, target: &[u8]) -> Result<Vec<u8>, PublishError> {
        let target = self.directory(target)?;
        self.make_directory(&target)?;
        self.target.clone_from(&target);
        Ok(target)
    }

    /// Returns the destination of an entry: its path below the target, with symlinks in its parents resolved.
    pub(super) fn place(&mut self, path: &[u8]) -> Result<Vec<u8>, PublishError> {
        let path = path::normalise(&path::join(&self.target, path))?;
        match path::split(&path) {
            Some((directory, name)) => Ok(path::join(&self.directory(directory)?, name)),
            None => Ok(path),
        }
    }

    /// Counts an entry of unknown type, which becomes a regular file.
    pub(super) fn note_unknown_type(&mut self) {
        self.unknown_types += 1;
    }

    /// Returns the path of a directory after following the symlinks on it.
    fn directory(&mut self, named: &[u8]) -> Result<Vec<u8>, PublishError> {
        if let Some((last, place)) = &self.last_directory
            && last == named
        {
            return Ok(place.clone());
        }
        let place = links::followed(self, named)?;
        self.last_directory = Some((named.to_vec(), place.clone()));
        Ok(place)
    }

    /// Deletes a path; a missing path is no error.
    pub(super) fn delete(&mut self, path: &[u8]) -> Result<(), PublishError> {
        let Some((directory, name)) = path::split(path) else {
            let reason = "the root of the repository can't be deleted";
            return Err(RepositoryError::Target { path: "/".to_owned(), reason }.into());
        };
        let directory = self.directory(directory)?;
        let path = path::join(&directory, name);
        if let Some(entry) = self.find(&path)? {
            self.counted.removed.add(&entry);
            if entry.is_directory() {
                self.count_below(&path)?;
            }
            self.changes.remove(&directory, name);
            self.last_directory = None;
            self.deleted.insert(path);
        } else if !self.was_deleted(&path) {
            self.missing.push(path);
        }
        Ok(())
    }

    fn was_deleted(&self, path: &[u8]) -> bool {
        path::ancestry(path).any(|above| self.deleted.contains(above))
    }

    fn count_below(&mut self, directory: &[u8]) -> Result<(), PublishError> {
        let mut waiting = vec![directory.to_vec()];
        while let Some(directory) = waiting.pop() {
            for entry in self.tree().list(&directory)? {
                self.counted.removed.add(&entry);
                if entry.is_directory() {
                    waiting.push(path::join(&directory, &entry.name));
                }
            }
        }
        Ok(())
    }

    /// Returns the current entry of a path, or `None` if a parent directory is missing.
    fn find(&self, path: &[u8]) -> Result<Option<Entry>, PublishError> {
        for ancestor in path::ancestry(path) {
            let entry = self.tree().entry(ancestor)?;
            match entry {
                Some(entry) if ancestor.len() == path.len() => return Ok(Some(entry)),
                Some(entry) if entry.is_directory() => {}
                _ => return Ok(None),
            }
        }
        Ok(None)
    }

    /// Makes sure that a path and its parents are directories.
    pub(super) fn make_directory(&mut self, path: &[u8]) -> Result<(), PublishError> {
        let mut missing = Vec::new();
        let mut at = path;
        while let Some((above, _)) = path::split(at) {
            if self.changes.get(at).is_some() || self.find(at)?.is_some_and(|entry| entry.is_directory()) {
                break;
            }
            missing.push(at.to_vec());
            at = above;
        }
        if missing.is_empty() {
            return Ok(());
        }
        let above = self.find(at)?;
        for directory in missing.into_iter().rev() {
            let mut entry = self.context.new_directory(&directory, above.as_ref());
            self.own(&mut entry);
            self.put(&directory, entry)?;
        }
        Ok(())
    }

    /// Makes a directory the root of a nested catalog.
    pub(super) fn mark_nested(&mut self, directory: &[u8]) -> Result<(), PublishError> {
        let marker = path::join(directory, MARKER);
        if self.find(&marker)?.is_none() {
            let Some(entry) = self.find(directory)? else { return Ok(()) };
            self.changes.put(directory, self.context.comparison().marker(MARKER, 0o100_644, &entry));
            self.changes.touch(directory);
        }
        Ok(())
    }

    fn own(&self, entry: &mut Entry) {
        entry.uid = self.owner.uid.unwrap_or(entry.uid);
        entry.gid = self.owner.gid.unwrap_or(entry.gid);
    }

    /// Adds or replaces an entry whose parent directory exists.
    fn put(&mut self, path: &[u8], entry: Entry) -> Result<(), PublishError> {
        let Some((directory, name)) = path::split(path) else { return Ok(()) };
        let before = self.tree().entry(path)?;
        if entry.is_directory() {
            self.brought.remove(path);
        } else {
            self.brought.insert(path.to_vec());
            // Only an entry on the way to the directory, or on that of a link, changes where the directory is.
            let may_lead_through =
                |(named, place): &(Vec<u8>, Vec<u8>)| named != place || path::is_within(place, path);
            self.last_directory = self.last_directory.take().filter(|last| !may_lead_through(last));
        }
        let was_directory = before.as_ref().is_some_and(Entry::is_directory);
        if was_directory && !entry.is_directory() {
            self.count_below(path)?;
            self.changes.remove(directory, name);
            self.deleted.insert(path.to_vec());
            self.replaced += 1;
        }
        let is_new_directory = entry.is_directory() && !was_directory;
        self.changes.put(directory, entry);
        if is_new_directory && self.was_deleted(path) {
            self.changes.touch(path).fresh = true;
        }
        Ok(())
    }

    fn add(&mut self, member: Member) -> Result<(), PublishError> {
        let Member { path, mut entry, xattrs_left_out } = member;
        self.remarks.add_xattrs(&path, xattrs_left_out);
        self.own(&mut entry);
        self.jobs.remove(&path);
        let Some((directory, name)) = path::split(&path) else {
            // The archive's own top directory describes the target, unless that is the root of the repository.
            return Ok(());
        };
        if name == MARKER && (directory.is_empty() || !entry.is_file()) {
            let reason = "a marker of a nested catalog must be a regular file, and not in the root";
            return Err(RepositoryError::Target { path: path::shown(&path), reason }.into());
        }
        let directory = directory.to_vec();
        self.make_directory(&directory)?;
        if entry.is_directory() && !self.brought.contains(&path) {
            links::check_replaced(self, &path)?;
        }
        self.put(&path, entry)
    }

    /// Adds a file of this size; the job that stores its content is returned.
    pub(super) fn file(&mut self, mut member: Member, size: u64) -> Result<usize, PublishError> {
        let path = member.path.clone();
        member.entry.size = size;
        let limits = &self.settings().limits;
        if limits.enforced {
            limits::file(limits, &self.context.published, &path, &member.entry)?.enforced(limits)?;
        }
        self.add(member)?;
        let job = self.next_job;
        self.next_job += 1;
        self.jobs.insert(path, job);
        Ok(job)
    }

    /// Notes the beginning of a file of a `bin` folder.
    pub(super) fn note_script(&mut self, path: Vec<u8>, head: &[u8]) {
        if let Some((folder, name)) = interpreter(head) {
            self.scripts.push((path, folder.to_vec(), name.to_vec()));
        }
    }

    /// Adds remarks about scripts that start an interpreter which is beside them, but not by its path.
    fn remark_scripts(&mut self) -> Result<(), PublishError> {
        for (path, folder, name) in std::mem::take(&mut self.scripts) {
            let directory = path::split(&path).map(|(directory, _)| directory).unwrap_or_default();
            // The paths of an image of a system are right where it is run.
            let is_right = directory.ends_with(&folder) || folder == self.context.home(directory);
            if !is_right && self.find(&path::join(directory, &name))?.is_some() {
                self.remarks.add_with(RemarkKind::BuildFolder, &path, &folder);
            }
        }
        Ok(())
    }

    /// Notes the marker of a graft; `text` is none if it is no regular file, or too large.
    pub(super) fn graft(&mut self, marker: &[u8], text: Option<&[u8]>) -> Result<(), PublishError> {
        let refused = |reason: String| refused_graft(marker, reason);
        let text = text.ok_or_else(|| refused("it is not a regular file of at most 64 MiB".to_owned()))?;
        let graft = Graft::parse(text).map_err(refused)?;
        if let Some((directory, name)) = path::split(marker) {
            let name = grafted_by(name).unwrap_or_default();
            self.grafts.insert(path::join(directory, name), graft);
        }
        Ok(())
    }

    /// Returns true if there was a marker for a file.
    pub(super) fn is_grafted(&self, path: &[u8]) -> bool {
        self.grafts.contains_key(path)
    }

    /// Sets the content of grafted files, and of their other names.
    fn set_grafts(&mut self) -> Result<(), PublishError> {
        for (path, graft) in std::mem::take(&mut self.grafts) {
            let Some((directory, name)) = path::split(&path) else { continue };
            let key = (directory.to_vec(), name.to_vec());
            let others = self.links.get(&key).cloned().unwrap_or_default();
            for name in [key.1].iter().chain(&others) {
                let entry = self.changes.entry_mut(directory, name).filter(|entry| entry.is_file());
                let entry = entry.ok_or_else(|| {
                    let marker = path::join(directory, &[graft::PREFIX, name].concat());
                    refused_graft(
                        &marker,
                        "the archive has no regular file beside it that it grafts".to_owned(),
                    )
                })?;
                graft.set_in(entry, self.context.repository.settings());
            }
        }
        Ok(())
    }

    /// Adds a directory, symlink or special file, or a file whose content a marker says.
    pub(super) fn other(&mut self, mut member: Member) -> Result<(), PublishError> {
        if source_entry::is_left_out(member.entry.mode, self.settings()) {
            self.remarks.add(RemarkKind::SpecialFile, &member.path);
            self.left_out.insert(member.path);
            return Ok(());
        }
        let directory = path::split(&member.path).map(|(directory, _)| directory).unwrap_or_default();
        if leads_out(&member.entry.symlink, directory, b"") {
            self.remarks.add_with(RemarkKind::LeadsOut, &member.path, &member.entry.symlink);
        }
        if member.entry.is_directory() {
            member.entry.size = 4096;
            member.entry.link_count = 2;
        }
        self.add(member)
    }

    /// Adds another name for a file.
    pub(super) fn link(&mut self, path: Vec<u8>, target: &[u8]) -> Result<(), PublishError> {
        if self.left_out.contains(target) {
            self.left_out.insert(path);
            return Ok(());
        }
        let missing = || RepositoryError::Target {
            path: path::shown(target),
            reason: "the archive has a hardlink to it, but it is neither in the archive before nor published",
        };
        let found = self.find(target)?.filter(|entry| !entry.is_directory()).ok_or_else(missing)?;
        let name = path::split(&path).map(|(_, name)| name.to_vec()).unwrap_or_default();
        let entry = Entry { name, hardlink_group: 0, link_count: 1, ..found };
        let job = self.jobs.get(target).copied();
        self.add(Member { path: path.clone(), entry, xattrs_left_out: Vec::new() })?;
        self.jobs.extend(job.map(|job| (path.clone(), job)));
        // Catalogs know hardlinks within a directory only; elsewhere it becomes a file of its own.
        if let (Some((directory, name)), Some((target_directory, target_name))) =
            (path::split(&path), path::split(target))
            && directory == target_directory
        {
            let key = (directory.to_vec(), target_name.to_vec());
            self.links.entry(key).or_default().push(name.to_vec());
        } else {
            self.remarks.add(RemarkKind::HardLink, &path);
        }
        Ok(())
    }

    /// Fills in the stored contents, and drops changes that equal the published entries.
    pub(super) fn finish(mut self, contents: &[Content]) -> Result<Collected, PublishError> {
        for (path, job) in std::mem::take(&mut self.jobs) {
            let Some((directory, name)) = path::split(&path) else { continue };
            // A later member may have taken the place of a directory on the way.
            let Some(entry) = self.changes.entry_mut(directory, name).filter(|entry| entry.is_file()) else {
                continue;
            };
            let content = contents
                .get(job)
                .expect("every job has its content because the pipeline ended without an error");
            content.set_in(entry);
        }
        self.set_grafts()?;
        self.remark_scripts()?;
        self.join_links()?;
        let mut differences = self.counted;
        for directory in self.changes.paths() {
            self.mend_groups(&directory)?;
            for entry in with_flags_mended(self.tree(), &directory)? {
                self.changes.put(&directory, entry);
            }
            self.compare(&directory, &mut differences)?;
        }
        let Self { changes, remarks, missing, unknown_types, .. } = self;
        let returned = self.returned.saturating_sub(self.replaced);
        Ok(Collected { changes, differences, remarks, missing, returned, unknown_types })
    }

    /// Assigns all names of one file to the same hard link group.
    fn join_links(&mut self) -> Result<(), PublishError> {
        for ((directory, first), names) in std::mem::take(&mut self.links) {
            let listing = self.tree().list(&directory)?;
            let highest = listing.iter().map(|entry| entry.hardlink_group).max().unwrap_or(0);
            let Some(target) = listing.iter().find(|entry| entry.name == first) else { continue };
            let group = if target.hardlink_group != 0 { target.hardlink_group } else { highest + 1 };
            for name in names.iter().chain([&first]) {
                let member = listing.iter().find(|entry| entry.name == *name);
                // Not if the name was given to something else later on.
                if let Some(member) =
                    member.filter(|member| member.hash == target.hash && member.chunks == target.chunks)
                {
                    self.changes.put(&directory, Entry { hardlink_group: group, ..member.clone() });
                }
            }
        }
        Ok(())
    }

    /// Updates the link counts of a directory after removals.
    fn mend_groups(&mut self, directory: &[u8]) -> Result<(), PublishError> {
        let listing = self.tree().list(directory)?;
        let mut counts: HashMap<u32, u32> = HashMap::new();
        for entry in listing.iter().filter(|entry| entry.hardlink_group != 0) {
            *counts.entry(entry.hardlink_group).or_default() += 1;
        }
        for entry in listing.into_iter().filter(|entry| entry.hardlink_group != 0) {
            let count = counts.get(&entry.hardlink_group).copied().unwrap_or(1);
            let group = if count > 1 { entry.hardlink_group } else { 0 };
            if (entry.hardlink_group, entry.link_count) != (group, count) {
                self.changes.put(directory, Entry { hardlink_group: group, link_count: count, ..entry });
            }
        }
        Ok(())
    }

    /// Counts the differences of a directory, and drops changes that are none.
    fn compare(&mut self, directory: &[u8], differences: &mut Differences) -> Result<(), PublishError> {
        let Some(change) = self.changes.get(directory) else { return Ok(()) };
        let old = self.context.published.list(directory)?;
        let mut old: HashMap<Vec<u8>, Entry> =
            old.into_iter().map(|entry| (entry.name.clone(), entry)).collect();
        let all_deleted = self.was_deleted(directory);
        let returns = |name: &Vec<u8>| {
            old.contains_key(name) && (all_deleted || self.deleted.contains(&path::join(directory, name)))
        };
        let entries = change.entries.iter();
        let returned = entries.filter(|(name, entry)| entry.is_some() && returns(name)).count();
        if change.fresh {
            old.clear();
        }
        let mut same = Vec::new();
        for (name, entry) in &change.entries {
            let Some(entry) = entry else { continue };
            match old.get(name) {
                None => differences.added.add(entry),
                Some(before) if entry::is_same(before, entry) => {
                    differences.unchanged.add(entry);
                    same.push(name.clone());
                }
                Some(_) => differences.changed.add(entry),
            }
        }
        for name in same {
            self.changes.revert(directory, &name);
        }
        self.returned += returned as u64;
        Ok(())
    }
}
