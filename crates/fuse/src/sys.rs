//! Contains all unsafe code: shared memory, structures as bytes, and descriptors inherited by a child.
#![allow(unsafe_code)]

use std::io;
use std::mem::size_of;
use std::os::fd::{AsRawFd, BorrowedFd, OwnedFd};
use std::ptr::NonNull;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};

use rustix::mm::{MapFlags, ProtFlags};

use crate::abi;

/// Structures without padding, for which every bit pattern is valid.
///
/// # Safety
/// `repr(C)`, no padding, and every bit pattern is a value.
pub(crate) unsafe trait Plain: Copy + 'static {}

macro_rules! plain {
    ($($name:ty = $size:literal),* $(,)?) => { $(
        const _: () = assert!(size_of::<$name>() == $size, "the protocol gives the size");
        // SAFETY: `repr(C)` structures of integers whose sizes add up to the asserted one, so without padding.
        unsafe impl Plain for $name {}
    )* };
}

plain! {
    abi::InHeader = 40, abi::OutHeader = 16, abi::InitIn = 16, abi::InitOut = 64, abi::WireAttr = 88,
    abi::EntryOut = 128, abi::AttrOut = 104, abi::OpenOut = 16, abi::ReadIn = 40, abi::XattrSize = 8,
    abi::StatFsOut = 80, abi::BatchForgetIn = 8, abi::ForgetOne = 16, abi::Dirent = 24,
    abi::InvalInode = 24, abi::InvalEntry = 16, u64 = 8, u32 = 4,
}

/// Returns the structure at the beginning of `bytes`, if they are enough.
pub(crate) fn read_plain<T: Plain>(bytes: &[u8]) -> Option<T> {
    let bytes = bytes.get(..size_of::<T>())?;
    // SAFETY: the slice has the size of T, which is valid for any bytes; the read doesn't ask for alignment.
    Some(unsafe { bytes.as_ptr().cast::<T>().read_unaligned() })
}

/// Returns the bytes of a structure.
pub(crate) fn bytes_of<T: Plain>(value: &T) -> &[u8] {
    // SAFETY: T has no padding, so all its bytes are initialised, and they live as long as the borrow.
    unsafe { std::slice::from_raw_parts(std::ptr::from_ref(value).cast::<u8>(), size_of::<T>()) }
}

/// Types that several threads and processes may access in shared memory.
///
/// # Safety
/// Only atomics (any bit pattern is a value, no write needs `&mut`), alignment at most 64.
pub(crate) unsafe trait Shared: 'static {}

// SAFETY: an atomic.
unsafe impl Shared for AtomicU32 {}
// SAFETY: an atomic.
unsafe impl Shared for AtomicU64 {}
// SAFETY: `repr(C)` of atomics only.
unsafe impl Shared for crate::shared_memory::Header {}
// SAFETY: `repr(C)` of atomics only.
unsafe impl Shared for crate::shared_memory::NodeCell {}

/// A shared, sparse mapping of a memory file: address space is reserved at once, memory comes as it is used.
#[derive(Debug)]
pub(crate) struct Mapping {
    base: NonNull<u8>,
    len: usize,
}

// SAFETY: the mapping is shared memory; it is reached through atomics, or byte ranges that have one owner.
unsafe impl Send for Mapping {}
// SAFETY: as above.
unsafe impl Sync for Mapping {}

impl Mapping {
    /// Maps the first `len` bytes of `file`, also those it does not have yet.
    pub(crate) fn new(file: &OwnedFd, len: usize) -> io::Result<Self> {
        let flags = MapFlags::SHARED | MapFlags::NORESERVE;
        // SAFETY: a new mapping at an address of the kernel's choice touches nothing that exists.
        let base = unsafe {
            rustix::mm::mmap(std::ptr::null_mut(), len, ProtFlags::READ | ProtFlags::WRITE, flags, file, 0)
        }?;
        let base = NonNull::new(base.cast::<u8>()).ok_or(io::ErrorKind::Other)?;
        Ok(Self { base, len })
    }

    /// Returns `count` cells from `offset` on. The caller ensures that the file is long enough there; beyond its end
    /// an access raises SIGBUS.
    pub(crate) fn cells<T: Shared>(&self, offset: usize, count: usize) -> &[T] {
        let bytes = count.checked_mul(size_of::<T>()).and_then(|n| n.checked_add(offset));
        assert!(bytes.is_some_and(|end| end <= self.len), "cells lie inside the mapping");
        assert!(offset.is_multiple_of(align_of::<T>()), "cells are aligned");
        // SAFETY: in bounds and aligned (the base is page-aligned) by the assertions; T is only atomics, so
        // any bytes are valid and others may write meanwhile. The mapping outlives the borrow.
        unsafe { std::slice::from_raw_parts(self.base.as_ptr().add(offset).cast::<T>(), count) }
    }

