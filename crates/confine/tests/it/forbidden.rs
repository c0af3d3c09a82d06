//! What no confined process can do.

use std::fs::{self, File};
use std::io::ErrorKind;
use std::net::{TcpListener, TcpStream};
use std::os::fd::AsRawFd;
use std::os::linux::net::SocketAddrExt;
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::os::unix::net::{SocketAddr, UnixDatagram, UnixListener, UnixStream};
use std::path::Path;
use std::process::{Command, Stdio};

use esker_confine::Role;

use crate::sys::call;
use crate::trial::{HELPERS, Scene, enter, has_landlock, without_programs};

/// Calls that no role may make, with arguments that do nothing.
const NEVER: [(&str, libc::c_long); 38] = [
    ("acct", libc::SYS_acct),
    ("add_key", libc::SYS_add_key),
    ("bpf", libc::SYS_bpf),
    ("capset", libc::SYS_capset),
    ("chroot", libc::SYS_chroot),
    ("delete_module", libc::SYS_delete_module),
    ("execve", libc::SYS_execve),
    ("execveat", libc::SYS_execveat),
    ("finit_module", libc::SYS_finit_module),
    ("fsopen", libc::SYS_fsopen),
    ("init_module", libc::SYS_init_module),
    ("io_uring_setup", libc::SYS_io_uring_setup),
    ("kexec_load", libc::SYS_kexec_load),
    ("keyctl", libc::SYS_keyctl),
    ("mknodat", libc::SYS_mknodat),
    ("mount", libc::SYS_mount),
    ("move_mount", libc::SYS_move_mount),
    ("name_to_handle_at", libc::SYS_name_to_handle_at),
    ("open_by_handle_at", libc::SYS_open_by_handle_at),
    ("open_tree", libc::SYS_open_tree),
    ("perf_event_open", libc::SYS_perf_event_open),
    ("pidfd_getfd", libc::SYS_pidfd_getfd),
    ("pidfd_open", libc::SYS_pidfd_open),
    ("pivot_root", libc::SYS_pivot_root),
    ("process_vm_readv", libc::SYS_process_vm_readv),
    ("process_vm_writev", libc::SYS_process_vm_writev),
    ("ptrace", libc::SYS_ptrace),
    ("quotactl", libc::SYS_quotactl),
    ("reboot", libc::SYS_reboot),
    ("seccomp", libc::SYS_seccomp),
    ("setns", libc::SYS_setns),
    ("setresgid", libc::SYS_setresgid),
    ("setresuid", libc::SYS_setresuid),
    ("settimeofday", libc::SYS_settimeofday),
    ("swapon", libc::SYS_swapon),
    ("umount2", libc::SYS_umount2),
    ("unshare", libc::SYS_unshare),
    ("userfaultfd", libc::SYS_userfaultfd),
];

fn is_refused<T>(what: &str, outcome: std::io::Result<T>) {
    match outcome {
        Ok(_) => panic!("{what} is allowed"),
        Err(error) => assert_eq!(error.raw_os_error(), Some(libc::EPERM), "{what}: {error}"),
    }
}

