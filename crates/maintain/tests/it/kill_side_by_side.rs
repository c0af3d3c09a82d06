//! kill -9 of publishers that work side by side, with a collect that deletes at once: every accepted change stays, and
//! the repository is whole.

use esker_publish::PublishError;
use std::collections::BTreeSet;
use std::fs::{self, File};
use std::io::{self, Read as _, Write as _};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::Arc;

use esker_format::name::RepositoryName;
use esker_maintain::{Collect, Keep};
use esker_repository::{Disks, KeyFolder, Repository, RepositoryError};
use esker_store::{Disk, FileFacts, RealDisk};
use esker_testkit::check::Findings;
use esker_testkit::disk::scratch;
use esker_testkit::listing::{Entry, of_folder};
use esker_testkit::soak::Soak;
use rand::rngs::StdRng;
use rand::{Rng as _, SeedableRng as _};

use crate::collecting::at_once;
use crate::workshop::{NAME, Workshop, now, publish};

/// Names the repository, the source, its target and the keys in the environment of a process that may be killed.
const ROOT: &str = "ESKER_TEST_SIDE_ROOT";
const SOURCE: &str = "ESKER_TEST_SIDE_SOURCE";
const TARGET: &str = "ESKER_TEST_SIDE_TARGET";
const KEYS: &str = "ESKER_TEST_SIDE_KEYS";

/// The target of a process that collects.
const COLLECT: &str = "collect";

const PUBLISHERS: usize = 3;
/// More changes of the disk than a publish makes here, so that some end before they are killed.
const CHANGES: usize = 90;

/// A disk that says a dot before every change, which tells the killer how far the publisher is.
struct Dots(RealDisk);

impl Dots {
    fn dot(&self) -> &RealDisk {
        // The killer may have hung up.
        let _ = io::stderr().write_all(b".");
        &self.0
    }
}

impl Disk for Dots {
    fn make_dir(&self, path: &Path) -> io::Result<()> {
        self.dot().make_dir(path)
    }

    fn create(&self, path: &Path) -> io::Result<File> {
        self.dot().create(path)
    }

    fn create_spool(&self, path: &Path) -> io::Result<File> {
        self.dot().create_spool(path)
    }

    fn write(&self, file: &File, bytes: &[u8]) -> io::Result<()> {
        self.dot().write(file, bytes)
    }

    fn sync(&self, file: &File) -> io::Result<()> {
        self.dot().sync(file)
    }

    fn open(&self, path: &Path) -> io::Result<File> {
        self.0.open(path)
    }

    fn read_exact_at(&self, file: &File, buffer: &mut [u8], offset: u64) -> io::Result<()> {
        self.0.read_exact_at(file, buffer, offset)
    }

    fn rename(&self, from: &Path, to: &Path) -> io::Result<()> {
        self.dot().rename(from, to)
    }

    fn link(&self, target: &Path, path: &Path) -> io::Result<()> {
        self.dot().link(target, path)
    }

    fn set_mode(&self, path: &Path, mode: u32) -> io::Result<()> {
        self.dot().set_mode(path, mode)
    }

    fn remove(&self, path: &Path) -> io::Result<()> {
        self.dot().remove(path)
    }

    fn remove_dir(&self, path: &Path) -> io::Result<()> {
        self.dot().remove_dir(path)
    }

    fn list(&self, path: &Path) -> io::Result<Vec<std::ffi::OsString>> {
        self.0.list(path)
    }

    fn facts(&self, path: &Path) -> io::Result<FileFacts> {
        self.0.facts(path)
    }

    fn sync_dir(&self, path: &Path) -> io::Result<()> {
        self.dot().sync_dir(path)
    }

    fn sync_all(&self, path: &Path) -> io::Result<()> {
        self.dot().sync_all(path)
    }
}

