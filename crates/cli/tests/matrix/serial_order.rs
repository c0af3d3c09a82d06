//! Attempts to publish, and the tree that those give which were accepted.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::Path;
use std::process::{Command, Output, Stdio};
use std::time::Duration;

use esker_testkit::waiting::for_moment_of_fault;
use serde_json::Value;

/// Outcome of an attempt to publish.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Outcome {
    Accepted(u64),
    Lost,
    /// The publisher was killed, before or after the commit.
    Killed,
    /// The changes are published, and the publisher doesn't know by which revision: the answer of the storage was lost, and another
    /// publisher came next.
    Unnumbered,
}

/// One attempt to make a directory equal to a folder with two files: `file`, whose content names the attempt, and an
/// empty one that is called like the attempt.
#[derive(Clone, Debug)]
pub(crate) struct Attempt {
    pub(crate) target: String,
    pub(crate) label: String,
    pub(crate) outcome: Outcome,
}

/// Runs a publisher and returns its output; kills it after this time, if one is given and it still runs. None if the kill ended it.
pub(crate) fn output_unless_killed(command: &mut Command, kill_after: Option<Duration>) -> Option<Output> {
    command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = command.spawn().expect("running esker");
    let is_killed = kill_after.is_some_and(|delay| {
        for_moment_of_fault(delay);
        let runs = child.try_wait().expect("its state").is_none();
        if runs {
            child.kill().expect("a signal");
        }
        runs
    });
    let output = child.wait_with_output().expect("its end");
    (!is_killed || output.status.code().is_some()).then_some(output)
}

pub(crate) fn write_folder(folder: &Path, label: &str) {
    if folder.exists() {
        fs::remove_dir_all(folder).expect("removing the last tree");
    }
    fs::create_dir_all(folder).expect("a folder");
    fs::write(folder.join("file"), content(label)).expect("a file");
    fs::write(folder.join(label), "").expect("a file");
}

pub(crate) fn content(label: &str) -> String {
    format!("content of attempt {label}\n")
}

/// Attempts that one revision has.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Commits {
    /// Each publisher commits by itself.
    Single,
    /// A gateway may commit those of several directories together.
    Joint,
}

/// Returns the tree that the accepted attempts give in the order of their revisions. A change that no publisher reported must be
/// that of a killed one, or of one without a number; their number is the second value.
pub(crate) fn serial_tree(
    attempts: &[Attempt],
    (head, commits): (u64, Commits),
    diff: impl Fn(u64, u64) -> Value,
) -> (BTreeMap<String, String>, u64) {
    let mut accepted: BTreeMap<u64, Vec<&Attempt>> = BTreeMap::new();
    for attempt in attempts {
        if let Outcome::Accepted(revision) = attempt.outcome {
            accepted.entry(revision).or_default().push(attempt);
        }
    }
    let mut killed: BTreeMap<&str, &Attempt> = BTreeMap::new();
    let is_open = |outcome| matches!(outcome, Outcome::Killed | Outcome::Unnumbered);
    let lost = attempts.iter().filter(|attempt| is_open(attempt.outcome));
    killed.extend(lost.map(|attempt| (attempt.label.as_str(), attempt)));
    let mut late = 0;
    for revision in 2..=head {
        let reported = accepted.entry(revision).or_default();
        // A single commit that was reported has no place for another one.
        if commits == Commits::Joint || reported.is_empty() {
            let changes = diff(revision - 1, revision);
            let mut labels = added_labels(&changes);
            for attempt in &*reported {
                assert!(labels.remove(&attempt.label), "revision {revision} lacks {attempt:?}: {changes}");
            }
            late += labels.len() as u64;
            let attempts = labels.iter().map(|label| killed.remove(label.as_str()));
            reported.extend(
                attempts.map(|attempt| attempt.unwrap_or_else(|| panic!("revision {revision}: {changes}"))),
            );
        }
        let targets: BTreeSet<_> = reported.iter().map(|attempt| &attempt.target).collect();
        let is_right = match commits {
            Commits::Single => reported.len() == 1,
            Commits::Joint => !reported.is_empty() && targets.len() == reported.len(),
        };
        assert!(is_right, "revision {revision} has {reported:?}");
    }
    let missing = killed.values().find(|attempt| attempt.outcome == Outcome::Unnumbered);
    assert!(missing.is_none(), "published, but by no revision: {missing:?}");
    let newest = accepted.keys().next_back().copied().unwrap_or(1);
    assert_eq!(newest, head, "a reported revision is above the head");
    let mut last: BTreeMap<&str, &str> = BTreeMap::new();
    let in_order = accepted.values().flatten();
    last.extend(in_order.map(|attempt| (attempt.target.as_str(), attempt.label.as_str())));
    let files = last.into_iter().flat_map(|(target, label)| {
        [(format!("{target}/file"), content(label)), (format!("{target}/{label}"), String::new())]
    });
    (files.collect(), late)
}

/// Returns the labels of the attempts that a revision added.
fn added_labels(changes: &Value) -> BTreeSet<String> {
    let labels = changes.as_array().expect("a list").iter().filter_map(|change| {
        let label = change["path"].as_str()?.rsplit('/').next()?.to_owned();
        (change["change"] == "added" && label.starts_with("by-")).then_some(label)
    });
    labels.collect()
}

/// Returns the files of a mounted repository whose directories have no directories.
pub(crate) fn files_of(mount: &Path) -> BTreeMap<String, String> {
    let mut files = BTreeMap::new();
    for target in fs::read_dir(mount).expect("the mount") {
        let target = target.expect("an entry").path();
        for file in fs::read_dir(&target).expect("a directory") {
            let file = file.expect("an entry").path();
            let path = file.strip_prefix(mount).expect("below the mount").display().to_string();
            files.insert(format!("/{path}"), fs::read_to_string(&file).expect("a file"));
        }
    }
    files
}
