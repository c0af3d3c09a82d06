//! Contains the unsafe code of this crate: mapped files, and a umask for one thread.
#![allow(unsafe_code)]

use std::fs::File;
use std::io;
use std::ptr::NonNull;

use rustix::mm::{MapFlags, ProtFlags, mmap, munmap};

/// A file mapped for reading.
#[derive(Debug)]
pub struct Mapped {
    start: NonNull<u8>,
    length: usize,
}

// SAFETY: the mapping is private to this value and only ever read.
unsafe impl Send for Mapped {}
// SAFETY: as above; reading from several threads is no conflict.
unsafe impl Sync for Mapped {}

impl Mapped {
    /// Maps the first `length` bytes of a file; `length` must not be zero.
    pub fn of(file: &File, length: usize) -> io::Result<Mapped> {
        // SAFETY: a fresh mapping at an address of the kernel's choice touches no memory of ours.
        let start =
            unsafe { mmap(std::ptr::null_mut(), length, ProtFlags::READ, MapFlags::PRIVATE, file, 0) }?;
        let start = NonNull::new(start.cast()).ok_or_else(|| io::Error::other("mapped at address 0"))?;
        Ok(Mapped { start, length })
    }

    /// Returns the mapped bytes. What they are mapped from is a read-only mount, or a file the test leaves alone.
    pub fn bytes(&self) -> &[u8] {
        // SAFETY: `length` bytes from `start` stay mapped as long as `self` lives.
        unsafe { std::slice::from_raw_parts(self.start.as_ptr(), self.length) }
    }
}

impl Drop for Mapped {
    fn drop(&mut self) {
        // SAFETY: the mapping is ours alone, and no code borrows from `self` any more.
        let _ = unsafe { munmap(self.start.as_ptr().cast(), self.length) };
    }
}

/// Runs a function with a umask that other threads don't have.
pub fn with_umask<T: Send>(mask: u32, run: impl FnOnce() -> T + Send) -> T {
    let alone = || {
        // SAFETY: the thread gets a working directory and a umask of its own; no memory and no descriptor changes.
        unsafe { rustix::thread::unshare_unsafe(rustix::thread::UnshareFlags::FS) }
            .expect("a umask of its own");
        rustix::process::umask(rustix::fs::Mode::from_raw_mode(mask));
        run()
    };
    std::thread::scope(|scope| scope.spawn(alone).join().expect("what runs with another umask"))
}
