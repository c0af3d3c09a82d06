//! `esker image digest`.

use std::path::{Path, PathBuf};

use esker_squashfs::digest::{BLOCK_SIZE, DigestList};
use esker_squashfs::writer::{ImageFile, Target as _};
use serde_json::json;

use super::list_and_cat::NamedArgs;
use crate::error::{Context as _, Failure, Kind};
use crate::output::{QuietArgs, parse_size, show};
use crate::process::limits::JobsArgs;
use crate::publisher::Interrupt;
use crate::settings::Settings;

/// Writes the digests of an image's blocks to a list, and prints the digest of the list.
///
/// With that root digest a client checks every block that a server sends. `sha256sum` of the list prints the same
/// digest.
///
/// Example: esker image digest stack.sqfs
#[derive(clap::Args, Debug)]
pub(crate) struct Args {
    #[command(flatten)]
    image: NamedArgs,

    /// List to write [default: IMAGE.digests]
    #[arg(short, long, value_name = "LIST")]
    output: Option<PathBuf>,

    /// Size of a block, from 4K to 16M: the unit in which a client fetches and checks
    #[arg(long, value_name = "SIZE", default_value_t = BLOCK_SIZE, value_parser = block_size)]
    block_size: u32,

    #[command(flatten)]
    jobs: JobsArgs,

    #[command(flatten)]
    _quiet: QuietArgs,

    /// Print JSON
    #[arg(long)]
    json: bool,
}

fn block_size(text: &str) -> Result<u32, String> {
    let bytes = u32::try_from(parse_size(text)?).ok();
    let bytes = bytes.filter(|bytes| bytes.is_power_of_two() && (4 << 10..=16 << 20).contains(bytes));
    bytes.ok_or_else(|| format!("{text:?} is not a power of two from 4K to 16M"))
}

pub(crate) fn run(args: &Args, settings: &Settings) -> Result<(), Failure> {
    let stop = Interrupt::on_signals()?.flag();
    let threads = args.jobs.count();
    let image = args.image.bytes(settings)?;
    let shown = &args.image.image;
    let list =
        DigestList::of(&*image, args.block_size, threads, &stop).map_err(|error| match error.kind() {
            std::io::ErrorKind::Interrupted => {
                Failure::new(Kind::Interrupted, "interrupted; no list was written")
            }
            _ => Failure::failed(format!("can't read {shown}: {error}")),
        })?;
    let path = match &args.output {
        Some(path) => path.clone(),
        None if Path::new(shown).exists() => format!("{shown}.digests").into(),
        None => {
            return Err(
                Failure::usage("there is no place beside the image").hint("name the list with --output LIST")
            );
        }
    };
    let bytes = list.encode();
    let written = ImageFile::create(&path).and_then(|mut file| {
        file.write_at(0, &bytes)?;
        file.finish(bytes.len() as u64)
    });
    written.context(Kind::Failed, format!("can't write {}", path.display()))?;
    let value = json!({
        "root": list.root().to_string(),
        "list": path.display().to_string(),
        "block_size": list.block_size(),
        "blocks": list.blocks(),
        "bytes": list.image_len(),
    });
    show(args.json, &value, |out| out.line(list.root().to_string()))
}
