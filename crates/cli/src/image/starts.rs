//! Start-up reads of programs in an image: recorded on this node, and stored in the image.

use esker_node::mount_spec::{ImagePlace, ImageSpec};
use esker_node::repository::sequences;
use esker_prefetch::SequenceStore;
use esker_squashfs::layout::Superblock;
use esker_squashfs::{Image, ImageTree, trailer};

use super::ImageNamed;
use crate::settings::SourceSettings;

impl ImageNamed {
    /// Returns the reads recorded on this node; `None` for an image on a server, from which only needed bytes should
    /// be fetched. Without a cache folder they aren't kept.
    pub(crate) fn sequences(&self, tree: &ImageTree, sources: &SourceSettings) -> Option<SequenceStore> {
        recorded(&self.resolve(sources).ok()?, tree)
    }
}

/// Returns the reads of an image that are recorded on this node.
pub(super) fn recorded(spec: &ImageSpec, tree: &ImageTree) -> Option<SequenceStore> {
    let ImagePlace::File { cache, .. } = &spec.place else { return None };
    let file = || sequences(cache, &format!("image-{}", tree.fingerprint()));
    Some(SequenceStore::new((!cache.as_os_str().is_empty()).then(file)))
}

/// Returns the reads stored in an image: empty if it has none.
pub(crate) fn brought(image: &dyn Image, superblock: &Superblock) -> Vec<u8> {
    trailer::read(image, superblock).unwrap_or_default()
}
