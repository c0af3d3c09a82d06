//! `esker run`: a repository around one command.

use std::collections::BTreeMap;
use std::fs;
use std::io::{BufRead as _, BufReader, Read as _};
use std::os::unix::net::UnixListener;
use std::process::{Child, ChildStdout, Stdio};

use esker_testkit::fixture::{self, Fixture};
use esker_testkit::mirror::Fault;
use rustix::mount::{MountFlags, mount};
use rustix::process::{Pid, Signal, kill_process};

use crate::broker::Broker;
use crate::test_env::{PATIENCE, TestEnv, complaint, mountinfo, with_private_mounts, words};
use crate::test_user::TestUser;

/// True if anything is mounted where `esker run` mounts, as seen from outside.
fn mounted_outside() -> bool {
    mountinfo().contains(" /cvmfs/")
}

/// > N1: The command sees the repository below `/cvmfs`, its exit code is passed on, and nothing is left mounted or running afterwards.
///
/// > N2: Under `esker run --fixed` a command sees the same tree below an overlay of the kernel (Linux 5.11 or newer), which answers its ioctls.
#[test]
fn a_command_sees_the_repository_and_leaves_nothing() {
    for person in TestUser::all() {
        for fixture in fixture::ALL {
            for (options, kind) in [(&[][..], "fuse.esker"), (&["--fixed"], "overlay")] {
                sees_the_repository(person, fixture, options, kind);
            }
        }
    }
}

fn sees_the_repository(person: TestUser, fixture: Fixture, options: &[&str], kind: &str) {
    let world = TestEnv::new(person, fixture);
    let mut command = world.run(options);
    let script = "grep -q \" /cvmfs/$0 $1 \" /proc/mounts && cd /cvmfs/\"$0\" && \
        find . -type f -perm -400 -print0 | sort -z | xargs -0 sha256sum -z && exit 42";
    let output = command.args(["sh", "-c", script, fixture.name(), kind]).output().expect("running esker");
    assert_eq!(output.status.code(), Some(42), "{}", words(&output));
    let expected: BTreeMap<Vec<u8>, String> = fixture
        .listing("v3")
        .into_iter()
        .filter(|entry| entry.is_file() && entry.mode & 0o400 != 0)
        .map(|entry| (entry.path.clone(), entry.sha256.expect("a file has content")))
        .collect();
    let lines = output.stdout.split(|byte| *byte == 0).filter(|line| !line.is_empty());
    let found: BTreeMap<Vec<u8>, String> =
        lines.map(|line| (line[67..].to_vec(), String::from_utf8_lossy(&line[..64]).into_owned())).collect();
    let (name, seen, all) = (fixture.name(), found.len(), expected.len());
    assert!(found == expected, "{name} as {person:?} {options:?}: {seen} files of {all}");
    assert!(!mounted_outside(), "no mount is left");
    assert_eq!(processes_naming(&world.mirror.url("")), [0; 0], "no process is left");
}

/// One call mounts several repositories, named in either way, and leaves nothing.
#[test]
fn a_command_sees_several_repositories() {
    for person in TestUser::all() {
        let world = TestEnv::new(person, fixture::RMD);
        let second = fixture::FULL.unpack();
        let key = world.path("second.pub");
        fs::copy(fixture::FULL.public_key(), &key).expect("copying a key");
        let (first_url, second_url) = (world.url(), second.file_url());
        let script =
            "find /cvmfs/rmd.test | wc -l; find /cvmfs/full.test | wc -l; grep -c ' /cvmfs/' /proc/mounts";
        for repositories in
            [&[&first_url, "--repo", &second_url] as &[&str], &["--repo", &first_url, "--repo", &second_url]]
        {
            let mut command = world.esker(&["run"]);
            command.args(repositories).arg("--public-key").arg(world.path("key.pub"));
            command.arg("--public-key").arg(&key).arg("--cache").arg(world.cache());
            let output = command.args(["--", "sh", "-c", script]).output().expect("running esker");
            assert!(output.status.success(), "{}", words(&output));
            let printed = String::from_utf8_lossy(&output.stdout);
            let counts: Vec<usize> = printed.lines().filter_map(|line| line.parse().ok()).collect();
            let [first, second, mounts] = *counts else { panic!("{person:?} {repositories:?}: {printed}") };
            assert!(first > 100 && second > 100 && mounts == 2, "{person:?} {repositories:?}: {printed}");
            assert!(!mounted_outside(), "no mount is left");
        }
        let refused = |arguments: &[&str], text: &str| {
            let mut command = world.esker(&["run"]);
            command.args(arguments).arg("--public-key").arg(world.path("key.pub"));
            let said = complaint(command.args(["--", "true"]), 2);
            assert!(said.contains(text), "{said}");
        };
        refused(&[&first_url, "--repo", &first_url], "rmd.test is named twice");
        refused(
            &[&first_url, "--repo", &second_url, "--tag", "v1"],
            "--tag names a revision of one repository",
        );
        refused(&[&first_url, "--repo", &second_url, "--fqrn", "a.b"], "--fqrn is for one repository");
    }
}

