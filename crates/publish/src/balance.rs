//! Splits catalogs that grew too large, and merges small ones that were split off before, by the rules of CernVM-FS.

use std::collections::BTreeSet;

use esker_repository::{
    Balance,
    entry::{AUTO_MARKER, MARKER},
    path,
    published::Published,
};

use crate::catalogs::{Outline, outline_all};
use crate::changes::{Changes, NewTree};
use crate::error::PublishError;
use crate::plan::Comparison;

/// Splitting and joining settles within a few rounds; a bound all the same.
const ROUNDS_MAX: usize = 8;

/// Decides on the catalogs of a new revision: changes markers until every catalog has a good size, then
/// returns the catalogs to write.
pub(crate) fn decide(
    published: &Published,
    changes: &mut Changes,
    comparison: &Comparison<'_>,
) -> Result<Vec<Outline>, PublishError> {
    let Some(balance) = comparison.settings.balance else {
        return outline_all(NewTree { published, changes });
    };
    let mut outlines = outline_all(NewTree { published, changes })?;
    for _ in 0..ROUNDS_MAX {
        let joined = join_small(changes, &outlines, balance);
        let mut split = BTreeSet::new();
        for outline in outlines.iter().filter(|outline| outline.entries() > balance.max) {
            split.extend(splits(outline, balance));
        }
        if !joined && split.is_empty() {
            break;
        }
        for directory in &split {
            let tree = NewTree { published, changes };
            let Some(entry) = tree.entry(directory)? else { continue };
            for name in [MARKER, AUTO_MARKER] {
                changes.put(directory, comparison.marker(name, 0o100_600, &entry));
            }
            // The entry in the parent's catalog gets another flag.
            if let Some((parent, _)) = path::split(directory) {
                changes.touch(parent);
            }
        }
        outlines = outline_all(NewTree { published, changes })?;
    }
    Ok(outlines)
}

/// Removes the markers of catalogs that were split off and have become small.
fn join_small(changes: &mut Changes, outlines: &[Outline], balance: Balance) -> bool {
    let mut joined = false;
    for outline in outlines {
        if outline.automatic
            && !outline.must_stay
            && outline.entries() < balance.min
            && !outline.mountpoint.is_empty()
        {
            changes.touch(&outline.mountpoint).entries.insert(MARKER.to_vec(), None);
            changes.touch(&outline.mountpoint).entries.insert(AUTO_MARKER.to_vec(), None);
            if let Some((parent, _)) = path::split(&outline.mountpoint) {
                changes.touch(parent);
            }
            joined = true;
        }
    }
    joined
}

/// Returns the directories to split off: in each overweight directory its heaviest subdirectories, bottom-up.
fn splits(outline: &Outline, balance: Balance) -> Vec<Vec<u8>> {
    let limit = balance.max / 2;
    let count = outline.directories.len();
    let mut children: Vec<Vec<usize>> = vec![Vec::new(); count];
    for (number, directory) in outline.directories.iter().enumerate() {
        if let Some(parent) = directory.parent {
            children[parent].push(number);
        }
    }
    // The weight of a directory counts itself and its entries; a nested catalog counts as one.
    let mut weights: Vec<u64> = vec![0; count];
    let mut chosen = Vec::new();
    for number in (0..count).rev() {
        let directory = &outline.directories[number];
        let below: u64 = children[number].iter().map(|child| weights[*child].saturating_sub(1)).sum();
        weights[number] = 1 + directory.entries + below;
        let mut candidates = children[number].clone();
        candidates.sort_by_key(|child| std::cmp::Reverse(weights[*child]));
        for child in candidates {
            if weights[number] <= limit || weights[child] < balance.min {
                break;
            }
            weights[number] -= weights[child] - 1;
            weights[child] = 1;
            chosen.push(outline.directories[child].path.clone());
        }
    }
    chosen
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::catalogs::OutlineDirectory;

    fn outline(directories: &[(&str, Option<usize>, u64)]) -> Outline {
        let directories = directories.iter().map(|(path, parent, entries)| OutlineDirectory {
            path: path.as_bytes().to_vec(),
            parent: *parent,
            entries: *entries,
        });
        Outline { directories: directories.collect(), ..Outline::root() }
    }

    #[test]
    fn the_largest_directories_are_split_first() {
        let balance = Balance { max: 100, min: 10 };
        let tree = outline(&[
            ("", None, 4),
            ("/heavy", Some(0), 60),
            ("/middle", Some(0), 30),
            ("/light", Some(0), 8),
            ("/deep", Some(0), 1),
            ("/deep/er", Some(4), 120),
        ]);
        // `/deep/er` can't be made lighter itself, but it leaves `/deep`; then the root gives up the heaviest.
        assert_eq!(splits(&tree, balance), [&b"/deep/er"[..], b"/heavy"]);
    }

    #[test]
    fn a_single_flat_directory_is_not_split() {
        assert!(splits(&outline(&[("", None, 1000)]), Balance { max: 100, min: 10 }).is_empty());
    }
}
