//! A silent server, and readers that don't need it.

use std::fs::{self, File};
use std::io::Read;
use std::os::unix::fs::FileExt;
use std::process::Stdio;
use std::time::{Duration, Instant};

use esker_testkit::fixture::{self, Repository};
use esker_testkit::mirror::{Fault, Mirror, Rule};
use esker_testkit::revision_builder::RevisionBuilder;
use esker_testkit::skip_part;

use crate::test_env::{PATIENCE, TestEnv};
use crate::test_user::TestUser;

const READERS: usize = 1000;
const AT_ONCE: Duration = Duration::from_millis(10);
const MIB: usize = 1024 * 1024;

/// Objects that no repository has carry this in their names, so that only their requests go unanswered.
const CROWD: [u8; 4] = [0xc0, 0xff, 0xee, 0x11];

/// Adds a folder of files whose objects exist nowhere.
fn add_crowd(repository: &Repository) {
    let craft = RevisionBuilder::of(repository);
    craft.add_directory("crowd");
    for number in 0..READERS + 1 {
        let mut digest = [0; 20];
        digest[1..5].copy_from_slice(&CROWD);
        digest[5..13].copy_from_slice(&(number as u64).to_le_bytes());
        craft.add_file("/crowd", &format!("f{number}"), 4096, digest);
    }
    craft.publish(repository);
}

/// Makes the server silent for some objects until dropped, so that a failed assertion doesn't leave readers waiting.
struct Silence(Rule);

impl Silence {
    fn of(mirror: &Mirror) -> Silence {
        Silence(mirror.fault(|path| path.contains("c0ffee11"), Fault::NoAnswer))
    }
}

impl Drop for Silence {
    fn drop(&mut self) {
        self.0.lift();
    }
}

fn timed(what: impl FnOnce()) -> Duration {
    let start = Instant::now();
    what();
    start.elapsed()
}

/// Number of tries, of which the lower quartile counts: a loaded machine delays any reader now and then, and one that
/// waits for the silent server would be delayed each time.
const TRIES: usize = 21;

fn assert_at_once(what: &str, mut attempt: impl FnMut() -> Duration) {
    let mut times: Vec<Duration> = (0..TRIES).map(|_| attempt()).collect();
    times.sort();
    println!("{what}: {:?} to {:?}, lower quartile {:?}", times[0], times[TRIES - 1], times[TRIES / 4]);
    assert!(times[TRIES / 4] < AT_ONCE, "{what} took {times:?}");
}

/// > P2: A cached read and a stat answer at once, however many other reads wait for a server that does not.
///
/// > P3: A program that waits for a server can be killed and is gone within a second.
#[test]
fn a_thousand_waiting_reads_delay_no_other_reader() {
    let repository = fixture::FULL.unpack();
    add_crowd(&repository);
    let mirror = Mirror::serve(repository.document_root());
    let world = TestEnv::alone(TestUser::ordinary(), repository, mirror);
    // Now that no other test compares limits.
    esker_testkit::descriptors::allow(2 * READERS as u64);
    let mounted = world.mount(&[]);
    mounted.does(|| fs::read(mounted.path("data/random.bin"))).expect("a file worth caching");
    mounted.does(|| fs::metadata(mounted.path("data"))).expect("a directory");

    std::thread::scope(|scope| {
        let silence = Silence::of(&world.mirror);
        scope.spawn(|| mounted.does(|| wait_in_crowd(&mounted.path("crowd"))));
        mounted.wait_until("a thousand waiting reads", |status| {
            status["waiting"].as_u64().is_some_and(|waiting| waiting >= READERS as u64)
        });
        silence.0.assert_hit();

        mounted.does(|| {
            let file = File::open(mounted.path("data/random.bin")).expect("opening");
            let mut buffer = vec![0; MIB];
            assert_at_once("a cached read of 1 MiB", || {
                // Drops it from the page cache, so that the read reaches the daemon.
                let all = std::num::NonZeroU64::new(2 * MIB as u64);
                rustix::fs::fadvise(&file, 0, all, rustix::fs::Advice::DontNeed).expect("fadvise");
                timed(|| file.read_exact_at(&mut buffer, 0).expect("reading"))
            });
            let mut number = 0;
            assert_at_once("a stat of what the kernel knows", || {
                timed(|| assert!(fs::symlink_metadata(mounted.path("data/random.bin")).is_ok()))
            });
            assert_at_once("a stat of what it does not know", || {
                number += 1;
                timed(|| {
                    assert!(fs::symlink_metadata(mounted.path(&format!("data/absent-{number}"))).is_err())
                })
            });
        });

        let mut caller = world
            .person
            .command("cat")
            .arg(mounted.path(&format!("crowd/f{READERS}")))
            .stdout(Stdio::null())
            .spawn()
            .expect("a program that waits");
        mounted.wait_until("one more waiting read", |status| {
            status["waiting"].as_u64().is_some_and(|waiting| waiting > READERS as u64)
        });
        let took = timed(|| {
            caller.kill().expect("killing");
            caller.wait().expect("waiting");
        });
        assert!(took < Duration::from_secs(1), "a killed program was gone after {took:?}");
        println!("a killed program was gone after {took:?}");
    });
}

