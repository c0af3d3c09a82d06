//! The quota, against a model: the evicted objects, their order, and the kept objects.

use std::collections::{BTreeMap, HashSet};
use std::fs;
use std::path::Path;
use std::sync::{Arc, Mutex, OnceLock};

use esker_store::{Cache, CacheKey, CacheOptions, Engine, Handle, Holder, Mapped, Objects};
use proptest::prelude::*;

use crate::rig::{Made, Rig, Shelf, as_is, bytes, engine, get, noise, roomy};

/// Objects take whole units on disk.
const UNIT: u64 = 64 << 10;
const TRAILER: u64 = 64;

fn object(seed: u64, units: u64) -> Made {
    as_is(&noise(seed, usize::try_from(units * UNIT - TRAILER).unwrap()))
}

/// A kernel that uses the objects that the test selects.
#[derive(Default)]
struct Kernel {
    held: Mutex<HashSet<CacheKey>>,
    asked: Mutex<usize>,
}

impl Holder for Kernel {
    fn release(&self, victims: &[CacheKey]) -> Vec<bool> {
        *self.asked.lock().unwrap() += victims.len();
        let held = self.held.lock().unwrap();
        victims.iter().map(|key| held.contains(key)).collect()
    }
}

/// Bytes of the files below `objects/`, and how many there are.
pub(crate) fn on_disk(folder: &Path) -> (u64, u64) {
    let (mut bytes, mut count) = (0, 0);
    for inner in fs::read_dir(folder.join("objects")).unwrap() {
        for file in fs::read_dir(inner.unwrap().path()).unwrap() {
            bytes += file.unwrap().metadata().unwrap().len();
            count += 1;
        }
    }
    (bytes, count)
}

#[derive(Clone, Copy, Debug)]
enum Op {
    /// Read and let go.
    Read(usize),
    /// Read and keep the handle.
    Open(usize),
    /// Read and keep a mapping.
    Map(usize),
    /// Let the first kept handle or mapping of this object go.
    LetGo(usize),
    /// The kernel gets hold of it, or forgets it.
    Kernel(usize, bool),
}

const OBJECTS: usize = 24;

fn op() -> impl Strategy<Value = Op> {
    let object = 0..OBJECTS;
    prop_oneof![
        6 => object.clone().prop_map(Op::Read),
        1 => object.clone().prop_map(Op::Open),
        1 => object.clone().prop_map(Op::Map),
        2 => object.clone().prop_map(Op::LetGo),
        2 => (object, any::<bool>()).prop_map(|(object, held)| Op::Kernel(object, held)),
    ]
}

/// What the cache should do, said in the plainest way.
struct Model {
    quota: u64,
    hard: u64,
    low: u64,
    clock: u64,
    /// When each object in the cache was last read.
    present: BTreeMap<usize, u64>,
    /// Handles and mappings that are kept.
    kept: BTreeMap<usize, usize>,
    /// What the kernel holds.
    held: HashSet<usize>,
}

impl Model {
    fn used(&self) -> u64 {
        self.present.keys().map(|object| size(*object)).sum()
    }

    fn tick(&mut self) -> u64 {
        self.clock += 1;
        self.clock
    }

    fn read(&mut self, object: usize) {
        if !self.present.contains_key(&object) {
            if self.used() + size(object) > self.quota {
                self.evict_to(self.low.min(self.quota - size(object)));
            }
            if self.used() + size(object) > self.hard {
                return;
            }
        }
        let now = self.tick();
        self.present.insert(object, now);
    }

    fn evict_to(&mut self, goal: u64) {
        let mut oldest: Vec<_> = self.present.iter().map(|(object, read)| (*read, *object)).collect();
        oldest.sort();
        for (_, victim) in oldest {
            if self.used() <= goal {
                return;
            }
            if self.kept.contains_key(&victim) {
                continue;
            }
            if self.held.contains(&victim) {
                let now = self.tick();
                self.present.insert(victim, now);
            } else {
                self.present.remove(&victim);
            }
        }
    }
}

fn size(object: usize) -> u64 {
    (object as u64 % 4 + 1) * UNIT
}

fn made() -> &'static [Made] {
    static MADE: OnceLock<Vec<Made>> = OnceLock::new();
    MADE.get_or_init(|| (0..OBJECTS).map(|number| object(number as u64, size(number) / UNIT)).collect())
}

