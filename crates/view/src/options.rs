//! What whoever opens a view may choose.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::time::Duration;

use esker_format::hash::ContentHash;
use esker_format::time::UnixTime;

use crate::magic::Visibility;

/// Whose the files appear to be.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Ownership {
    /// Owner and group as published.
    #[default]
    AsPublished,
    /// Everything belongs to this owner and group.
    Claim {
        /// Owner of everything.
        uid: u32,
        /// Group of everything.
        gid: u32,
    },
}

/// Other numbers in place of published owners or groups.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct IdMap {
    /// What some are shown as.
    pub known: BTreeMap<u32, u32>,
    /// What all others are shown as; as published if nothing is said.
    pub others: Option<u32>,
}

impl IdMap {
    /// What a published number is shown as.
    pub fn shown(&self, published: u32) -> u32 {
        self.known.get(&published).copied().or(self.others).unwrap_or(published)
    }
}

/// A revision to stay at instead of following the head.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Pin {
    /// The head at the time it is opened.
    Head,
    /// The revision that the signed history knows by this name.
    Tag(String),
    /// The newest revision of the default branch that was published no later than this: the head, or one that the signed
    /// history has a name for.
    Date(UnixTime),
    /// The revision with this root catalog, by the word of whoever typed the hash.
    Root(ContentHash),
}

/// How a view behaves.
#[derive(Clone, Debug, Default)]
pub struct ViewOptions {
    /// Whose the files appear to be.
    pub ownership: Ownership,
    /// What published owners are shown as, where they are shown as published.
    pub uids: IdMap,
    /// The same for groups.
    pub gids: IdMap,
    /// Everybody may read everything, and enter every directory.
    pub world_readable: bool,
    /// Where attributes that tell of the repository are listed.
    pub magic: Visibility,
    /// Values of variables in variant symlinks; one that isn't here takes its default.
    pub variables: BTreeMap<String, String>,
    /// Time between two looks for a new head, in place of what the repository says.
    pub ttl: Option<Duration>,
    /// The longest time between two looks, whatever the repository says.
    pub ttl_max: Option<Duration>,
    /// A revision to stay at.
    pub pin: Option<Pin>,
    /// Fetch ahead what a program that misses a file will probably read next.
    pub prefetch: bool,
    /// The file in which it is kept what programs read one after the other, so that it can be fetched ahead the next time.
    pub sequences: Option<PathBuf>,
    /// Most catalogs mounted at once, at least 64; `None` for [`crate::ATTACHED_MAX`].
    pub attached_max: Option<usize>,
}
