//! Writes the bundles of a publisher's profiles beside their triggers in every revision.
//!
//! The specifications are in no source folder. Listings omit them (the flag HIDDEN distinguishes them from published
//! files), a comparison with a source ignores them, and this module updates them for the tree of the new revision.

use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};
use std::ops::Range;

use esker_format::bundle;
use esker_format::catalog::Flags;
use esker_format::hash::ContentHash;
use esker_format::object::{ObjectKind, ObjectName};
use esker_format::write::bundle::BundleDraft;
use esker_format::write::catalog::Entry;
use esker_store::Sink as _;
use serde::Serialize;

use crate::changes::{Changes, NewTree};
use crate::clusters::clusters;
use crate::encode::Encoder;
use crate::error::AdminError;
use crate::path;
use crate::profiles::NamedProfile;
use crate::revision::Context;

/// The bundles of a revision that come from profiles.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct BundleCounts {
    /// How many there are.
    pub bundles: u64,
    /// How many files they list.
    pub files: u64,
    /// How many files of profiles are not in the revision.
    pub files_missing: u64,
}

/// Result of adding the bundles to a revision.
#[derive(Debug, Default)]
pub(crate) struct Woven {
    pub(crate) counts: BundleCounts,
    pub(crate) warnings: Vec<String>,
    /// The triggers that have a bundle of ours now.
    pub(crate) triggers: BTreeSet<String>,
    /// The triggers that may have had one before, too.
    pub(crate) all_triggers: BTreeSet<String>,
}

/// Most bundles of one repository, whatever its profiles say.
const BUNDLES_MAX: usize = 4096;

/// A file and the range of it that was read.
type Read<'p> = (&'p str, Option<Range<u64>>);

/// Tells whether an entry is a specification that came from a profile.
pub(crate) fn is_ours(entry: &Entry) -> bool {
    entry.is_file() && entry.flags.has(Flags::HIDDEN) && bundle::trigger_of(&entry.name).is_some()
}

impl Context<'_> {
    /// Returns all profiles: the stored ones and those added now.
    pub(crate) fn all_profiles(
        &self,
        added: &[NamedProfile],
        warnings: &mut Vec<String>,
    ) -> Result<Vec<NamedProfile>, AdminError> {
        let shelf = self.repository.profiles();
        let mut all: BTreeMap<String, NamedProfile> = BTreeMap::new();
        for name in shelf.names()? {
            match shelf.get(&name) {
                Ok(named) => _ = all.insert(name, named),
                // A profile only makes starts faster, so a bad one does not stop the publish.
                Err(error @ AdminError::Profile { .. }) => {
                    warnings.push(format!("profile `{name}` was left out: {error}"));
                }
                Err(error) => return Err(error),
            }
        }
        for named in added {
            shelf.check(named)?;
            all.insert(named.name.clone(), named.clone());
        }
        Ok(all.into_values().collect())
    }

    /// Brings the bundles of the new tree into line with the profiles. Stores them if `store` says so.
    pub(crate) fn weave(
        &self,
        changes: &mut Changes,
        added: &[NamedProfile],
        store: bool,
    ) -> Result<Woven, AdminError> {
        let mut woven = Woven::default();
        let profiles = self.all_profiles(added, &mut woven.warnings)?;
        let before = self.repository.profiles().triggers();
        if profiles.is_empty() && before.is_empty() {
            return Ok(woven);
        }
        let tree = NewTree { published: &self.published, changes };
        let mut loom =
            Loom { context: self, tree, directories: HashMap::new(), sizes: HashMap::new(), store };
        let mut drafts = BTreeMap::new();
        for (trigger, reads) in loom.wanted(&profiles, &mut woven)? {
            let draft = loom.draft(&reads, &mut woven.counts.files_missing)?;
            if !draft.is_empty() {
                woven.counts.bundles += 1;
                woven.counts.files += draft.len() as u64;
                woven.triggers.insert(trigger.to_owned());
                drafts.insert(trigger.to_owned(), draft);
            }
        }
        let mut encoder =
            Encoder::new(self.repository.settings.compression, self.repository.settings.deflate)?;
        let mut edits = Vec::new();
        for trigger in before.iter().filter(|trigger| !drafts.contains_key(*trigger)) {
            loom.take_back(trigger, &mut edits)?;
        }
        for (trigger, draft) in &drafts {
            loom.write(trigger, &draft.finish(), &mut encoder, &mut edits)?;
        }
        // A trigger that was replaced is without its flag, even if its bundle stays.
        let places = woven.triggers.iter().filter_map(|trigger| path::split(trigger.as_bytes()));
        let mut touched: BTreeSet<Vec<u8>> = places.map(|(directory, _)| directory.to_vec()).collect();
        for edit in edits {
            match edit {
                Edit::Put(directory, entry) => changes.put(&directory, entry),
                Edit::Remove(directory, name) => {
                    changes.remove(&directory, &name);
                    touched.insert(directory);
                }
            }
        }
        for directory in touched {
            for entry in with_flags_mended(NewTree { published: &self.published, changes }, &directory)? {
                changes.put(&directory, entry);
            }
        }
        woven.all_triggers = before.union(&woven.triggers).cloned().collect();
        Ok(woven)
    }
}

