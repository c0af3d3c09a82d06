//! Daemons of mounts: their remains, their end, and recovery when they are killed.

use std::collections::BTreeSet;
use std::ffi::OsStr;
use std::fs::{self, File};
use std::io::Read;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Stdio};

use esker_testkit::fixture;
use esker_testkit::mirror::Fault;
use esker_testkit::skip;
use esker_testkit::waiting::{Pace, until};
use rustix::mount::{UnmountFlags, mount_bind, unmount};
use rustix::process::{Pid, PidfdFlags, Signal, kill_process, pidfd_open};

use crate::confinement::helper_of;
use crate::running::processes_naming;
use crate::test_env::{Mounted, PATIENCE, TestEnv, printed, words};
use crate::test_user::TestUser;

/// Returns every file and folder in a user's home and runtime folder, without some and what is in them.
pub(crate) fn files_of(world: &TestEnv, is_left_out: impl Fn(&Path) -> bool) -> BTreeSet<PathBuf> {
    let mut found = BTreeSet::new();
    let mut folders = vec![world.path("home"), world.path("run")];
    while let Some(folder) = folders.pop() {
        for entry in fs::read_dir(&folder).expect("a folder") {
            let path = entry.expect("an entry").path();
            if is_left_out(&path) {
                continue;
            }
            if fs::symlink_metadata(&path).is_ok_and(|facts| facts.is_dir()) {
                folders.push(path.clone());
            }
            found.insert(path);
        }
    }
    found
}

/// Returns every file and folder in a user's home and runtime folder, those of the cache left out.
fn files_below(world: &TestEnv) -> BTreeSet<PathBuf> {
    files_of(world, |path| path == world.cache())
}

/// Option of a mount that ends with its daemon.
pub(crate) const ALONE: [&str; 1] = ["--no-supervisor"];

/// Returns the process id of a mount's daemon, once it serves.
pub(crate) fn serving_daemon(mounted: &Mounted<'_>) -> u32 {
    let status =
        mounted.wait_until("an answer", |status| status["pid"].is_u64() && status["state"] == "serving");
    u32::try_from(status["pid"].as_u64().expect("a process id")).expect("a process id")
}

/// Waits until a process is gone, however it ends.
pub(crate) fn wait_until_gone(pid: u32) {
    let pid = Pid::from_raw(i32::try_from(pid).expect("a process id")).expect("a process id");
    let Ok(process) = pidfd_open(pid, PidfdFlags::empty()) else { return };
    let mut wait = [rustix::event::PollFd::new(&process, rustix::event::PollFlags::IN)];
    let patience = rustix::event::Timespec::try_from(PATIENCE).expect("a timeout");
    assert_eq!(rustix::event::poll(&mut wait, Some(&patience)).expect("poll"), 1, "{pid:?} does not end");
}

pub(crate) fn signal(pid: u32, signal: Signal) {
    let pid = Pid::from_raw(i32::try_from(pid).expect("a process id")).expect("a process id");
    kill_process(pid, signal).expect("a signal");
}

fn daemon_of(world: &TestEnv, mounted: &Mounted<'_>) -> u32 {
    let pid = serving_daemon(mounted);
    assert!(processes_naming(&world.url()).contains(&pid));
    pid
}

/// Its daemon is replaced by one that has a helper again.
#[test]
fn a_mount_whose_helper_is_killed_goes_on() {
    for person in TestUser::all() {
        let world = TestEnv::new(person, fixture::RMD);
        let mounted = world.mount(&[]);
        let before = serving_daemon(&mounted);
        let helper = helper_of(before);
        // Those of a service manager or a terminal reach all processes.
        for ignored in [Signal::TERM, Signal::INT, Signal::HUP] {
            signal(helper, ignored);
        }
        assert_eq!(helper_of(serving_daemon(&mounted)), helper);
        signal(helper, Signal::KILL);
        wait_until_gone(before);
        let after = serving_daemon(&mounted);
        assert!(after != before && helper_of(after) != helper);
        mounted.does(|| fs::read_dir(mounted.path("")).expect("the root").count());
    }
}

