//! Damaged objects of each kind are refused, with a text that names the object and the cause, and are not
//! kept. None of them ever reaches a reader.

use std::fs;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use esker_format::object::{ObjectKind, ObjectName};
use esker_store::{
    Blame, Cache, CacheOptions, Callback, Cause, ObjectStore, Objects, Phase, Servers, StoreError, connect,
};
use esker_testkit::disk::{FaultDisk, Plan};
use esker_testkit::mirror::{Fault, Mirror};
use tempfile::TempDir;

use crate::rig::{
    Made, PATIENCE, Rig, Shelf, as_is, bytes, engine, engine_with, get, hasty, noise, roomy, zlib,
};

/// A mirror with one object, and a store that reads from it.
struct Stand {
    rig: Rig,
    mirror: Mirror,
    object: Made,
    path: String,
    _folder: TempDir,
}

impl Stand {
    fn with(rig: Rig, object: Made) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let mirror = Mirror::serve(folder.path());
        let path = format!("/repo/{}", object.wanted.name.path());
        mirror.put(&path, object.stored.clone());
        Self { rig, mirror, object, path, _folder: folder }
    }

    fn new() -> Self {
        Self::with(Rig::new(), zlib(&noise(3, 50_000)))
    }

    fn hasty() -> Self {
        Self::with(Rig::with(hasty(), roomy()), zlib(&noise(3, 50_000)))
    }

    /// Reads during a permanent fault and returns the error; afterwards the object is readable.
    fn refused(&self, fault: Fault) -> StoreError {
        let store = self.rig.open(&self.mirror.url("repo"));
        let path = self.path.clone();
        let rule = self.mirror.fault(move |asked| asked == path, fault);
        let error = bytes(&store, &self.object.wanted).unwrap_err();
        rule.assert_hit();
        assert!(error.to_string().contains("/some/file"), "{error}");
        assert!(error.to_string().contains(&self.object.wanted.name.to_string()), "{error}");
        assert_eq!(store.status().cache.objects, 0, "nothing damaged is kept");
        assert_eq!(store.status().errors.last().unwrap().1, error.full_text());
        rule.lift();
        assert_eq!(bytes(&store, &self.object.wanted).unwrap(), self.object.plain);
        error
    }
}

fn asks_past_caches(stand: &Stand) -> bool {
    let requests = stand.mirror.requests();
    let fresh = |request: &&esker_testkit::mirror::Request| {
        request.header("cache-control") == Some("no-cache") && request.header("pragma") == Some("no-cache")
    };
    requests.iter().filter(fresh).count() == 1 && requests[0].header("cache-control").is_none()
}

#[test]
fn a_flipped_byte_is_detected() {
    for at in [0, 25_000, u64::MAX] {
        let stand = Stand::new();
        let error = stand.refused(Fault::FlipByte(at));
        assert!(matches!(error.cause(), Cause::Corrupt { html: false, .. }), "{error}");
        assert_eq!((error.blame(), error.may_pass()), (Blame::Object, false));
        assert!(asks_past_caches(&stand));
    }
}

/// A damaged response is requested again without proxies' caches, which may be enough.
#[test]
fn a_byte_flipped_once_is_fetched_again() {
    let stand = Stand::new();
    let store = stand.rig.open(&stand.mirror.url("repo"));
    let rule = stand.mirror.fault_times(1, |_| true, Fault::FlipByte(100));
    assert_eq!(bytes(&store, &stand.object.wanted).unwrap(), stand.object.plain);
    rule.assert_hit();
    assert!(asks_past_caches(&stand));
}

#[test]
fn a_truncated_object_is_detected() {
    for keep in [0, 1, 49_000] {
        let error = Stand::new().refused(Fault::Truncate(keep));
        assert!(matches!(error.cause(), Cause::Corrupt { len, .. } if *len == keep), "{error}");
    }
}

#[test]
fn a_broken_connection_is_an_error() {
    for after in [0, 1, 49_000] {
        let stand = Stand::new();
        let error = stand.refused(Fault::CloseAfter(after));
        assert!(matches!(error.cause(), Cause::Broken(_)), "{error}");
        assert_eq!((error.blame(), error.may_pass()), (Blame::Host, true));
        assert!(stand.mirror.requests().len() >= 3, "a broken connection is tried again");
    }
}

