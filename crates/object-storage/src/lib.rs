//! Stores repositories in buckets: S3 and what speaks its protocol, Google Cloud Storage, Azure Blob Storage.
//!
//! ```text
//!   ObjectSink (blocking) ─► Requests ─► object_store (signatures, retries) ─► Connector ─► store (DNS, TLS)
//!                            thread `esker-storage`, with the runtime that drives all connections
//! ```
//!
//! A bucket has the layout of a folder: an object is `PREFIX/data/ab/cdef…`, a head is `PREFIX/.cvmfspublished`. The
//! head is replaced by a conditional put, so that publishers need no lock (decision 0119).
#![forbid(unsafe_code)]
// Without the clients of providers, what only they call is unused.
#![cfg_attr(not(feature = "providers"), allow(dead_code))]

mod address;
mod connect;
#[cfg(feature = "providers")]
mod providers;
#[cfg(not(feature = "providers"))]
#[path = "no_providers.rs"]
mod providers;
mod settings;
mod url;

pub use address::{is_bucket, reading_url};
pub use connect::{connect, open_storage};
#[cfg(feature = "providers")]
pub use providers::ObjectSink;
pub use providers::{connect_bucket, public_url};
pub use settings::{Environment, StorageSettings};
pub use url::{Bucket, Provider, StorageUrl};
