use esker_vfs::Kind as NodeKind;

use crate::error::Failure;
use crate::output::Output;
use crate::settings::Settings;
use crate::settings::args::PlaceArgs;
use crate::trees::browse::Browsed;
use crate::trees::walk::Walk;

/// Prints a file of a repository without mounting it.
///
/// Example: esker cat http://server/cvmfs/sw.example.org:/README --public-key sw.example.org.pub
#[derive(clap::Args, Debug)]
pub(crate) struct Args {
    #[command(flatten)]
    place: PlaceArgs,
}

/// Number of bytes in one read.
const PIECE: usize = 1 << 20;

pub(crate) fn run(args: Args, settings: &Settings) -> Result<(), Failure> {
    let browsed = Browsed::open(&args.place, settings)?;
    let mut out = Output::new();
    show(&browsed.walk(), browsed.path(), &browsed.describe(), "esker", &mut out)?;
    out.finish()
}

/// Prints a file; `command` begins the other commands for the same tree in hints.
pub(crate) fn show(
    walk: &Walk<'_>,
    path: &[u8],
    shown: &str,
    command: &str,
    out: &mut Output,
) -> Result<(), Failure> {
    let found = walk.resolve(path, true)?;
    let kind = found.attr.kind;
    if kind != NodeKind::File {
        let kind = crate::trees::entry::kind_name(kind);
        return Err(Failure::failed(format!("{shown} is a {kind}, not a regular file"))
            .hint(format!("`{command} ls` lists directories")));
    }
    let mut offset = 0;
    while offset < found.attr.size {
        let piece = walk.read(&found.node, path, offset, PIECE)?;
        if piece.is_empty() {
            let size = found.attr.size;
            return Err(Failure::failed(format!("{shown} ends at {offset} of {size} bytes")));
        }
        out.bytes(&piece)?;
        offset += piece.len() as u64;
    }
    Ok(())
}
