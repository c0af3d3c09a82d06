//! Refuses buckets in a build without the clients of their providers.

use std::sync::Arc;

use esker_store::{Cause, Engine, Sink, Source, StorageProblem, StoreError};

use crate::settings::StorageSettings;
use crate::url::Bucket;

/// Refuses to publish to a bucket.
pub(crate) fn bucket_sink(bucket: &Bucket, _: &StorageSettings) -> Result<Arc<dyn Sink>, StoreError> {
    Err(refused(bucket))
}

/// Refuses to read from a bucket.
pub fn connect_bucket(
    _: &Engine,
    bucket: &Bucket,
    _: &StorageSettings,
) -> Result<Arc<dyn Source>, StoreError> {
    Err(refused(bucket))
}

/// Returns none: only the clients of providers know where a bucket is read.
pub fn public_url(_: &Bucket, _: &StorageSettings) -> Option<String> {
    None
}

fn refused(bucket: &Bucket) -> StoreError {
    let problem = StorageProblem::Unavailable(
        "this build of esker has no object storage; the full build has it, and a bucket with public access is read by \
         its http:// or https:// address"
            .to_owned(),
    );
    let cause = Cause::Bucket { doing: "opening", key: ".".to_owned(), bucket: bucket.to_string(), problem };
    StoreError::new("the storage", cause)
}
