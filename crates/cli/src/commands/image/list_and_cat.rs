//! Implements `esker image ls` and `cat`, and opens their image.

use std::collections::HashSet;
use std::ffi::OsString;
use std::os::unix::ffi::OsStrExt;
use std::sync::Arc;

use esker_squashfs::{Image, ImageTree, Options};
use esker_vfs::{Node, NodeKey};

use crate::commands::{cat, ls};
use crate::error::{Failure, Kind, warn};
use crate::image::{self, ImageNamed};
use crate::output::{Output, lossy};
use crate::settings::args::RepositoryArgs;
use crate::settings::{Settings, SourceSettings};
use crate::trees::walk::Walk;

/// Argument that names an image.
#[derive(clap::Args, Clone, Debug)]
pub(crate) struct NamedArgs {
    /// Image: a file, a URL, or a file of a repository as NAME:/path
    #[arg(value_name = "IMAGE")]
    pub(super) image: String,

    #[command(flatten)]
    how: image::ImageArgs,

    #[command(flatten)]
    repository: RepositoryArgs,
}

/// An open image.
pub(super) struct Opened {
    pub(super) tree: Arc<ImageTree>,
    pub(super) name: String,
}

impl NamedArgs {
    /// Opens the image as a sequence of bytes.
    pub(super) fn bytes(&self, settings: &Settings) -> Result<Arc<dyn Image>, Failure> {
        let named = ImageNamed::required(&self.image, &self.how)?;
        let opened = named.open(&SourceSettings::new(&self.repository, settings))?;
        warn(named.warning().as_deref());
        Ok(opened.image)
    }

    pub(super) fn open(&self, settings: &Settings) -> Result<Opened, Failure> {
        let tree = image::tree(self.bytes(settings)?, &Options::default())?;
        Ok(Opened { tree: Arc::new(tree), name: self.image.clone() })
    }
}

impl Opened {
    /// Opens an image in a file.
    pub(super) fn file(path: &str) -> Result<Self, Failure> {
        let named = ImageNamed::required(path, &image::ImageArgs::default())?;
        let tree = image::tree(named.open_file()?, &Options::default())?;
        Ok(Self { tree: Arc::new(tree), name: path.to_owned() })
    }

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
    image: NamedArgs,

    /// Directory
    #[arg(value_name = "PATH", default_value = "/")]
    path: OsString,

    /// Show type, permissions, owner, size and time too
    #[arg(short, long)]
    long: bool,

    /// Print JSON
    #[arg(long)]
    json: bool,
}

pub(crate) fn ls(args: &LsArgs, settings: &Settings) -> Result<(), Failure> {
    let opened = args.image.open(settings)?;
    ls::show(&opened.walk(), args.path.as_bytes(), args.long, args.json)
}

/// Prints files of an image without mounting it.
///
/// Example: esker image cat stack.sqfs /bin/tool
#[derive(clap::Args, Debug)]
pub(crate) struct CatArgs {
    #[command(flatten)]
    image: NamedArgs,

    /// Files
    #[arg(value_name = "PATH", required = true)]
    paths: Vec<OsString>,
}

pub(crate) fn cat(args: &CatArgs, settings: &Settings) -> Result<(), Failure> {
    let opened = args.image.open(settings)?;
    let mut out = Output::new();
    for path in &args.paths {
        let shown = format!("{}:/{}", opened.name, path.to_string_lossy().trim_start_matches('/'));
        cat::show(&opened.walk(), path.as_bytes(), &shown, "esker image", &mut out)?;
    }
    out.finish()
}

/// Directories visited so far: a damaged image may list a directory in itself, which would be an endless walk.
/// A damaged image may have one in itself, or in two others, so that going through all of it doesn't end.
#[derive(Default)]
pub(super) struct Visited(HashSet<NodeKey>);

impl Visited {
    /// Starts with the root alone.
    pub(super) fn at(root: &Node) -> Self {
        Self(HashSet::from([root.key]))
    }

    /// Records a directory; an error if it was visited before.
    pub(super) fn enter(&mut self, node: &Node, path: &[u8]) -> Result<(), Failure> {
        if self.0.insert(node.key) {
            return Ok(());
        }
        Err(Failure::new(Kind::Damaged, format!("{} is a directory that is elsewhere, too", lossy(path))))
    }
}
