//! Code inside each daemon of a node, all of them at once, tries what the daemon has no need to do.
//!
//! The system calls are made by threads of the daemons themselves ([`crate::sys::traced`]), so that their users,
//! capabilities, filters and rules for paths hold for them.
#![cfg(target_arch = "x86_64")]

use std::cell::RefCell;
use std::collections::HashMap;
use std::ffi::CString;
use std::fs;
use std::io::{BufRead as _, BufReader, Read};
use std::os::unix::ffi::OsStrExt as _;
use std::os::unix::fs::{MetadataExt as _, PermissionsExt as _, chown};
use std::os::unix::net::{UnixDatagram, UnixListener};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use esker_testkit::waiting::until;
use esker_testkit::{fixture, skip};

use crate::broker::Broker;
use crate::confinement::{children_of, helper_of, start};
use crate::sys::traced::{Argument, Traced};
use crate::test_env::{PATIENCE, TestEnv};
use crate::test_user::TestUser;

use Argument::{Bytes, Number};

/// A process that is attacked from inside.
pub(crate) struct Daemon {
    pub(crate) name: &'static str,
    pub(crate) process: u32,
}

/// What an attacker aims at: files of the daemon's own user outside of its folders, and sockets that listen.
struct Prey {
    folder: tempfile::TempDir,
    datagrams: UnixDatagram,
    _streams: UnixListener,
}

impl Prey {
    fn of(daemon: &Daemon) -> Self {
        let folder = tempfile::Builder::new().prefix("esker-prey-").tempdir().expect("a folder");
        let owner = user_of(daemon.process);
        for name in ["file", "secret"] {
            fs::write(folder.path().join(name), "before").expect("a file");
        }
        let datagrams = UnixDatagram::bind(folder.path().join("datagrams")).expect("a socket");
        let streams = UnixListener::bind(folder.path().join("streams")).expect("a socket");
        datagrams.set_nonblocking(true).expect("a socket");
        for name in ["datagrams", "streams", "file", "secret", ""] {
            let path = folder.path().join(name);
            fs::set_permissions(&path, fs::Permissions::from_mode(0o777)).expect("a mode");
            chown(&path, Some(owner), None).expect("an owner");
        }
        Self { folder, datagrams, _streams: streams }
    }

    fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    /// Returns what was changed.
    fn complaints(&self) -> Vec<String> {
        let mut found = Vec::new();
        let names = fs::read_dir(self.folder.path()).expect("the folder").count();
        if names != 4 {
            found.push(format!("there are {names} entries"));
        }
        for name in ["file", "secret"] {
            let facts = fs::metadata(self.path(name)).expect("a file");
            if facts.mode() & 0o7777 != 0o777 || fs::read(self.path(name)).expect("a file") != b"before" {
                found.push(format!("{name} was changed"));
            }
        }
        if self.datagrams.recv(&mut [0; 64]).is_ok() {
            found.push("a datagram came".to_owned());
        }
        found
    }
}

fn status(process: u32, field: &str) -> String {
    let status = fs::read_to_string(format!("/proc/{process}/status")).expect("a process");
    let line = status.lines().find_map(|line| line.strip_prefix(field)?.strip_prefix(':')).expect("a field");
    line.trim().to_owned()
}

fn user_of(process: u32) -> u32 {
    status(process, "Uid").split_whitespace().nth(1).and_then(|uid| uid.parse().ok()).expect("a user")
}

fn text(path: &Path) -> Vec<u8> {
    CString::new(path.as_os_str().as_bytes()).expect("a path").into_bytes_with_nul()
}

/// Returns the address of a Unix socket.
fn address(path: &Path) -> Vec<u8> {
    let mut bytes = libc::sa_family_t::try_from(libc::AF_UNIX).expect("a family").to_le_bytes().to_vec();
    bytes.extend(text(path));
    bytes
}

fn number(value: i32) -> Argument<'static> {
    Number(value.into())
}

