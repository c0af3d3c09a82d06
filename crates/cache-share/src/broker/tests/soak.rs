//! 64 readers of three times the quota, through a broker that is killed, and on a disk that is full at times, compared
//! with a model of the cache.

use std::collections::{BTreeMap, BTreeSet};
use std::io::{Read, Write};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Instant;

use esker_store::CacheKey;
use esker_testkit::disk::Tmpfs;
use esker_testkit::skip_part;
use esker_testkit::soak::Soak;
use esker_testkit::waiting::until_some;
use parking_lot::{Condvar, Mutex, RwLock};

use super::*;
use crate::admin::{CacheFolder, ObjectRow};
use crate::shared_cache::SharedCache;

/// Environment variable with the folder, for the broker's process, which the test kills.
const FOLDER: &str = "ESKER_TEST_SOAKED_BROKER";
const QUOTA: u64 = 16 << 20;
const OBJECTS: usize = 420;
const OBJECT_LEN: usize = 120_000;
const PINNED: usize = 20;
const READERS: usize = 64;
const MOUNTS: usize = 4;
/// Reads between two events.
const READS_A_ROUND: u64 = 600;

/// Runs the broker until it is killed, or its parent is gone.
fn be_the_broker(folder: &Path) {
    let options = BrokerOptions {
        cache: folder.join("disk/cache"),
        quota: QUOTA,
        lower: Vec::new(),
        socket: folder.join("run/socket"),
        rules: Rules::default(),
        destinations: Destinations::All,
        authorities: esker_store::Authorities::default(),
    };
    let broker = NodeBroker::start(options).expect("a broker");
    std::io::stderr().write_all(b"!").expect("telling");
    let _ = std::io::stdin().read(&mut [0]);
    drop(broker);
}

/// The broker as another process.
struct Process(Child);

impl Process {
    fn start(folder: &Path) -> Self {
        let mut child = Command::new(std::env::current_exe().expect("this program"))
            .args(["--exact", "broker::tests::soak::soak_broker_kill_nine_full_disk", "--nocapture"])
            .env(FOLDER, folder)
            .stdin(Stdio::piped())
            .stdout(Stdio::null())
            .stderr(Stdio::piped())
            .spawn()
            .expect("a broker");
        let mut ready = [0];
        child.stderr.as_mut().expect("its output").read_exact(&mut ready).expect("a word");
        assert_eq!(ready, *b"!", "the broker did not begin");
        Self(child)
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        // Whether there is one to kill is the business of the test.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// A small disk for the cache, which can be filled; or a folder, where the test can't mount one.
struct SmallDisk {
    path: PathBuf,
    mounted: Option<Tmpfs>,
}

impl SmallDisk {
    fn new(path: PathBuf) -> Self {
        // The hard limit, unfinished writes, and little else.
        let mounted = Tmpfs::mount(&path, QUOTA + QUOTA / 2);
        if mounted.is_none() {
            fs::create_dir(&path).expect("a folder");
            skip_part!("only root can have a small disk");
        }
        Self { path, mounted }
    }
}

/// State shared by the readers.
struct Readers<'a> {
    objects: &'a [Made],
    stores: Vec<Arc<SharedCache>>,
    /// Held for reading by readers; a writer knows that no read is in progress.
    reading: RwLock<()>,
    stop: AtomicBool,
    reads: Mutex<u64>,
    more_reads: Condvar,
}

impl Readers<'_> {
    /// Reads at random until the test sets the stop flag; any wrong byte is a finding.
    fn read_on(&self, number: usize, seed: u64) {
        let store = &self.stores[number % self.stores.len()];
        let mut state = seed ^ (number as u64 + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        while !self.stop.load(Ordering::SeqCst) {
            state ^= state << 13;
            state ^= state >> 7;
            state ^= state << 17;
            let object = &self.objects[usize::try_from(state % OBJECTS as u64).expect("small")];
            let _reading = self.reading.read();
            assert!(read(&**store, &object.wanted) == object.plain, "wrong bytes");
            *self.reads.lock() += 1;
            self.more_reads.notify_all();
        }
    }

    fn wait_for_reads(&self, more: u64) {
        let deadline = Instant::now() + 2 * PATIENCE;
        let mut reads = self.reads.lock();
        let goal = *reads + more;
        while *reads < goal {
            assert!(!self.stop.load(Ordering::SeqCst), "a reader failed");
            assert!(!self.more_reads.wait_until(&mut reads, deadline).timed_out(), "the readers stand still");
        }
    }
}

/// Stops the readers however the test ends.
struct Stop<'a>(&'a AtomicBool, &'a Condvar);

impl Drop for Stop<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::SeqCst);
        self.1.notify_all();
    }
}

