//! The history: tags and branches.

use std::collections::HashSet;

use esker_format::history::{Branch, History, Tag};
use esker_format::manifest::Manifest;
use esker_format::object::{ObjectKind, ObjectName};
use esker_repository::{HISTORY_MAX, RepositoryError, signed::read_object};
use esker_store::StoredFiles;

use super::finding::{Finding, FindingKind, Findings};
use super::options::CheckPlace;

/// Checks the history, and returns its tags.
pub(super) fn check(
    files: &dyn StoredFiles,
    place: &CheckPlace,
    head: &Manifest,
    findings: &mut Findings,
) -> Vec<Tag> {
    let Some(hash) = head.history else { return Vec::new() };
    let name = ObjectName::new(hash, ObjectKind::History);
    let mut fault = |kind, detail: String| findings.add(Finding::new(kind, detail).object(name));
    let bytes = match read_object(files, &name, None, HISTORY_MAX, "the history") {
        Ok(bytes) => bytes,
        Err(error @ RepositoryError::Missing { .. }) => {
            fault(FindingKind::HistoryMissing, error.to_string());
            return Vec::new();
        }
        Err(error) => {
            fault(FindingKind::HistoryDamaged, error.to_string());
            return Vec::new();
        }
    };
    let history = match History::parse(&bytes) {
        Ok(history) => history,
        Err(error) => {
            fault(FindingKind::HistoryUnreadable, error.to_string());
            return Vec::new();
        }
    };
    if *history.name() != place.name {
        fault(FindingKind::HistoryName, format!("the history is of `{}`", history.name()));
    }
    tags(&history, &mut fault);
    branches(&history, &mut fault);
    history.tags().to_vec()
}

fn tags(history: &History, fault: &mut impl FnMut(FindingKind, String)) {
    let mut names = HashSet::new();
    for tag in history.tags() {
        let is_name = !tag.name.is_empty() && !tag.name.contains(char::is_whitespace);
        if !is_name || !names.insert(&tag.name) {
            let text = format!("the tag {:?} has no usable name, or is there twice", tag.name);
            fault(FindingKind::TagName, text);
        }
        let is_listed = history.branches().iter().any(|branch| branch.name == tag.branch);
        // Histories before revision 3 have no branches.
        if !is_listed && !history.branches().is_empty() {
            let text = format!("tag `{}` is on the branch `{}`, which is not there", tag.name, tag.branch);
            fault(FindingKind::TagBranch, text);
        }
    }
}

fn branches(history: &History, fault: &mut impl FnMut(FindingKind, String)) {
    let mut names = HashSet::new();
    for Branch { name, parent, .. } in history.branches() {
        if name.contains(char::is_whitespace) || !names.insert(name) {
            fault(
                FindingKind::BranchName,
                format!("the branch {name:?} has no usable name, or is there twice"),
            );
        }
        let is_known = |parent: &String| history.branches().iter().any(|branch| branch.name == *parent);
        if parent.as_ref().is_some_and(|parent| !is_known(parent)) || parent.is_none() != name.is_empty() {
            let text = format!("the branch `{name}` starts from {parent:?}, which is not there");
            fault(FindingKind::BranchParent, text);
        }
        let is_used = history.tags().iter().any(|tag| tag.branch == *name)
            || history.branches().iter().any(|other| other.parent.as_ref() == Some(name));
        if !name.is_empty() && !is_used {
            fault(FindingKind::BranchUnused, format!("the branch `{name}` has no tag"));
        }
    }
}
