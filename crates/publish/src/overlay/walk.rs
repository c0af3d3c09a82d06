//! Walks over an upper folder and collects its changes to the published revision.

use std::collections::{BTreeMap, HashMap};
use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicBool, Ordering};

use esker_format::bundle;
use esker_format::catalog::{Flags, XattrList};
use esker_format::copied_xattr::OverlayOwner;
use esker_format::posix_acl;
use esker_format::write::catalog::Entry;
use esker_repository::{
    RepositoryError, Settings,
    entry::{self, AUTO_MARKER, MARKER},
    path,
    published::Published,
};
use esker_store::Sink;

use crate::error::PublishError;
use crate::filter::Filter;
use crate::graft::Grafts;
use crate::plan::{Plan, ReadDirectory, ReadFile, Waiting};
use crate::remarks::{RemarkKind, Remarks};
use crate::source::{Facts, Source, SourceEntry, pack_xattrs, read_xattr_pairs};
use crate::source_entry;

use super::access::Access;
use super::carried;
use super::marks::{self, Marks};
use super::same;

/// A walk over an upper folder.
pub(super) struct Walk<'r> {
    pub(super) source: &'r Source,
    pub(super) published: &'r Published,
    pub(super) sink: &'r dyn Sink,
    pub(super) settings: &'r Settings,
    pub(super) filter: &'r Filter,
    /// Owner that the lower layer showed for every entry, if not the published one.
    pub(super) claimed: Option<(u32, u32)>,
    /// True if the upper folder can hold attributes of users.
    pub(super) keeps_xattrs: bool,
    /// Modes that entries have while the publisher may read them.
    pub(super) access: &'r Access,
    pub(super) stop: &'r AtomicBool,
}

/// Findings of a walk.
#[derive(Default)]
pub(super) struct Walked {
    pub(super) plan: Plan,
    /// The directories that the upper folder has.
    pub(super) directories: Vec<Vec<u8>>,
}

/// A directory of the upper folder.
struct Step {
    path: Vec<u8>,
    /// True if there is a published directory of this path.
    existed: bool,
    /// True if nothing of the published directory shows.
    hides: bool,
}

/// An upper entry that is no whiteout.
struct Found {
    entry: SourceEntry,
    xattrs: Option<Vec<u8>>,
    /// Path at which it was published, if the overlay did not copy all of its attributes.
    published: Option<Vec<u8>>,
    opaque: bool,
}

/// Content of a file that has several names.
#[derive(Clone)]
enum Content {
    /// The content of this published entry.
    Published(Box<Entry>),
    /// The content that this job will store.
    Job(usize),
}

