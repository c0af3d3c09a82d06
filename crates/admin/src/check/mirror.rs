//! Places that have the same objects as a damaged repository.

use std::path::PathBuf;
use std::sync::Arc;

use esker_store::{
    Callback, Cause, Engine, EngineOptions, Fetch, RealDisk, Servers, Source, connect, read_file,
};

use crate::error::AdminError;

/// A place that has the same objects.
pub trait Mirror: Sync {
    /// Reads a file below the root of the repository; none if there is none.
    fn read(&self, path: &str, limit: u64) -> Result<Option<Vec<u8>>, AdminError>;
}

/// A mirror in a folder.
#[derive(Clone, Debug)]
pub struct MirrorFolder(pub PathBuf);

impl Mirror for MirrorFolder {
    fn read(&self, path: &str, limit: u64) -> Result<Option<Vec<u8>>, AdminError> {
        let path = self.0.join(path);
        read_file(&RealDisk::SERVED, &path, limit).map_err(AdminError::file("reading", &path))
    }
}

/// A mirror on a server.
pub struct MirrorServer {
    source: Arc<dyn Source>,
    _engine: Engine,
}

impl MirrorServer {
    /// Returns the mirror at a URL, without asking it.
    pub fn new(url: &str) -> Result<Self, AdminError> {
        let engine = Engine::start(EngineOptions::default())?;
        let source = connect(&engine, Servers::direct(url.trim_end_matches('/')))?;
        Ok(Self { source, _engine: engine })
    }
}

impl Mirror for MirrorServer {
    fn read(&self, path: &str, limit: u64) -> Result<Option<Vec<u8>>, AdminError> {
        let fetch = Fetch::new(path, path, limit);
        let stored = match Callback::wait(|done| self.source.fetch(fetch, done)) {
            Err(error) if matches!(error.cause(), Cause::Missing { .. }) => return Ok(None),
            other => other?,
        };
        let unreadable = |source| AdminError::File { doing: "fetching", path: PathBuf::from(path), source };
        stored.into_bytes().map(Some).map_err(unreadable)
    }
}