#[test]
fn a_connection_broken_once_is_retried() {
    let stand = Stand::new();
    let store = stand.rig.open(&stand.mirror.url("repo"));
    let rule = stand.mirror.fault_times(1, |_| true, Fault::CloseAfter(100));
    assert_eq!(bytes(&store, &stand.object.wanted).unwrap(), stand.object.plain);
    rule.assert_hit();
}

#[test]
fn another_object_in_its_place_is_detected() {
    let stand = Stand::new();
    let other = zlib(b"another object, in order by itself");
    stand.mirror.put("/repo/other", other.stored.clone());
    let error = stand.refused(Fault::Swap("/repo/other".to_owned()));
    let expected = |cause: &Cause| {
        matches!(cause, Cause::Corrupt { expected, actual, .. }
            if *expected == stand.object.wanted.name.hash && *actual == other.wanted.name.hash)
    };
    assert!(expected(error.cause()), "{error}");
}

#[test]
fn a_missing_object_is_an_error() {
    let stand = Stand::new();
    let error = stand.refused(Fault::Missing);
    assert!(matches!(error.cause(), Cause::Missing { status } if status.contains("404")), "{error}");
    assert_eq!((error.blame(), error.may_pass()), (Blame::Host, false));
    let before_lifting = stand.mirror.requests().len() - 1;
    assert_eq!(before_lifting, 1, "what is missing is not asked for again");
}

#[test]
fn a_web_page_in_place_of_an_object_is_detected() {
    let error = Stand::new().refused(Fault::Html);
    assert!(matches!(error.cause(), Cause::Corrupt { html: true, .. }), "{error}");
    assert!(error.to_string().contains("HTML"), "{error}");
}

#[test]
fn errors_of_the_server_are_reported() {
    for (status, attempts) in [(500, 2), (503, 2), (429, 2), (403, 1), (400, 1)] {
        let stand = Stand::new();
        let error = stand.refused(Fault::Status(status));
        assert!(matches!(error.cause(), Cause::Status(got) if *got == status), "{error}");
        assert_eq!(stand.mirror.requests().len() - 1, attempts, "{status}");
    }
}

#[test]
fn a_long_requested_pause_is_an_error() {
    let stand = Stand::new();
    let error = stand.refused(Fault::RetryAfter(3600));
    assert!(
        matches!(error.cause(), Cause::Overloaded { status: 503, after } if after.as_secs() == 3600),
        "{error}"
    );
    assert_eq!((error.blame(), error.may_pass()), (Blame::Host, true));
    assert_eq!(stand.mirror.requests().len() - 1, 1);
}

#[test]
fn a_requested_pause_comes_before_the_retry() {
    let stand = Stand::new();
    let error = stand.refused(Fault::RetryAfter(1));
    assert!(matches!(error.cause(), Cause::Overloaded { .. }), "{error}");
    let requests = stand.mirror.requests();
    assert_eq!(requests.len() - 1, 2);
    assert!(requests[1].at - requests[0].at >= Duration::from_secs(1));
}

#[test]
fn redirects_are_reported_and_not_followed() {
    let error = Stand::new().refused(Fault::Status(302));
    assert!(matches!(error.cause(), Cause::Redirected { .. }), "{error}");
}

#[test]
fn an_object_above_its_limit_is_rejected() {
    // 4 KiB and an eighth more than the plain size may come; this is more.
    let stand = Stand::new();
    let error = stand.refused(Fault::Content(noise(9, 70_000)));
    assert!(matches!(error.cause(), Cause::TooLarge { .. }), "{error}");
    assert_eq!(error.blame(), Blame::Object);
}

