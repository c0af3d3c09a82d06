//! Lower cache folders: another client's, and shared ones of nodes.

use std::collections::HashSet;
use std::fs::{self, Permissions};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

use esker_format::compress::{Compression, decompress};
use esker_testkit::fixture::{self, Fixture, TAGS};
use esker_testkit::tree_scan::{differences, scan_tree};

use crate::test_env::{Mounted, TestEnv, words};
use crate::test_user::TestUser;

const NEWEST: &str = TAGS[2];
/// Fewer objects than that every node fetches for itself.
const FOR_ALL: usize = 10;

/// Leaves all objects of the repository as a client of the reference does, for this world's person.
fn leave_stock_cache(world: &TestEnv) -> PathBuf {
    let cache = world.path("home/stock");
    let data = world.repository.path().join("data");
    for two in fs::read_dir(&data).expect("the objects").map(|entry| entry.expect("an entry").path()) {
        let folder = cache.join(two.file_name().expect("a name"));
        if folder.file_name().is_none_or(|name| name.len() != 2) {
            continue;
        }
        fs::create_dir_all(&folder).expect("a folder");
        for object in fs::read_dir(&two).expect("objects").map(|entry| entry.expect("an entry").path()) {
            let name = object.file_name().and_then(|name| name.to_str()).expect("a name").to_owned();
            let kind = name.trim_start_matches(|c: char| !c.is_ascii_uppercase());
            let stored = fs::read(&object).expect("an object");
            let is_plain = world.fixture() == fixture::SHAKE && ["", "P"].contains(&kind);
            let plain = match is_plain {
                true => stored,
                false => decompress(&stored, Compression::Zlib, None, 1 << 30).expect("a zlib stream"),
            };
            fs::write(folder.join(name.trim_end_matches(kind)), plain).expect("writing an object");
        }
    }
    give(&cache, world.person);
    // As the reference makes its folder.
    fs::set_permissions(&cache, Permissions::from_mode(0o770)).expect("a mode");
    cache
}

fn give(path: &Path, person: TestUser) {
    std::os::unix::fs::chown(path, Some(person.uid), Some(person.gid)).expect("giving a file away");
    if path.is_dir() {
        fs::set_permissions(path, Permissions::from_mode(0o700)).expect("a mode");
        fs::read_dir(path)
            .expect("a folder")
            .for_each(|entry| give(&entry.expect("an entry").path(), person));
    }
}

/// Compares the tree of a mount with the listing of the reference.
#[track_caller]
pub(crate) fn reads_exactly(world: &TestEnv, mounted: &Mounted<'_>) {
    let found = mounted.does(|| scan_tree(&mounted.path("")));
    let complaints = differences(&world.fixture().listing(NEWEST), &found, world.person.ownership());
    assert!(complaints.is_empty(), "{}", complaints.join("\n  "));
}

fn objects_asked_for(world: &TestEnv) -> usize {
    world.mirror.count(|path| path.contains("/data/"))
}

fn objects_fetched(world: &TestEnv) -> Vec<String> {
    let requests = world.mirror.requests().into_iter().map(|request| request.path);
    requests.filter(|path| path.contains("/data/")).collect()
}

/// Returns the number of objects in a folder that is laid out as a cache.
fn objects_below(folder: &Path) -> usize {
    let entries =
        |path: &Path| fs::read_dir(path).into_iter().flatten().map(|entry| entry.expect("an entry").path());
    entries(folder).map(|two| entries(&two).count()).sum()
}

fn text(path: &Path) -> &str {
    path.to_str().expect("a path in UTF-8")
}

/// > C20: Over the cache that a CernVM-FS client left, adopted with `--lower`, a mount with an empty cache of its own fetches only the head of the repository.
#[test]
fn a_change_of_clients_keeps_the_cached_objects() {
    // Every hash and compression, and all users.
    let others = TestUser::all().into_iter().map(|person| (person, fixture::RMD));
    for (person, fixture) in
        [fixture::FULL, fixture::SHAKE].map(|one| (TestUser::ordinary(), one)).into_iter().chain(others)
    {
        let world = TestEnv::new(person, fixture);
        let stock = leave_stock_cache(&world);
        let mounted = world.mount(&["--lower", text(&stock)]);
        reads_exactly(&world, &mounted);
        assert_eq!(objects_asked_for(&world), 0, "{} was fetched", fixture.name());
    }
}

