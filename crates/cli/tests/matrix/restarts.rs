//! Mounts that go on when their daemon is killed or replaced, while programs use them.

mod without_settings;

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::hash::{DefaultHasher, Hash, Hasher};
use std::io::{BufRead, BufReader, Read};
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdout, Command, Stdio};
use std::sync::mpsc::{RecvTimeoutError, channel};
use std::time::Duration;

use esker_testkit::mirror::Mirror;
use esker_testkit::programs;
use esker_testkit::soak::{Random, Soak};
use esker_testkit::waiting::{Pace, for_moment_of_fault};
use rustix::fs::{Advice, fadvise, statvfs};
use rustix::process::Signal;

use crate::broker::Broker;
use crate::daemons::{serving_daemon, signal, wait_until_gone};
use crate::image_mounts::image_with;
use crate::publishing::{NAME, Workshop};
use crate::sharing::Second;
use crate::sys::read_mapped;
use crate::test_env::{Mounted, PATIENCE, TestEnv};
use crate::test_user::TestUser;
use crate::upgrades::{other_build, upgrade};

/// Size of a trial: restarts in a row, programs that use the mount meanwhile, and their pause after each round.
#[derive(Clone, Copy)]
struct Size {
    restarts: u64,
    programs: usize,
    pause: Duration,
}

/// Size of trials in `make test`: 64 programs without pauses would slow down every other test of a small machine.
const SMALL: Size = Size { restarts: 6, programs: 16, pause: Duration::from_millis(300) };
/// Size of trials in `make soak`.
const LARGE: Size = Size { restarts: 100, programs: 64, pause: Duration::ZERO };
/// Least number of demanded rounds that makes a trial large.
const MANY: u64 = 200;
/// Longest time between two restarts, in milliseconds.
const BETWEEN: usize = 500;

/// Environment variable with the folder that a program of the crowd uses.
const USED: &str = "ESKER_TEST_USED";
/// Environment variable with the pause of such a program in milliseconds.
const PAUSE: &str = "ESKER_TEST_PAUSE";

/// Fills a folder with all that programs need.
fn fill(top: &Path) {
    fs::create_dir_all(top.join("run")).expect("a folder");
    // Its pages are mapped: one that can't be read ends it with SIGBUS.
    fs::copy("/bin/true", top.join("run/true")).expect("a program");
    for folder in 0..8 {
        let folder = top.join(format!("d{folder}"));
        fs::create_dir(&folder).expect("a folder");
        for file in 0..12_u8 {
            fs::write(folder.join(file.to_string()), vec![file; 1 << (file + 6)]).expect("a file");
        }
    }
    fs::write(top.join("large"), (0..1_500_000_u32).flat_map(u32::to_le_bytes).collect::<Vec<u8>>())
        .expect("a file");
    let links =
        [("d1/1", "link"), ("$(ESKER_TEST_PART:-d2)/2", "part"), ("$(ESKER_TEST_UNSET:-d3)/3", "unset")];
    for (target, name) in links {
        std::os::unix::fs::symlink(target, top.join(name)).expect("a link");
    }
}

/// What a program knows of an entry.
#[derive(Debug, PartialEq, Eq)]
struct Known {
    ino: u64,
    len: usize,
    digest: u64,
}

/// Looks at all entries below a folder. Nothing of it is in the kernel's cache of pages afterwards.
fn look(top: &Path, map: bool) -> BTreeMap<PathBuf, Known> {
    let (mut known, mut folders) = (BTreeMap::new(), vec![top.to_owned()]);
    while let Some(folder) = folders.pop() {
        for entry in fs::read_dir(&folder).expect("listing") {
            let path = entry.expect("listing").path();
            let facts = fs::symlink_metadata(&path).expect("attributes");
            let content = if facts.is_dir() {
                folders.push(path.clone());
                Vec::new()
            } else if facts.is_symlink() {
                let target = fs::read_link(&path).expect("a target").into_os_string().into_encoded_bytes();
                // Images have no variables.
                let led_to =
                    if target.starts_with(b"$") { Vec::new() } else { fs::read(&path).expect("reading") };
                [target, led_to].concat()
            } else {
                let file = File::open(&path).expect("opening");
                fadvise(&file, 0, None, Advice::DontNeed).expect("advice");
                if map { read_mapped(&file) } else { fs::read(&path).expect("reading") }
            };
            let mut hasher = DefaultHasher::new();
            content.hash(&mut hasher);
            known.insert(path, Known { ino: facts.ino(), len: content.len(), digest: hasher.finish() });
        }
    }
    statvfs(top).expect("the file system");
    known
}

