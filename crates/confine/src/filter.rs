//! Builds the seccomp filter of a role and installs it in the calling thread.

use std::collections::BTreeMap;
use std::os::fd::RawFd;

use libc::c_long;
use seccompiler::{
    BackendError, BpfProgram, SeccompAction, SeccompCmpArgLen, SeccompCmpOp, SeccompCondition, SeccompFilter,
    SeccompRule, TargetArch, apply_filter,
};

use crate::calls::ATTRIBUTES;
use crate::role::{Network, Role};

/// Namespaces that no daemon makes.
const NAMESPACES: c_long = (libc::CLONE_NEWNS
    | libc::CLONE_NEWUSER
    | libc::CLONE_NEWPID
    | libc::CLONE_NEWNET
    | libc::CLONE_NEWUTS
    | libc::CLONE_NEWIPC
    | libc::CLONE_NEWCGROUP) as c_long;

/// Requests to terminals and sockets.
const REQUESTS: [u64; 8] = [
    libc::TCGETS,
    libc::TCGETS2,
    libc::TIOCGWINSZ,
    libc::FIONREAD,
    libc::FIONBIO,
    libc::FIOCLEX,
    // FS_IOC_GETFLAGS and FICLONE: attributes of a cache's folder, and copies that share blocks.
    0x8008_6601,
    0x4004_9409,
];
/// FUSE_DEV_IOC_CLONE.
const DEVICE_REQUESTS: [u64; 1] = [0x8004_e500];

/// Options of prctl: names of threads and of memory, the slack of timers, and questions.
const PRCTL: [i32; 8] = [
    libc::PR_SET_NAME,
    libc::PR_GET_NAME,
    libc::PR_SET_TIMERSLACK,
    libc::PR_GET_DUMPABLE,
    libc::PR_GET_NO_NEW_PRIVS,
    libc::PR_GET_SECCOMP,
    libc::PR_CAPBSET_READ,
    0x5356_4d41,
];

/// Commands of fcntl: copies, flags and locks of a descriptor, sizes of pipes and seals of memory. Those that have signals sent,
/// to any process, are none of them.
const FCNTL: [i32; 16] = [
    libc::F_DUPFD,
    libc::F_DUPFD_CLOEXEC,
    libc::F_GETFD,
    libc::F_SETFD,
    libc::F_GETFL,
    libc::F_SETFL,
    libc::F_GETLK,
    libc::F_SETLK,
    libc::F_SETLKW,
    libc::F_OFD_GETLK,
    libc::F_OFD_SETLK,
    libc::F_OFD_SETLKW,
    libc::F_GETPIPE_SZ,
    libc::F_SETPIPE_SZ,
    libc::F_ADD_SEALS,
    libc::F_GET_SEALS,
];

/// Bits of a mode with which a new file would run as its owner or group.
const SET_ID: u64 = 0o6000;

type Rules = BTreeMap<i64, Vec<SeccompRule>>;

/// The filters of a role: all of them apply, and the strictest answer counts.
pub(crate) fn programs(role: Role, senders: &[RawFd]) -> Result<[BpfProgram; 2], BackendError> {
    let arch = TargetArch::try_from(std::env::consts::ARCH)?;
    let listed = SeccompFilter::new(
        rules(role, senders)?,
        SeccompAction::Errno(libc::EPERM as u32),
        SeccompAction::Allow,
        arch,
    )?;
    // A filter can't read the flags of clone3, which are in memory. Callers fall back to clone.
    let mut absent: Rules = [(libc::SYS_clone3, Vec::new())].into();
    // Nor can it read the mode of a new file there, which opens by `openat` show.
    if role.is_server() && rustix::process::geteuid().is_root() {
        absent.insert(libc::SYS_openat2, Vec::new());
    }
    let absent =
        SeccompFilter::new(absent, SeccompAction::Allow, SeccompAction::Errno(libc::ENOSYS as u32), arch)?;
    // Installed first: the second one refuses to install further ones.
    Ok([absent.try_into()?, listed.try_into()?])
}

