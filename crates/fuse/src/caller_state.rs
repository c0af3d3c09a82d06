//! State of the calling process: its pending signals, and whether it can take an error.
//!
//! **Signals.** The kernel sends INTERRUPT for any signal, but most programs don't expect `EINTR` from
//! stat(2) or from reading a file, and a program that runs a profiling timer must be able to read one. So a
//! request is given up only for a signal that ends the program, or one sent to stop it
//! (SIGINT, SIGTERM, SIGHUP, SIGQUIT); timers, children and window changes wait until the reply is sent.
//! If the process can't be inspected, any signal ends the wait, as the kernel intends.
//!
//! **Page faults.** A read that fails behind a page fault is SIGBUS, which ends the program. Such a read is
//! retried until it succeeds or the program is killed. For a process that can't be inspected the kind is unknown:
//! its reads are retried until their deadline, and then fail.

use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::Path;

use esker_vfs::Ino;

use crate::process_files::{self, Text};

/// Signals that ask a program to stop. They end a program by default; if it catches one, the wait ends with `EINTR`.
const ASKS_TO_STOP: [i32; 4] = [libc::SIGINT, libc::SIGTERM, libc::SIGHUP, libc::SIGQUIT];

/// Signals whose default action neither ends a program nor reports an error.
const HARMLESS: [i32; 8] = [
    libc::SIGCHLD,
    libc::SIGURG,
    libc::SIGWINCH,
    libc::SIGCONT,
    libc::SIGSTOP,
    libc::SIGTSTP,
    libc::SIGTTIN,
    libc::SIGTTOU,
];

/// Effect of a caller's pending signals on its wait.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Signal {
    /// The caller is about to end: any reply will do, at once.
    Fatal,
    /// The caller received a signal that asks it to stop, and handles that signal.
    Deliberate,
    /// The caller received no signal that should end a wait.
    Passing,
    /// The state of the caller can't be read.
    Unseen,
}

/// Origin of a thread's read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reader {
    /// The caller is in a system call, which can report an error.
    Calls,
    /// The caller has a page fault, which can't report an error.
    Faults,
    /// The state of the caller can't be read.
    Unseen,
}

/// Returns the effect of the pending signals of thread `tid`, from its `status`.
pub(crate) fn signal(proc: Option<&Path>, tid: u32) -> Signal {
    let Some(proc) = proc.filter(|_| tid != 0) else { return Signal::Unseen };
    match fs::read_to_string(proc.join(tid.to_string()).join("status")) {
        Ok(text) => pending_in(&text).unwrap_or(Signal::Unseen),
        // A thread that is gone waits for nothing.
        Err(_) if is_gone(proc, tid) => Signal::Fatal,
        Err(_) => Signal::Unseen,
    }
}

fn pending_in(status: &str) -> Option<Signal> {
    let mask = |field: &str| {
        let line = status.lines().find_map(|line| line.strip_prefix(field))?;
        u64::from_str_radix(line.trim_start_matches(':').trim(), 16).ok()
    };
    let bit = |signal: i32| 1_u64 << (signal - 1);
    let any = |signals: &[i32]| signals.iter().fold(0, |all, &s| all | bit(s));
    let pending = mask("SigPnd")? | mask("ShdPnd")?;
    if pending & bit(libc::SIGKILL) != 0 {
        return Some(Signal::Fatal);
    }
    let caught = mask("SigCgt")?;
    let due = pending & !mask("SigBlk")? & !mask("SigIgn")?;
    if due & !caught & !any(&HARMLESS) != 0 {
        return Some(Signal::Fatal);
    }
    let asked = due & caught & any(&ASKS_TO_STOP) != 0;
    Some(if asked { Signal::Deliberate } else { Signal::Passing })
}

/// Returns the user of a caller, if the procfs shows it.
pub(crate) fn user(proc: &Path, tid: u32) -> Option<u32> {
    let process = proc.join(tid.to_string());
    fs::symlink_metadata(process).ok().filter(|_| tid != 0).map(|found| found.uid())
}

/// Returns whether thread `tid` has ended.
pub(crate) fn is_gone(proc: &Path, tid: u32) -> bool {
    let missing = |tid: u32| {
        let found = fs::symlink_metadata(proc.join(tid.to_string()));
        found.is_err_and(|e| e.kind() == std::io::ErrorKind::NotFound)
    };
    // Process 1 exists as long as the procfs does, unless the mount hides processes of other users (hidepid).
    missing(tid) && !missing(1)
}

