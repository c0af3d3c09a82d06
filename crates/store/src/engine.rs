//! Resources that all stores of a process share: worker threads, the network thread, a memory budget.

use std::collections::HashMap;
use std::sync::{Arc, OnceLock, Weak};

use parking_lot::Mutex;

use crate::error::{Cause, StoreError};
use crate::failover::full_servers::Partial;
use crate::failover::metalink::Metalinked;
use crate::failover::retry::RetryPolicy;
use crate::failover::{EngineResources, Routed};
use crate::memory_budget::MemoryBudget;
use crate::pool::Pool;
use crate::servers::Servers;
use crate::transport::local::LocalSource;
use crate::transport::source::Source;
use crate::transport::verify::Verifying;
use crate::transport::{BaseUrl, ConnectOptions, HttpOptions, HttpSource, Limits, Network, Site};

/// Options of an engine.
#[derive(Clone, Debug)]
pub struct EngineOptions {
    /// Options of connections and deadlines.
    pub http: HttpOptions,
    /// Policy for retries.
    pub retry: RetryPolicy,
    /// Maximum number of bytes of stored objects in memory; more are spooled to disk.
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
    budget: Arc<MemoryBudget>,
    /// Open sources by the text form of their servers.
    routes: Mutex<HashMap<String, Weak<dyn Source>>>,
}

impl Engine {
    /// Starts the worker threads; the network thread starts on first use.
    pub fn start(options: EngineOptions) -> Result<Self, StoreError> {
        let pool = Pool::start().map_err(|source| no_threads(source, "the worker threads"))?;
        let budget = MemoryBudget::new(options.memory);
        Ok(Self {
            shared: Arc::new(Shared {
                pool,
                network: OnceLock::new(),
                options,
                budget,
                routes: Mutex::default(),
            }),
        })
    }

    /// Returns the budget of received bytes in memory.
    pub fn memory_budget(&self) -> &Arc<MemoryBudget> {
        &self.shared.budget
    }

    /// Returns a source whose objects are verified by the worker threads.
    pub fn verified(&self, raw: Arc<dyn Source>) -> Arc<dyn Source> {
        Arc::new(Verifying::new(raw, self.pool().clone()))
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

/// Opens the source at one URL with verification and without fail-over; the baseline for measurements of fail-over.
pub fn connect_straight(engine: &Engine, url: &str) -> Result<Arc<dyn Source>, StoreError> {
    let base = BaseUrl::parse(url)?;
    let Servers { dns, info_headers, authorities, timings, http2, .. } = Servers::direct(url);
    let limits = Limits::new(&engine.shared.options.http, &timings, false);
    let site = Site::new(
        base,
        None,
        ConnectOptions { limits, dns, info_headers },
        (&authorities, http2),
        Arc::default(),
    );
    let raw = Arc::new(HttpSource::new(engine.network()?, site));
    Ok(engine.verified(raw))
}

/// Opens the source at one URL (`http://…` or `file://…`) or at several servers. The only place where sources are
/// stacked. Callers with equal servers share one source.
pub fn connect(engine: &Engine, servers: impl Into<Servers>) -> Result<Arc<dyn Source>, StoreError> {
    let servers = servers.into();
    if let Some(path) = servers.url().strip_prefix("file://") {
        let raw = Arc::new(LocalSource::new(path, engine.pool().clone())?);
        return Ok(engine.verified(raw));
    }
    if !servers.full.is_empty() {
        let urls = servers.full.clone();
        let replica = Servers { full: Vec::new(), ..servers };
        let full = Servers { urls, metalink: None, ..replica.clone() };
        let (replica, full) = (connect(engine, replica)?, connect(engine, full)?);
        return Ok(Arc::new(Partial { replica, full }));
    }
    let mut routes = engine.shared.routes.lock();
    routes.retain(|_, route| route.strong_count() > 0);
    let key = servers.to_string();
    if let Some(known) = routes.get(&key).and_then(Weak::upgrade) {
        return Ok(known);
    }
    let EngineOptions { http, retry, .. } = &engine.shared.options;
    let around = EngineResources {
        network: engine.network()?,
        pool: engine.pool().clone(),
        policy: *retry,
        http: http.clone(),
    };
    let source: Arc<dyn Source> = match servers.metalink {
        Some(kept) => Arc::new(Metalinked::new(around, servers, kept)?),
        None => Arc::new(Routed::new(around, servers)?),
    };
    routes.insert(key, Arc::downgrade(&source));
    Ok(source)
}
