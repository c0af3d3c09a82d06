//! Refuses buckets in a build without the clients of their providers.

use std::sync::Arc;

use esker_store::{Cause, Disk, Engine, LocalSink, Sink, Source, StorageProblem, StoreError};

use crate::settings::StorageSettings;
use crate::url::{Bucket, StorageUrl};

/// Opens a folder on this disk to publish to, and refuses a bucket.
pub fn open_storage(
    url: &StorageUrl,
    _: &StorageSettings,
    disk: Arc<dyn Disk>,
) -> Result<Arc<dyn Sink>, StoreError> {
    match url {
        StorageUrl::Folder(folder) => Ok(Arc::new(LocalSink::on(folder, disk))),
        StorageUrl::Bucket(bucket) => Err(refused(bucket)),
    }
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
