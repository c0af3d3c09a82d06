//! What never changes, shown by the kernel's EROFS.

use std::fs;

use esker_testkit::fixture;
use esker_testkit::survey::{differences, survey};

use crate::person::Person;
use crate::world::World;

const EROFS: [&str; 3] = ["--fixed", "--show-with", "erofs"];

/// Only root may mount what isn't FUSE for all to see.
fn root() -> Option<Person> {
    Person::all().into_iter().find(|person| person.is_root())
}

/// > S1: A fixed revision or an image that EROFS shows (`--show-with erofs`, by root) has the same names, attributes, contents, owners and numbers of inodes whenever it is mounted.
#[test]
fn a_revision_is_shown_exactly() {
    let Some(root) = root() else { return };
    for fixture in fixture::ALL {
        let world = World::new(root, fixture);
        let mut numbers = Vec::new();
        for turn in 0..2 {
            let mounted = world.mount(&EROFS);
            assert_eq!(mounted.status()["shown_with"], "erofs");
            if turn == 1 {
                // Begun elsewhere, and not from the top.
                for found in fs::read_dir(mounted.path("")).expect("a listing").flatten() {
                    let _ = fs::read_dir(found.path()).map(Iterator::count);
                }
            }
            let found = survey(&mounted.path(""));
            let complaints = differences(&fixture.listing("v3"), &found, root.ownership());
            assert!(complaints.is_empty(), "{}:\n  {}", fixture.name(), complaints.join("\n  "));
            numbers.push(found.iter().map(|found| found.ino).collect::<Vec<_>>());
        }
        assert_eq!(numbers[0], numbers[1], "{}", fixture.name());
        assert!(!world.is_mounted());
    }
}
