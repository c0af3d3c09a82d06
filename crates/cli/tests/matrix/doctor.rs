//! `esker doctor` on nodes where something is broken.

use std::fs;
use std::os::unix::process::CommandExt;
use std::process::Output;
use std::time::{Duration, Instant};

use esker_testkit::fixture;
use esker_testkit::mirror::Mirror;
use rustix::process::Signal;
use serde_json::Value;

use crate::daemons::{signal, wait_until_gone};
use crate::publishing::{NAME, Workshop};
use crate::served::Served;
use crate::test_env::{TestEnv, words};
use crate::test_user::TestUser;

/// Promised time limit, and time for a busy machine to start a process.
const PROMISED: Duration = Duration::from_secs(10 + 10);

struct Examined {
    output: Output,
    report: Value,
}

/// Runs doctor, which must end in time with any fault.
fn examine(world: &TestEnv) -> Examined {
    let began = Instant::now();
    let output = world.esker(&["doctor", "--json"]).output().expect("running esker");
    assert!(began.elapsed() < PROMISED, "it took {:?}", began.elapsed());
    let report =
        serde_json::from_slice(&output.stdout).unwrap_or_else(|error| panic!("{error}: {}", words(&output)));
    Examined { output, report }
}

impl Examined {
    /// Returns the finding of a check about this test's mount or cache; there may be others on the machine.
    #[track_caller]
    fn finding(&self, check: &str, object: &str) -> &Value {
        let all = self.report["findings"].as_array().expect("a list");
        let found = all.iter().find(|finding| {
            finding["check"] == check && finding["object"].as_str().is_some_and(|name| name.contains(object))
        });
        found.unwrap_or_else(|| panic!("nothing is said of {check} {object}: {:#}", self.report))
    }

    /// Asserts that the check finds it broken, with this description and advice.
    #[track_caller]
    fn assert_broken(&self, check: &str, object: &str, found: &str, mend: &str) {
        let finding = self.finding(check, object);
        let says =
            |field: &str, words: &str| finding[field].as_str().is_some_and(|text| text.contains(words));
        assert!(finding["grade"] == "broken" && says("found", found) && says("mend", mend), "{finding:#}");
        assert_eq!(self.output.status.code(), Some(1), "{}", words(&self.output));
        assert_eq!(self.report["healthy"], false);
    }
}

/// > H1: `esker doctor` ends within ten seconds whatever is broken, needs no privileges, names what is wrong and how it is mended, and exits with 1 if mounts do not work.
#[test]
fn a_healthy_mount_passes_and_a_frozen_daemon_is_reported_with_its_fix() {
    for person in TestUser::all() {
        let world = TestEnv::new(person, fixture::RMD);
        let mounted = world.mount(&[]);
        let place = world.mountpoint().display().to_string();
        let well = examine(&world);
        assert_eq!(well.finding("mount", &place)["grade"], "good", "{:#}", well.report);
        assert_eq!(well.finding("device", "/dev/fuse")["grade"], "good", "{:#}", well.report);

        let pid =
            u32::try_from(mounted.status()["pid"].as_u64().expect("a process id")).expect("a process id");
        signal(pid, Signal::STOP);
        let ill = examine(&world);
        ill.assert_broken("daemon", &place, "stopped", &format!("kill -CONT {pid}"));
        ill.assert_broken("mount", &place, "did not respond", &format!("kill -9 {pid}"));
        // The mend that it names is one.
        signal(pid, Signal::CONT);
        let well = examine(&world);
        assert_eq!(well.finding("mount", &place)["grade"], "good", "{:#}", well.report);
    }
}

#[test]
fn a_stale_mount_is_reported_and_cleaned_up() {
    for person in TestUser::all() {
        let world = TestEnv::new(person, fixture::RMD);
        let mounted = world.mount(&["--no-supervisor"]);
        let place = world.mountpoint().display().to_string();
        let pid =
            u32::try_from(mounted.status()["pid"].as_u64().expect("a process id")).expect("a process id");
        signal(pid, Signal::KILL);
        wait_until_gone(pid);
        examine(&world).assert_broken("mount", &place, "stale", &format!("esker umount {place}"));
        if !person.is_root() {
            // Another user, or its owner without the registry, sees it too.
            fs::remove_dir_all(world.path("run/esker")).expect("losing the registry");
            examine(&world).assert_broken("mount", &place, "stale", "esker umount");
        }
        // Dropped, it is unmounted as the doctor says.
        drop(mounted);
    }
}

