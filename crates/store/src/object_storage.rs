//! Stores repositories in buckets: S3 and what speaks its protocol, Google Cloud Storage, Azure Blob Storage.
//!
//! ```text
//!   Sink (blocking) ─► ObjectSink ─► object_store (requests, signatures, retries) ─► Connector ─► transport (DNS, TLS)
//!                        thread `esker-storage`, with the runtime that drives all requests
//! ```
//!
//! A bucket has the layout of a folder: an object is `PREFIX/data/ab/cdef…`, a head is `PREFIX/.cvmfspublished`. The
//! head is replaced by a conditional put, so that publishers need no lock (decision 0119).

mod problem;
mod settings;
mod url;

pub use problem::StorageProblem;
pub use settings::{Environment, StorageSettings};
pub use url::{Bucket, Provider, StorageUrl};
