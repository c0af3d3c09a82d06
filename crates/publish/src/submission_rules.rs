//! What the commit of submissions asks and does beside that of publishers with keys.

use std::sync::atomic::{AtomicBool, Ordering};

use esker_format::hash::ContentHash;
use esker_format::time::UnixTime;

use crate::error::PublishError;

/// Function that is called before each attempt to replace the head, with the places of the submissions in their list, and the root
/// catalog and the number of the new revision, or none if only tags change; an error ends the commit with nothing published.
pub type BeforeHead<'r> =
    dyn Fn(&[usize], Option<(&ContentHash, u64)>) -> Result<(), PublishError> + Sync + 'r;

/// Rules of the commit of submissions beside that of other publishers.
#[derive(Clone, Copy)]
pub struct SubmissionRules<'r> {
    /// Called before each attempt to replace the head.
    pub before_head: &'r BeforeHead<'r>,
    /// Tags that are removed with the commit.
    pub removed_tags: &'r [String],
    /// Time before which automatic tags are removed.
    pub tags_before: Option<UnixTime>,
}

/// The commit of some submissions.
#[derive(Clone, Copy)]
pub(crate) struct CommitRules<'r> {
    pub(crate) rules: SubmissionRules<'r>,
    /// Places of these submissions in their list.
    pub(crate) places: &'r [usize],
    /// True from an attempt to replace the head until it is known to have failed.
    pub(crate) may_be_public: &'r AtomicBool,
}

impl CommitRules<'_> {
    /// Tells that the head is about to name a new revision, or the same one if none is given; an error refuses it.
    pub(crate) fn before_head(&self, next: Option<(&ContentHash, u64)>) -> Result<(), PublishError> {
        (self.rules.before_head)(self.places, next)?;
        self.may_be_public.store(true, Ordering::Relaxed);
        Ok(())
    }

    /// Tells that the head was not replaced.
    pub(crate) fn head_stayed(&self) {
        self.may_be_public.store(false, Ordering::Relaxed);
    }
}
