pub(crate) mod patch;

use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::OsStrExt as _;

use esker_format::catalog::EntryKind;
use esker_format::write::catalog::Entry;
use esker_repository::{ChangeKind, DiffCounts, KindCounts, PathDiff, RepositoryError, Revision, TreeDiff};
use serde::Serialize;
use serde_json::json;

use crate::error::Failure;
use crate::output::{JsonArray, Output, lossy, size};
use crate::publisher::of_operation;
use crate::settings::Settings;
use crate::trees::entry::hex;
use crate::trees::revision_source::RevisionArgs;

/// Shows what differs between two revisions of a repository.
///
/// A REVISION is a tag, a number, or the hash of a root catalog; tag:NAME and rev:NUMBER say which of two is meant. Without REVISION, compares the newest revision with
/// the one before it; with one REVISION, compares that one with the newest.
///
/// Example: esker diff sw.example.org trunk-previous trunk /software
#[derive(clap::Args, Debug)]
pub(crate) struct Args {
    /// Repository: its NAME or URL
    #[arg(value_name = "NAME|URL")]
    place: String,

    /// Old revision, new revision, and a path to compare, which starts with `/`
    #[arg(value_name = "REVISION|/PATH", num_args = 0..=3)]
    what: Vec<OsString>,

    /// Print only the number of paths and bytes
    #[arg(long, conflicts_with = "patch")]
    stat: bool,

    /// Print the differences between text files too
    #[arg(long, conflicts_with = "json")]
    patch: bool,

    /// Ignore paths of which only the modification time differs
    #[arg(long)]
    ignore_times: bool,

    /// Print JSON
    #[arg(long)]
    json: bool,

    #[command(flatten)]
    source: RevisionArgs,
}

/// Revisions and path, as the arguments name them.
#[derive(Debug, PartialEq, Eq)]
struct Compared {
    old: String,
    new: String,
    path: Vec<u8>,
}

impl Compared {
    fn of(words: &[OsString]) -> Result<Self, Failure> {
        let is_path = |word: &OsStr| word.as_bytes().starts_with(b"/");
        let (revisions, path) = match words.split_last() {
            Some((last, before)) if is_path(last) => (before, last.as_bytes()),
            _ => (words, &b"/"[..]),
        };
        let text = |word: &OsString| {
            word.to_str()
                .filter(|_| !is_path(word))
                .map(str::to_owned)
                .ok_or_else(|| Failure::usage(format!("{} is not the name of a revision", word.display())))
        };
        let (old, new) = match revisions {
            [] => ("trunk-previous".to_owned(), "trunk".to_owned()),
            [old] => (text(old)?, "trunk".to_owned()),
            [old, new] => (text(old)?, text(new)?),
            _ => {
                return Err(Failure::usage("there are more than two revisions")
                    .hint("a path in the repository starts with `/`"));
            }
        };
        Ok(Self { old, new, path: trimmed(path) })
    }
}

/// Returns a path in the form of the repository: no slash at its end, and none at all for the root.
pub(crate) fn trimmed(path: &[u8]) -> Vec<u8> {
    let parts = path.split(|byte| *byte == b'/').filter(|part| !part.is_empty() && *part != b".");
    parts.flat_map(|part| [b"/", part]).flatten().copied().collect()
}

/// A difference as JSON. Field names are an interface.
#[derive(Serialize)]
pub(crate) struct DiffJson {
    path: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    path_hex: Option<String>,
    change: ChangeKind,
    kind: &'static str,
    attributes: Vec<&'static str>,
    old_size: Option<u64>,
    new_size: Option<u64>,
}

impl DiffJson {
    fn new(diff: &PathDiff<'_>) -> Self {
        let bytes = |entry: Option<&Entry>| entry.filter(|entry| entry.is_file()).map(|entry| entry.size);
        Self {
            path: lossy(shown(diff.path)),
            path_hex: std::str::from_utf8(diff.path).is_err().then(|| hex(diff.path)),
            change: diff.change,
            kind: diff.new.or(diff.old).map_or("special", kind),
            attributes: diff.attributes.names().collect(),
            old_size: bytes(diff.old),
            new_size: bytes(diff.new),
        }
    }
}

pub(crate) fn run(args: &Args, settings: &Settings) -> Result<(), Failure> {
    let compared = Compared::of(&args.what)?;
    let what = format!("can't compare revisions of {}", args.place);
    let failed = |error| of_operation(&what, &error);
    let revisions = args.source.open(&args.place, settings)?;
    let old = revisions.find(&compared.old).map_err(failed)?;
    let new = revisions.find(&compared.new).map_err(failed)?;
    let has = |revision: &Revision| revisions.has_path(revision.root, &compared.path).map_err(failed);
    if !has(&new)? && !has(&old)? {
        return Err(failed(RepositoryError::NoSuchPath(lossy(&compared.path))));
    }
    let diff = TreeDiff {
        objects: &**revisions.objects(),
        old: old.root,
        new: new.root,
        within: compared.path,
        ignore_times: args.ignore_times,
    };
    let mut out = Output::new();
    if args.json {
        print_json(&mut out, args, &diff, (&old, &new), &failed)?;
        return out.finish();
    }
    let mut broken = None;
    let counts = diff.run(&mut |found| {
        let printed = match (args.stat, args.patch) {
            (true, _) => Ok(()),
            (false, false) => out.line(line(&out, found)),
            (false, true) => patch::print(&mut out, diff.objects, found)?,
        };
        // A closed pipe ends the comparison.
        printed.map_err(|failure| {
            broken = Some(failure);
            RepositoryError::Interrupted
        })
    });
    let counts = match (broken, counts) {
        (Some(failure), _) => return Err(failure),
        (None, counts) => counts.map_err(failed)?,
    };
    if !args.patch {
        summary(&mut out, &old, &new, &counts, args.stat)?;
    }
    out.finish()
}