/// Installs the filters for this thread and the threads that it starts.
pub(crate) fn install(role: Role, senders: &[RawFd]) -> Result<(), seccompiler::Error> {
    for program in programs(role, senders)? {
        apply_filter(&program)?;
    }
    Ok(())
}

fn rules(role: Role, senders: &[RawFd]) -> Result<Rules, BackendError> {
    let mut rules = Rules::new();
    for (_, number) in role.groups().iter().flat_map(|group| group.all()) {
        rules.insert(*number, Vec::new());
    }
    rules.insert(libc::SYS_clone3, Vec::new());
    let not_executable = || only(2, SeccompCmpOp::MaskedEq(libc::PROT_EXEC as u64), 0);
    rules.insert(libc::SYS_mmap, vec![not_executable()?]);
    rules.insert(libc::SYS_mprotect, vec![not_executable()?]);
    // Threads only: a new process would look like another sender to a peer that identifies this one (SO_PEERCRED).
    let of_thread = SeccompCmpOp::MaskedEq((NAMESPACES | c_long::from(libc::CLONE_THREAD)) as u64);
    rules.insert(libc::SYS_clone, vec![only(0, of_thread, libc::CLONE_THREAD as u64)?]);
    // Signals to this process alone.
    let own = u64::from(std::process::id());
    for call in [libc::SYS_kill, libc::SYS_tgkill] {
        rules.insert(call, vec![only(0, SeccompCmpOp::Eq, own)?]);
    }
    rules.insert(libc::SYS_prctl, each(0, PRCTL.map(|option| option as u64))?);
    // A pair of datagram sockets could be sent to other addresses.
    if let Some(pairs) = rules.get_mut(&libc::SYS_socketpair)
        && !role.mounts()
    {
        pairs.push(unix(libc::SOCK_SEQPACKET)?);
    }
    if role.mounts() {
        allow_programs(&mut rules)?;
    }
    rules.insert(libc::SYS_openat, vec![only(3, SeccompCmpOp::MaskedEq(SET_ID), 0)?]);
    #[cfg(target_arch = "x86_64")]
    rules.insert(libc::SYS_open, vec![only(2, SeccompCmpOp::MaskedEq(SET_ID), 0)?]);
    for (_, number) in
        role.groups().iter().filter(|group| group.name == ATTRIBUTES.name).flat_map(|group| group.all())
    {
        if let Some(mode) = mode_argument(*number) {
            rules.insert(*number, vec![only(mode, SeccompCmpOp::MaskedEq(SET_ID), 0)?]);
        }
    }
    rules.insert(libc::SYS_fcntl, each(1, FCNTL.map(|command| command as u64))?);
    // Limits are read, not set.
    let no_pointer = SeccompCondition::new(2, SeccompCmpArgLen::Qword, SeccompCmpOp::Eq, 0)?;
    rules.insert(libc::SYS_prlimit64, vec![SeccompRule::new(vec![no_pointer])?]);
    let mut requests = each(1, REQUESTS)?;
    if role.has_device() {
        requests.extend(each(1, DEVICE_REQUESTS)?);
    }
    rules.insert(libc::SYS_ioctl, requests);
    let internet = [libc::AF_INET, libc::AF_INET6].map(|family| family as u64);
    let sockets = match role.network() {
        Network::None => Vec::new(),
        Network::Internet => each(0, internet)?,
        // Those of caches keep packets apart.
        Network::Local if role.mounts() => vec![unix(libc::SOCK_STREAM)?, unix(libc::SOCK_SEQPACKET)?],
        Network::Local => vec![unix(libc::SOCK_STREAM)?],
    };
    if !sockets.is_empty() {
        rules.insert(libc::SYS_socket, sockets);
    }
    for call in OF_A_SENDER {
        if !senders.is_empty() && rules.contains_key(call) {
            rules.insert(*call, for_others(*call, senders)?);
        }
    }
    Ok(rules)
}