/// Publishes, and says the revision that was made; or collects.
#[allow(clippy::print_stderr, reason = "the killer reads it")]
fn publish_until_killed(root: &Path) {
    let variable = |name| PathBuf::from(std::env::var_os(name).unwrap());
    let name = RepositoryName::parse(NAME).unwrap();
    let keys = KeyFolder::new(variable(KEYS), &name);
    let disks =
        Disks { served: Arc::new(Dots(RealDisk::SERVED)), private: Arc::new(Dots(RealDisk::PRIVATE)) };
    let repository = Repository::open((&disks, root), &name, keys, now()).unwrap();
    let target = variable(TARGET);
    if target == Path::new(COLLECT) {
        // Only the head is kept, and everything else is deleted at once.
        let collect = Collect { automatic_tags: Some(0), ..at_once(Keep::Tags) };
        let collected = collect.run(&repository, now()).unwrap();
        eprintln!("deleted {}", collected.deleted.objects);
        return;
    }
    match publish(&repository, &variable(SOURCE), target.to_str().unwrap()) {
        Ok(report) => eprintln!("revision {}", report.revision),
        // A collect without a grace time was faster, several times.
        Err(PublishError::Repository(RepositoryError::Collected { .. })) => eprintln!("collected"),
        Err(error) => panic!("{error:?}"),
    }
}

/// One publisher: its folder, and its last accepted change.
struct Side {
    source: PathBuf,
    target: String,
    last: Vec<Entry>,
}

impl Side {
    fn start(&self, workshop: &Workshop) -> Child {
        Command::new(std::env::current_exe().unwrap())
            .args(["--exact", "kill_side_by_side::soak_publishers_side_by_side_kill_nine", "--nocapture"])
            .env(ROOT, workshop.root())
            .env(SOURCE, &self.source)
            .env(TARGET, &self.target)
            .env(KEYS, workshop.keys().public_key_file().parent().unwrap())
            .stdout(Stdio::null())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap()
    }

    fn edit(&self, random: &mut StdRng) {
        for _ in 0..random.random_range(1..4) {
            let directory = self.source.join(format!("d{}", random.random_range(0..3)));
            fs::create_dir_all(&directory).unwrap();
            // Some contents are the same in all of them, so that publishers store the same objects.
            let content = random.random_range(0..100).to_string();
            fs::write(directory.join(format!("f{}", random.random_range(0..4))), content).unwrap();
        }
    }

    /// Returns what the repository shows of this publisher, as if it were a folder of its own.
    fn shown(&self, findings: &Findings) -> Vec<Entry> {
        let below = |entry: &Entry| {
            let rest = entry.path.strip_prefix(self.target.as_bytes())?;
            let path = if rest.is_empty() { b"/".to_vec() } else { rest.to_vec() };
            (rest.is_empty() || rest.starts_with(b"/")).then(|| Entry { path, ..entry.clone() })
        };
        findings.tree.values().filter_map(below).collect()
    }
}

/// Output of a publisher, up to its kill or its end.
struct Ended {
    killed: bool,
    /// Revision, if the publisher said that it was accepted.
    accepted: Option<u64>,
    /// Number of objects that a collect deleted.
    deleted: Option<u64>,
    /// Whether it gave up, since a collect was faster.
    gave_up: bool,
}

/// Reads so many dots, then kills the process.
fn kill_after(mut child: Child, dots: usize) -> Ended {
    let mut output = Vec::new();
    let mut stderr = child.stderr.take().unwrap();
    let mut byte = [0];
    let mut left = dots;
    while left > 0 && stderr.read_exact(&mut byte).is_ok() {
        left -= usize::from(byte == *b".");
        output.push(byte[0]);
    }
    let killed = left == 0;
    if killed {
        child.kill().unwrap();
    }
    stderr.read_to_end(&mut output).unwrap();
    let status = child.wait().unwrap();
    let output = String::from_utf8_lossy(&output).into_owned();
    let number = |word: &str| output.split_once(word)?.1.split_once('\n')?.0.parse().ok();
    let (accepted, deleted, gave_up) =
        (number("revision "), number("deleted "), output.contains("collected"));
    assert!((killed || status.success()) && !output.contains("panicked"), "{output}");
    Ended { killed, accepted, deleted, gave_up }
}