/// System calls that read a file on behalf of the program and can report an error. Numbers of the machine's
/// own kind: a 32-bit program on a 64-bit kernel counts as faulting and is waited for.
const READING: [libc::c_long; 14] = [
    libc::SYS_read,
    libc::SYS_pread64,
    libc::SYS_readv,
    libc::SYS_preadv,
    libc::SYS_preadv2,
    libc::SYS_sendfile,
    libc::SYS_splice,
    libc::SYS_copy_file_range,
    libc::SYS_io_uring_enter,
    libc::SYS_readahead,
    libc::SYS_fadvise64,
    libc::SYS_execve,
    libc::SYS_execveat,
    libc::SYS_finit_module,
];

/// Determines how thread `tid` came to wait for a read of `ino`.
///
/// Its system call is visible to processes that may trace it, its mappings to some more, and the existence of its
/// address space to all.
pub fn reader(proc: Option<&Path>, tid: u32, ino: Ino) -> Reader {
    let Some(proc) = proc.filter(|_| tid != 0) else { return Reader::Unseen };
    let dir = proc.join(tid.to_string());
    // Threads that work for io_uring read on behalf of calls, and hand errors on.
    if fs::read_to_string(dir.join("comm")).is_ok_and(|name| name.starts_with("iou-")) {
        return Reader::Calls;
    }
    let faults_if = |faults: bool| if faults { Reader::Faults } else { Reader::Calls };
    // "running", or the number of the system call and its arguments, or -1 outside of any.
    match process_files::read(&dir.join("syscall")) {
        Text::Read(text) => {
            let number = text.split_ascii_whitespace().next().filter(|number| *number != "running");
            if let Some(number) = number {
                return number.parse().map_or(Reader::Unseen, |number| faults_if(!READING.contains(&number)));
            }
        }
        // It executes a program, which can report an error. Its other threads are about to end.
        Text::Locked => return Reader::Calls,
        Text::Unreadable => {}
    }
    match process_files::read(&dir.join("maps")) {
        Text::Read(maps) => return faults_if(maps_hold(&maps, ino)),
        Text::Locked => return Reader::Unseen,
        Text::Unreadable => {}
    }
    // Threads of the kernel, like those of nfsd and of loop devices, and threads that are ending.
    let maps_nothing = fs::read_to_string(dir.join("status")).is_ok_and(|text| !text.contains("\nVmSize:"));
    if maps_nothing || is_gone(proc, tid) { Reader::Calls } else { Reader::Unseen }
}

