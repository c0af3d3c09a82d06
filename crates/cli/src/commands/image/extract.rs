//! `esker image extract`.

use std::ffi::OsString;
use std::os::unix::ffi::OsStrExt;
use std::path::PathBuf;

use esker_squashfs::{Extract, ExtractError, extract};
use serde_json::json;

use super::list_and_cat::NamedArgs;
use crate::error::{Failure, Kind, chain, of_tree, warn};
use crate::output::{QuietArgs, show, size};
use crate::process::limits::JobsArgs;
use crate::publisher::Interrupt;
use crate::settings::Settings;

/// Extracts an image, or a directory of it, to a folder.
///
/// If root extracts, entries keep their owners; otherwise the calling user owns them. Names and links of the
/// image can't lead out of the folder.
///
/// Example: esker image extract stack.sqfs unpacked
#[derive(clap::Args, Debug)]
pub(crate) struct Args {
    #[command(flatten)]
    image: NamedArgs,

    /// Folder to extract to; it must be empty or missing
    #[arg(value_name = "DIR")]
    folder: PathBuf,

    /// Directory of the image
    #[arg(long, value_name = "PATH", default_value = "/")]
    path: OsString,

    #[command(flatten)]
    jobs: JobsArgs,

    #[command(flatten)]
    _quiet: QuietArgs,

    /// Print JSON
    #[arg(long)]
    json: bool,
}

pub(crate) fn run(args: &Args, settings: &Settings) -> Result<(), Failure> {
    let stop = Interrupt::on_signals()?.flag();
    let threads = args.jobs.count();
    let opened = args.image.open(settings)?;
    let top = opened.walk().resolve(args.path.as_bytes(), true)?;
    let how = Extract { as_root: settings.root, threads, stop: &stop };
    let done = extract(&*opened.tree, &top, &args.folder, how).map_err(|error| {
        let what = format!("{} was not extracted whole to {}", opened.name, args.folder.display());
        match &error {
            ExtractError::Tree { path, source } => of_tree(&format!("{what}: reading {path}"), source),
            ExtractError::Name(_) => Failure::new(Kind::Damaged, format!("{what}: {}", chain(&error))),
            ExtractError::Interrupted => Failure::new(Kind::Interrupted, format!("{what}: interrupted")),
            ExtractError::NotEmpty(_) => {
                Failure::usage(format!("{what}: {error}")).hint("name a folder that isn't there")
            }
            ExtractError::Folder { .. } => Failure::failed(format!("{what}: {}", chain(&error))),
        }
    })?;
    for (count, what) in [
        (done.xattrs_left_out, "extended attributes can't be set here and were left out"),
        (done.devices_left_out, "device nodes can only be made by root and were left out"),
    ] {
        if count > 0 {
            warn(Some(&format!("{count} {what}")));
        }
    }
    let value = json!({
        "entries": done.entries,
        "bytes": done.bytes,
        "xattrs_left_out": done.xattrs_left_out,
        "devices_left_out": done.devices_left_out,
    });
    show(args.json, &value, |out| out.line(format!("{} entries, {}", done.entries, size(done.bytes))))
}
