//! `esker image ls` and `cat`, and how they open an image.

use std::path::PathBuf;
use std::sync::Arc;

use esker_squashfs::{FileImage, ImageTree, OpenError, Options};

use crate::commands::{cat, ls};
use crate::exit::{Context as _, Failure, Kind, chain};
use crate::output::{Output, parse_size};
use crate::walk::Walk;

/// An image in a file.
#[derive(clap::Args, Clone, Debug)]
pub(super) struct ImageArgs {
    /// The image
    #[arg(value_name = "IMAGE")]
    pub(super) image: PathBuf,

    /// Where it begins in the file, as in SIF and AppImage files
    #[arg(long, value_name = "BYTES", default_value = "0", value_parser = parse_size)]
    pub(super) offset: u64,
}

/// An open image.
pub(super) struct Opened {
    pub(super) tree: Arc<ImageTree>,
    pub(super) name: String,
}

impl ImageArgs {
    pub(super) fn file(&self) -> Result<FileImage, Failure> {
        let what = || format!("can't open {}", self.image.display());
        FileImage::open(&self.image, self.offset).context(Kind::Failed, what())
    }

    pub(super) fn open(&self, options: &Options) -> Result<Opened, Failure> {
        let image = Arc::new(self.file()?);
        let tree = ImageTree::open(image, options).map(Arc::new).map_err(|error| {
            let kind = match error {
                OpenError::Thread(_) => Kind::Failed,
                _ => Kind::Damaged,
            };
            let failure = Failure::new(kind, format!("can't open the image: {}", chain(&error)));
            match error {
                OpenError::NoImage(_) => {
                    failure.hint("if the image is inside another file, say where with --offset")
                }
                _ => failure,
            }
        })?;
        Ok(Opened { tree, name: self.image.display().to_string() })
    }
}

impl Opened {
    pub(super) fn walk(&self) -> Walk<'_> {
        Walk::in_image(&*self.tree, &self.name)
    }
}

/// Lists a directory of an image without mounting it.
///
/// Example: esker image ls stack.sqfs /bin
#[derive(clap::Args, Debug)]
pub(crate) struct LsArgs {
    #[command(flatten)]
    image: ImageArgs,

    /// The directory
    #[arg(value_name = "PATH", default_value = "/")]
    path: String,

    /// Show type, permissions, owner, size and time, too
    #[arg(short, long)]
    long: bool,

    /// Print a JSON array
    #[arg(long)]
    json: bool,
}

pub(crate) fn ls(args: &LsArgs) -> Result<(), Failure> {
    let opened = args.image.open(&Options::default())?;
    ls::show(&opened.walk(), args.path.as_bytes(), args.long, args.json)
}

/// Prints files of an image without mounting it.
///
/// Example: esker image cat stack.sqfs /bin/tool
#[derive(clap::Args, Debug)]
pub(crate) struct CatArgs {
    #[command(flatten)]
    image: ImageArgs,

    /// The files
    #[arg(value_name = "PATH", required = true)]
    paths: Vec<String>,
}

pub(crate) fn cat(args: &CatArgs) -> Result<(), Failure> {
    let opened = args.image.open(&Options::default())?;
    let mut out = Output::new();
    for path in &args.paths {
        let shown = format!("{}:/{}", opened.name, path.trim_start_matches('/'));
        cat::show(&opened.walk(), path.as_bytes(), &shown, "esker image", &mut out)?;
    }
    out.finish()
}
