//! Serves objects without caching them: from files without a name, or from sealed memory.

use std::fs::File;
use std::io::{self, Write};
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use rustix::fs::{MemfdFlags, SealFlags};

use super::descriptors::Slot;
use super::space::{Reservation, Space};
use super::state::CacheState;
use super::uncached::UncachedShare;
use super::write::Writing;
use crate::error::Cause;
use crate::objects::handle::{Handle, Keep};
use crate::transport::source::{Spool, SpoolAccount};

impl CacheState {
    /// Serves written bytes from memory, which is sealed.
    pub(crate) fn serve_memory(
        &self,
        memory: SealedMemory,
        slot: Slot,
        share: UncachedShare,
    ) -> Result<Handle, Cause> {
        let (file, len) = memory.seal()?;
        Ok(self.lend(file, len, slot, share))
    }

    /// Serves a written file without giving it a name.
    pub(crate) fn serve_file(
        &self,
        writing: Writing,
        slot: Slot,
        share: UncachedShare,
    ) -> Result<Handle, Cause> {
        let len = writing.len();
        Ok(self.lend(writing.unkept()?, len, slot, share))
    }

    fn lend(&self, file: File, len: u64, slot: Slot, share: UncachedShare) -> Handle {
        share.account.served.fetch_add(1, Ordering::Relaxed);
        Handle::new(Arc::new(file), len, Keep::Other { _guard: Box::new((slot, share)) })
    }
}

/// Memory for an object, which no process can change once it is sealed.
pub(crate) struct SealedMemory {
    file: File,
    len: u64,
}

impl SealedMemory {
    pub(crate) fn begin() -> Result<Self, Cause> {
        let file = memory_file(MemfdFlags::ALLOW_SEALING).map_err(in_memory)?;
        Ok(Self { file, len: 0 })
    }

    /// Appends plain bytes.
    pub(crate) fn write(&mut self, plain: &[u8]) -> Result<(), Cause> {
        self.file.write_all(plain).map_err(in_memory)?;
        self.len += plain.len() as u64;
        Ok(())
    }

    fn seal(self) -> Result<(File, u64), Cause> {
        let seals = SealFlags::WRITE | SealFlags::SHRINK | SealFlags::GROW | SealFlags::SEAL;
        rustix::fs::fcntl_add_seals(&self.file, seals).map_err(|errno| in_memory(errno.into()))?;
        Ok((self.file, self.len))
    }
}

fn memory_file(more: MemfdFlags) -> io::Result<File> {
    let memory: OwnedFd = rustix::fs::memfd_create("esker-object", MemfdFlags::CLOEXEC | more)?;
    Ok(File::from(memory))
}

fn in_memory(source: io::Error) -> Cause {
    Cause::Disk { doing: "keeping an object in", path: "memory".into(), source }
}

/// Room for a whole file: reserved in the quota, or taken from the account of uncached files.
pub(crate) enum FileRoom {
    Kept(Reservation),
    UncachedAccount(UncachedShare),
}

impl CacheState {
    /// Reserves room for a file of so many plain bytes, after an eviction if necessary; blocks.
    pub(crate) fn room_now(&self, plain_len: u64) -> Result<FileRoom, Cause> {
        let charge = self.charge_of(plain_len);
        match self.space.reserve_now(charge) {
            Ok(reservation) => Ok(FileRoom::Kept(reservation)),
            Err(no_room) => self.uncached_files.take(charge).map(FileRoom::UncachedAccount).ok_or(no_room),
        }
    }
}

/// Room of a spooled file. It is taken from the account of uncached files, where it displaces no object, and then from
/// the quota.
struct SpoolRoom {
    space: Arc<Space>,
    passing: UncachedShare,
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

/// Memory for a spooled file that the disk has no room for.
struct SpoolMemory(UncachedShare);

impl SpoolAccount for SpoolMemory {
    fn grow(&mut self, bytes: u64) -> Result<(), Cause> {
        let full = Cause::Full { needed: bytes, used: self.0.bytes, limit: self.0.account.limit() };
        if self.0.grow(bytes) { Ok(()) } else { Err(full) }
    }

    fn shrink(&mut self, bytes: u64) {
        self.0.shrink(bytes);
    }
}

impl Spool for CacheState {
    fn account(&self) -> Option<Box<dyn SpoolAccount>> {
        let (space, reserved) = (self.space.clone(), self.space.nothing());
        let passing = UncachedShare { account: self.uncached_files.clone(), bytes: 0 };
        Some(Box::new(SpoolRoom { space, passing, reserved, block: self.block, len: 0 }))
    }

    fn memory(&self) -> io::Result<(File, Box<dyn SpoolAccount>)> {
        let passing = UncachedShare { account: self.uncached_memory.clone(), bytes: 0 };
        Ok((memory_file(MemfdFlags::empty())?, Box::new(SpoolMemory(passing))))
    }

    fn file(&self) -> io::Result<File> {
        if let Some(file) = self.drafts.begin_nameless()? {
            return Ok(file);
        }
        let path = self.drafts.path();
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

    /// The mode of a memory file lets any user open it for writing through `/proc`; the seals prevent the write.
    #[test]
    fn sealed_memory_stays_as_it_is() {
        let mut memory = SealedMemory::begin().unwrap();
        memory.write(b"an object").unwrap();
        let (file, len) = memory.seal().unwrap();
        assert_eq!(len, 9);
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
