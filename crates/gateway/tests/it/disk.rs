//! A disk in memory that fails at a chosen operation, and may lose what was not synced.

use std::io;
use std::sync::Arc;

use parking_lot::Mutex;
use rand::Rng as _;
use rand::rngs::StdRng;
use redb::{Builder, StorageBackend};

use esker_gateway::OpenFile;

/// A disk in memory; clones are the same disk.
#[derive(Clone, Debug)]
pub(crate) struct Disk(Arc<Mutex<Image>>);

#[derive(Debug)]
struct Image {
    /// What programs read, and what survives a power failure for sure.
    current: Vec<u8>,
    durable: Vec<u8>,
    /// Changes since the last sync.
    pending: Vec<Pending>,
    /// Operations that still succeed.
    left: u64,
    failures: u64,
}

#[derive(Clone, Debug)]
enum Pending {
    Write(usize, Vec<u8>),
    Length(usize),
}

impl Pending {
    fn apply(self, image: &mut Vec<u8>) {
        match self {
            Self::Length(len) => image.resize(len, 0),
            Self::Write(at, bytes) => {
                image.resize(image.len().max(at + bytes.len()), 0);
                image[at..at + bytes.len()].copy_from_slice(&bytes);
            }
        }
    }
}

impl Disk {
    pub(crate) fn new() -> Self {
        let image = Image {
            current: Vec::new(),
            durable: Vec::new(),
            pending: Vec::new(),
            left: u64::MAX,
            failures: 0,
        };
        Self(Arc::new(Mutex::new(image)))
    }

    /// Lets so many operations succeed, and fails all that follow.
    pub(crate) fn fail_after(&self, operations: u64) {
        self.0.lock().left = operations;
    }

    pub(crate) fn mend(&self) {
        self.fail_after(u64::MAX);
    }

    pub(crate) fn failures(&self) -> u64 {
        self.0.lock().failures
    }

    /// Loses some of what was not synced, in any order, as a power failure does.
    pub(crate) fn lose_power(&self, random: &mut StdRng) {
        let mut image = self.0.lock();
        let mut survives = image.durable.clone();
        for pending in std::mem::take(&mut image.pending) {
            if random.random_bool(0.5) {
                pending.apply(&mut survives);
            }
        }
        image.durable.clone_from(&survives);
        image.current = survives;
    }

    /// Returns the function that opens a database on this disk.
    pub(crate) fn file(&self) -> OpenFile {
        let disk = self.clone();
        Box::new(move || Builder::new().create_with_backend(disk.clone()))
    }

    fn act<T>(&self, act: impl FnOnce(&mut Image) -> T) -> io::Result<T> {
        let mut image = self.0.lock();
        match image.left.checked_sub(1) {
            Some(left) => image.left = left,
            None => {
                image.failures += 1;
                return Err(io::ErrorKind::StorageFull.into());
            }
        }
        Ok(act(&mut image))
    }

    fn change(&self, pending: Pending) -> io::Result<()> {
        self.act(|image| {
            pending.clone().apply(&mut image.current);
            image.pending.push(pending);
        })
    }
}

impl StorageBackend for Disk {
    fn len(&self) -> io::Result<u64> {
        self.act(|image| image.current.len() as u64)
    }

    fn read(&self, offset: u64, out: &mut [u8]) -> io::Result<()> {
        let at = usize::try_from(offset).unwrap();
        let read =
            self.act(|image| image.current.get(at..at + out.len()).map(|bytes| out.copy_from_slice(bytes)));
        read?.ok_or_else(|| io::ErrorKind::UnexpectedEof.into())
    }

    fn set_len(&self, len: u64) -> io::Result<()> {
        self.change(Pending::Length(usize::try_from(len).unwrap()))
    }

    fn sync_data(&self) -> io::Result<()> {
        self.act(|image| {
            image.durable.clone_from(&image.current);
            image.pending.clear();
        })
    }

    fn write(&self, offset: u64, data: &[u8]) -> io::Result<()> {
        self.change(Pending::Write(usize::try_from(offset).unwrap(), data.to_vec()))
    }
}