/// Returns the sizes of the files on the disk, by name.
fn on_disk(cache: &Path) -> BTreeMap<String, u64> {
    let mut found = BTreeMap::new();
    for folder in fs::read_dir(cache.join("objects")).expect("the objects") {
        let folder = folder.expect("an entry");
        for file in fs::read_dir(folder.path()).expect("a folder") {
            let file = file.expect("an entry");
            let name = format!("{}{}", folder.file_name().display(), file.file_name().display());
            found.insert(name, file.metadata().expect("its facts").len());
        }
    }
    found
}

/// Limit of the cache's size.
#[derive(Clone, Copy)]
enum May {
    /// Objects may just have been in use.
    HardLimit,
    /// The quota: nothing was in use for long enough that eviction ran again.
    Quota,
}

/// Compares the cache with the model while no read is in progress. Returns the number of failed disk operations.
fn compare(cache: &Path, objects: &[Made], disk: &SmallDisk, may: May) -> u64 {
    let mut folder = CacheFolder::open(cache, QUOTA).expect("the cache");
    let mut wrong = String::new();
    let right = until_some(PATIENCE, || {
        // Evictions go on for a moment after the last read.
        let mut rows: BTreeMap<String, ObjectRow> = BTreeMap::new();
        let report = folder.report().expect("a report");
        folder
            .list(|row| {
                rows.insert(row.object.clone(), row);
                true
            })
            .expect("a list");
        let files = on_disk(cache);
        let sum: u64 = rows.values().map(|row| row.takes).sum();
        let most = match may {
            May::HardLimit => report.state.hard_limit,
            May::Quota => report.state.quota,
        };
        if sum == report.state.used && sum <= most && files.keys().eq(rows.keys()) {
            return Some((report, rows, files));
        }
        let names: BTreeSet<_> = files.keys().chain(rows.keys()).collect();
        let odd: Vec<_> =
            names.into_iter().filter(|name| files.contains_key(*name) != rows.contains_key(*name)).collect();
        let what = "account, list and disk differ, or it is more than may be";
        wrong = format!("{what}: {sum} bytes, {report:?}, {odd:?}");
        None
    });
    let (report, rows, files) = right.unwrap_or_else(|| panic!("{wrong}"));
    let known: BTreeMap<String, u64> =
        objects.iter().map(|object| (object.wanted.key().to_string(), object.plain.len() as u64)).collect();
    for row in rows.values() {
        assert_eq!(known.get(&row.object), Some(&row.size), "{row:?} is no object of ours");
    }
    for object in &objects[..PINNED] {
        assert!(rows.contains_key(&object.wanted.key().to_string()), "a pinned object was evicted");
    }
    folder
        .check(false, |_, damaged| {
            assert_eq!(damaged, None);
            true
        })
        .expect("a check");
    if disk.mounted.is_some() {
        let facts = rustix::fs::statvfs(&disk.path).expect("the disk");
        let taken = (facts.f_blocks - facts.f_bfree) * facts.f_frsize;
        let ballast = fs::metadata(disk.path.join("ballast")).map_or(0, |ballast| ballast.len());
        let files: u64 = files.values().map(|len| len.next_multiple_of(facts.f_frsize)).sum();
        // Files that are open though evicted take room too, and sockets, indexes and folders a little.
        assert!(taken <= files + ballast + QUOTA / 2, "{taken} bytes are taken, {files} by objects");
    }
    report.state.disk_errors
}

