//! `esker cache`: with and without a process that writes the cache.

use std::fs;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

use esker_testkit::fixture::{self, Fixture};
use serde_json::Value;

use crate::test_env::{TestEnv, words};
use crate::test_user::TestUser;

const FIXTURE: Fixture = fixture::RMD;

/// Calls `esker cache …` on the world's cache and reads the JSON it prints.
fn cache(world: &TestEnv, arguments: &[&str]) -> Value {
    let output = call(world, arguments);
    assert!(output.status.success(), "{arguments:?}: {}", words(&output));
    serde_json::from_slice(&output.stdout).unwrap_or(Value::Null)
}

fn call(world: &TestEnv, arguments: &[&str]) -> std::process::Output {
    let mut command = world.esker(&["cache"]);
    command.args(arguments).arg("--cache").arg(world.cache());
    command.output().expect("running esker")
}

/// Calls one that needs the repository, too.
fn at(world: &TestEnv, command: &str, path: &str) -> Value {
    let (place, key) = (format!("{}:{path}", world.url()), world.path("key.pub"));
    cache(world, &[command, &place, "--json", "--public-key", key.to_str().expect("a path")])
}

fn number(value: &Value, field: &str) -> u64 {
    value[field].as_u64().unwrap_or_else(|| panic!("no {field} in {value}"))
}

/// Returns a file that is stored as one object, its content and the object's path in the cache.
fn a_file(world: &TestEnv) -> (String, PathBuf) {
    let contents = world.repository.contents("v3");
    let entries =
        FIXTURE.listing("v3").into_iter().filter(|entry| entry.is_file() && entry.size > Some(1000));
    let (path, object) = entries
        .filter_map(|entry| {
            let whole = contents.files.get(&entry.path)?.whole.clone()?;
            Some((String::from_utf8(entry.path).ok()?, whole))
        })
        .next()
        .expect("a file");
    // `data/ab/cdef…` in the repository.
    let place = object.rsplit_once("data/").map_or(object.as_str(), |(_, rest)| rest);
    (path, world.cache().join("objects").join(place))
}

fn with_suffix(place: &Path) -> PathBuf {
    let (folder, name) = (place.parent().expect("a folder"), place.file_name().expect("a name"));
    let name = name.to_str().expect("text");
    let found = fs::read_dir(folder).expect("a folder").map(|entry| entry.expect("an entry").path());
    found
        .into_iter()
        .find(|path| path.file_name().is_some_and(|found| found.to_string_lossy().starts_with(name)))
        .unwrap_or_else(|| panic!("{} is not in the cache", place.display()))
}

/// Looking at a folder doesn't make it a cache.
#[test]
fn a_folder_that_is_no_cache_stays_unchanged() {
    let world = TestEnv::new(TestUser::ordinary(), FIXTURE);
    let folder = world.cache();
    world.person.does(|| {
        fs::create_dir(&folder).expect("a folder");
        fs::write(folder.join("thesis"), "two years of work").expect("a file");
        fs::create_dir(folder.join("objects")).expect("a folder, as in that of git");
        fs::create_dir(folder.join("images")).expect("a folder, as in many");
    });
    let commands: [&[&str]; 7] = [
        &["status"],
        &["list"],
        &["check"],
        &["check", "--remove"],
        &["evict", "--to", "1M"],
        &["wipe", "--pinned", "--heads"],
        &["unpin", "rmd.test:/"],
    ];
    for command in commands {
        let output = call(&world, command);
        assert_eq!(output.status.code(), Some(1), "{command:?}: {}", words(&output));
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(said.contains("there is no cache") && said.contains("--cache"), "{command:?}: {said}");
        let left: Vec<_> = fs::read_dir(&folder).expect("a folder").collect();
        assert_eq!(left.len(), 3, "{command:?} left {left:?}");
    }
}

