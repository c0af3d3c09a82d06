//! A failure or a power loss at every operation: never a wrong byte, never a cache that must be wiped by hand.

use std::path::Path;
use std::sync::{Arc, OnceLock};

use esker_store::{Blame, Cache, CacheOptions, Engine, ObjectStore, Objects, StoreError};
use esker_testkit::disk::{FaultDisk, Plan, SmallDisk};

use crate::rig::{Made, Shelf, as_is, bytes, engine, get, noise, roomy};

const OBJECTS: u64 = 14;
/// What an object takes on disk, in blocks of up to this size.
const UNIT: u64 = 8 << 10;

fn made() -> &'static [Made] {
    static MADE: OnceLock<Vec<Made>> = OnceLock::new();
    MADE.get_or_init(|| {
        (0..OBJECTS).map(|seed| as_is(&noise(seed, usize::try_from(UNIT - 64).unwrap()))).collect()
    })
}

fn shared_engine() -> &'static Engine {
    static ENGINE: OnceLock<Engine> = OnceLock::new();
    ENGINE.get_or_init(engine)
}

/// Room for some eight objects: the fourteen are evicted now and then.
fn options() -> CacheOptions {
    CacheOptions { quota: UNIT * 9, hard_limit: UNIT * 12, ..roomy() }
}

fn shelf() -> Arc<Shelf> {
    Shelf::new(&made().iter().collect::<Vec<_>>())
}

/// How a file system has files that are being written.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Begun {
    /// Without a name: nothing is left of one that isn't complete.
    Nameless,
    /// Under another name, as those have to that know no other way.
    Named,
}

impl Begun {
    pub(crate) const BOTH: [Self; 2] = [Self::Nameless, Self::Named];

    pub(crate) fn disk(self, folder: &Path, plan: Plan) -> FaultDisk {
        let disk = FaultDisk::new(folder, plan);
        if self == Self::Named { disk.making(SmallDisk::new(1 << 40)) } else { disk }
    }
}

/// Reads some objects twice, with one open all the while, closes, reopens and reads others. Tells every
/// outcome; none of them may be wrong bytes.
pub(crate) fn work(disk: &FaultDisk, folder: &Path) -> Vec<StoreError> {
    let mut errors = Vec::new();
    // The second round fetches again what it evicted of the first: a stale index would vouch for that.
    let rounds: [&[usize]; 2] =
        [&[0, 1, 2, 3, 0, 4, 5, 6, 1, 7], &[7, 8, 0, 9, 2, 10, 3, 8, 4, 2, 11, 12, 13, 0]];
    for round in rounds {
        let cache = match Cache::open(
            shared_engine(),
            folder,
            CacheOptions { disk: Arc::new(disk.clone()), ..options() },
        ) {
            Ok(cache) => cache,
            Err(error) => {
                errors.push(error);
                continue;
            }
        };
        let store = Objects::new(&cache, shelf());
        let open = get(&store, &made()[round[0]].wanted);
        for object in round {
            let object = &made()[*object];
            match bytes(&store, &object.wanted) {
                Ok(read) => assert!(read == object.plain, "wrong bytes"),
                Err(error) => errors.push(error),
            }
        }
        cache.settle();
        if let Ok(open) = open {
            assert!(open.read_all().unwrap() == made()[round[0]].plain, "wrong bytes");
        }
        errors.extend(cache.close().err());
    }
    errors
}

/// Bytes that the files of a cache take, as the cache counts them.
fn taken(folder: &Path) -> (u64, u64) {
    let (mut bytes, mut count) = (0, 0);
    for inner in std::fs::read_dir(folder.join("objects")).unwrap() {
        for file in std::fs::read_dir(inner.unwrap().path()).unwrap() {
            bytes += file.unwrap().metadata().unwrap().len().next_multiple_of(4096);
            count += 1;
        }
    }
    (bytes, count)
}

