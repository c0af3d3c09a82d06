//! Cached files that rot on disk, read in every way in which programs get at them.

use std::fs::{self, File};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::process::Command;

use esker_testkit::mirror::Mirror;
use esker_testkit::waiting::until;
use rustix::fs::{FlockOperation, flock};
use rustix::process::Signal;

use crate::broker::Broker;
use crate::daemons::{serving_daemon, signal, wait_until_gone};
use crate::publishing::{NAME, Workshop};
use crate::sharing::Second;
use crate::sys::read_mapped;
use crate::test_env::{Mounted, PATIENCE, TestEnv, printed, printed_bytes};
use crate::test_user::TestUser;

/// A published file that is compared on the pool, and one that is compared at once.
const FILES: [&str; 2] = ["large", "small"];

/// A publisher's tree, and a cache that has all of it.
struct Rotten {
    workshop: Workshop,
    /// Serves the repository, also to brokers, which don't read the folders of users.
    _mirror: Mirror,
    url: String,
}

impl Rotten {
    fn new(person: TestUser) -> Self {
        let workshop = Workshop::with(person, |top| {
            fs::create_dir_all(top).expect("a folder");
            fs::copy("/bin/true", top.join("program")).expect("a program");
            let large: Vec<u8> = (0..1_500_000_u32).flat_map(u32::to_le_bytes).collect();
            fs::write(top.join("large"), large).expect("a file");
            fs::write(top.join("small"), "small\n".repeat(1000)).expect("a file");
        });
        workshop.create();
        workshop.json(&["publish", NAME, &workshop.tree()]);
        workshop.published();
        let mirror = Mirror::serve(workshop.home("storage"));
        let url = mirror.url(NAME);
        Self { workshop, _mirror: mirror, url }
    }

    fn world(&self) -> &TestEnv {
        &self.workshop.world
    }

    fn mount(&self, options: &[&str]) -> Mounted<'_> {
        self.world().mount_of(&self.url, options)
    }

    fn original(&self, name: &str) -> Vec<u8> {
        fs::read(Path::new(&self.workshop.tree()).join(name)).expect("the original")
    }

    /// Compares the files in a folder with the originals.
    #[track_caller]
    fn is_shown_in(&self, folder: &Path) {
        for name in FILES {
            let content = self.world().person.does(|| fs::read(folder.join(name))).expect("reading");
            assert!(content == self.original(name), "{name} has other bytes");
        }
    }

    /// Fills the cache, then reads in one way after all of its files were damaged; the way must replace damaged files.
    #[track_caller]
    fn damages(&self, what: &str, fill: impl FnOnce(), cache: &Path, way: impl FnOnce()) {
        println!("{what}");
        fill();
        let damaged = rot(cache);
        assert!(damaged.len() >= 4, "{what}: {damaged:?}");
        way();
        let is_replaced = |(path, at, damage): &&(PathBuf, usize, u8)| {
            fs::read(path).is_ok_and(|now| now.get(*at) != Some(damage))
        };
        let replaced = damaged.iter().filter(is_replaced).count();
        assert!(replaced >= 2, "{what}: {replaced} of {} files were replaced", damaged.len());
    }
}

/// Waits until the last daemon has left a cache: its place is free a moment earlier, and a mount of that moment would be given what
/// that daemon has compared.
fn wait_for_writer(cache: &Path) {
    let lock = File::open(cache.join("lock")).expect("the lock of a cache");
    let is_free = || flock(&lock, FlockOperation::NonBlockingLockExclusive).is_ok();
    assert!(until(PATIENCE, is_free), "a daemon keeps the cache");
}

/// Flips a bit in the middle of each cached object; returns the files, and where each has which wrong byte.
fn rot(cache: &Path) -> Vec<(PathBuf, usize, u8)> {
    let folders = fs::read_dir(cache.join("objects")).expect("the objects").flatten();
    let files = folders.flat_map(|folder| fs::read_dir(folder.path()).expect("a folder").flatten());
    let flip = |file: fs::DirEntry| {
        let path = file.path();
        let mut content = fs::read(&path).expect("an object");
        let middle = content.len() / 2;
        content[middle] ^= 4;
        let file = File::options().write(true).open(&path).expect("an object");
        file.write_all_at(&content[middle..=middle], middle as u64).expect("damaging");
        (path, middle, content[middle])
    };
    files.map(flip).collect()
}

