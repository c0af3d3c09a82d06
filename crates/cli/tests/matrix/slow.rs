//! Slow links, and users that wait for the same server.

use std::fs;
use std::path::Path;
use std::time::{Duration, Instant};

use esker_testkit::fixture::{self, Repository};
use esker_testkit::mirror::{Fault, Mirror};
use esker_testkit::revision_builder::RevisionBuilder;

use crate::broker::Broker;
use crate::test_env::{Mounted, TestEnv};
use crate::test_user::TestUser;

/// Value of `--deadline` in these tests: shorter than the transfers.
const DEADLINE: Duration = Duration::from_secs(2);
/// The deadline where requests have to be found stalled, which takes a second for each lot.
const PATIENT: Duration = Duration::from_secs(20);
/// Bytes a second.
const SPEED: u64 = 2 << 20;
/// A file of one object that takes three deadlines.
const LARGE: usize = 12 << 20;
/// Files that take three deadlines together, and how many.
const SMALLER: usize = 512 << 10;
const READERS: u64 = 24;
/// Files that the server withholds.
const WITHHELD: u64 = 420;
/// The names of their objects begin so.
const NAME: [u8; 4] = [0xc0, 0xff, 0xee, 0x11];

/// Bytes that don't compress, different for each seed.
fn noise(seed: u64, len: usize) -> Vec<u8> {
    let mut state = seed.wrapping_mul(0x9E37_79B9_7F4A_7C15) | 1;
    let next = || {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        state.to_le_bytes()[0]
    };
    std::iter::repeat_with(next).take(len).collect()
}

fn add(craft: &RevisionBuilder, repository: &Repository, name: &str, content: &[u8]) {
    let hash = repository.store(content, "");
    let byte = |at: usize| u8::from_str_radix(&hash[2 * at..2 * at + 2], 16).expect("a digest");
    craft.add_file("/slow", name, content.len() as u64, std::array::from_fn(byte));
}

/// Makes a repository with a large file, some smaller ones, and some that its server withholds.
fn repository() -> Repository {
    let repository = fixture::FULL.unpack();
    let craft = RevisionBuilder::of(&repository);
    craft.add_directory("slow");
    add(&craft, &repository, "large", &noise(1, LARGE));
    (0..READERS).for_each(|at| add(&craft, &repository, &format!("smaller{at}"), &noise(100 + at, SMALLER)));
    (0..READERS).for_each(|at| add(&craft, &repository, &format!("small{at}"), &noise(200 + at, 1000)));
    for number in 0..WITHHELD {
        let mut digest = [0; 20];
        digest[..4].copy_from_slice(&NAME);
        digest[4..12].copy_from_slice(&number.to_le_bytes());
        craft.add_file("/slow", &format!("withheld{number}"), 4096, digest);
    }
    craft.publish(&repository);
    repository
}

fn world(person: TestUser) -> TestEnv {
    let repository = repository();
    let mirror = Mirror::serve(repository.document_root());
    TestEnv::at(person, repository, mirror)
}

fn mount<'w>(world: &'w TestEnv, broker: Option<&Broker>, deadline: Duration) -> Mounted<'w> {
    let deadline = deadline.as_secs().to_string();
    let broker = broker.map(|broker| broker.options().to_vec()).unwrap_or_default();
    let options = ["--no-prefetch", "--deadline", &deadline].into_iter();
    world.mount(&options.chain(broker.iter().map(String::as_str)).collect::<Vec<_>>())
}

/// > W1: As long as one way through the proxies to one of the servers is good, no read fails, whatever the others do, and however long it takes on that way.
///
/// A mount with its own cache, and one through a broker.
#[test]
fn files_are_read_over_a_slow_link_without_a_timeout() {
    for person in TestUser::all() {
        for through_broker in [false, true] {
            let world = world(person);
            let broker = through_broker.then(|| Broker::start(&world));
            let mounted = mount(&world, broker.as_ref(), DEADLINE);
            mounted.does(|| fs::read_dir(mounted.path("slow")).expect("listing").count());
            world.mirror.narrow(SPEED);
            let since = Instant::now();
            let large = mounted.does(|| fs::read(mounted.path("slow/large")));
            assert!(large.expect("the large file") == noise(1, LARGE));
            assert!(since.elapsed() > DEADLINE * 2, "it was slow: {:?}", since.elapsed());
            let since = Instant::now();
            std::thread::scope(|scope| {
                let read = |at: u64| {
                    let path = mounted.path(&format!("slow/smaller{at}"));
                    scope.spawn(move || person.does(|| fs::read(path)))
                };
                let reads: Vec<_> = (0..READERS).map(read).collect();
                for (at, read) in (0..).zip(reads) {
                    let content = read.join().expect("joined").expect("a smaller file");
                    assert!(content == noise(100 + at, SMALLER));
                }
            });
            assert!(since.elapsed() > DEADLINE * 2, "it was slow: {:?}", since.elapsed());
        }
    }
}

/// Reads everything that the server withholds as a user, until the reads fail.
fn wait_for_what_is_withheld<'s>(scope: &'s std::thread::Scope<'s, '_>, person: TestUser, folder: &Path) {
    for number in 0..WITHHELD {
        let path = folder.join(format!("withheld{number}"));
        let reader = std::thread::Builder::new().stack_size(256 * 1024);
        let read = move || person.does(|| fs::read(path)).expect_err("nothing to read");
        reader.spawn_scoped(scope, read).expect("a thread");
    }
}

/// In a mount of root, for another user; in that of an ordinary user, for the same one.
#[test]
fn reads_of_withheld_objects_delay_no_other_reader() {
    esker_testkit::descriptors::allow(2 * WITHHELD);
    for person in TestUser::all() {
        for through_broker in [false, true] {
            let world = world(person);
            let broker = through_broker.then(|| Broker::start(&world));
            let mounted = mount(&world, broker.as_ref(), PATIENT);
            mounted.does(|| fs::read_dir(mounted.path("slow")).expect("listing").count());
            let rule = world.mirror.fault(|path| path.contains("c0/ffee11"), Fault::NoAnswer);
            std::thread::scope(|scope| {
                wait_for_what_is_withheld(scope, TestUser::ordinary(), &mounted.path("slow"));
                rule.wait_for_hits(16);
                // All of them, because a read with as many others before it as behind it would wait longest.
                mounted.wait_until("the withheld reads", |status| {
                    status["waiting"].as_u64().is_some_and(|waiting| waiting >= WITHHELD)
                });
                for at in 0..READERS / 4 {
                    let since = Instant::now();
                    let path = mounted.path(&format!("slow/small{at}"));
                    let read = mounted.does(|| fs::read(path));
                    let took = since.elapsed();
                    let read = read.unwrap_or_else(|error| {
                        rule.lift();
                        let status = mounted.status();
                        panic!("{person:?}, through a broker: {through_broker}, after {took:?}: {error}\n{status:#}")
                    });
                    assert!(read == noise(200 + at, 1000));
                    assert!(took < PATIENT, "{person:?}, through a broker: {through_broker}: {took:?}");
                }
                rule.lift();
            });
        }
    }
}
