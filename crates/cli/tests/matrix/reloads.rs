//! Mounts that take changed configuration while programs use them.

use std::fs;
use std::io::{Read as _, Write as _};
use std::os::unix::net::UnixStream;
use std::path::Path;

use esker_testkit::fixture;
use esker_testkit::waiting::Pace;
use rustix::process::Signal;
use serde_json::{Value, json};

use crate::configuring::{configured, write_files};
use crate::daemons::{serving_daemon, signal, wait_until_gone};
use crate::test_env::{PATIENCE, TestEnv, words};
use crate::test_user::TestUser;

const FILE: &str = "data/hex.txt";

/// Writes the configuration of a mount by name, with more lines. Without a key it can't be used.
fn configure(world: &TestEnv, more: &str, has_key: bool) {
    let _ = fs::remove_dir_all(world.config_root().join("etc"));
    let (url, cache) = (world.url(), world.path("home/base"));
    let local = format!(
        "CVMFS_HTTP_PROXY=DIRECT\nCVMFS_SERVER_URL={url}\nCVMFS_PUBLIC_KEY=/etc/it.pub\nCVMFS_CACHE_BASE={}\n{more}",
        cache.display()
    );
    let key = fs::read_to_string(world.path("key.pub")).expect("the key");
    let mut files = vec![("/etc/cvmfs/default.local", &*local), ("/etc/uids", "* 5\n")];
    files.extend(has_key.then_some(("/etc/it.pub", &*key)));
    write_files(world, &files);
}

/// Reloads the mount; returns its row, and the exit code.
fn reload(world: &TestEnv, options: &[&str]) -> (Value, Option<i32>) {
    let output = configured(world, &[&["reload", "--json"], options].concat())
        .arg(world.mountpoint())
        .output()
        .expect("esker");
    let all: Value = serde_json::from_slice(&output.stdout).unwrap_or_else(|_| panic!("{}", words(&output)));
    (all["mounts"][0].clone(), output.status.code())
}

/// > L5: `esker reload` reads the configuration of a mount again, applies what can change while programs use it, and names what needs a new mount; each further daemon has the new settings. Configuration that can't be used changes nothing.
#[test]
fn a_mount_takes_what_can_change_and_names_the_rest() {
    for person in TestUser::all() {
        let world = TestEnv::new(person, fixture::FULL);
        configure(&world, "CVMFS_QUOTA_LIMIT=4000\n", true);
        let output =
            configured(&world, &["mount", "full.test", "--no-broker"]).arg(world.mountpoint()).output();
        let output = output.expect("esker");
        assert!(output.status.success(), "{}", words(&output));
        let mounted = world.mounted();
        let quota = || mounted.status()["cache"]["quota"].clone();
        let path = mounted.path(FILE);
        let open = mounted.does(|| fs::File::open(&path)).expect("opening");
        let first = serving_daemon(&mounted);
        assert_eq!(quota(), json!(4000_u64 << 20));

        let (row, code) = reload(&world, &[]);
        assert_eq!((&row["outcome"], code), (&json!("unchanged"), Some(0)), "{row}");

        configure(&world, "CVMFS_QUOTA_LIMIT=5000\nCVMFS_TIMEOUT=7\nCVMFS_UID_MAP=/etc/uids\n", true);
        let (row, code) = reload(&world, &["--dry-run"]);
        assert_eq!((&row["outcome"], code), (&json!("planned"), Some(0)), "{row}");
        let changes = json!([["CVMFS_TIMEOUT", "CVMFS_QUOTA_LIMIT"], ["CVMFS_UID_MAP"]]);
        assert_eq!(json!([row["applied"], row["needs_new_mount"]]), changes);
        assert_eq!((serving_daemon(&mounted), quota()), (first, json!(4000_u64 << 20)));

        let (row, code) = reload(&world, &[]);
        assert_eq!((&row["outcome"], code), (&json!("reloaded"), Some(0)), "{row}\n{}", world.logs());
        assert_eq!(json!([row["applied"], row["needs_new_mount"]]), changes);
        let second = serving_daemon(&mounted);
        assert!(second != first && quota() == json!(5000_u64 << 20), "{}", quota());

        // What can't be used changes nothing.
        configure(&world, "CVMFS_QUOTA_LIMIT=6000\n", false);
        let (row, code) = reload(&world, &[]);
        assert_eq!((&row["outcome"], code), (&json!("failed"), Some(1)), "{row}");
        assert!(row["reason"].as_str().is_some_and(|why| why.contains("it.pub")), "{row}");
        assert_eq!(serving_daemon(&mounted), second);

        // A daemon that takes over has the new settings, and not those of the files.
        signal(second, Signal::KILL);
        wait_until_gone(second);
        assert_ne!(serving_daemon(&mounted), second);
        assert_eq!(quota(), json!(5000_u64 << 20));
        mounted.does(|| {
            let mut text = String::new();
            (&open).read_to_string(&mut text).expect("reading what was open");
            assert!(!text.is_empty());
        });
    }
}

