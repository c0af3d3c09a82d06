//! Serves repositories in object storage through a cache folder: a server without a copy of its own.
//!
//! ```text
//!   request ─► proxy: objects, heads ─► cache folder ─► bucket
//!   dashboard, metrics, events ─► StoredFolder (blocking) ─┘
//! ```
//!
//! An object is verified before a client gets a byte of it. A manifest is served for [`LIFETIME`] after the storage confirmed
//! it, and not longer: while the storage is away, requests for it fail, so that clients use another server.

use std::io;
use std::sync::Arc;
use std::time::Duration;

use esker_format::name::RepositoryName;
use esker_format::object::ObjectName;
use esker_store::Urgency;
use hyper::Response;
use tokio::runtime::Handle;
use tokio::time::timeout;

use crate::answer::{Answer, CHANGING_SECONDS, NOT_FOUND};
use crate::counters::Counters;
use crate::file::{Folder, OpenStored, Opened};
use crate::options::{Options, ServeError};
use crate::proxy::{Failure, Object, ObjectQuery, ProxyState, StorageFolder, StorageOptions, Wanted};
use crate::route::Allowed;
use crate::transport::Call;
use crate::transport::body::Body;

/// Time for which a file that changes is valid after the storage confirmed it.
const LIFETIME: Duration = Duration::from_secs(CHANGING_SECONDS as u64);

/// Longest wait for an answer of the storage to the question whether it is there.
const ANSWER: Duration = Duration::from_secs(3);

/// The repositories in object storage.
pub(crate) struct Storages {
    state: Arc<ProxyState>,
    repositories: Vec<(RepositoryName, String)>,
}

impl Storages {
    /// Opens the cache, without a request to the storage.
    pub(crate) fn open(
        storages: StorageOptions,
        serving: &Options,
        counters: Arc<Counters>,
    ) -> Result<Arc<Self>, ServeError> {
        let address = |one: &crate::proxy::RepositoryStorage| (one.name.clone(), one.bucket.to_string());
        let repositories = storages.repositories.iter().map(address).collect();
        let state = Arc::new(ProxyState::of_storages(storages, LIFETIME, serving, counters)?);
        Ok(Arc::new(Self { state, repositories }))
    }

    /// Returns the repositories, each as a folder that can be read.
    pub(crate) fn folders(self: &Arc<Self>) -> Vec<(RepositoryName, Folder)> {
        let folder = |(name, address): &(RepositoryName, String)| {
            let stored = StoredFolder { storages: self.clone(), name: name.clone() };
            (name.clone(), Folder::stored(address.clone(), Arc::new(stored)))
        };
        self.repositories.iter().map(folder).collect()
    }

    /// Returns true if the repository is in object storage.
    pub(crate) fn has(&self, name: &RepositoryName) -> bool {
        self.repositories.iter().any(|(known, _)| known == name)
    }

    /// Answers a request for a file of a repository.
    pub(crate) async fn file(&self, call: &Call, name: &RepositoryName, file: Allowed) -> Response<Body> {
        match Wanted::file(file) {
            Some(wanted) => self.answer(call, name, &wanted).await,
            None => Answer::failure(NOT_FOUND).into_response(),
        }
    }

    /// Answers a request for many objects of a repository.
    pub(crate) async fn batch(
        &self,
        call: &Call,
        name: &RepositoryName,
        names: Vec<ObjectName>,
    ) -> Response<Body> {
        self.answer(call, name, &Wanted::Batch(names)).await
    }

    async fn answer(&self, call: &Call, name: &RepositoryName, wanted: &Wanted) -> Response<Body> {
        match self.state.place(&StorageFolder::of_storage(name)) {
            Ok(place) => self.state.answer(call, &place, wanted, false).await,
            Err(error) => crate::proxy::failed(&error.into()),
        }
    }

    async fn read(&self, name: &RepositoryName, path: &str) -> Result<Object, Failure> {
        let place = self.state.place(&StorageFolder::of_storage(name))?;
        let object = path.strip_prefix("data/").map(|rest| rest.replacen('/', "", 1));
        match object.and_then(|name| ObjectName::parse(&name)) {
            Some(object) => {
                let query =
                    ObjectQuery { urgency: Urgency::Demand, ..ObjectQuery::ahead(object, path.to_owned()) };
                Ok(self.state.objects.get(&place, query).await?.0)
            }
            None => Ok(self.state.heads.get(&place, path, false).await?.content),
        }
    }

    /// Asks for the manifest of each repository, so that a wrong address is in the log from the start.
    pub(crate) async fn look(&self) {
        for (name, address) in &self.repositories {
            if let Err(Failure::Missing) = self.read(name, esker_format::manifest::PATH).await {
                tracing::warn!("there is no repository {name} in {address} yet");
            }
        }
    }

    /// Returns true if there is object storage, and none of it answers.
    pub(crate) async fn is_away(&self) -> bool {
        for (name, _) in &self.repositories {
            let read = timeout(ANSWER, self.read(name, esker_format::manifest::PATH)).await;
            if matches!(read, Ok(Ok(_) | Err(Failure::Missing))) {
                return false;
            }
        }
        !self.repositories.is_empty()
    }

    /// Returns why the cache can't be written to, if that is so. Blocks on the disk.
    pub(crate) fn trouble(&self) -> Option<String> {
        self.state.objects.cache.trouble()
    }

    /// Returns the metrics of the cache.
    pub(crate) fn metrics(&self) -> String {
        self.state.cache_metrics("serve")
    }

    /// Records a clean stop.
    pub(crate) fn close(&self) {
        if let Err(error) = self.state.objects.cache.close() {
            tracing::warn!("the next start verifies the whole cache again: {error}");
        }
    }
}

/// A repository in object storage as a folder, for threads that may block.
struct StoredFolder {
    storages: Arc<Storages>,
    name: RepositoryName,
}

impl OpenStored for StoredFolder {
    fn open(&self, path: &str) -> io::Result<Opened> {
        let runtime = Handle::try_current().map_err(io::Error::other)?;
        match runtime.block_on(self.storages.read(&self.name, path)) {
            Ok(Object::Bytes(bytes)) => Ok(bytes.into()),
            Ok(Object::File(file, len)) => Ok(Opened::of(file.try_clone()?, len)),
            Err(Failure::Missing) => Err(io::ErrorKind::NotFound.into()),
            Err(failure) => Err(io::Error::other(failure.to_string())),
        }
    }
}
