//! Honest readers beside a hostile user, a hostile server, a slow link and a disk that is full at times.

mod broker;
mod evil;
mod hostile;
mod readers;

use std::collections::VecDeque;
use std::fs;
use std::path::PathBuf;
use std::sync::Mutex;
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::time::{Duration, Instant};

use esker_testkit::fixture::{self, Repository};
use esker_testkit::mirror::Mirror;
use esker_testkit::object;
use esker_testkit::revision_builder::RevisionBuilder;
use esker_testkit::soak::{Random, Soak};

use crate::running::processes_naming;
use crate::test_env::{TestEnv, mountinfo};
use crate::test_user::TestUser;

use self::broker::{NodeBroker, SmallDisk};
use self::evil::{Evil, Held};
use self::hostile::Hostile;
use self::readers::{File, Readers, Stop};

/// Quota of the broker's cache: half of the honest users' data.
const QUOTA: u64 = 16 << 20;
/// Promised limit of a cache with that quota.
const BOUND: u64 = {
    let (half_more, more) = (QUOTA + QUOTA / 2, QUOTA + QUOTA / 4 + (64 << 20));
    if half_more > more { half_more } else { more }
};
/// The link to the server of the repository, in bytes a second.
const SPEED: u64 = 2 << 20;
/// `--deadline` of the mounts: shorter than a soak of twenty seconds, and longer than it takes to find requests stalled.
const DEADLINE: &str = "15";
const HONEST: [u32; 2] = [61_001, 61_002];
const HOSTILE: [u32; 2] = [61_003, 61_004];
/// Threads of each honest user.
const THREADS: usize = 2;
/// Honest reads between two events.
const READS_A_ROUND: u64 = 24;
const SMALL: usize = 100;
const LARGE: usize = 40;
/// Files that only the hostile user reads.
const FLOOD: usize = 300;
const FLOOD_LEN: usize = 256 << 10;
/// Files that a server withholds.
const WITHHELD: u64 = 600;

/// Bytes that don't compress, different for each seed.
fn noise(seed: u64, len: usize) -> Vec<u8> {
    let mut random = Random(seed);
    let mut bytes = Vec::with_capacity(len + 8);
    while bytes.len() < len {
        bytes.extend_from_slice(&random.draw().to_le_bytes());
    }
    bytes.truncate(len);
    bytes
}

/// Stores content as an object and adds a file with this stated size.
fn add(craft: &RevisionBuilder, repository: &Repository, name: &str, (stored, size): (&[u8], u64)) -> String {
    let hash = repository.manifest().algorithm().hash(stored);
    repository.write(&object::path(&hash, ""), stored);
    let digest = object::unhex(&hash).try_into().expect("a digest");
    craft.add_file("/soak", name, size, digest);
    hash
}

/// Adds files whose objects exist nowhere; the names of these begin with [`evil::NOWHERE`].
fn add_withheld(craft: &RevisionBuilder) {
    for number in 0..WITHHELD {
        craft.add_file("/soak", &format!("withheld{number}"), 4096, evil::withheld(number));
    }
}

/// Makes the good repository; returns it and files for honest users: small and large ones, whole and in chunks.
fn good(seed: u64) -> (Repository, Vec<File>) {
    let repository = fixture::FULL.unpack();
    let craft = RevisionBuilder::of(&repository);
    craft.add_directory("soak");
    let mut random = Random(seed);
    let mut files = Vec::new();
    for number in 0..SMALL + LARGE {
        let len =
            if number < SMALL { 100 + random.below(48 << 10) } else { (256 << 10) + random.below(1 << 20) };
        let (name, content) = (format!("file{number}"), noise(random.draw(), len));
        let object = add(&craft, &repository, &name, (&object::deflate(&content), len as u64));
        let (path, object) = (format!("soak/{name}"), Some((object, len as u64)));
        files.push(File { path, sum: object::sha256(&content), object });
    }
    for number in 0..FLOOD {
        let stored = object::deflate(&noise(random.draw(), FLOOD_LEN));
        add(&craft, &repository, &format!("flood{number}"), (&stored, FLOOD_LEN as u64));
    }
    add_withheld(&craft);
    craft.publish(&repository);
    let listing = fixture::FULL.listing("v3");
    let published = listing.iter().filter(|entry| {
        entry.is_file()
            && entry.mode & 0o444 == 0o444
            && entry.path.starts_with(b"/data/")
            && entry.size.is_some_and(|size| (1..1 << 20).contains(&size))
    });
    files.extend(published.filter_map(|entry| {
        let path = String::from_utf8(entry.below_root().to_vec()).ok()?;
        Some(File { path, sum: entry.sha256.clone()?, object: None })
    }));
    (repository, files)
}

