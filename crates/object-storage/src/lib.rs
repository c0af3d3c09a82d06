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

mod address;
mod connect;
mod connector;
mod failure;
mod open;
mod probe;
mod profile;
mod profile_key;
mod replace;
mod requests;
mod runtime;
mod settings;
mod sink;
mod source;
mod url;

pub use address::{is_bucket, reading_url};
pub use connect::{connect, connect_bucket, open_storage};
pub use open::public_url;
pub use settings::{Environment, StorageSettings};
pub use sink::ObjectSink;
pub use url::{Bucket, Provider, StorageUrl};