/// What is never allowed, with arguments that would do it.
fn attempts<'a>(paths: &'a Paths, process: u32) -> Vec<(&'static str, i64, Vec<Argument<'a>>)> {
    use libc::*;
    let at = || number(AT_FDCWD);
    let me = || Number(std::process::id().into());
    let own = || Number(process.into());
    let file = || Bytes(&paths.file);
    let anywhere = || number(MAP_PRIVATE | MAP_ANONYMOUS);
    let zero = || Number(0);
    vec![
        ("a set-user-id bit", SYS_chmod, vec![file(), Number(0o4755)]),
        ("a set-group-id bit", SYS_fchmodat, vec![at(), file(), Number(0o2777)]),
        ("a set-user-id bit by the newest call", 452, vec![at(), file(), Number(0o4755), zero()]),
        ("a set-user-id bit of a descriptor", SYS_fchmod, vec![zero(), Number(0o4755)]),
        ("another owner", SYS_chown, vec![file(), Number(0), Number(0)]),
        ("another owner of a link", SYS_lchown, vec![file(), Number(0), Number(0)]),
        ("another owner by a folder", SYS_fchownat, vec![at(), file(), Number(0), Number(0), zero()]),
        ("another owner of a descriptor", SYS_fchown, vec![zero(), Number(0), Number(0)]),
        ("an attribute", SYS_setxattr, vec![file(), Bytes(b"user.x\0"), Bytes(b"x"), Number(1), zero()]),
        (
            "a new set-user-id file",
            SYS_openat,
            vec![at(), Bytes(&paths.new), number(O_CREAT | O_WRONLY), Number(0o4755)],
        ),
        ("a device", SYS_mknodat, vec![at(), Bytes(&paths.new), Number(0o20666), Number(0x103)]),
        ("a signal", SYS_kill, vec![me(), zero()]),
        ("a signal to all", SYS_kill, vec![Number(-1), zero()]),
        ("a signal to a thread", SYS_tkill, vec![me(), zero()]),
        ("a signal to a thread of a process", SYS_tgkill, vec![me(), me(), zero()]),
        ("a queued signal", SYS_rt_sigqueueinfo, vec![me(), zero(), Bytes(&[0; 128])]),
        ("a descriptor of a process", SYS_pidfd_open, vec![me(), zero()]),
        ("signals of a descriptor", SYS_fcntl, vec![zero(), number(F_SETOWN), me()]),
        ("the signal of a descriptor", SYS_fcntl, vec![zero(), Number(10), Number(9)]),
        ("tracing", SYS_ptrace, vec![Number(16), me(), zero(), zero()]),
        (
            "memory of a process",
            SYS_process_vm_readv,
            vec![me(), Bytes(&[0; 16]), Number(1), Bytes(&[0; 16])],
        ),
        ("writing memory", SYS_process_vm_writev, vec![me(), Bytes(&[0; 16]), Number(1), Bytes(&[0; 16])]),
        ("comparing processes", SYS_kcmp, vec![me(), own(), zero(), zero(), zero()]),
        (
            "a mount",
            SYS_mount,
            vec![Bytes(b"none\0"), Bytes(&paths.folder), Bytes(b"tmpfs\0"), zero(), zero()],
        ),
        ("unmounting", SYS_umount2, vec![Bytes(&paths.folder), number(MNT_DETACH)]),
        ("a new mount", SYS_fsopen, vec![Bytes(b"tmpfs\0"), zero()]),
        ("a copy of mounts", SYS_open_tree, vec![at(), Bytes(b"/\0"), Number(1)]),
        ("another root", SYS_chroot, vec![Bytes(&paths.folder)]),
        ("pivot_root", SYS_pivot_root, vec![Bytes(&paths.folder), Bytes(&paths.folder)]),
        ("a user namespace", SYS_unshare, vec![number(CLONE_NEWUSER)]),
        ("a mount namespace", SYS_unshare, vec![number(CLONE_NEWNS)]),
        ("a namespace of another process", SYS_setns, vec![zero(), zero()]),
        ("becoming root", SYS_setresuid, vec![Number(0), Number(0), Number(1)]),
        ("groups", SYS_setgroups, vec![zero(), zero()]),
        ("capabilities", SYS_capset, vec![Bytes(&[0; 8]), Bytes(&[0; 24])]),
        ("a process", SYS_fork, vec![]),
        ("a process that shares memory", SYS_vfork, vec![]),
        ("a process by a newer call", SYS_clone, vec![number(SIGCHLD), zero()]),
        ("the end of a child", SYS_wait4, vec![Number(-1), zero(), number(WNOHANG), zero()]),
        ("a program", SYS_execve, vec![Bytes(b"/bin/true\0"), zero(), zero()]),
        (
            "a program of a descriptor",
            SYS_execveat,
            vec![at(), Bytes(b"/bin/true\0"), zero(), zero(), zero()],
        ),
        (
            "executable memory",
            SYS_mmap,
            vec![zero(), Number(4096), number(PROT_READ | PROT_EXEC), anywhere(), Number(-1), zero()],
        ),
        (
            "writable and executable memory",
            SYS_mmap,
            vec![zero(), Number(4096), Number(7), anywhere(), Number(-1), zero()],
        ),
        ("memory made executable", SYS_mprotect, vec![zero(), Number(4096), number(PROT_EXEC)]),
        ("memory with a key", SYS_pkey_mprotect, vec![zero(), Number(4096), number(PROT_EXEC), Number(-1)]),
        ("io_uring", SYS_io_uring_setup, vec![Number(1), Bytes(&[0; 120])]),
        ("bpf", SYS_bpf, vec![zero(), Bytes(&[0; 128]), Number(128)]),
        ("keys", SYS_keyctl, vec![zero(), Number(-3), zero()]),
        ("a new key", SYS_add_key, vec![Bytes(b"user\0"), Bytes(b"x\0"), Bytes(b"x"), Number(1), Number(-3)]),
        ("userfaultfd", SYS_userfaultfd, vec![zero()]),
        ("perf", SYS_perf_event_open, vec![Bytes(&[0; 128]), zero(), Number(-1), Number(-1), zero()]),
        (
            "a handle of a file",
            SYS_name_to_handle_at,
            vec![at(), file(), Bytes(&[0; 128]), Bytes(&[0; 4]), zero()],
        ),
        ("a filter", SYS_seccomp, vec![Number(1), zero(), zero()]),
        ("tracing by its parent", SYS_prctl, vec![number(PR_SET_PTRACER), Number(-1)]),
        ("a limit", SYS_prlimit64, vec![zero(), Number(7), Bytes(&[0xff; 16]), zero()]),
        ("a personality", SYS_personality, vec![Number(0x0040_0000)]),
        ("ports", SYS_iopl, vec![Number(3)]),
        ("the clock", SYS_settimeofday, vec![Bytes(&[0; 16]), zero()]),
        ("a typed character", SYS_ioctl, vec![zero(), Number(0x5412), Bytes(b"x")]),
        ("a packet socket", SYS_socket, vec![number(AF_PACKET), number(SOCK_RAW), zero()]),
        ("a netlink socket", SYS_socket, vec![number(AF_NETLINK), number(SOCK_RAW), zero()]),
        ("a socket of virtual machines", SYS_socket, vec![number(AF_VSOCK), number(SOCK_STREAM), zero()]),
        ("a cipher of the kernel", SYS_socket, vec![number(AF_ALG), number(SOCK_SEQPACKET), zero()]),
        ("shared memory", SYS_shmget, vec![Number(0), Number(4096), Number(0o1600)]),
        ("a queue of messages", SYS_mq_open, vec![Bytes(b"x\0"), number(O_CREAT), Number(0o600), zero()]),
    ]
}

