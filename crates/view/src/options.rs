//! Options of a view.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use esker_format::copied_xattr::OverlayOwner;
use esker_format::hash::ContentHash;
use esker_format::time::UnixTime;
use esker_journal::Journal;
use serde::{Deserialize, Serialize};

use crate::magic::Visibility;

/// Owner that files appear to have.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub enum Ownership {
    /// Owner and group as published.
    #[default]
    AsPublished,
    /// All files have the same owner and group.
    Claim {
        /// Owner of all files.
        uid: u32,
        /// Group of all files.
        gid: u32,
    },
    /// Owner and group as published, counted from these numbers.
    From {
        /// Number of the user that is published as 0.
        uid: u32,
        /// Number of the group that is published as 0.
        gid: u32,
    },
}

/// Map of published users or groups.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct IdMap {
    /// Numbers to show, by published number.
    pub known: BTreeMap<u32, u32>,
    /// Number shown for all other ids; the published number if `None`.
    pub others: Option<u32>,
}

impl IdMap {
    /// Returns the number to show for a published number.
    pub fn shown(&self, published: u32) -> u32 {
        self.known.get(&published).copied().or(self.others).unwrap_or(published)
    }
}

/// Revision to stay at instead of following the head.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Pin {
    /// The head at the time of opening.
    Head,
    /// The revision with this tag in the signed history.
    Tag(String),
    /// The newest revision of the default branch that was published no later than this: the head, or a tagged one.
    Date(UnixTime),
    /// The revision with this root catalog, without a check that it was published.
    Root(#[serde(with = "esker_format::serde_text")] ContentHash),
}

/// Options of a view.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ViewOptions {
    /// Owner that files appear to have.
    pub ownership: Ownership,
    /// Map of published users, if owners are shown as published.
    pub uids: IdMap,
    /// Map of published groups, if owners are shown as published.
    pub gids: IdMap,
    /// True if all files are readable for all users, and all directories can be entered.
    pub world_readable: bool,
    /// Listings that show magic attributes.
    pub magic: Visibility,
    /// Values of variables in variant symlinks; others have their defaults.
    pub variables: BTreeMap<String, String>,
    /// True to show targets of variant symlinks as they were published. Paths are resolved with the variables all the same.
    pub raw_targets: bool,
    /// Owner of an overlay whose lower layer this is, and which must not be shown attributes that it can't copy.
    pub overlay: Option<OverlayOwner>,
    /// Time between two checks for a new head, in place of the repository's.
    pub ttl: Option<Duration>,
    /// Maximum time between two checks, overriding the repository's.
    pub ttl_max: Option<Duration>,
    /// Revision to stay at.
    pub pin: Option<Pin>,
    /// True if files are prefetched that a program will probably read next.
    pub prefetch: bool,
    /// True if nothing is prefetched because a bundle names it.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub without_bundles: bool,
    /// File that stores recorded sequences of reads, for later prefetches.
    #[serde(skip)]
    pub sequences: Option<PathBuf>,
    /// Record of the view for a process that takes over. If it has one already, the view goes on with it, and checks for
    /// a new head only after [`esker_vfs::Tree::resumed`].
    #[serde(skip)]
    pub journal: Option<Arc<Journal>>,
    /// Maximum number of mounted catalogs, at least 64; `None` for [`crate::ATTACHED_MAX`].
    pub attached_max: Option<usize>,
}
