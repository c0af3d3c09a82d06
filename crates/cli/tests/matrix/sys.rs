//! Changes to a child process before exec, and a terminal for it.
#![allow(unsafe_code)]

pub(crate) mod traced;

use std::fs::{File, OpenOptions};
use std::os::fd::AsRawFd;
use std::os::unix::fs::OpenOptionsExt;
use std::os::unix::process::CommandExt;
use std::process::Command;

/// Gives signals their default action: a shell ignores SIGINT and SIGQUIT for its background jobs, `nohup` SIGHUP for
/// its command, and a shell can't trap a signal that was ignored when it started.
pub(crate) fn with_default_signals(command: &mut Command) {
    // SAFETY: the closure only calls signal, which may be called between fork and exec.
    unsafe {
        command.pre_exec(|| {
            for signal in [libc::SIGINT, libc::SIGQUIT, libc::SIGHUP] {
                libc::signal(signal, libc::SIG_DFL);
            }
            Ok(())
        });
    }
}

/// Starts a command in a session of its own, whose terminal is its standard input.
pub(crate) fn in_session_of(command: &mut Command) {
    // SAFETY: the closure only calls setsid and ioctl, which may be called between fork and exec.
    unsafe {
        command.pre_exec(|| {
            if libc::setsid() < 0 || libc::ioctl(0, libc::TIOCSCTTY, 0) < 0 {
                return Err(std::io::Error::last_os_error());
            }
            Ok(())
        });
    }
}

/// Leaves a descriptor open in the program of a command, under the same number.
pub(crate) fn inherit(command: &mut Command, fd: std::os::fd::RawFd) {
    // SAFETY: the closure only calls fcntl, which may be called between fork and exec.
    unsafe {
        command.pre_exec(move || match libc::fcntl(fd, libc::F_SETFD, 0) {
            0 => Ok(()),
            _ => Err(std::io::Error::last_os_error()),
        });
    }
}

/// Shared memory of System V that every user may use.
pub(crate) struct SharedMemory {
    pub(crate) key: i32,
    id: i32,
}

impl SharedMemory {
    pub(crate) fn new() -> Self {
        let key = std::process::id().cast_signed() & 0xff_ffff | 0x5e00_0000;
        // SAFETY: it makes a segment, and maps no memory.
        let id = unsafe { libc::shmget(key, 4096, libc::IPC_CREAT | 0o666) };
        assert!(id >= 0, "{}", std::io::Error::last_os_error());
        Self { key, id }
    }
}

impl Drop for SharedMemory {
    fn drop(&mut self) {
        // SAFETY: nothing in this process has mapped it.
        unsafe { libc::shmctl(self.id, libc::IPC_RMID, std::ptr::null_mut()) };
    }
}

/// Gives the calling thread, and its children, a mount namespace of its own.
pub(crate) fn unshare_mounts() -> rustix::io::Result<()> {
    // SAFETY: this flag does not unshare the descriptor table, which is what could pull a descriptor from under its owner.
    unsafe { rustix::thread::unshare_unsafe(rustix::thread::UnshareFlags::NEWNS) }
}

/// Gives the calling thread, and its children, a network of its own: only the loopback interface, with all ports free.
pub(crate) fn unshare_network() -> std::io::Result<()> {
    // SAFETY: this flag does not unshare the descriptor table, which is what could pull a descriptor from under its owner.
    unsafe { rustix::thread::unshare_unsafe(rustix::thread::UnshareFlags::NEWNET)? };
    let socket = std::net::UdpSocket::bind("0.0.0.0:0")?;
    // SAFETY: a structure of plain numbers, which may be zero.
    let mut request: libc::ifreq = unsafe { std::mem::zeroed() };
    for (to, from) in request.ifr_name.iter_mut().zip(b"lo") {
        *to = from.cast_signed();
    }
    request.ifr_ifru.ifru_flags = libc::c_short::try_from(libc::IFF_UP).expect("a small flag");
    // SAFETY: the kernel reads the request, which lives until it returns.
    let set = unsafe { libc::ioctl(socket.as_raw_fd(), libc::SIOCSIFFLAGS, &raw const request) };
    if set == 0 { Ok(()) } else { Err(std::io::Error::last_os_error()) }
}

/// Maps a whole file and copies what it reads there.
pub(crate) fn read_mapped(file: &File) -> Vec<u8> {
    use rustix::mm::{MapFlags, ProtFlags, mmap, munmap};
    let len = usize::try_from(file.metadata().expect("attributes").len()).expect("a length");
    if len == 0 {
        return Vec::new();
    }
    // SAFETY: a fresh private mapping of a file that no process writes; the copy stays in its bounds.
    unsafe {
        let at =
            mmap(std::ptr::null_mut(), len, ProtFlags::READ, MapFlags::PRIVATE, file, 0).expect("mapping");
        let copy = std::slice::from_raw_parts(at.cast::<u8>(), len).to_vec();
        munmap(at, len).expect("unmapping");
        copy
    }
}

/// Returns the two ends of a terminal: the user's, and the program's. No other child gets them.
pub(crate) fn terminal() -> (File, File) {
    let open = |path: &str| {
        let mut options = OpenOptions::new();
        options.read(true).write(true).custom_flags(libc::O_NOCTTY).open(path).expect("a terminal")
    };
    let outside = open("/dev/ptmx");
    let mut name = [0; 64];
    // SAFETY: the descriptor is open, and the name is written to our array, whose length is passed.
    let unlocked = unsafe {
        libc::unlockpt(outside.as_raw_fd()) == 0
            && libc::ptsname_r(outside.as_raw_fd(), name.as_mut_ptr(), name.len()) == 0
    };
    assert!(unlocked, "a terminal: {}", std::io::Error::last_os_error());
    let name: Vec<u8> = name.iter().take_while(|byte| **byte != 0).map(|byte| byte.cast_unsigned()).collect();
    (outside, open(std::str::from_utf8(&name).expect("a path")))
}
