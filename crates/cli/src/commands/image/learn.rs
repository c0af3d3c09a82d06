//! `esker image learn`.

use std::sync::Arc;

use esker_prefetch::{Observation, SequenceStore};
use esker_squashfs::Options;
use esker_squashfs::trailer::{self, TrailerError};
use serde_json::json;

use crate::error::{Failure, Kind, chain};
use crate::image::{self, ImageArgs, ImageNamed, brought};
use crate::output::{Output, QuietArgs};
use crate::settings::args::RepositoryArgs;
use crate::settings::{Settings, SourceSettings};

/// Records in an image the parts that programs read when they start.
///
/// Mount the image, start the programs that its users will start, unmount it, and run this command. The first
/// start on another machine is then as fast as a second one. The data is appended to the image file, where other
/// readers ignore it; run `esker image digest` afterwards.
///
/// Example: esker image learn stack.sqfs
#[derive(clap::Args, Debug)]
pub(crate) struct Args {
    /// Image file
    #[arg(value_name = "IMAGE")]
    image: String,

    /// Copy the data from another image, such as an older one of the same software
    #[arg(long, value_name = "IMAGE", conflicts_with = "forget")]
    from: Option<String>,

    /// Remove the data from the image
    #[arg(long = "remove", alias = "forget")]
    forget: bool,

    #[command(flatten)]
    _quiet: QuietArgs,

    /// Print JSON
    #[arg(long)]
    json: bool,

    #[command(flatten)]
    how: ImageArgs,

    #[command(flatten)]
    repository: RepositoryArgs,
}

pub(crate) fn run(args: &Args, settings: &Settings) -> Result<(), Failure> {
    let named = ImageNamed::required(&args.image, &args.how)?;
    let image = named.open_file()?;
    let tree = image::tree(Arc::clone(&image), &Options::default())?;
    let (steps, bytes) = if args.forget {
        (0, None)
    } else {
        let known = match &args.from {
            Some(from) => of_other(from)?,
            None => {
                let seen = named
                    .sequences(&tree, &SourceSettings::new(&args.repository, settings))
                    .unwrap_or_default();
                seen.with(&brought(&*image, tree.superblock()))
            }
        };
        let learned = known.load(Observation::Gaps);
        (learned.steps(), Some(learned.encode()))
    };
    if bytes.is_some() && steps == 0 {
        return Err(Failure::failed(format!("no start-up reads are recorded for {}", args.image))
            .hint("mount it with `esker mount`, start one, unmount it, and try again"));
    }
    let written = trailer::write(args.image.as_ref(), image.origin(), tree.superblock(), bytes.as_deref());
    written.map_err(|error| of_trailer(&args.image, &error))?;
    let mut out = Output::new();
    match args.json {
        true => out.json(&json!({"steps": steps, "bytes": bytes.map_or(0, |bytes| bytes.len())}))?,
        false if args.forget => out.line(format!("{} brings nothing", args.image))?,
        false => out.line(format!("{} brings {steps} steps", args.image))?,
    }
    out.finish()
}

/// Returns the start-up reads stored in another image.
fn of_other(other: &str) -> Result<SequenceStore, Failure> {
    let image = ImageNamed::required(other, &ImageArgs::default())?.open_file()?;
    let tree = image::tree(Arc::clone(&image), &Options::default())?;
    Ok(SequenceStore::default().with(&brought(&*image, tree.superblock())))
}

fn of_trailer(image: &str, error: &TrailerError) -> Failure {
    let failure = Failure::new(Kind::Failed, format!("can't write to {image}: {}", chain(error)));
    match error {
        TrailerError::Occupied => failure.hint("copy the image into a file of its own"),
        _ => failure,
    }
}
