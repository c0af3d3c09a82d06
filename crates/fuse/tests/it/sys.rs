//! What tests do that needs `unsafe`: mapping files, signals to one thread.
#![allow(unsafe_code)]

use std::fs::File;
use std::os::unix::process::CommandExt;
use std::process::Command;
use std::sync::atomic::{AtomicUsize, Ordering};

use rustix::mm::{MapFlags, ProtFlags, mmap, munmap};

/// Maps a whole file and copies what it reads there.
pub(crate) fn read_mapped(file: &File) -> Vec<u8> {
    let len = file.metadata().expect("metadata").len() as usize;
    // SAFETY: a fresh private mapping; the copy stays in its bounds.
    unsafe {
        let at =
            mmap(std::ptr::null_mut(), len, ProtFlags::READ, MapFlags::PRIVATE, file, 0).expect("mapped");
        let copy = std::slice::from_raw_parts(at.cast::<u8>(), len).to_vec();
        munmap(at, len).expect("unmapped");
        copy
    }
}

/// A mapping of a file that stays.
pub(crate) struct Held {
    at: *mut std::ffi::c_void,
    len: usize,
}

impl Held {
    pub(crate) fn new(file: &File) -> Self {
        let len = file.metadata().expect("metadata").len() as usize;
        // SAFETY: a fresh mapping.
        let at = unsafe { mmap(std::ptr::null_mut(), len, ProtFlags::READ, MapFlags::SHARED, file, 0) };
        Self { at: at.expect("mapped"), len }
    }

    pub(crate) fn bytes(&self) -> &[u8] {
        // SAFETY: mapped as long as `self` lives.
        unsafe { std::slice::from_raw_parts(self.at.cast::<u8>(), self.len) }
    }
}

impl Drop for Held {
    fn drop(&mut self) {
        // SAFETY: no code borrows it any longer.
        unsafe { munmap(self.at, self.len) }.expect("unmapped");
    }
}

/// Sends a signal to one thread of a process.
pub(crate) fn signal_thread(pid: u32, tid: u32, signal: i32) {
    // SAFETY: a system call without pointers.
    let done = unsafe { libc::syscall(libc::SYS_tgkill, pid, tid, signal) };
    assert_eq!(done, 0, "tgkill: {}", std::io::Error::last_os_error());
}

static CAUGHT: AtomicUsize = AtomicUsize::new(0);

/// Catches a signal without restarting what it interrupts.
pub(crate) fn catch(signal: i32) {
    extern "C" fn note(_: i32) {
        CAUGHT.fetch_add(1, Ordering::SeqCst);
    }
    // SAFETY: the handler only touches an atomic; the structure is valid when zeroed.
    let done = unsafe {
        let mut action: libc::sigaction = std::mem::zeroed();
        action.sa_sigaction = note as extern "C" fn(i32) as libc::sighandler_t;
        libc::sigaction(signal, &raw const action, std::ptr::null_mut())
    };
    assert_eq!(done, 0);
}

/// How many signals were caught.
pub(crate) fn caught() -> usize {
    CAUGHT.load(Ordering::SeqCst)
}

/// Runs `command`, which will run as this user and group, in a user and mount namespace of its own.
pub(crate) fn in_own_namespace(command: &mut Command, (uid, gid): (u32, u32)) {
    let uid_map = format!("0 {uid} 1\n");
    let gid_map = format!("0 {gid} 1\n");
    // SAFETY: between fork and exec only system calls are made; the texts were made before.
    unsafe {
        command.pre_exec(move || {
            use rustix::fs::{Mode, OFlags, open};
            // A process that gave up root may not write its own maps otherwise.
            rustix::process::set_dumpable_behavior(rustix::process::DumpableBehavior::Dumpable)?;
            rustix::thread::unshare_unsafe(
                rustix::thread::UnshareFlags::NEWUSER | rustix::thread::UnshareFlags::NEWNS,
            )?;
            let write = |path: &std::ffi::CStr, text: &str| {
                let file = open(path, OFlags::WRONLY, Mode::empty())?;
                rustix::io::write(file, text.as_bytes()).map(drop)
            };
            write(c"/proc/self/setgroups", "deny")?;
            write(c"/proc/self/uid_map", &uid_map)?;
            write(c"/proc/self/gid_map", &gid_map)?;
            Ok(())
        });
    }
}