    /// Returns a byte range that is not accessed through cells.
    ///
    /// # Safety
    /// No other reference into the range may exist while the returned one lives.
    #[allow(clippy::mut_from_ref)]
    unsafe fn bytes(&self, offset: usize, len: usize) -> &mut [u8] {
        assert!(offset.checked_add(len).is_some_and(|end| end <= self.len), "bytes lie inside the mapping");
        // SAFETY: in bounds by the assertion, exclusive by the caller's promise.
        unsafe { std::slice::from_raw_parts_mut(self.base.as_ptr().add(offset), len) }
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        // SAFETY: the range was mapped by `new`, and no borrow of it outlives `self`.
        let unmapped = unsafe { rustix::mm::munmap(self.base.as_ptr().cast(), self.len) };
        debug_assert!(unmapped.is_ok());
    }
}

/// Equal byte ranges of a mapping, each with at most one owner.
#[derive(Debug)]
pub(crate) struct Buffers {
    mapping: Arc<Mapping>,
    offset: usize,
    len: usize,
    taken: Box<[AtomicBool]>,
}

impl Buffers {
    /// Makes `count` ranges of `len` bytes from `offset` on, which no cells may overlap.
    pub(crate) fn new(mapping: Arc<Mapping>, offset: usize, len: usize, count: usize) -> Arc<Self> {
        let taken = (0..count).map(|_| AtomicBool::new(false)).collect();
        Arc::new(Self { mapping, offset, len, taken })
    }

    /// Takes range `index`, unless it has an owner.
    pub(crate) fn take(self: &Arc<Self>, index: usize) -> Option<Buffer> {
        let free = !self.taken.get(index)?.swap(true, Ordering::Acquire);
        free.then(|| Buffer { buffers: Arc::clone(self), index })
    }
}

/// A range of a mapping, owned by this value.
#[derive(Debug)]
pub(crate) struct Buffer {
    buffers: Arc<Buffers>,
    index: usize,
}

impl Buffer {
    /// Returns the bytes of the range.
    pub(crate) fn bytes(&self) -> &[u8] {
        let buffers = &self.buffers;
        // SAFETY: `taken` gives the range one owner, which lends it shared; `bytes_mut` needs it exclusively.
        unsafe { buffers.mapping.bytes(buffers.offset + self.index * buffers.len, buffers.len) }
    }

    /// Returns the bytes of the range for writing.
    pub(crate) fn bytes_mut(&mut self) -> &mut [u8] {
        let buffers = &self.buffers;
        // SAFETY: `taken` gives the range one owner, which lends it exclusively.
        unsafe { buffers.mapping.bytes(buffers.offset + self.index * buffers.len, buffers.len) }
    }
}

impl Drop for Buffer {
    fn drop(&mut self) {
        self.buffers.taken[self.index].store(false, Ordering::Release);
    }
}

/// Opens a second descriptor for the connection, with a queue of its own for requests in progress.
pub(crate) fn clone_device(device: BorrowedFd<'_>) -> io::Result<OwnedFd> {
    use rustix::ioctl::{Setter, ioctl, opcode};
    const CLONE: rustix::ioctl::Opcode = opcode::read::<u32>(229, 0);
    let fresh = esker_kernel_mount::open_device_file()?;
    let existing = u32::try_from(device.as_raw_fd()).map_err(io::Error::other)?;
    // SAFETY: FUSE_DEV_IOC_CLONE reads a 32-bit descriptor number, which is what the setter points to.
    unsafe { ioctl(&fresh, Setter::<CLONE, u32>::new(existing)) }?;
    Ok(fresh)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_structure_survives_conversion_to_bytes() {
        let header = abi::InHeader { len: 40, opcode: 1, unique: 2, nodeid: 3, ..Default::default() };
        let back: abi::InHeader = read_plain(bytes_of(&header)).expect("long enough");
        assert_eq!((back.len, back.opcode, back.unique, back.nodeid), (40, 1, 2, 3));
        assert!(read_plain::<abi::InHeader>(&[0; 39]).is_none());
    }
}