/// Reads every file of the folder at once, a thread each; all fail once the server replies.
fn wait_in_crowd(folder: &std::path::Path) {
    std::thread::scope(|scope| {
        for number in 0..READERS {
            let path = folder.join(format!("f{number}"));
            let reader = std::thread::Builder::new().stack_size(64 * 1024);
            reader
                .spawn_scoped(scope, move || {
                    let read = File::open(path).and_then(|mut file| file.read(&mut [0; 16]));
                    assert_eq!(read.expect_err("nothing to read").raw_os_error(), Some(libc::EIO));
                })
                .expect("a thread");
        }
    });
}

/// Listing and looking up a hundred thousand names takes no more work per name than with a few.
#[test]
fn a_hundred_thousand_names_in_one_directory_are_listed() {
    look_at_a_hundred_thousand_names(TestUser::ordinary(), &[]);
    match TestUser::root() {
        Some(root) => look_at_a_hundred_thousand_names(root, &["--fixed", "--show-with", "erofs"]),
        None => skip_part!("only root mounts EROFS"),
    }
}

fn look_at_a_hundred_thousand_names(person: TestUser, options: &[&str]) {
    const NAMES: usize = 100_000;
    let repository = fixture::FULL.unpack();
    let craft = RevisionBuilder::of(&repository);
    craft.add_directory("huge");
    for number in 0..NAMES {
        craft.add_file("/huge", &format!("name-{number}"), 1, [1; 20]);
    }
    craft.publish(&repository);
    let mirror = Mirror::serve(repository.document_root());
    let world = TestEnv::alone(person, repository, mirror);
    let mounted = world.mount(options);
    let took = timed(|| {
        let seen: u64 = mounted.does(|| {
            let entries = fs::read_dir(mounted.path("huge")).expect("listing");
            entries.map(|entry| entry.expect("an entry").metadata().expect("stat").len()).sum()
        });
        assert_eq!(seen, NAMES as u64);
    });
    println!("listing and looking at {NAMES} names took {took:?}");
    assert!(took < PATIENCE / 2, "{took:?} for {NAMES} names is not linear work");
}

/// > P10: With a server that says nothing, statfs, stat of the mount point and of what is known, a listing that is known, and the attributes that tell of the mount are answered at once without a request.
#[test]
fn known_metadata_needs_no_server() {
    let world = TestEnv::new(TestUser::ordinary(), fixture::FULL);
    let mounted = world.mount(&["--no-prefetch"]);
    let known = mounted.path("data");
    let names = |folder: &std::path::Path| mounted.does(|| fs::read_dir(folder).expect("listing").count());
    let before = names(&known);
    let file = mounted.path("data/random.bin");
    mounted.does(|| fs::metadata(&file)).expect("a file");
    std::thread::scope(|scope| {
        let silence = Silence(world.mirror.fault(|_| true, Fault::NoAnswer));
        // A reader waits for the server, which has the request and is silent.
        scope.spawn(|| mounted.does(|| fs::read(&file).map(drop)));
        silence.0.wait_for_hits(1);
        // Known names are in catalogs; the read goes on requesting its object.
        let asked_for_catalogs = || world.mirror.count(|path| path.ends_with('C'));
        let asked = asked_for_catalogs();
        let root = world.mountpoint();
        let programs: [(&str, &[&str], &std::path::Path); 6] = [
            ("df", &[], &root),
            ("df", &["-i"], &root),
            ("stat", &["-f"], &root),
            ("stat", &[], &root),
            ("stat", &[], &file),
            ("ls", &["-la"], &known),
        ];
        for (program, options, path) in programs {
            let mut command = world.person.command(program);
            let (output, took) = crate::faults::ended(
                {
                    command.args(options).arg(path);
                    command
                },
                PATIENCE,
            );
            assert!(output.status.success(), "{program}: {}", crate::test_env::words(&output));
            assert!(took < PATIENCE / 6, "{program} took {took:?}");
        }
        for name in [
            "user.fqrn",
            "user.revision",
            "user.nioerr",
            "user.esker.error",
            "user.repo_counters",
            "user.host",
            "user.proxy",
            "user.rx",
            "user.hitrate",
            "user.pubkeys",
        ] {
            let took = timed(|| {
                let mut value = [0; 4096];
                let got = mounted.does(|| rustix::fs::getxattr(&root, name, &mut value[..]));
                assert!(got.is_ok(), "{name}: {got:?}");
            });
            assert!(took < PATIENCE / 6, "{name} took {took:?}");
        }
        assert_eq!(names(&known), before);
        assert_eq!(asked_for_catalogs(), asked, "the server was asked");
    });
}