/// What no process but a mount may do.
fn attempts_of_others(paths: &Paths) -> Vec<(&'static str, i64, Vec<Argument<'_>>)> {
    use libc::*;
    let at = || number(AT_FDCWD);
    let kinds = [SOCK_DGRAM, SOCK_SEQPACKET];
    let mut all = vec![
        ("a mode", SYS_chmod, vec![Bytes(&paths.file), Number(0o600)]),
        ("a mode by a folder", SYS_fchmodat, vec![at(), Bytes(&paths.file), Number(0o600)]),
        ("times", SYS_utimensat, vec![at(), Bytes(&paths.file), Bytes(&[0; 32]), Number(0)]),
        ("times by an old call", SYS_utimes, vec![Bytes(&paths.file), Bytes(&[0; 32])]),
        ("a session", SYS_setsid, vec![]),
        (
            "a pair of datagram sockets",
            SYS_socketpair,
            vec![number(AF_UNIX), number(SOCK_DGRAM), Number(0), Bytes(&[0; 8])],
        ),
    ];
    all.extend(
        kinds.map(|kind| ("a Unix socket", SYS_socket, vec![number(AF_UNIX), number(kind), Number(0)])),
    );
    all
}

/// Unix sockets that neither a mount nor a server makes.
fn unix_sockets_of_others() -> Vec<(&'static str, i64, Vec<Argument<'static>>)> {
    use libc::*;
    let socket = |kind| vec![number(AF_UNIX), number(kind), Number(0)];
    vec![
        ("a Unix socket for datagrams", SYS_socket, socket(SOCK_DGRAM)),
        ("a Unix socket for a stream", SYS_socket, socket(SOCK_STREAM)),
        ("a Unix socket for packets", SYS_socket, socket(SOCK_SEQPACKET)),
        (
            "a pair of sockets for datagrams",
            SYS_socketpair,
            vec![number(AF_UNIX), number(SOCK_DGRAM), Number(0), Bytes(&[0; 8])],
        ),
    ]
}

