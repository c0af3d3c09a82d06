//! Folders that others filled, asked before the network.

use std::fs::{self, Permissions};
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::{Path, PathBuf};
use std::sync::{Arc, mpsc};
use std::time::Duration;

use esker_format::compress::Compression;
use esker_format::hash::{ContentHash, HashAlgorithm};
use esker_format::object::{ObjectKind, ObjectName};
use esker_format::write::encode::FastZlib;
use esker_store::{
    Cache, CacheOptions, Callback, CancelToken, Cause, Lower, LowerForm, ObjectRequest, ObjectStore, Objects,
    StockZlib, Warmed, make_alien,
};
use esker_testkit::waiting::until;
use tempfile::TempDir;

use crate::rig::{Made, PATIENCE, Rig, Shelf, as_is, bytes, engine, noise, roomy};

/// Text that compresses, different for each seed.
fn text(seed: u64, len: usize) -> Vec<u8> {
    noise(seed, len).iter().map(|byte| b'a' + byte % 8).collect()
}

/// Stored as the reference stores it.
fn stock(plain: &[u8]) -> Made {
    let mut stored = Vec::new();
    StockZlib::new().unwrap().encode(plain, &mut stored).unwrap();
    made_of(plain, stored)
}

/// Stored as our publisher stores it.
fn fast(plain: &[u8]) -> Made {
    let mut stored = Vec::new();
    FastZlib::new().encode(plain, &mut stored);
    made_of(plain, stored)
}

fn made_of(plain: &[u8], stored: Vec<u8>) -> Made {
    let name = ObjectName::new(ContentHash::of(HashAlgorithm::Rmd160, &stored), ObjectKind::File);
    let wanted = ObjectRequest::new(name, Compression::Zlib, "/some/file").size(plain.len() as u64);
    Made { plain: plain.to_vec(), stored, wanted }
}

fn place(folder: &Path, made: &Made) -> PathBuf {
    let name = made.wanted.name.hash.to_string();
    folder.join(&name[..2]).join(&name[2..])
}

/// A folder as a client of the reference leaves it.
fn stock_cache(objects: &[Made]) -> TempDir {
    let folder = tempfile::tempdir().unwrap();
    // As the reference makes it.
    fs::set_permissions(folder.path(), Permissions::from_mode(0o770)).unwrap();
    for made in objects {
        let path = place(folder.path(), made);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::set_permissions(path.parent().unwrap(), Permissions::from_mode(0o700)).unwrap();
        fs::write(&path, &made.plain).unwrap();
        fs::set_permissions(&path, Permissions::from_mode(0o600)).unwrap();
    }
    folder
}

fn over(folder: &Path, form: LowerForm) -> CacheOptions {
    CacheOptions { lower: vec![Lower { folder: folder.to_owned(), form, root: 0 }], ..roomy() }
}

fn made() -> Vec<Made> {
    let mut all: Vec<Made> = (0..8).map(|seed| stock(&text(seed, 3000 * seed as usize))).collect();
    all.extend((20..24).map(|seed| fast(&text(seed, 5000))));
    all.push(as_is(&noise(30, 4000)));
    all
}

/// With one that is too large to be proven in one piece.
fn made_and_large() -> Vec<Made> {
    let mut all = made();
    all.push(stock(&text(40, (16 << 20) + 12_345)));
    all
}

#[test]
fn a_cache_of_the_reference_is_read_without_the_network() {
    let objects = made_and_large();
    let folder = stock_cache(&objects);
    let rig = Rig::with(engine(), over(folder.path(), LowerForm::Adopted));
    let shelf = Shelf::new(&[]);
    let store = rig.store(shelf.clone());
    for object in &objects {
        assert_eq!(bytes(&store, &object.wanted).unwrap(), object.plain);
    }
    assert_eq!(shelf.asked().len(), 0, "something was fetched");
    let lower = store.status().cache.lower;
    assert_eq!((lower.found, lower.refused), (objects.len() as u64, 0));
    // They are copies: the folder is not needed any more.
    fs::remove_dir_all(folder.path()).unwrap();
    for object in &objects {
        assert_eq!(bytes(&store, &object.wanted).unwrap(), object.plain);
    }
}

#[test]
fn prefetch_uses_the_lower_caches() {
    let objects = made();
    let folder = stock_cache(&objects);
    let rig = Rig::with(engine(), over(folder.path(), LowerForm::Adopted));
    let shelf = Shelf::new(&[]);
    let store = rig.store(shelf.clone());
    let token = CancelToken::new();
    for object in &objects {
        let warmed = esker_store::Callback::wait(|done| store.warm(object.wanted.clone(), &token, done));
        assert_eq!(warmed.unwrap(), Warmed::Here);
        assert!(store.cached(&object.wanted).is_some());
    }
    assert_eq!(shelf.asked().len(), 0);
}