/// Is a program of the crowd if the environment says so; otherwise a test without content.
#[test]
fn a_program_uses_a_mount_until_its_input_ends() {
    let Some(top) = std::env::var_os(USED).map(PathBuf::from) else { return };
    let before = look(&top, false);
    let (large, program) = (File::open(top.join("large")).expect("opening"), top.join("run/true"));
    println!("\nready");
    let pause =
        std::env::var(PAUSE).expect("the pause").parse().map(Duration::from_millis).expect("a number");
    let (input, end_of_input) = channel::<()>();
    std::thread::spawn(move || {
        let _ = std::io::stdin().read_to_end(&mut Vec::new());
        drop(input);
    });
    let mut rounds = 0;
    // The first round begins at once: a few restarts may take less time than a pause.
    loop {
        assert_eq!(look(&top, rounds % 2 == 1), before, "round {rounds}");
        let mut middle = [0; 4];
        large.read_exact_at(&mut middle, 4 << 20).expect("reading what was opened before");
        assert_eq!(u32::from_le_bytes(middle), 1 << 20);
        assert!(Command::new(&program).status().expect("executing").success(), "round {rounds}");
        rounds += 1;
        if end_of_input.recv_timeout(pause) != Err(RecvTimeoutError::Timeout) {
            break;
        }
    }
    println!("rounds {rounds}");
}

/// Programs that use a mount, each in a process of its own.
struct Crowd(Vec<(Child, BufReader<ChildStdout>)>);

impl Crowd {
    fn gather(world: &TestEnv, size: Size) -> Self {
        let program = world.path("crowd");
        if !program.exists() {
            programs::copy(&std::env::current_exe().expect("this program"), &program);
        }
        let start = |_| {
            let mut command = world.person.command(&program);
            let test = "restarts::a_program_uses_a_mount_until_its_input_ends";
            command.args(["--exact", test, "--nocapture", "--test-threads=1"]).env(USED, world.mountpoint());
            command.env(PAUSE, size.pause.as_millis().to_string());
            command.stdin(Stdio::piped()).stdout(Stdio::piped()).current_dir("/");
            let mut child = command.spawn().expect("a program");
            let lines = BufReader::new(child.stdout.take().expect("its output"));
            (child, lines)
        };
        let mut crowd = Self((0..size.programs).map(start).collect());
        for (_, lines) in &mut crowd.0 {
            line(lines, "ready").expect("a program that is ready");
        }
        crowd
    }

    /// Ends all programs, of which none may have failed; returns how many rounds they made.
    fn disperse(self) -> u64 {
        let mut rounds = 0;
        for (mut child, mut lines) in self.0 {
            drop(child.stdin.take());
            let said = line(&mut lines, "rounds ");
            let status = child.wait().expect("its end");
            assert!(status.success(), "a program failed: {status}");
            rounds += said.expect("its rounds").trim().parse::<u64>().expect("a number");
        }
        rounds
    }
}

/// Returns what follows `start` in the first line that has it.
fn line(lines: &mut impl BufRead, start: &str) -> Option<String> {
    lines.lines().map_while(Result::ok).find_map(|line| Some(line.strip_prefix(start)?.to_owned()))
}

/// Waits until the moment of the next restart, which is what is tried here.
fn wait_for_moment(random: &mut Random) {
    for_moment_of_fault(Duration::from_millis(random.below(BETWEEN) as u64));
}

/// Kills the daemon and replaces it by that of another build in turns, while programs use the mount; returns how many rounds
/// these made.
fn restart(world: &TestEnv, mounted: &Mounted<'_>, size: Size, random: &mut Random) -> u64 {
    let other = other_build(world);
    let crowd = Crowd::gather(world, size);
    for round in 0..size.restarts {
        wait_for_moment(random);
        let before = serving_daemon(mounted);
        if round % 2 == 1 {
            // To and fro between two builds.
            let program = if round % 4 == 1 { &other } else { world.program() };
            let (outcome, reason) = upgrade(world, program);
            assert_eq!(outcome, "upgraded", "{reason}\n{}", world.logs());
        } else {
            signal(before, Signal::KILL);
            wait_until_gone(before);
        }
        assert_ne!(serving_daemon(mounted), before);
    }
    crowd.disperse()
}