/// What the helper of a mount of root does for its daemon, and what programs that it starts need.
const WORK_OF_A_HELPER: [&str; 17] = [
    "another owner by a folder",
    "a mount",
    "unmounting",
    "a new mount",
    "another root",
    "a user namespace",
    "a mount namespace",
    "capabilities",
    "a process",
    "a process that shares memory",
    "a process by a newer call",
    "the end of a child",
    "a program",
    "executable memory",
    "writable and executable memory",
    "memory made executable",
    "a filter",
];

/// Paths as the kernel takes them.
struct Paths {
    folder: Vec<u8>,
    file: Vec<u8>,
    new: Vec<u8>,
}

/// Tries everything from inside of a process, and returns what was possible.
pub(crate) fn tried(daemon: &Daemon, has_landlock: bool) -> Vec<String> {
    let prey = Prey::of(daemon);
    let paths = Paths {
        folder: text(prey.folder.path()),
        file: text(&prey.path("file")),
        new: text(&prey.path("new")),
    };
    let traced = stopped(daemon);
    let mut found = Vec::new();
    let is_helper = daemon.name == "helper";
    let is_mount = daemon.name == "mount" || is_helper;
    let others = match daemon.name {
        "mount" => unix_sockets_of_others(),
        "helper" => Vec::new(),
        _ => attempts_of_others(&paths),
    };
    let all = attempts(&paths, daemon.process).into_iter().chain(others);
    for (what, call, arguments) in all.filter(|(what, ..)| !is_helper || !WORK_OF_A_HELPER.contains(what)) {
        match traced.call(call, &arguments) {
            Ok(_) => found.push(format!("{what} is possible")),
            Err(error)
                if [Some(libc::EPERM), Some(libc::ENOSYS), Some(libc::EACCES)]
                    .contains(&error.raw_os_error()) => {}
            Err(error) => found.push(format!("{what} is refused by chance: {error}")),
        }
    }
    let open = |path: &Path, flags: i32| {
        traced.call(
            libc::SYS_openat,
            &[number(libc::AT_FDCWD), Bytes(&text(path)), number(flags), Number(0o644)],
        )
    };
    if has_landlock && !is_helper {
        let mut forbidden = vec![
            (prey.path("file"), libc::O_WRONLY),
            (prey.path("new"), libc::O_WRONLY | libc::O_CREAT),
            ("/etc/cron.d/esker".into(), libc::O_WRONLY | libc::O_CREAT),
            ("/proc/self/oom_score_adj".into(), libc::O_WRONLY),
        ];
        if !is_mount {
            let secrets = ["/etc/passwd", "/etc/shadow", "/etc/ssh", "/etc/hostname", "/root", "/bin/true"];
            let secrets = if daemon.name == "opener" { &secrets[4..] } else { &secrets[..] };
            forbidden.extend(secrets.iter().map(|path| (PathBuf::from(path), libc::O_RDONLY)));
            // An asker reads the entries of mounts below /tmp.
            if daemon.name != "asker" {
                forbidden.push((prey.path("secret"), libc::O_RDONLY));
            }
        }
        for (path, flags) in forbidden {
            if let Ok(descriptor) = open(&path, flags) {
                found.push(format!("{} is opened with {flags:#o}", path.display()));
                let _ = traced.call(libc::SYS_close, &[Number(descriptor)]);
            }
        }
    }
    if !is_mount {
        found.extend(reached(&traced, daemon, &prey));
    }
    drop(traced);
    found.extend(prey.complaints());
    found.into_iter().map(|what| format!("{}: {what}", daemon.name)).collect()
}

