//! Profiles: a command's reads are recorded, published as bundles, and prefetched. So are earlier reads on this
//! machine.

use std::collections::BTreeSet;
use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;
use std::process::Output;

use esker_testkit::mirror::Mirror;
use serde_json::Value;

use crate::publishing::{NAME, Workshop};
use crate::test_env::{Mounted, TestEnv, words};
use crate::test_user::TestUser;

/// Files that the tool reads after itself, in this order. The endings differ, so that no file is a candidate because
/// of another.
const READ: [&str; 4] = ["data/z.one", "nested/deep/a.two", "lib/m.three", "large.four"];

/// Makes a program that reads files all over the tree, among others that it doesn't read.
fn make_tree(top: &Path) {
    for folder in ["bin", "data", "nested/deep", "lib", "other"] {
        fs::create_dir_all(top.join(folder)).expect("folders");
    }
    fs::write(top.join("nested/.cvmfscatalog"), "").expect("a file");
    let files = READ.map(|file| format!("/cvmfs/{NAME}/{file}")).join(" ");
    fs::write(top.join("bin/tool"), format!("#!/bin/sh\ncat {files} | wc -c\n")).expect("a file");
    fs::set_permissions(top.join("bin/tool"), fs::Permissions::from_mode(0o755)).expect("a mode");
    for (number, file) in READ.iter().enumerate() {
        let size = if file.starts_with("large") { 3_000_000 } else { 1000 };
        fs::write(top.join(file), noise(size, number as u32)).expect("a file");
    }
    for number in 0..8 {
        fs::write(top.join(format!("other/{number}.five")), noise(500, 100 + number)).expect("a file");
    }
}

fn noise(len: usize, seed: u32) -> Vec<u8> {
    let mut x = seed;
    let mut next = || {
        x = x.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        (x >> 24) as u8
    };
    (0..len).map(|_| next()).collect()
}

/// A publisher whose repository is served.
struct Shop {
    workshop: Workshop,
    mirror: Mirror,
}

impl Shop {
    /// Makes a repository of small chunks and publishes the tree.
    fn open(person: TestUser, make_tree: impl FnOnce(&Path) + Send) -> Shop {
        let workshop = Workshop::with(person, make_tree);
        let output = workshop.esker(&["repo", "create", NAME, "--chunks", "64K,128K,256K"]);
        assert!(output.status.success(), "{}", words(&output));
        workshop.json(&["publish", NAME, &workshop.tree()]);
        let mirror = Mirror::serve(workshop.home("storage"));
        Shop { workshop, mirror }
    }

    fn key(&self) -> String {
        self.workshop.home(&format!("keys/{NAME}.pub"))
    }

    /// Records the reads of a command.
    fn record(&self, file: &str, options: &[&str], command: &[&str]) -> Output {
        let (url, key, cache) = (self.mirror.url(NAME), self.key(), self.workshop.home("cache"));
        let arguments = ["profile", "record", &url, "--public-key", &key, "--cache", &cache, "-o", file];
        let arguments = [&arguments[..], options, &["--"], command].concat();
        self.workshop.world.esker(&arguments).output().expect("running esker")
    }
}

/// The profile has the files in the order of their reads, and the command's output and exit code are its own.
#[test]
fn reads_of_a_command_are_recorded() {
    for person in TestUser::all() {
        let shop = Shop::open(person, make_tree);
        let tool = format!("/cvmfs/{NAME}/bin/tool");
        let file = shop.workshop.home("tool.profile.json");
        let output = shop.record(&file, &[], &[&tool]);
        assert!(output.status.success(), "{}", words(&output));
        assert_eq!(String::from_utf8_lossy(&output.stdout).trim(), "3003000");
        let profile: Value = serde_json::from_slice(&fs::read(&file).expect("a profile")).expect("JSON");
        let files = profile["files"].as_array().expect("files");
        let paths: Vec<&str> = files.iter().filter_map(|file| file["path"].as_str()).collect();
        let expected = [&["bin/tool"][..], &READ].concat();
        assert_eq!(paths, expected.iter().map(|path| format!("/{path}")).collect::<Vec<_>>(), "{profile:#}");
        assert_eq!((&files[0]["program"], &files[1]["program"]), (&true.into(), &Value::Null));
        assert_eq!((&profile["repository"], &profile["revision"]), (&NAME.into(), &1.into()));
        let large: Vec<&Value> =
            profile["reads"].as_array().expect("reads").iter().filter(|read| read["file"] == 4).collect();
        assert_eq!(large[0]["range"], serde_json::json!([0, 3_000_000]), "{profile:#}");

        // Reads from the cache are recorded, too, and the exit code is kept.
        let failing =
            shop.record(&file, &["--trigger", "/data/z.one"], &["sh", "-c", &format!("{tool}; exit 7")]);
        assert_eq!(failing.status.code(), Some(7), "{}", words(&failing));
        let again: Value = serde_json::from_slice(&fs::read(&file).expect("a profile")).expect("JSON");
        assert_eq!(again["files"], profile["files"]);

        let show = shop.workshop.world.esker(&["profile", "show", &file, "--json"]).output();
        let shown: Value = serde_json::from_slice(&show.expect("running esker").stdout).expect("JSON");
        // Named, it cuts the program's cluster to less than is worth a bundle.
        let expected = serde_json::json!([{ "trigger": "/data/z.one", "files": 3, "bytes": 3_002_000 }]);
        assert_eq!(shown["bundles"], expected);
    }
}

