//! Images: which arguments name one, and opening it as a tree.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::SystemTime;

use esker_node::mounted::ImageMount;
use esker_node::status::{Failure as Failed, Image, seconds};
use esker_squashfs::{FileImage, ImageTree, OpenError, Options};

use crate::exit::{Context, Failure, Kind, chain};
use crate::output::parse_size;
use crate::settings::Settings;

/// How an image is read.
#[derive(clap::Args, Clone, Debug, Default)]
pub(crate) struct ImageArgs {
    /// Of an image: where in the file it begins, if it isn't found by itself
    #[arg(long, value_name = "BYTES")]
    offset: Option<u64>,

    /// Of an image: read so much at once, aligned; the stripe of a parallel file system, like 1M
    #[arg(long, value_name = "SIZE", value_parser = parse_size)]
    stripe: Option<u64>,
}

impl ImageArgs {
    fn named(&self) -> bool {
        self.offset.is_some() || self.stripe.is_some()
    }
}

/// An image in a file.
#[derive(Debug)]
pub(crate) struct ImageFile {
    pub(crate) path: PathBuf,
    offset: u64,
    stripe: usize,
}

impl ImageFile {
    /// The image that an argument names; none if it names a repository. What is a file is no repository: those are
    /// named by URLs and bare names.
    pub(crate) fn named(place: &str, args: &ImageArgs) -> Result<Option<Self>, Failure> {
        let path = Path::new(place);
        let is_file = !place.contains("://") && std::fs::metadata(path).is_ok_and(|meta| !meta.is_dir());
        if !is_file {
            return if args.named() {
                Err(Failure::usage(format!("{place} is no file, so --offset and --stripe mean nothing")))
            } else {
                Ok(None)
            };
        }
        let what = format!("can't open {place}");
        let path = std::fs::canonicalize(path).context(Kind::Failed, what.as_str())?;
        let offset = match args.offset {
            Some(offset) => offset,
            None => {
                let found = esker_squashfs::find(&path).context(Kind::Failed, what.as_str())?;
                found.ok_or_else(|| {
                    Failure::failed(format!("{what}: there is no squashfs image in it"))
                        .hint("if one begins somewhere inside, say where with --offset")
                })?
            }
        };
        let stripe = usize::try_from(args.stripe.unwrap_or(0)).unwrap_or(usize::MAX);
        Ok(Some(Self { path, offset, stripe }))
    }

    /// Opens it. An ordinary user sees everything as their own, as of a repository.
    pub(crate) fn open(&self, settings: &Settings) -> Result<ImageTree, Failure> {
        let what = format!("can't open {}", self.path.display());
        let file = FileImage::open(&self.path, self.offset).context(Kind::Failed, what)?;
        let ids = || (rustix::process::geteuid().as_raw(), rustix::process::getegid().as_raw());
        let owner = (!settings.root).then(ids);
        let image = Arc::new(file.with_stripe(self.stripe));
        ImageTree::open(image, &Options { owner, ..Options::default() }).map_err(|error| of_image(&error))
    }

    /// The name of the file.
    pub(crate) fn name(&self) -> String {
        self.path.file_name().map_or_else(|| "image".into(), |name| name.to_string_lossy()).into_owned()
    }

    /// Opens it for a mount.
    pub(crate) fn mount(&self, settings: &Settings) -> Result<ImageMount, Failure> {
        let tree = Arc::new(self.open(settings)?);
        let told = Arc::clone(&tree);
        Ok(ImageMount {
            tree,
            name: self.name(),
            place: self.path.display().to_string(),
            status: Box::new(move || status(&told)),
        })
    }
}

fn of_image(error: &OpenError) -> Failure {
    Failure::failed(format!("can't open {}", chain(error)))
}

fn status(tree: &ImageTree) -> (Image, Vec<Failed>) {
    let (superblock, status) = (tree.superblock(), tree.status());
    let image = Image {
        codec: superblock.codec.name().to_owned(),
        block_bytes: superblock.block_size.into(),
        bytes: superblock.bytes_used,
        blocks: status.blocks,
        read_bytes: status.stored_bytes,
        read_ahead: status.ahead,
        kept_bytes: status.kept_bytes,
    };
    let failed = |(time, cause, caller): (SystemTime, String, Option<u32>)| Failed {
        time: seconds(time),
        object: status.image.clone(),
        cause,
        caller,
    };
    (image, status.failures.iter().cloned().map(failed).collect())
}