/// Samples of the cache's size.
#[derive(Default)]
struct Samples {
    count: u64,
    peak: u64,
    longest_pause: Duration,
}

/// The last samples in words, to tell a stalled machine or server from a stalled client.
#[derive(Default)]
struct Recent(Mutex<VecDeque<String>>);

impl Recent {
    const KEPT: usize = 80;

    fn add(&self, line: String) {
        let mut lines = self.0.lock().expect("lines");
        lines.push_back(line);
        if lines.len() > Self::KEPT {
            lines.pop_front();
        }
    }

    fn text(&self) -> String {
        self.0.lock().expect("lines").iter().map(|line| format!("{line}\n")).collect()
    }
}

/// Measures the objects of the cache, every half second until the end.
fn watch(broker: &NodeBroker, mirror: &Mirror, recent: &Recent, over: &Receiver<()>) -> Samples {
    let mut samples = Samples::default();
    let mut last = Instant::now();
    let begun = last;
    loop {
        let taken = broker.taken();
        assert!(taken <= BOUND, "the objects take {taken} bytes, more than {BOUND}");
        samples.count += 1;
        samples.peak = samples.peak.max(taken);
        let pause = last.elapsed();
        samples.longest_pause = samples.longest_pause.max(pause);
        last = Instant::now();
        let sent = mirror.sent() >> 10;
        recent.add(format!(
            "{:?}: pause {pause:?}, {sent} KiB sent, cache {} KiB",
            last - begun,
            taken >> 10
        ));
        match over.recv_timeout(Duration::from_millis(500)) {
            Err(RecvTimeoutError::Timeout) => {}
            _ => return samples,
        }
    }
}

/// Asserts that no process or file of a test is left once its mounts and its broker are gone.
fn assert_nothing_is_left(folder: &str, cache: PathBuf) {
    assert!(
        !mountinfo().lines().any(|line| line.contains(folder) && line.contains("fuse")),
        "a mount is left"
    );
    assert_eq!(processes_naming(folder), [0; 0], "processes are left");
    let unfinished = fs::read_dir(cache.join("txn")).expect("a folder").count();
    assert_eq!(unfinished, 0, "files are left");
}