/// The hash is right, but the catalog tells another size.
#[test]
fn an_object_whose_size_differs_from_the_catalog_is_rejected() {
    for object in [zlib(&noise(4, 10_000)), as_is(&noise(4, 10_000))] {
        for claimed in [9_999, 10_001] {
            let stand = Stand::with(Rig::new(), object.clone());
            let store = stand.rig.open(&stand.mirror.url("repo"));
            let wanted = object.wanted.clone().size(claimed);
            let error = bytes(&store, &wanted).unwrap_err();
            let too_large = object.wanted.compression == esker_format::compress::Compression::Stored
                && claimed == 9_999
                && matches!(error.cause(), Cause::TooLarge { limit: 9_999 });
            let wrong_size =
                matches!(error.cause(), Cause::WrongSize { expected, .. } if *expected == claimed);
            assert!(wrong_size || too_large, "{error}");
            assert_eq!(error.blame(), Blame::Object);
            // Neither is it given out from the cache under the wrong size.
            assert_eq!(bytes(&store, &object.wanted).unwrap(), object.plain);
            assert!(store.cached(&wanted).is_none());
            let error = bytes(&store, &wanted).unwrap_err();
            assert!(matches!(error.cause(), Cause::WrongSize { actual: 10_000, .. }), "{error}");
        }
    }
}

/// The hash is right, but what was published is no zlib stream.
#[test]
fn an_object_that_does_not_decompress_is_rejected() {
    let mut object = as_is(&noise(8, 1000));
    object.wanted.compression = esker_format::compress::Compression::Zlib;
    let stand = Stand::with(Rig::new(), object);
    let store = stand.rig.open(&stand.mirror.url("repo"));
    let error = bytes(&store, &stand.object.wanted).unwrap_err();
    assert!(matches!(error.cause(), Cause::Undecodable(_)), "{error}");
    assert_eq!(error.blame(), Blame::Object);
}

/// A small object that claims nothing and unpacks to more than it may.
#[test]
fn a_decompression_bomb_is_rejected() {
    let object = zlib(&vec![0; 80 << 20]);
    let stand = Stand::with(Rig::new(), object);
    let store = stand.rig.open(&stand.mirror.url("repo"));
    let mut wanted = stand.object.wanted.clone().limit(70 << 20);
    wanted.size = None;
    let error = bytes(&store, &wanted).unwrap_err();
    assert!(error.to_string().contains("73400320"), "{error}");
    assert_eq!(error.blame(), Blame::Object);
    assert_eq!(store.status().cache.used, 0);
}

#[test]
fn a_response_below_the_low_speed_limit_is_an_error() {
    let stand = Stand::hasty();
    let error = stand.refused(Fault::Slow(1000));
    assert!(matches!(error.cause(), Cause::TimedOut { phase: Phase::Transfer, .. }), "{error}");
    assert_eq!((error.blame(), error.may_pass()), (Blame::Host, true));
}

#[test]
fn a_response_that_stalls_is_an_error() {
    let error = Stand::hasty().refused(Fault::StallAfter(1000));
    assert!(matches!(error.cause(), Cause::TimedOut { phase: Phase::Transfer, .. }), "{error}");
}

#[test]
fn a_server_that_never_replies_is_an_error() {
    let error = Stand::hasty().refused(Fault::NoAnswer);
    assert!(matches!(error.cause(), Cause::TimedOut { phase: Phase::FirstByte, .. }), "{error}");
}

/// A server that keeps just above the low-speed limit is left where there is another, and borne where there is none.
#[test]
fn a_response_that_exceeds_the_deadline_is_an_error() {
    let engine = || {
        engine_with(|options| {
            options.http.attempt = Duration::from_secs(1);
            options.http.low_speed = 1;
            options.http.low_speed_window = Duration::from_secs(60);
            options.retry.attempts = 1;
        })
    };
    let stand = Stand::with(Rig::with(engine(), roomy()), zlib(&noise(3, 20_000)));
    let other = Mirror::serve(stand._folder.path());
    other.put(&stand.path, stand.object.stored.clone());
    // Five seconds: a client that a busy machine stops for a moment must not find all of it sent.
    let slow = stand.mirror.fault(|_| true, Fault::Slow(4000));
    let urls = vec![stand.mirror.url("repo"), other.url("repo")];
    let both = stand.rig.store(connect(&stand.rig.engine, Servers { urls, ..Servers::direct("") }).unwrap());
    assert_eq!(bytes(&both, &stand.object.wanted).unwrap(), stand.object.plain);
    slow.assert_hit();
    assert_eq!(other.count(|path| path == stand.path), 1, "it was left");
    let rig = Rig::with(engine(), roomy());
    assert_eq!(
        bytes(&rig.open(&stand.mirror.url("repo")), &stand.object.wanted).unwrap(),
        stand.object.plain
    );
    assert!(slow.hits() >= 2, "it was borne");
}