#[test]
fn preloaded_files_are_not_fetched_again_and_pinned_ones_stay() {
    for (person, mounted) in TestUser::all().into_iter().flat_map(|person| [(person, true), (person, false)])
    {
        let world = TestEnv::new(person, FIXTURE);
        let mount = mounted.then(|| world.mount(&["--no-prefetch"]));
        let loaded = at(&world, "preload", "/");
        assert!(number(&loaded, "files") > 20 && number(&loaded, "fetched_objects") > 20, "{loaded}");
        let again = at(&world, "preload", "/");
        assert_eq!(number(&again, "fetched_objects"), 0, "{again}");
        assert_eq!(again["objects"], loaded["objects"]);

        let (path, _) = a_file(&world);
        let pinned = at(&world, "pin", &path);
        assert_eq!(number(&pinned, "files"), 1);
        let status = cache(&world, &["status", "--json"]);
        assert_eq!(status["pins"][0]["name"], format!("{}:{path}", FIXTURE.name()));
        assert_eq!(status["writer"].is_u64(), mounted, "{status}");

        let wiped = cache(&world, &["wipe", "--json"]);
        assert!(number(&wiped, "objects") > 20 && number(&wiped, "pinned") > 0, "{wiped}");
        let left = cache(&world, &["list", "--json"]);
        let left = left.as_array().expect("a list");
        assert!(left.iter().any(|object| object["pinned"] == true), "{left:?}");
        // A certificate is fetched again: heads need it, not the pinned file.
        let fetched = |path: &str| path.contains("/data/") && !path.ends_with('X');
        let objects = world.mirror.count(fetched);
        let again = at(&world, "pin", &path);
        assert_eq!(number(&again, "fetched_objects"), 0, "{again}");
        assert_eq!(world.mirror.count(fetched), objects);

        let name = format!("{}:{path}", world.url());
        cache(&world, &["unpin", &name]);
        let evicted = at(&world, "evict", &path);
        assert!(number(&evicted, "objects") >= 1 && number(&evicted, "pinned") == 0, "{evicted}");
        let unknown = call(&world, &["unpin", &name]);
        assert_eq!(unknown.status.code(), Some(1), "{}", words(&unknown));
        drop(mount);
    }
}

/// > C2: A damaged object in the cache is found by a check and not given to a reader after that; a damaged catalog is found whenever it is opened, and fetched again.
#[test]
fn a_check_finds_damage_and_removes_it_only_on_request() {
    for mounted in [true, false] {
        let world = TestEnv::new(TestUser::ordinary(), FIXTURE);
        let mount = mounted.then(|| world.mount(&["--no-prefetch"]));
        at(&world, "preload", "/");
        let sound = cache(&world, &["check", "--json"]);
        assert_eq!(sound["damaged"], Value::Array(vec![]));
        assert_eq!(sound["objects"], sound["objects_total"]);
        let (path, place) = a_file(&world);
        let file = with_suffix(&place);
        let opened = fs::File::options().write(true).open(&file).expect("the cached file");
        opened.write_all_at(b"damage!", 3).expect("damaging");
        for (options, removed) in
            [(["check", "--json"].as_slice(), false), (&["check", "--json", "--remove"], true)]
        {
            let output = call(&world, options);
            assert_eq!(output.status.code(), Some(4), "{}", words(&output));
            let found: Value = serde_json::from_slice(&output.stdout).expect("JSON");
            assert_eq!(found["damaged"].as_array().map(Vec::len), Some(1), "{found}");
            assert_eq!(found["damaged"][0]["removed"], removed, "{found}");
            assert_eq!(file.exists(), !removed);
        }
        assert_eq!(cache(&world, &["check", "--json"])["damaged"], Value::Array(vec![]));
        let key = world.path("key.pub");
        let cat = world
            .esker(&["cat", &format!("{}:{path}", world.url()), "--public-key"])
            .arg(&key)
            .arg("--cache")
            .arg(world.cache())
            .output()
            .expect("running esker");
        assert!(cat.status.success() && !cat.stdout.windows(7).any(|some| some == b"damage!"));
        drop(mount);
    }
}

#[test]
fn a_wipe_keeps_heads_unless_requested() {
    let world = TestEnv::new(TestUser::ordinary(), FIXTURE);
    at(&world, "preload", "/");
    let heads = || fs::read_dir(world.cache().join("heads")).expect("the heads").count();
    cache(&world, &["wipe", "--json"]);
    assert_eq!(number(&cache(&world, &["status", "--json"]), "objects"), 0);
    assert!(heads() > 0);
    cache(&world, &["wipe", "--heads", "--json"]);
    assert_eq!(heads(), 0);
    let nowhere = world.esker(&["cache", "status", "--cache", "/nowhere"]).output().expect("running esker");
    assert!(String::from_utf8_lossy(&nowhere.stderr).contains("there is no cache at /nowhere"));
}
