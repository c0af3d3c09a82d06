//! Lists the served repositories for the info API.

use std::sync::Arc;
use std::time::{Duration, Instant};

use crate::dashboard::RepositoryState;
use crate::repositories::Repositories;

/// Time for which a listing is cached.
const FRESH: Duration = Duration::from_secs(1);

/// The cached listing. Creating one reads the small files of all repositories.
#[derive(Debug, Default)]
pub(crate) struct Listing(Option<(Instant, Arc<[RepositoryState]>)>);

impl Listing {
    /// Returns the listing, and renews it if it is too old.
    pub(crate) fn now(&mut self, repositories: &Repositories) -> Arc<[RepositoryState]> {
        if let Some((when, entries)) = &self.0
            && when.elapsed() < FRESH
        {
            return entries.clone();
        }
        let entries: Arc<[RepositoryState]> = RepositoryState::all(repositories).into();
        self.0 = Some((Instant::now(), entries.clone()));
        entries
    }
}
