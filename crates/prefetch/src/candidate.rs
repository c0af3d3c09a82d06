//! Candidates for prefetching.

use std::sync::Arc;

use esker_store::ObjectRequest;

use crate::folders::{Folder, Leaf};

/// An object that may be read soon.
#[derive(Debug)]
pub struct Candidate {
    /// Request for the object.
    pub wanted: ObjectRequest,
    /// Plain bytes of the object.
    pub size: u64,
    /// Folder of the file, if the candidate was predicted from the folders of other reads.
    pub folder: Option<Arc<Folder>>,
    /// Sequence number among the low-confidence candidates.
    pub number: u64,
}

impl Candidate {
    /// Returns a candidate that is in no predicted folder.
    pub fn new(wanted: ObjectRequest, size: u64) -> Self {
        Self { wanted, size, folder: None, number: 0 }
    }

    /// Returns a candidate predicted from the reads in its folder.
    pub fn of(leaf: &Leaf) -> Self {
        Self { folder: Some(leaf.folder()), ..Self::new(leaf.wanted(), leaf.size()) }
    }
}
