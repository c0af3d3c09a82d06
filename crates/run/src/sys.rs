//! System calls that need `unsafe`: signal masks, processes, and restrictions of mounts.
#![allow(unsafe_code)]

use std::ffi::{CString, c_char};
use std::io;
use std::mem::MaybeUninit;
use std::os::fd::{AsRawFd, BorrowedFd, FromRawFd, OwnedFd, RawFd};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::Command;

use rustix::process::Pid;

/// Set of blocked signals.
#[derive(Clone, Copy)]
pub(crate) struct SignalMask(libc::sigset_t);

impl SignalMask {
    /// Makes a command start with these signals blocked and no others; otherwise it inherits what this process blocks.
    pub(crate) fn give_to(self, command: &mut Command) {
        // SAFETY: the closure only calls sigprocmask, which may be called between fork and exec.
        unsafe {
            command.pre_exec(move || {
                if libc::sigprocmask(libc::SIG_SETMASK, &self.0, std::ptr::null_mut()) < 0 {
                    return Err(io::Error::last_os_error());
                }
                Ok(())
            });
        }
    }
}

impl std::fmt::Debug for SignalMask {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("SignalMask").finish_non_exhaustive()
    }
}

/// Blocks `signals` in this thread (and threads it starts); returns a descriptor to read them from, and the
/// former mask.
pub(crate) fn signal_descriptor(signals: &[i32]) -> io::Result<(OwnedFd, SignalMask)> {
    let mut set = MaybeUninit::<libc::sigset_t>::uninit();
    // SAFETY: sigemptyset initialises the set it is given; sigaddset changes an initialised one.
    let set = unsafe {
        libc::sigemptyset(set.as_mut_ptr());
        for signal in signals {
            libc::sigaddset(set.as_mut_ptr(), *signal);
        }
        set.assume_init()
    };
    let mut before = MaybeUninit::<libc::sigset_t>::uninit();
    // SAFETY: both pointers are valid for the time of the call.
    let error = unsafe { libc::pthread_sigmask(libc::SIG_BLOCK, &set, before.as_mut_ptr()) };
    if error != 0 {
        return Err(io::Error::from_raw_os_error(error));
    }
    // SAFETY: -1 asks for a new descriptor; the set is valid for the time of the call.
    let fd = unsafe { libc::signalfd(-1, &set, libc::SFD_CLOEXEC) };
    if fd < 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: signalfd has just made this descriptor and no other code has it; pthread_sigmask succeeded, so
    // it wrote the mask.
    Ok(unsafe { (OwnedFd::from_raw_fd(fd), SignalMask(before.assume_init())) })
}

/// Takes the descriptors `first..first + count` that the process was started with, if they are sockets.
pub(crate) fn inherited_sockets(first: RawFd, count: RawFd) -> io::Result<Vec<OwnedFd>> {
    (first..first.saturating_add(count))
        .map(|fd| {
            // SAFETY: the call reads the flags of a descriptor and fails if there is none.
            if unsafe { libc::fcntl(fd, libc::F_SETFD, libc::FD_CLOEXEC) } < 0 {
                return Err(io::Error::last_os_error());
            }
            // SAFETY: the descriptor is open, and the caller says that it was given to this process to own.
            Ok(unsafe { OwnedFd::from_raw_fd(fd) })
        })
        .collect()
}

/// Returns true if this process ignores `signal`.
pub(crate) fn is_ignored(signal: i32) -> bool {
    let mut now = MaybeUninit::<libc::sigaction>::zeroed();
    // SAFETY: without a new action nothing is changed; the old one is written to memory that is valid for the call, and
    // all zeroes is a valid value of it.
    unsafe {
        libc::sigaction(signal, std::ptr::null(), now.as_mut_ptr()) == 0
            && now.assume_init().sa_sigaction == libc::SIG_IGN
    }
}

/// Resets `signal` to its default action.
pub(crate) fn set_default(signal: i32) {
    // SAFETY: it changes the action of a signal of this process alone.
    unsafe { libc::signal(signal, libc::SIG_DFL) };
}

