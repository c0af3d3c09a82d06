//! Origin of the data of a reply, for traces.

use std::sync::Arc;

/// Place from which the data of a reply came.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Origin {
    /// A server, with its URL.
    Server(Arc<str>),
    /// Another process that fetches objects for this one, with the path of its socket or cache.
    Process(Arc<str>),
    /// A lower tier of the cache, with its path.
    Lower(Arc<str>),
    /// An image, with its path or URL.
    Image(Arc<str>),
}
