use esker_repository::{ChangeKind, LogEnd, LogEntry, RepositoryError};

use crate::commands::diff::trimmed;
use crate::commands::tag::when;
use crate::error::{Failure, warn};
use crate::output::{JsonArray, Output, size};
use crate::publisher::of_operation;
use crate::settings::Settings;
use crate::trees::revision_source::RevisionArgs;

/// Lists the revisions of a repository, newest first, with the changes and the messages of each.
///
/// With a PATH, lists only revisions that changed this path or an entry below it.
///
/// Example: esker log sw.example.org /software --limit 10
#[derive(clap::Args, Debug)]
pub(crate) struct Args {
    /// Repository: its NAME or URL
    #[arg(value_name = "NAME|URL")]
    place: String,

    /// Path in the repository
    #[arg(value_name = "/PATH", default_value = "/")]
    path: std::path::PathBuf,

    /// List the revisions of this branch, and those before it
    #[arg(long, value_name = "NAME")]
    branch: Option<String>,

    /// Maximum number of revisions to list
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    limit: Option<u32>,

    /// Print JSON
    #[arg(long)]
    json: bool,

    #[command(flatten)]
    source: RevisionArgs,
}

pub(crate) fn run(args: &Args, settings: &Settings) -> Result<(), Failure> {
    use std::os::unix::ffi::OsStrExt as _;
    let revisions = args.source.open(&args.place, settings)?;
    let log = esker_repository::Log {
        revisions: &revisions,
        within: trimmed(args.path.as_os_str().as_bytes()),
        branch: args.branch.clone(),
        limit: args.limit.and_then(|limit| usize::try_from(limit).ok()),
    };
    let mut out = Output::new();
    let mut array = if args.json { Some(JsonArray::begin(&mut out)?) } else { None };
    let mut broken = None;
    let mut listed = 0u64;
    let end = log.run(&mut |entry| {
        listed += 1;
        let printed = match &mut array {
            Some(array) => array.add(&mut out, &entry),
            None => print(&mut out, &entry),
        };
        printed.map_err(|failure| {
            broken = Some(failure);
            RepositoryError::Interrupted
        })
    });
    if let Some(failure) = broken {
        return Err(failure);
    }
    let end =
        end.map_err(|error| of_operation(&format!("can't read the revisions of {}", args.place), &error))?;
    match array {
        Some(array) => array.end(&mut out)?,
        None if listed == 0 => out.line(format!("no revision has {}", args.path.display()))?,
        None => {}
    }
    out.finish()?;
    if let LogEnd::Missing(root) = end {
        warn(Some(&format!(
            "some earlier revisions are not there any more (root catalog {root} is missing)"
        )));
    }
    Ok(())
}

fn print(out: &mut Output, entry: &LogEntry) -> Result<(), Failure> {
    let LogEntry { revision, tags, descriptions, since, counts, path, attributes } = entry;
    let tags = if tags.is_empty() { String::new() } else { format!("  ({})", tags.join(", ")) };
    let time = when(revision.published.0);
    let title = out.bold(&format!("revision {}", revision.number));
    let rest = format!("  {time} UTC  {}{tags}", revision.root);
    out.line([title.as_bytes(), &*out.name(rest.as_bytes())].concat())?;
    for message in descriptions.iter().filter(|message| !message.is_empty()) {
        out.line(out.name(format!("  message   {message}").as_bytes()))?;
    }
    if let Some(path) = path {
        let how = match path {
            ChangeKind::Added => "added".to_owned(),
            ChangeKind::Removed => "removed".to_owned(),
            ChangeKind::Changed => format!("changed: {}", attributes.names().collect::<Vec<_>>().join(", ")),
        };
        out.line(format!("  path      {how}"))?;
    }
    match (counts, since) {
        (Some(counts), Some(since)) => {
            let (added, changed, removed) =
                (counts.added.total(), counts.changed.total(), counts.removed.total());
            // Revisions between may have been collected.
            let against = match since.checked_add(1) == Some(revision.number) {
                true => String::new(),
                false => format!(", compared with revision {since}"),
            };
            out.line(format!(
                "  paths     +{added} ~{changed} -{removed}, content +{} -{}{against}",
                size(counts.bytes_added),
                size(counts.bytes_removed)
            ))
        }
        (None, Some(since)) => {
            out.line(format!("  revision {since} is not whole any more, so they can't be compared"))
        }
        (_, None) => out.line("  the oldest revision that is there"),
    }
}