#[test]
fn a_refused_connection_is_an_error() {
    let stand = Stand::new();
    let store = stand.rig.open(&stand.mirror.url("repo"));
    let port = stand.mirror.port();
    stand.mirror.stop();
    let error = bytes(&store, &stand.object.wanted).unwrap_err();
    assert!(matches!(error.cause(), Cause::Unreachable(_)), "{error}");
    assert!(error.full_text().contains("refused"), "{}", error.full_text());
    assert!(error.to_string().contains(&format!("127.0.0.1:{port}")), "{error}");
    assert_eq!((error.blame(), error.may_pass()), (Blame::Host, true));
}

/// Flips a bit of each file below `objects/` without changing its times; returns how many there are.
fn rot(cache: &Path) -> usize {
    let folders = fs::read_dir(cache.join("objects")).unwrap();
    let files = folders.flat_map(|folder| fs::read_dir(folder.unwrap().path()).unwrap());
    let flip = |file: std::io::Result<fs::DirEntry>| {
        let path = file.unwrap().path();
        let mut content = fs::read(&path).unwrap();
        let modified = path.metadata().unwrap().modified().unwrap();
        content[1000] ^= 1;
        let file = fs::File::options().write(true).open(&path).unwrap();
        file.write_all_at(&content, 0).unwrap();
        file.set_modified(modified).unwrap();
    };
    files.map(flip).count()
}

/// > C2: A damaged object in the cache is found by a check and not given to a reader after that; a damaged catalog is found whenever it is opened, and fetched again.
#[test]
fn catalogs_that_rot_on_disk_are_fetched_again() {
    let (engine, folder) = (engine(), tempfile::tempdir().unwrap());
    let mut catalog = zlib(&noise(1, 50_000));
    catalog.wanted.name = ObjectName::new(catalog.wanted.name.hash, ObjectKind::Catalog);
    let objects = [catalog, zlib(&noise(2, 50_000)), as_is(&noise(3, 50_000))];
    let shelf = Shelf::new(&objects.iter().collect::<Vec<_>>());
    let open = || Cache::open(&engine, folder.path(), roomy()).unwrap();
    let cache = open();
    let reads = |cache: &Cache, objects: &[Made]| {
        let store = Objects::new(cache, shelf.clone());
        for object in objects {
            assert!(bytes(&store, &object.wanted).unwrap() == object.plain, "wrong bytes");
        }
        (shelf.asked().len(), cache.status().damaged)
    };
    assert_eq!(reads(&cache, &objects), (3, 0));
    // A catalog is compared again although its file is still open.
    assert_eq!(rot(folder.path()), 3);
    assert_eq!(reads(&cache, &objects[..1]), (4, 1));
    assert_eq!(reads(&cache, &objects[..1]), (4, 1));
    cache.close().unwrap();
    drop(cache);
    // After a clean stop.
    assert_eq!(rot(folder.path()), 3);
    let cache = open();
    assert!(!cache.status().opened_unclean);
    assert_eq!(reads(&cache, &objects[..1]), (5, 1));
    assert_eq!(reads(&cache, &objects[..1]), (5, 1), "it is read from the cache again");
}

/// Changes a file of the cache as a rotten disk, a crash or another program might.
type Damage = fn(&mut Vec<u8>);

/// Kinds of damage, with their names.
const DAMAGES: [(&str, Damage); 12] = [
    ("first byte", |file| file[0] ^= 1),
    ("middle", |file| {
        let middle = file.len() / 2;
        file[middle] ^= 0x80;
    }),
    ("last plain byte", |file| *file.iter_mut().rev().nth(64).unwrap() ^= 1),
    ("trailer, magic", |file| *file.iter_mut().rev().nth(63).unwrap() ^= 1),
    ("trailer, key", |file| *file.iter_mut().rev().nth(50).unwrap() ^= 1),
    ("trailer, digest", |file| *file.iter_mut().rev().nth(20).unwrap() ^= 1),
    ("trailer, sum", |file| *file.last_mut().unwrap() ^= 1),
    ("zeros", |file| file.fill(0)),
    ("cut in the middle", |file| file.truncate(file.len() / 2)),
    ("without a trailer", |file| file.truncate(file.len() - 64)),
    ("empty", Vec::clear),
    ("longer", |file| file.push(0)),
];