/// Widens rules for a process that mounts and starts programs: the programs confine themselves, and may have to be killed.
fn allow_programs(rules: &mut Rules) -> Result<(), BackendError> {
    // Code of a program is executable memory.
    rules.insert(libc::SYS_mmap, Vec::new());
    rules.insert(libc::SYS_mprotect, Vec::new());
    rules.insert(libc::SYS_clone, vec![only(0, SeccompCmpOp::MaskedEq(NAMESPACES as u64), 0)?]);
    // Namespaces of an overlay, and the working directory of a thread.
    let unshared = [libc::CLONE_FS, libc::CLONE_NEWUSER | libc::CLONE_NEWNS];
    rules.insert(libc::SYS_unshare, each(0, unshared.map(|flags| flags as u64))?);
    let killing = only(1, SeccompCmpOp::Eq, libc::SIGKILL as u64)?;
    rules.entry(libc::SYS_kill).or_default().push(killing);
    let options = [libc::PR_SET_NO_NEW_PRIVS, libc::PR_SET_DUMPABLE].map(|option| option as u64);
    rules.entry(libc::SYS_prctl).or_default().extend(each(0, options)?);
    Ok(())
}

/// Bits of a socket's type without its flags.
const SOCKET_TYPE: u64 = 0xf;

/// Calls that send from a socket to any address, connect it, or copy it.
const OF_A_SENDER: &[c_long] = &[
    libc::SYS_bind,
    libc::SYS_connect,
    libc::SYS_dup,
    #[cfg(target_arch = "x86_64")]
    libc::SYS_dup2,
    libc::SYS_dup3,
    libc::SYS_fcntl,
    libc::SYS_sendmmsg,
    libc::SYS_sendmsg,
    libc::SYS_sendto,
];

/// Returns rules that allow a call for all descriptors but these. fcntl goes on reading and setting flags of all.
fn for_others(call: c_long, senders: &[RawFd]) -> Result<Vec<SeccompRule>, BackendError> {
    let other = senders.iter().map(|socket| condition(0, SeccompCmpOp::Ne, *socket as u64));
    let other = other.collect::<Result<Vec<_>, _>>()?;
    if call != libc::SYS_fcntl {
        return Ok(vec![SeccompRule::new(other)?]);
    }
    let rule = |command: &i32| {
        let mut conditions = vec![condition(1, SeccompCmpOp::Eq, *command as u64)?];
        if [libc::F_DUPFD, libc::F_DUPFD_CLOEXEC].contains(command) {
            conditions.extend(other.iter().cloned());
        }
        SeccompRule::new(conditions)
    };
    FCNTL.iter().map(rule).collect()
}

/// Returns a condition on the lower half of an argument.
fn condition(argument: u8, op: SeccompCmpOp, value: u64) -> Result<SeccompCondition, BackendError> {
    SeccompCondition::new(argument, SeccompCmpArgLen::Dword, op, value)
}

/// Returns the position of the mode among the arguments of a call that sets modes.
fn mode_argument(number: c_long) -> Option<u8> {
    match number {
        libc::SYS_utimensat => None,
        libc::SYS_fchmod => Some(1),
        #[cfg(target_arch = "x86_64")]
        libc::SYS_chmod => Some(1),
        // fchmodat and fchmodat2.
        _ => Some(2),
    }
}

/// Returns a rule for Unix sockets of a type.
fn unix(kind: i32) -> Result<SeccompRule, BackendError> {
    SeccompRule::new(vec![
        condition(0, SeccompCmpOp::Eq, libc::AF_UNIX as u64)?,
        condition(1, SeccompCmpOp::MaskedEq(SOCKET_TYPE), kind as u64)?,
    ])
}

/// Returns a rule for the lower half of one argument.
fn only(argument: u8, op: SeccompCmpOp, value: u64) -> Result<SeccompRule, BackendError> {
    SeccompRule::new(vec![condition(argument, op, value)?])
}

/// Returns rules that allow some values of an argument.
fn each(argument: u8, values: impl IntoIterator<Item = u64>) -> Result<Vec<SeccompRule>, BackendError> {
    values.into_iter().map(|value| only(argument, SeccompCmpOp::Eq, value)).collect()
}