#[derive(Default)]
struct Counts {
    accepted: u64,
    killed: u64,
    killed_new: u64,
    several: u64,
    deleted: u64,
    gave_up: u64,
}

#[test]
fn soak_publishers_side_by_side_kill_nine() {
    if let Some(root) = std::env::var_os(ROOT) {
        return publish_until_killed(Path::new(&root));
    }
    let memory = scratch();
    let workshop = Workshop::new().moved(memory.path());
    let mut sides: Vec<Side> = (0..PUBLISHERS)
        .map(|number| {
            let source = workshop.folder.path().join(format!("side{number}"));
            fs::create_dir(&source).unwrap();
            // In one catalog, so that each commit touches what the others touch.
            Side { source, target: format!("/shared/p{number}"), last: Vec::new() }
        })
        .collect();
    let source = workshop.source();
    let collector = Side { source, target: COLLECT.to_owned(), last: Vec::new() };
    let mut soak = Soak::begin("publishers_side_by_side_kill_nine");
    let mut random = StdRng::seed_from_u64(soak.seed());
    let mut counts = Counts::default();
    let mut revision = 0;
    while soak.goes_on_until(if counts.several.min(counts.killed_new).min(counts.deleted) == 0 {
        200
    } else {
        0
    }) {
        sides.iter().for_each(|side| side.edit(&mut random));
        let children: Vec<Child> =
            sides.iter().chain([&collector]).map(|side| side.start(&workshop)).collect();
        let mut dots: Vec<usize> = children.iter().map(|_| random.random_range(1..CHANGES)).collect();
        // A collect makes many more changes; every second one may end.
        dots[PUBLISHERS] = if random.random() { random.random_range(1..10 * CHANGES) } else { usize::MAX };
        let ended: Vec<Ended> = std::thread::scope(|scope| {
            let kill = |(child, dots)| scope.spawn(move || kill_after(child, dots));
            let threads: Vec<_> = children.into_iter().zip(dots).map(kill).collect();
            threads.into_iter().map(|thread| thread.join().unwrap()).collect()
        });
        let findings = workshop.check();
        findings.assert_whole("after the kills");
        let mut made = 0;
        let mut revisions = BTreeSet::new();
        counts.deleted += ended[PUBLISHERS].deleted.unwrap_or(0);
        for (side, ended) in sides.iter_mut().zip(&ended) {
            let (next, shown) = (of_folder(&side.source), side.shown(&findings));
            let is_new = shown == next;
            assert!(is_new || shown == side.last, "{} shows neither revision", side.target);
            counts.killed += u64::from(ended.killed);
            counts.gave_up += u64::from(ended.gave_up);
            if let Some(number) = ended.accepted {
                assert!(is_new, "{}: an accepted change is lost", side.target);
                assert!(revisions.insert(number), "two accepted changes are revision {number}");
                counts.accepted += 1;
            } else {
                assert!(ended.killed || ended.gave_up);
                counts.killed_new += u64::from(is_new && next != side.last);
            }
            made += u64::from(is_new && next != side.last);
            side.last = shown;
        }
        counts.several += u64::from(made > 1);
        assert_eq!(findings.revision, revision + made, "each change is one revision");
        revision = findings.revision;
        drop(workshop.open());
        let left = fs::read_dir(workshop.root().join("data/txn")).unwrap();
        let left: Vec<_> = left.map(|entry| entry.unwrap().file_name()).collect();
        assert!(left.iter().all(|name| name == "esker.lock"), "{left:?}");
    }
    let seen = [counts.several, counts.killed_new, counts.deleted];
    assert!(!seen.contains(&0), "kills come at all times, and publishers meet: {seen:?}");
    soak.finish(&[
        ("accepted", &counts.accepted),
        ("killed", &counts.killed),
        ("killed after the head was replaced", &counts.killed_new),
        ("rounds with several revisions", &counts.several),
        ("objects deleted", &counts.deleted),
        ("given up", &counts.gave_up),
    ]);
}
