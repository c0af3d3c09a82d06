//! Opens repositories that may be in a bucket, to read.

use std::sync::Arc;

use esker_store::{Engine, Servers, Source, StoreError};

use crate::address::parse_reading_url;
use crate::providers::connect_bucket;

/// Opens the source at a [reading URL](crate::reading_url) of a bucket, or what [`esker_store::connect`] opens.
pub fn connect(engine: &Engine, servers: impl Into<Servers>) -> Result<Arc<dyn Source>, StoreError> {
    let servers = servers.into();
    match parse_reading_url(servers.url())? {
        Some((bucket, settings)) => connect_bucket(engine, &bucket, &settings),
        None => esker_store::connect(engine, servers),
    }
}
