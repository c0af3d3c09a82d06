//! Replayers that prefetch for starting programs.

use std::fs;
use std::process::Command;

use esker_testkit::fixture;

use crate::hot::requests;
use crate::publishing::{NAME, Workshop};
use crate::test_env::{Mounted, TestEnv, complaint, printed};
use crate::test_user::TestUser;

const FILES: usize = 600;
/// Number of reads that identify the program.
const KNOWN_BY: usize = 200;

/// Builds an image of folders with a file each.
fn image(world: &TestEnv) -> String {
    let folder = tempfile::tempdir().expect("a folder");
    for number in 0..FILES {
        let dir = folder.path().join(number.to_string());
        fs::create_dir(&dir).expect("a folder");
        fs::write(dir.join("file"), number.to_string()).expect("a file");
    }
    let path = world.path("image.sqfs");
    let mut make = Command::new("mksquashfs");
    printed(make.arg(folder.path()).arg(&path).args(["-noappend", "-quiet", "-no-progress"]));
    path.to_str().expect("a path that is text").to_owned()
}

/// Acts like a starting program: looks up missing names, and reads existing files.
fn start(mounted: &Mounted<'_>, files: std::ops::Range<usize>) {
    mounted.does(|| {
        for number in files {
            let dir = mounted.path(&number.to_string());
            assert!(!dir.join("absent").exists());
            assert_eq!(fs::read_to_string(dir.join("file")).expect("reading"), number.to_string());
        }
    });
}

fn count(mounted: &Mounted<'_>, name: &str) -> u64 {
    requests(&mounted.status()).get(name).copied().unwrap_or(0)
}

#[test]
fn a_recorded_start_is_prefetched_to_its_end() {
    for (person, options, ask) in ways() {
        let world = TestEnv::new(person, fixture::RMD);
        let image = image(&world);
        let first = world.mount_of(&image, options);
        start(&first, 0..KNOWN_BY);
        assert!(count(&first, "READ") < ask.reads / 2, "nothing was prefetched");
        start(&first, KNOWN_BY..FILES);
        drop(first);

        let again = world.mount_of(&image, options);
        start(&again, 0..KNOWN_BY);
        again.wait_until("reading ahead", |status| requests(status)["READ"] >= ask.reads);
        let before = count(&again, ask.names);
        start(&again, KNOWN_BY..FILES);
        // Dentries that the kernel drops are looked up once more.
        let asked = count(&again, ask.names) - before;
        assert!(asked < ask.reads / 10, "{asked} names were asked for twice");
        // Unmounting proves that it has ended.
        drop(again);

        let without = world.mount_of(&image, &[options, &["--no-prefetch"]].concat());
        start(&without, 0..KNOWN_BY);
        assert!(count(&without, "READ") < ask.reads / 2);
    }
}

/// Requests of the kernel while all files of the image are read.
#[derive(Clone, Copy)]
struct Asks {
    /// Least number of READs.
    reads: u64,
    /// And this for names.
    names: &'static str,
}

/// Returns all users' presentations of an image, and root's second one.
fn ways() -> Vec<(TestUser, &'static [&'static str], Asks)> {
    // Of each folder one page, with all that is in it, and the file. All but a few of these are seen to come ahead.
    const EROFS: Asks = Asks { reads: 2 * FILES as u64 * 19 / 20, names: "READ" };
    const FUSE: Asks = Asks { reads: FILES as u64, names: "LOOKUP" };
    let of = |person: TestUser| -> Vec<(TestUser, &'static [&'static str], Asks)> {
        match person.is_root() {
            true => vec![(person, &[], EROFS), (person, &["--show-with", "overlay"], FUSE)],
            false => vec![(person, &[], FUSE)],
        }
    };
    TestUser::all().into_iter().flat_map(of).collect()
}