/// Jobs take over the variable from a login on another node, `su` from another user.
#[test]
fn a_missing_or_foreign_runtime_folder_is_no_obstacle() {
    let world = TestEnv::new(TestUser::ordinary(), fixture::RMD);
    let of_root = TestUser::myself().is_root().then(|| {
        let folder = world.path("of-root");
        fs::create_dir(&folder).expect("a folder");
        fs::set_permissions(&folder, fs::Permissions::from_mode(0o700)).expect("a mode");
        folder
    });
    for folder in std::iter::once(world.path("none")).chain(of_root) {
        let esker = |arguments: &[&str]| {
            let mut command = world.esker(arguments);
            command.env("XDG_RUNTIME_DIR", &folder);
            command
        };
        let mut mount = esker(&["mount", &world.url()]);
        mount.arg(world.mountpoint()).arg("--public-key").arg(world.path("key.pub"));
        let output = mount.output().expect("running esker");
        assert!(output.status.success(), "{}: {}", folder.display(), words(&output));
        let status = esker(&["status"]).arg(world.mountpoint()).output().expect("running esker");
        let umount = esker(&["umount"]).arg(world.mountpoint()).output().expect("running esker");
        assert!(umount.status.success(), "{}: {}", folder.display(), words(&umount));
        let mountpoint = world.mountpoint().display().to_string();
        let shown = String::from_utf8_lossy(&status.stdout);
        assert!(shown.contains(&mountpoint) && !shown.contains("isn't known"), "{}", words(&status));
    }
}

/// The runtime folder is removed with the last session of a user, daemons stay; and a job has another one than a
/// login.
#[test]
fn a_mount_of_another_session_is_shown_and_unmounted() {
    let world = TestEnv::new(TestUser::ordinary(), fixture::RMD);
    let mounted = world.mount(&[]);
    let pid = daemon_of(&world, &mounted);
    let elsewhere = world.path("home");
    let esker = |arguments: &[&str]| {
        let mut command = world.esker(arguments);
        command.arg(world.mountpoint()).env("XDG_RUNTIME_DIR", &elsewhere);
        command
    };
    let shown = printed(&mut esker(&["status"]));
    assert!(
        shown.contains(&world.url()) && shown.contains("isn't known") && shown.contains("umount"),
        "{shown}"
    );
    let told: serde_json::Value =
        serde_json::from_str(&printed(&mut esker(&["status", "--json"]))).expect("JSON");
    assert_eq!(told["mounts"][0]["state"], "unregistered", "{told:#}");
    assert_eq!(told["mounts"][0]["source"], world.url(), "{told:#}");
    std::mem::forget(mounted);
    printed(&mut esker(&["umount"]));
    assert!(!world.is_mounted());
    wait_until_gone(pid);
    assert!(!files_below(&world).iter().any(|path| path.starts_with(world.path("run"))));
}

/// Names are bytes: a mount point and a cache whose names are no text.
#[test]
fn a_mount_point_and_a_cache_may_have_names_that_are_no_text() {
    let world = TestEnv::new(TestUser::ordinary(), fixture::RMD);
    let below = |name: &[u8]| world.path("home").join(OsStr::from_bytes(name));
    let (mountpoint, cache) = (below(b"m\xff"), below(b"c\xfe"));
    world.person.does(|| fs::create_dir(&mountpoint).expect("a folder"));
    let mut mount = world.esker(&["mount", &world.url()]);
    mount.arg(&mountpoint).arg("--public-key").arg(world.path("key.pub")).arg("--cache").arg(&cache);
    let output = mount.output().expect("running esker");
    assert!(output.status.success(), "{}", words(&output));
    let status = world.esker(&["status", "--json"]).arg(&mountpoint).output().expect("running esker");
    let revision = world.esker(&["revision"]).arg(&mountpoint).output().expect("running esker");
    let looked_after = world.esker(&["cache", "status", "--json", "--cache"]).arg(&cache).output();
    let umount = world.esker(&["umount"]).arg(&mountpoint).output().expect("running esker");
    assert!(umount.status.success(), "{}", words(&umount));
    assert!(status.status.success(), "{}", words(&status));
    let all: serde_json::Value = serde_json::from_slice(&status.stdout).expect("JSON");
    assert_eq!(all["mounts"][0]["mountpoint"], mountpoint.to_string_lossy().into_owned(), "{all:#}");
    assert_eq!(all["mounts"][0]["cache"]["directory"], cache.to_string_lossy().into_owned(), "{all:#}");
    assert!(revision.status.success(), "{}", words(&revision));
    let looked_after = looked_after.expect("running esker");
    assert!(looked_after.status.success(), "{}", words(&looked_after));
}