fn shared_engine() -> &'static Engine {
    static ENGINE: OnceLock<Engine> = OnceLock::new();
    ENGINE.get_or_init(engine)
}

enum Kept {
    Open { _handle: Handle },
    Map(Mapped),
}

fn run(ops: &[Op]) {
    // A bit less than eleven units, so that objects in whole units never end between the high mark and the
    // quota, where an eviction in the background is due that this model does not follow.
    let quota = UNIT * 109 / 10;
    let options = CacheOptions {
        hard_limit: UNIT * 14,
        unkept_limit: UNIT * 1000,
        descriptors: Some(100),
        ..CacheOptions { quota, ..roomy() }
    };
    let folder = tempfile::tempdir().unwrap();
    let cache = Cache::open(shared_engine(), folder.path(), options).unwrap();
    let kernel = Arc::new(Kernel::default());
    let as_holder: Arc<dyn Holder> = kernel.clone();
    cache.add_holder(Arc::downgrade(&as_holder));
    let made = made();
    let shelf = Shelf::new(&made.iter().collect::<Vec<_>>());
    let store = Objects::new(&cache, shelf);
    let mut model = Model {
        quota,
        hard: UNIT * 14,
        low: quota / 100 * 85 + quota % 100 * 85 / 100,
        clock: 0,
        present: BTreeMap::new(),
        kept: BTreeMap::new(),
        held: HashSet::new(),
    };
    let mut kept: Vec<(usize, bool, Kept)> = Vec::new();
    for op in ops {
        match *op {
            Op::Read(object) => {
                let handle = get(&store, &made[object].wanted).unwrap();
                cache.settle();
                assert!(handle.read_all().unwrap() == made[object].plain);
                model.read(object);
            }
            Op::Open(object) | Op::Map(object) => {
                let handle = get(&store, &made[object].wanted).unwrap();
                cache.settle();
                model.read(object);
                // What was served without being kept holds no place in the cache.
                let in_cache = model.present.contains_key(&object);
                if in_cache {
                    *model.kept.entry(object).or_default() += 1;
                }
                kept.push((
                    object,
                    in_cache,
                    if matches!(op, Op::Open(_)) {
                        Kept::Open { _handle: handle }
                    } else {
                        Kept::Map(handle.map().unwrap())
                    },
                ));
            }
            Op::LetGo(object) => {
                if let Some(at) = kept.iter().position(|(there, ..)| *there == object) {
                    let (_, in_cache, what) = kept.remove(at);
                    if let Kept::Map(map) = &what {
                        assert!(map.as_ref() == made[object].plain);
                    }
                    drop(what);
                    if in_cache {
                        let count = model.kept.get_mut(&object).unwrap();
                        *count -= 1;
                        if *count == 0 {
                            model.kept.remove(&object);
                        }
                    }
                }
            }
            Op::Kernel(object, held) => {
                let key = made[object].wanted.key();
                if held && model.present.contains_key(&object) {
                    kernel.held.lock().unwrap().insert(key);
                    model.held.insert(object);
                } else if !held {
                    kernel.held.lock().unwrap().remove(&key);
                    model.held.remove(&object);
                }
            }
        }
        let status = cache.status();
        assert_eq!(status.used, model.used(), "after {op:?}");
        assert_eq!(status.objects, model.present.len() as u64);
        let (bytes, files) = on_disk(folder.path());
        assert_eq!((bytes, files), (model.used(), model.present.len() as u64), "after {op:?}");
        assert!(status.used <= status.hard_limit);
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 48, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn eviction_follows_the_model(ops in prop::collection::vec(op(), 1..120)) {
        run(&ops);
    }
}

/// With more held than the quota allows, objects are kept up to the hard limit, and above it served without
/// being kept. When the holds end, the next miss makes room.
#[test]
fn objects_in_use_exceed_the_quota_up_to_the_hard_limit() {
    let options = CacheOptions {
        hard_limit: UNIT * 14,
        unkept_limit: UNIT * 3,
        ..CacheOptions { quota: UNIT * 10, ..roomy() }
    };
    let rig = Rig::with(engine(), options);
    let objects: Vec<_> = (0..20).map(|seed| object(seed, 1)).collect();
    let store = rig.store(Shelf::new(&objects.iter().collect::<Vec<_>>()));
    let mut handles = Vec::new();
    for object in &objects[..17] {
        let handle = get(&store, &object.wanted).unwrap();
        assert!(handle.read_all().unwrap() == object.plain);
        handles.push(handle);
    }
    let status = rig.cache.status();
    assert_eq!((status.objects, status.used, status.unkept), (14, 14 * UNIT, 3));
    assert!(status.over_quota > 0, "the warning is counted");
    // The unkept ones have a limit too.
    let error = get(&store, &objects[17].wanted).unwrap_err();
    assert!(matches!(error.cause(), esker_store::Cause::Full { .. }), "{error}");
    assert!(error.may_pass());
    handles.clear();
    assert!(bytes(&store, &objects[17].wanted).unwrap() == objects[17].plain);
    rig.cache.settle();
    assert!(rig.cache.status().used <= 10 * UNIT);
}

/// An object larger than the whole cache is served, not kept, and evicts no other.
#[test]
fn an_object_larger_than_the_cache_is_refused() {
    let options = CacheOptions { hard_limit: UNIT * 12, ..CacheOptions { quota: UNIT * 10, ..roomy() } };
    for large in [object(1, 13), crate::rig::zlib(&vec![7; 65 << 20])] {
        let rig = Rig::with(engine(), options.clone());
        let small = object(2, 1);
        let store = rig.store(Shelf::new(&[&large, &small]));
        get(&store, &small.wanted).unwrap();
        assert!(bytes(&store, &large.wanted).unwrap() == large.plain);
        assert!(bytes(&store, &large.wanted).unwrap() == large.plain);
        assert_eq!((rig.cache.status().objects, rig.cache.status().unkept), (1, 2));
    }
}

/// Several holders: an object is held if any of them holds it; one that is gone holds nothing.
#[test]
fn an_object_held_by_any_holder_stays() {
    let rig = Rig::with(engine(), CacheOptions { quota: UNIT * 10, ..roomy() });
    let objects: Vec<_> = (0..14).map(|seed| object(seed, 1)).collect();
    let store = rig.store(Shelf::new(&objects.iter().collect::<Vec<_>>()));
    let kernels: Vec<Arc<Kernel>> = (0..3).map(|_| Arc::default()).collect();
    for (kernel, object) in kernels.iter().zip(&objects) {
        kernel.held.lock().unwrap().insert(object.wanted.key());
        let holder: Arc<dyn Holder> = kernel.clone();
        rig.cache.add_holder(Arc::downgrade(&holder));
    }
    let mut kernels = kernels;
    drop(kernels.remove(2));
    for object in &objects {
        get(&store, &object.wanted).unwrap();
        rig.cache.settle();
    }
    let there = |at: usize| esker_store::ObjectStore::cached(&store, &objects[at].wanted).is_some();
    assert!(there(0) && there(1), "held by one of two");
    assert!(!there(2), "its holder is gone");
    assert!(kernels.iter().all(|kernel| *kernel.asked.lock().unwrap() > 0));
}

/// Many threads read more than fits, some of it held; afterwards the account is exact and within the quota.
#[test]
fn the_accounting_is_exact_after_many_clients() {
    let options = CacheOptions { quota: UNIT * 20, descriptors: Some(8), ..roomy() };
    let rig = Rig::with(engine(), options);
    let objects: Arc<Vec<_>> = Arc::new((0..60).map(|seed| object(seed, seed % 3 + 1)).collect());
    let store = Arc::new(rig.store(Shelf::new(&objects.iter().collect::<Vec<_>>())));
    let threads: Vec<_> = (0..6u64)
        .map(|thread| {
            let (store, objects) = (store.clone(), objects.clone());
            std::thread::spawn(move || {
                let order = noise(thread, 200);
                for pick in order {
                    let object = &objects[usize::from(pick) % objects.len()];
                    let handle = get(&*store, &object.wanted).unwrap();
                    assert!(handle.read_all().unwrap() == object.plain);
                }
            })
        })
        .collect();
    for thread in threads {
        thread.join().unwrap();
    }
    rig.cache.settle();
    let status = rig.cache.status();
    assert_eq!(on_disk(rig.cache.folder()), (status.used, status.objects));
    assert!(status.used <= status.quota, "{status:?}");
    assert!(status.evicted > 0 && status.descriptors_peak <= 8, "{status:?}");
    assert_eq!((status.over_quota, status.disk_errors, status.damaged), (0, 0, 0));
}
