//! The head moves under an open mount.

use std::collections::BTreeSet;
use std::fs::{self, File};
use std::mem::MaybeUninit;
use std::os::unix::fs::FileExt;

use esker_testkit::fixture::{self, TAGS};
use esker_testkit::object;
use esker_testkit::sys::Mapped;
use esker_testkit::tree_scan::{differences, scan_tree};
use rustix::fs::{Mode, OFlags, RawDir};
use serde_json::Value;

use crate::test_env::{Mounted, TestEnv};
use crate::test_user::TestUser;

/// Time to live of heads in these tests.
const TTL: &str = "0.05";

/// Error for a head that is older than the last accepted one.
const SEEN: &str = "has been seen already";

fn says_older(status: &Value) -> bool {
    status["offline"]["reason"].as_str().is_some_and(|reason| reason.contains(SEEN))
}

fn wait_for_revision(mounted: &Mounted<'_>, revision: u64) {
    mounted.wait_until(&format!("revision {revision}"), |status| status["revision"] == revision);
}

fn assert_shows(mounted: &Mounted<'_>, world: &TestEnv, tag: &str, kernel: &str) {
    let found = mounted.does(|| scan_tree(&mounted.path("")));
    let complaints = differences(&world.fixture().listing(tag), &found, world.person.ownership());
    let name = world.fixture().name();
    assert!(complaints.is_empty(), "{name} {tag} on {kernel}:\n  {}", complaints.join("\n  "));
}

/// `hex.txt` is another file in every revision. One is read before the switch, one only opened, one mapped.
struct Held {
    read: File,
    opened: File,
    mapped: Mapped,
    sha256: String,
    size: usize,
}

impl Held {
    fn open(mounted: &Mounted<'_>, world: &TestEnv, tag: &str) -> Held {
        let listing = world.fixture().listing(tag);
        let entry =
            listing.iter().find(|entry| entry.path == b"/data/hex.txt").expect("a file of every revision");
        let size = usize::try_from(entry.size.expect("a file has a size")).expect("fits");
        let open = || File::open(mounted.path("data/hex.txt")).expect("opening");
        mounted.does(|| {
            let (read, opened) = (open(), open());
            read.read_exact_at(&mut [0; 1], 0).expect("reading");
            let mapped = Mapped::of(&opened, size).expect("mapping");
            let sha256 = entry.sha256.clone().expect("a file has content");
            Held { read, opened, mapped, sha256, size }
        })
    }

    fn assert_unchanged(&self, mounted: &Mounted<'_>) {
        mounted.does(|| {
            for file in [&self.read, &self.opened] {
                let mut content = vec![0; self.size + 10];
                let mut length = 0;
                loop {
                    let more =
                        file.read_at(&mut content[length..], length as u64).expect("reading a held file");
                    if more == 0 {
                        break;
                    }
                    length += more;
                }
                assert_eq!(object::sha256(&content[..length]), self.sha256, "a held file keeps its content");
            }
            assert_eq!(object::sha256(self.mapped.bytes()), self.sha256, "a mapped file keeps its content");
        });
    }
}

/// > V1: A new revision appears under an open mount once the time to live has passed, without unmounting, and then every path shows the new revision.
///
/// > V2: A file that is open or mapped keeps the content it was opened with, whatever the revision.
///
/// > V3: A head older than the last accepted one is never applied; the mount keeps its revision and says so.
#[test]
fn each_revision_shows_under_an_open_mount_and_older_ones_never_do() {
    for kernel in ["4.18", "5.14", "6.18"] {
        let world = TestEnv::new(TestUser::ordinary(), fixture::FULL);
        world.repository.publish(&world.repository.head_at("v1"));
        let mounted = world.mount(&["--ttl", TTL, "--kernel", kernel]);
        let mut held = Vec::new();
        for (tag, revision) in TAGS.iter().zip(1..) {
            world.repository.publish(&world.repository.head_at(tag));
            wait_for_revision(&mounted, revision);
            assert_shows(&mounted, &world, tag, kernel);
            held.push(Held::open(&mounted, &world, tag));
            held.iter().for_each(|held| held.assert_unchanged(&mounted));
        }
        assert!(held[0].sha256 != held[1].sha256, "the held file did change");

        let published = |path: &str| path.ends_with("/.cvmfspublished");
        world.repository.publish(&world.repository.head_at("v1"));
        world.mirror.wait_for(world.mirror.count(published) + 2, published);
        let status = mounted.wait_until("word of the older head", says_older);
        assert_eq!(status["revision"], 3);
        assert_shows(&mounted, &world, "v3", kernel);
        held.iter().for_each(|held| held.assert_unchanged(&mounted));
    }
}

