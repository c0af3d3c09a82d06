//! Clients of the providers of buckets.

mod connector;
mod failure;
mod open;
mod probe;
mod profile;
mod profile_key;
mod replace;
mod requests;
mod runtime;
mod sink;
mod source;

use std::sync::Arc;

use esker_store::{Disk, Engine, LocalSink, Sink, Source, StoreError};

use crate::settings::StorageSettings;
use crate::url::{Bucket, StorageUrl};
use source::BucketSource;

pub use open::public_url;
pub use sink::ObjectSink;

/// Opens a storage to publish to: a folder on this disk, or a bucket with these settings.
pub fn open_storage(
    url: &StorageUrl,
    settings: &StorageSettings,
    disk: Arc<dyn Disk>,
) -> Result<Arc<dyn Sink>, StoreError> {
    Ok(match url {
        StorageUrl::Folder(folder) => Arc::new(LocalSink::on(folder, disk)),
        StorageUrl::Bucket(bucket) => Arc::new(ObjectSink::open(bucket, settings)?),
    })
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
