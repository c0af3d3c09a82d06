use std::ffi::OsString;
use std::os::unix::ffi::OsStringExt as _;
use std::path::Path;

use esker_format::manifest;
use esker_repository::{ListedCatalog, RepositoryError};
use serde_json::json;

use crate::error::Failure;
use crate::output::{Output, size};
use crate::publisher::of_operation;
use crate::settings::Settings;
use crate::trees::revision_source::RevisionArgs;

/// Lists the catalogs of a revision with their sizes and numbers of entries.
///
/// Reads every catalog. The entries below a catalog are those of all catalogs nested in it.
///
/// Example: esker repo catalogs sw.example.org --path /gcc
#[derive(clap::Args, Debug)]
pub(crate) struct Args {
    /// Repository: its NAME, URL or folder
    #[arg(value_name = "NAME|URL|DIR")]
    place: String,

    /// The revision: its number, a tag of it, or the hash of its root catalog [default: the newest]
    #[arg(long, value_name = "REVISION")]
    revision: Option<String>,

    /// List only catalogs at and below this path
    #[arg(long, value_name = "/PATH", default_value = "/")]
    path: OsString,

    /// Show hashes too
    #[arg(long, short)]
    long: bool,

    /// Print JSON
    #[arg(long)]
    json: bool,

    #[command(flatten)]
    source: RevisionArgs,
}

/// Why a listing ended.
enum Stopped {
    Reading(RepositoryError),
    Printing(Failure),
}

impl From<RepositoryError> for Stopped {
    fn from(error: RepositoryError) -> Self {
        Self::Reading(error)
    }
}

pub(super) fn run(args: &Args, settings: &Settings) -> Result<(), Failure> {
    let failed =
        |error: &RepositoryError| of_operation(&format!("can't list the catalogs of {}", args.place), error);
    let revisions = args.source.open(&place(&args.place), settings)?;
    let revision = match &args.revision {
        Some(name) => revisions.find(name),
        None => revisions.head(),
    };
    let root = revision.map_err(|error| failed(&error))?.root;
    let below = args.path.clone().into_vec();
    let (mut out, mut all) = (Output::new(), Vec::new());
    if !args.json {
        let hash = if args.long { format!("  {:40}", "hash") } else { String::new() };
        out.line(format!(
            "{:>10}  {:>10}  {:>13}{hash}  root directory",
            "size", "entries", "entries below"
        ))?;
    }
    let done = revisions.visit_catalogs(root, &below, &mut |catalog| {
        if args.json {
            all.push(catalog);
            return Ok(());
        }
        line(&mut out, &catalog, args.long).map_err(Stopped::Printing)
    });
    match done {
        Err(Stopped::Reading(error)) => return Err(failed(&error)),
        Err(Stopped::Printing(failure)) => return Err(failure),
        Ok(()) => {}
    }
    if args.json {
        out.json(&json!(all))?;
    }
    out.finish()
}

fn line(out: &mut Output, catalog: &ListedCatalog, long: bool) -> Result<(), Failure> {
    let ListedCatalog { path, hash, entries, entries_below, .. } = catalog;
    let hash = if long { format!("  {hash:40}") } else { String::new() };
    let numbers = format!("{:>10}  {entries:>10}  {entries_below:>13}{hash}  ", size(catalog.size));
    let line = [numbers.as_bytes(), &*out.name(path.as_bytes())].concat();
    out.line(line)
}

/// Returns the URL of a repository in a folder; other places stay.
fn place(place: &str) -> String {
    let folder = Path::new(place);
    let is_folder = place.contains('/') && folder.join(manifest::PATH).exists();
    match folder.canonicalize() {
        Ok(whole) if is_folder => format!("file://{}", whole.display()),
        _ => place.to_owned(),
    }
}