#[test]
fn a_mount_leaves_no_process_mount_or_file() {
    for person in TestUser::all() {
        let world = TestEnv::new(person, fixture::RMD);
        let before = files_below(&world);
        drop(world.mount(&[]));
        assert!(!world.is_mounted());
        assert_eq!(processes_naming(&world.url()), [0; 0]);
        assert_eq!(files_below(&world), before);
        assert!(world.cache().join("index").exists(), "the cache was not shut down cleanly");
    }
}

/// A reader of the output of `esker mount` and similar commands must not wait until the repository is unmounted.
#[test]
fn a_daemon_holds_nothing_of_its_callers() {
    let world = TestEnv::new(TestUser::ordinary(), fixture::RMD);
    let mut command = world.person.command("sh");
    let mount = world.esker(&["mount", &world.url()]);
    let mut child = command
        .args(["-c", "exec \"$@\" 3>&1 4>&2 5</", "sh"])
        .arg(mount.get_program())
        .args(mount.get_args())
        .arg(world.mountpoint())
        .arg("--public-key")
        .arg(world.path("key.pub"))
        .env_clear()
        .env("PATH", std::env::var_os("PATH").unwrap_or_default())
        .env("HOME", world.path("home"))
        .env("XDG_RUNTIME_DIR", world.path("run"))
        .env("ESKER_CONFIG_ROOT", world.config_root())
        .current_dir(world.path("home"))
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .expect("running a shell");
    let mut said = String::new();
    child.stdout.take().expect("a pipe").read_to_string(&mut said).expect("the end of the pipe");
    child.stderr.take().expect("a pipe").read_to_string(&mut said).expect("the end of the pipe");
    assert!(child.wait().expect("esker ends").success(), "{said}");
    let mounted = world.mounted();
    let pid = daemon_of(&world, &mounted);
    let cwd = world.person.does(|| fs::read_link(format!("/proc/{pid}/cwd")));
    assert_eq!(cwd.expect("its own process"), PathBuf::from("/"));
}

#[test]
fn a_mount_in_use_is_not_unmounted_but_can_be_detached() {
    for person in TestUser::all() {
        let world = TestEnv::new(person, fixture::RMD);
        let listing = fixture::RMD.listing("v3");
        let big =
            listing.iter().filter(|entry| entry.is_file()).max_by_key(|entry| entry.size).expect("a file");
        let name = String::from_utf8(big.path[1..].to_vec()).expect("a name in UTF-8");
        let mounted = world.mount(&[]);
        let pid = daemon_of(&world, &mounted);
        let mut open = mounted.does(|| File::open(mounted.path(&name))).expect("opening");
        let umount = || world.esker(&["umount"]).arg(world.mountpoint()).output().expect("running esker");
        let refused = umount();
        assert_eq!(refused.status.code(), Some(1), "{}", words(&refused));
        let text = String::from_utf8_lossy(&refused.stderr).into_owned();
        assert!(text.contains("--lazy") && text.contains("fuser"), "no next step: {text}");
        assert!(world.is_mounted());

        let lazy =
            world.esker(&["umount", "--lazy"]).arg(world.mountpoint()).output().expect("running esker");
        assert!(lazy.status.success(), "{}", words(&lazy));
        assert!(!world.is_mounted());
        // It is listed until the program has closed it.
        let listed = world.esker(&["status", "--json"]).arg(world.mountpoint()).output().expect("esker");
        let status: serde_json::Value = serde_json::from_slice(&listed.stdout).expect("JSON");
        let shown = &status["mounts"][0];
        assert!(shown["pid"] == pid && shown["held_elsewhere"].is_array(), "{status}");
        let mut content = Vec::new();
        mounted.does(|| open.read_to_end(&mut content)).expect("a detached mount is still read");
        assert_eq!(Some(esker_testkit::object::sha256(&content)), big.sha256);
        // The mount point is free for another mount, which is the one unmounted at the end.
        let again = world.mount(&[]);
        drop(open);
        wait_until_gone(pid);
        drop(again);
        std::mem::forget(mounted);
        assert_eq!(processes_naming(&world.url()), [0; 0]);
    }
}

