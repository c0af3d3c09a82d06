//! Prints the result of a publish, as text or JSON.

use esker_maintain::Collected;
use esker_publish::{BundleCounts, PathChange, Report, Side};
use esker_repository::ChangeKind;

use crate::error::{Failure, warn};
use crate::output::{Output, size};

/// Maximum number of paths in the text of a dry run.
const LISTED_MAX: usize = 50;
/// Maximum number of paths of other lists in the text of a report.
const NAMED_MAX: usize = 10;

/// Prints the report of a publish.
///
/// The JSON has the id of the transaction and the result of a collect after the publish, too.
pub(super) fn print(
    report: &Report,
    (transaction, collected): (Option<&str>, Option<&Collected>),
    dry_run: bool,
    json: bool,
) -> Result<(), Failure> {
    let mut out = Output::new();
    if json {
        #[derive(serde::Serialize)]
        struct Whole<'r> {
            #[serde(flatten)]
            report: &'r Report,
            #[serde(skip_serializing_if = "Option::is_none")]
            transaction: Option<&'r str>,
            #[serde(skip_serializing_if = "Option::is_none")]
            collected: Option<&'r Collected>,
        }
        out.json(&Whole { report, transaction, collected })?;
        return out.finish();
    }
    let differences = &report.differences;
    let (added, changed, removed) =
        (differences.added.total(), differences.changed.total(), differences.removed.total());
    let summary = format!(
        "{added} added, {changed} changed, {removed} removed, {} unchanged",
        differences.unchanged.total()
    );
    if dry_run {
        out.line(format!("would publish: {summary}"))?;
        if let Some(tag) = &report.tag {
            out.line(format!("would tag      {tag}"))?;
        }
        if let Some(branch) = &report.branch {
            out.line(format!("on branch      {branch}"))?;
        }
        out.line(format!("would read     {} files, {}", report.files_read, size(report.bytes_read)))?;
        list_changes(&mut out, report.changes.as_deref().unwrap_or_default())?;
        out.finish()?;
        report.warnings.iter().for_each(|warning| warn(Some(warning)));
        return Ok(());
    }
    if report.published {
        out.line(out.bold(&format!("revision {}", report.revision)))?;
        out.line(format!("  root      {}", report.root))?;
        if let Some(tag) = &report.tag {
            out.line(format!("  tag       {tag}"))?;
        }
        if let Some(branch) = &report.branch {
            out.line(format!("  branch    {branch}; the head stays"))?;
        }
    } else if let Some(tag) = &report.tag {
        out.line(format!("nothing changed; revision {} got the tag {tag}", report.revision))?;
    } else {
        out.line(format!("nothing changed; revision {} stays", report.revision))?;
    }
    out.line(format!("  entries   {summary}"))?;
    for chosen in report.resolved.iter().take(NAMED_MAX) {
        let side = if chosen.side == Side::Ours { "ours" } else { "theirs" };
        out.line([format!("  {side:9} ").as_bytes(), &*out.name(chosen.path.as_bytes())].concat())?;
    }
    if report.bundles.bundles > 0 {
        let BundleCounts { bundles, files, files_missing } = report.bundles;
        let missing =
            if files_missing > 0 { format!("; {files_missing} more are not there") } else { String::new() };
        out.line(format!("  bundles   {bundles}, of {files} files{missing}"))?;
    }
    out.line(format!("  read      {} files, {}", report.files_read, size(report.bytes_read)))?;
    out.line(format!(
        "  stored    {} objects, {}; {} were there already, {}",
        report.objects_stored,
        size(report.object_bytes_stored),
        report.objects_present,
        size(report.object_bytes_present)
    ))?;
    out.line(format!("  catalogs  {} written, {}", report.catalogs_written, size(report.catalog_bytes)))?;
    let seconds = &report.seconds;
    out.line(format!(
        "  time      {:.1} s: compare {:.1}, store {:.1}, catalogs {:.1}, commit {:.1}",
        seconds.total, seconds.scan, seconds.store, seconds.catalogs, seconds.commit
    ))?;
    out.finish()?;
    report.warnings.iter().for_each(|warning| warn(Some(warning)));
    Ok(())
}

/// Prints the result of the collect after a publish.
pub(super) fn print_collected(collected: &Collected) -> Result<(), Failure> {
    let mut out = Output::new();
    let deleted = collected.deleted;
    let waiting = collected.waiting.map_or(0, |waiting| waiting.objects);
    out.line(format!(
        "  collected {} objects, {}; {waiting} wait for their deletion",
        deleted.objects,
        size(deleted.bytes)
    ))?;
    out.finish()
}

/// Lists the first changes by path.
pub(crate) fn list_changes(out: &mut Output, changes: &[PathChange]) -> Result<(), Failure> {
    for PathChange { path, change, kind } in changes.iter().take(LISTED_MAX) {
        let change = match change {
            ChangeKind::Added => "added",
            ChangeKind::Changed => "changed",
            ChangeKind::Removed => "removed",
        };
        let slash: &[u8] = if *kind == "directory" && path != b"/" { b"/" } else { b"" };
        let line = [format!("  {change:9}").as_bytes(), &*out.name(path), slash].concat();
        out.line(line)?;
    }
    if changes.len() > LISTED_MAX {
        out.line(format!("  and {} more; --json lists all", changes.len() - LISTED_MAX))?;
    }
    Ok(())
}
