//! What whoever opens a view may choose.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::time::Duration;

use esker_format::hash::ContentHash;
use esker_format::time::UnixTime;

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
    pub trails: Option<PathBuf>,
    /// Most catalogs mounted at once, at least 64; `None` for [`crate::ATTACHED_MAX`].
    pub attached_max: Option<usize>,
}