/// Returns whether a mapping of a file with this inode number is listed. The number is a digest, so another file
/// system hardly has the same; FUSE mounts have device numbers with major 0.
fn maps_hold(maps: &str, ino: Ino) -> bool {
    maps.lines().any(|line| {
        let mut fields = line.split_ascii_whitespace().skip(3);
        let device = fields.next().unwrap_or_default();
        let number = fields.next().and_then(|n| n.parse::<u64>().ok());
        device.starts_with("00:") && number == Some(ino.0)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn status(pending: &[i32], caught: &[i32], blocked: &[i32], ignored: &[i32]) -> String {
        let mask = |s: &[i32]| s.iter().fold(0_u64, |m, s| m | 1 << (s - 1));
        format!(
            "Name:\tx\nSigPnd:\t{:016x}\nShdPnd:\t{:016x}\nSigBlk:\t{:016x}\nSigIgn:\t{:016x}\nSigCgt:\t{:016x}\n",
            0,
            mask(pending),
            mask(blocked),
            mask(ignored),
            mask(caught)
        )
    }

    #[test]
    fn only_signals_that_stop_a_program_end_a_wait() {
        use libc::*;
        let judge = |p: &[i32], c: &[i32], b: &[i32], i: &[i32]| pending_in(&status(p, c, b, i));
        assert_eq!(judge(&[SIGKILL], &[], &[], &[]), Some(Signal::Fatal));
        assert_eq!(judge(&[SIGUSR1], &[], &[], &[]), Some(Signal::Fatal), "not caught: it will end");
        assert_eq!(judge(&[SIGQUIT], &[], &[], &[]), Some(Signal::Fatal));
        for asked in [SIGINT, SIGTERM, SIGHUP, SIGQUIT] {
            assert_eq!(judge(&[asked], &[asked], &[], &[]), Some(Signal::Deliberate));
            assert_eq!(judge(&[asked], &[asked], &[asked], &[]), Some(Signal::Passing), "blocked");
            assert_eq!(judge(&[asked], &[], &[], &[asked]), Some(Signal::Passing), "ignored");
        }
        for passing in [SIGALRM, SIGPROF, SIGVTALRM, SIGUSR1, SIGIO, SIGCHLD, SIGWINCH, SIGURG] {
            assert_eq!(judge(&[passing], &[passing], &[], &[]), Some(Signal::Passing));
        }
        assert_eq!(judge(&[SIGCHLD, SIGTSTP, SIGCONT], &[], &[], &[]), Some(Signal::Passing));
        assert_eq!(judge(&[SIGCHLD, SIGINT], &[SIGCHLD, SIGINT], &[], &[]), Some(Signal::Deliberate));
        assert_eq!(pending_in("Name: x\n"), None);
    }

    #[test]
    fn an_unseen_caller_is_reported_as_unseen() {
        let proc = Some(Path::new("/proc"));
        for (proc, tid) in [(None, 1), (proc, 0)] {
            assert_eq!(signal(proc, tid), Signal::Unseen);
            assert_eq!(reader(proc, tid, Ino(1)), Reader::Unseen);
        }
        // One above the largest process id.
        assert_eq!(signal(proc, 1 << 22), Signal::Fatal);
        assert_eq!(reader(proc, 1 << 22, Ino(1)), Reader::Calls);
    }

    #[test]
    fn hidden_processes_do_not_count_as_ended() {
        let hiding = tempfile::tempdir().expect("a folder");
        let proc = Some(hiding.path());
        assert!(!is_gone(hiding.path(), 7));
        assert_eq!((signal(proc, 7), reader(proc, 7, Ino(1))), (Signal::Unseen, Reader::Unseen));
        fs::create_dir(hiding.path().join("1")).expect("created");
        assert_eq!((signal(proc, 7), reader(proc, 7, Ino(1))), (Signal::Fatal, Reader::Calls));
    }

    #[test]
    fn kernel_threads_are_recognised_from_public_files() {
        let proc = tempfile::tempdir().expect("a folder");
        let put =
            |file: &str, text: &str| fs::write(proc.path().join("7").join(file), text).expect("written");
        fs::create_dir(proc.path().join("7")).expect("created");
        let judge = || reader(Some(proc.path()), 7, Ino(4711));
        put("status", "Name:\tcat\nVmSize:\t    4 kB\n");
        assert_eq!(judge(), Reader::Unseen);
        put("status", "Name:\tnfsd\nThreads:\t1\n");
        assert_eq!(judge(), Reader::Calls);
        put("maps", "7f0-7f1 r-xp 00000000 00:2f 4711   /mnt/lib.so\n");
        assert_eq!(judge(), Reader::Faults);
        put("syscall", &format!("{} 0x3 0x0", libc::SYS_pread64));
        assert_eq!(judge(), Reader::Calls);
        put("syscall", "-1 0x0 0x0");
        assert_eq!(judge(), Reader::Faults);
        put("syscall", "running\n");
        put("comm", "iou-wrk-9\n");
        assert_eq!(judge(), Reader::Calls);
    }

    /// A process that executes a program of this mount holds the lock of its `syscall` until its reads are answered.
    #[test]
    fn a_process_that_executes_a_program_is_not_waited_for() {
        use rustix::fs::{CWD, FileType, Mode, mknodat};
        let proc = tempfile::tempdir().expect("a folder");
        let file = |process: u32, name: &str| proc.path().join(process.to_string()).join(name);
        for process in [7, 8, 9] {
            fs::create_dir(proc.path().join(process.to_string())).expect("a folder");
            fs::write(file(process, "status"), "Name:\tcat\nVmSize:\t    4 kB\n").expect("a file");
        }
        // Pipes that are never written to, in place of files behind a lock.
        let locked = [file(7, "syscall"), file(9, "maps")];
        for path in &locked {
            mknodat(CWD, path, FileType::Fifo, Mode::from_raw_mode(0o600), 0).expect("a pipe");
        }
        fs::write(file(8, "syscall"), format!("{} 0x3", libc::SYS_read)).expect("a file");
        assert_eq!(reader(Some(proc.path()), 7, Ino(4711)), Reader::Calls);
        assert_eq!(reader(Some(proc.path()), 9, Ino(4711)), Reader::Unseen);
        // Another process is judged meanwhile.
        assert_eq!(reader(Some(proc.path()), 8, Ino(4711)), Reader::Calls);
        for path in &locked {
            drop(fs::OpenOptions::new().write(true).open(path).expect("its reader"));
        }
    }

    #[test]
    fn mappings_are_identified_by_inode_and_device() {
        let maps = "7f0-7f1 r-xp 00000000 00:2f 4711   /mnt/lib.so\n7f2-7f3 r--p 00000000 08:01 99 /x\n";
        assert!(maps_hold(maps, Ino(4711)));
        assert!(!maps_hold(maps, Ino(99)) && !maps_hold(maps, Ino(1)));
    }
}
