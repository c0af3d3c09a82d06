//! Random trees and random edits: after each publish the repository is in order and shows the source.

use std::fs;
use std::path::{Path, PathBuf};

use esker_format::chunker::ChunkSizes;
use esker_repository::Balance;
use proptest::prelude::*;

use crate::workshop::Workshop;

/// One edit of the source. Numbers choose among the names there are.
#[derive(Clone, Debug)]
pub(crate) enum Edit {
    Write { directory: u8, name: u8, content: u8 },
    MakeDirectory { directory: u8, name: u8 },
    Remove { directory: u8, name: u8 },
    Link { directory: u8, from: u8, to: u8 },
    Symlink { directory: u8, name: u8 },
    Mark { directory: u8 },
    Rules(u8),
    Permissions { directory: u8, mode: u8 },
}

pub(crate) fn edit() -> impl Strategy<Value = Edit> {
    prop_oneof![
        4 => (any::<u8>(), 0u8..6, any::<u8>()).prop_map(|(directory, name, content)| Edit::Write { directory, name, content }),
        3 => (any::<u8>(), 0u8..6).prop_map(|(directory, name)| Edit::MakeDirectory { directory, name }),
        2 => (any::<u8>(), 0u8..6).prop_map(|(directory, name)| Edit::Remove { directory, name }),
        1 => (any::<u8>(), 0u8..6, 0u8..6).prop_map(|(directory, from, to)| Edit::Link { directory, from, to }),
        1 => (any::<u8>(), 0u8..6).prop_map(|(directory, name)| Edit::Symlink { directory, name }),
        2 => any::<u8>().prop_map(|directory| Edit::Mark { directory }),
        1 => (0u8..4).prop_map(Edit::Rules),
        1 => (any::<u8>(), any::<u8>()).prop_map(|(directory, mode)| Edit::Permissions { directory, mode }),
    ]
}

pub(crate) fn directories(top: &Path) -> Vec<PathBuf> {
    let mut found = vec![top.to_owned()];
    let mut next = 0;
    while next < found.len() {
        let mut below: Vec<PathBuf> = fs::read_dir(&found[next])
            .unwrap()
            .map(Result::unwrap)
            .filter(|entry| entry.file_type().unwrap().is_dir())
            .map(|entry| entry.path())
            .collect();
        below.sort();
        found.extend(below);
        next += 1;
    }
    found
}

pub(crate) fn apply(top: &Path, edit: &Edit) {
    use std::os::unix::fs::PermissionsExt as _;
    let all = directories(top);
    let directory = |number: &u8| all[usize::from(*number) % all.len()].clone();
    let name = |number: &u8| format!("n{number}");
    // Edits that don't fit what is there fail, and that is fine.
    let _ = match edit {
        Edit::Write { directory: d, name: n, content } => {
            fs::write(directory(d).join(name(n)), vec![*content; usize::from(*content) * 100])
        }
        Edit::MakeDirectory { directory: d, name: n } => fs::create_dir(directory(d).join(name(n))),
        Edit::Remove { directory: d, name: n } => {
            let path = directory(d).join(name(n));
            fs::remove_file(&path).or_else(|_| fs::remove_dir_all(&path))
        }
        Edit::Link { directory: d, from, to } => {
            let d = directory(d);
            let from = d.join(name(from));
            if from.is_file() && !from.is_symlink() { fs::hard_link(from, d.join(name(to))) } else { Ok(()) }
        }
        Edit::Symlink { directory: d, name: n } => {
            std::os::unix::fs::symlink("n0", directory(d).join(name(n)))
        }
        Edit::Mark { directory: d } => {
            let d = directory(d);
            let marker = d.join(".cvmfscatalog");
            match d == top {
                true => Ok(()),
                false if marker.exists() => fs::remove_file(marker),
                false => fs::write(marker, b""),
            }
        }
        Edit::Rules(rules) => {
            let text = ["", "/n0\n", "/*/n1\n", "/n*\n! *2\n"][usize::from(*rules)];
            fs::write(top.join(".cvmfsdirtab"), text)
        }
        Edit::Permissions { directory: d, mode } => {
            fs::set_permissions(directory(d), fs::Permissions::from_mode(0o700 | u32::from(*mode & 0o77)))
        }
    };
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 24, max_shrink_iters: 60, ..ProptestConfig::default() })]
    #[test]
    fn the_repository_equals_the_source_after_random_changes(
        rounds in proptest::collection::vec(proptest::collection::vec(edit(), 1..12), 1..5),
        balanced: bool,
    ) {
        let workshop = Workshop::with(|new| {
            new.settings.chunks = ChunkSizes::new(4096, 8192, 16_384).unwrap();
            // So small that nearly every directory is split off and joined again.
            new.settings.balance = balanced.then_some(Balance { max: 8, min: 3 });
        });
        for edits in rounds {
            edits.iter().for_each(|edit| apply(&workshop.source(), edit));
            let report = workshop.publish();
            workshop.assert_equal();
            let again = workshop.publish();
            prop_assert!(!again.published, "{edits:?} {report:?} {again:?}");
        }
    }
}
