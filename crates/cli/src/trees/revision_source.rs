//! Reads the revisions of a repository: of one whose storage is on this machine, or through the client.

use std::sync::Arc;

use esker_format::compress::Compression;
use esker_format::object::ObjectName;
use esker_node::repository::Repository;
use esker_repository::{ObjectSource, RepositoryError, Revisions, WantedObject};
use esker_store::{Callback, Cause, LargeBytes, ObjectRequest, ObjectStore as _, StoreError};

use crate::error::{Failure, of_store};
use crate::publisher::{PublisherArgs, now, of_operation};
use crate::settings::Settings;
use crate::settings::address::is_name;
use crate::settings::args::RepositoryArgs;
use crate::settings::configuration;
use crate::settings::missing_colon::hint_at_colon;
use crate::settings::repository::ResolvedRepository;

/// Options for a repository whose revisions are read.
#[derive(clap::Args, Clone, Debug)]
pub(crate) struct RevisionArgs {
    #[command(flatten)]
    repository: RepositoryArgs,

    /// Places of repositories that are published from this machine, for a NAME.
    #[command(flatten)]
    pub(crate) published: PublisherArgs,
}

impl RevisionArgs {
    /// Opens the repository at a URL, the one that is published from this machine or a replica, or the configured one.
    pub(crate) fn open(&self, place: &str, settings: &Settings) -> Result<Revisions, Failure> {
        if is_name(place) {
            let name = configuration::full_name(settings, place)?;
            let found = self.published.place(name.as_str(), settings)?;
            if found.is_readable() || self.published.is_given() {
                let revisions = Revisions::open(&found.root, &found.name, &found.master_keys()?, now())
                    .map_err(|error| of_operation(&format!("can't read {name}"), &error))?;
                found.warn_if_expired(revisions.published());
                return Ok(revisions);
            }
        }
        let resolved = ResolvedRepository::new(place, &self.repository, settings);
        let ResolvedRepository { options, address, .. } =
            resolved.map_err(|failure| hint_at_colon(place, failure))?;
        let what = format!("can't read {} at {}", address.name, address.url);
        let repository = Repository::open(options).map_err(|error| of_store(&what, &error))?;
        let begun = Callback::wait(|done| repository.heads.refresh(done));
        begun.map_err(|error| of_store(&what, &error))?;
        let head = repository.heads.current();
        let head = head.ok_or_else(|| Failure::failed(format!("{what}: it has no head")))?;
        let alternative = match head.alternative_paths() {
            true => std::iter::once(head.root_catalog()).chain(head.history()).collect(),
            false => Vec::new(),
        };
        let objects = Arc::new(FetchedObjects { repository, alternative });
        Revisions::new((*head).clone(), objects).map_err(|error| of_operation(&what, &error))
    }
}

/// Objects that the client fetches into its cache.
struct FetchedObjects {
    repository: Repository,
    /// Objects that only have their alternative name.
    alternative: Vec<ObjectName>,
}

impl ObjectSource for FetchedObjects {
    fn object(&self, wanted: &WantedObject<'_>) -> Result<LargeBytes, RepositoryError> {
        let WantedObject { name, compression, size, limit, what } = *wanted;
        let request = ObjectRequest::new(name, compression.unwrap_or(Compression::Zlib), what).limit(limit);
        let mut request = size.into_iter().fold(request, ObjectRequest::size);
        request.alternative_path = self.alternative.contains(&name);
        let handle = Callback::wait(|done| self.repository.store.get(request, done));
        let handle = handle.map_err(|error| match error.cause() {
            Cause::Missing { .. } => {
                RepositoryError::Missing { what: what.to_owned(), object: name.to_string() }
            }
            _ => RepositoryError::Storage(error),
        })?;
        handle.map().map(LargeBytes::from).map_err(|source| {
            let cause = Cause::Disk { doing: "reading", path: name.path().into(), source };
            RepositoryError::Storage(StoreError::new(what, cause))
        })
    }
}

impl Drop for FetchedObjects {
    fn drop(&mut self) {
        self.repository.close();
    }
}