#[test]
fn a_killed_daemon_is_shown_and_cleaned_up() {
    for person in TestUser::all() {
        let world = TestEnv::new(person, fixture::RMD);
        let mounted = world.mount(&ALONE);
        let pid = daemon_of(&world, &mounted);
        signal(pid, Signal::KILL);
        wait_until_gone(pid);
        assert_eq!(mounted.status()["state"], "dead");
        let shown = world.esker(&["status"]).output().expect("running esker");
        let shown = String::from_utf8_lossy(&shown.stdout).into_owned();
        assert!(shown.contains("was killed") && shown.contains("esker umount"), "{shown}");
        std::mem::forget(mounted);
        let umount = world.esker(&["umount"]).arg(world.mountpoint()).output().expect("running esker");
        assert!(umount.status.success(), "{}", words(&umount));
        assert!(!world.is_mounted());
        assert!(!files_below(&world).iter().any(|path| path.starts_with(world.path("run"))));
        // And the cache, which was not shut down, is as good as ever.
        drop(world.mount(&[]));
    }
}

/// A service with `Restart=on-failure` restarts: the mount of its killed daemon is unmounted first.
#[test]
fn a_killed_daemon_is_replaced() {
    for person in TestUser::all() {
        for options in [&ALONE[..], &["--no-supervisor", "--fixed"]] {
            let world = TestEnv::new(person, fixture::RMD);
            let mounted = world.mount(options);
            let pid = daemon_of(&world, &mounted);
            signal(pid, Signal::KILL);
            wait_until_gone(pid);
            assert!(world.is_mounted(), "the dead mount is gone by itself");
            std::mem::forget(mounted);
            let mounted = world.mount(options);
            assert_eq!(mounted.status()["state"], "serving");
            let first =
                mounted.does(|| fs::read_dir(world.mountpoint()).map(|mut names| names.next().is_some()));
            assert!(first.expect("a listing"));
            drop(mounted);
            assert!(!world.is_mounted(), "the dead mount is still below");
        }
        // As a service does it.
        let world = TestEnv::new(person, fixture::RMD);
        let mut first = in_foreground(&world);
        first.kill().expect("killing");
        first.wait().expect("it ends");
        let mut second = in_foreground(&world);
        // Root's status lists the mounts of all users, so the test looks for its own.
        let serves = || {
            let status = printed(&mut world.esker(&["status", "--json"]));
            let status: serde_json::Value = serde_json::from_str(&status).expect("JSON");
            let place = world.mountpoint().display().to_string();
            let mut mounts = status["mounts"].as_array().into_iter().flatten();
            mounts.any(|mount| mount["mountpoint"] == place && mount["state"] == "serving")
        };
        assert!(Pace::PROCESS.until(PATIENCE, serves), "the second does not serve");
        drop(world.mounted());
        assert!(second.wait().expect("it ends").success());
    }
}

