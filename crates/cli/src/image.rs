//! Recognises arguments that name images, and opens images wherever they are.

mod object;
mod opening;
mod remote;
mod starts;
mod state;

use std::os::unix::fs::FileTypeExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use esker_node::mount_spec::{ImagePlace, ImageSpec};
use esker_node::mounted::ImageMount;
use esker_squashfs::digest::Digest;
use esker_squashfs::{Image, ImageTree, OpenError, Options};

pub(crate) use self::opening::{mount, unauthenticated};
pub(crate) use self::starts::brought;
use crate::error::{Context, Failure, Kind, chain};
use crate::output::parse_size;
use crate::settings::address;
use crate::settings::address::split_path;
use crate::settings::{Settings, SourceSettings};

/// Options for reading an image.
#[derive(clap::Args, Clone, Debug, Default)]
pub(crate) struct ImageArgs {
    /// Offset of the image in the file, if it is not detected
    #[arg(long, value_name = "BYTES", value_parser = parse_size, help_heading = "Images")]
    offset: Option<u64>,

    /// Size and alignment of reads, such as the stripe of a parallel file system, like 1M
    #[arg(long, value_name = "SIZE", value_parser = parse_size, help_heading = "Images")]
    stripe: Option<u64>,

    /// Root digest from `esker image digest`, with which every block of an image on a server is checked
    #[arg(long, value_name = "ROOT", value_parser = digest, help_heading = "Images")]
    digest: Option<Digest>,
}

/// Parses a digest.
pub(crate) fn digest(text: &str) -> Result<Digest, String> {
    Digest::parse(text).ok_or_else(|| format!("{text:?} is not a digest of 64 hexadecimal digits"))
}

/// Location of an image.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum ImageLocation {
    /// A file of this machine.
    File(PathBuf),
    /// A file on a web server.
    Url(String),
    /// A file in a repository: its URL or name, and the path.
    Object(String, String),
}

/// An image named by an argument, with the options for reading it.
#[derive(Clone, Debug)]
pub(crate) struct ImageNamed {
    pub(crate) place: ImageLocation,
    args: ImageArgs,
}

/// Authentication of an image's bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Trust {
    /// Permissions of the file.
    File,
    /// The digest on the command line.
    Digest,
    /// The repository that contains the image.
    Repository,
    /// No authentication.
    None,
}

/// An image whose bytes can be read.
pub(crate) struct Opened {
    pub(crate) image: Arc<dyn Image>,
    pub(crate) trust: Trust,
}

/// File extensions in URLs that name an image rather than a repository.
const ENDINGS: [&str; 6] = [".sqfs", ".squashfs", ".sfs", ".sif", ".simg", ".img"];

/// Returns true if a name ends like that of an image.
pub(crate) fn is_called_one(name: &str) -> bool {
    ENDINGS.iter().any(|ending| name.ends_with(ending))
}

impl ImageLocation {
    /// Returns true if an argument has the form of an image file's path and no such file exists.
    fn is_missing(text: &str) -> bool {
        is_called_one(text) && !text.contains("://") && std::fs::symlink_metadata(text).is_err()
    }

    /// Returns the location of an image that an argument names; `None` if it names a repository, or nothing. A file is
    /// no repository: those are named by URLs and bare names.
    pub(crate) fn of(text: &str, args: &ImageArgs) -> Option<Self> {
        let is_web = text.starts_with("http://") || text.starts_with("https://");
        let has_scheme = text.contains("://");
        if !has_scheme && std::fs::metadata(text).is_ok_and(|meta| !meta.is_dir()) {
            return Some(Self::File(text.into()));
        }
        if let (place, Some(path)) = split_path(text)
            && (has_scheme || address::is_name(place))
        {
            return Some(Self::Object(place.to_owned(), path.to_owned()));
        }
        let file = text.split('?').next().unwrap_or(text);
        let is_image = args.digest.is_some() || is_called_one(file);
        (is_web && is_image).then(|| Self::Url(text.to_owned()))
    }
}

/// Refuses files without random access, whose opening may block.
fn check_kind(path: &Path) -> Result<(), Failure> {
    let kind =
        std::fs::metadata(path).context(Kind::Failed, format!("can't open {}", path.display()))?.file_type();
    let is = match () {
        () if kind.is_fifo() => "a pipe",
        () if kind.is_socket() => "a socket",
        () if kind.is_char_device() => "a device",
        () => return Ok(()),
    };
    let failure = Failure::usage(format!("{} is {is}, and no image can be read from it", path.display()));
    Err(failure.hint("an image is read in any order: write it to a file first, and name that"))
}

impl ImageNamed {
    /// Returns the image that an argument names, if it names one.
    pub(crate) fn of(text: &str, args: &ImageArgs) -> Result<Option<Self>, Failure> {
        let place = match ImageLocation::of(text, args) {
            None if ImageLocation::is_missing(text) => {
                return Err(Failure::failed(format!("can't open {text}: No such file or directory"))
                    .hint("name an image that is there; one in a repository is NAME:/path"));
            }
            None if args.offset.is_some() || args.stripe.is_some() || args.digest.is_some() => {
                return Err(Failure::usage(format!(
                    "{text} is not an image, so --offset, --stripe and --digest have no effect"
                )));
            }
            None => return Ok(None),
            // The serving process may be in another directory.
            Some(ImageLocation::File(path)) => {
                check_kind(&path)?;
                let path = std::fs::canonicalize(path).context(Kind::Failed, format!("can't open {text}"))?;
                ImageLocation::File(path)
            }
            Some(place) => place,
        };
        if args.digest.is_some() && !matches!(place, ImageLocation::Url(_)) {
            return Err(Failure::usage(format!("{text}: --digest is for images on servers"))
                .hint("`esker image verify --digests LIST --root ROOT` checks a file"));
        }
        Ok(Some(Self { place, args: args.clone() }))
    }