/// Uses the sockets that a process has for other addresses, and returns what was possible.
fn reached(traced: &Traced, daemon: &Daemon, prey: &Prey) -> Vec<String> {
    let mut found = Vec::new();
    for (socket, kind) in unix_sockets(daemon.process) {
        for name in ["datagrams", "streams"] {
            let address = address(&prey.path(name));
            let len = || Number(i64::try_from(address.len()).expect("a length"));
            let connected = traced.call(libc::SYS_connect, &[Number(socket), Bytes(&address), len()]);
            if connected.is_ok() {
                found.push(format!("descriptor {socket} is connected to {name}"));
            }
            let sent = [Number(socket), Bytes(b"x"), Number(1), Number(0), Bytes(&address), len()];
            if kind == DATAGRAMS && traced.call(libc::SYS_sendto, &sent).is_ok() {
                found.push(format!("descriptor {socket} sends to {name}"));
            }
        }
        if kind == DATAGRAMS && traced.call(libc::SYS_dup, &[Number(socket)]).is_ok() {
            found.push(format!("descriptor {socket} is copied"));
        }
    }
    found
}

/// Type of a datagram socket in `/proc/net/unix`.
const DATAGRAMS: u32 = 2;

/// Returns the Unix sockets of a process, with their types.
fn unix_sockets(process: u32) -> Vec<(i64, u32)> {
    let listed = fs::read_to_string("/proc/net/unix").expect("the Unix sockets");
    let kinds: HashMap<String, u32> = listed
        .lines()
        .skip(1)
        .filter_map(|line| {
            let fields: Vec<&str> = line.split_whitespace().collect();
            Some((format!("socket:[{}]", fields.get(6)?), u32::from_str_radix(fields.get(4)?, 16).ok()?))
        })
        .collect();
    let descriptors = fs::read_dir(format!("/proc/{process}/fd")).expect("descriptors").flatten();
    let kind = |entry: fs::DirEntry| {
        let target = entry.path().read_link().ok()?;
        Some((entry.file_name().to_str()?.parse().ok()?, *kinds.get(target.to_str()?)?))
    };
    descriptors.filter_map(kind).collect()
}

/// Stops a confined thread of a process that waits in a system call. A busy one is looked at again.
fn stopped(daemon: &Daemon) -> Traced {
    let found = RefCell::new(None);
    let is_stopped = || {
        let traced =
            confined_threads(daemon.process).into_iter().find_map(|thread| Traced::stop(thread).ok());
        found.replace(traced);
        found.borrow().is_some()
    };
    assert!(until(PATIENCE, is_stopped), "{} has no confined thread that waits", daemon.name);
    found.into_inner().expect("a thread")
}

/// Returns the confined threads of a process, the last one first.
fn confined_threads(process: u32) -> Vec<i32> {
    let tasks = fs::read_dir(format!("/proc/{process}/task")).expect("threads").flatten();
    let numbers = tasks.filter_map(|task| task.file_name().to_str()?.parse::<i32>().ok());
    let is_confined = |thread: &i32| {
        let status = fs::read_to_string(format!("/proc/{process}/task/{thread}/status")).unwrap_or_default();
        status.lines().any(|line| line.split_whitespace().eq(["Seccomp:", "2"]))
    };
    let mut threads: Vec<i32> = numbers.filter(is_confined).collect();
    threads.sort_unstable_by_key(|thread| std::cmp::Reverse(*thread));
    threads
}

/// A child that does not outlive the test.
struct Running(Child);

