//! Files of a repository at a URL, unverified.

use std::sync::{Arc, mpsc};
use std::time::Duration;

use esker_maintain::RepositoryFiles;
use esker_object_storage::connect;
use esker_store::{Callback, Cause, Engine, EngineOptions, Fetch, Servers, Source};

use crate::error::{Failure, chain, of_store};

/// Longest wait for one file.
const PATIENCE: Duration = Duration::from_secs(60);

/// A repository at a URL. Its files are not verified by their signatures.
pub(crate) struct RemoteFiles {
    source: Arc<dyn Source>,
    _engine: Engine,
}

impl RemoteFiles {
    pub(crate) fn new(url: &str) -> Result<Self, Failure> {
        let failed = |error| of_store(&format!("can't use {url}"), &error);
        let engine = Engine::start(EngineOptions::default()).map_err(failed)?;
        let source = connect(&engine, Servers::direct(url.trim_end_matches('/'))).map_err(failed)?;
        Ok(Self { source, _engine: engine })
    }
}

impl RepositoryFiles for RemoteFiles {
    fn read(&self, path: &str, limit: u64) -> Result<Option<Vec<u8>>, String> {
        let (sender, receiver) = mpsc::sync_channel(1);
        self.source.fetch(
            Fetch::new(path, path, limit),
            Callback::new(move |outcome| {
                // After the timeout the receiver is gone.
                let _ = sender.send(outcome);
            }),
        );
        let late = |_| format!("it did not arrive within {} s", PATIENCE.as_secs());
        match receiver.recv_timeout(PATIENCE).map_err(late)? {
            Ok(stored) => stored.into_bytes().map(Some).map_err(|error| error.to_string()),
            Err(error) if matches!(error.cause(), Cause::Missing { .. }) => Ok(None),
            Err(error) => Err(chain(&error)),
        }
    }
}