/// The registry is gone with the session in which the daemon was killed: the connection shows that it is dead.
#[test]
fn a_killed_daemon_of_another_session_is_replaced() {
    let person = TestUser::ordinary();
    let world = TestEnv::new(person, fixture::RMD);
    let mounted = world.mount(&ALONE);
    let pid = daemon_of(&world, &mounted);
    // While the daemon lives, neither mount affects the other.
    let over = |runtime: &Path| {
        let mut command = world.esker(&["mount", &world.url()]);
        command
            .arg(world.mountpoint())
            .arg("--public-key")
            .arg(world.path("key.pub"))
            .arg("--cache")
            .arg(world.cache());
        command.env("XDG_RUNTIME_DIR", runtime).output().expect("running esker")
    };
    let refused = over(&world.path("home"));
    assert!(!refused.status.success() && words(&refused).contains("still mounted"), "{}", words(&refused));
    signal(pid, Signal::KILL);
    wait_until_gone(pid);
    std::mem::forget(mounted);
    let done = over(&world.path("home"));
    assert!(done.status.success() && words(&done).contains("whose daemon was killed"), "{}", words(&done));
    let mut umount = world.esker(&["umount"]);
    umount.arg(world.mountpoint()).env("XDG_RUNTIME_DIR", world.path("home"));
    printed(&mut umount);
    assert!(!world.is_mounted());
}

/// The entry of a killed daemon says nothing of a later mount by another session.
#[test]
fn a_live_mount_is_distinguished_from_that_of_a_killed_daemon() {
    let world = TestEnv::new(TestUser::ordinary(), fixture::RMD);
    let mounted = world.mount(&ALONE);
    let pid = daemon_of(&world, &mounted);
    signal(pid, Signal::KILL);
    wait_until_gone(pid);
    std::mem::forget(mounted);
    printed(world.person.command("fusermount3").args(["-u", "-z"]).arg(world.mountpoint()));
    let elsewhere = world.path("home");
    let mut mount = world.esker(&["mount", &world.url()]);
    mount.arg(world.mountpoint()).arg("--public-key").arg(world.path("key.pub"));
    printed(mount.arg("--cache").arg(world.cache()).env("XDG_RUNTIME_DIR", &elsewhere));
    let refused = world.try_mount_over().expect_err("something is mounted there");
    assert!(words(&refused).contains("still mounted"), "{}", words(&refused));
    world.person.does(|| fs::read_dir(world.mountpoint()).map(drop)).expect("it is alive");
    let mut umount = world.esker(&["umount"]);
    printed(umount.arg(world.mountpoint()).env("XDG_RUNTIME_DIR", &elsewhere));
    assert!(!world.is_mounted());
}

/// A mount of another user or another program stays, dead or not.
#[test]
fn mounts_of_other_users_are_never_unmounted() {
    let (Some(root), ordinary) = (TestUser::root(), TestUser::ordinary()) else {
        skip!("only root mounts for others")
    };
    let world = TestEnv::new(ordinary, fixture::RMD);
    let mounted = world.mount(&ALONE);
    let pid = daemon_of(&world, &mounted);
    signal(pid, Signal::KILL);
    wait_until_gone(pid);
    let mut command = root.command(world.program());
    command
        .args(["mount", &world.url()])
        .arg(world.mountpoint())
        .arg("--public-key")
        .arg(world.path("key.pub"));
    let refused = command.env("ESKER_CONFIG_ROOT", world.config_root()).output().expect("running esker");
    assert!(!refused.status.success() && world.is_mounted(), "{}", words(&refused));
    drop(mounted);
    // Of another file system, over which root could mount.
    let world = TestEnv::new(root, fixture::RMD);
    mount_bind(world.path("home"), world.mountpoint()).expect("a mount");
    let mounted = world.mount(&ALONE);
    let pid = daemon_of(&world, &mounted);
    signal(pid, Signal::KILL);
    wait_until_gone(pid);
    std::mem::forget(mounted);
    std::mem::forget(world.mount(&[]));
    printed(world.esker(&["umount"]).arg(world.mountpoint()));
    assert!(world.is_mounted(), "the folder that was mounted below is gone");
    unmount(world.mountpoint(), UnmountFlags::empty()).expect("unmounting");
}