/// An ignored signal doesn't end the steps before the command either, as under `nohup`.
#[test]
fn a_signal_ignored_by_the_caller_stays_ignored() {
    let world = TestEnv::new(TestUser::ordinary(), fixture::RMD);
    let rule = world.mirror.fault(|path| path.ends_with("/.cvmfspublished"), Fault::Delay(PATIENCE));
    let call = world.run(&[]);
    let mut shell = world.person.command("/bin/sh");
    shell.args(["-c", "trap '' HUP; exec \"$@\"", "sh"]).arg(call.get_program()).args(call.get_args());
    shell.env_clear().envs(call.get_envs().filter_map(|(name, value)| Some((name, value?))));
    shell.args(["sh", "-c", "kill -HUP $$; echo alive"]).current_dir("/").stdout(Stdio::piped());
    let running = shell.spawn().expect("running a shell");
    rule.wait_for_hits(1);
    let told = kill_process(Pid::from_child(&running), Signal::HUP);
    rule.lift();
    told.expect("sent");
    let output = running.wait_with_output().expect("its end");
    assert_eq!(String::from_utf8_lossy(&output.stdout), "alive\n", "{}", words(&output));
}

/// Number of commands of a job that start at the same time.
const AT_ONCE: usize = 40;
/// Number of them beside the socket of a killed broker.
const FEW: usize = 6;
/// Event of a process that waits for a broker to come back.
const WAITS: &str = "waiting for a broker";

/// Starts `esker run`, as a script that prints a line, waits for the end of its input, and then reads all files.
fn start_waiting(world: &TestEnv, options: &[&str], levels: &str) -> (Child, BufReader<ChildStdout>) {
    let mut command = world.esker(&["run", &world.url(), "--public-key"]);
    command.arg(world.path("key.pub")).args(options).env("ESKER_LOG", levels);
    let script =
        "echo up; cat; cd /cvmfs/\"$0\"; find . -type f -perm -400 -exec cat {} + >/dev/null; echo read";
    command.args(["--", "sh", "-ec", script, world.fixture().name()]);
    command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = command.spawn().expect("running esker");
    let mut lines = BufReader::new(child.stdout.take().expect("its output"));
    let mut line = String::new();
    lines.read_line(&mut line).expect("a line");
    assert_eq!(line, "up\n", "{}", words(&child.wait_with_output().expect("its end")));
    (child, lines)
}

/// Has the script read, and returns what `esker run` said on stderr.
fn finish((mut child, mut lines): (Child, BufReader<ChildStdout>)) -> String {
    drop(child.stdin.take());
    let mut rest = String::new();
    lines.read_to_string(&mut rest).expect("its output");
    let output = child.wait_with_output().expect("its end");
    assert!(output.status.success() && rest == "read\n", "{rest}{}", words(&output));
    String::from_utf8_lossy(&output.stderr).into_owned()
}