fn print_json(
    out: &mut Output,
    args: &Args,
    diff: &TreeDiff<'_>,
    (old, new): (&Revision, &Revision),
    failed: &dyn Fn(RepositoryError) -> Failure,
) -> Result<(), Failure> {
    if args.stat {
        let counts = diff.run(&mut |_| Ok(())).map_err(failed)?;
        return out.json(&json!({ "old": old, "new": new, "counts": counts }));
    }
    let mut array = JsonArray::begin(out)?;
    let mut broken = None;
    let done = diff.run(&mut |found| {
        array.add(out, &DiffJson::new(found)).map_err(|failure| {
            broken = Some(failure);
            RepositoryError::Interrupted
        })
    });
    if let Some(failure) = broken {
        return Err(failure);
    }
    done.map_err(failed)?;
    array.end(out)
}

fn shown(path: &[u8]) -> &[u8] {
    if path.is_empty() { b"/" } else { path }
}

fn kind(entry: &Entry) -> &'static str {
    match entry.kind() {
        Some(EntryKind::File) => "file",
        Some(EntryKind::Directory) => "directory",
        Some(EntryKind::Symlink) => "symlink",
        _ => "special",
    }
}

/// Returns the line of a difference.
pub(crate) fn line(out: &Output, diff: &PathDiff<'_>) -> Vec<u8> {
    let entry = diff.new.or(diff.old);
    let slash: &[u8] =
        if entry.is_some_and(Entry::is_directory) && !diff.path.is_empty() { b"/" } else { b"" };
    let file_size = |entry: Option<&Entry>| entry.filter(|entry| entry.is_file()).map(|entry| entry.size);
    let (word, details) = match diff.change {
        ChangeKind::Added => ("added", file_size(diff.new).map(size)),
        ChangeKind::Removed => ("removed", file_size(diff.old).map(size)),
        ChangeKind::Changed => {
            let attributes: Vec<_> = diff.attributes.names().collect();
            ("changed", Some(attributes.join(", ")))
        }
    };
    let details = details.map(|details| format!("  ({details})")).unwrap_or_default();
    [format!("{word:8} ").as_bytes(), &*out.name(shown(diff.path)), slash, details.as_bytes()].concat()
}

/// Prints the counts of a comparison.
pub(crate) fn summary(
    out: &mut Output,
    old: &Revision,
    new: &Revision,
    counts: &DiffCounts,
    by_kind: bool,
) -> Result<(), Failure> {
    let DiffCounts { added, changed, removed, bytes_added, bytes_removed, .. } = counts;
    out.line(out.bold(&format!("revision {} to {}", old.number, new.number)))?;
    out.line(format!(
        "  paths     {} added, {} changed, {} removed",
        added.total(),
        changed.total(),
        removed.total()
    ))?;
    if by_kind {
        for (name, of) in [
            ("files", (|counts| counts.files) as fn(&KindCounts) -> u64),
            ("folders", |counts| counts.directories),
            ("symlinks", |counts| counts.symlinks),
            ("special", |counts| counts.special),
        ] {
            let (added, changed, removed) = (of(added), of(changed), of(removed));
            out.line(format!("  {name:9} {added} added, {changed} changed, {removed} removed"))?;
        }
    }
    out.line(format!("  content   {} added, {} removed", size(*bytes_added), size(*bytes_removed)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn revisions_and_a_path_are_distinguished() {
        let of = |words: &[&str]| {
            let words: Vec<OsString> = words.iter().map(OsString::from).collect();
            Compared::of(&words).map(|found| (found.old, found.new, lossy(&found.path)))
        };
        let three = |old: &str, new: &str, path: &str| (old.to_owned(), new.to_owned(), path.to_owned());
        assert_eq!(of(&[]).expect("none"), three("trunk-previous", "trunk", ""));
        assert_eq!(of(&["/a/"]).expect("a path"), three("trunk-previous", "trunk", "/a"));
        assert_eq!(of(&["v1"]).expect("one"), three("v1", "trunk", ""));
        assert_eq!(of(&["v1", "//a/./b"]).expect("one"), three("v1", "trunk", "/a/b"));
        assert_eq!(of(&["1", "2", "/"]).expect("two"), three("1", "2", ""));
        assert!(of(&["1", "2", "3"]).is_err());
        assert!(of(&["/a", "2"]).is_err());
    }
}
