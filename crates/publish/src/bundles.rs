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
use esker_repository::{Encoder, entry::is_profile_bundle, path, published::Published};

use crate::changes::{Changes, NewTree};
use crate::clusters::clusters;
use crate::error::PublishError;
use crate::profiles::{NamedProfile, Profiles};
use crate::report::AddedBundles;
use crate::revision::Context;
use crate::trigger_flags::with_flags_mended;

/// Maximum number of bundles in one repository.
const BUNDLES_MAX: usize = 4096;

/// A file and the range of it that was read.
type Read<'p> = (&'p str, Option<Range<u64>>);

impl Context<'_> {
    /// Returns all profiles: the stored ones and those added now.
    pub(crate) fn all_profiles(
        &self,
        added: &[NamedProfile],
        warnings: &mut Vec<String>,
    ) -> Result<Vec<NamedProfile>, PublishError> {
        let profiles = Profiles::of(self.repository);
        let mut all: BTreeMap<String, NamedProfile> = BTreeMap::new();
        for name in profiles.names()? {
            match profiles.get(&name) {
                Ok(named) => _ = all.insert(name, named),
                // A profile only makes starts faster, so a bad one does not stop the publish.
                Err(error @ PublishError::Profile { .. }) => {
                    warnings.push(format!("profile `{name}` was left out: {error}"));
                }
                Err(error) => return Err(error),
            }
        }
        for named in added {
            profiles.check(named)?;
            all.insert(named.name.clone(), named.clone());
        }
        Ok(all.into_values().collect())
    }

    /// Updates the bundles of the new tree from the profiles. Stores them if `store` says so.
    pub(crate) fn add_bundles(
        &self,
        published: &Published,
        changes: &mut Changes,
        added: &[NamedProfile],
        store: bool,
    ) -> Result<AddedBundles, PublishError> {
        let mut added_bundles = AddedBundles::default();
        let profiles = self.all_profiles(added, &mut added_bundles.warnings)?;
        let before = Profiles::of(self.repository).triggers();
        if profiles.is_empty() && before.is_empty() {
            return Ok(added_bundles);
        }
        let tree = NewTree { published, changes };
        let mut writer =
            BundleWriter { context: self, tree, directories: HashMap::new(), sizes: HashMap::new(), store };
        let mut drafts = BTreeMap::new();
        for (trigger, reads) in writer.wanted(&profiles, &mut added_bundles)? {
            let draft = writer.draft(&reads, &mut added_bundles.counts.files_missing)?;
            if !draft.is_empty() {
                added_bundles.counts.bundles += 1;
                added_bundles.counts.files += draft.len() as u64;
                added_bundles.triggers.insert(trigger.to_owned());
                drafts.insert(trigger.to_owned(), draft);
            }
        }
        let mut encoder =
            Encoder::new(self.repository.settings().compression, self.repository.settings().deflate)?;
        let mut edits = Vec::new();
        for trigger in before.iter().filter(|trigger| !drafts.contains_key(*trigger)) {
            writer.remove(trigger, &mut edits)?;
        }
        for (trigger, draft) in &drafts {
            writer.write(trigger, &draft.finish(), &mut encoder, &mut edits)?;
        }
        // A trigger that was replaced is without its flag, even if its bundle stays.
        let places = added_bundles.triggers.iter().filter_map(|trigger| path::split(trigger.as_bytes()));
        let mut touched: BTreeSet<Vec<u8>> = places.map(|(directory, _)| directory.to_vec()).collect();
        for edit in edits {
            match edit {
                BundleEdit::Put(directory, entry) => changes.put(&directory, entry),
                BundleEdit::Remove(directory, name) => {
                    changes.remove(&directory, &name);
                    touched.insert(directory);
                }
            }
        }
        for directory in touched {
            for entry in with_flags_mended(NewTree { published, changes }, &directory)? {
                changes.put(&directory, entry);
            }
        }
        added_bundles.all_triggers = before.union(&added_bundles.triggers).cloned().collect();
        Ok(added_bundles)
    }
}

/// A change of the new tree.
enum BundleEdit {
    Put(Vec<u8>, Entry),
    Remove(Vec<u8>, Vec<u8>),
}

struct BundleWriter<'t> {
    context: &'t Context<'t>,
    tree: NewTree<'t>,
    /// True for each path that is a directory, by path.
    directories: HashMap<Vec<u8>, bool>,
    /// Sizes of regular files by path; `None` for paths that are no regular file.
    sizes: HashMap<String, Option<u64>>,
    store: bool,
}