/// Requests of a command with a repository of its own.
const STARTS: &str = r#"
i=0
while [ $i -lt $1 ]; do cat /cvmfs/made.test/$i/file; i=$((i+1)); done > /dev/null
reads() { "$0" status --json /cvmfs/made.test | tr -d ' \n' | sed 's/.*"name":"READ","requests":\([0-9]*\).*/\1/'; }
while [ "$(reads)" -lt $2 ]; do :; done
reads
"#;

#[test]
fn a_replayer_prefetches_for_a_command_in_its_own_namespaces() {
    for person in TestUser::all() {
        let workshop = Workshop::with(person, |tree| {
            for number in 0..FILES {
                let dir = tree.join(number.to_string());
                fs::create_dir_all(&dir).expect("a folder");
                fs::write(dir.join("file"), number.to_string()).expect("a file");
            }
        });
        workshop.create();
        workshop.json(&["publish", NAME, &workshop.tree()]);
        let reads = |options: &[&str], files: usize, until: usize| -> usize {
            let (url, key) = (
                format!("file://{}/{NAME}", workshop.home("storage")),
                format!("{}/{NAME}.pub", workshop.home("keys")),
            );
            let mut call = workshop.world.esker(&["run", &url, "--public-key", &key, "--cache"]);
            call.arg(workshop.world.cache()).args(options).args(["--", "timeout", "60", "sh", "-c", STARTS]);
            call.arg(workshop.world.program()).args([files.to_string(), until.to_string()]);
            printed(&mut call).trim().parse().expect("a count")
        };
        for options in [&[][..], &["--fixed"]] {
            workshop.world.empty_cache();
            reads(options, FILES, 0);
            // Some steps are kept back, to see whether the program comes by.
            reads(options, KNOWN_BY, FILES * 9 / 10);
            let alone = reads(&[options, &["--no-prefetch"]].concat(), KNOWN_BY, 0);
            assert!(alone < FILES / 2, "{person:?} {options:?}: {alone} without a replay");
        }
    }
}

#[test]
fn an_image_carries_recorded_start_up_reads() {
    for (person, options, ask) in ways() {
        let world = TestEnv::new(person, fixture::RMD);
        let image = image(&world);
        std::os::unix::fs::chown(&image, Some(person.uid), None).expect("giving it away");
        let learn = |more: &[&str]| {
            let mut command = world.esker(&["image", "learn", &image, "--cache"]);
            command.arg(world.cache()).args(more);
            command
        };
        let told = complaint(&mut learn(&[]), 1);
        assert!(told.contains("no start-up reads are recorded"), "{told}");
        let first = world.mount_of(&image, options);
        start(&first, 0..FILES);
        drop(first);
        let before = fs::read(&image).expect("the image");
        for _ in 0..2 {
            let said = printed(&mut learn(&[]));
            assert!(said.contains("steps"), "{said}");
        }
        let after = fs::read(&image).expect("the image");
        assert!(after.starts_with(&before) && after.len() > before.len());

        world.empty_cache();
        let mounted = world.mount_of(&image, options);
        start(&mounted, 0..KNOWN_BY);
        mounted.wait_until("reading ahead", |status| requests(status)["READ"] >= ask.reads);
        drop(mounted);
        world.empty_cache();
        printed(&mut learn(&["--forget"]));
        assert_eq!(fs::read(&image).expect("the image"), before);
        let mounted = world.mount_of(&image, options);
        start(&mounted, 0..KNOWN_BY);
        assert!(count(&mounted, "READ") < ask.reads / 2, "nothing was prefetched");
    }
}

