//! What all stores of a process share: threads for work, a thread for the network, a memory budget.

use std::sync::{Arc, OnceLock};

use crate::error::{Cause, StoreError};
use crate::http::{HttpOptions, HttpSource, Network};
use crate::local::LocalSource;
use crate::memory::Budget;
use crate::pool::Pool;
use crate::retry::{RetryPolicy, Retrying};
use crate::servers::{Proxy, Servers};
use crate::source::Source;
use crate::verify::Verifying;

/// How an engine is to behave.
#[derive(Clone, Debug)]
pub struct EngineOptions {
    /// Connections, deadlines.
    pub http: HttpOptions,
    /// What is tried again, how often, after how long.
    pub retry: RetryPolicy,
    /// Bytes of stored objects that may lie in memory at once; beyond it they go to disk on their way.
    pub memory: u64,
}

impl Default for EngineOptions {
    fn default() -> Self {
        Self { http: HttpOptions::default(), retry: RetryPolicy::default(), memory: 256 << 20 }
    }
}

/// Threads and limits that all caches and sources of a process share. It starts threads, so a process that
/// forks into the background does so first. Cheap to clone.
#[derive(Clone)]
pub struct Engine {
    shared: Arc<Shared>,
}

struct Shared {
    pool: Arc<Pool>,
    network: OnceLock<Arc<Network>>,
    options: EngineOptions,
    budget: Arc<Budget>,
}

impl Engine {
    /// Starts the threads that work; the network's starts when it is first needed.
    pub fn start(options: EngineOptions) -> Result<Self, StoreError> {
        let pool = Pool::start().map_err(|source| no_threads(source, "the worker threads"))?;
        let budget = Budget::new(options.memory);
        Ok(Self { shared: Arc::new(Shared { pool, network: OnceLock::new(), options, budget }) })
    }

    pub(crate) fn pool(&self) -> &Arc<Pool> {
        &self.shared.pool
    }

    fn network(&self) -> Result<Arc<Network>, StoreError> {
        if let Some(network) = self.shared.network.get() {
            return Ok(network.clone());
        }
        let started = Network::start(self.shared.options.http.clone(), self.shared.budget.clone())
            .map_err(|source| no_threads(source, "the network thread"))?;
        // If two came at once, the loser's thread ends with the value it returns.
        Ok(self.shared.network.get_or_init(|| started).clone())
    }
}

fn no_threads(source: std::io::Error, what: &'static str) -> StoreError {
    StoreError::new(what, Cause::Disk { doing: "starting", path: what.into(), source })
}

/// Opens the source at a URL (`http://…` or `file://…`), or at several: the one place where sources are stacked.
pub fn connect(engine: &Engine, servers: impl Into<Servers>) -> Result<Arc<dyn Source>, StoreError> {
    let servers = servers.into();
    let network = engine.network()?;
    let url = servers.url();
    let raw: Arc<dyn Source> = if let Some(path) = url.strip_prefix("file://") {
        Arc::new(LocalSource::new(path, engine.pool().clone())?)
    } else {
        Arc::new(HttpSource::new(network.clone(), url)?)
    };
    if servers.urls.len() > 1 || servers.groups() != [[Proxy::Direct]] {
        // Taken out with the source that chooses among them.
        let reason = "several servers, and proxies, can't be used yet";
        return Err(StoreError::new("the repository", Cause::BadUrl { url: url.to_owned(), reason }));
    }
    let verified = Arc::new(Verifying::new(raw, engine.pool().clone()));
    Ok(Arc::new(Retrying::new(verified, network, engine.shared.options.retry)))
}
