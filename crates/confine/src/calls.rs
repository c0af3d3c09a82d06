//! Groups of system calls.

use libc::c_long;

/// A system call: its name and its number on this architecture.
pub(crate) type Call = (&'static str, c_long);

/// System calls that a process needs for one purpose.
#[derive(Debug)]
pub(crate) struct Group {
    /// Name in the table of SECURITY.md.
    pub(crate) name: &'static str,
    /// Purpose of the calls, for the table in the documentation.
    pub(crate) purpose: &'static str,
    /// Calls of all architectures.
    pub(crate) calls: &'static [Call],
    /// Calls that only x86-64 has; elsewhere libc uses the newer ones.
    pub(crate) old: &'static [Call],
}

macro_rules! calls {
    ($($number:ident)*) => { &[$((stringify!($number), libc::$number)),*] };
}

/// Like `calls!`, for calls that exist on x86-64 alone.
#[cfg(target_arch = "x86_64")]
macro_rules! old {
    ($($number:ident)*) => { calls!($($number)*) };
}
#[cfg(not(target_arch = "x86_64"))]
macro_rules! old {
    ($($number:ident)*) => {
        &[]
    };
}

pub(crate) static MEMORY: Group = Group {
    name: "memory",
    purpose: "memory that is not executable",
    calls: calls!(SYS_brk SYS_madvise SYS_memfd_create SYS_mremap SYS_msync SYS_munmap),
    old: &[],
};

pub(crate) static THREADS: Group = Group {
    name: "threads",
    purpose: "threads of this process, their order and their end",
    calls: calls!(SYS_exit SYS_exit_group SYS_futex SYS_get_robust_list SYS_getcpu SYS_getpriority SYS_gettid
        SYS_membarrier SYS_rseq SYS_sched_get_priority_max SYS_sched_get_priority_min SYS_sched_getaffinity
        SYS_sched_getattr SYS_sched_getparam SYS_sched_getscheduler SYS_sched_yield SYS_set_robust_list
        SYS_set_tid_address SYS_setpriority),
    old: old!(SYS_arch_prctl),
};

pub(crate) static TIME: Group = Group {
    name: "time",
    purpose: "clocks and timers",
    calls: calls!(SYS_clock_getres SYS_clock_gettime SYS_clock_nanosleep SYS_gettimeofday SYS_nanosleep
        SYS_timerfd_create SYS_timerfd_gettime SYS_timerfd_settime SYS_times),
    old: old!(SYS_time),
};

pub(crate) static SIGNALS: Group = Group {
    name: "signals",
    purpose: "receiving signals",
    calls: calls!(SYS_restart_syscall SYS_rt_sigaction SYS_rt_sigpending SYS_rt_sigprocmask SYS_rt_sigreturn
        SYS_rt_sigsuspend SYS_rt_sigtimedwait SYS_sigaltstack SYS_signalfd4),
    old: old!(SYS_pause),
};

pub(crate) static FACTS: Group = Group {
    name: "facts",
    purpose: "facts about this process and the machine",
    calls: calls!(SYS_capget SYS_getegid SYS_geteuid SYS_getgid SYS_getgroups SYS_getpgid SYS_getpid SYS_getppid
        SYS_getrandom SYS_getresgid SYS_getresuid SYS_getrusage SYS_getsid SYS_getuid SYS_sysinfo SYS_uname),
    old: old!(SYS_getpgrp SYS_getrlimit),
};

pub(crate) static EVENTS: Group = Group {
    name: "events",
    purpose: "waiting for descriptors",
    calls: calls!(SYS_epoll_create1 SYS_epoll_ctl SYS_epoll_pwait SYS_epoll_pwait2 SYS_eventfd2 SYS_ppoll SYS_pselect6),
    old: old!(SYS_epoll_create SYS_epoll_wait SYS_eventfd SYS_poll SYS_select),
};

pub(crate) static OPEN_FILES: Group = Group {
    name: "open files",
    purpose: "reading and writing open descriptors",
    calls: calls!(SYS_close SYS_close_range SYS_copy_file_range SYS_dup SYS_dup3 SYS_fadvise64 SYS_fallocate
        SYS_fdatasync SYS_flock SYS_fsync SYS_ftruncate SYS_lseek SYS_pipe2 SYS_pread64 SYS_preadv
        SYS_preadv2 SYS_pwrite64 SYS_pwritev SYS_pwritev2 SYS_read SYS_readahead SYS_readv SYS_sendfile SYS_splice
        SYS_sync_file_range SYS_syncfs SYS_write SYS_writev),
    old: old!(SYS_dup2 SYS_pipe),
};

pub(crate) static READ_PATHS: Group = Group {
    name: "paths",
    purpose: "opening files and folders and reading their attributes",
    calls: calls!(SYS_faccessat SYS_faccessat2 SYS_fgetxattr SYS_flistxattr SYS_fstat SYS_fstatfs SYS_getcwd
        SYS_getdents64 SYS_getxattr SYS_lgetxattr SYS_listxattr SYS_llistxattr SYS_newfstatat SYS_openat2 SYS_readlinkat
        SYS_statfs SYS_statx SYS_umask),
    old: old!(SYS_access SYS_getdents SYS_lstat SYS_readlink SYS_stat),
};

pub(crate) static CHANGE_PATHS: Group = Group {
    name: "changes",
    purpose: "making, renaming and removing files and folders",
    calls: calls!(SYS_linkat SYS_mkdirat SYS_renameat2 SYS_symlinkat SYS_truncate SYS_unlinkat),
    old: old!(SYS_link SYS_mkdir SYS_rename SYS_renameat SYS_rmdir SYS_symlink SYS_unlink),
};

pub(crate) static ATTRIBUTES: Group = Group {
    name: "attributes",
    purpose: "modes and times of files; Landlock knows neither, so they aren't limited to some paths",
    calls: calls!(SYS_fchmod SYS_fchmodat SYS_utimensat),
    old: old!(SYS_chmod),
};

pub(crate) static SOCKETS: Group = Group {
    name: "sockets",
    purpose: "sockets of the families that the role has",
    calls: calls!(SYS_accept SYS_accept4 SYS_bind SYS_connect SYS_getpeername SYS_getsockname SYS_getsockopt
        SYS_listen SYS_recvfrom SYS_recvmmsg SYS_recvmsg SYS_sendmmsg SYS_sendmsg SYS_sendto SYS_setsockopt
        SYS_shutdown),
    old: &[],
};

pub(crate) static SOCKET_PAIRS: Group = Group {
    name: "socket pairs",
    purpose: "sockets that are connected to each other and keep packets apart",
    calls: calls!(SYS_socketpair),
    old: &[],
};

pub(crate) static MESSAGES: Group = Group {
    name: "messages",
    purpose: "messages on sockets that the process was started with",
    calls: calls!(SYS_recvmsg SYS_sendmsg),
    old: &[],
};

pub(crate) static SESSION: Group = Group {
    name: "session",
    purpose: "leaving the session of the starter once the mount answers",
    calls: calls!(SYS_setsid),
    old: &[],
};

pub(crate) static MOUNTS: Group = Group {
    name: "mounts",
    purpose: "mounting and unmounting, and the owner of a socket; Landlock forbids mounts, so it isn't active",
    calls: calls!(SYS_chdir SYS_chroot SYS_fchownat SYS_fsconfig SYS_fsmount SYS_fsopen SYS_mount SYS_move_mount
        SYS_umount2 SYS_unshare),
    old: &[],
};

pub(crate) static PROGRAMS: Group = Group {
    name: "programs",
    purpose: "starting replayers, which confine themselves, and waiting for their end",
    calls: calls!(SYS_capset SYS_execve SYS_landlock_add_rule SYS_landlock_create_ruleset SYS_landlock_restrict_self
        SYS_seccomp SYS_wait4 SYS_waitid),
    old: old!(SYS_fork SYS_vfork),
};

/// A call that not every C library names, with its number on all architectures.
static LATER_ATTRIBUTES: &[Call] = &[("SYS_fchmodat2", 452)];
/// A call of x86-64 and of AArch64, but not of RISC-V.
#[cfg(not(target_arch = "aarch64"))]
static LATER_CHANGES: &[Call] = &[];
#[cfg(target_arch = "aarch64")]
static LATER_CHANGES: &[Call] = &[("SYS_renameat", libc::SYS_renameat)];

impl Group {
    /// Returns all calls of this architecture.
    pub(crate) fn all(&self) -> impl Iterator<Item = &'static Call> {
        let later = match self.name {
            name if name == CHANGE_PATHS.name => LATER_CHANGES,
            name if name == ATTRIBUTES.name => LATER_ATTRIBUTES,
            _ => &[],
        };
        self.calls.iter().chain(self.old).chain(later)
    }
}

/// Returns the name of a call as its manual page has it.
pub(crate) fn plain_name(name: &'static str) -> &'static str {
    name.strip_prefix("SYS_").unwrap_or(name)
}