    /// Returns the image that an argument names, for a command that takes only images.
    pub(crate) fn required(text: &str, args: &ImageArgs) -> Result<Self, Failure> {
        Self::of(text, args)?.ok_or_else(|| {
            let endings = ENDINGS.join(", ");
            Failure::failed(format!("can't open {text}: it is not there, or no image")).hint(format!(
                "name a file, the URL of an image (that ends in {endings}, or with --digest), or NAME:/path"
            ))
        })
    }

    /// Returns the name of the image for messages.
    pub(crate) fn describe(&self) -> String {
        match &self.place {
            ImageLocation::File(path) => path.display().to_string(),
            ImageLocation::Url(url) => url.clone(),
            ImageLocation::Object(place, path) => format!("{place}:{path}"),
        }
    }

    /// Returns the warning about an image without authentication.
    pub(crate) fn warning(&self) -> Option<String> {
        match &self.place {
            ImageLocation::Url(url) if self.args.digest.is_none() => Some(unauthenticated(url)),
            _ => None,
        }
    }

    /// Returns the identity that distinguishes the image from others in shared mounts.
    pub(crate) fn identity(&self) -> String {
        format!("{:?} {:?}", self.place, self.args)
    }

    /// Resolves the options with which any process can open the image.
    pub(crate) fn resolve(&self, sources: &SourceSettings) -> Result<ImageSpec, Failure> {
        let ImageArgs { offset, stripe, digest } = self.args;
        let place = match &self.place {
            ImageLocation::File(path) => {
                let cache = sources.cache_for_recorded_reads().unwrap_or_default();
                ImagePlace::File { path: path.clone(), cache }
            }
            ImageLocation::Url(url) => remote::resolve(url, digest, sources)?,
            ImageLocation::Object(place, path) => object::resolve(place, path, sources)?,
        };
        Ok(ImageSpec { place, offset, stripe, owner: options(sources.user()).owner })
    }

    /// Opens the image as a sequence of bytes.
    pub(crate) fn open(&self, sources: &SourceSettings) -> Result<Opened, Failure> {
        opening::open(&mut self.resolve(sources)?, None)
    }

    /// Opens the image as a sequence of bytes if it is a local file.
    pub(crate) fn open_file(&self) -> Result<Arc<dyn Image>, Failure> {
        match &self.place {
            ImageLocation::File(path) => {
                let ImageArgs { offset, stripe, .. } = self.args;
                Ok(Arc::new(opening::file(path, (offset, stripe), None)?))
            }
            _ => Err(Failure::usage(format!("{} is not a file of this machine", self.describe()))
                .hint("mount it, and name a folder in it")),
        }
    }

    /// Opens the image for a mount of this process. `first_ids` are the numbers of the user and the group that the
    /// image's numbers 0 stand for.
    pub(crate) fn mount(
        &self,
        sources: &SourceSettings,
        first_ids: (u32, u32),
    ) -> Result<ImageMount, Failure> {
        opening::mount_from(&mut self.resolve(sources)?, None, first_ids)
    }
}

/// Returns the options of a mounted image: for an ordinary user all files are their own, as in a repository.
pub(crate) fn options(settings: &Settings) -> Options {
    let ids = || (rustix::process::geteuid().as_raw(), rustix::process::getegid().as_raw());
    Options { owner: (!settings.root).then(ids), ..Options::default() }
}

/// Opens an image as a tree.
pub(crate) fn tree(image: Arc<dyn Image>, options: &Options) -> Result<ImageTree, Failure> {
    ImageTree::open(image, options).map_err(|error| {
        let kind = match error {
            OpenError::Thread(_) => Kind::Failed,
            _ => Kind::Damaged,
        };
        let failure = Failure::new(kind, format!("can't open {}", chain(&error)));
        match error {
            OpenError::NoImage(_) => {
                failure.hint("if the image is inside another file, give its position with --offset")
            }
            _ => failure,
        }
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn images_are_distinguished_from_repositories() {
        let none = ImageArgs::default();
        let digest = ImageArgs { digest: Some(Digest([1; 32])), ..ImageArgs::default() };
        let url = |text: &str| Some(ImageLocation::Url(text.to_owned()));
        for image in ["http://h/a.sqfs", "https://h:1/a/b.sif", "https://h/a.img?key=1"] {
            assert_eq!(ImageLocation::of(image, &none), url(image), "{image}");
        }
        for repository in ["http://h/cvmfs/sw.example.org", "sw.example.org", "sw", "https://h/a?b.sqfs"] {
            assert_eq!(ImageLocation::of(repository, &none), None, "{repository}");
        }
        assert_eq!(ImageLocation::of("http://h/latest", &digest), url("http://h/latest"));
        let object = |place: &str, path: &str| Some(ImageLocation::Object(place.to_owned(), path.to_owned()));
        assert_eq!(ImageLocation::of("sw.example.org:/a/b", &none), object("sw.example.org", "/a/b"));
        assert_eq!(
            ImageLocation::of("http://h:80/cvmfs/sw:/a.sqfs", &none),
            object("http://h:80/cvmfs/sw", "/a.sqfs")
        );
    }
}
