//! kill -9 of a publisher at any moment: the repository is one whole revision, old or new.

use std::fs;
use std::io::{self, Read as _, Write as _};
use std::path::Path;
use std::process::{Command, Stdio};

use esker_format::chunker::ChunkSizes;
use esker_format::name::RepositoryName;
use esker_repository::{KeyFolder, Repository};
use esker_testkit::disk::{FaultDisk, Plan};
use esker_testkit::listing::of_folder;
use esker_testkit::soak::Soak;
use rand::rngs::StdRng;
use rand::{Rng as _, RngCore as _, SeedableRng as _};

use crate::workshop::{NAME, Workshop, assert_same_trees, disks, now, publish};

/// Environment variable with the folder and the keys, for the process that the test kills.
const FOLDER: &str = "ESKER_TEST_PUBLISHED_FOLDER";
const KEYS: &str = "ESKER_TEST_PUBLISHER_KEYS";

/// Publishes, and says a dot before every change of the disk, which tells the killer how far it is.
fn publish_until_killed(folder: &Path) {
    let name = RepositoryName::parse(NAME).unwrap();
    let keys = KeyFolder::new(std::env::var_os(KEYS).unwrap(), &name);
    let disk = FaultDisk::new(&folder.join(NAME), Plan::Nothing);
    // The killer may have hung up.
    disk.before_each_change(|_| drop(io::stderr().write_all(b".")));
    let repository = Repository::open((&disks(&disk), &*folder.join(NAME)), &name, keys, now()).unwrap();
    publish(&repository, &folder.join("source"), "").unwrap();
}

/// Starts the test binary again as a publisher, and kills it after so many dots; false if it was done before.
fn publish_and_kill(workshop: &Workshop, dots: usize) -> bool {
    let mut child = Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "kill::soak_publisher_kill_nine", "--nocapture"])
        .env(FOLDER, workshop.folder.path())
        .env(KEYS, workshop.keys().public_key_file().parent().unwrap())
        .stdout(Stdio::null())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let mut progress = vec![0; dots];
    let killed = child.stderr.as_mut().unwrap().read_exact(&mut progress).is_ok();
    if killed {
        child.kill().unwrap();
    }
    let status = child.wait().unwrap();
    assert!(killed || status.success(), "{}", String::from_utf8_lossy(&progress));
    assert!(!killed || progress.iter().all(|byte| *byte == b'.'), "{}", String::from_utf8_lossy(&progress));
    killed
}

fn edit(top: &Path, random: &mut StdRng) {
    for _ in 0..random.random_range(1..20) {
        let directory = top.join(format!("d{}", random.random_range(0..5)));
        fs::create_dir_all(&directory).unwrap();
        let name = directory.join(format!("f{}", random.random_range(0..8)));
        match random.random_range(0..6) {
            0 => drop(fs::remove_file(name)),
            1 => fs::write(directory.join(".cvmfscatalog"), b"").unwrap(),
            2 => drop(fs::remove_file(directory.join(".cvmfscatalog"))),
            3 => {
                let mut large = vec![0; random.random_range(5_000..50_000)];
                random.fill_bytes(&mut large);
                fs::write(name, large).unwrap();
            }
            _ => fs::write(name, random.random::<u64>().to_string()).unwrap(),
        }
    }
}

/// Unfinished objects of a killed publisher.
fn in_transit(workshop: &Workshop) -> usize {
    let names = fs::read_dir(workshop.root().join("data/txn")).unwrap();
    names.filter(|name| name.as_ref().unwrap().file_name() != "esker.lock").count()
}

/// What came of the rounds.
#[derive(Default)]
struct Counts {
    ended: u64,
    new: u64,
    old: u64,
    /// Of those with the old revision, how many had begun to store objects.
    storing: u64,
}

/// The rounds after which something is wrong with the killing.
const ROUNDS: u64 = 200;
/// A few more changes than most publishes make here, so that most are killed and some end first.
const CHANGES: usize = 130;

#[test]
fn soak_publisher_kill_nine() {
    if let Some(folder) = std::env::var_os(FOLDER) {
        return publish_until_killed(Path::new(&folder));
    }
    let chunks = ChunkSizes::new(4096, 8192, 16_384).unwrap();
    let workshop = Workshop::with(|new| new.settings.chunks = chunks);
    let mut soak = Soak::begin("publisher_kill_nine");
    let mut random = StdRng::seed_from_u64(soak.seed());
    let mut counts = Counts::default();
    workshop.publish();
    let mut last = of_folder(&workshop.source());
    // Until a kill came while objects were stored, however long that takes; without one nothing is shown.
    while soak.goes_on_until(if counts.storing == 0 { ROUNDS } else { 0 }) {
        edit(&workshop.source(), &mut random);
        let next = of_folder(&workshop.source());
        let killed = publish_and_kill(&workshop, random.random_range(1..CHANGES));
        let findings = workshop.check();
        findings.assert_whole("after the kill");
        let found = findings.listing();
        if found == next {
            *if killed { &mut counts.new } else { &mut counts.ended } += 1;
        } else {
            assert!(killed, "a publish that ended shows its source");
            assert_same_trees(&last, &found);
            counts.old += 1;
            counts.storing += u64::from(in_transit(&workshop) > 0);
        }
        workshop.publish();
        workshop.assert_equal();
        assert_eq!(in_transit(&workshop), 0, "the next publish clears away what was left");
        last = next;
    }
    assert!(counts.storing > 0 && counts.new + counts.ended > 0, "the kills come at all times");
    soak.finish(&[
        ("ended first", &counts.ended),
        ("killed, new revision", &counts.new),
        ("killed, old revision", &counts.old),
        ("of these while objects were stored", &counts.storing),
    ]);
}