/// The cache stores the last accepted head, so a new mount refuses an older one as well.
#[test]
fn a_new_mount_with_the_same_cache_refuses_an_older_head() {
    let world = TestEnv::new(TestUser::ordinary(), fixture::FULL);
    drop(world.mount(&[]));
    world.repository.publish(&world.repository.head_at("v2"));
    match world.try_mount(&[]) {
        // It may go on with the head it has accepted before, if it says so.
        Ok(mounted) => {
            let status = mounted.status();
            assert_eq!(status["revision"], 3);
            assert!(says_older(&status), "{status:#}");
        }
        Err(output) => {
            let words = String::from_utf8_lossy(&output.stderr).into_owned();
            assert!(words.contains(SEEN), "{words}");
        }
    }
}

/// Reads on in an opened directory, at most `limit` names.
fn names(opened: &rustix::fd::OwnedFd, limit: usize) -> Vec<Vec<u8>> {
    // Small enough that the kernel has to come back often.
    let mut buffer = [MaybeUninit::uninit(); 512];
    let mut lines = RawDir::new(opened, &mut buffer);
    let mut names = Vec::new();
    while let Some(line) = lines.next() {
        names.push(line.expect("listing").file_name().to_bytes().to_vec());
        if names.len() >= limit && lines.is_buffer_empty() {
            break;
        }
    }
    names
}

/// > V4: A listing that is under way while the revision changes has every unchanged name exactly once.
#[test]
fn a_listing_across_a_switch_has_every_unchanged_name_once() {
    let world = TestEnv::new(TestUser::ordinary(), fixture::FULL);
    world.repository.publish(&world.repository.head_at("v1"));
    let names_of = |tag: &str| -> BTreeSet<Vec<u8>> {
        let listing = world.fixture().listing(tag);
        let paths = listing.iter().filter_map(|entry| entry.path.strip_prefix(b"/many/"));
        paths.filter(|name| !name.contains(&b'/')).map(<[u8]>::to_vec).collect()
    };
    let (before, after) = (names_of("v1"), names_of("v2"));
    assert!(before != after, "the directory did change");
    let mounted = world.mount(&["--ttl", TTL]);
    let opened = mounted.does(|| {
        rustix::fs::open(mounted.path("many"), OFlags::RDONLY | OFlags::DIRECTORY, Mode::empty())
            .expect("opening")
    });
    let mut listed = mounted.does(|| names(&opened, before.len() / 3));
    assert!(listed.len() < before.len() / 2, "only a part is listed before the switch");
    world.repository.publish(&world.repository.head_at("v2"));
    wait_for_revision(&mounted, 2);
    listed.extend(mounted.does(|| names(&opened, usize::MAX)));
    for name in before.intersection(&after) {
        let times = listed.iter().filter(|listed| *listed == name).count();
        assert_eq!(times, 1, "{} is listed {times} times", name.escape_ascii());
    }
}

/// > D4: What is cached stays readable while the server is away, and a repository seen before can be mounted without it.
#[test]
fn cached_files_read_without_the_server() {
    for person in TestUser::all() {
        let world = TestEnv::new(person, fixture::SHAKE);
        let expected = world.fixture().listing("v3");
        let mounted = world.mount(&["--ttl", TTL]);
        let online = mounted.does(|| scan_tree(&mounted.path("")));
        assert_eq!(differences(&expected, &online, person.ownership()), [""; 0]);
        world.mirror.leave();
        mounted.wait_until("word of the outage", |status| !status["offline"].is_null());
        let offline = mounted.does(|| scan_tree(&mounted.path("")));
        assert_eq!(differences(&expected, &offline, person.ownership()), [""; 0]);
        drop(mounted);

        let mounted = world.mount(&[]);
        assert!(!mounted.status()["offline"].is_null(), "a mount without its server says so");
        let found = mounted.does(|| scan_tree(&mounted.path("")));
        assert_eq!(differences(&expected, &found, person.ownership()), [""; 0]);
        let numbers =
            |found: &[esker_testkit::tree_scan::Found]| found.iter().map(|f| f.ino).collect::<Vec<_>>();
        assert_eq!(numbers(&found), numbers(&online), "numbers survive a new mount");
        let before = world.mirror.requests().len();
        world.mirror.come_back();
        fs::metadata(mounted.path("")).ok();
        assert_eq!(world.mirror.requests().len(), before, "nothing was fetched while away");
    }
}
