//! Checks bundles: specifications beside triggers, flags, and listed files.

use std::collections::BTreeSet;

use serde_json::Value;

use super::Findings;
use super::catalogs::{HIDDEN, Row, lossy};

const TRIGGER: u64 = 1 << 17;
const S_IFMT: u32 = 0o170_000;
const REGULAR: u32 = 0o100_000;
const PREFIX: &[u8] = b".cvmfsbundle-";

/// Checks the triggers of a directory; returns the specifications that the publisher made, for their content.
pub(super) fn siblings<'r>(
    what: &str,
    directory: &[u8],
    rows: &'r [Row],
    findings: &mut Findings,
) -> Vec<&'r Row> {
    let is_file = |row: &&Row| row.mode & S_IFMT == REGULAR;
    let specs: Vec<&Row> = rows.iter().filter(is_file).filter(|row| row.name.starts_with(PREFIX)).collect();
    let announced: BTreeSet<&[u8]> = specs.iter().map(|row| &row.name[PREFIX.len()..]).collect();
    let is_announced = |row: &&Row| announced.contains(row.name.as_slice());
    let groups: BTreeSet<u64> = rows.iter().filter(is_announced).map(|row| row.hardlinks >> 32).collect();
    for row in rows {
        let group = row.hardlinks >> 32;
        let is_trigger = is_file(&row) && (is_announced(&row) || group != 0 && groups.contains(&group));
        if (row.flags & TRIGGER != 0) != is_trigger {
            findings.problem(format!(
                "{what}: {:?} in {:?} has flags {:#x}, which is wrong for a {}",
                lossy(&row.name),
                lossy(directory),
                row.flags,
                if is_trigger { "trigger" } else { "file without a bundle" }
            ));
        }
    }
    let present: BTreeSet<&[u8]> = rows.iter().map(|row| row.name.as_slice()).collect();
    let made: Vec<&Row> = specs.into_iter().filter(|row| row.flags & HIDDEN != 0).collect();
    for spec in made.iter().filter(|row| !present.contains(&row.name[PREFIX.len()..])) {
        findings.problem(format!("{what}: {:?} has no trigger", lossy(&spec.name)));
    }
    made
}

/// Parses a specification that the publisher made; its paths are checked once the whole tree is known.
pub(super) fn content(path: &[u8], text: &[u8], findings: &mut Findings) {
    let bad = |why: &str| format!("bundle {:?}: {why}", lossy(path));
    let Ok(spec) = serde_json::from_slice::<Value>(text) else {
        return findings.problem(bad("it is not JSON"));
    };
    for (member, expected) in [("name", "CVMFS_BUNDLE"), ("version", "1.0.0"), ("encoding", "UTF-8")] {
        if spec[member] != expected {
            findings.problem(bad(&format!("its {member} is {}", spec[member])));
        }
    }
    let files = spec["dependencies"].as_array().cloned().unwrap_or_default();
    let files: Vec<String> = files.iter().filter_map(|file| file.as_str().map(str::to_owned)).collect();
    if files.is_empty() {
        findings.problem(bad("it lists nothing"));
    }
    findings.bundles.insert(path.to_vec(), files);
}

/// Checks that everything in the publisher's bundles exists.
pub(super) fn targets(findings: &mut Findings) {
    let is_there = |file: &String| {
        findings.tree.get(file.as_bytes()).is_some_and(|entry| entry.mode & S_IFMT == REGULAR)
    };
    let missing = findings.bundles.iter().flat_map(|(path, files)| {
        let lost = files.iter().filter(|file| !is_there(file));
        lost.map(move |file| format!("bundle {:?} lists {file:?}, which is no file", lossy(path)))
    });
    let missing: Vec<String> = missing.collect();
    missing.into_iter().for_each(|problem| findings.problem(problem));
}