/// Days before the whitelist expires, and when the head was last confirmed.
#[test]
fn a_whitelist_that_expires_soon_is_a_warning() {
    let workshop = Workshop::with(TestUser::ordinary(), |top| {
        fs::create_dir_all(top).expect("a folder");
        fs::write(top.join("file"), "content").expect("a file");
    });
    for (days, grade) in [("3", "warning"), ("30", "good")] {
        let made = workshop.esker(&["repo", "create", NAME, "--whitelist-days", days]);
        assert!(made.status.success(), "{}", words(&made));
        workshop.json(&["publish", NAME, &workshop.tree()]);
        let mirror = Mirror::serve(workshop.home("storage"));
        let world = &workshop.world;
        let place = world.mountpoint().display().to_string();
        let key = workshop.home(&format!("keys/{NAME}.pub"));
        let mut mount = world.esker(&["mount", &mirror.url(NAME), &place, "--public-key", &key]);
        let output = mount.output().expect("running esker");
        assert!(output.status.success(), "{}", words(&output));
        let mounted = world.mounted();
        let examined = examine(world);
        let finding = examined.finding("whitelist", &place);
        assert_eq!(finding["grade"], grade, "{finding:#}");
        assert!(finding["found"].as_str().is_some_and(|found| found.contains("expires in")), "{finding:#}");
        assert_eq!(examined.finding("head", &place)["grade"], "good");
        drop(mounted);
        for folder in ["storage", "keys"] {
            fs::remove_dir_all(workshop.home(folder)).expect("removing what was made");
        }
        fs::remove_dir_all(world.path("home/.cache")).expect("forgetting its head");
    }
}

#[test]
fn an_unreachable_server_is_a_warning_for_a_mounted_repository() {
    let world = TestEnv::new(TestUser::ordinary(), fixture::RMD);
    let server = Served::start(world.repository.document_root());
    let mounted = world.mount_of(&server.url(world.fixture().name()), &["--ttl", "0.2"]);
    drop(server);
    mounted.wait_until("word that the server is gone", |status| !status["offline"].is_null());
    let examined = examine(&world);
    let finding = examined.finding("server", &world.mountpoint().display().to_string());
    assert_eq!(finding["grade"], "warning", "{finding:#}");
    assert!(finding["mend"].as_str().is_some_and(|mend| mend.contains("server")), "{finding:#}");
}

/// Calls the doctor where a script of the person's own has broken something: in a mount namespace in which they are root.
fn examine_in(world: &TestEnv, script: &str) -> Examined {
    let mut unshare = std::process::Command::new("unshare");
    unshare.args(["--user", "--map-root-user", "--mount", "sh", "-e", "-c", script]).env_clear();
    unshare.env("PATH", std::env::var_os("PATH").unwrap_or_default()).env("ESKER", world.program());
    unshare.env("HOME", world.path("home")).env("XDG_RUNTIME_DIR", world.path("run"));
    unshare
        .env("ESKER_CONFIG_ROOT", world.config_root())
        .env("URL", world.url())
        .env("KEY", world.path("key.pub"))
        .env("MNT", world.mountpoint());
    unshare.env("CACHE", world.path("home")).uid(world.person.uid).gid(world.person.gid).current_dir("/");
    let output = unshare.output().expect("unshare of util-linux");
    let report =
        serde_json::from_slice(&output.stdout).unwrap_or_else(|error| panic!("{error}: {}", words(&output)));
    Examined { output, report }
}

#[test]
fn a_missing_device_is_reported() {
    let world = TestEnv::new(TestUser::ordinary(), fixture::RMD);
    let blind = examine_in(&world, "mount -t tmpfs none /dev; test ! -e /dev/fuse; \"$ESKER\" doctor --json");
    blind.assert_broken("device", "/dev/fuse", "/dev/fuse", "");
}

/// A cache whose disk is full, and one on a read-only disk.
#[test]
fn the_doctor_reports_a_cache_on_a_broken_disk() {
    let world = TestEnv::new(TestUser::ordinary(), fixture::RMD);
    let cache = world.path("home").display().to_string();
    for (fault, found, mend) in [
        ("! head -c 64m /dev/zero >$CACHE/fill 2>/dev/null", "full", "make room"),
        ("mount -t tmpfs -o ro none $CACHE", "read-only", "read-write"),
    ] {
        let script = format!(
            "mount -t tmpfs -o size=32m,mode=700 none $CACHE
             $ESKER mount $URL $MNT --public-key $KEY --cache $CACHE --quota 8M
             trap '$ESKER umount --lazy $MNT >/dev/null' EXIT
             {fault}
             $ESKER doctor --json"
        );
        examine_in(&world, &script).assert_broken("cache", &cache, found, mend);
    }
}
