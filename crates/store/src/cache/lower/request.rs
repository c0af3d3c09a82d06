//! Represents a request for the lower tiers.

use std::sync::Arc;

use crate::cache::passthrough::FileRoom;
use crate::cache::state::CacheState;
use crate::cache::write::Writing;
use crate::objects::request::ObjectRequest;
use crate::priority::Priority;
use crate::progress::Progress;

/// A request that missed the cache and may be answered by a lower tier.
///
/// Exactly one of [`found`](Self::found), [`copied`](Self::copied) and [`not_found`](Self::not_found) is called.
pub(crate) trait LowerRequest: Send {
    /// Returns the requested object.
    fn wanted(&self) -> &ObjectRequest;

    /// Returns the priority, which rises when a demand joins.
    fn priority(&self) -> &Priority;

    /// Returns the progress of the request.
    fn progress(&self) -> &Progress;

    /// Returns the cache that stores the object.
    fn cache(&self) -> &Arc<CacheState>;

    /// Continues with the verified plain bytes of the object.
    fn found(self: Box<Self>, plain: Vec<u8>);

    /// Continues with the verified object, already copied into a file of the cache.
    fn copied(self: Box<Self>, writing: Writing, room: FileRoom);

    /// Continues with the network.
    fn not_found(self: Box<Self>);
}
