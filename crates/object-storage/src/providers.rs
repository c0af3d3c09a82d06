//! Clients of the providers of buckets.

mod connector;
mod failure;
mod open;
mod probe;
mod profile;
mod profile_key;
mod replace;
mod requests;
mod signed_puts;
mod sink;
mod source;

use std::sync::Arc;

use esker_store::{Engine, Sink, Source, StoreError};

use crate::settings::StorageSettings;
use crate::url::Bucket;
use source::BucketSource;

pub use open::public_url;
pub use sink::ObjectSink;

/// Name of the threads that drive requests to buckets.
const THREAD: &str = "esker-storage";

/// Opens a bucket to publish to.
pub(crate) fn bucket_sink(bucket: &Bucket, settings: &StorageSettings) -> Result<Arc<dyn Sink>, StoreError> {
    Ok(Arc::new(ObjectSink::open(bucket, settings)?))
}

/// Opens a repository in a bucket, with verification, and without a request to it.
pub fn connect_bucket(
    engine: &Engine,
    bucket: &Bucket,
    settings: &StorageSettings,
) -> Result<Arc<dyn Source>, StoreError> {
    let raw = BucketSource::open(bucket, settings, engine.memory_budget().clone())?;
    Ok(engine.verified(Arc::new(raw)))
}
