//! Stores repositories in buckets: S3 and what speaks its protocol, Google Cloud Storage, Azure Blob Storage.
//!
//! ```text
//!   ObjectSink (blocking) ─► Requests ─► object_store (signatures, retries) ─► Connector ─► transport (DNS, TLS)
//!                            thread `esker-storage`, with the runtime that drives all connections
//! ```
//!
//! A bucket has the layout of a folder: an object is `PREFIX/data/ab/cdef…`, a head is `PREFIX/.cvmfspublished`. The
//! head is replaced by a conditional put, so that publishers need no lock (decision 0119).

mod address;
mod connector;
mod failure;
mod open;
mod probe;
mod problem;
mod profile;
mod profile_key;
mod replace;
mod requests;
mod runtime;
mod settings;
mod source;
mod url;

pub(crate) use address::parse_reading_url;
pub use address::{is_bucket, reading_url};
pub use open::public_url;
pub(crate) use probe::{is_remembered, probe, remember};
pub use problem::StorageProblem;
pub(crate) use replace::{Replaced, replace};
pub(crate) use requests::{FileKind, ReadFailure, Requests};
pub(crate) use runtime::StorageThread;
pub use settings::{Environment, StorageSettings};
pub(crate) use source::BucketSource;
pub use url::{Bucket, Provider, StorageUrl};
