//! Groups of hard links in a directory that two publishers changed.
//!
//! A listing numbers its groups from one, so a new group renumbers others. Here a group has the number of its names, in all
//! listings alike: an entry then differs only if its file or its group does.

use std::collections::BTreeMap;

use esker_format::write::catalog::Entry;

/// Entries of a directory by name.
pub(super) type Listing = BTreeMap<Vec<u8>, Entry>;

/// Gives groups of the same names the same number in several listings of a directory; returns false if there is no group.
pub(super) fn number_by_names(listings: [&mut Listing; 3]) -> bool {
    let mut known: BTreeMap<Vec<Vec<u8>>, u32> = BTreeMap::new();
    for listing in listings {
        let mut groups: BTreeMap<u32, Vec<Vec<u8>>> = BTreeMap::new();
        for (name, entry) in listing.iter().filter(|(_, entry)| entry.hardlink_group != 0) {
            groups.entry(entry.hardlink_group).or_default().push(name.clone());
        }
        for names in groups.into_values() {
            let next = u32::try_from(known.len()).unwrap_or(u32::MAX - 1) + 1;
            let number = *known.entry(names.clone()).or_insert(next);
            for name in names {
                listing.entry(name).and_modify(|entry| entry.hardlink_group = number);
            }
        }
    }
    !known.is_empty()
}
