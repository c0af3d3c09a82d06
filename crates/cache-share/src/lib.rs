//! Shares caches between the mounts of a user or a node: one writer for each cache, its clients, and the broker.
//!
//! ```text
//!   View ──► SharedCache ──┬── as writer: Objects ──► cache folder
//!                          └── as client ── socket ── the writer in another process, or the broker of the node
//! ```
//!
//! [`location`] chooses the folder, [`memory`] makes one in memory, [`CacheOpener`] opens it for writing, and [`admin`]
//! administers it.
#![deny(unsafe_code)]

pub mod admin;
pub mod broker;
mod file_error;
pub mod location;
pub mod memory;
mod opener;
pub mod peer;
mod shared_cache;
pub mod shown_path;
mod socket_place;
mod sys;

pub use file_error::FileError;
pub use opener::{CacheOpener, room};
pub use shared_cache::{
    BrokerAddress, CacheSocket, ObjectProvider, OpenWriter, Opener, SharedCache, Writer, set_cache_sockets,
};
pub use socket_place::SocketPlace;
