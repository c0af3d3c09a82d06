//! Start-up reads of programs in an image: recorded on this node, and stored in the image.

use esker_node::repository::sequences;
use esker_prefetch::SequenceStore;
use esker_squashfs::layout::Superblock;
use esker_squashfs::{Image, ImageTree, trailer};

use super::{ImageLocation, ImageNamed};
use crate::settings::Settings;
use crate::settings::args::RepositoryArgs;
use crate::settings::cache;

impl ImageNamed {
    /// Returns the reads recorded on this node; `None` for an image on a server, from which only needed bytes should
    /// be fetched. Without a cache folder they aren't kept.
    pub(crate) fn sequences(
        &self,
        tree: &ImageTree,
        repository: &RepositoryArgs,
        settings: &Settings,
    ) -> Option<SequenceStore> {
        let ImageLocation::File(_) = self.place else { return None };
        let cache = cache::for_recorded_reads(settings, repository);
        Some(SequenceStore::new(
            cache.map(|cache| sequences(&cache, &format!("image-{}", tree.fingerprint()))),
        ))
    }
}

/// Returns the reads stored in an image: empty if it has none.
pub(crate) fn brought(image: &dyn Image, superblock: &Superblock) -> Vec<u8> {
    trailer::read(image, superblock).unwrap_or_default()
}