/// Each of them may be the one that writes the cache, so each has to do without a writer when the one before ends.
#[test]
fn commands_at_once_never_wait_for_a_broker_that_is_not_there() {
    let is_root = TestUser::root().is_some();
    if is_root {
        with_private_mounts();
        mount("none", "/run", "tmpfs", MountFlags::empty(), None).expect("a place without a broker");
    }
    for person in TestUser::all() {
        let world = TestEnv::new(person, fixture::RMD);
        // A broker that was killed leaves its socket.
        for is_left in [false, true] {
            if is_left {
                if !is_root {
                    break;
                }
                fs::create_dir_all("/run/esker-broker").expect("a folder");
                drop(UnixListener::bind("/run/esker-broker/socket").expect("a socket"));
            }
            world.empty_cache();
            let start =
                |number| start_waiting(&world, &[], if number % 2 == 0 { "" } else { "cache-share=debug" });
            let count = if is_left { FEW } else { AT_ONCE };
            let all: Vec<_> = std::thread::scope(|scope| {
                let starting: Vec<_> = (0..count).map(|number| scope.spawn(move || start(number))).collect();
                starting.into_iter().map(|one| one.join().expect("a command")).collect()
            });
            for (number, one) in all.into_iter().enumerate() {
                let said = finish(one);
                assert!(!said.contains("broker") && !said.contains("warning"), "{person:?} {number}: {said}");
                assert!(number % 2 == 1 || said.is_empty(), "{person:?} {number}: {said}");
            }
        }
        if is_root {
            fs::remove_dir_all("/run/esker-broker").expect("removing it");
        }
    }
    // One that was used is waited for, which shows that the event is seen.
    let world = TestEnv::new(TestUser::ordinary(), fixture::RMD);
    let broker = Broker::start(&world);
    let options = broker.options();
    let one = start_waiting(&world, &options.each_ref().map(String::as_str), "cache-share=debug");
    broker.kill();
    let said = finish(one);
    assert!(said.contains(WAITS), "{said}");
}

/// Returns the ids of processes that have this text in their command line.
pub(crate) fn processes_naming(text: &str) -> Vec<u32> {
    let processes = fs::read_dir("/proc").expect("the list of processes");
    processes
        .filter_map(|entry| entry.ok()?.file_name().to_str()?.parse::<u32>().ok())
        .filter(|id| {
            fs::read(format!("/proc/{id}/cmdline"))
                .is_ok_and(|line| String::from_utf8_lossy(&line).contains(text))
        })
        .collect()
}

/// True if a request is for the content of a file: other objects have a letter behind their hash.
fn is_content(path: &str) -> bool {
    path.contains("/data/")
        && path.ends_with(|last: char| last.is_ascii_hexdigit() && !last.is_ascii_uppercase())
}

/// The status is gone with the run, so it reports the failures of reads itself: each cause once, and nothing without a
/// failure.
#[test]
fn the_cause_of_failed_reads_is_reported_once() {
    let faults = [
        (Fault::Missing, "no such object"),
        (Fault::FlipByte(3), "is damaged"),
        (Fault::Status(500), "status 500"),
    ];
    let world = TestEnv::new(TestUser::ordinary(), fixture::FULL);
    let script = "cd /cvmfs/\"$0\" && find . -type f -size -20k -perm -400 | head -n 5 | while read -r file; do \
        cat \"$file\"; done >/dev/null 2>&1; exit 7";
    let run = |options: &[&str]| {
        world.empty_cache();
        let mut command = world.run(options);
        let output =
            command.args(["sh", "-c", script, world.fixture().name()]).output().expect("running esker");
        assert_eq!(output.status.code(), Some(7), "the command's own code: {}", words(&output));
        String::from_utf8_lossy(&output.stderr).into_owned()
    };
    assert_eq!(run(&[]), "", "nothing failed");
    for (fault, cause) in faults {
        let rule = world.mirror.fault(is_content, fault.clone());
        let said = run(&["--no-prefetch", "--deadline", "2"]);
        assert!(rule.hits() > 2, "{fault:?}: only {} requests met the fault", rule.hits());
        rule.lift();
        let warnings: Vec<&str> = said.lines().filter(|line| line.starts_with("esker: warning: ")).collect();
        assert!(!warnings.is_empty() && warnings[0].contains(cause), "{fault:?}: {said}");
        let place = format!("{}:/", world.fixture().name());
        assert!(warnings.iter().all(|line| line.contains(&place)), "{fault:?}: {said}");
        // Damage is reported for each object, and a server's refusal may end as a timeout, too.
        if fault == Fault::Missing {
            assert_eq!(warnings.len(), 1, "{fault:?}: {said}");
            assert!(warnings[0].contains("more failures for this reason"), "{fault:?}: {said}");
        }
    }
}