/// > C26: The objects of a cache, those that are being written or only passed on among them, never take more than its quota and half as much again, or its quota, a quarter and 64 MiB if that is more, whatever a repository, a server or a user of the broker says.
///
/// > W4: Whatever becomes of the cache's disk, reads of what a server has do not fail, every mount ends in time or says what is wrong with the disk, and the cache is used again by itself once the disk is well.
///
/// No honest read fails, whatever the neighbours do.
#[test]
fn soak_hostile_neighbours() {
    esker_testkit::descriptors::allow(8192);
    let person = TestUser::root().unwrap_or_else(TestUser::ordinary);
    let user = |uid: u32| if person.is_root() { TestUser { uid, gid: uid } } else { person };
    let (repository, files) = good(1);
    let mirror = Mirror::serve(repository.document_root());
    let world = TestEnv::at(person, repository, mirror);
    let disk = SmallDisk::new(world.path("disk"), BOUND + (16 << 20));
    let broker = NodeBroker::start(&world, &disk);
    let options: Vec<String> = ["--no-prefetch", "--deadline", DEADLINE].map(str::to_owned).into();
    let options: Vec<String> = options.into_iter().chain(broker.options()).collect();
    let words: Vec<&str> = options.iter().map(String::as_str).collect();
    let mounted = world.mount(&words);
    let evil = Evil::start();
    let (evil_withheld, stalled) = (Held::withheld(&evil.mirror), evil.stalls());
    let evil_mount = evil.mount(&world, &words);
    world.mirror.narrow(SPEED);
    let withheld = Held::withheld(&world.mirror);
    let held_back = [&stalled, &withheld, &evil_withheld];
    let readers = Readers::new(world.mountpoint(), files);
    let hostile = Hostile::new(HOSTILE.map(user), &world, &readers, (&broker, &evil));
    let (mut filled, mut requests) = (0u64, 0);
    let recent = &Recent::default();
    let mut soak = Soak::begin("hostile_neighbours");
    let samples = std::thread::scope(|scope| {
        let stop = Stop::of(&readers, || {
            world.mirror.narrow(1 << 30);
            held_back.iter().for_each(|held| held.lift());
        });
        let (over, watched) = channel::<()>();
        let (broker, readers, hostile, mirror) = (&broker, &readers, &hostile, &world.mirror);
        let watcher = scope.spawn(move || {
            let failed = Stop::of(readers, || {});
            let seen = watch(broker, mirror, recent, &watched);
            failed.not();
            seen
        });
        for (number, uid) in HONEST.into_iter().cycle().take(HONEST.len() * THREADS).enumerate() {
            let (random, mounted) = (Random(soak.seed() ^ (number as u64 + 1) << 32), &mounted);
            scope.spawn(move || {
                let failed = Stop::of(readers, || {});
                let found = user(uid).does(|| readers.read_on(random));
                if let Err(finding) = found {
                    panic!("{finding}\n{}{}\n{:#}", recent.text(), broker.said(), mounted.status());
                }
                failed.not();
            });
        }
        hostile.start(scope, &held_back);
        held_back.iter().for_each(|held| held.wait_for_hit());
        while soak.goes_on_until(2) {
            held_back.iter().for_each(|held| held.renew());
            readers.wait_for_reads(READS_A_ROUND / 2);
            filled += u64::from(disk.fill());
            readers.wait_for_reads(READS_A_ROUND / 2);
            disk.empty();
            requests += world.mirror.forget() + evil.mirror.forget();
        }
        let seen = mounted.status();
        drop(stop);
        drop(over);
        let sampled = watcher.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic));
        let cache = &seen["cache"];
        assert_eq!(cache["quota"], QUOTA, "{seen:#}");
        assert!(cache["evicted"].as_u64() > Some(0), "nothing was evicted: {seen:#}");
        assert!(
            cache["disk_errors"].as_u64() > Some(0) || !disk.is_small(),
            "the disk was never full: {seen:#}"
        );
        hostile.note(&seen);
        sampled
    });
    broker.wait_until_idle(&mounted);
    drop(evil_mount);
    drop(mounted);
    let counts = hostile.counts();
    broker.stop();
    let folder = world.path("");
    assert_nothing_is_left(folder.to_str().expect("text"), disk.cache());
    let read = readers.read();
    counts.assert_hit();
    assert!(held_back.iter().all(|held| held.hits() > 0), "nothing was withheld");
    soak.finish(&[
        ("honest reads", &read.reads),
        ("of these, MiB", &(read.bytes >> 20)),
        ("the slowest, ms", &read.slowest.as_millis()),
        ("honest reads that failed or had wrong bytes", &0),
        ("samples of the cache", &samples.count),
        ("longest time between two, ms", &samples.longest_pause.as_millis()),
        ("its objects took at most, MiB", &(samples.peak >> 20)),
        ("allowed, MiB", &(BOUND >> 20)),
        ("times the disk was filled", &filled),
        ("requests", &requests),
        ("withheld by the good server", &withheld.hits()),
        ("withheld by the hostile one", &evil_withheld.hits()),
        ("of it without an end", &stalled.hits()),
        ("events of it", &evil.events()),
        ("hostile", &counts),
    ]);
}
