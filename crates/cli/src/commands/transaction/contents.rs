//! Differences of the contents of a transaction: a patch of its text files, and counts of lines.

use std::sync::atomic::AtomicBool;

use esker_publish::{Compared, FileSide};
use esker_repository::ChangeKind;
use serde::Serialize;

use crate::commands::diff::patch;
use crate::error::Failure;
use crate::output::{Output, lossy, size};
use crate::publisher::of_operation;
use crate::transaction::Transaction;

/// Columns of the signs that stand for lines.
const SIGNS_MAX: usize = 40;

/// Counts of a changed file. Field names are an interface.
#[derive(Serialize)]
pub(super) struct FileStat {
    path: String,
    change: ChangeKind,
    old_size: Option<u64>,
    new_size: Option<u64>,
    /// Number of new lines; none if the file is no text, or too large to compare.
    insertions: Option<u64>,
    /// Number of lines that are gone.
    deletions: Option<u64>,
}

/// Counts of all files. Field names are an interface.
#[derive(Default, Serialize)]
pub(super) struct Stat {
    files: Vec<FileStat>,
    insertions: u64,
    deletions: u64,
    bytes_added: u64,
    bytes_removed: u64,
    /// Number of other changed paths: directories, links and special files.
    others: u64,
}

/// Counts the lines and bytes that a transaction changes.
pub(super) fn stat(transaction: &Transaction, stop: &AtomicBool) -> Result<Stat, Failure> {
    let mut all = Stat::default();
    compare(transaction, stop, &mut |compared| {
        all.add(&compared);
        true
    })?;
    Ok(all)
}

/// Prints the differences of the text files of a transaction, in the unified format.
pub(super) fn print_patch(
    transaction: &Transaction,
    out: &mut Output,
    stop: &AtomicBool,
) -> Result<(), Failure> {
    let mut printed = Ok(());
    compare(transaction, stop, &mut |compared| {
        printed = print(out, &compared);
        // A closed pipe ends the comparison.
        printed.is_ok()
    })?;
    printed
}

fn compare(
    transaction: &Transaction,
    stop: &AtomicBool,
    each: &mut dyn FnMut(Compared) -> bool,
) -> Result<(), Failure> {
    let storage = &transaction.record()?.storage;
    let compared = transaction.upper()?.compare(storage, patch::TEXT_MAX, stop, each);
    compared
        .map(drop)
        .map_err(|error| of_operation(&format!("can't compare transaction {}", transaction.id), &error))
}

/// Returns both contents if they are text; a file that isn't there is empty.
fn texts(compared: &Compared) -> Option<(String, String)> {
    let text = |side: &Option<FileSide>| match side {
        Some(side) => patch::text(side.content.clone()?),
        None => Some(String::new()),
    };
    Some((text(&compared.old)?, text(&compared.new)?))
}

fn print(out: &mut Output, compared: &Compared) -> Result<(), Failure> {
    let Compared { change, old, new } = compared;
    let is_file = old.is_some() || new.is_some();
    let texts = texts(compared).filter(|_| is_file);
    if let Some((old_text, new_text)) = &texts {
        let (old, new) = (old.as_ref().map(|_| &**old_text), new.as_ref().map(|_| &**new_text));
        if let Some(text) = patch::unified(&change.path, old, new) {
            return out.text(text);
        }
    }
    let name = out.name(&change.path).into_owned();
    if texts.is_none() && is_file && old != new {
        return out.line([b"Binary files a", &*name, b" and b", &name, b" differ"].concat());
    }
    let slash: &[u8] = if change.kind == "directory" && change.path != b"/" { b"/" } else { b"" };
    out.line([format!("{:8} ", word(change.change)).as_bytes(), &name, slash].concat())
}

fn word(change: ChangeKind) -> &'static str {
    match change {
        ChangeKind::Added => "added",
        ChangeKind::Changed => "changed",
        ChangeKind::Removed => "removed",
    }
}

impl Stat {
    fn add(&mut self, compared: &Compared) {
        let Compared { change, old, new } = compared;
        if old.is_none() && new.is_none() {
            self.others += 1;
            return;
        }
        let lines = texts(compared).map(|(old, new)| patch::count(&old, &new));
        let bytes = |side: &Option<FileSide>| side.as_ref().map(|side| side.size);
        let (old_size, new_size) = (bytes(old), bytes(new));
        if old != new {
            self.bytes_added += new_size.unwrap_or(0);
            self.bytes_removed += old_size.unwrap_or(0);
        }
        let (insertions, deletions) = lines.unzip();
        self.insertions += insertions.unwrap_or(0);
        self.deletions += deletions.unwrap_or(0);
        let path = lossy(&change.path);
        self.files.push(FileStat { path, change: change.change, old_size, new_size, insertions, deletions });
    }

    /// Prints a line for each file, and the sums.
    pub(super) fn print(&self, out: &mut Output) -> Result<(), Failure> {
        let lines = |file: &FileStat| file.insertions.unwrap_or(0) + file.deletions.unwrap_or(0);
        let most = self.files.iter().map(lines).max().unwrap_or(0);
        let width = self.files.iter().map(|file| file.path.chars().count()).max().unwrap_or(0);
        for file in &self.files {
            let what = match (file.insertions, file.deletions) {
                (Some(new), Some(old)) => {
                    let signs = |count: u64, sign: &str| sign.repeat(scaled(count, most));
                    format!("{} {}{}", new + old, signs(new, "+"), signs(old, "-"))
                }
                _ => {
                    let [old, new] = [file.old_size, file.new_size].map(|bytes| bytes.unwrap_or(0));
                    format!("Bin {old} -> {new} bytes")
                }
            };
            let name = String::from_utf8_lossy(&out.name(file.path.as_bytes())).into_owned();
            out.line(format!(" {name:width$} | {}", what.trim_end()))?;
        }
        let others = match self.others {
            0 => String::new(),
            others => format!(", {others} other paths"),
        };
        out.line(format!(
            " {} files changed, {} insertions(+), {} deletions(-), {} added, {} removed{others}",
            self.files.len(),
            self.insertions,
            self.deletions,
            size(self.bytes_added),
            size(self.bytes_removed)
        ))
    }
}

/// Returns the number of signs for a number of lines, of which no file has more than `most`.
fn scaled(count: u64, most: u64) -> usize {
    let signs = if most > SIGNS_MAX as u64 { (count * SIGNS_MAX as u64).div_ceil(most) } else { count };
    usize::try_from(signs).unwrap_or(SIGNS_MAX)
}
