//! Files of a repository on its web server.

use std::io::{self, Write};
use std::sync::Arc;
use std::time::{Duration, Instant};

use esker_object_storage::connect;
use esker_store::{
    Callback, Cause, Engine, EngineOptions, Fetch, FolderSpool, Servers, Source, Spool, StoreError, Stored,
    StoredFiles,
};

/// Longest file that is read, which databases may have.
const FILE_MAX: u64 = 8 << 30;

/// Files of a repository on its servers. Nothing of what they send is cached.
pub struct ServedFiles {
    source: Arc<dyn Source>,
    /// Longest wait for one file; none waits as long as bytes arrive.
    patience: Option<Duration>,
    _engine: Engine,
}

impl ServedFiles {
    /// Returns the files, without asking a server.
    pub fn new(servers: Servers, patience: Option<Duration>) -> Result<Self, StoreError> {
        let engine = Engine::start(EngineOptions::default())?;
        let source = connect(&engine, servers)?;
        Ok(Self { source, patience, _engine: engine })
    }

    /// Returns the source of the files.
    pub fn source(&self) -> &Arc<dyn Source> {
        &self.source
    }

    /// Fetches a file; none if the server has none.
    fn fetch(&self, fetch: Fetch) -> Result<Option<Stored>, StoreError> {
        let (what, begun) = (fetch.what.clone(), Instant::now());
        let is_late = || self.patience.is_some_and(|patience| begun.elapsed() >= patience);
        match Callback::wait_unless(|done| self.source.fetch(fetch, done), is_late) {
            Err(error) if matches!(error.cause(), Cause::Missing { .. }) => Ok(None),
            Err(_) if is_late() => {
                let late = format!("it did not arrive within {} s", begun.elapsed().as_secs());
                Err(StoreError::new(what, Cause::Broken(late)))
            }
            other => other.map(Some),
        }
    }
}

impl StoredFiles for ServedFiles {
    fn describe(&self) -> String {
        self.source.describe()
    }

    fn read(&self, path: &str, limit: u64) -> Result<Option<Vec<u8>>, StoreError> {
        let stored = self.fetch(Fetch::new(path, path, limit))?;
        stored.map(|stored| stored.into_bytes().map_err(unread(path))).transpose()
    }

    fn read_to(&self, path: &str, to: &mut dyn Write) -> Result<Option<u64>, StoreError> {
        let fetch = Fetch { spool: Some(temporary_files()), ..Fetch::new(path, path, FILE_MAX) };
        let copy = |stored: Stored| io::copy(&mut stored.into_reader(), to).map_err(unread(path));
        self.fetch(fetch)?.map(copy).transpose()
    }
}

/// Returns the error for a received file that can't be read back.
fn unread(path: &str) -> impl FnOnce(io::Error) -> StoreError {
    move |source| StoreError::new(path, Cause::Disk { doing: "fetching", path: path.into(), source })
}

/// Returns the spool for objects that are too large for memory.
pub fn temporary_files() -> Arc<dyn Spool> {
    Arc::new(FolderSpool(std::env::temp_dir()))
}
