//! Compares a mount with the folder that was published: `esker-compare SOURCE MOUNT [UID:GID]`.
//!
//! Type, mode, owner, size, time to the nanosecond, link count, device, target, content and extended attributes of
//! every entry; and the mount with itself, as [`esker_testkit::survey`] does. With an owner, the mount is expected
//! to show everything as belonging to it.
#![allow(clippy::print_stdout, reason = "the result of the comparison")]

use std::path::Path;
use std::process::ExitCode;

use esker_testkit::listing::of_folder;
use esker_testkit::tree_scan::{Ownership, differences, scan_tree};

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let (source, mount, owner) = match &arguments[..] {
        [source, mount] => (source, mount, None),
        [source, mount, owner] => (source, mount, owner.split_once(':')),
        _ => {
            println!("usage: esker-compare SOURCE MOUNT [UID:GID]");
            return ExitCode::from(2);
        }
    };
    let number = |text: &str| text.parse().unwrap_or_else(|e| panic!("{text:?} is no number: {e}"));
    let ownership =
        owner.map_or(Ownership::Published, |(uid, gid)| Ownership::Claimed(number(uid), number(gid)));
    let expected = of_folder(Path::new(source));
    let found = scan_tree(Path::new(mount));
    let wrong = differences(&expected, &found, ownership);
    let bytes: u64 = expected.iter().filter(|entry| entry.is_file()).filter_map(|entry| entry.size).sum();
    let xattrs: usize = expected.iter().map(|entry| entry.xattrs.len()).sum();
    println!(
        "{} entries, {bytes} bytes in files, {xattrs} extended attributes: {} differences",
        expected.len(),
        wrong.len()
    );
    wrong.iter().take(100).for_each(|difference| println!("{difference}"));
    if wrong.is_empty() { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}