/// The levels are those of the command that reloads, until another reload, whatever the supervisor was started with.
#[test]
fn the_levels_of_the_log_change_under_a_mount() {
    let world = TestEnv::new(TestUser::ordinary(), fixture::FULL);
    configure(&world, "", true);
    let output = configured(&world, &["mount", "full.test", "--no-broker"]).arg(world.mountpoint()).output();
    assert!(
        output.as_ref().is_ok_and(|output| output.status.success()),
        "{}",
        words(&output.expect("esker"))
    );
    let mounted = world.mounted();
    let reload = |levels: &str| {
        let output =
            configured(&world, &["reload", "--json"]).env("ESKER_LOG", levels).output().expect("esker");
        let all: Value =
            serde_json::from_slice(&output.stdout).unwrap_or_else(|_| panic!("{}", words(&output)));
        all["mounts"][0].clone()
    };
    // Each daemon tells how it is confined.
    let told = || world.logs().lines().filter(|line| line.contains("confined")).count();
    assert_eq!((reload("")["outcome"].clone(), told()), (json!("unchanged"), 1));
    let row = reload("warn");
    assert_eq!((&row["outcome"], &row["applied"]), (&json!("reloaded"), &json!(["ESKER_LOG"])), "{row}");
    let daemon = serving_daemon(&mounted);
    assert_eq!(told(), 1, "{}", world.logs());
    let failed = configured(&world, &["reload"]).env("ESKER_LOG", "store=loud").output().expect("esker");
    assert_eq!(failed.status.code(), Some(2), "{}", words(&failed));
    assert_eq!(serving_daemon(&mounted), daemon);
    signal(daemon, Signal::KILL);
    wait_until_gone(daemon);
    assert_ne!(serving_daemon(&mounted), daemon);
    assert_eq!(told(), 1, "{}", world.logs());
    assert_eq!(reload("info")["outcome"], "reloaded");
    serving_daemon(&mounted);
    assert_eq!(told(), 2, "{}", world.logs());
}

/// A mount without a supervisor has no other daemon to take new settings to.
#[test]
fn a_mount_without_a_supervisor_is_left_out() {
    let world = TestEnv::new(TestUser::ordinary(), fixture::FULL);
    let mounted = world.mount(&["--no-supervisor"]);
    let daemon = serving_daemon(&mounted);
    let (row, code) = reload(&world, &[]);
    assert_eq!((&row["outcome"], code), (&json!("skipped"), Some(0)), "{row}");
    assert!(row["reason"].as_str().is_some_and(|why| why.contains("without a supervisor")), "{row}");
    assert_eq!(serving_daemon(&mounted), daemon);
}

/// Returns the answer of a mount to a command of `cvmfs_talk`. While one daemon follows another no socket answers.
pub(crate) fn talk(person: TestUser, socket: &Path, command: &str) -> Option<String> {
    person.does(|| {
        let mut client = UnixStream::connect(socket).ok()?;
        client.set_read_timeout(Some(PATIENCE)).expect("a time limit");
        client.write_all(command.as_bytes()).ok()?;
        let mut answer = String::new();
        client.read_to_string(&mut answer).ok()?;
        Some(answer).filter(|answer| !answer.is_empty())
    })
}

/// What `cvmfs_talk` changes holds for the next daemon, too.
#[test]
fn changes_by_cvmfs_talk_outlive_the_daemon() {
    for person in TestUser::all() {
        let world = TestEnv::new(person, fixture::FULL);
        let socket = world.path("home/talk");
        let lines = format!("CVMFS_TALK_SOCKET={}\nCVMFS_TALK_OWNER={}\n", socket.display(), person.uid);
        configure(&world, &lines, true);
        let output =
            configured(&world, &["mount", "full.test", "--no-broker"]).arg(world.mountpoint()).output();
        let output = output.expect("esker");
        assert!(output.status.success(), "{}", words(&output));
        let mounted = world.mounted();
        let first = serving_daemon(&mounted);
        let try_ask = |command: &str| talk(person, &socket, command);
        let ask = |command: &str| Pace::PROCESS.until_some(PATIENCE, || try_ask(command)).expect("an answer");
        assert_eq!((ask("timeout set 7 9"), ask("cache limit set 2000")), ("OK\n".into(), "OK\n".into()));
        let holds = || {
            let timeouts = "Timeout with proxy: 7s\nTimeout without proxy: 9s\n";
            let limit = try_ask("cache limit get").filter(|limit| limit == "2000\n");
            limit.and(try_ask("timeout info").filter(|told| told == timeouts))
        };
        Pace::PROCESS.until_some(PATIENCE, holds).unwrap_or_else(|| panic!("no change: {}", world.logs()));
        let second = serving_daemon(&mounted);
        assert_ne!(second, first);
        signal(second, Signal::KILL);
        wait_until_gone(second);
        assert_ne!(serving_daemon(&mounted), second);
        Pace::PROCESS.until_some(PATIENCE, holds).unwrap_or_else(|| panic!("it is lost: {}", world.logs()));
        assert_eq!(ask("proxy info"), "Load-balance groups:\n[0] DIRECT\nActive proxy: [0] DIRECT\n");
        assert_eq!(ask("external proxy info"), "No proxies defined\n");
        assert_eq!(ask("nameserver get"), "DNS server not set.\n");
        let third = serving_daemon(&mounted);
        assert_eq!((ask("proxy group switch"), ask("proxy rebalance")), ("OK\n".into(), "OK\n".into()));
        mounted.wait_until("another daemon", |status| status["pid"].is_u64() && status["pid"] != third);
        assert_eq!(ask("cache limit set 10"), "New limit too low (minimum 1000)\n");
        mounted.does(|| fs::read(mounted.path(FILE))).expect("reading");
    }
}