/// A change of the new tree.
enum Edit {
    Put(Vec<u8>, Entry),
    Remove(Vec<u8>, Vec<u8>),
}

struct Loom<'t> {
    context: &'t Context<'t>,
    tree: NewTree<'t>,
    /// Which paths are directories.
    directories: HashMap<Vec<u8>, bool>,
    /// Sizes of regular files by path; `None` for paths that are no regular file.
    sizes: HashMap<String, Option<u64>>,
    store: bool,
}

impl<'t> Loom<'t> {
    /// Returns the reads that the profiles list for each existing trigger.
    fn wanted<'p>(
        &mut self,
        profiles: &'p [NamedProfile],
        woven: &mut Woven,
    ) -> Result<BTreeMap<&'p str, Vec<Read<'p>>>, AdminError> {
        let mut wanted: BTreeMap<&str, Vec<Read<'p>>> = BTreeMap::new();
        let mut beyond: BTreeSet<&str> = BTreeSet::new();
        for NamedProfile { name, profile } in profiles {
            let mut missing = Vec::new();
            let (clusters, left_out) = clusters(profile);
            if left_out > 0 {
                woven.warnings.push(format!(
                    "profile `{name}` would have {left_out} more triggers than a profile has at most; those that \
                     announce least were left out, unless they were named"
                ));
            }
            for cluster in clusters {
                let trigger = profile.files[cluster.trigger].path.as_str();
                if self.size(trigger)?.is_none() {
                    missing.push(trigger);
                } else if wanted.len() < BUNDLES_MAX || wanted.contains_key(trigger) {
                    let reads = cluster.reads.iter().map(|read| &profile.reads[*read]);
                    let of = |read: &esker_format::profile::ProfileRead| {
                        (profile.files[read.file].path.as_str(), read.range.clone())
                    };
                    wanted.entry(trigger).or_default().extend(reads.map(of));
                } else {
                    beyond.insert(trigger);
                }
            }
            if let [first, ..] = missing[..] {
                let count = missing.len();
                woven.warnings.push(format!(
                    "profile `{name}` has {count} triggers that are not in the repository, like `{first}`; they \
                     were left out"
                ));
            }
        }
        if !beyond.is_empty() {
            woven.warnings.push(format!(
                "the profiles have {} more triggers than the {BUNDLES_MAX} that a repository has at most; they were \
                 left out",
                beyond.len()
            ));
        }
        Ok(wanted)
    }

    /// Builds a bundle from the reads whose files exist, and counts those that are missing.
    fn draft(&mut self, reads: &[Read<'_>], missing: &mut u64) -> Result<BundleDraft, AdminError> {
        let mut draft = BundleDraft::new();
        let mut seen: HashSet<&Read<'_>> = HashSet::new();
        let mut gone: HashSet<&str> = HashSet::new();
        for read in reads.iter().filter(|read| seen.insert(read)) {
            let (path, range) = read;
            let Some(size) = self.size(path)? else {
                *missing += u64::from(gone.insert(path));
                continue;
            };
            // The file may be a shorter one by now.
            let range = range.as_ref().map(|range| range.start..range.end.min(size));
            draft.push(path.as_bytes(), range);
        }
        Ok(draft)
    }

    fn size(&mut self, path: &str) -> Result<Option<u64>, AdminError> {
        if let Some(known) = self.sizes.get(path) {
            return Ok(*known);
        }
        let parent = path::split(path.as_bytes()).map(|(parent, _)| parent.to_vec()).unwrap_or_default();
        let entry = if self.is_directory(&parent)? { self.tree.entry(path.as_bytes())? } else { None };
        let size = entry.filter(Entry::is_file).map(|entry| entry.size);
        self.sizes.insert(path.to_owned(), size);
        Ok(size)
    }

    /// Tells whether a path and all above it are directories.
    fn is_directory(&mut self, path: &[u8]) -> Result<bool, AdminError> {
        if let Some(known) = self.directories.get(path) {
            return Ok(*known);
        }
        let mut is = true;
        for ancestor in path::ancestry(path).skip(1) {
            if is {
                is = match self.directories.get(ancestor) {
                    Some(known) => *known,
                    None => self.tree.entry(ancestor)?.is_some_and(|entry| entry.is_directory()),
                };
            }
            self.directories.insert(ancestor.to_vec(), is);
        }
        Ok(is)
    }

    /// Removes the bundle of a trigger, if it is ours.
    fn take_back(&mut self, trigger: &str, edits: &mut Vec<Edit>) -> Result<(), AdminError> {
        let Some((directory, name)) = path::split(trigger.as_bytes()) else { return Ok(()) };
        if !self.is_directory(directory)? {
            return Ok(());
        }
        let listing = self.tree.list(directory)?;
        let Some(spec) = listing.iter().find(|entry| is_spec_of(entry, name)) else { return Ok(()) };
        if is_ours(spec) {
            edits.push(Edit::Remove(directory.to_vec(), spec.name.clone()));
        }
        Ok(())
    }

    /// Writes the bundle of a trigger, unless the source has a specification there.
    fn write(
        &mut self,
        trigger: &str,
        text: &[u8],
        encoder: &mut Encoder,
        edits: &mut Vec<Edit>,
    ) -> Result<(), AdminError> {
        let Some((directory, name)) = path::split(trigger.as_bytes()) else { return Ok(()) };
        let listing = self.tree.list(directory)?;
        let before = listing.iter().find(|entry| is_spec_of(entry, name));
        let of_somebody = before.is_some_and(|entry| !is_ours(entry));
        let (Some(beside), Some(spec_name), false) =
            (listing.iter().find(|entry| entry.name == name), bundle::name_for(name), of_somebody)
        else {
            return Ok(());
        };
        let repository = self.context.repository;
        let algorithm = repository.head.hash_algorithm();
        let mut room = Vec::new();
        let stored = encoder.encode(text, &mut room)?;
        let object = ObjectName::new(ContentHash::of(algorithm, stored), ObjectKind::File);
        let storage = Flags::storage(algorithm, repository.settings.compression);
        let spec = Entry {
            name: spec_name,
            mode: 0o100_644,
            size: text.len() as u64,
            flags: Flags(storage | Flags::HIDDEN),
            hash: Some(object.hash),
            chunks: Vec::new(),
            xattrs: None,
            hardlink_group: 0,
            link_count: 1,
            ..beside.clone()
        };
        if !before.is_some_and(|before| crate::entry::is_same(before, &spec)) {
            if self.store {
                repository.sink.put(&object, stored)?;
            }
            edits.push(Edit::Put(directory.to_vec(), spec));
        }
        Ok(())
    }
}