/// > C8: Quota, pins and account hold under many readers of more than the cache may take, when its writer is killed, and when the disk is full: reads go on, with the right bytes.
#[test]
fn soak_broker_kill_nine_full_disk() {
    if let Some(folder) = std::env::var_os(FOLDER) {
        return be_the_broker(Path::new(&folder));
    }
    let folder = tempfile::tempdir().expect("a folder");
    make_run(&folder.path().join("run/socket"));
    let disk = SmallDisk::new(folder.path().join("disk"));
    let cache = disk.path.join("cache");
    let mirror = Mirror::serve(folder.path());
    let objects: Vec<Made> =
        (0..OBJECTS).map(|seed| noisy(seed as u64, OBJECT_LEN + (seed % 7) * 1000)).collect();
    let total: usize = objects.iter().map(|object| object.plain.len()).sum();
    assert!(total as u64 >= 3 * QUOTA);
    for object in &objects {
        mirror.put(&format!("/public.test/{}", object.path), compress_zlib(&object.plain));
    }
    let mut broker = Some(Process::start(folder.path()));
    let pins: Vec<(CacheKey, u64)> =
        objects[..PINNED].iter().map(|made| (made.wanted.key(), made.plain.len() as u64)).collect();
    CacheFolder::open(&cache, QUOTA).expect("the cache").pin("public.test:/pinned", &pins).expect("pinning");

    let me = rustix::process::geteuid().as_raw();
    let socket = folder.path().join("run/socket");
    let address = BrokerAddress { socket, trusted: vec![me], is_named: true };
    let stores = (0..MOUNTS)
        .map(|number| {
            let own = folder.path().join(format!("own-{number}"));
            let url = mirror.url("public.test");
            SharedCache::open_through(&own, &url, Box::new(no_private_cache), Some(address.clone()))
                .expect("the broker")
        })
        .collect();
    let readers = Readers {
        objects: &objects,
        stores,
        reading: RwLock::new(()),
        stop: AtomicBool::new(false),
        reads: Mutex::default(),
        more_reads: Condvar::new(),
    };
    for object in &objects[..PINNED] {
        assert!(read(&*readers.stores[0], &object.wanted) == object.plain);
    }
    // On a busy machine the first fetch may be one request or several for parts.
    let requests = || -> Vec<_> {
        let times = |object: &Made| mirror.count(|path| path.ends_with(&object.path));
        objects[..PINNED].iter().map(times).collect()
    };
    let first = requests();
    let mut soak = Soak::begin("broker_kill_nine_full_disk");
    let seed = soak.seed();
    let (mut kills, mut fillings, mut failures) = (0u64, 0u64, 0u64);
    std::thread::scope(|scope| {
        let stop = Stop(&readers.stop, &readers.more_reads);
        for number in 0..READERS {
            let readers = &readers;
            scope.spawn(move || {
                let stop = Stop(&readers.stop, &readers.more_reads);
                readers.read_on(number, seed);
                drop(stop);
            });
        }
        while soak.goes_on_until(4) {
            let kills_now = soak.rounds() % 2 == 1;
            let fills_now = disk.mounted.is_some() && soak.rounds() % 4 < 2;
            readers.wait_for_reads(READS_A_ROUND / 2);
            if fills_now {
                disk.mounted.iter().for_each(Tmpfs::fill);
                fillings += 1;
            }
            readers.wait_for_reads(READS_A_ROUND / 2);
            if kills_now {
                drop(broker.take());
                kills += 1;
                broker = Some(Process::start(folder.path()));
            }
            readers.wait_for_reads(READS_A_ROUND / 4);
            let quiet = readers.reading.write();
            failures += compare(&cache, &objects, &disk, May::HardLimit);
            drop(quiet);
            if fills_now {
                disk.mounted.iter().for_each(Tmpfs::empty);
            }
        }
        drop(stop);
    });
    compare(&cache, &objects, &disk, May::Quota);
    let report = CacheFolder::open(&cache, QUOTA).and_then(|mut folder| folder.report());
    assert_eq!(requests(), first, "pinned objects were fetched again: {kills} kills, {report:?}");
    assert!(kills > 0 && (fillings > 0) == disk.mounted.is_some());
    assert!(disk.mounted.is_none() || failures > 0, "the disk was never full when a writer wrote");
    let (reads, fetched) = (*readers.reads.lock(), mirror.count(|path| path.contains("/data/")));
    drop(readers);
    drop(broker);
    soak.finish(&[
        ("readers", &READERS),
        ("reads", &reads),
        ("objects fetched", &fetched),
        ("kill -9 of the writer", &kills),
        ("times the disk was filled", &fillings),
        ("operations that failed because of it", &failures),
        ("wrong bytes, failed reads", &0),
    ]);
}

/// Makes an object that doesn't compress.
fn noisy(seed: u64, len: usize) -> Made {
    let mut state = (seed + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    let mut plain = Vec::with_capacity(len + 8);
    while plain.len() < len {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        plain.extend_from_slice(&state.to_le_bytes());
    }
    plain.truncate(len);
    let stored = compress_zlib(&plain);
    let name = ObjectName::new(ContentHash::of(HashAlgorithm::Sha1, &stored), ObjectKind::File);
    let wanted = ObjectRequest::new(name, Compression::Zlib, "/a/file").size(len as u64);
    Made { plain, wanted, path: name.path() }
}
