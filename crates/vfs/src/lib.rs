//! Defines mountable read-only trees: the `Tree` trait, its types, and the errno table.
//!
//! A [`Tree`] is anything that can be mounted: a revision of a repository, a squashfs image, a fake in a
//! test. Mounts (the `fuse` crate) know nothing else of it, and trees know nothing of mounts. Calls never
//! block on slow operations: a result that has to wait for the network is delivered later, on another thread,
//! through the [`Reply`].
#![forbid(unsafe_code)]

mod attr;
mod data;
mod error;
mod listing;
mod node;
mod origin;
mod reply;
mod requester;
mod tree;

pub use attr::{Attr, Device, Kind, StatFs, Time};
pub use data::{Data, LocalFile, Segment};
pub use error::{ErrorKind, TreeError, errno};
pub use listing::{Cookie, DirEntry, FIRST_COOKIE, LAST_COOKIE, Listing, whole_listing};
pub use node::{Ino, Node, NodeKey, PAYLOAD_LEN, Payload};
pub use origin::Origin;
pub use reply::Reply;
pub use requester::{OriginOf, Pending, Progress, Requester, Waits};
pub use tree::{Change, NodeWithAttr, Tree, Watcher};