#[test]
fn child_that_tries_calls() {
    let Some((role, _)) = enter() else { return };
    for (name, number) in NEVER {
        is_refused(name, call(number, [-1; 6]));
    }
    let namespace = [libc::c_long::from(libc::CLONE_NEWUSER), 0, 0, 0, 0, 0];
    is_refused("clone with a user namespace", call(libc::SYS_clone, namespace));
    is_refused("another process", call(libc::SYS_clone, [libc::c_long::from(libc::SIGCHLD), 0, 0, 0, 0, 0]));
    let clone3 = call(libc::SYS_clone3, [0; 6]).unwrap_err();
    assert_eq!(clone3.raw_os_error(), Some(libc::ENOSYS));
    let executable = libc::c_long::from(libc::PROT_READ | libc::PROT_EXEC);
    is_refused("executable memory", call(libc::SYS_mprotect, [0, 4096, executable, 0, 0, 0]));
    let private = libc::c_long::from(libc::MAP_PRIVATE | libc::MAP_ANONYMOUS);
    is_refused("mapping executable memory", call(libc::SYS_mmap, [0, 4096, executable, private, -1, 0]));
    // Signal 0 asks whether a process may be signalled.
    let parent = libc::c_long::from(rustix::process::getppid().unwrap().as_raw_nonzero().get());
    is_refused("signals to another process", call(libc::SYS_kill, [parent, 0, 0, 0, 0, 0]));
    is_refused("signals to all", call(libc::SYS_kill, [-1, 0, 0, 0, 0, 0]));
    // TIOCSTI types into a terminal; the group of a packet socket sees all packets.
    is_refused("TIOCSTI", call(libc::SYS_ioctl, [0, 0x5412, 0, 0, 0, 0]));
    let family = |family: i32| [libc::c_long::from(family), libc::c_long::from(libc::SOCK_DGRAM), 0, 0, 0, 0];
    // The first is F_SETSIG, the third F_SETOWN_EX: with an owner, events of a descriptor are signals to any process of the user.
    for command in [10, libc::F_SETOWN, 15, libc::F_SETLEASE, libc::F_NOTIFY] {
        let own = libc::c_long::from(rustix::process::getpid().as_raw_nonzero().get());
        is_refused("signals about a descriptor", call(libc::SYS_fcntl, [0, command.into(), own, 0, 0, 0]));
    }
    is_refused("packet sockets", call(libc::SYS_socket, family(libc::AF_PACKET)));
    is_refused("netlink sockets", call(libc::SYS_socket, family(libc::AF_NETLINK)));
    if HELPERS.contains(&role) {
        is_refused("any socket", call(libc::SYS_socket, family(libc::AF_INET)));
        is_refused("renaming", fs::rename("/a", "/b"));
    }
    is_refused("datagrams to Unix sockets", call(libc::SYS_socket, family(libc::AF_UNIX)));
    let of_kind = |kind: i32| [libc::c_long::from(libc::AF_UNIX), libc::c_long::from(kind), 0, 0, 0, 0];
    for kind in [libc::SOCK_DGRAM, libc::SOCK_STREAM] {
        is_refused("a pair of sockets", call(libc::SYS_socketpair, of_kind(kind)));
    }
    if role != Role::Asker {
        is_refused("a Unix socket", call(libc::SYS_socket, of_kind(libc::SOCK_STREAM)));
    }
    is_refused("a Unix socket for packets", call(libc::SYS_socket, of_kind(libc::SOCK_SEQPACKET)));
    let is_root = rustix::process::geteuid().is_root();
    is_refused(
        "becoming another user",
        call(libc::SYS_setresuid, if is_root { [1, 1, 1, 0, 0, 0] } else { [0; 6] }),
    );
    assert!(Command::new("/bin/true").status().is_err(), "a program was started");
    println!("tried calls");
}

#[test]
fn forbidden_calls_fail_in_every_role() {
    for role in without_programs() {
        let text = Scene::new().confined(role, "forbidden::child_that_tries_calls");
        assert!(text.contains("tried calls"), "{text}");
    }
}

/// What a process that mounts and starts programs doesn't need for that.
const NOT_FOR_MOUNTING: [&str; 12] = [
    "bpf",
    "init_module",
    "io_uring_setup",
    "kexec_load",
    "keyctl",
    "mknodat",
    "open_by_handle_at",
    "process_vm_writev",
    "ptrace",
    "setns",
    "setresuid",
    "userfaultfd",
];

#[test]
fn child_that_helps_a_mount() {
    if enter().is_none() {
        return;
    }
    for (name, number) in NEVER.into_iter().filter(|(name, _)| NOT_FOR_MOUNTING.contains(name)) {
        is_refused(name, call(number, [-1; 6]));
    }
    let parent = libc::c_long::from(rustix::process::getppid().unwrap().as_raw_nonzero().get());
    is_refused("a signal that doesn't kill", call(libc::SYS_kill, [parent, 0, 0, 0, 0, 0]));
    is_refused("a network namespace", call(libc::SYS_unshare, [libc::CLONE_NEWNET.into(), 0, 0, 0, 0, 0]));
    is_refused("the network", TcpStream::connect("127.0.0.1:9"));
    assert!(Command::new("/bin/true").status().unwrap().success());
    let mut stuck = Command::new("/bin/cat").stdin(Stdio::piped()).spawn().unwrap();
    stuck.kill().unwrap();
    stuck.wait().unwrap();
    println!("tried helping");
}