impl Walk<'_> {
    /// Walks from the root. Fails on what overlays of ours don't leave, and on names that are reserved.
    pub(super) fn run(&self) -> Result<Walked, PublishError> {
        let mut walked = Walked::default();
        self.root(&mut walked)?;
        let mut waiting = vec![Step { path: Vec::new(), existed: true, hides: false }];
        while let Some(step) = waiting.pop() {
            if self.stop.load(Ordering::Relaxed) {
                return Err(RepositoryError::Interrupted.into());
            }
            let below = self.directory(&step, &mut walked)?;
            waiting.extend(below);
            walked.directories.push(step.path);
        }
        Ok(walked)
    }

    fn root(&self, walked: &mut Walked) -> Result<(), PublishError> {
        let folder = self.source.open_directory(b"")?;
        let MarkedEntry { xattrs, .. } = self.marks(&folder, b"", b".", &mut walked.plan.remarks)?;
        let facts = self.source.root_facts()?;
        let root = SourceEntry { name: Vec::new(), facts, target: Vec::new(), dated: false };
        let before = self.published.entry(b"")?;
        let mut new = self.entry(&root, b"", xattrs, before.as_ref());
        if let Some(before) = &before {
            carried::add(&mut new, before, self.overlay(), true);
            entry::carry_unknown(before, &mut new);
        }
        if !before.is_some_and(|before| entry::is_same(&before, &new)) {
            walked.plan.changes.root = Some(new);
            walked.plan.changes.touch(b"");
        }
        Ok(())
    }

    /// Collects the changes of one directory; returns the directories in it.
    fn directory(&self, step: &Step, walked: &mut Walked) -> Result<Vec<Step>, PublishError> {
        let directory = &step.path;
        let folder = self.source.open_directory(directory)?;
        let mut old: BTreeMap<Vec<u8>, Entry> = BTreeMap::new();
        if step.existed {
            let listed = self.published.list(directory)?;
            old.extend(listed.into_iter().map(|entry| (entry.name.clone(), entry)));
        }
        if directory.is_empty() {
            old.remove(&path::RESERVED[1..]);
        }
        let mut found = Vec::new();
        let mut listed = self.source.list(&folder, directory)?;
        let grafts = Grafts::take(self.source, &folder, directory, &mut listed)?;
        for entry in listed {
            let at = path::join(directory, &entry.name);
            if self.filter.ignores(&at, entry.facts.is_directory()) {
                continue;
            }
            let MarkedEntry { marks, xattrs, published } =
                self.marks(&folder, &at, &entry.name, &mut walked.plan.remarks)?;
            let is_whiteout = is_whiteout(&entry, marks);
            let is_left_out = !is_whiteout && source_entry::is_left_out(entry.facts.mode, self.settings);
            if is_left_out {
                walked.plan.remarks.add(RemarkKind::SpecialFile, &at);
            }
            if is_whiteout || is_left_out {
                if old.get(&entry.name).is_some_and(|before| !self.is_left_to_balance(before)) {
                    walked.plan.changes.remove(directory, &entry.name);
                }
                continue;
            }
            refuse(directory, &entry, marks)?;
            found.push(Found { entry, xattrs, published, opaque: marks.opaque });
        }
        self.remove_hidden(step, &found, &old, walked);
        self.files(step, &folder, (&found, &grafts), &old, walked)?;
        let directories = found.iter().filter(|found| found.entry.facts.is_directory());
        Ok(directories.map(|found| step_into(step, found, &old)).collect())
    }

    /// Returns true if a published marker is hidden and the balance, which is on, decides about it.
    ///
    /// A whiteout doesn't remove such a marker: if the same folder is compared again after its publish, the whiteout stands
    /// for the publisher's own marker, and the balance may have made this one in its place.
    fn is_left_to_balance(&self, before: &Entry) -> bool {
        self.settings.balance.is_some() && before.flags.has(Flags::HIDDEN) && is_marker(&before.name)
    }

    /// Removes the published entries that don't show because their directory was removed and made again, and the bundle
    /// specifications made from profiles whose trigger is gone. Markers are left to the rules.
    fn remove_hidden(
        &self,
        step: &Step,
        found: &[Found],
        old: &BTreeMap<Vec<u8>, Entry>,
        walked: &mut Walked,
    ) {
        let is_found = |name: &[u8]| found.binary_search_by(|it| it.entry.name.as_slice().cmp(name)).is_ok();
        let changes = &mut walked.plan.changes;
        for (name, entry) in old {
            let gone = match bundle::trigger_of(name).filter(|_| entry::is_profile_bundle(entry)) {
                Some(trigger) if step.hides => !is_found(trigger),
                Some(trigger) => changes.get(&step.path).is_some_and(|it| it.entries.contains_key(trigger)),
                None if entry.flags.has(Flags::HIDDEN) && is_marker(name) => false,
                None => {
                    let at = path::join(&step.path, name);
                    step.hides && !is_found(name) && !self.filter.ignores(&at, entry.is_directory())
                }
            };
            if gone {
                changes.remove(&step.path, name);
            }
        }
    }

    /// Puts the entries of a directory, and plans to read the files whose content is new.
    fn files(
        &self,
        step: &Step,
        folder: &OwnedFd,
        (found, grafts): (&[Found], &Grafts),
        old: &BTreeMap<Vec<u8>, Entry>,
        walked: &mut Walked,
    ) -> Result<(), PublishError> {
        let directory = &step.path;
        let has_default_acl = self.has_hidden_default_acl(step)?;
        let groups = groups(found, old);
        let mut contents: HashMap<(u64, u64), Content> = HashMap::new();
        let mut reads: Vec<ReadFile> = Vec::new();
        for one in found {
            let source = &one.entry;
            let inode = (source.facts.device, source.facts.inode);
            let group = groups.get(&inode);
            let named = old.get(&source.name);
            // All names of a file have one owner, also those that are new.
            let before = if group.is_some() { published_name(source, found, old) } else { named };
            let at = path::join(directory, &source.name);
            let mut new = self.entry(source, &at, one.xattrs.clone(), before);
            let origin = self.origin(one, before)?;
            if let Some((number, names)) = group {
                (new.hardlink_group, new.link_count) = (*number, *names);
            }
            let is_grafted = grafts.set_in(&mut new, &source.facts, self.settings);
            if source.facts.is_file() && !is_grafted {
                let known = group.and_then(|_| contents.get(&inode)).cloned();
                let content = match known {
                    Some(content) => content,
                    None => {
                        let candidates = (found, old, origin.as_ref());
                        let same = self.published_content(folder, directory, source, candidates)?;
                        same.map_or_else(
                            || {
                                let job = walked.plan.jobs;
                                walked.plan.jobs += 1;
                                walked.plan.bytes_to_read += source.facts.size;
                                reads.push(ReadFile { name: source.name.clone(), facts: source.facts, job });
                                Content::Job(job)
                            },
                            |entry| Content::Published(Box::new(entry)),
                        )
                    }
                };
                contents.insert(inode, content.clone());
                match content {
                    Content::Published(entry) => {
                        entry::take_content(&mut new, &entry);
                        before.into_iter().for_each(|before| entry::carry_unknown(before, &mut new));
                    }
                    Content::Job(job) => walked.plan.waiting.push(Waiting {
                        directory: directory.clone(),
                        name: source.name.clone(),
                        job,
                        facts: source.facts,
                        settled: false,
                    }),
                }
            }
            let may_inherit = has_default_acl && named.is_none() && !source.facts.is_symlink();
            if may_inherit && origin.is_none() && !has_xattr(&new, posix_acl::ACCESS) {
                walked.plan.remarks.add(RemarkKind::DefaultAcl, &at);
            }
            if let Some(origin) = &origin {
                let is_same_content = entry::is_same_content(origin, &new);
                if carried::add(&mut new, origin, self.overlay(), is_same_content) {
                    walked.plan.remarks.add(RemarkKind::Capabilities, &at);
                }
                entry::carry_unknown(origin, &mut new);
            }
            // A copy of one name of a group is a file of its own in the upper folder. As long as it shows the same, it
            // stays in its group.
            if let Some(before) = named.filter(|before| before.hardlink_group != 0 && group.is_none()) {
                let kept = Entry {
                    hardlink_group: before.hardlink_group,
                    link_count: before.link_count,
                    flags: Flags(new.flags.0 | before.flags.0 & Flags::BUNDLE_TRIGGER),
                    ..new.clone()
                };
                if entry::is_same(before, &kept) {
                    continue;
                }
                // Its other names stay as they are published.
                if origin.is_some() {
                    walked.plan.remarks.add(RemarkKind::HardLink, &at);
                }
            }
            walked.plan.remarks.add_linked(&source.facts, u64::from(new.link_count), || at);
            walked.plan.changes.put(directory, new);
        }
        if !reads.is_empty() {
            walked.plan.reads.push(ReadDirectory { relative: directory.clone(), files: reads });
        }
        Ok(())
    }

    /// Returns the published entry whose content a file has: that of its name, of another name of the same file, or of the
    /// path that it comes from.
    fn published_content(
        &self,
        folder: &OwnedFd,
        directory: &[u8],
        source: &SourceEntry,
        (found, old, origin): (&[Found], &BTreeMap<Vec<u8>, Entry>, Option<&Entry>),
    ) -> Result<Option<Entry>, PublishError> {
        let facts = &source.facts;
        let is_same_file =
            |other: &SourceEntry| (other.facts.device, other.facts.inode) == (facts.device, facts.inode);
        let names = found.iter().map(|found| &found.entry).filter(|other| is_same_file(other));
        let candidates = names.filter_map(|other| old.get(&other.name)).chain(origin);
        for before in candidates.filter(|before| before.is_file() && before.size == facts.size) {
            let file = self.source.open_file(folder, directory, &source.name)?;
            if same::has_content(self.sink, &file, before)? {
                return Ok(Some(before.clone()));
            }
        }
        Ok(None)
    }

    /// Returns true if a directory has a default access control list that the overlay can't have given to new entries.
    fn has_hidden_default_acl(&self, step: &Step) -> Result<bool, PublishError> {
        if self.overlay().copies(posix_acl::DEFAULT) || !step.existed || step.hides {
            return Ok(false);
        }
        Ok(self.published.entry(&step.path)?.is_some_and(|entry| has_xattr(&entry, posix_acl::DEFAULT)))
    }

    fn overlay(&self) -> OverlayOwner {
        if self.claimed.is_some() { OverlayOwner::User } else { OverlayOwner::Root }
    }

    /// Returns the published entry that an upper one is a copy of, as far as its attributes need it.
    ///
    /// What can't tell where it comes from is taken for a copy of the entry of its name: symlinks and special files, and
    /// everything in an upper folder without attributes.
    fn origin(&self, one: &Found, before: Option<&Entry>) -> Result<Option<Entry>, PublishError> {
        let facts = &one.entry.facts;
        let origin = match &one.published {
            Some(path) if path.starts_with(b"/") => {
                self.published.entry(if path == b"/" { b"" } else { path })?
            }
            Some(_) => None,
            None if self.keeps_xattrs && (facts.is_file() || facts.is_directory()) => None,
            None => before.cloned(),
        };
        Ok(origin)
    }

    /// Returns the marks and the own extended attributes of an entry, and the path at which it was published.
    fn marks(
        &self,
        folder: &OwnedFd,
        at: &[u8],
        name: &[u8],
        remarks: &mut Remarks,
    ) -> Result<MarkedEntry, PublishError> {
        let pairs = read_xattr_pairs(folder, name)
            .map_err(self.source.failed("reading the extended attributes of", at))?;
        let (marks, mut own) = marks::split(pairs);
        let published = marks::take_published_path(&mut own);
        let xattrs = pack_xattrs(own, at, self.settings)?;
        remarks.add_xattrs(at, xattrs.left_out);
        Ok(MarkedEntry { marks, xattrs: xattrs.packed, published })
    }

    /// Returns the entry as the merged tree showed it, in terms of the published one of the same name.
    fn entry(
        &self,
        source: &SourceEntry,
        at: &[u8],
        xattrs: Option<Vec<u8>>,
        before: Option<&Entry>,
    ) -> Entry {
        let mut new = source_entry::of_source(source, xattrs, self.settings);
        if let Some(mode) = self.access.mode(at) {
            new.mode = mode;
        }
        let Some(before) = before.filter(|before| before.kind() == new.kind()) else {
            self.filter.own(&mut new);
            return new;
        };
        // The lower layer showed the publisher as the owner, whichever it was.
        if let Some((uid, gid)) = self.claimed {
            new.uid = if new.uid == uid { before.uid } else { new.uid };
            new.gid = if new.gid == gid { before.gid } else { new.gid };
        }
        // An owner that was published stays; the map is for those of this machine.
        if (new.uid, new.gid) != (before.uid, before.gid) {
            self.filter.own(&mut new);
        }
        let mtime = source.facts.mtime;
        if (mtime.seconds, mtime.nanoseconds) == (before.mtime, before.mtime_ns.unwrap_or(0)) {
            new.mtime_ns = before.mtime_ns;
        }
        if !self.settings.xattrs {
            new.xattrs.clone_from(&before.xattrs);
        }
        entry::carry_unknown(before, &mut new);
        new
    }
}

