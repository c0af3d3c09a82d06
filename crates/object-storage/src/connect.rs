//! Opens repositories that may be in a bucket, to read and to publish.

use std::sync::Arc;

use esker_store::{Disk, Engine, LocalSink, Servers, Sink, Source, StoreError};

use crate::address::parse_reading_url;
use crate::settings::StorageSettings;
use crate::sink::ObjectSink;
use crate::source::BucketSource;
use crate::url::{Bucket, StorageUrl};

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

/// Opens the source at a [reading URL](crate::reading_url) of a bucket, or what [`esker_store::connect`] opens.
pub fn connect(engine: &Engine, servers: impl Into<Servers>) -> Result<Arc<dyn Source>, StoreError> {
    let servers = servers.into();
    match parse_reading_url(servers.url())? {
        Some((bucket, settings)) => connect_bucket(engine, &bucket, &settings),
        None => esker_store::connect(engine, servers),
    }
}