fn is_spec_of(entry: &Entry, trigger: &[u8]) -> bool {
    bundle::trigger_of(&entry.name) == Some(trigger)
}

/// Returns the entries of a directory whose trigger flag has to change.
///
/// Exactly the entries with a specification beside them have the flag. All hard links of a file have the same flag.
pub(crate) fn with_flags_mended(tree: NewTree<'_>, directory: &[u8]) -> Result<Vec<Entry>, AdminError> {
    let listing = tree.list(directory)?;
    let files = || listing.iter().filter(|entry| entry.is_file());
    let announced: HashSet<&[u8]> = files().filter_map(|entry| bundle::trigger_of(&entry.name)).collect();
    let is_named = |entry: &&Entry| announced.contains(entry.name.as_slice());
    let groups: HashSet<u32> = files().filter(is_named).map(|entry| entry.hardlink_group).collect();
    let is_trigger = |entry: &Entry| {
        is_named(&entry) || entry.hardlink_group != 0 && groups.contains(&entry.hardlink_group)
    };
    let wrong = files().filter(|entry| entry.flags.has(Flags::BUNDLE_TRIGGER) != is_trigger(entry));
    let mended =
        |entry: &Entry| Entry { flags: Flags(entry.flags.0 ^ Flags::BUNDLE_TRIGGER), ..entry.clone() };
    Ok(wrong.map(mended).collect())
}