/// Returns the process group of this process; none if its leader is outside of the PID namespace.
///
/// rustix takes 0, which the kernel returns then, for impossible.
pub(crate) fn process_group() -> Option<Pid> {
    // SAFETY: it only returns a number.
    Pid::from_raw(unsafe { libc::getpgrp() })
}

/// Ignores `signal` from now on.
pub(crate) fn ignore(signal: i32) {
    // SAFETY: it changes the action of a signal of this process alone.
    unsafe { libc::signal(signal, libc::SIG_IGN) };
}

/// Waits for the next signal; returns its number, its origin (`si_code`) and the sender.
pub(crate) fn next_signal(fd: BorrowedFd<'_>) -> io::Result<(i32, i32, u32)> {
    let mut info = MaybeUninit::<libc::signalfd_siginfo>::zeroed();
    let want = size_of::<libc::signalfd_siginfo>();
    loop {
        // SAFETY: the buffer is writable and `want` bytes long.
        let got = unsafe { libc::read(fd.as_raw_fd(), info.as_mut_ptr().cast(), want) };
        if got == want as isize {
            // SAFETY: all zeroes is a valid value of this plain structure, and the kernel filled all of it.
            let info = unsafe { info.assume_init() };
            return Ok((info.ssi_signo as i32, info.ssi_code, info.ssi_pid));
        }
        let error = io::Error::last_os_error();
        if got >= 0 || error.kind() != io::ErrorKind::Interrupted {
            return Err(error);
        }
    }
}

/// Resets `signal` to its default action and raises it in this process. Returns if the process survives.
pub(crate) fn raise_default(signal: i32) {
    let mut set = MaybeUninit::<libc::sigset_t>::uninit();
    // SAFETY: plain calls on this process's own signal state; the set is initialised by sigemptyset.
    unsafe {
        libc::signal(signal, libc::SIG_DFL);
        libc::sigemptyset(set.as_mut_ptr());
        libc::sigaddset(set.as_mut_ptr(), signal);
        libc::pthread_sigmask(libc::SIG_UNBLOCK, set.as_ptr(), std::ptr::null_mut());
        libc::raise(signal);
    }
}

/// Passes `fd` to the child of `command` under the same number.
pub(crate) fn inherit(command: &mut Command, fd: RawFd) {
    // SAFETY: the closure only calls fcntl, which may be called between fork and exec.
    unsafe {
        command.pre_exec(move || {
            if libc::fcntl(fd, libc::F_SETFD, 0) < 0 {
                return Err(io::Error::last_os_error());
            }
            Ok(())
        });
    }
}

/// Takes over a descriptor that the parent passed under this number.
pub(crate) fn adopt(fd: RawFd) -> io::Result<OwnedFd> {
    // SAFETY: fcntl checks the number; it has no effect on memory.
    if fd < 3 || unsafe { libc::fcntl(fd, libc::F_SETFD, libc::FD_CLOEXEC) } < 0 {
        return Err(io::Error::from_raw_os_error(libc::EBADF));
    }
    // SAFETY: the number is open, and by the convention between parent and child it is ours alone.
    Ok(unsafe { OwnedFd::from_raw_fd(fd) })
}

/// Enters new namespaces.
pub(crate) fn unshare(flags: rustix::thread::UnshareFlags) -> rustix::io::Result<()> {
    // SAFETY: none of the flags that callers pass (NEWNS, NEWUSER, NEWPID) unshares the descriptor table, which is
    // what could pull a descriptor from under its owner.
    unsafe { rustix::thread::unshare_unsafe(flags) }
}

/// Continues in a child of this process, and ends the parent. There must be a single thread.
pub(crate) fn leave_parent() -> io::Result<()> {
    // SAFETY: with a single thread the child has all that the parent had, no lock is held by a thread that is missing,
    // and the parent ends without running anything that the child will run.
    match unsafe { libc::fork() } {
        -1 => Err(io::Error::last_os_error()),
        0 => Ok(()),
        // SAFETY: as above.
        _ => unsafe { libc::_exit(0) },
    }
}

