//! Modules that use each other in a circle stay few.

use std::collections::BTreeMap;
use std::process::Command;

use super::{report, root};

/// Largest circle of modules that a crate may have.
const CIRCLE_MAX: usize = 6;

/// Crates with a larger circle of files, and its size. A number here only ever gets smaller.
const LARGER: &[(&str, usize)] = &[("squashfs", 12)];

/// Crates with a larger circle of top modules, and its size. A number here only ever gets smaller.
const LARGER_TOP: &[(&str, usize)] = &[("cli", 12)];

#[test]
fn circles_of_modules_stay_small() {
    check(&[], LARGER);
}

#[test]
fn circles_of_top_modules_stay_small() {
    check(&["--top"], LARGER_TOP);
}

/// Compares the largest circle of each crate with what it may be.
fn check(options: &[&str], larger: &[(&str, usize)]) {
    let output = Command::new("python3")
        .arg("scripts/module-circles.py")
        .args(options)
        .current_dir(root())
        .output()
        .expect("python3, which scripts/needs.sh asks for");
    let listing = String::from_utf8(output.stdout).expect("names of modules");
    let mut largest: BTreeMap<&str, (usize, &str)> = BTreeMap::new();
    for line in listing.lines() {
        let mut parts = line.splitn(3, ": ");
        let (Some(name), Some(size), Some(modules)) = (parts.next(), parts.next(), parts.next()) else {
            panic!("{line:?} is no line of scripts/module-circles.py; it wrote {:?}", output.stderr);
        };
        let size: usize = size.parse().expect("a number of modules");
        let entry = largest.entry(name).or_default();
        if size > entry.0 {
            *entry = (size, modules);
        }
    }
    assert!(!largest.is_empty(), "{}", String::from_utf8_lossy(&output.stderr));
    let mut complaints = Vec::new();
    for (name, (size, modules)) in &largest {
        let allowed =
            larger.iter().find(|(allowed, _)| allowed == name).map_or(CIRCLE_MAX, |(_, size)| *size);
        if *size > allowed {
            complaints
                .push(format!("{name} has a circle of {size} modules, {allowed} are allowed: {modules}"));
        }
    }
    for (name, allowed) in larger {
        let size = largest.get(name).map_or(0, |(size, _)| *size);
        if size < *allowed {
            complaints.push(format!("the largest circle of {name} has {size} modules: write that down"));
        }
    }
    report("circles of modules", &complaints);
}
