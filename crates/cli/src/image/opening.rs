//! Opens images from their resolved options.

use std::os::fd::{AsRawFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use esker_node::mount_spec::{ImagePlace, ImageSpec};
use esker_node::mounted::ImageMount;
use esker_squashfs::{FileImage, Options};

use super::starts::{brought, recorded};
use super::{Opened, Trust, object, remote, state, tree};
use crate::error::{Context, Failure, Kind};

/// Opens an image for a mount. `file` is the file of the image, if it is open. Records the revision or version of the image
/// in the options, for processes that follow.
pub(crate) fn mount(spec: &mut ImageSpec, file: Option<&OwnedFd>) -> Result<ImageMount, Failure> {
    mount_from(spec, file, (0, 0))
}

/// Like [`mount`]; `first_ids` are the numbers of the user and the group that the image's numbers 0 stand for.
pub(super) fn mount_from(
    spec: &mut ImageSpec,
    file: Option<&OwnedFd>,
    first_ids: (u32, u32),
) -> Result<ImageMount, Failure> {
    let Opened { image, trust } = open(spec, file)?;
    let options = Options { owner: spec.owner, first_ids, ..Options::default() };
    let tree = Arc::new(tree(Arc::clone(&image), &options)?);
    let told = Arc::clone(&tree);
    Ok(ImageMount {
        sequences: recorded(spec, &tree).map(|known| known.with(&brought(&*image, tree.superblock()))),
        tree,
        name: spec.name(),
        place: spec.describe(),
        fingerprint: told.fingerprint(),
        status: Box::new(move || state::of(&told, trust)),
    })
}

/// Opens an image as a sequence of bytes.
pub(super) fn open(spec: &mut ImageSpec, file: Option<&OwnedFd>) -> Result<Opened, Failure> {
    let offset = spec.offset.unwrap_or(0);
    Ok(match &mut spec.place {
        ImagePlace::File { path, .. } => {
            let image = self::file(path, (spec.offset, spec.stripe), file)?;
            Opened { image: Arc::new(image), trust: Trust::File }
        }
        ImagePlace::Url { url, servers, digest, known, cache, quota, deadline, kept } => {
            let trust = if digest.is_some() { Trust::Digest } else { Trust::None };
            let root = digest.as_deref().map(super::digest).transpose().map_err(Failure::usage)?;
            let (quota, deadline) = (*quota, *deadline);
            let image = remote::Remote { url, servers, root, cache, quota, deadline, kept };
            let image = image.open(offset, known)?;
            Opened { image: Arc::new(image), trust }
        }
        ImagePlace::Object { repository, path, .. } => {
            let image = object::open(repository, path, offset)?;
            Opened { image: Arc::new(image), trust: Trust::Repository }
        }
    })
}

/// Opens an image in a file: the open one if there is one, since its name may be that of another file by now.
pub(super) fn file(
    path: &Path,
    (offset, stripe): (Option<u64>, Option<u64>),
    opened: Option<&OwnedFd>,
) -> Result<FileImage, Failure> {
    let what = format!("can't open {}", path.display());
    let name = path.display().to_string();
    let opened = opened.map(|file| PathBuf::from(format!("/proc/self/fd/{}", file.as_raw_fd())));
    let path = opened.as_deref().unwrap_or(path);
    let offset = match offset {
        Some(offset) => offset,
        None => {
            let found = esker_squashfs::find(path).context(Kind::Failed, what.as_str())?;
            found.ok_or_else(|| {
                Failure::new(Kind::Damaged, format!("{what}: there is no squashfs image in it"))
                    .hint("if one begins inside, give its position with --offset")
            })?
        }
    };
    let stripe = usize::try_from(stripe.unwrap_or(0)).unwrap_or(usize::MAX);
    Ok(FileImage::open(path, offset).context(Kind::Failed, what)?.with_stripe(stripe).with_name(&name))
}

/// Returns the warning about an image on a server that is mounted without its digest.
pub(crate) fn unauthenticated(url: &str) -> String {
    format!(
        "{url} is not authenticated: its server, or an attacker on the network, could send other data unnoticed; give its digest (`esker image digest`) with --digest"
    )
}