impl<'t> BundleWriter<'t> {
    /// Returns the reads that the profiles list for each existing trigger.
    fn wanted<'p>(
        &mut self,
        profiles: &'p [NamedProfile],
        added_bundles: &mut AddedBundles,
    ) -> Result<BTreeMap<&'p str, Vec<Read<'p>>>, PublishError> {
        let mut wanted: BTreeMap<&str, Vec<Read<'p>>> = BTreeMap::new();
        let mut beyond: BTreeSet<&str> = BTreeSet::new();
        for NamedProfile { name, profile } in profiles {
            let mut missing = Vec::new();
            let (clusters, left_out) = clusters(profile);
            if left_out > 0 {
                added_bundles.warnings.push(format!(
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
                added_bundles.warnings.push(format!(
                    "profile `{name}` has {count} triggers that are not in the repository, like `{first}`; they \
                     were left out"
                ));
            }
        }
        if !beyond.is_empty() {
            added_bundles.warnings.push(format!(
                "the profiles have {} more triggers than the {BUNDLES_MAX} that a repository has at most; they were \
                 left out",
                beyond.len()
            ));
        }
        Ok(wanted)
    }

    /// Builds a bundle from the reads whose files exist, and counts those that are missing.
    fn draft(&mut self, reads: &[Read<'_>], missing: &mut u64) -> Result<BundleDraft, PublishError> {
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

    fn size(&mut self, path: &str) -> Result<Option<u64>, PublishError> {
        if let Some(known) = self.sizes.get(path) {
            return Ok(*known);
        }
        let parent = path::split(path.as_bytes()).map(|(parent, _)| parent.to_vec()).unwrap_or_default();
        let entry = if self.is_directory(&parent)? { self.tree.entry(path.as_bytes())? } else { None };
        let size = entry.filter(Entry::is_file).map(|entry| entry.size);
        self.sizes.insert(path.to_owned(), size);
        Ok(size)
    }

    /// Returns true if a path and all its parents are directories.
    fn is_directory(&mut self, path: &[u8]) -> Result<bool, PublishError> {
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
    fn remove(&mut self, trigger: &str, edits: &mut Vec<BundleEdit>) -> Result<(), PublishError> {
        let Some((directory, name)) = path::split(trigger.as_bytes()) else { return Ok(()) };
        if !self.is_directory(directory)? {
            return Ok(());
        }
        let listing = self.tree.list(directory)?;
        let Some(spec) = listing.iter().find(|entry| is_spec_of(entry, name)) else { return Ok(()) };
        if is_profile_bundle(spec) {
            edits.push(BundleEdit::Remove(directory.to_vec(), spec.name.clone()));
        }
        Ok(())
    }

    /// Writes the bundle of a trigger, unless the source folder has a specification for that trigger.
    fn write(
        &mut self,
        trigger: &str,
        text: &[u8],
        encoder: &mut Encoder,
        edits: &mut Vec<BundleEdit>,
    ) -> Result<(), PublishError> {
        let Some((directory, name)) = path::split(trigger.as_bytes()) else { return Ok(()) };
        let listing = self.tree.list(directory)?;
        let before = listing.iter().find(|entry| is_spec_of(entry, name));
        let is_published = before.is_some_and(|entry| !is_profile_bundle(entry));
        let (Some(beside), Some(spec_name), false) =
            (listing.iter().find(|entry| entry.name == name), bundle::name_for(name), is_published)
        else {
            return Ok(());
        };
        let repository = self.context.repository;
        let algorithm = repository.head().hash_algorithm();
        let mut room = Vec::new();
        let stored = encoder.encode(text, &mut room)?;
        let object = ObjectName::new(ContentHash::of(algorithm, stored), ObjectKind::File);
        let storage = Flags::storage(algorithm, repository.settings().compression);
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
        if !before.is_some_and(|before| esker_repository::entry::is_same(before, &spec)) {
            if self.store {
                repository.sink().put(&object, stored)?;
            }
            edits.push(BundleEdit::Put(directory.to_vec(), spec));
        }
        Ok(())
    }
}

fn is_spec_of(entry: &Entry, trigger: &[u8]) -> bool {
    bundle::trigger_of(&entry.name) == Some(trigger)
}