/// > A6: Where files are brought into the cache ahead on a guess or a bundle's word, the names around them, and those that programs look for in vain wherever they go, are asked for ahead, too.
#[test]
fn names_are_prefetched_for_a_program_without_history() {
    /// Folders in which the program is seen, and all.
    const SEEN: usize = 20;
    const ALL: usize = 200;
    for person in TestUser::all() {
        let workshop = Workshop::with(person, |tree| {
            for number in 0..ALL {
                let dir = tree.join(number.to_string()).join("inner");
                fs::create_dir_all(&dir).expect("a folder");
                fs::write(dir.join("file"), number.to_string()).expect("a file");
            }
        });
        workshop.create();
        workshop.json(&["publish", NAME, &workshop.tree()]);
        let url = workshop.published();
        let visit = |mounted: &Mounted<'_>, numbers: std::ops::Range<usize>| {
            mounted.does(|| {
                for number in numbers {
                    let dir = mounted.path(&number.to_string());
                    assert!(!dir.join("absent").exists());
                    let file = fs::read_to_string(dir.join("inner/file")).expect("reading");
                    assert_eq!(file, number.to_string());
                }
            });
        };
        for options in [&[][..], &["--fixed"]] {
            workshop.world.empty_cache();
            let mounted = workshop.world.mount_of(&url, options);
            visit(&mounted, 0..SEEN);
            // For each unvisited folder two listings, its own name, and the missing name.
            mounted.wait_until("going ahead", |status| {
                let asked = requests(status);
                let of = |name: &str| asked.get(name).copied().unwrap_or(0);
                of("READDIRPLUS") >= 2 * (ALL - SEEN) as u64 && of("LOOKUP") >= 2 * ALL as u64
            });
            mounted.wait_until("guesses", |status| status["fetched"]["objects"].as_u64() >= Some(ALL as u64));
            let before = count(&mounted, "LOOKUP");
            visit(&mounted, SEEN..ALL);
            let asked = count(&mounted, "LOOKUP") - before;
            assert!(asked < ALL as u64 / 4, "{person:?} {options:?}: {asked} names were asked for");
            drop(mounted);

            workshop.world.empty_cache();
            let alone = workshop.world.mount_of(&url, &[options, &["--no-prefetch"]].concat());
            visit(&alone, 0..ALL);
            assert!(count(&alone, "LOOKUP") > 3 * ALL as u64, "nothing was prefetched");
        }
    }
}

#[test]
fn a_mount_without_prefetch_records_nothing() {
    let world = TestEnv::new(TestUser::ordinary(), fixture::RMD);
    let image = image(&world);
    let mounted = world.mount_of(&image, &["--no-prefetch"]);
    start(&mounted, 0..FILES);
    drop(mounted);
    assert!(!world.cache().join("trails").exists());
    drop(world.mount_of(&image, &[]));
    assert!(!world.cache().join("trails").exists(), "nothing was read");
    let mounted = world.mount_of(&image, &[]);
    start(&mounted, 0..FILES);
    drop(mounted);
    let trails = fs::read_dir(world.cache().join("trails")).expect("trails");
    assert_eq!(trails.count(), 1);
}

#[test]
fn a_repository_reads_the_same_with_a_replayer() {
    let person = TestUser::ordinary();
    let world = TestEnv::new(person, fixture::RMD);
    let names = |mounted: &Mounted<'_>| {
        mounted.does(|| {
            let mut all = vec![mounted.path("")];
            while let Some(dir) = all.pop() {
                for entry in fs::read_dir(&dir).expect("listing") {
                    let entry = entry.expect("an entry");
                    match entry.file_type().expect("a type") {
                        kind if kind.is_dir() => all.push(entry.path()),
                        kind if kind.is_file() => drop(fs::read(entry.path())),
                        _ => {}
                    }
                }
            }
        });
    };
    let first = world.mount(&[]);
    names(&first);
    drop(first);
    let trails: Vec<_> = fs::read_dir(world.cache().join("trails"))
        .expect("trails")
        .map(|entry| entry.expect("an entry").file_name().to_string_lossy().into_owned())
        .collect();
    assert!(trails.iter().any(|name| name.ends_with(".starts")), "{trails:?}");
    let again = world.mount(&[]);
    names(&again);
    assert_eq!(again.status()["errors"].as_array().map(Vec::len), Some(0));
}
