//! Random operations in a real overlay: after each transaction the repository shows what the merged tree showed.

use std::fs;
use std::os::unix::fs::{PermissionsExt as _, symlink};
use std::path::{Path, PathBuf};
use std::process::Command;

use esker_format::chunker::ChunkSizes;
use esker_repository::Balance;
use esker_testkit::skip;
use proptest::prelude::*;

use super::{Marks, Scene, may_mount};
use crate::workshop::Workshop;

/// One operation. Numbers choose among the directories there are and among few names.
#[derive(Clone, Debug)]
enum Operation {
    Write(u8, u8, u8),
    Append(u8, u8),
    Truncate(u8, u8, u8),
    /// Opens for writing, which copies up.
    Open(u8, u8),
    /// Removes a file and writes it again, unchanged.
    Rewrite(u8, u8),
    Rename(u8, u8, u8, u8),
    Remove(u8, u8),
    MakeDirectory(u8, u8),
    /// Removes a directory and makes it again, with or without what was in it.
    Again(u8, u8, bool),
    Link(u8, u8, u8),
    Symlink(u8, u8),
    Mode(u8, u8, u8),
    Attribute(u8, u8, u8),
    Pipe(u8, u8),
    Mark(u8),
    Rules(u8),
}

fn operation() -> impl Strategy<Value = Operation> {
    use Operation as O;
    let place = || (any::<u8>(), 0u8..6);
    prop_oneof![
        5 => (place(), any::<u8>()).prop_map(|((d, n), c)| O::Write(d, n, c)),
        1 => place().prop_map(|(d, n)| O::Append(d, n)),
        1 => (place(), any::<u8>()).prop_map(|((d, n), c)| O::Truncate(d, n, c)),
        2 => place().prop_map(|(d, n)| O::Open(d, n)),
        1 => place().prop_map(|(d, n)| O::Rewrite(d, n)),
        3 => (place(), place()).prop_map(|((d, n), (e, m))| O::Rename(d, n, e, m)),
        3 => place().prop_map(|(d, n)| O::Remove(d, n)),
        4 => place().prop_map(|(d, n)| O::MakeDirectory(d, n)),
        2 => (place(), any::<bool>()).prop_map(|((d, n), kept)| O::Again(d, n, kept)),
        3 => (place(), 0u8..6).prop_map(|((d, n), m)| O::Link(d, n, m)),
        1 => place().prop_map(|(d, n)| O::Symlink(d, n)),
        2 => (place(), any::<u8>()).prop_map(|((d, n), mode)| O::Mode(d, n, mode)),
        1 => (place(), any::<u8>()).prop_map(|((d, n), value)| O::Attribute(d, n, value)),
        1 => place().prop_map(|(d, n)| O::Pipe(d, n)),
        1 => any::<u8>().prop_map(O::Mark),
        1 => (0u8..4).prop_map(O::Rules),
    ]
}

fn directories(top: &Path) -> Vec<PathBuf> {
    let mut found = vec![top.to_owned()];
    let mut next = 0;
    while let Some(folder) = found.get(next).cloned() {
        let entries = fs::read_dir(folder).unwrap().map(Result::unwrap);
        let mut below: Vec<PathBuf> =
            entries.filter(|entry| entry.file_type().unwrap().is_dir()).map(|entry| entry.path()).collect();
        below.sort();
        found.extend(below);
        next += 1;
    }
    found
}

fn run(program: &str, arguments: &[&Path]) {
    let output = Command::new(program).arg("-a").args(arguments).output().unwrap();
    assert!(output.status.success(), "{program} {arguments:?}: {}", String::from_utf8_lossy(&output.stderr));
}

fn remove(path: &Path) {
    let _ = fs::remove_file(path).or_else(|_| fs::remove_dir_all(path));
}

fn is_file(path: &Path) -> bool {
    fs::symlink_metadata(path).is_ok_and(|meta| meta.is_file())
}

