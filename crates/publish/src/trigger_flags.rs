//! Flags of files that have a bundle beside them.

use std::collections::HashSet;

use esker_format::bundle;
use esker_format::catalog::Flags;
use esker_format::write::catalog::Entry;
use esker_repository::RepositoryError;

use crate::changes::NewTree;

/// Returns the entries of a directory whose trigger flag has to change.
///
/// Exactly the entries with a specification beside them have the flag. All hard links of a file have the same flag.
pub(crate) fn with_flags_mended(tree: NewTree<'_>, directory: &[u8]) -> Result<Vec<Entry>, RepositoryError> {
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