#[test]
fn the_helper_of_a_mount_starts_and_kills_programs_and_has_no_network() {
    let text = Scene::new().confined(Role::Helper, "forbidden::child_that_helps_a_mount");
    assert!(text.contains("tried helping"), "{text}");
}

#[test]
fn child_that_tries_modes() {
    let Some((role, folder)) = enter() else { return };
    let (file, new) = (folder.join("write/file"), folder.join("write/new"));
    let open = || File::open(folder.join("read/file")).unwrap();
    let mode = |mode| std::os::unix::fs::PermissionsExt::from_mode(mode);
    let create = |mode| fs::OpenOptions::new().write(true).create_new(true).mode(mode).open(&new);
    for bits in [0o4755, 0o2755, 0o6755] {
        is_refused("a new file of set id", create(bits));
        is_refused("a set id", fs::set_permissions(&file, mode(bits)));
        is_refused("a set id of a descriptor", open().set_permissions(mode(bits)));
        let names = Path::new("/proc/self/fd").join(open().as_raw_fd().to_string());
        assert!(fs::set_permissions(names, mode(bits)).is_err(), "a set id by the name of a descriptor");
    }
    if role.is_server() {
        is_refused("a mode", fs::set_permissions(&file, mode(0o600)));
        is_refused("a mode of a descriptor", open().set_permissions(mode(0o600)));
        is_refused("times of a descriptor", open().set_modified(std::time::SystemTime::UNIX_EPOCH));
        if rustix::process::geteuid().is_root() {
            let how = [libc::c_long::from(libc::AT_FDCWD), 0, 0, 0, 0, 0];
            let error = call(437, how).expect_err("openat2, whose mode no filter can read");
            assert_eq!(error.raw_os_error(), Some(libc::ENOSYS));
        }
    }
    if !HELPERS.contains(&role) {
        create(0o1777).unwrap();
    }
    println!("tried modes");
}

#[test]
fn no_role_makes_files_that_run_as_their_owner_and_servers_change_no_attributes() {
    for role in without_programs() {
        let scene = Scene::new();
        let text = scene.confined(role, "forbidden::child_that_tries_modes");
        assert!(text.contains("tried modes"), "{text}");
        for place in ["read/file", "write/file"] {
            let facts = fs::metadata(scene.folder.path().join(place)).unwrap();
            assert!(facts.mode() & 0o6000 == 0 && facts.mtime() > 0, "{role:?} {place}");
        }
    }
}

fn is_denied<T>(what: &str, outcome: std::io::Result<T>) {
    match outcome {
        Ok(_) => panic!("{what} is allowed"),
        Err(error) => assert_eq!(error.kind(), ErrorKind::PermissionDenied, "{what}: {error}"),
    }
}

