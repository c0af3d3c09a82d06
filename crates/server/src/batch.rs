//! Many small objects in one response, so that a far client needs one round trip for all of them.
//!
//! The response is made in memory, so its size is bounded, and so is the number made at once.

use std::io::Read;
use std::net::IpAddr;
use std::sync::Arc;

use esker_format::batch::Writer;
use esker_format::name::RepositoryName;
use esker_format::object::ObjectName;
use esker_store::RootedDir;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use crate::answer::Answer;
use crate::file::file;
use crate::repositories::Repositories;
use crate::transport::shares::{Share, Shares};

/// Maximum number of batches in progress. With the most bytes of one, that is 64 MiB.
pub(crate) const AT_ONCE: usize = 64;
/// Maximum number of batches in progress for one client address.
pub(crate) const FOR_ONE_ADDRESS: usize = 16;

/// The batches in progress.
#[derive(Debug)]
pub(crate) struct Batches {
    pub(crate) permits: Arc<Semaphore>,
    pub(crate) shares: Arc<Shares>,
}

impl Batches {
    pub(crate) fn new() -> Self {
        Self { permits: Arc::new(Semaphore::new(AT_ONCE)), shares: Arc::default() }
    }

    /// Returns a permit for one more batch, to be held until it is sent; `None` if there are too many.
    pub(crate) fn take(&self, client: IpAddr) -> Option<(OwnedSemaphorePermit, Share)> {
        let share = self.shares.take_below(client, FOR_ONE_ADDRESS)?;
        Some((self.permits.clone().try_acquire_owned().ok()?, share))
    }
}

/// Makes a batch of the objects that exist and fit; others have to be requested one by one.
pub(crate) fn make(repositories: &Repositories, repository: &RepositoryName, names: &[ObjectName]) -> Answer {
    let folders = repositories.candidates(repository).filter_map(|folder| folder.beneath().ok());
    let folders: Vec<_> = folders.collect();
    let mut writer = Writer::new();
    let mut whole = true;
    for (at, name) in names.iter().enumerate() {
        let room = writer.room(names.len() - at - 1);
        match read(&folders, name, room) {
            Some(stored) => writer.put(&stored),
            None => {
                whole = false;
                writer.leave_out();
            }
        }
    }
    Answer::batch(writer.finish(), whole)
}

/// Makes an empty batch, for too many batches in progress: each object can be requested by itself.
pub(crate) fn nothing(names: &[ObjectName]) -> Answer {
    let mut writer = Writer::new();
    names.iter().for_each(|_| writer.leave_out());
    Answer::batch(writer.finish(), false)
}

/// Reads an object of at most `room` bytes.
fn read(folders: &[Arc<RootedDir>], name: &ObjectName, room: usize) -> Option<Vec<u8>> {
    let path = name.path();
    let opened = folders.iter().find_map(|folder| file(folder, &path).ok())?;
    let len = usize::try_from(opened.len).ok().filter(|len| *len <= room)?;
    let mut stored = Vec::with_capacity(len);
    opened.file.take(len as u64).read_to_end(&mut stored).ok()?;
    (stored.len() == len).then_some(stored)
}