fn has_xattr(entry: &Entry, name: &[u8]) -> bool {
    let list = entry.xattrs.as_deref().map(XattrList::parse);
    list.is_some_and(|list| list.is_ok_and(|list| list.get(name).is_some()))
}

/// Returns the published entry that a file with several names comes from: one with its time and size before others.
fn published_name<'o>(
    source: &SourceEntry,
    found: &[Found],
    old: &'o BTreeMap<Vec<u8>, Entry>,
) -> Option<&'o Entry> {
    let facts = &source.facts;
    let is_name =
        |one: &&Found| (one.entry.facts.device, one.entry.facts.inode) == (facts.device, facts.inode);
    let names = || found.iter().filter(is_name).filter_map(|one| old.get(&one.entry.name));
    let mtime = (facts.mtime.seconds, facts.mtime.nanoseconds);
    let is_alike =
        |entry: &&Entry| (entry.mtime, entry.mtime_ns.unwrap_or(0)) == mtime && entry.size == facts.size;
    names().find(is_alike).or_else(|| names().next())
}

fn step_into(step: &Step, found: &Found, old: &BTreeMap<Vec<u8>, Entry>) -> Step {
    let name = &found.entry.name;
    let existed = old.get(name).is_some_and(Entry::is_directory);
    Step { path: path::join(&step.path, name), existed, hides: step.hides || found.opaque || !existed }
}

