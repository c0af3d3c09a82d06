//! Opens repositories that may be in a bucket, to read and to publish.

use std::sync::Arc;

use esker_store::{Disk, Engine, LocalSink, Servers, Sink, Source, StoreError};

use crate::address::parse_reading_url;
use crate::providers::{bucket_sink, connect_bucket};
use crate::settings::StorageSettings;
use crate::url::StorageUrl;

/// Opens a storage to publish to: a folder on this disk, or a bucket with these settings.
pub fn open_storage(
    url: &StorageUrl,
    settings: &StorageSettings,
    disk: Arc<dyn Disk>,
) -> Result<Arc<dyn Sink>, StoreError> {
    match url {
        StorageUrl::Folder(folder) => Ok(Arc::new(LocalSink::on(folder, disk))),
        StorageUrl::Bucket(bucket) => bucket_sink(bucket, settings),
    }
}

/// Opens the source at a [reading URL](crate::reading_url) of a bucket, or what [`esker_store::connect`] opens.
pub fn connect(engine: &Engine, servers: impl Into<Servers>) -> Result<Arc<dyn Source>, StoreError> {
    let servers = servers.into();
    match parse_reading_url(servers.url())? {
        Some((bucket, settings)) => connect_bucket(engine, &bucket, &settings),
        None => esker_store::connect(engine, servers),
    }
}
