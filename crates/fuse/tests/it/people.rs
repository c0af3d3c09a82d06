//! Mounts by root, by ordinary users, and by processes in namespaces of their own.

use std::fs;
use std::os::fd::AsFd;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::os::unix::net::UnixStream;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::time::Duration;

use esker_fuse::{Deadlines, KernelMask, Session, SessionOptions};
use esker_kernel_mount::{Mount, MountOptions, Unmount};
use esker_testkit::memory_tree::{Action, Call, Entry, MemoryTree};
use esker_testkit::{programs, skip, skips};

use crate::child::{self, Task};
use crate::mounted::{Mounted, PATIENCE, is_root, keep_caches, until, with_fuse};
use crate::sys;

const NOBODY: u32 = 65_534;

/// A copy of this program that all users may run, in a folder that all users may enter.
fn for_everyone() -> (tempfile::TempDir, std::path::PathBuf) {
    let folder = tempfile::tempdir().expect("a folder");
    fs::set_permissions(folder.path(), fs::Permissions::from_mode(0o1777)).expect("permissions");
    let program = folder.path().join("it");
    programs::copy(&std::env::current_exe().expect("this binary"), &program);
    (folder, program)
}

fn open_device_to_all() {
    fs::set_permissions("/dev/fuse", fs::Permissions::from_mode(0o666)).expect("chmod /dev/fuse");
}

/// Every test of this binary once more, mounted through fusermount3 by a user without any privilege.
#[test]
fn all_tests_pass_as_an_ordinary_user() {
    if !is_root() {
        // Nothing is left out: this user runs the other tests.
        return;
    }
    with_fuse(|| {
        open_device_to_all();
        let _caches = keep_caches();
        let (folder, program) = for_everyone();
        let output = Command::new(&program)
            .args(["--skip", "people::", "--test-threads=4"])
            .uid(NOBODY)
            .gid(NOBODY)
            .env("REQUIRE_FUSE", "1")
            // What this user can't do root does in this process.
            .env_remove(skips::FILE)
            .env_remove(skips::FORBIDDEN)
            .env("TMPDIR", folder.path())
            .env("CARGO_MANIFEST_DIR", env!("CARGO_MANIFEST_DIR"))
            .current_dir("/")
            .output()
            .expect("started");
        let text = String::from_utf8_lossy(&output.stdout);
        assert!(output.status.success(), "{text}\n{}", String::from_utf8_lossy(&output.stderr));
        assert!(text.contains("a_second_pass_causes_no_request::linux_6_18 ... ok"), "{text}");
    });
}

/// Mounts in the namespace of this process, sends the connection to the parent process, which serves it, and reads
/// from the mount. Returns the findings.
pub(crate) fn mount_and_hand_over(mountpoint: &Path) -> std::io::Result<String> {
    let device = esker_kernel_mount::open_device().expect("the device");
    let options = MountOptions { source: "memory".into(), allow_other: true, ..MountOptions::default() };
    esker_kernel_mount::mount_device(device.as_fd(), mountpoint, &options).expect("mounted");
    esker_kernel_mount::send_device(std::io::stdin(), device.as_fd())?;
    drop(device);
    let file = fs::metadata(mountpoint.join("dir/file"))?;
    let content = fs::read_to_string(mountpoint.join("dir/file"))?;
    let names = fs::read_dir(mountpoint.join("dir"))?.count();
    esker_kernel_mount::unmount(mountpoint, Unmount::Lazy).expect("unmounted");
    Ok(format!("{} {content} {names} {}", file.len(), file.uid()))
}

fn hand_over(as_user: Option<u32>) {
    let (folder, program) = for_everyone();
    let mountpoint = folder.path().join("mnt");
    fs::create_dir(&mountpoint).expect("a mountpoint");
    let (ours, theirs) = UnixStream::pair().expect("sockets");
    let mut command = child::command(&program, "namespace", &mountpoint);
    command.stdin(Stdio::from(std::os::fd::OwnedFd::from(theirs)));
    if let Some(user) = as_user {
        command.uid(user).gid(user);
        std::os::unix::fs::chown(&mountpoint, Some(user), Some(user)).expect("chown");
    }
    let own = (rustix::process::getuid().as_raw(), rustix::process::getgid().as_raw());
    sys::in_own_namespace(&mut command, as_user.map_or(own, |user| (user, user)));
    let mut task = Task::spawn(&mut command);
    drop(command);
    let tree = Arc::new(MemoryTree::new());
    tree.put("dir", Entry::directory());
    tree.put("dir/file", Entry::file(b"handed-over"));
    let device = esker_kernel_mount::receive_device(&ours).expect("received");
    let served: Arc<dyn esker_vfs::Tree> = Arc::clone(&tree) as _;
    let session = Session::start(device, served, SessionOptions::default()).expect("a session");
    // Owners are numbers of the namespace that mounted; there the user is root.
    assert_eq!(task.line("result "), "11 handed-over 1 0");
    session.wait();
    assert!(!mountpoint.join("dir").exists(), "it was never mounted outside the namespace");
    assert_eq!(tree.held(), 0);
}

/// A process mounts in its own user namespace and hands the connection to one outside, which serves it.
#[test]
fn a_process_mounts_in_its_own_namespace() {
    with_fuse(|| {
        if is_root() {
            open_device_to_all();
            hand_over(Some(NOBODY));
        }
        hand_over(None);
    });
}