/// Extended attributes of an entry of the upper folder.
struct MarkedEntry {
    marks: Marks,
    /// Encoded attributes of its own.
    xattrs: Option<Vec<u8>>,
    /// Path at which it was published.
    published: Option<Vec<u8>>,
}

fn is_whiteout(entry: &SourceEntry, marks: Marks) -> bool {
    let facts = &entry.facts;
    let is_device = facts.mode & 0o170_000 == 0o020_000 && facts.special == 0;
    is_device || marks.whiteout && facts.is_file() && facts.size == 0
}

fn is_marker(name: &[u8]) -> bool {
    matches!(name, MARKER | AUTO_MARKER)
}

/// Refuses reserved names, and entries that only an overlay with other options makes.
fn refuse(directory: &[u8], entry: &SourceEntry, marks: Marks) -> Result<(), PublishError> {
    let reason = match entry.name.as_slice() {
        _ if marks.redirect => {
            "the overlay has it as a renamed directory of the lower layer, whose entries it lacks"
        }
        _ if marks.metacopy => "the overlay has its attributes only, and its content is in the lower layer",
        b".cvmfs" if directory.is_empty() => "`/.cvmfs` belongs to the repository itself",
        MARKER if directory.is_empty() => "the root of a repository always is the root of a catalog",
        MARKER if !entry.facts.is_file() => "a marker of a nested catalog must be a regular file",
        _ => return Ok(()),
    };
    Err(RepositoryError::Target { path: path::shown(&path::join(directory, &entry.name)), reason }.into())
}

/// Returns group number and number of names for each file with several names in a directory. The numbers follow those of
/// the published groups.
fn groups(found: &[Found], old: &BTreeMap<Vec<u8>, Entry>) -> HashMap<(u64, u64), (u32, u32)> {
    let inode = |facts: &Facts| (facts.device, facts.inode);
    let mut next = old.values().map(|entry| entry.hardlink_group).max().unwrap_or(0);
    let mut groups: HashMap<(u64, u64), (u32, u32)> = HashMap::new();
    let linked = found.iter().map(|found| &found.entry.facts);
    for facts in linked.filter(|facts| facts.links > 1 && !facts.is_directory()) {
        let (number, names) = groups.entry(inode(facts)).or_default();
        if *names == 0 {
            next = next.saturating_add(1);
            *number = next;
        }
        *names += 1;
    }
    groups.retain(|_, (_, names)| *names > 1);
    groups
}
