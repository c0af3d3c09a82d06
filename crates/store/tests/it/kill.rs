//! kill -9 at any moment: the next start has right bytes, an exact account, and no leftovers.

use std::io::Read;
use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::Arc;

use esker_store::{Cache, CacheOptions, Disk, Objects, RealDisk};
use esker_testkit::disk::{Plan, SmallDisk};
use esker_testkit::soak::Soak;
use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};
use rustix::process::{Pid, Signal, WaitOptions, kill_process, waitpid};

use crate::crash::Begun;
use crate::rig::{Made, Shelf, as_is, bytes, engine, get, noise, roomy};

/// Environment variable with the folder, for the process that the test kills.
const FOLDER: &str = "ESKER_TEST_HAMMERED_CACHE";
/// In the same environment: how it is to begin its files.
const BEGUN: &str = "ESKER_TEST_HAMMERED_FILES";
const THREADS: u64 = 4;

fn objects() -> Vec<Made> {
    (0..40).map(|seed| as_is(&noise(seed, 20_000 + 12_345 * usize::try_from(seed).unwrap()))).collect()
}

/// Some two thirds of the objects fit.
fn options() -> CacheOptions {
    CacheOptions { quota: 7 << 20, ..roomy() }
}

/// Reads objects in every thread until killed; writes a byte for each, which tells the killer how far it is.
fn hammer(folder: &Path) {
    let named = std::env::var(BEGUN).unwrap() == format!("{:?}", Begun::Named);
    let disk: Arc<dyn Disk> =
        if named { Arc::new(SmallDisk::new(1 << 40)) } else { Arc::new(RealDisk::PRIVATE) };
    let cache = Cache::open(&engine(), folder, CacheOptions { disk, ..options() }).unwrap();
    let objects = Arc::new(objects());
    let store = Arc::new(Objects::new(&cache, Shelf::new(&objects.iter().collect::<Vec<_>>())));
    let threads: Vec<_> = (0..THREADS)
        .map(|thread| {
            let (store, objects) = (store.clone(), objects.clone());
            std::thread::spawn(move || {
                let mut random = StdRng::seed_from_u64(thread + u64::from(std::process::id()));
                let mut out = std::io::stderr();
                loop {
                    let object = &objects[random.random_range(0..objects.len())];
                    let handle = get(&*store, &object.wanted).unwrap();
                    assert!(handle.read_all().unwrap() == object.plain);
                    // The killer has hung up: nothing more to do.
                    if std::io::Write::write_all(&mut out, b".").is_err() {
                        return;
                    }
                }
            })
        })
        .collect();
    for thread in threads {
        thread.join().unwrap();
    }
}

/// Starts the test binary again as the hammering process, and kills it after so many reads. Tells whether that was in the
/// middle of a write.
fn hammer_and_kill(folder: &Path, begun: Begun, reads: usize) -> bool {
    let mut child = Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "kill::soak_kill_nine", "--nocapture"])
        .env(FOLDER, folder)
        .env(BEGUN, format!("{begun:?}"))
        .stdout(Stdio::null())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let mut progress = vec![0; reads];
    child.stderr.as_mut().unwrap().read_exact(&mut progress).unwrap();
    assert!(progress.iter().all(|byte| *byte == b'.'), "{}", String::from_utf8_lossy(&progress));
    let pid = Pid::from_child(&child);
    kill_process(pid, Signal::STOP).unwrap();
    waitpid(Some(pid), WaitOptions::UNTRACED).unwrap();
    let txn = folder.canonicalize().unwrap().join("txn");
    let opened = std::fs::read_dir(format!("/proc/{}/fd", child.id())).unwrap();
    let targets = opened.map(|file| std::fs::read_link(file.unwrap().path()).unwrap());
    // Those that never had a name are shown there, too.
    let writes = targets.filter(|target| target.starts_with(&txn)).count();
    child.kill().unwrap();
    child.wait().unwrap();
    writes > 0
}

#[test]
fn soak_kill_nine() {
    if let Some(folder) = std::env::var_os(FOLDER) {
        return hammer(Path::new(&folder));
    }
    let folder = tempfile::tempdir().unwrap();
    let objects = objects();
    let all: Vec<_> = objects.iter().collect();
    let engine = engine();
    let mut soak = Soak::begin("cache_kill_nine");
    let mut random = StdRng::seed_from_u64(soak.seed());
    let (mut in_the_middle, mut survived) = ([0, 0], 0);
    // Until kills hit writes of both kinds, however long that takes; without them nothing is shown.
    while soak.goes_on_until(if in_the_middle.contains(&0) { 1000 } else { 0 }) {
        let begun = Begun::BOTH[random.random_range(0..2)];
        let hit = hammer_and_kill(folder.path(), begun, random.random_range(1..300));
        in_the_middle[begun as usize] += u64::from(hit);
        assert!(!folder.path().join("index").exists(), "a killed process leaves no clean mark");
        let cache = Cache::open(&engine, folder.path(), options()).unwrap();
        let status = cache.status();
        assert!(status.opened_unclean);
        assert_eq!(status.leftovers > 0, hit && begun == Begun::Named, "{status:?}");
        let shelf = Shelf::new(&all);
        let store = Objects::new(&cache, shelf.clone());
        let before = cache.status().objects;
        for object in &objects {
            assert!(bytes(&store, &object.wanted).unwrap() == object.plain, "wrong bytes");
        }
        cache.settle();
        survived += before;
        let status = cache.status();
        assert_eq!((status.damaged, status.disk_errors), (0, 0), "a kill damages nothing that has its name");
        assert!(status.used <= status.quota);
        assert_eq!(crate::quota::on_disk(folder.path()).1, status.objects);
        assert_eq!(std::fs::read_dir(folder.path().join("txn")).unwrap().count(), 0);
        cache.close().unwrap();
    }
    assert!(!in_the_middle.contains(&0), "no kill hit a write: {in_the_middle:?}");
    assert!(survived > 0, "nothing ever survived");
    soak.finish(&[
        ("kills in the middle of a write without a name", &in_the_middle[0]),
        ("kills in the middle of a write with one", &in_the_middle[1]),
        ("objects found again", &survived),
        ("wrong bytes", &0),
    ]);
}

/// Power losses at random changes of random work, for as long as there is time.
#[test]
fn soak_power_loss() {
    let mut soak = Soak::begin("cache_power_loss");
    let mut random = StdRng::seed_from_u64(soak.seed());
    let mut crashes = 0;
    while soak.goes_on() {
        let folder = tempfile::tempdir().unwrap();
        let mut place = folder;
        // Several crashes in a row, each found by the next start.
        for _ in 0..random.random_range(1..4) {
            let plan = Plan::Crash { at: random.random_range(1..130), seed: random.random() };
            let disk = Begun::BOTH[random.random_range(0..2)].disk(place.path(), plan);
            crate::crash::work(&disk, place.path());
            if let Some(after) = disk.after_crash() {
                crashes += 1;
                place = after;
            }
        }
        crate::crash::is_in_order(place.path());
    }
    assert!(crashes > 0);
    soak.finish(&[("crashes", &crashes), ("wrong bytes", &0)]);
}