/// > C29: Before its first use after the start of the process that writes the cache, and before its first use a day after the last comparison, all bytes of a cached object are compared with the digest of those that were verified; a damaged object is fetched again, and no program sees its bytes.
#[test]
fn no_way_to_read_shows_bytes_that_rotted_in_the_cache() {
    for person in TestUser::all() {
        let rotten = Rotten::new(person);
        let (world, cache) = (rotten.world(), rotten.world().cache());
        let read = || {
            let mounted = rotten.mount(&["--no-prefetch"]);
            rotten.is_shown_in(&mounted.path(""));
            mounted.does(|| printed(&mut Command::new(mounted.path("program"))));
            drop(mounted);
            wait_for_writer(&cache);
        };
        rotten.damages("read", read, &cache, read);
        rotten.damages("read with prefetch", read, &cache, || {
            rotten.is_shown_in(&rotten.mount(&[]).path(""));
        });
        rotten.damages("mapped", read, &cache, || {
            let mounted = rotten.mount(&["--no-prefetch"]);
            for name in FILES {
                let content = mounted.does(|| read_mapped(&File::open(mounted.path(name)).expect("opening")));
                assert!(content == rotten.original(name), "{name} has other bytes");
            }
        });
        rotten.damages("executed", read, &cache, || {
            let mounted = rotten.mount(&["--no-prefetch"]);
            mounted.does(|| printed(&mut Command::new(mounted.path("program"))));
            rotten.is_shown_in(&mounted.path(""));
        });
        rotten.damages("fixed", read, &cache, || rotten.is_shown_in(&rotten.mount(&["--fixed"]).path("")));
        if person.is_root() {
            rotten.damages("erofs", read, &cache, || {
                rotten.is_shown_in(&rotten.mount(&["--fixed", "--show-with", "erofs"]).path(""));
            });
        }
        rotten.damages("another mount's cache", read, &cache, || {
            let _first = rotten.mount(&["--no-prefetch"]);
            rotten.is_shown_in(&Second::mount_of(world, &rotten.url, "second").mountpoint);
        });
        let call = |arguments: &[&str], rest: &[&str]| {
            let mut command = world.esker(arguments);
            command.arg("--public-key").arg(world.path("key.pub")).arg("--cache").arg(&cache).args(rest);
            printed_bytes(&mut command)
        };
        rotten.damages("run", read, &cache, || {
            for name in FILES {
                let path = format!("/cvmfs/{NAME}/{name}");
                assert!(call(&["run", &rotten.url], &["--", "cat", &path]) == rotten.original(name));
            }
        });
        rotten.damages("cat", read, &cache, || {
            for name in FILES {
                assert!(call(&["cat", &format!("{}:/{name}", rotten.url)], &[]) == rotten.original(name));
            }
        });
        // The daemon that takes over a mount in use writes the cache anew.
        read();
        let mounted = rotten.mount(&["--no-prefetch"]);
        let daemon = serving_daemon(&mounted);
        rotten.damages(
            "next daemon",
            || (),
            &cache,
            || {
                signal(daemon, Signal::KILL);
                wait_until_gone(daemon);
                rotten.is_shown_in(&mounted.path(""));
            },
        );
        drop(mounted);
    }
}

/// > C29: Before its first use after the start of the process that writes the cache, and before its first use a day after the last comparison, all bytes of a cached object are compared with the digest of those that were verified; a damaged object is fetched again, and no program sees its bytes.
#[test]
fn a_broker_and_a_lower_cache_show_no_bytes_that_rotted() {
    let rotten = Rotten::new(TestUser::ordinary());
    let world = rotten.world();
    let read = || {
        let broker = Broker::start(world);
        let options = broker.options();
        rotten.is_shown_in(&rotten.mount(&options.each_ref().map(String::as_str)).path(""));
        // Not killed, after which each object would be compared anyway.
        broker.stop();
    };
    rotten.damages("broker", read, &world.path("broker/cache"), read);

    // Of a folder below the cache nothing is replaced.
    rotten.is_shown_in(&rotten.mount(&["--no-broker"]).path(""));
    let lower = world.path("home/lower");
    fs::rename(world.cache(), &lower).expect("a folder of its own");
    assert!(rot(&lower).len() >= 4);
    let mounted = rotten.mount(&["--no-broker", "--lower", lower.to_str().expect("text")]);
    rotten.is_shown_in(&mounted.path(""));
    let refused = mounted.status()["cache"]["lower"]["refused"].as_u64();
    assert!(refused >= Some(2), "{refused:?}");
}
