//! Announcements of new revisions: `/cvmfs/NAME/.esker/revisions` is a stream of server-sent events.
//!
//! The publisher is another process, so the manifests are polled: those of repositories with clients, once for all of
//! them. An event is only a hint; clients verify the head as always.

use std::collections::HashMap;
use std::io;
use std::sync::Arc;
use std::time::Duration;

use esker_format::manifest::Manifest;
use esker_format::name::RepositoryName;
use parking_lot::Mutex;
use serde_json::json;
use tokio::sync::{OwnedSemaphorePermit, Semaphore, watch};
use tokio::time::{interval, sleep};

use crate::repositories::{Repositories, Unread, manifest_of};

/// Time between two polls of a manifest: the delay of an announcement.
const POLL_INTERVAL: Duration = Duration::from_millis(200);
/// Interval of heartbeats, which show clients and proxies that the stream is alive.
pub(crate) const HEARTBEAT: Duration = Duration::from_secs(15);

/// Newest revision of a repository; `None` while it has no readable manifest.
type Known = Option<Revision>;

/// A published revision.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Revision {
    number: u64,
    root: String,
    signed: i64,
}

impl From<Manifest> for Revision {
    fn from(manifest: Manifest) -> Self {
        let Manifest { revision, root_catalog, timestamp, .. } = manifest;
        Self { number: revision, root: root_catalog.to_string(), signed: timestamp.0 }
    }
}

/// Clients of event streams.
pub(crate) struct Events {
    repositories: Arc<Repositories>,
    /// Event sender of each repository with clients; its task removes it after the last client.
    watched: Arc<Mutex<HashMap<RepositoryName, watch::Sender<Known>>>>,
    places: Arc<Semaphore>,
}

/// Event stream of one client.
pub(crate) struct Stream {
    repository: RepositoryName,
    known: watch::Receiver<Known>,
    told: Known,
    _place: OwnedSemaphorePermit,
}

impl Events {
    pub(crate) fn new(repositories: Arc<Repositories>, places: usize) -> Self {
        Self { repositories, watched: Arc::default(), places: Arc::new(Semaphore::new(places)) }
    }

    /// Opens a stream; `None` if there are too many.
    pub(crate) fn listen(&self, repository: RepositoryName) -> Option<Stream> {
        let place = self.places.clone().try_acquire_owned().ok()?;
        let mut watched = self.watched.lock();
        let known = match watched.get(&repository) {
            Some(sender) => sender.subscribe(),
            None => {
                let (sender, known) = watch::channel(None);
                watched.insert(repository.clone(), sender);
                let (repositories, all) = (self.repositories.clone(), self.watched.clone());
                tokio::spawn(watch_manifest(repositories, all, repository.clone()));
                known
            }
        };
        Some(Stream { repository, known, told: None, _place: place })
    }

    /// Returns whether the repository exists now; an error if that can't be determined.
    pub(crate) async fn has(&self, repository: &RepositoryName) -> Result<bool, Unread> {
        look(&self.repositories, repository).await.map(|known| known.is_some())
    }
}

impl Stream {
    /// Waits for the next event or heartbeat.
    pub(crate) async fn next(&mut self) -> io::Result<Vec<u8>> {
        let heartbeat = sleep(HEARTBEAT);
        tokio::pin!(heartbeat);
        loop {
            let known = self.known.borrow_and_update().clone();
            if known.is_some() && known != self.told {
                self.told = known;
                return Ok(self.event());
            }
            tokio::select! {
                changed = self.known.changed() => changed.map_err(io::Error::other)?,
                () = &mut heartbeat => return Ok(b":\n\n".to_vec()),
            }
        }
    }

    fn event(&self) -> Vec<u8> {
        let Some(Revision { number, root, signed }) = &self.told else { return Vec::new() };
        let repository = self.repository.as_str();
        let data =
            json!({ "repository": repository, "revision": number, "root_hash": root, "signed": signed });
        format!("event: revision\nid: {number}\ndata: {data}\n\n").into_bytes()
    }
}

/// Polls a manifest while it has clients.
async fn watch_manifest(
    repositories: Arc<Repositories>,
    watched: Arc<Mutex<HashMap<RepositoryName, watch::Sender<Known>>>>,
    repository: RepositoryName,
) {
    let mut ticks = interval(POLL_INTERVAL);
    loop {
        ticks.tick().await;
        let found = look(&repositories, &repository).await.ok().flatten();
        let mut watched = watched.lock();
        let Some(sender) = watched.get(&repository) else { return };
        if sender.receiver_count() == 0 {
            watched.remove(&repository);
            return;
        }
        sender.send_if_modified(|known| {
            let is_news = found.is_some() && *known != found;
            if is_news {
                *known = found;
            }
            is_news
        });
    }
}

/// Reads the manifest on a blocking thread: the disk may be slow.
async fn look(repositories: &Arc<Repositories>, repository: &RepositoryName) -> Result<Known, Unread> {
    let (repositories, repository) = (repositories.clone(), repository.clone());
    let read = move || {
        let mut unread = None;
        for folder in repositories.candidates(&repository) {
            match manifest_of(&folder) {
                Ok(manifest) => return Ok(Some(Revision::from(manifest))),
                Err(error) if error.is_absent() => {}
                Err(error) => unread = Some(error),
            }
        }
        unread.map_or(Ok(None), Err)
    };
    let read = tokio::task::spawn_blocking(read).await;
    read.unwrap_or_else(|error| Err(Unread::Io(error.into())))
}