#[test]
fn profiles_are_stored_listed_and_removed() {
    let shop = Shop::open(TestUser::ordinary(), make_tree);
    let workshop = &shop.workshop;
    let file = workshop.home("tool.profile.json");
    let output = shop.record(&file, &[], &[&format!("/cvmfs/{NAME}/bin/tool")]);
    assert!(output.status.success(), "{}", words(&output));
    let tree = workshop.tree();
    let dry = workshop.json(&["publish", NAME, &tree, "--profile", &file, "--dry-run"]);
    assert_eq!((&dry["bundles"]["bundles"], &dry["bundles"]["files"]), (&1.into(), &4.into()));
    let published = workshop.json(&["publish", NAME, &tree, "--profile", &file]);
    assert_eq!((&published["revision"], &published["bundles"]["bundles"]), (&2.into(), &1.into()));
    let list = workshop.esker(&["profile", "list", NAME, "--json"]);
    let list: Value = serde_json::from_slice(&list.stdout).expect("JSON");
    assert_eq!((&list[0]["name"], &list[0]["bundles"][0]["files"]), (&"tool".into(), &4.into()));
    assert_eq!(workshop.json(&["publish", NAME, &tree])["published"], false);
    let expect = |arguments: &[&str], code: i32, said: &str| {
        let output = workshop.esker(arguments);
        assert_eq!(output.status.code(), Some(code), "{arguments:?}: {}", words(&output));
        assert!(words(&output).contains(said), "{arguments:?}: {}", words(&output));
    };
    expect(&["profile", "add", NAME, "/no/such/file"], 2, "/no/such/file");
    expect(&["profile", "remove", NAME, "another"], 2, "there is no profile `another`");
    expect(&["profile", "remove", NAME, "tool"], 0, "the next publish takes its bundles back");
    expect(&["profile", "list", NAME], 0, "no profile is stored");
    let without = workshop.json(&["publish", NAME, &tree]);
    assert_eq!((&without["revision"], &without["bundles"]["bundles"]), (&3.into(), &0.into()));
    expect(&["profile", "add", NAME, &file], 0, "the next publish writes its bundles");
    let other = workshop.home("other.json");
    let text = fs::read_to_string(&file).expect("a profile").replace(NAME, "another.test");
    workshop.world.person.does(|| fs::write(&other, text)).expect("a file");
    expect(&["profile", "add", NAME, &other], 2, "recorded in `another.test`");
    assert_eq!(workshop.json(&["publish", NAME, &tree])["bundles"]["bundles"], 1);
}