#[test]
fn child_that_tries_paths() {
    let Some((role, folder)) = enter() else { return };
    let (read, other) = (folder.join("read"), folder.join("other"));
    let list = folder.join("list");
    for place in [&read, &list, &other] {
        is_denied("making a file", File::create(place.join("new")));
        is_denied("changing a file", fs::OpenOptions::new().write(true).open(place.join("file")));
        is_denied("removing a file", fs::remove_file(place.join("file")));
        is_denied("making a folder", fs::create_dir(place.join("folder")));
        is_denied("a hard link", fs::hard_link(folder.join("read/file"), place.join("link")));
        is_denied("a symlink", std::os::unix::fs::symlink("/", place.join("symlink")));
    }
    is_denied("changing settings", fs::OpenOptions::new().append(true).open("/etc/hosts"));
    is_denied("cron", File::create("/etc/cron.d/esker"));
    is_denied("changing a process", fs::OpenOptions::new().write(true).open("/proc/self/oom_score_adj"));
    if role != Role::Mount {
        is_denied("reading elsewhere", File::open(other.join("file")));
        is_denied("listing elsewhere", fs::read_dir(&other));
        is_denied("reading where it lists", File::open(list.join("file")));
        is_denied("reading programs", File::open("/bin/sh"));
    }
    if ![Role::Mount, Role::Opener].contains(&role) {
        for secret in ["/etc/hosts", "/etc/passwd", "/etc/shadow", "/etc/resolv.conf"] {
            is_denied("reading settings", File::open(secret));
        }
        is_denied("listing settings", fs::read_dir("/etc"));
    }
    if HELPERS.contains(&role) {
        assert!(TcpStream::connect("127.0.0.1:9").is_err());
    }
    // The seventh version of Landlock's interface refuses ports since the fourth.
    is_denied("listening at a port", TcpListener::bind("127.0.0.1:0"));
    println!("tried paths");
}

#[test]
fn forbidden_paths_fail_in_every_role() {
    if !has_landlock() {
        println!("this kernel has no Landlock");
        return;
    }
    for role in without_programs() {
        let scene = Scene::new();
        let text = scene.confined(role, "forbidden::child_that_tries_paths");
        assert!(text.contains("tried paths"), "{text}");
        for name in ["read", "other"] {
            let entries = fs::read_dir(scene.folder.path().join(name)).unwrap().count();
            assert_eq!(entries, 1, "{role:?} changed {name}");
        }
    }
}

/// Names of abstract sockets that listen outside of the confinement, one for each role.
fn abstract_name(folder: &Path) -> SocketAddr {
    SocketAddr::from_abstract_name(folder.as_os_str().as_encoded_bytes()).unwrap()
}

#[test]
fn child_that_tries_sockets() {
    let Some(folder) = crate::trial::folder() else { return };
    let receiver = UnixDatagram::bind(folder.join("write/log")).unwrap();
    let elsewhere = UnixDatagram::bind(folder.join("write/elsewhere")).unwrap();
    elsewhere.set_nonblocking(true).unwrap();
    let sender = UnixDatagram::unbound().unwrap();
    sender.connect(folder.join("write/log")).unwrap();
    let role = crate::trial::enter_with(|policy| policy.send_only(sender.as_raw_fd())).0;
    // A socket that was given is no way to others: neither by an address, nor by another connection, nor by a copy.
    is_refused("another address", sender.send_to(b"x", folder.join("write/elsewhere")));
    is_refused("another connection", sender.connect(folder.join("write/elsewhere")));
    is_refused("a copy", sender.try_clone());
    let number = libc::c_long::from(sender.as_raw_fd());
    for (name, copy) in [("dup", libc::SYS_dup), ("dup3", libc::SYS_dup3), ("sendmsg", libc::SYS_sendmsg)] {
        is_refused(name, call(copy, [number, 99, 0, 0, 0, 0]));
    }
    rustix::io::write(&sender, b"a line").unwrap();
    let mut line = [0; 16];
    assert_eq!(rustix::io::read(&receiver, &mut line).unwrap(), 6);
    assert!(rustix::io::read(&elsewhere, &mut line).is_err(), "a datagram came");
    if role != Role::Asker {
        is_refused("a Unix socket", UnixStream::connect(folder.join("write/elsewhere")));
        is_refused("an abstract socket", UnixStream::connect_addr(&abstract_name(&folder)));
    } else if has_landlock() {
        is_refused("an abstract socket", UnixStream::connect_addr(&abstract_name(&folder)));
    }
    println!("tried sockets");
}

#[test]
fn only_askers_connect_to_unix_sockets_and_none_to_abstract_ones() {
    for role in without_programs().filter(|role| *role != Role::Mount && *role != Role::Replayer) {
        let scene = Scene::new();
        let _listening = UnixListener::bind_addr(&abstract_name(scene.folder.path())).unwrap();
        let text = scene.confined(role, "forbidden::child_that_tries_sockets");
        assert!(text.contains("tried sockets"), "{role:?}: {text}");
    }
}