/// Applies one operation. An operation that doesn't fit the tree fails, and that is fine.
fn apply(top: &Path, aside: &Path, operation: &Operation) {
    let all = directories(top);
    let folder = |number: &u8| all[usize::from(*number) % all.len()].clone();
    let at = |number: &u8, name: &u8| folder(number).join(format!("n{name}"));
    let _ = match operation {
        Operation::Write(d, n, c) => {
            if is_file(&at(d, n)) || fs::symlink_metadata(at(d, n)).is_err() {
                fs::write(at(d, n), vec![*c; usize::from(*c) * 100])
            } else {
                Ok(())
            }
        }
        Operation::Append(d, n) if is_file(&at(d, n)) => {
            let mut text = fs::read(at(d, n)).unwrap();
            text.push(b'+');
            fs::write(at(d, n), text)
        }
        Operation::Truncate(d, n, c) if is_file(&at(d, n)) => {
            fs::OpenOptions::new().write(true).open(at(d, n)).unwrap().set_len(u64::from(*c))
        }
        Operation::Open(d, n) if is_file(&at(d, n)) => {
            fs::OpenOptions::new().write(true).open(at(d, n)).map(drop)
        }
        Operation::Rewrite(d, n) if is_file(&at(d, n)) => {
            run("cp", &[&at(d, n), aside]);
            remove(&at(d, n));
            run("cp", &[aside, &at(d, n)]);
            fs::remove_file(aside)
        }
        Operation::Rename(d, n, e, m) => {
            let (from, to) = (at(d, n), at(e, m));
            match fs::rename(&from, &to) {
                // As `mv` does it.
                Err(error) if error.kind() == std::io::ErrorKind::CrossesDevices => {
                    if fs::symlink_metadata(&to).is_err() {
                        run("cp", &[&from, &to]);
                        remove(&from);
                    }
                    Ok(())
                }
                other => other,
            }
        }
        Operation::Remove(d, n) => {
            remove(&at(d, n));
            Ok(())
        }
        Operation::MakeDirectory(d, n) => fs::create_dir(at(d, n)),
        Operation::Again(d, n, kept) if at(d, n).is_dir() && !at(d, n).is_symlink() => {
            let folder = at(d, n);
            if *kept {
                run("cp", &[&folder, aside]);
            }
            remove(&folder);
            if *kept {
                run("cp", &[aside, &folder]);
                fs::remove_dir_all(aside)
            } else {
                fs::create_dir(folder)
            }
        }
        Operation::Link(d, n, m) if is_file(&at(d, n)) => fs::hard_link(at(d, n), at(d, m)),
        Operation::Symlink(d, n) => symlink("n0", at(d, n)),
        Operation::Mode(d, n, mode) if !at(d, n).is_symlink() => {
            fs::set_permissions(at(d, n), fs::Permissions::from_mode(u32::from(*mode) * 8))
        }
        Operation::Attribute(d, n, value) if is_file(&at(d, n)) || at(d, n).is_dir() => {
            let flags = rustix::fs::XattrFlags::empty();
            rustix::fs::setxattr(at(d, n), "user.value", &[*value], flags).map_err(Into::into)
        }
        Operation::Pipe(d, n) => {
            let mode = rustix::fs::Mode::from_raw_mode(0o640);
            let kind = rustix::fs::FileType::Fifo;
            rustix::fs::mknodat(rustix::fs::CWD, at(d, n), kind, mode, 0).map_err(Into::into)
        }
        Operation::Mark(d) => {
            let marker = folder(d).join(".cvmfscatalog");
            match folder(d) == top {
                true => Ok(()),
                false if marker.exists() => fs::remove_file(marker),
                false => fs::write(marker, b""),
            }
        }
        Operation::Rules(rules) => {
            let text = ["", "/n0\n", "/*/n1\n", "/n*\n! *2\n"][usize::from(*rules)];
            fs::write(top.join(".cvmfsdirtab"), text)
        }
        _ => Ok(()),
    };
}

#[test]
fn a_transaction_publishes_what_the_merged_tree_showed() {
    if !may_mount() {
        skip!("this user may not mount overlays in this namespace");
    }
    let operations = |range: std::ops::Range<usize>| proptest::collection::vec(operation(), range);
    let rounds = proptest::collection::vec((operations(1..12), operations(0..6)), 1..4);
    let config = ProptestConfig { cases: 24, max_shrink_iters: 200, ..ProptestConfig::default() };
    proptest!(config, |(first in operations(4..30), rounds in rounds, balanced: bool, trusted: bool)| {
        let aside = tempfile::tempdir().unwrap();
        let aside = aside.path().join("aside");
        let mut workshop = Workshop::with(|new| {
            new.settings.chunks = ChunkSizes::new(4096, 8192, 16_384).unwrap();
            new.settings.balance = balanced.then_some(Balance { max: 8, min: 3 });
        });
        first.iter().for_each(|operation| apply(&workshop.source(), &aside, operation));
        let marks = if trusted { Marks::Trusted } else { Marks::User };
        for (now, later) in rounds {
            let mut scene = Scene::over(workshop, marks);
            now.iter().for_each(|operation| apply(&scene.merged(), &aside, operation));
            // Interrupted and resumed.
            scene.leave();
            scene.enter();
            later.iter().for_each(|operation| apply(&scene.merged(), &aside, operation));
            let next = aside.with_extension("next");
            run("cp", &[&scene.merged(), &next]);
            scene.publish();
            workshop = scene.into_workshop();
            fs::remove_dir_all(workshop.source()).unwrap();
            fs::rename(&next, workshop.source()).unwrap();
        }
    });
}
