//! What a child process has used, and what is in memory, which the standard library doesn't tell.
#![allow(unsafe_code)]

use std::ffi::c_void;
use std::fs::File;
use std::io;
use std::mem::MaybeUninit;
use std::os::unix::process::ExitStatusExt;
use std::process::{Child, ExitStatus};
use std::ptr::NonNull;
use std::time::Duration;

use rustix::mm::{MapFlags, ProtFlags, mmap};

/// How a process ended and what it and those it waited for used.
pub(crate) struct Ended {
    pub(crate) status: ExitStatus,
    pub(crate) user: Duration,
    pub(crate) system: Duration,
    /// Largest resident size of one process, in bytes.
    pub(crate) peak: u64,
}

/// Waits for a child, which must not be waited for again.
pub(crate) fn wait(child: Child) -> io::Result<Ended> {
    let pid = child.id().cast_signed();
    let mut status = 0;
    let mut usage = MaybeUninit::<libc::rusage>::zeroed();
    loop {
        // SAFETY: both pointers are valid for writing for the time of the call.
        let waited = unsafe { libc::wait4(pid, &raw mut status, 0, usage.as_mut_ptr()) };
        if waited == pid {
            break;
        }
        let error = io::Error::last_os_error();
        if error.kind() != io::ErrorKind::Interrupted {
            return Err(error);
        }
    }
    // SAFETY: it was zeroed, which is a valid value, and wait4 has filled it.
    let usage = unsafe { usage.assume_init() };
    Ok(Ended {
        status: ExitStatus::from_raw(status),
        user: duration(usage.ru_utime),
        system: duration(usage.ru_stime),
        peak: u64::try_from(usage.ru_maxrss).unwrap_or(0).saturating_mul(1024),
    })
}

fn duration(time: libc::timeval) -> Duration {
    let (seconds, micros) = (u64::try_from(time.tv_sec), u64::try_from(time.tv_usec));
    Duration::from_secs(seconds.unwrap_or(0)) + Duration::from_micros(micros.unwrap_or(0))
}

/// A file mapped and locked in memory until this is dropped.
#[derive(Debug)]
pub(crate) struct Locked {
    start: NonNull<c_void>,
    len: usize,
}

impl Locked {
    /// Reads the first `len` bytes of a file into memory, at least one, and locks them there.
    pub(crate) fn of(file: &File, len: usize) -> io::Result<Self> {
        let mapped = Self::map(file, len)?;
        // SAFETY: the range is the mapping just made.
        unsafe { rustix::mm::mlock(mapped.start.as_ptr(), len) }?;
        Ok(mapped)
    }

    fn map(file: &File, len: usize) -> io::Result<Self> {
        // SAFETY: a fresh mapping at an address of the kernel's choice touches no memory of ours, and nobody reads it.
        let start = unsafe { mmap(std::ptr::null_mut(), len, ProtFlags::READ, MapFlags::SHARED, file, 0) }?;
        let start = NonNull::new(start).ok_or_else(|| io::Error::other("mapped at address 0"))?;
        Ok(Self { start, len })
    }
}

impl Drop for Locked {
    fn drop(&mut self) {
        // SAFETY: the mapping is ours alone, and nobody has a reference into it.
        let _ = unsafe { rustix::mm::munmap(self.start.as_ptr(), self.len) };
    }
}

/// How many pages of the first `len` bytes of a file the kernel has in memory.
pub(crate) fn resident_pages(file: &File, len: usize) -> io::Result<usize> {
    let mapped = Locked::map(file, len)?;
    let mut pages = vec![0u8; len.div_ceil(rustix::param::page_size())];
    // SAFETY: the range is the mapping just made, and there is a byte for each of its pages.
    if unsafe { libc::mincore(mapped.start.as_ptr(), len, pages.as_mut_ptr()) } != 0 {
        return Err(io::Error::last_os_error());
    }
    Ok(pages.iter().filter(|page| **page & 1 == 1).count())
}

/// What this process has used so far, with all its threads.
pub(crate) struct Used {
    pub(crate) processor: Duration,
    /// How often a thread gave its processor up because it had to wait.
    pub(crate) sleeps: u64,
}

impl Used {
    pub(crate) fn now() -> io::Result<Self> {
        let mut usage = MaybeUninit::<libc::rusage>::zeroed();
        // SAFETY: the pointer is valid for writing for the time of the call.
        if unsafe { libc::getrusage(libc::RUSAGE_SELF, usage.as_mut_ptr()) } != 0 {
            return Err(io::Error::last_os_error());
        }
        // SAFETY: it was zeroed, which is a valid value, and getrusage has filled it.
        let usage = unsafe { usage.assume_init() };
        Ok(Self {
            processor: duration(usage.ru_utime) + duration(usage.ru_stime),
            sleeps: u64::try_from(usage.ru_nvcsw).unwrap_or(0),
        })
    }
}