/// A name, and the change that it makes to a file.
type Spoil = (&'static str, fn(&Path));

/// Every way in which a file of an adopted folder may not be what its name says.
#[test]
fn wrong_files_in_a_lower_cache_are_never_served() {
    let small = made();
    let spoil: [Spoil; 7] = [
        ("another byte", |path| {
            let mut plain = fs::read(path).unwrap();
            match plain.last_mut() {
                Some(byte) => *byte ^= 1,
                None => plain.push(b'x'),
            }
            fs::write(path, plain).unwrap();
        }),
        ("cut", |path| {
            let plain = fs::read(path).unwrap();
            fs::write(path, &plain[..plain.len() / 2]).unwrap();
            if plain.len() < 2 {
                fs::write(path, b"longer").unwrap();
            }
        }),
        ("longer", |path| fs::write(path, [fs::read(path).unwrap(), b"more".to_vec()].concat()).unwrap()),
        ("zeros, as a crash leaves them", |path| {
            let len = fs::metadata(path).unwrap().len();
            fs::write(path, vec![0; len.max(1) as usize]).unwrap();
        }),
        ("a link to what it should be", |path| {
            let elsewhere = path.with_extension("moved");
            fs::rename(path, &elsewhere).unwrap();
            symlink(elsewhere, path).unwrap();
        }),
        ("a folder", |path| {
            fs::remove_file(path).unwrap();
            fs::create_dir(path).unwrap();
        }),
        ("a pipe", |path| {
            fs::remove_file(path).unwrap();
            let mode = rustix::fs::Mode::from_raw_mode(0o600);
            rustix::fs::mknodat(rustix::fs::CWD, path, rustix::fs::FileType::Fifo, mode, 0).unwrap();
        }),
    ];
    for form in [LowerForm::Adopted, LowerForm::Alien] {
        for (number, (what, spoil)) in spoil.iter().enumerate() {
            let objects = if number == 0 { made_and_large() } else { small.clone() };
            let folder = stock_cache(&objects);
            objects.iter().for_each(|object| spoil(&place(folder.path(), object)));
            let rig = Rig::with(engine(), over(folder.path(), form));
            let shelf = Shelf::new(&objects.iter().collect::<Vec<_>>());
            let store = rig.store(shelf.clone());
            for object in &objects {
                assert_eq!(bytes(&store, &object.wanted).unwrap(), object.plain, "{what}");
            }
            assert_eq!(store.status().cache.lower.refused, objects.len() as u64, "{what}");
            assert_eq!(shelf.asked().len(), objects.len(), "{what}");
        }
    }
}

#[test]
fn a_folder_that_others_may_write_to_is_refused_by_name() {
    let folder = stock_cache(&made());
    fs::set_permissions(folder.path(), Permissions::from_mode(0o777)).unwrap();
    let own = tempfile::tempdir().unwrap();
    let error = Cache::open(&engine(), own.path(), over(folder.path(), LowerForm::Adopted)).err().unwrap();
    assert!(matches!(error.cause(), Cause::NotPrivate { .. }), "{error}");
    let named = fs::canonicalize(folder.path()).unwrap();
    assert!(error.to_string().contains(&named.display().to_string()), "{error}");
    assert!(error.to_string().contains("may be written to by other users"), "{error}");
}

/// An own cache has digests, which prove nothing against malice: it must be its owner's alone.
#[test]
fn a_cache_of_esker_is_adopted_if_only_its_owner_may_write_to_it() {
    let objects = made_and_large();
    let first = Rig::new();
    let shelf = Shelf::new(&objects.iter().collect::<Vec<_>>());
    let store = first.store(shelf.clone());
    objects.iter().for_each(|object| drop(bytes(&store, &object.wanted).unwrap()));
    drop(store);
    let below = first.cache.folder().to_owned();
    first.cache.close().unwrap();
    let asked = shelf.asked().len();

    let second = Rig::with(engine(), over(&below, LowerForm::Adopted));
    let store = second.store(shelf.clone());
    for object in &objects {
        assert_eq!(bytes(&store, &object.wanted).unwrap(), object.plain);
    }
    assert_eq!(shelf.asked().len(), asked);
    // Damage is found out.
    for folder in fs::read_dir(below.join("objects")).unwrap() {
        for file in fs::read_dir(folder.unwrap().path()).unwrap() {
            let path = file.unwrap().path();
            let mut bytes = fs::read(&path).unwrap();
            bytes[0] ^= 1;
            fs::write(&path, bytes).unwrap();
        }
    }
    let third = Rig::with(engine(), over(&below, LowerForm::Adopted));
    let store = third.store(shelf.clone());
    for object in &objects {
        assert_eq!(bytes(&store, &object.wanted).unwrap(), object.plain);
    }
    assert_eq!(shelf.asked().len(), asked + objects.len());

    fs::set_permissions(&below, Permissions::from_mode(0o770)).unwrap();
    let own = tempfile::tempdir().unwrap();
    let refused = Cache::open(&engine(), own.path(), over(&below, LowerForm::Adopted)).err().unwrap();
    assert!(matches!(refused.cause(), Cause::NotPrivate { .. }), "{refused}");
}

/// Requests that wait would wait for ever: no watchdog looks after them any more.
#[test]
fn requests_waiting_for_a_lower_folder_finish_when_the_cache_closes() {
    let objects: Vec<_> = (0..40).map(|seed| stock(&text(seed, 300_000))).collect();
    let folder = stock_cache(&objects);
    let rig = Rig::with(engine(), over(folder.path(), LowerForm::Adopted));
    let store = rig.store(Shelf::new(&objects.iter().collect::<Vec<_>>()));
    let (told, answers) = mpsc::channel();
    for object in &objects {
        let told = told.clone();
        let answer = Callback::new(move |got| told.send(got.map(|_| ())).unwrap());
        // Far more than there are threads to prove them.
        store.get(object.wanted.clone(), answer);
    }
    rig.cache.close().unwrap();
    for _ in &objects {
        answers.recv_timeout(Duration::from_secs(60)).expect("an answer").unwrap();
    }
}

/// A node that uses a shared folder.
fn node(folder: &Path, shelf: &Arc<Shelf>) -> (Rig, Objects) {
    let rig = Rig::with(engine(), over(folder, LowerForm::Alien));
    let store = rig.store(shelf.clone());
    (rig, store)
}

fn wait_until(what: &str, done: impl Fn() -> bool) {
    assert!(until(PATIENCE, done), "{what} did not happen");
}

#[test]
fn nodes_that_share_a_folder_fetch_for_each_other() {
    let objects = made();
    let shared = tempfile::tempdir().unwrap();
    let alien = shared.path().join("alien");
    make_alien(&alien).unwrap();
    let shelf = Shelf::new(&objects.iter().collect::<Vec<_>>());
    let (_one, first) = node(&alien, &shelf);
    objects.iter().for_each(|object| assert_eq!(bytes(&first, &object.wanted).unwrap(), object.plain));
    wait_until("giving", || first.status().cache.lower.given == objects.len() as u64);
    let asked = shelf.asked().len();
    let (_two, second) = node(&alien, &shelf);
    objects.iter().for_each(|object| assert_eq!(bytes(&second, &object.wanted).unwrap(), object.plain));
    assert_eq!(shelf.asked().len(), asked, "the second node fetched");
    // As the reference has it, for its group.
    for object in &objects {
        let path = place(&alien, object);
        assert_eq!(fs::read(&path).unwrap(), object.plain);
        assert_eq!(fs::metadata(&path).unwrap().permissions().mode() & 0o7777, 0o660);
        assert_eq!(fs::metadata(path.parent().unwrap()).unwrap().permissions().mode() & 0o7777, 0o770);
    }
    assert_eq!(fs::read_dir(alien.join("txn")).unwrap().count(), 0, "something unfinished is left");
}

#[test]
fn concurrent_writers_and_corruption_in_a_shared_folder_do_no_harm() {
    let objects = made();
    let shared = tempfile::tempdir().unwrap();
    let alien = shared.path().join("alien");
    make_alien(&alien).unwrap();
    let shelf = Shelf::new(&objects.iter().collect::<Vec<_>>());
    let nodes: Vec<_> = (0..3).map(|_| node(&alien, &shelf)).collect();
    std::thread::scope(|scope| {
        for (_, store) in &nodes {
            scope.spawn(|| {
                for object in &objects {
                    assert_eq!(bytes(store, &object.wanted).unwrap(), object.plain);
                }
            });
        }
        scope.spawn(|| {
            for object in objects.iter().cycle().take(objects.len() * 3) {
                // It may not be there yet.
                let _ = fs::write(place(&alien, object), b"something else");
            }
        });
    });
}

#[test]
fn a_corrupt_object_in_a_shared_folder_is_fetched_and_repaired() {
    let objects = made();
    let shared = tempfile::tempdir().unwrap();
    let shelf = Shelf::new(&objects.iter().collect::<Vec<_>>());
    let (_one, first) = node(shared.path(), &shelf);
    objects.iter().for_each(|object| assert_eq!(bytes(&first, &object.wanted).unwrap(), object.plain));
    wait_until("giving", || first.status().cache.lower.given == objects.len() as u64);
    let spoilt = &objects[3];
    fs::write(place(shared.path(), spoilt), vec![b'x'; spoilt.plain.len()]).unwrap();
    let (_next, second) = node(shared.path(), &shelf);
    assert_eq!(bytes(&second, &spoilt.wanted).unwrap(), spoilt.plain);
    assert_eq!(second.status().cache.lower.refused, 1);
    wait_until("mending", || fs::read(place(shared.path(), spoilt)).unwrap() == spoilt.plain);
}
