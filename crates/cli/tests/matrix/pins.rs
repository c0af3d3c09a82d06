//! Mounts and looks at revisions that were named by a tag, a date or a hash, and `esker revision`.

use std::process::Output;

use esker_testkit::fixture::{self, TAGS};
use esker_testkit::tree_scan::{differences, scan_tree};
use serde_json::Value;

use crate::test_env::{Mounted, TestEnv, words};
use crate::test_user::TestUser;

fn assert_shows(mounted: &Mounted<'_>, world: &TestEnv, tag: &str) {
    let found = mounted.does(|| scan_tree(&mounted.path("")));
    let complaints = differences(&world.fixture().listing(tag), &found, world.person.ownership());
    assert!(complaints.is_empty(), "{} {tag}:\n  {}", world.fixture().name(), complaints.join("\n  "));
}

fn ask(world: &TestEnv, arguments: &[&str]) -> Output {
    let mut command = world.esker(arguments);
    let command = command.arg("--public-key").arg(world.path("key.pub")).arg("--cache").arg(world.cache());
    command.output().expect("running esker")
}

fn revision(world: &TestEnv, place: &str, options: &[&str]) -> Value {
    let output = ask(world, &[&["revision", place, "--json"], options].concat());
    assert!(output.status.success(), "{}", words(&output));
    serde_json::from_slice(&output.stdout).expect("JSON from esker")
}

/// Returns a second of the tag's publication, in the form of `--date`.
fn date_of(listed: &Value, tag: &str) -> String {
    let tags = listed["tags"].as_array().expect("a list");
    let found = tags.iter().find(|known| known["name"] == tag).expect("a tag of the fixture");
    let time = esker_format::time::UnixTime(found["published"].as_i64().expect("a time")).to_string();
    time.replace(' ', "T").replace("TUTC", "Z")
}

/// > V6: A mount made with `--tag`, `--date` or `--root-hash` shows that revision, whatever is published later; a name or date that the signed history does not know is refused.
#[test]
fn a_pinned_mount_shows_its_revision() {
    let world = TestEnv::new(TestUser::ordinary(), fixture::FULL);
    let listed = revision(&world, &world.url(), &["--list"]);
    assert_eq!((&listed["newest"]["revision"], &listed["shown"]), (&3.into(), &Value::Null), "{listed:#}");
    for (tag, number) in TAGS.iter().zip(1..) {
        let date = date_of(&listed, tag);
        let known = world.repository.tag(tag);
        for pin in [["--tag", tag], ["--date", &date], ["--root-hash", &known.root]] {
            let mounted = world.mount(&[pin[0], pin[1], "--ttl", "0.05"]);
            assert_shows(&mounted, &world, tag);
            let status = mounted.status();
            assert_eq!((&status["fixed"], &status["revision"]), (&true.into(), &number.into()), "{pin:?}");
            assert_eq!(status["root_hash"], *known.root, "{pin:?}");
            let place = world.mountpoint().display().to_string();
            let told = revision(&world, &place, &[]);
            assert_eq!(
                (&told["shown"]["revision"], &told["newest"]["revision"], &told["shown"]["fixed"]),
                (&number.into(), &3.into(), &true.into()),
                "{told:#}"
            );
        }
    }
}

/// Commands without a mount can pin a revision, too.
#[test]
fn commands_without_a_mount_can_pin_a_revision() {
    let world = TestEnv::new(TestUser::ordinary(), fixture::FULL);
    let date = date_of(&revision(&world, &world.url(), &["--list"]), "v1");
    let root = world.repository.tag("v1").root;
    let newest = ask(&world, &["cat", &world.url(), "/data/hex.txt"]);
    assert!(newest.status.success(), "{}", words(&newest));
    for pin in [["--tag", "v1"], ["--date", &date], ["--root-hash", &root]] {
        let old = ask(&world, &["cat", &world.url(), "/data/hex.txt", pin[0], pin[1]]);
        assert!(old.status.success(), "{}", words(&old));
        let sha256 = esker_testkit::object::sha256(&old.stdout);
        let listing = world.fixture().listing("v1");
        let entry = listing.iter().find(|entry| entry.path == b"/data/hex.txt").expect("a file of v1");
        assert_eq!(entry.sha256.as_deref(), Some(&*sha256), "{pin:?}");
        assert_ne!(old.stdout, newest.stdout, "the file did change");
        for command in ["ls", "stat", "find"] {
            let output = ask(&world, &[command, &world.url(), "/data", pin[0], pin[1]]);
            assert!(output.status.success(), "{command}: {}", words(&output));
        }
    }
    let seen = world.run(&["--tag", "v1"]).args(["cat", "/cvmfs/full.test/data/hex.txt"]).output();
    let seen = seen.expect("running esker");
    assert_ne!(seen.stdout, newest.stdout, "{}", words(&seen));
    assert!(seen.status.success(), "{}", words(&seen));
}

#[test]
fn unsigned_repositories_are_refused_with_the_next_step() {
    let world = TestEnv::new(TestUser::ordinary(), fixture::FULL);
    let mnt = world.mountpoint().display().to_string();
    let refused = |options: &[&str], code: i32, named: &[&str]| {
        let output = ask(&world, &[&["mount", &world.url(), &mnt], options].concat());
        assert_eq!(output.status.code(), Some(code), "{options:?}: {}", words(&output));
        for name in named {
            assert!(words(&output).contains(name), "{options:?} does not say {name}: {}", words(&output));
        }
        assert!(!world.is_mounted());
    };
    refused(&["--tag", "v9"], 1, &["tag `v9`", "v3", "esker revision --list"]);
    refused(&["--date", "1999-01-01"], 1, &["1999-01-01", "the oldest", "esker revision --list"]);
    refused(&["--date", "yesterday"], 2, &["yesterday", "2026-01-31"]);
    refused(&["--tag", "v1", "--date", "2026-01-31"], 2, &["--tag", "--date"]);
    refused(&["--root-hash", "12345"], 2, &["12345"]);
    let absent = "0123456789abcdef0123456789abcdef01234567";
    refused(&["--root-hash", absent], 3, &[absent]);
}

/// An administrator need not wait for the time to live.
#[test]
fn an_update_on_request_is_immediate() {
    let world = TestEnv::new(TestUser::ordinary(), fixture::FULL);
    world.repository.publish(&world.repository.head_at("v1"));
    let mounted = world.mount(&["--ttl", "3600"]);
    world.repository.publish(&world.repository.head_at("v2"));
    let place = world.mountpoint().display().to_string();
    let told = revision(&world, &place, &[]);
    assert_eq!((&told["shown"]["revision"], &told["newest"]["revision"]), (&1.into(), &2.into()), "{told:#}");
    assert_shows(&mounted, &world, "v1");
    let told = revision(&world, &place, &["--update"]);
    assert_eq!((&told["shown"]["revision"], &told["newest"]["revision"]), (&2.into(), &2.into()), "{told:#}");
    assert_shows(&mounted, &world, "v2");
    let text = ask(&world, &["revision", &place, "--list"]);
    let text = String::from_utf8_lossy(&text.stdout).into_owned();
    assert!(text.contains("shown     revision 2") && text.contains("  v1 "), "{text}");
}