/// Opens a cache folder as a restart would, and demands everything of it; returns how much it still had.
pub(crate) fn is_in_order(folder: &Path) -> u64 {
    // A disk that never fails, and never waits for the hardware either.
    let disk = Arc::new(FaultDisk::new(folder, Plan::Nothing));
    let cache =
        Cache::open(shared_engine(), folder, CacheOptions { disk: disk.clone(), ..options() }).unwrap();
    cache.settle();
    let shelf = shelf();
    let store = Objects::new(&cache, shelf.clone());
    for object in made().iter().chain(made()) {
        assert!(bytes(&store, &object.wanted).unwrap() == object.plain, "wrong bytes");
        cache.settle();
        let status = cache.status();
        assert!(status.used <= status.quota, "{status:?}");
    }
    let status = cache.status();
    assert_eq!(taken(folder), (status.used, status.objects), "the account is exact");
    assert_eq!(std::fs::read_dir(folder.join("txn")).unwrap().count(), 0);
    assert_eq!((status.disk_errors, status.unkept), (0, 0));
    cache.close().unwrap();
    drop((store, cache));
    let cache = Cache::open(shared_engine(), folder, CacheOptions { disk, ..options() }).unwrap();
    assert!(!cache.status().opened_unclean);
    let store = Objects::new(&cache, Shelf::new(&[]));
    let last = &made()[usize::try_from(OBJECTS - 1).unwrap()];
    assert!(store.cached(&last.wanted).unwrap().read_all().unwrap() == last.plain, "it was read last");
    2 * OBJECTS - shelf.asked().len() as u64
}

fn count_operations(begun: Begun) -> (u64, u64) {
    let folder = tempfile::tempdir().unwrap();
    let disk = begun.disk(folder.path(), Plan::Nothing);
    assert_eq!(work(&disk, folder.path()).len(), 0);
    is_in_order(folder.path());
    (disk.operations(), disk.changes())
}

fn fail_everywhere(errno: i32, ever: bool) {
    Begun::BOTH.into_iter().for_each(|begun| fail_everywhere_on(begun, errno, ever));
}

fn fail_everywhere_on(begun: Begun, errno: i32, ever: bool) {
    let (total, _) = count_operations(begun);
    assert!(total > 120, "the work is worth interrupting: {total}");
    let mut clean = 0;
    for at in 1.. {
        let folder = tempfile::tempdir().unwrap();
        let disk = begun.disk(folder.path(), Plan::Fail { at, ever, errno });
        let errors = work(&disk, folder.path());
        if disk.struck() == 0 {
            assert!(at > total / 2, "the fault was met at every operation before");
            break;
        }
        for error in &errors {
            assert_eq!(error.blame(), Blame::Disk, "{error}");
            // Objects are served all the same: from memory if need be.
            assert_eq!(error.object(), "the cache", "{error}");
        }
        clean += u64::from(errors.is_empty());
        disk.heal();
        is_in_order(folder.path());
    }
    assert!(ever || clean > 0, "most single failures go unnoticed");
}

#[test]
fn one_io_error_at_any_operation_is_survived() {
    fail_everywhere(5, false);
}

#[test]
fn io_errors_from_any_operation_on_are_survived() {
    fail_everywhere(5, true);
}

#[test]
fn a_disk_full_at_any_one_operation_is_survived() {
    fail_everywhere(28, false);
}

#[test]
fn a_disk_full_from_any_operation_on_is_survived() {
    fail_everywhere(28, true);
}

/// Loses the power before every change in turn, and in a third of the cases again during the restart.
#[test]
fn a_power_loss_at_any_change_is_survived() {
    Begun::BOTH.into_iter().for_each(power_loss_at_every_change_on);
}

fn power_loss_at_every_change_on(begun: Begun) {
    let (_, changes) = count_operations(begun);
    assert!(changes > 100, "the work is worth interrupting: {changes}");
    let (mut survived, mut crashes) = (0, 0);
    for at in 1..=changes {
        let folder = tempfile::tempdir().unwrap();
        let disk = begun.disk(folder.path(), Plan::Crash { at, seed: at });
        work(&disk, folder.path());
        // Two threads change things, so the last few changes need not come in each run.
        let Some(after) = disk.after_crash() else { continue };
        crashes += 1;
        let after = if at % 3 == 0 {
            let restart = begun.disk(after.path(), Plan::Crash { at: 1 + at % 7, seed: at });
            work(&restart, after.path());
            restart.after_crash().expect("a restart changes that much")
        } else {
            after
        };
        survived += is_in_order(after.path());
    }
    assert!(crashes >= changes - 10, "{crashes} crashes at {changes} changes");
    assert!(survived > crashes, "{survived} objects survived {crashes} crashes: the cache is worth keeping");
}