/// A mount that is busy only because of another mount is reported as that, not as used by programs.
#[test]
fn a_nested_mount_is_reported_as_the_reason() {
    let Some(person) = TestUser::root() else { skip!("only root can mount in a mount") };
    let world = TestEnv::new(person, fixture::RMD);
    let mounted = world.mount(&[]);
    let folder = {
        let mut names = fs::read_dir(world.mountpoint()).expect("a listing");
        names.find_map(|name| Some(name.ok()?.path()).filter(|path| path.is_dir())).expect("a folder")
    };
    mount_bind(world.path("home"), &folder).expect("a mount");
    let output = world.esker(&["umount"]).arg(world.mountpoint()).output().expect("running esker");
    unmount(&folder, UnmountFlags::empty()).expect("unmounting");
    let said = words(&output);
    let named = format!("{} is mounted in it", folder.display());
    assert!(!output.status.success() && said.contains(&named), "{said}");
    drop(mounted);
}

#[test]
fn a_mount_point_is_mounted_once() {
    let world = TestEnv::new(TestUser::ordinary(), fixture::RMD);
    let mounted = world.mount(&[]);
    let again = world.try_mount_over().expect_err("mounted twice");
    let text = String::from_utf8_lossy(&again.stderr).into_owned();
    assert!(text.contains("mounted already") && text.contains("esker umount"), "{text}");
    drop(mounted);
}

#[test]
fn a_signal_unmounts() {
    for person in TestUser::all() {
        for ending in [Signal::TERM, Signal::INT, Signal::HUP] {
            let world = TestEnv::new(person, fixture::RMD);
            let mounted = world.mount(&[]);
            let pid = daemon_of(&world, &mounted);
            std::mem::forget(mounted);
            signal(pid, ending);
            wait_until_gone(pid);
            assert!(!world.is_mounted(), "{ending:?}");
            assert!(!files_below(&world).iter().any(|path| path.starts_with(world.path("run"))));
        }
    }
}

/// Starts `esker mount --foreground` and waits until it is mounted.
fn in_foreground(world: &TestEnv) -> Child {
    let mut command = world.esker(&["mount", &world.url()]);
    command.arg(world.mountpoint()).arg("--foreground").arg("--public-key").arg(world.path("key.pub"));
    let child = command.arg("--cache").arg(world.cache()).spawn().expect("running esker");
    assert!(until(PATIENCE, || world.is_mounted()), "not mounted");
    child
}

#[test]
fn a_mount_in_the_foreground_ends_with_its_signal_or_umount() {
    let world = TestEnv::new(TestUser::ordinary(), fixture::RMD);
    for (ending, code) in [(Signal::TERM, 0), (Signal::INT, 130)] {
        let mut child = in_foreground(&world);
        // A signal at any moment closes and unmounts everything.
        signal(child.id(), ending);
        assert_eq!(child.wait().expect("esker ends").code(), Some(code), "{ending:?}");
        assert!(!world.is_mounted());
    }
    let mut child = in_foreground(&world);
    let umount = || world.esker(&["umount"]).arg(world.mountpoint()).output().expect("running esker");
    let is_unmounted = Pace::PROCESS.until(PATIENCE, || umount().status.success());
    assert!(is_unmounted, "{}", words(&umount()));
    assert_eq!(child.wait().expect("esker ends").code(), Some(0));
}

#[test]
fn a_mount_whose_starter_is_gone_is_unmounted() {
    let world = TestEnv::new(TestUser::ordinary(), fixture::RMD);
    let rule = world.mirror.fault(|path| path.ends_with(".cvmfspublished"), Fault::NoAnswer);
    let mut command = world.esker(&["mount", &world.url()]);
    command.arg(world.mountpoint()).arg("--public-key").arg(world.path("key.pub"));
    let mut waiting = command.stderr(Stdio::null()).spawn().expect("running esker");
    rule.wait_for_hits(1);
    let daemons: Vec<u32> =
        processes_naming(&world.url()).into_iter().filter(|pid| *pid != waiting.id()).collect();
    assert_eq!(daemons.len(), 2, "a supervisor and its daemon: {daemons:?}");
    waiting.kill().expect("killing");
    assert_eq!(waiting.wait().expect("esker ends").signal(), Some(libc::SIGKILL));
    rule.lift();
    daemons.into_iter().for_each(wait_until_gone);
    assert!(!world.is_mounted());
    assert!(!files_below(&world).iter().any(|path| path.extension().is_some_and(|end| end == "json")));
}