impl Drop for Running {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Starts a command and waits for its first line.
fn running(command: &mut Command) -> Running {
    let mut running = Running(command.stdin(Stdio::null()).stdout(Stdio::piped()).spawn().expect("esker"));
    first_line(running.0.stdout.as_mut().expect("its output"));
    running
}

/// Starts a command and waits for the first line of its log.
fn logging(command: &mut Command) -> Running {
    let mut running = Running(command.stdin(Stdio::null()).stderr(Stdio::piped()).spawn().expect("esker"));
    first_line(running.0.stderr.as_mut().expect("its log"));
    running
}

fn first_line(from: &mut impl Read) {
    let mut line = String::new();
    BufReader::new(from).read_line(&mut line).expect("a line");
    assert!(!line.is_empty(), "it has ended");
}

#[test]
fn code_inside_a_daemon_does_nothing_but_the_work_of_the_daemon() {
    if TestUser::root().is_none() {
        skip!("only root traces all daemons");
    }
    for person in TestUser::all() {
        let env = TestEnv::new(person, fixture::FULL);
        for folder in env.repository.path().ancestors().take_while(|folder| *folder != std::env::temp_dir()) {
            fs::set_permissions(folder, fs::Permissions::from_mode(0o755)).expect("a mode");
        }
        let served = env.repository.path().display().to_string();
        let esker = |arguments: &[&str]| env.esker(arguments);
        let serve = start(&mut esker(&["serve", &served, "--listen", "127.0.0.1:0", "--json"]));
        let upstream = format!("http://{}", env.mirror.address());
        // Its user makes its cache.
        let site = env.path("site");
        fs::create_dir(&site).expect("a folder");
        chown(&site, Some(person.uid), Some(person.gid)).expect("an owner");
        let cache = site.join("cache").display().to_string();
        let proxy =
            ["proxy", "--json", "--upstream", &upstream, "--listen", "127.0.0.1:0", "--cache", &cache];
        let proxy = start(&mut esker(&proxy));
        // It has a socket of the service manager's.
        let told = site.join("notify");
        let manager = UnixDatagram::bind(&told).expect("a socket");
        fs::set_permissions(&told, fs::Permissions::from_mode(0o777)).expect("a mode");
        let mut metrics = esker(&["metrics", "--listen", "127.0.0.1:0"]);
        let metrics = running(metrics.env("NOTIFY_SOCKET", &told));
        let mut state = [0; 16];
        assert_eq!(manager.recv(&mut state).map(|len| state[..len].to_vec()).expect("a state"), b"READY=1");
        let sockets = unix_sockets(metrics.0.id());
        assert!(sockets.iter().any(|(_, kind)| *kind == DATAGRAMS), "{sockets:?}");
        let (replicas, key) = (site.join("replicas"), env.path("key.pub").display().to_string());
        let to = replicas.display().to_string();
        let url = format!("{}/cvmfs/full.test", serve.url);
        let follow = ["replicate", &url, "--to", &to, "--public-key", &key, "--follow", "--every", "2h"];
        let follow = logging(&mut esker(&follow));
        let broker = Broker::start(&env);
        let mounted = env.mount(&[]);
        mounted.does(|| fs::read_dir(mounted.path("")).expect("the root").count());
        let has_landlock = mounted.status()["confined"]["landlock"].is_number();
        let mount =
            mounted.status()["pid"].as_u64().and_then(|pid| u32::try_from(pid).ok()).expect("a process");

        let servers = [
            Daemon { name: "serve", process: serve.child.id() },
            Daemon { name: "proxy", process: proxy.child.id() },
            Daemon { name: "metrics", process: metrics.0.id() },
            Daemon { name: "replicate --follow", process: follow.0.id() },
            Daemon { name: "broker", process: broker.pid() },
        ];
        let mut found = Vec::new();
        for daemon in &servers {
            found.extend(tried(daemon, has_landlock));
            for child in children_of(daemon.process) {
                let comm = fs::read_to_string(format!("/proc/{child}/comm")).expect("a name");
                let name = if comm.trim() == "esker-asker" { "asker" } else { "opener" };
                found.extend(tried(&Daemon { name, process: child }, has_landlock));
            }
            let (uid, capabilities) = (user_of(daemon.process), status(daemon.process, "CapPrm"));
            assert_eq!(u64::from_str_radix(&capabilities, 16).ok(), Some(0), "{}", daemon.name);
            if person.is_root() && daemon.name != "replicate --follow" {
                assert!(uid != 0, "{} is root's", daemon.name);
            }
        }
        found.extend(tried(&Daemon { name: "mount", process: mount }, has_landlock));
        if person.is_root() {
            // That of another user may do what its user may, for `fusermount3`.
            found.extend(tried(&Daemon { name: "helper", process: helper_of(mount) }, has_landlock));
        }
        assert!(found.is_empty(), "as user {}:\n  {}", person.uid, found.join("\n  "));
        // All of them work as before.
        mounted.does(|| fs::read_dir(mounted.path("")).expect("the root").count());
        let list = env.esker(&["ls", &url, "--public-key", &key, "--cache", "ram"]).output().expect("esker");
        assert!(list.status.success(), "{}", crate::test_env::words(&list));
    }
}
