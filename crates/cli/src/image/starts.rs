//! What is known of how programs start from an image: what the node has seen, and what came with the image.

use esker_node::repository::sequences;
use esker_prefetch::SequenceStore;
use esker_squashfs::layout::Superblock;
use esker_squashfs::{Image, ImageTree, trailer};

use super::{ImageLocation, ImageNamed};
use crate::args::RepositoryArgs;
use crate::settings::Settings;

impl ImageNamed {
    /// What the node has seen; none if the image comes from a server, of whose bytes only those that are needed should be
    /// asked for. It isn't kept if there is no place for it.
    pub(crate) fn sequences(
        &self,
        tree: &ImageTree,
        repository: &RepositoryArgs,
        settings: &Settings,
    ) -> Option<SequenceStore> {
        let ImageLocation::File(_) = self.place else { return None };
        let cache = settings.cache_of_sequences(repository);
        Some(SequenceStore::new(
            cache.map(|cache| sequences(&cache, &format!("image-{}", tree.fingerprint()))),
        ))
    }
}

/// What came with an image: nothing if nobody has told it.
pub(crate) fn brought(image: &dyn Image, superblock: &Superblock) -> Vec<u8> {
    trailer::read(image, superblock).unwrap_or_default()
}