/// Returns the file of each object in a cache folder.
fn files(cache: &Path, objects: &[Made]) -> Vec<PathBuf> {
    let folders = || fs::read_dir(cache.join("objects")).unwrap().map(|folder| folder.unwrap().path());
    let all: Vec<_> =
        folders().flat_map(|folder| fs::read_dir(folder).unwrap()).map(|file| file.unwrap().path()).collect();
    let of = |object: &Made| {
        let hash = object.wanted.name.hash.hex();
        let is_its = |path: &&PathBuf| path.file_name().unwrap().to_str().unwrap().starts_with(&hash[2..]);
        all.iter().find(is_its).unwrap().clone()
    };
    objects.iter().map(of).collect()
}

/// > C29: Before its first use after the start of the process that writes the cache, and before its first use a day after the last comparison, all bytes of a cached object are compared with the digest of those that were verified; a damaged object is fetched again, and no program sees its bytes.
#[test]
fn contents_that_rot_on_disk_are_fetched_again() {
    // A size that is compared at once, and one of several pieces on the pool.
    for len in [60_000, 3 << 20] {
        let (engine, folder) = (engine(), tempfile::tempdir().unwrap());
        let objects: Vec<Made> = (0..DAMAGES.len() as u64).map(|seed| as_is(&noise(seed, len))).collect();
        let sound = as_is(&noise(99, len));
        let shelf = Shelf::new(&objects.iter().chain([&sound]).collect::<Vec<_>>());
        let open = || Cache::open(&engine, folder.path(), roomy()).unwrap();
        let cache = open();
        for object in objects.iter().chain([&sound]) {
            bytes(&Objects::new(&cache, shelf.clone()), &object.wanted).unwrap();
        }
        cache.close().unwrap();
        drop(cache);
        for (path, (_, damage)) in files(folder.path(), &objects).iter().zip(DAMAGES) {
            let mut content = fs::read(path).unwrap();
            damage(&mut content);
            fs::write(path, content).unwrap();
        }
        let cache = open();
        let status = cache.status();
        assert_eq!((status.opened_unclean, status.unchecked), (false, DAMAGES.len() as u64 + 1));
        let asked = shelf.asked().len();
        let store = Objects::new(&cache, shelf.clone());
        assert!(bytes(&store, &sound.wanted).unwrap() == sound.plain);
        assert_eq!(shelf.asked().len(), asked, "a sound one is not fetched");
        for (number, (object, (name, _))) in (1..).zip(objects.iter().zip(DAMAGES)) {
            assert!(store.cached(&object.wanted).is_none(), "{name}");
            assert!(bytes(&store, &object.wanted).unwrap() == object.plain, "{name}");
            assert_eq!(cache.status().damaged, number, "{name}");
            assert_eq!(shelf.asked().len(), asked + number as usize, "{name}: it is fetched once");
            assert!(bytes(&store, &object.wanted).unwrap() == object.plain, "{name}: from the cache");
        }
        assert_eq!(shelf.asked().len(), asked + objects.len());
        assert_eq!((cache.status().unchecked, cache.status().disk_errors), (0, 0));
    }
}

/// Without the server, a damaged object is an error, and no reader gets its bytes.
#[test]
fn a_damaged_object_is_an_error_without_its_server() {
    let (engine, folder) = (engine(), tempfile::tempdir().unwrap());
    let object = as_is(&noise(1, 3 << 20));
    let shelf = Shelf::new(&[&object]);
    let cache = Cache::open(&engine, folder.path(), roomy()).unwrap();
    bytes(&Objects::new(&cache, shelf), &object.wanted).unwrap();
    cache.close().unwrap();
    drop(cache);
    assert_eq!(rot(folder.path()), 1);
    let cache = Cache::open(&engine, folder.path(), roomy()).unwrap();
    let store = Objects::new(&cache, Shelf::new(&[]));
    assert!(bytes(&store, &object.wanted).is_err());
    assert_eq!(cache.status().damaged, 1);
}

