//! Upgrades of mounts to another build, and back from a build that doesn't serve.

use std::ffi::OsString;
use std::fs::{self, File};
use std::os::fd::AsRawFd;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use esker_node::registry;
use esker_node::supervisor::{Replacement, UpgradeError, request};
use esker_testkit::fixture;
use esker_testkit::programs;
use esker_testkit::waiting::Pace;
use rustix::fs::{CWD, FileType, MemfdFlags, Mode, OFlags, memfd_create, mknodat, open};
use rustix::process::Signal;
use serde_json::Value;

use crate::daemons::{serving_daemon, signal, wait_until_gone};
use crate::restarts::supervisor_of;
use crate::test_env::{BUILT, Mounted, PATIENCE, TestEnv, words};
use crate::test_user::TestUser;

/// Environment variable with another build of esker. Without it the tests use the build of cargo beside that of
/// `ESKER_BINARY`, or a copy of the only build with other bytes at its end.
const OTHER_BUILD: &str = "ESKER_TEST_OTHER_BUILD";
/// File of the fixture that the tests read.
const FILE: &str = "data/hex.txt";

/// Puts another build of esker into a world.
pub(crate) fn other_build(world: &TestEnv) -> PathBuf {
    let path = world.path("other-esker");
    if !path.exists() {
        let given = std::env::var_os(OTHER_BUILD).map(PathBuf::from);
        programs::copy(given.as_deref().unwrap_or(Path::new(BUILT)), &path);
        // Bytes behind the sections of an ELF file mean nothing.
        let append = Command::new("sh").args(["-c", r#"printf other >>"$1""#, "sh"]).arg(&path).status();
        assert!(append.expect("sh").success(), "a copy that differs");
    }
    path
}

/// Asks for an upgrade; returns the outcome of the mount, and the reason.
pub(crate) fn upgrade(world: &TestEnv, program: &Path) -> (String, String) {
    upgrade_from(world, program, &[])
}

/// Asks for an upgrade from another environment.
pub(crate) fn upgrade_from(world: &TestEnv, program: &Path, variables: &[(&str, &str)]) -> (String, String) {
    let mut command = world.esker(&["upgrade", "--json", "--binary"]);
    command.arg(program).arg(world.mountpoint()).envs(variables.iter().copied());
    let output = command.output().expect("esker");
    let all: Value = serde_json::from_slice(&output.stdout).unwrap_or_else(|_| panic!("{}", words(&output)));
    let row = &all["mounts"][0];
    let outcome = row["outcome"].as_str().expect("an outcome").to_owned();
    assert_eq!(output.status.success(), outcome == "upgraded", "{}", words(&output));
    (outcome, row["reason"].as_str().unwrap_or_default().to_owned())
}

/// Folder in which a mount is made whose daemons are stand-ins.
pub(crate) const STAGE: &str = "home/stage";

/// Mounts such that a shell in place of the daemon finds its script.
fn mount_on_stage(world: &TestEnv) -> Mounted<'_> {
    let stage = world.path(STAGE);
    world.person.does(|| fs::create_dir(&stage)).expect("a folder");
    let mut command = world.esker(&["mount", &world.url()]);
    command.arg(world.mountpoint()).arg("--public-key").arg(world.path("key.pub"));
    let output = command.arg("--cache").arg(world.cache()).current_dir(&stage).output().expect("esker");
    assert!(output.status.success(), "{}", words(&output));
    world.mounted()
}

/// Has the supervisor start a shell as the next daemon: its first argument is the subcommand, which is the name of a script.
/// `$@` are the others. (A script itself can't be started by its descriptor.)
pub(crate) fn upgrade_to(world: &TestEnv, script: &str) -> Result<u32, UpgradeError> {
    let path = world.path(STAGE).join("mount");
    fs::write(&path, script).expect("a script");
    let shell = File::open(fs::canonicalize("/bin/sh").expect("a shell")).expect("a shell");
    replace_by(world, &Replacement::Program(shell.into()))
}

/// Asks the supervisor of a world's mount for another daemon.
fn replace_by(world: &TestEnv, replacement: &Replacement) -> Result<u32, UpgradeError> {
    let own = world.path("run/esker");
    let runtime = if world.person.is_root() { Path::new("/run/esker") } else { &own };
    let found =
        world.person.does(|| registry::find(runtime, &world.mountpoint()).expect("the runtime folder"));
    let socket = found.expect("a registered mount").upgrades;
    request(&socket, world.person.uid, replacement, Instant::now() + PATIENCE)
}

/// Returns the reason of a roll-back.
fn rolled_back(outcome: Result<u32, UpgradeError>) -> String {
    match outcome {
        Err(UpgradeError::RolledBack(reason)) => reason,
        other => panic!("no roll-back: {other:?}"),
    }
}

/// Returns a script that is this build until a file is there; then it ends with the code of a wrong call.
fn until_told(world: &TestEnv, file: &Path) -> String {
    let (file, esker) = (file.display(), world.program().display());
    format!("[ -e '{file}' ] && exit 2\nexec '{esker}' mount \"$@\"\n")
}

/// Returns the program of a process, with ` (deleted)` at its end if the file is gone.
fn program_of(pid: u32) -> OsString {
    fs::read_link(format!("/proc/{pid}/exe")).expect("a process").into_os_string()
}

/// Returns content and inode number of the file that the tests read.
fn read(mounted: &Mounted<'_>) -> (Vec<u8>, u64) {
    let path = mounted.path(FILE);
    mounted.does(|| (fs::read(&path).expect("reading"), fs::metadata(&path).expect("a file").ino()))
}

#[test]
fn a_mount_goes_on_with_another_build_also_after_its_file_is_removed() {
    for person in TestUser::all() {
        let world = TestEnv::new(person, fixture::FULL);
        let mounted = world.mount(&[]);
        let before = read(&mounted);
        let other = other_build(&world);
        assert_eq!(upgrade(&world, &other), ("upgraded".to_owned(), String::new()), "{}", world.logs());
        let upgraded = serving_daemon(&mounted);
        assert_eq!(program_of(upgraded), other);
        fs::remove_file(&other).expect("removing a program");
        signal(upgraded, Signal::KILL);
        wait_until_gone(upgraded);
        let after = program_of(serving_daemon(&mounted)).into_string().expect("text");
        assert_eq!(after, format!("{} (deleted)", other.display()));
        assert_eq!(read(&mounted), before);
    }
}

/// > L8: The supervisor of a mount takes no program and no settings from the mount's own processes, and no program that they or other users can change.
#[test]
fn a_supervisor_takes_programs_only_from_outside_of_its_mount() {
    for person in TestUser::all() {
        let world = TestEnv::new(person, fixture::FULL);
        let mounted = mount_on_stage(&world);
        let (before, first) = (read(&mounted), serving_daemon(&mounted));
        let refused = |what: &str, program: File, why: &str| {
            let reason = rolled_back(replace_by(&world, &Replacement::Program(program.into())));
            assert!(reason.contains(why), "{what}: {reason}");
        };
        let put = |path: PathBuf| {
            programs::copy(&other_build(&world), &path);
            std::os::unix::fs::chown(&path, Some(person.uid), Some(person.gid)).expect("an owner");
            path
        };
        let in_cache = put(world.cache().join("esker"));
        refused("in the cache", File::open(&in_cache).expect("a program"), "the daemon may write to");
        let removed = put(world.path("removed"));
        let program = File::open(&removed).expect("a program");
        fs::remove_file(&removed).expect("removing");
        refused("removed", program, "no file that has a name");
        let memory = memfd_create("esker", MemfdFlags::CLOEXEC).expect("memory");
        fs::copy(other_build(&world), format!("/proc/self/fd/{}", memory.as_raw_fd())).expect("copying");
        refused("in memory", File::from(memory), "no file that has a name");
        let shown = mounted.does(|| File::open(mounted.path(FILE)).expect("a file of the mount"));
        refused("on the mount", shown, "content is that of another process");
        let wide = put(world.path("wide"));
        fs::set_permissions(&wide, fs::Permissions::from_mode(0o777)).expect("a mode");
        refused("writable to all", File::open(&wide).expect("a program"), "other users can change");
        let options = Replacement::Options(File::open(world.path("key.pub")).expect("a file").into());
        let reason = rolled_back(replace_by(&world, &options));
        assert!(reason.contains("no sealed memory file"), "{reason}");
        assert_eq!(serving_daemon(&mounted), first, "the daemon goes on");
        // A daemon that asks for another program, by a child and by an orphan.
        let (esker, other, place) = (world.program(), other_build(&world), world.mountpoint());
        let call = |said: &str| {
            let (esker, other, place) = (esker.display(), other.display(), place.display());
            format!(
                "'{esker}' upgrade --json --binary '{other}' '{place}' >'{}' 2>&1",
                world.path(said).display()
            )
        };
        for said in ["home/child", "home/orphan"] {
            fs::write(world.path(said), "").expect("a file");
            std::os::unix::fs::chown(world.path(said), Some(person.uid), None).expect("an owner");
        }
        let script = format!(
            "{} &\n(setsid sh -c \"{}\" &)\nexec '{}' mount \"$@\"\n",
            call("home/child"),
            call("home/orphan"),
            esker.display()
        );
        upgrade_to(&world, &script).unwrap_or_else(|error| panic!("{error}: {}", world.logs()));
        for said in ["home/child", "home/orphan"] {
            let text = Pace::PROCESS.until_some(PATIENCE, || {
                let text = fs::read_to_string(world.path(said)).expect("a file");
                text.contains("outcome").then_some(text)
            });
            let text = text.unwrap_or_else(|| panic!("{said}: {}", world.logs()));
            assert!(text.contains("the mount's own processes"), "{said}: {text}");
        }
        assert_eq!(program_of(serving_daemon(&mounted)), world.program(), "the program stays");
        assert_eq!(read(&mounted), before);
        // From outside, it is taken.
        assert_eq!(upgrade(&world, &other).0, "upgraded", "{}", world.logs());
        assert_eq!(read(&mounted), before);
    }
}

#[test]
fn a_build_that_ends_at_once_is_replaced_by_the_one_before() {
    for person in TestUser::all() {
        let world = TestEnv::new(person, fixture::FULL);
        let mounted = world.mount(&[]);
        let before = read(&mounted);
        let broken = world.path("broken-esker");
        let script = "#!/bin/sh\n[ \"$1\" = --version ] && echo esker 99.0.0\n";
        programs::write(Command::new("sh"), &broken, script);
        let (outcome, reason) = upgrade(&world, &broken);
        assert_eq!(outcome, "rolled_back", "{reason}");
        assert!(reason.contains("ended before it was proven"), "{reason}");
        assert_eq!(program_of(serving_daemon(&mounted)), world.program());
        assert_eq!(read(&mounted), before);
        // The roll-back leaves nothing that keeps the mount from the next upgrade.
        assert_eq!(upgrade(&world, &other_build(&world)).0, "upgraded", "{}", world.logs());
        assert_eq!(read(&mounted), before);
    }
}

/// The new daemon waits for ever for the other end of a pipe.
#[test]
fn a_build_that_does_not_serve_is_replaced_by_the_one_before() {
    let world = TestEnv::new(TestUser::ordinary(), fixture::FULL);
    let mounted = mount_on_stage(&world);
    let before = read(&mounted);
    let first = serving_daemon(&mounted);
    let pipe = world.path("pipe");
    mknodat(CWD, &pipe, FileType::Fifo, Mode::from_raw_mode(0o644), 0).expect("a pipe");
    let script = format!("read line <'{}'; exit 1\n", pipe.display());
    let reason = std::thread::scope(|scope| {
        let upgrading = scope.spawn(|| upgrade_to(&world, &script));
        // A pipe without a reader can't be opened for writing: this waits until the new daemon reads it.
        let writer = || open(&pipe, OFlags::WRONLY | OFlags::NONBLOCK | OFlags::CLOEXEC, Mode::empty()).ok();
        let writer = Pace::PROCESS.until_some(PATIENCE, writer).map(File::from).expect("a daemon that waits");
        assert!(!upgrading.is_finished(), "the upgrade doesn't wait for the new daemon");
        drop(writer);
        rolled_back(upgrading.join().expect("an upgrade"))
    });
    assert!(reason.contains("ended before it was proven"), "{reason}");
    let last = serving_daemon(&mounted);
    assert_ne!(last, first);
    assert_eq!(program_of(last), world.program());
    assert_eq!(read(&mounted), before);
}

/// > L3: A daemon that ends because it can't understand what it was given is not tried again: programs get errors at once instead of waiting.
#[test]
fn a_daemon_that_can_never_serve_is_not_tried_again() {
    let world = TestEnv::new(TestUser::ordinary(), fixture::FULL);
    let mounted = mount_on_stage(&world);
    let told = world.path("told");
    upgrade_to(&world, &until_told(&world, &told))
        .unwrap_or_else(|error| panic!("{error}: {}", world.logs()));
    fs::write(&told, "").expect("a file");
    let (daemon, supervisor) = (serving_daemon(&mounted), supervisor_of(&mounted));
    let log = world.logs();
    let began = Instant::now();
    signal(daemon, Signal::KILL);
    wait_until_gone(supervisor);
    let path = mounted.path("data/absent");
    let error = mounted.does(|| fs::read(path)).expect_err("a mount that is given up");
    assert!([libc::ENOTCONN, libc::ECONNABORTED].contains(&error.raw_os_error().unwrap_or(0)), "{error}");
    // Sixteen tries take more than a minute.
    assert!(began.elapsed() < Duration::from_secs(30), "{:?}", began.elapsed());
    let said = world.logs();
    let said = said.strip_prefix(&*log).expect("a log that grows");
    assert!(said.contains("exit status: 2") && said.contains("no other can go on"), "{said}");
    // The one that was killed, and the only one after it.
    assert_eq!(said.matches("esker supervisor: the daemon ended").count(), 2, "{said}");
}

/// > L2: `esker upgrade` reports a roll-back once the program before serves the mount again; where neither program does, it says so.
#[test]
fn a_roll_back_is_reported_only_if_the_program_before_serves() {
    let world = TestEnv::new(TestUser::ordinary(), fixture::FULL);
    let mounted = mount_on_stage(&world);
    let told = world.path("told");
    let fickle = until_told(&world, &told);
    upgrade_to(&world, &fickle).unwrap_or_else(|error| panic!("{error}: {}", world.logs()));
    // The first start of the new program ends, and puts the script of the one before back.
    let stage = world.path(STAGE);
    let before = stage.join("before");
    fs::write(&before, &fickle).expect("a script");
    let broken = format!("cp '{}' '{}/next' && mv next mount; exit 1\n", before.display(), stage.display());
    let reason = rolled_back(upgrade_to(&world, &broken));
    // It serves when that is reported.
    let path = mounted.path(FILE);
    assert!(reason.ends_with("the one before serves again"), "{reason}");
    mounted.does(|| fs::read(path)).expect("reading");
    fs::write(&told, "").expect("a file");
    match upgrade_to(&world, &broken) {
        Err(UpgradeError::Lost(reason)) => {
            assert!(
                reason.contains("the one before ended, too") && reason.contains("exit status: 2"),
                "{reason}"
            );
        }
        other => panic!("{other:?}"),
    }
}

/// > L4: A program that doesn't know a setting of a mount, or its version, leaves the mount to the program before, and names what it doesn't know.
#[test]
fn a_program_names_the_setting_that_it_does_not_know() {
    let world = TestEnv::new(TestUser::ordinary(), fixture::FULL);
    let mounted = mount_on_stage(&world);
    let before = read(&mounted);
    let known: Value = serde_json::from_slice(&spec_of(&mounted)).expect("JSON");
    for (field, value) in [("hidden_folders", Value::from("/secret")), ("version", Value::from(9))] {
        let mut newer = known.clone();
        newer[field] = value;
        let file = world.path("newer.json");
        fs::write(&file, serde_json::to_vec(&newer).expect("text")).expect("a file");
        // A daemon of this build that gets options of a newer one.
        let (esker, file) = (world.program().display().to_string(), file.display());
        let reason = rolled_back(upgrade_to(
            &world,
            &format!("exec 9<'{file}'\nexec '{esker}' mount --spec=9 \"$@\"\n"),
        ));
        let named = if field == "version" { "version 9" } else { field };
        assert!(reason.contains(named), "{reason}");
        assert_eq!(read(&mounted), before);
    }
}

/// Reads the options that the supervisor of a mount keeps.
pub(crate) fn spec_of(mounted: &Mounted<'_>) -> Vec<u8> {
    let supervisor = supervisor_of(mounted);
    mounted.does(|| {
        let folder = fs::read_dir(format!("/proc/{supervisor}/fd")).expect("descriptors");
        let is_it = |path: &PathBuf| {
            fs::read_link(path).is_ok_and(|target| target.to_string_lossy().contains("memfd:esker-mount"))
        };
        let path = folder.flatten().map(|entry| entry.path()).find(is_it).expect("the options");
        fs::read(path).expect("reading")
    })
}

/// Secrets of a mount are in no command line.
#[test]
fn daemons_have_no_secrets_in_their_arguments() {
    let world = TestEnv::new(TestUser::ordinary(), fixture::FULL);
    let mounted = world.mount(&["--proxy", "http://me:hunter2@127.0.0.1:1;DIRECT"]);
    let daemon = serving_daemon(&mounted);
    let before = read(&mounted);
    signal(daemon, Signal::KILL);
    wait_until_gone(daemon);
    assert_eq!(read(&mounted), before);
    for pid in [serving_daemon(&mounted), supervisor_of(&mounted)] {
        let line = fs::read(format!("/proc/{pid}/cmdline")).expect("a process");
        let line = String::from_utf8_lossy(&line);
        assert!(line.contains("esker") && !line.contains("hunter2"), "{line}");
    }
    let options = String::from_utf8(spec_of(&mounted)).expect("text");
    assert!(options.contains("hunter2"), "the next daemon has the password");
}

/// Root's upgrade leaves other users' mounts alone unless it is for all, and a false supervisor doesn't hold it up.
#[test]
fn an_upgrade_is_of_the_own_mounts_unless_it_is_for_all_users() {
    let Some(root) = TestUser::root() else {
        esker_testkit::skip!("only root upgrades the mounts of others")
    };
    let world = TestEnv::new(TestUser::ordinary(), fixture::FULL);
    let mounted = world.mount(&[]);
    let own = serving_daemon(&mounted);
    let upgrade = |arguments: &[&str]| {
        let mut command = root.command(world.program());
        command.args([&["upgrade", "--json", "--dry-run"], arguments].concat());
        let output = command.output().expect("esker");
        let all: Value =
            serde_json::from_slice(&output.stdout).unwrap_or_else(|_| panic!("{}", words(&output)));
        let place = world.mountpoint();
        let rows = all["mounts"].as_array().expect("rows").clone();
        rows.iter().any(|row| row["mountpoint"].as_str().is_some_and(|at| Path::new(at) == place))
    };
    assert!(!upgrade(&[]), "another user's mount is upgraded");
    // Its runtime folder is one that root doesn't look at, so it is not found either; its entry in /tmp is.
    let link = Path::new("/tmp").join(format!("esker-{}", world.person.uid));
    if !link.exists() {
        let entries = world.path("run/esker");
        fs::rename(&entries, &link).expect("moving a registry");
        let seen = upgrade(&["--all-users"]);
        fs::rename(&link, &entries).expect("moving it back");
        assert!(seen, "it isn't found with --all-users");
    }
    assert_eq!(serving_daemon(&mounted), own);
    let refused = world.esker(&["upgrade", "--all-users"]).output().expect("esker");
    assert_eq!(refused.status.code(), Some(2), "{}", words(&refused));
}