/// Runs `what` in a forked child; returns the child's exit code. There must be a single thread, or `what` must
/// be limited to system calls.
pub(crate) fn in_child(what: impl FnOnce() -> u8) -> io::Result<Pid> {
    // SAFETY: by the rule above no lock is needed in the child that a missing thread holds, and the child ends without
    // running anything of its parent.
    match unsafe { libc::fork() } {
        -1 => Err(io::Error::last_os_error()),
        0 => {
            let code = what();
            // SAFETY: as above.
            unsafe { libc::_exit(code.into()) }
        }
        child => Pid::from_raw(child).ok_or_else(|| io::ErrorKind::InvalidData.into()),
    }
}

/// Forks the process: the child gets `None`. There must be a single thread.
pub(crate) fn fork() -> io::Result<Option<Pid>> {
    // SAFETY: with a single thread the child has all that the parent had, and no lock is held by a thread that is missing.
    match unsafe { libc::fork() } {
        -1 => Err(io::Error::last_os_error()),
        child => Ok(Pid::from_raw(child)),
    }
}

/// Closes a descriptor whose owner is in another process. For a child that was just made.
pub(crate) fn close(fd: RawFd) {
    // SAFETY: close has no effect on memory, and what owned the descriptor in this copy of the process is never used again.
    unsafe { libc::close(fd) };
}

/// Executes another program, with default signal handling; returns only if that failed.
pub(crate) fn replace_process(file: &CString, line: &[CString], environment: &[CString]) -> io::Error {
    let pointers = |all: &[CString]| -> Vec<*const c_char> {
        all.iter().map(|text| text.as_ptr()).chain([std::ptr::null()]).collect()
    };
    let (line, environment) = (pointers(line), pointers(environment));
    let mut none = MaybeUninit::<libc::sigset_t>::uninit();
    // SAFETY: the set is initialised before it is used; the lists are of strings that live as long as this call, and end with a
    // null pointer.
    unsafe {
        libc::sigemptyset(none.as_mut_ptr());
        libc::pthread_sigmask(libc::SIG_SETMASK, none.as_ptr(), std::ptr::null_mut());
        let before = libc::signal(libc::SIGPIPE, libc::SIG_DFL);
        libc::execve(file.as_ptr(), line.as_ptr(), environment.as_ptr());
        let error = io::Error::last_os_error();
        libc::signal(libc::SIGPIPE, before);
        error
    }
}