/// Any number of requests for an object at once, and reading it ahead, cause one comparison.
#[test]
fn an_object_is_compared_once_for_all_its_readers() {
    const PIECES: u64 = 24;
    let (engine, folder) = (engine(), tempfile::tempdir().unwrap());
    let object = as_is(&noise(1, usize::try_from(PIECES).unwrap() << 20));
    let shelf = Shelf::new(&[&object]);
    let cache = Cache::open(&engine, folder.path(), roomy()).unwrap();
    let store = Objects::new(&cache, shelf.clone());
    // What was fetched here is not read again.
    let first = get(&store, &object.wanted).unwrap();
    assert!(store.cached(&object.wanted).is_some());
    drop((first, store));
    cache.close().unwrap();
    drop(cache);
    let disk = Arc::new(FaultDisk::new(folder.path(), Plan::Nothing));
    let cache = Cache::open(&engine, folder.path(), CacheOptions { disk: disk.clone(), ..roomy() }).unwrap();
    let store = Objects::new(&cache, shelf.clone());
    let before = disk.operations();
    assert!(store.read_ahead(&object.wanted, 0..1));
    assert!(store.holds(&object.wanted));
    let (told, outcomes) = std::sync::mpsc::channel();
    for _ in 0..20 {
        let told = told.clone();
        store.get(object.wanted.clone(), Callback::new(move |got| told.send(got).unwrap()));
        assert!(store.read_ahead(&object.wanted, 1..2));
    }
    for _ in 0..20 {
        assert_eq!(outcomes.recv().unwrap().unwrap().len(), PIECES << 20);
    }
    // Opening, the trailer and the pieces.
    assert_eq!(disk.operations() - before, 2 + PIECES);
    assert_eq!((shelf.asked().len(), cache.status().unchecked), (1, 0));
}

/// Large objects that are compared leave a thread of the pool for what other requests fetch, however slow the disk is.
#[test]
fn comparisons_of_large_objects_delay_no_fetched_object() {
    let (engine, folder) = (engine(), tempfile::tempdir().unwrap());
    let count = 2 * std::thread::available_parallelism().unwrap().get() as u64 + 2;
    let large: Vec<Made> = (0..count).map(|seed| as_is(&noise(seed, 300_000))).collect();
    let other = as_is(&noise(99, 300_000));
    let shelf = Shelf::new(&large.iter().chain([&other]).collect::<Vec<_>>());
    let cache = Cache::open(&engine, folder.path(), roomy()).unwrap();
    for object in &large {
        bytes(&Objects::new(&cache, shelf.clone()), &object.wanted).unwrap();
    }
    cache.close().unwrap();
    drop(cache);
    let disk = Arc::new(FaultDisk::new(folder.path(), Plan::Nothing));
    let cache = Cache::open(&engine, folder.path(), CacheOptions { disk: disk.clone(), ..roomy() }).unwrap();
    let store = Objects::new(&cache, shelf);
    let (told, outcomes) = std::sync::mpsc::channel();
    let ask = |object: &Made, told: std::sync::mpsc::Sender<_>| {
        let plain = object.plain.clone();
        let done = move |got: Result<esker_store::Handle, StoreError>| {
            let is_right = got.is_ok_and(|handle| handle.read_all().unwrap() == plain);
            // The test may have failed and ended.
            let _ = told.send(is_right);
        };
        store.get(object.wanted.clone(), Callback::new(done));
    };
    let held = disk.hold_reads();
    large.iter().for_each(|object| ask(object, told.clone()));
    let (fetched, arrived) = std::sync::mpsc::channel();
    ask(&other, fetched);
    assert_eq!(arrived.recv_timeout(PATIENCE), Ok(true), "it waited for the comparisons");
    assert!(outcomes.try_recv().is_err(), "the disk was not held");
    drop(held);
    assert!((0..count).all(|_| outcomes.recv().unwrap()));
}
