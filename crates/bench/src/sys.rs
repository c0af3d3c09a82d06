//! Resource use of child processes, resident pages, and signals, which the standard library lacks.
#![allow(unsafe_code)]

use std::ffi::c_void;
use std::fs::File;
use std::io;
use std::mem::MaybeUninit;
use std::os::fd::OwnedFd;
use std::os::unix::process::ExitStatusExt;
use std::process::{Child, ExitStatus};
use std::ptr::NonNull;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use rustix::mm::{Advice, MapFlags, ProtFlags, madvise, mmap, mmap_anonymous};
use rustix::pipe::{IoSliceRaw, SpliceFlags, vmsplice};

/// Exit status of a process, and the resources of it and its reaped children.
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

/// A memory mapping, unmapped on drop.
#[derive(Debug)]
struct Mapped {
    start: NonNull<c_void>,
    len: usize,
}

impl Mapped {
    /// Maps the first `len` bytes of a file, at least one, for reading.
    fn of_file(file: &File, len: usize) -> io::Result<Self> {
        // SAFETY: a fresh mapping at an address of the kernel's choice touches no memory of ours, and no code reads it.
        let start = unsafe { mmap(std::ptr::null_mut(), len, ProtFlags::READ, MapFlags::SHARED, file, 0) }?;
        Self::at(start, len)
    }

    /// Maps `len` bytes of anonymous memory, at least one.
    fn of_memory(len: usize) -> io::Result<Self> {
        let both = ProtFlags::READ | ProtFlags::WRITE;
        // SAFETY: as above.
        let start = unsafe { mmap_anonymous(std::ptr::null_mut(), len, both, MapFlags::PRIVATE) }?;
        Self::at(start, len)
    }

    fn at(start: *mut c_void, len: usize) -> io::Result<Self> {
        let start = NonNull::new(start).ok_or_else(|| io::Error::other("mapped at address 0"))?;
        Ok(Self { start, len })
    }

    /// Returns the number of its pages in memory.
    fn resident_pages(&self) -> io::Result<usize> {
        let mut pages = vec![0u8; self.len.div_ceil(rustix::param::page_size())];
        // SAFETY: the range is the mapping, and there is a byte for each of its pages.
        if unsafe { libc::mincore(self.start.as_ptr(), self.len, pages.as_mut_ptr()) } != 0 {
            return Err(io::Error::last_os_error());
        }
        Ok(pages.iter().filter(|page| **page & 1 == 1).count())
    }
}

impl Drop for Mapped {
    fn drop(&mut self) {
        // SAFETY: the mapping is ours alone, and no code has a reference into it.
        let _ = unsafe { rustix::mm::munmap(self.start.as_ptr(), self.len) };
    }
}

/// A file mapped and locked in memory until this is dropped.
#[derive(Debug)]
pub(crate) struct Locked {
    _mapped: Mapped,
}

impl Locked {
    /// Reads the first `len` bytes of a file into memory and locks them; `len` is at least one.
    pub(crate) fn of(file: &File, len: usize) -> io::Result<Self> {
        let mapped = Mapped::of_file(file, len)?;
        // SAFETY: the range is the mapping just made.
        unsafe { rustix::mm::mlock(mapped.start.as_ptr(), len) }?;
        Ok(Self { _mapped: mapped })
    }
}

/// Returns the number of pages of the first `len` bytes of a file in the page cache.
pub(crate) fn resident_pages(file: &File, len: usize) -> io::Result<usize> {
    Mapped::of_file(file, len)?.resident_pages()
}

/// Largest pipe in bytes for an ordinary user, by the kernel's default limit.
const PIPE_LEN: usize = 1 << 20;

/// Blocks of memory with one unmovable used page each, freed on drop.
#[derive(Debug)]
pub(crate) struct Scattered {
    mapped: Mapped,
    /// Pipes that pin the pages: the kernel doesn't move a page in a pipe.
    pipes: Vec<(OwnedFd, OwnedFd)>,
}

impl Scattered {
    /// Touches all pages of `blocks` blocks of `size` bytes once, a multiple of the page size, then frees all but the
    /// first page of each.
    pub(crate) fn of(blocks: usize, size: usize) -> io::Result<Self> {
        let page = rustix::param::page_size();
        let len = blocks * size;
        let mapped = Mapped::of_memory(len)?;
        let start = mapped.start;
        let mut scattered = Self { mapped, pipes: Vec::new() };
        // SAFETY: the range is the mapping just made, and the advice changes no bytes.
        unsafe { madvise(start.as_ptr(), len, Advice::LinuxNoHugepage) }?;
        for at in (0..len).step_by(page) {
            // SAFETY: within the mapping, to which no code has a reference.
            unsafe { start.as_ptr().cast::<u8>().add(at).write_volatile(1) };
        }
        for (number, at) in (0..len).step_by(size).enumerate() {
            // A pipe has a place for each page of its length.
            if number % (PIPE_LEN / page) == 0 {
                let pipe = rustix::pipe::pipe()?;
                rustix::pipe::fcntl_setpipe_size(&pipe.1, PIPE_LEN)?;
                scattered.pipes.push(pipe);
            }
            scattered.keep_first_page(at, size, page)?;
        }
        Ok(scattered)
    }

    /// Keeps the first page of this block in use, through the newest pipe.
    fn keep_first_page(&self, at: usize, size: usize, page: usize) -> io::Result<()> {
        let Some((_, pipe)) = self.pipes.last() else { return Err(io::Error::other("there is no pipe")) };
        // SAFETY: the block lies within the mapping, to which no code writes any more.
        let block = unsafe { self.mapped.start.as_ptr().cast::<u8>().add(at) };
        // SAFETY: as above, and the page was written.
        let first = unsafe { std::slice::from_raw_parts(block, page) };
        // SAFETY: no code reads the pipe.
        let spliced = unsafe { vmsplice(pipe, &[IoSliceRaw::from_slice(first)], SpliceFlags::NONBLOCK) }?;
        if spliced != page {
            return Err(io::Error::other("a pipe took less than a page"));
        }
        // SAFETY: the rest of the block, which no code reads.
        unsafe { madvise(block.add(page).cast(), size - page, Advice::LinuxDontNeed) }?;
        Ok(())
    }

    /// Returns the number of its pages in use.
    #[cfg(test)]
    pub(crate) fn pages(&self) -> io::Result<usize> {
        self.mapped.resident_pages()
    }
}

/// Resources used by this process so far, with all its threads.
pub(crate) struct Used {
    pub(crate) processor: Duration,
    /// Number of times that a thread went to sleep because it had to wait.
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

static ASKED_TO_END: AtomicBool = AtomicBool::new(false);

extern "C" fn note(_signal: libc::c_int) {
    ASKED_TO_END.store(true, Ordering::Relaxed);
}

/// Records SIGINT, SIGTERM and SIGHUP from now on in place of their default action. Started programs get the default
/// action.
pub(crate) fn note_signals() -> io::Result<()> {
    for signal in [libc::SIGINT, libc::SIGTERM, libc::SIGHUP] {
        let handler = note as extern "C" fn(libc::c_int);
        // SAFETY: all that the handler does is to store an atomic, which it may at any time.
        if unsafe { libc::signal(signal, handler as libc::sighandler_t) } == libc::SIG_ERR {
            return Err(io::Error::last_os_error());
        }
    }
    Ok(())
}

/// Returns true if one of these signals arrived.
pub(crate) fn was_asked_to_end() -> bool {
    ASKED_TO_END.load(Ordering::Relaxed)
}