impl Shop {
    /// Runs a function in a mount with an empty cache, served by a mirror of its own.
    fn mounted<T>(&self, options: &[&str], work: impl FnOnce(&Mounted<'_>, &Mirror) -> T) -> T {
        self.workshop.world.empty_cache();
        self.mounted_again(options, work)
    }

    /// Runs a function in a mount with the present cache.
    fn mounted_again<T>(&self, options: &[&str], work: impl FnOnce(&Mounted<'_>, &Mirror) -> T) -> T {
        let world = &self.workshop.world;
        let mirror = Mirror::serve(self.workshop.home("storage"));
        let mut mount = world.esker(&["mount", &mirror.url(NAME)]);
        mount.arg(world.mountpoint()).args(["--public-key", &self.key(), "--cache"]).arg(world.cache());
        let output = mount.args(options).output().expect("running esker");
        assert!(output.status.success(), "{}", words(&output));
        work(&world.mounted(), &mirror)
    }
}

fn read(mounted: &Mounted<'_>, file: &str) {
    let path = mounted.path(file);
    mounted.does(|| fs::read(&path)).unwrap_or_else(|error| panic!("reading {file}: {error}"));
}

/// Waits until the prefetched objects are in the cache. An earlier read would have to wait for them, and demanded
/// objects cause more prefetches (A3).
fn is_kept(mounted: &Mounted<'_>) {
    mounted.wait_until("what was prefetched in the cache", |status| {
        status["fetched"]["prefetches_queued"].as_u64() == Some(0)
    });
}

/// True if a request is for the content of a file, whole or a chunk.
fn is_content(path: &str) -> bool {
    path.contains("/data/") && !path.ends_with(['C', 'H', 'X'])
}

/// Returns the requested file contents.
fn contents(mirror: &Mirror) -> BTreeSet<String> {
    mirror.requests().into_iter().map(|request| request.path).filter(|path| is_content(path)).collect()
}

/// > A1: When a file that announces others is read for the first time, they are brought into the cache before they are read.
#[test]
fn the_read_of_a_trigger_brings_its_bundle() {
    for person in TestUser::all() {
        let shop = Shop::open(person, make_tree);
        let file = shop.workshop.home("tool.profile.json");
        let output = shop.record(&file, &[], &[&format!("/cvmfs/{NAME}/bin/tool")]);
        assert!(output.status.success(), "{}", words(&output));
        shop.workshop.json(&["publish", NAME, &shop.workshop.tree(), "--profile", &file]);
        let needed = shop.mounted(&["--no-prefetch"], |mounted, mirror| {
            READ.iter().chain(&["bin/tool"]).for_each(|file| read(mounted, file));
            contents(mirror)
        });
        assert!(needed.len() > 10, "the large file has chunks");
        shop.mounted(&[], |mounted, mirror| {
            read(mounted, "bin/tool");
            for object in &needed {
                mirror.wait_for(1, |path| path == object);
            }
            is_kept(mounted);
            READ.iter().for_each(|file| read(mounted, file));
            let fetched = contents(mirror);
            assert_eq!(
                fetched.len(),
                needed.len() + 1,
                "and nothing else but the specification: {fetched:?}"
            );
            for object in &fetched {
                assert_eq!(mirror.count(|path| path == object), 1, "{object}");
            }
        });
    }
}

/// Empties the cache but for learned sequences.
fn forget_objects(world: &TestEnv) {
    let (trails, aside) = (world.cache().join("trails"), world.path("home/trails"));
    world.person.does(|| fs::rename(&trails, &aside)).expect("what was learned, beside the cache");
    world.empty_cache();
    let put_back = || {
        fs::create_dir(world.cache())?;
        fs::rename(&aside, &trails)
    };
    world.person.does(put_back).expect("a cache without objects");
}

/// > A4: What programs read one after the other is remembered beside the cache; when the first of it is read again, what followed it is brought into the cache, or read from the cache's disk, ahead of its use.
#[test]
fn earlier_reads_are_prefetched_after_the_first_one() {
    for person in TestUser::all() {
        let shop = Shop::open(person, make_tree);
        let needed = shop.mounted(&[], |mounted, mirror| {
            ["bin/tool"].iter().chain(&READ).for_each(|file| read(mounted, file));
            contents(mirror)
        });
        assert!(needed.len() > 10, "the large file has chunks");
        forget_objects(&shop.workshop.world);
        shop.mounted_again(&[], |mounted, mirror| {
            read(mounted, "bin/tool");
            for object in &needed {
                mirror.wait_for(1, |path| path == object);
            }
            is_kept(mounted);
            READ.iter().for_each(|file| read(mounted, file));
            assert_eq!(contents(mirror), needed, "and nothing else");
        });
    }
}

/// > A2: A bundle can waste no more than a bounded part of the cache, and nothing that it says changes what is shown.
#[test]
fn valid_entries_of_a_bundle_in_the_source_are_used() {
    let shop = Shop::open(TestUser::ordinary(), |top| {
        make_tree(top);
        let hostile = "\"/../../etc/passwd\",\"\",\"/bin\",\"/no/such\",\"/bin/tool\",".repeat(200);
        let spec = format!(
            "#%CVMFS_BUNDLE version=1 encoding=UTF-8\n{{\"name\":\"CVMFS_BUNDLE\",\"version\":\"1.0.0\",\
             \"encoding\":\"UTF-8\",\"dependencies\":[{hostile}\"../up\",\"/data/z.one\"]}}"
        );
        fs::write(top.join("bin/.cvmfsbundle-tool"), spec).expect("a file");
        let spec = spec_of(&["/lib/m.three", "./1.five", "/other/.cvmfsbundle-0.five"]);
        fs::write(top.join("other/.cvmfsbundle-0.five"), spec).expect("a file");
    });
    shop.mounted(&[], |mounted, mirror| {
        read(mounted, "bin/tool");
        read(mounted, "other/0.five");
        // The two, their specifications, and the valid entries of those: one file and two.
        let expected = 4 + 3;
        mirror.wait_for(expected, is_content);
        is_kept(mounted);
        let xattr = |file: &str| {
            let (path, mut value) = (mounted.path(file), [0; 16]);
            let len = mounted.does(|| rustix::fs::getxattr(&path, "user.bundle_trigger", &mut value));
            value[..len.expect("an attribute")].to_vec()
        };
        assert_eq!((xattr("other/0.five"), xattr("other/1.five")), (b"1".to_vec(), b"0".to_vec()));
        ["lib/m.three", "other/1.five", "bin/.cvmfsbundle-tool"].iter().for_each(|file| read(mounted, file));
        assert_eq!(mirror.count(is_content), expected, "each once");
    });
}

fn spec_of(files: &[&str]) -> String {
    let files: Vec<String> = files.iter().map(|file| format!("{file:?}")).collect();
    let files = files.join(",");
    format!(r#"{{"name":"CVMFS_BUNDLE","version":"1.0.0","encoding":"UTF-8","dependencies":[{files}]}}"#)
}