/// Adds restrictions to a mount: a mask of `libc::MOUNT_ATTR_*`; with all mounts below it if `recursive`. Needs Linux
/// 5.12.
pub(crate) fn restrict_mount(target: &Path, forbid: u64, recursive: bool) -> io::Result<()> {
    let target = CString::new(target.as_os_str().as_bytes())?;
    let change = libc::mount_attr { attr_set: forbid, attr_clr: 0, propagation: 0, userns_fd: 0 };
    let flags = if recursive { libc::AT_RECURSIVE } else { 0 };
    // SAFETY: the path and the structure live as long as the call, and the structure's length is passed.
    let done = unsafe {
        libc::syscall(
            libc::SYS_mount_setattr,
            libc::AT_FDCWD,
            target.as_ptr(),
            flags,
            &raw const change,
            size_of::<libc::mount_attr>(),
        )
    };
    if done == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

/// Maps the owners of the files of a detached mount as a user namespace maps its users. Needs Linux 5.12.
pub(crate) fn map_mount(mount: BorrowedFd<'_>, users: BorrowedFd<'_>, recursive: bool) -> io::Result<()> {
    let change = libc::mount_attr {
        attr_set: libc::MOUNT_ATTR_IDMAP,
        attr_clr: 0,
        propagation: 0,
        userns_fd: users.as_raw_fd().unsigned_abs().into(),
    };
    let flags = libc::AT_EMPTY_PATH | if recursive { libc::AT_RECURSIVE } else { 0 };
    // SAFETY: the path and the structure live as long as the call, and the structure's length is passed.
    let done = unsafe {
        libc::syscall(
            libc::SYS_mount_setattr,
            mount.as_raw_fd(),
            c"".as_ptr(),
            flags,
            &raw const change,
            size_of::<libc::mount_attr>(),
        )
    };
    if done == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

/// Joins a new session keyring, without the keys of the one before.
pub(crate) fn leave_session_keyring() -> io::Result<()> {
    // SAFETY: without a name the call reads no memory of this process.
    let done = unsafe {
        libc::syscall(libc::SYS_keyctl, libc::KEYCTL_JOIN_SESSION_KEYRING, std::ptr::null::<c_char>())
    };
    if done >= 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

/// Has all descriptors above those of input, output and errors closed when the command is executed. `open` lists them on
/// kernels before Linux 5.11.
pub(crate) fn close_at_exec(open: &Path) -> io::Result<()> {
    // SAFETY: the call only sets flags of descriptors.
    let done = unsafe { libc::syscall(libc::SYS_close_range, 3u32, u32::MAX, libc::CLOSE_RANGE_CLOEXEC) };
    if done == 0 {
        return Ok(());
    }
    for entry in std::fs::read_dir(open)? {
        if let Some(number) = entry?.file_name().to_str().and_then(|name| name.parse::<RawFd>().ok())
            && number > 2
        {
            // SAFETY: it sets a flag of a descriptor, and fails if that is closed by now.
            unsafe { libc::fcntl(number, libc::F_SETFD, libc::FD_CLOEXEC) };
        }
    }
    Ok(())
}

/// Takes all capabilities but those of the mask `kept` from the programs that this process will execute.
pub(crate) fn bound_capabilities(kept: u64) -> io::Result<()> {
    let none = 0 as libc::c_ulong;
    // SAFETY: these calls change capabilities of this thread alone, and use no memory.
    unsafe {
        libc::prctl(libc::PR_CAP_AMBIENT, libc::PR_CAP_AMBIENT_CLEAR_ALL, none, none, none);
        for capability in 0..u64::BITS {
            let number = libc::c_ulong::from(capability);
            // The kernel doesn't know numbers above the last one.
            if libc::prctl(libc::PR_CAPBSET_READ, number, none, none, none) != 1
                || kept >> capability & 1 == 1
            {
                continue;
            }
            if libc::prctl(libc::PR_CAPBSET_DROP, number, none, none, none) < 0 {
                return Err(io::Error::last_os_error());
            }
        }
    }
    Ok(())
}

/// Installs a filter of system calls for this thread and the programs that it executes. Needs `no_new_privs`.
pub(crate) fn install_filter(program: &[libc::sock_filter]) -> io::Result<()> {
    let program = libc::sock_fprog {
        len: u16::try_from(program.len()).map_err(|_| io::ErrorKind::InvalidInput)?,
        filter: program.as_ptr().cast_mut(),
    };
    // SAFETY: the program lives as long as the call, has the length that is passed, and isn't changed by the kernel.
    let done = unsafe { libc::prctl(libc::PR_SET_SECCOMP, libc::SECCOMP_MODE_FILTER, &raw const program) };
    if done == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

/// Closes the abstract Unix sockets of processes outside to this process and those that it starts. Needs Linux 6.12 and
/// `no_new_privs`; without Landlock of that version it has no effect.
pub(crate) fn leave_abstract_sockets() {
    // What the rules handle: no files, no ports, and the scope of abstract sockets.
    let rules: [u64; 3] = [0, 0, 1];
    // SAFETY: the kernel reads as many bytes as the array has; the new descriptor is closed here, and no other code has it.
    unsafe {
        let made =
            libc::syscall(libc::SYS_landlock_create_ruleset, rules.as_ptr(), size_of_val(&rules), 0u32);
        if let Ok(number) = RawFd::try_from(made)
            && number >= 0
        {
            libc::syscall(libc::SYS_landlock_restrict_self, number, 0u32);
            libc::close(number);
        }
    }
}

/// Sets the user and the group of this process, and leaves all other groups. There must be a single thread.
pub(crate) fn become_root_of_namespace() -> io::Result<()> {
    // SAFETY: the calls change ids of this thread, which is the only one.
    let refused = unsafe {
        libc::setgroups(0, std::ptr::null()) < 0
            || libc::setresgid(0, 0, 0) < 0
            || libc::setresuid(0, 0, 0) < 0
    };
    if refused { Err(io::Error::last_os_error()) } else { Ok(()) }
}
