//! kill -9 of a publisher at any moment: the repository is one whole revision, old or new.

use std::ffi::OsString;
use std::fs::{self, File};
use std::io::{self, Read as _, Write as _};
use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::Arc;

use esker_admin::{KeyFolder, Repository};
use esker_format::name::RepositoryName;
use esker_store::{Disk, FileFacts, ServedDisk};
use esker_testkit::listing::of_folder;
use esker_testkit::soak::Soak;
use rand::rngs::StdRng;
use rand::{Rng as _, SeedableRng as _};

use crate::workshop::{NAME, Workshop, assert_same_trees, now, publish};

/// Names the folder and the keys in the environment of the process that is to be killed.
const FOLDER: &str = "ESKER_TEST_PUBLISHED_FOLDER";
const KEYS: &str = "ESKER_TEST_PUBLISHER_KEYS";

/// A disk that says a dot for everything it does, which tells the killer how far it is.
struct Talking;

impl Talking {
    fn dot(&self) {
        // The killer may have hung up.
        let _ = io::stderr().write_all(b".");
    }
}

impl Disk for Talking {
    fn make_dir(&self, path: &Path) -> io::Result<()> {
        self.dot();
        ServedDisk.make_dir(path)
    }

    fn create(&self, path: &Path) -> io::Result<File> {
        self.dot();
        ServedDisk.create(path)
    }

    fn create_spool(&self, path: &Path) -> io::Result<File> {
        ServedDisk.create_spool(path)
    }

    fn write(&self, file: &File, bytes: &[u8]) -> io::Result<()> {
        self.dot();
        // Killed between the halves as well.
        let (first, second) = bytes.split_at(bytes.len() / 2);
        ServedDisk.write(file, first)?;
        self.dot();
        ServedDisk.write(file, second)
    }

    fn sync(&self, _file: &File) -> io::Result<()> {
        // Of no use against a kill, and slow.
        self.dot();
        Ok(())
    }

    fn open(&self, path: &Path) -> io::Result<File> {
        ServedDisk.open(path)
    }

    fn read_exact_at(&self, file: &File, buffer: &mut [u8], offset: u64) -> io::Result<()> {
        ServedDisk.read_exact_at(file, buffer, offset)
    }

    fn rename(&self, from: &Path, to: &Path) -> io::Result<()> {
        self.dot();
        ServedDisk.rename(from, to)?;
        self.dot();
        Ok(())
    }

    fn remove(&self, path: &Path) -> io::Result<()> {
        self.dot();
        ServedDisk.remove(path)
    }

    fn list(&self, path: &Path) -> io::Result<Vec<OsString>> {
        ServedDisk.list(path)
    }

    fn facts(&self, path: &Path) -> io::Result<FileFacts> {
        self.dot();
        ServedDisk.facts(path)
    }

    fn sync_dir(&self, _path: &Path) -> io::Result<()> {
        self.dot();
        Ok(())
    }

    fn sync_all(&self, _path: &Path) -> io::Result<()> {
        self.dot();
        Ok(())
    }
}

fn publish_until_killed(folder: &Path) {
    let name = RepositoryName::parse(NAME).unwrap();
    let keys = KeyFolder::new(std::env::var_os(KEYS).unwrap(), &name);
    let repository = Repository::open_on(Arc::new(Talking), &folder.join(NAME), &name, keys, now()).unwrap();
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
        match random.random_range(0..5) {
            0 => drop(fs::remove_file(name)),
            1 => fs::write(directory.join(".cvmfscatalog"), b"").unwrap(),
            2 => drop(fs::remove_file(directory.join(".cvmfscatalog"))),
            _ => fs::write(name, random.random::<u64>().to_string()).unwrap(),
        }
    }
}

#[test]
fn soak_publisher_kill_nine() {
    if let Some(folder) = std::env::var_os(FOLDER) {
        return publish_until_killed(Path::new(&folder));
    }
    let workshop = Workshop::new();
    let mut soak = Soak::begin("publisher_kill_nine");
    let mut random = StdRng::seed_from_u64(soak.seed());
    let mut last = of_folder(&workshop.source());
    let mut counts = [0u64; 3];
    workshop.publish();
    // Until a kill hit a publish, however long that takes; without one nothing is shown.
    while soak.goes_on_until(if counts[2] == 0 { 200 } else { 0 }) {
        edit(&workshop.source(), &mut random);
        let next = of_folder(&workshop.source());
        let killed = publish_and_kill(&workshop, random.random_range(1..220));
        let findings = workshop.check();
        // The reflog is replaced just before the head, so a head may name the one before.
        let problems: Vec<_> = findings
            .problems
            .iter()
            .filter(|problem| *problem != "the manifest names another reflog")
            .collect();
        assert!(problems.is_empty(), "{problems:#?}");
        let found = findings.listing();
        if found == next {
            last = next;
            counts[if killed { 1 } else { 0 }] += 1;
        } else {
            assert!(killed, "a publish that ended shows its source");
            assert_same_trees(&last, &found);
            counts[2] += 1;
        }
    }
    workshop.publish();
    workshop.assert_equal();
    assert!(counts[2] > 0, "no kill hit a publish: {counts:?}");
    let [ended, new, old] = counts;
    soak.finish(&[("ended first", &ended), ("killed, new revision", &new), ("killed, old revision", &old)]);
}