/// A mount of a repository, and one of an image.
#[test]
fn soak_restarts() {
    soak("soak_restarts", |kind, (workshop, mirror), size, random| {
        let world = &workshop.world;
        let source = if kind == 0 { mirror.url(NAME) } else { image_with(world, 0, fill) };
        let mounted = world.mount_of(&source, &[]);
        let supervisor = supervisor_of(&mounted);
        let used = restart(world, &mounted, size, random);
        drop(mounted);
        wait_until_gone(supervisor);
        used
    });
}

/// The process that writes a shared cache, and the broker of a node.
#[test]
fn soak_killed_writers_and_brokers() {
    soak("soak_killed_writers_and_brokers", |kind, (workshop, mirror), size, random| match kind {
        0 => kill_writers(&workshop.world, &mirror.url(NAME), size, random),
        _ => kill_brokers(&workshop.world, &mirror.url(NAME), size, random),
    });
}

/// Tries two kinds of restarts for root and for an ordinary user in turns. Each restart is a round of the soak.
fn soak(name: &'static str, restart: impl Fn(usize, &(Workshop, Mirror), Size, &mut Random) -> u64) {
    let mut soak = Soak::begin(name);
    let mut random = Random(soak.seed());
    let people = TestUser::all();
    let places: Vec<_> = people.iter().map(|person| publish(*person)).collect();
    let size = if soak.demanded() >= MANY { LARGE } else { SMALL };
    let least = 2 * people.len() as u64 * size.restarts;
    let (mut restarts, mut used) = (0, 0);
    for kind in [0, 1].into_iter().cycle() {
        for place in &places {
            if !soak.goes_on_until(least) {
                return soak.finish(&[
                    ("restarts", &restarts),
                    ("in a row", &size.restarts),
                    ("programs", &size.programs),
                    ("their rounds", &used),
                ]);
            }
            used += restart(kind, place, size, &mut random);
            restarts += size.restarts;
            soak.count(size.restarts - 1);
        }
    }
}

/// Publishes the tree that programs use, and returns its server.
fn publish(person: TestUser) -> (Workshop, Mirror) {
    let workshop = Workshop::with(person, |top| {
        fs::create_dir(top).expect("the tree");
        fill(top);
    });
    workshop.create();
    workshop.json(&["publish", NAME, &workshop.tree()]);
    workshop.published();
    let mirror = Mirror::serve(workshop.home("storage"));
    (workshop, mirror)
}

/// Kills the process that writes a shared cache again and again; a mount that is its client takes over. Returns how many
/// rounds the programs made.
fn kill_writers(world: &TestEnv, url: &str, size: Size, random: &mut Random) -> u64 {
    let mounted = world.mount_of(url, &[]);
    let beside = Second::mount_of(world, url, "second");
    let crowd = Crowd::gather(world, size);
    for _ in 0..size.restarts {
        wait_for_moment(random);
        let writer = || {
            let both = [mounted.status(), beside.status()];
            let writes = both.iter().find(|status| status["cache"]["writer"] == true);
            writes.and_then(|status| u32::try_from(status["pid"].as_u64()?).ok())
        };
        let writer = Pace::PROCESS.until_some(PATIENCE, writer).expect("a writer");
        signal(writer, Signal::KILL);
        wait_until_gone(writer);
    }
    crowd.disperse()
}

/// Kills the broker and starts it again, as a service manager does it, and then the daemon of a mount. Returns how many
/// rounds the programs made.
fn kill_brokers(world: &TestEnv, url: &str, size: Size, random: &mut Random) -> u64 {
    let mut broker = Broker::start(world);
    let options = broker.options();
    let mounted = world.mount_of(url, &options.each_ref().map(String::as_str));
    assert!(mounted.status()["cache"]["broker"].is_string());
    let crowd = Crowd::gather(world, size);
    for _ in 0..size.restarts {
        wait_for_moment(random);
        broker.kill();
        broker = Broker::start(world);
        let before = serving_daemon(&mounted);
        signal(before, Signal::KILL);
        wait_until_gone(before);
        assert_ne!(serving_daemon(&mounted), before);
    }
    crowd.disperse()
}

/// Returns the process id of a mount's supervisor: the parent of its daemon.
pub(crate) fn supervisor_of(mounted: &Mounted<'_>) -> u32 {
    let status = fs::read_to_string(format!("/proc/{}/status", serving_daemon(mounted))).expect("a process");
    let parent = status.lines().find_map(|line| line.strip_prefix("PPid:")).expect("its parent");
    parent.trim().parse().expect("a process id")
}