/// Serves a mount on a received device, as a user without rights over its readers; the mount's file never arrives.
/// Returns what this process could see of its starter, and the number of requests for the file.
pub(crate) fn serve_for_others() -> std::io::Result<String> {
    let device = esker_kernel_mount::receive_device(std::io::stdin())?;
    let tree = Arc::new(MemoryTree::new());
    tree.put("file", Entry::file(&[7; 10_000]));
    tree.script().set(Call::Read, "file", Action::Park);
    let deadlines = Deadlines { read: Duration::from_secs(1), ..Deadlines::default() };
    let served: Arc<dyn esker_vfs::Tree> = Arc::clone(&tree) as _;
    let session = Session::start(device, served, SessionOptions { deadlines, ..SessionOptions::default() });
    let session = session.expect("a session");
    println!("serving");
    session.wait();
    let starter = rustix::process::getppid().expect("who started it").as_raw_nonzero();
    let seen = ["syscall", "maps"].iter().any(|file| fs::read(format!("/proc/{starter}/{file}")).is_ok());
    Ok(format!("{seen} {}", tree.script().calls(Call::Read, "file")))
}

/// A daemon that gave up root can't look at the processes of other users. Their reads end all the same.
#[test]
fn readers_of_another_user_get_an_error_at_the_deadline() {
    if !is_root() {
        skip!("only root can give a mount for others away");
    }
    with_fuse(|| {
        let (folder, program) = for_everyone();
        let mountpoint = folder.path().join("mnt");
        fs::create_dir(&mountpoint).expect("a mountpoint");
        let options = MountOptions { source: "memory".into(), allow_other: true, ..MountOptions::default() };
        let device = Mount::new(&mountpoint, &options).expect("mounted").into_device();
        let (ours, theirs) = UnixStream::pair().expect("sockets");
        let mut command = child::command(&program, "serve", folder.path());
        command.stdin(Stdio::from(std::os::fd::OwnedFd::from(theirs))).uid(NOBODY).gid(NOBODY);
        esker_kernel_mount::send_device(&ours, device.as_fd()).expect("sent");
        drop(device);
        let mut server = Task::spawn(&mut command);
        server.line("serving");
        let mut reader = Task::spawn(&mut child::command(&program, "read", &mountpoint.join("file")));
        let ended = until(PATIENCE, || reader.child.try_wait().expect("waited").is_some());
        esker_kernel_mount::unmount(&mountpoint, Unmount::Lazy).expect("unmounted");
        assert!(ended, "the reader waits for more than its deadline");
        assert_eq!(reader.line("error "), libc::EIO.to_string());
        let result = server.line("result ");
        let (seen, calls) = result.split_once(' ').expect("two words");
        assert_eq!(seen, "false", "it may look at us, so nothing was tested");
        assert!(calls.parse::<u32>().expect("a number") >= 1, "it was asked");
    });
}

/// Batch systems limit address space; the arena then reserves less of it.
#[test]
fn little_address_space_is_enough() {
    with_fuse(|| {
        let _caches = keep_caches();
        let program = std::env::current_exe().expect("this binary");
        let output = Command::new("/bin/sh")
            .args(["-c", "ulimit -v 700000 && exec \"$0\" \"$@\""])
            .arg(program)
            .args([
                "stat_returns_the_attributes_of_the_tree",
                "reads_of_any_range",
                "a_second_pass",
                "--test-threads=1",
            ])
            .env("REQUIRE_FUSE", "1")
            // What this user can't do root does in this process.
            .env_remove(skips::FILE)
            .env_remove(skips::FORBIDDEN)
            // To report a failed allocation with its backtrace takes memory: the library waits for itself then.
            .env("RUST_BACKTRACE", "0")
            .output()
            .expect("started");
        let text = String::from_utf8_lossy(&output.stdout);
        assert!(output.status.success(), "{text}\n{}", String::from_utf8_lossy(&output.stderr));
        assert!(text.contains("9 passed"), "{text}");
    });
}

#[test]
fn a_refused_mount_reports_the_reason() {
    with_fuse(|| {
        let folder = tempfile::tempdir().expect("a folder");
        let (missing, file) = (folder.path().join("none"), folder.path().join("file"));
        fs::write(&file, b"").expect("written");
        for mount in [Mount::new, Mount::helped] {
            let error = mount(&missing, &MountOptions::default()).expect_err("no such directory");
            let text = error.to_string();
            assert!(text.contains("none") && text.to_lowercase().contains("no such"), "{text}");
            let error = mount(&file, &MountOptions::default()).expect_err("not a directory");
            assert!(error.to_string().contains("director"), "{error}");
        }
        let error = esker_kernel_mount::unmount(folder.path(), Unmount::IfUnused).expect_err("nothing there");
        assert!(error.to_string().contains("mounted"), "{error}");
    });
}

#[test]
fn the_mount_table_shows_source_and_type() {
    with_fuse(|| {
        let mounted = Mounted::new(MemoryTree::new(), KernelMask::default());
        let point = mounted.root().to_str().expect("text");
        let mounts = fs::read_to_string("/proc/self/mounts").expect("mounts");
        let line = mounts.lines().find(|l| l.split(' ').nth(1) == Some(point)).expect("listed");
        assert!(line.starts_with("memory ") && line.contains(" fuse.esker "), "{line}");
        for flag in ["ro,", "nosuid", "nodev", "noatime", "default_permissions"] {
            assert!(line.contains(flag), "{flag}: {line}");
        }
    });
}