/// > C21: A file in a folder below the cache that does not match its name, whatever wrote it, is never read: the object is fetched instead.
#[test]
fn objects_of_a_lower_folder_are_verified() {
    for option in ["--lower", "--alien"] {
        let world = TestEnv::new(TestUser::ordinary(), fixture::FULL);
        let stock = leave_stock_cache(&world);
        let mut spoilt = 0;
        for folder in fs::read_dir(&stock).expect("the folder").map(|entry| entry.expect("an entry").path()) {
            for object in fs::read_dir(&folder).expect("objects").map(|entry| entry.expect("an entry").path())
            {
                let mut plain = fs::read(&object).expect("an object");
                if let Some(byte) = plain.first_mut() {
                    *byte = byte.wrapping_add(1);
                    fs::write(&object, plain).expect("spoiling");
                    spoilt += 1;
                }
            }
        }
        let mounted = world.mount(&[option, text(&stock)]);
        reads_exactly(&world, &mounted);
        let refused = mounted.status()["cache"]["lower"]["refused"].as_u64();
        assert!(refused.is_some_and(|refused| (50..=spoilt).contains(&refused)), "{refused:?} of {spoilt}");
    }
}

/// > C22: A folder that others may write to is not adopted; the message names it.
#[test]
fn a_folder_that_others_may_write_to_is_not_adopted() {
    let world = TestEnv::new(TestUser::ordinary(), fixture::RMD);
    let stock = leave_stock_cache(&world);
    fs::set_permissions(&stock, Permissions::from_mode(0o777)).expect("a mode");
    let refused = world.try_mount(&["--lower", text(&stock)]).err().expect("refusing");
    let said = words(&refused);
    assert!(said.contains(text(&stock)) && said.contains("may be written to by other users"), "{said}");
    let missing = world.try_mount(&["--lower", "/nowhere"]).err().expect("refusing");
    assert!(words(&missing).contains("there is no such folder"), "{}", words(&missing));
}

/// > C23: Nodes that share a folder with `--alien` read from it what another one fetched and put there, and each verifies it; what two miss at once both fetch.
#[test]
fn nodes_share_a_folder() {
    let fixture: Fixture = fixture::FULL;
    let worlds = [TestEnv::new(TestUser::ordinary(), fixture), TestEnv::new(TestUser::ordinary(), fixture)];
    let shared = worlds[0].path("home/shared");
    // Another process of the same user: two nodes of one cluster.
    fs::set_permissions(worlds[0].path("home"), Permissions::from_mode(0o755)).expect("a mode");
    let both: Vec<_> = worlds.iter().map(|world| world.mount(&["--alien", text(&shared)])).collect();
    std::thread::scope(|scope| {
        for (world, mounted) in worlds.iter().zip(&both) {
            scope.spawn(|| reads_exactly(world, mounted));
        }
    });
    // Objects are stored when the worker is idle, and unmounting doesn't wait for that. An object that both fetched at
    // once is stored by one of them, or by both, one over the other.
    let fetched: HashSet<String> = worlds.iter().flat_map(objects_fetched).collect();
    assert!(fetched.len() > 100, "{} objects", fetched.len());
    both[0].wait_until("giving to the shared folder", |_| objects_below(&shared) + FOR_ALL > fetched.len());
    let given = |mounted: &Mounted<'_>| mounted.status()["cache"]["lower"]["given"].as_u64().unwrap_or(0);
    let asked: usize = worlds.iter().map(objects_asked_for).sum();
    assert!(both.iter().map(given).sum::<u64>() <= asked as u64);
    drop(both);
    // A third node, later.
    let third = TestEnv::new(TestUser::ordinary(), fixture);
    let mounted = third.mount(&["--alien", text(&shared)]);
    reads_exactly(&third, &mounted);
    assert!(objects_asked_for(&third) < FOR_ALL, "{} objects were fetched", objects_asked_for(&third));
}
