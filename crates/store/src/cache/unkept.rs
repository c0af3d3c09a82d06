//! Objects that are served without being kept: from files without a name, or from sealed memory.

use std::fs::File;
use std::io::{self, Write};
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use rustix::fs::{MemfdFlags, SealFlags};

use super::Inner;
use super::descriptors::Slot;
use super::space::{Reservation, Space};
use super::write::Writing;
use crate::error::Cause;
use crate::handle::{Handle, Keep};
use crate::source::{Spool, SpoolAccount};

/// The account of bytes that are served without being kept.
pub(crate) struct Unkept {
    limit: u64,
    used: AtomicU64,
    served: AtomicU64,
}

/// Bytes of an unkept object, given back when its last handle goes.
pub(crate) struct UnkeptShare {
    account: Arc<Unkept>,
    bytes: u64,
}

impl Unkept {
    pub(super) fn new(limit: u64) -> Arc<Self> {
        Arc::new(Self { limit, used: AtomicU64::new(0), served: AtomicU64::new(0) })
    }

    /// Returns the most bytes of it.
    pub(crate) fn limit(&self) -> u64 {
        self.limit
    }

    pub(super) fn served(&self) -> u64 {
        self.served.load(Ordering::Relaxed)
    }

    /// Takes room for an object, unless the limit is reached.
    pub(crate) fn take(self: &Arc<Self>, bytes: u64) -> Option<UnkeptShare> {
        let taken = self.used.fetch_update(Ordering::AcqRel, Ordering::Acquire, |used| {
            used.checked_add(bytes).filter(|sum| *sum <= self.limit)
        });
        taken.ok().map(|_| UnkeptShare { account: self.clone(), bytes })
    }
}

impl UnkeptShare {
    /// Takes more room, unless the limit is reached.
    fn grow(&mut self, bytes: u64) -> bool {
        let Some(mut more) = self.account.take(bytes) else { return false };
        self.bytes += std::mem::take(&mut more.bytes);
        true
    }

    /// Gives a part of the room back, at most what it has; returns how much.
    fn shrink(&mut self, bytes: u64) -> u64 {
        let less = bytes.min(self.bytes);
        self.bytes -= less;
        self.account.used.fetch_sub(less, Ordering::AcqRel);
        less
    }
}

impl Drop for UnkeptShare {
    fn drop(&mut self) {
        self.account.used.fetch_sub(self.bytes, Ordering::AcqRel);
    }
}

impl Inner {
    /// Serves bytes from memory that nobody can change any more.
    pub(crate) fn serve_memory(&self, plain: &[u8], slot: Slot, share: UnkeptShare) -> Result<Handle, Cause> {
        let file = sealed(plain).map_err(|source| Cause::Disk {
            doing: "keeping an object in",
            path: "memory".into(),
            source,
        })?;
        Ok(self.lend(file, plain.len() as u64, slot, share))
    }

    /// Serves a written file without giving it a name.
    pub(crate) fn serve_file(
        &self,
        writing: Writing,
        slot: Slot,
        share: UnkeptShare,
    ) -> Result<Handle, Cause> {
        let len = writing.len();
        Ok(self.lend(writing.unkept()?, len, slot, share))
    }

    fn lend(&self, file: File, len: u64, slot: Slot, share: UnkeptShare) -> Handle {
        share.account.served.fetch_add(1, Ordering::Relaxed);
        Handle::new(Arc::new(file), len, Keep::Other { _guard: Box::new((slot, share)) })
    }
}

fn sealed(plain: &[u8]) -> io::Result<File> {
    let flags = MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING;
    let memory: OwnedFd = rustix::fs::memfd_create("esker-object", flags)?;
    let mut file = File::from(memory);
    file.write_all(plain)?;
    let seals = SealFlags::WRITE | SealFlags::SHRINK | SealFlags::GROW | SealFlags::SEAL;
    rustix::fs::fcntl_add_seals(&file, seals)?;
    Ok(file)
}

/// Room for a whole file: in the quota, so that it can be kept, or else among what is passed on.
pub(crate) enum Room {
    Kept(Reservation),
    Unkept(UnkeptShare),
}

impl Inner {
    /// Takes room for a file of so many plain bytes, perhaps after an eviction, which is waited for.
    pub(crate) fn room_now(&self, plain_len: u64) -> Result<Room, Cause> {
        let charge = self.charge_of(plain_len);
        match self.space.reserve_now(charge) {
            Ok(reservation) => Ok(Room::Kept(reservation)),
            Err(no_room) => self.unkept_files.take(charge).map(Room::Unkept).ok_or(no_room),
        }
    }
}

/// The room of a spooled file. It is taken from what is passed on without being kept, where it costs no other object its
/// place, and then from the quota.
struct SpoolRoom {
    space: Arc<Space>,
    passing: UnkeptShare,
    reserved: Reservation,
    block: u64,
    len: u64,
}

impl SpoolAccount for SpoolRoom {
    fn grow(&mut self, bytes: u64) -> Result<(), Cause> {
        let blocks = |len: u64| len.div_ceil(self.block).saturating_mul(self.block);
        let len = self.len.saturating_add(bytes);
        let more = blocks(len) - blocks(self.len);
        if !self.passing.grow(more) {
            self.reserved.add(self.space.reserve_now(more)?);
        }
        self.len = len;
        Ok(())
    }

    fn shrink(&mut self, bytes: u64) {
        let rest = bytes - self.passing.shrink(bytes);
        self.reserved.shrink(rest);
    }
}

impl Spool for Inner {
    fn account(&self) -> Option<Box<dyn SpoolAccount>> {
        let (space, reserved) = (self.space.clone(), self.space.nothing());
        let passing = UnkeptShare { account: self.unkept_files.clone(), bytes: 0 };
        Some(Box::new(SpoolRoom { space, passing, reserved, block: self.block, len: 0 }))
    }

    fn file(&self) -> io::Result<File> {
        if let Some(file) = self.begin_nameless()? {
            return Ok(file);
        }
        let path = self.draft();
        let writable = self.disk.create_spool(&path)?;
        self.disk.remove(&path)?;
        Ok(writable)
    }

    fn append(&self, file: &File, bytes: &[u8]) -> io::Result<()> {
        self.disk.write(file, bytes)
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::FileExt;

    use super::*;
    use crate::cache::disk::descriptor_path;

    /// The mode of memory lets anybody open it for writing, through `/proc`; the seals don't let them write.
    #[test]
    fn sealed_memory_stays_as_it_is() {
        let file = sealed(b"an object").unwrap();
        let path = descriptor_path(&file);
        let again = File::options().read(true).write(true).open(path).unwrap();
        for outcome in [again.write_all_at(b"!", 0), again.set_len(0), again.set_len(100)] {
            assert_eq!(outcome.unwrap_err().kind(), io::ErrorKind::PermissionDenied);
        }
        let mut bytes = [0; 9];
        again.read_exact_at(&mut bytes, 0).unwrap();
        assert_eq!(&bytes, b"an object");
    }
}
