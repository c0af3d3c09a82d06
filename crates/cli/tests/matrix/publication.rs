//! Publishes revisions while many processes read, map and execute the changed files.

use std::fs::{self, File};
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use esker_testkit::soak::{Random, Soak};
use esker_testkit::sys::Mapped;
use esker_testkit::waiting::for_moment_of_fault;
use rustix::process::Signal;

use crate::daemons::{serving_daemon, signal, wait_until_gone};
use crate::publishing::{NAME, Workshop};
use crate::served::Served;
use crate::test_env::{Mounted, words};
use crate::test_user::TestUser;

/// Time to live of the head, in milliseconds.
const TTL_MS: usize = 500;

/// Size of a trial.
struct Size {
    /// The least number of revisions; a soak makes more.
    revisions: u64,
    /// Processes that read, and as many that execute.
    readers: usize,
    /// Threads that map.
    mappers: usize,
}
const FILES: [&str; 2] = ["data/one", "data/two"];
/// Lines of a file: enough that it has many chunks, and many reads.
const LINES: usize = 40_000;

/// Reads a file again and again. All its lines must be the same, and no version older than the last.
const READ: &str = r#"
last=0
while :; do
    [ -e "$STOP" ] && over=1
    v=$(awk 'NR == 1 { v = $1 } $1 != v { exit 9 } END { if (NR != 40000) exit 8; print v }' "$FILE") || exit 3
    [ "$v" -ge "$last" ] || exit 4
    [ "$v" = "$last" ] || { last=$v; seen="$seen $v"; }
    [ -z "$over" ] || break
done
echo $seen
"#;

/// Checks a program: each of its lines has its version, and the shell reads them one after the other.
const EXECUTE: &str = r#"
last=0
while :; do
    [ -e "$STOP" ] && over=1
    v=$("$FILE") || exit 5
    [ "$v" -ge "$last" ] || exit 6
    [ "$v" = "$last" ] || { last=$v; seen="$seen $v"; }
    [ -z "$over" ] || break
done
echo $seen
"#;

fn content(version: u64) -> String {
    format!("{version:06}\n").repeat(LINES)
}

fn program(version: u64) -> String {
    let line = format!("[ \"$v\" = {version} ] || exit 7\n").repeat(400);
    format!("#!/bin/sh\nv={version}\n{line}echo $v\n")
}

fn write(tree: &Path, version: u64) {
    fs::create_dir_all(tree.join("data")).expect("a folder");
    for file in FILES {
        fs::write(tree.join(file), content(version)).expect("a file");
    }
    // A file that is not executed meanwhile: a running program can't be written to.
    fs::write(tree.join("program"), program(version)).expect("a file");
    fs::set_permissions(tree.join("program"), fs::Permissions::from_mode(0o755)).expect("a mode");
}

/// Stops the processes on drop.
struct Stop<'a>(&'a Path);

impl Drop for Stop<'_> {
    fn drop(&mut self) {
        // Where it can't be given the test fails for another reason, and its processes end with their mount.
        let _ = fs::write(self.0, "");
    }
}

/// Starts a process of the mounting user.
fn start(mounted: &Mounted<'_>, workshop: &Workshop, script: &str, file: &str) -> Child {
    let mut command: Command = workshop.world.person.command(Path::new("/bin/sh"));
    command.args(["-c", script]).env("FILE", mounted.path(file)).env("STOP", workshop.home("stop"));
    command.current_dir("/").stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().expect("a process")
}

/// Returns the version of a mapped file, all of whose lines must be the same.
fn version_of(mapped: &Mapped) -> u64 {
    let text = std::str::from_utf8(mapped.bytes()).expect("text");
    let first = text.get(..7).expect("a line");
    assert_eq!(text.len(), 7 * LINES);
    assert!(text.as_bytes().chunks(7).all(|line| line == first.as_bytes()), "versions are mixed");
    first.trim_end().parse().expect("a number")
}

/// Maps a file again and again, and keeps some of the mappings to the end.
fn map(path: &Path, stop: &Path) -> u64 {
    let (mut last, mut kept) = (0, Vec::new());
    loop {
        let over = stop.exists();
        let mapped = Mapped::of(&File::open(path).expect("opening"), 7 * LINES).expect("mapping");
        let version = version_of(&mapped);
        assert!(version >= last, "version {version} after {last}");
        if version != last && kept.len() < 8 {
            kept.push((version, mapped));
        }
        last = version;
        if over {
            break;
        }
    }
    // A mapped file never changes.
    kept.iter().for_each(|(version, mapped)| assert_eq!(version_of(mapped), *version));
    last
}

/// > V8: While revisions are published, every process sees each file whole and from one revision, never an older one after a newer one, and the last one in the end.
#[test]
fn soak_readers_see_whole_files_of_one_revision_during_publication() {
    let size = Size { revisions: 50, readers: 14, mappers: 4 };
    let switches = read_during_publication(Soak::begin("publication"), &size, |_| ());
    assert!(switches > 4, "{switches} changes of revision");
}

/// The same holds while the daemon of the mount is killed at any moment of a change of revision.
#[test]
fn soak_readers_see_whole_files_while_daemons_are_killed_during_publication() {
    let soak = Soak::begin("killed_during_publication");
    let mut random = Random(soak.seed());
    let size = Size { revisions: 16, readers: 4, mappers: 2 };
    read_during_publication(soak, &size, |mounted| {
        let daemon = serving_daemon(mounted);
        // Within the time to live the daemon finds, reads and applies a revision; the moment is what is tried here.
        for_moment_of_fault(Duration::from_millis(random.below(TTL_MS) as u64));
        signal(daemon, Signal::KILL);
        wait_until_gone(daemon);
    });
}

/// Publishes revisions while processes read, calls `disturb` after each, and checks what the processes saw. Returns how
/// often the last daemon changed the revision.
fn read_during_publication(mut soak: Soak, size: &Size, mut disturb: impl FnMut(&Mounted<'_>)) -> u64 {
    let workshop = Workshop::with(TestUser::ordinary(), |tree| write(tree, 1));
    let world = &workshop.world;
    let output = workshop.esker(&["repo", "create", NAME, "--chunks", "16K,32K,64K"]);
    assert!(output.status.success(), "{}", words(&output));
    workshop.json(&["publish", NAME, &workshop.tree()]);
    let key = workshop.home(&format!("keys/{NAME}.pub"));
    fs::copy(key, world.path("key.pub")).expect("the key");
    let server = Served::start_as(world.person, Path::new(&workshop.home("storage")));
    let mounted = world.mount_of(&server.url(NAME), &["--ttl", &format!("{}", TTL_MS as f64 / 1000.0)]);
    let stop = workshop.home("stop");
    let mut processes: Vec<(&str, Child)> = Vec::new();
    for at in 0..size.readers {
        processes.push(("reader", start(&mounted, &workshop, READ, FILES[at % FILES.len()])));
        processes.push(("program", start(&mounted, &workshop, EXECUTE, "program")));
    }
    let (tree, path) = (workshop.tree(), mounted.path(FILES[0]));
    let revisions = std::thread::scope(|scope| {
        let mapping = || scope.spawn(|| world.person.does(|| map(&path, Path::new(&stop))));
        let mappers: Vec<_> = (0..size.mappers).map(|_| mapping()).collect();
        // However this ends, no process goes on for ever.
        let stopped = Stop(Path::new(&stop));
        let mut version = 1;
        while soak.goes_on_until(size.revisions) {
            version += 1;
            world.person.does(|| write(Path::new(&tree), version));
            workshop.json(&["publish", NAME, &tree]);
            disturb(&mounted);
        }
        mounted.wait_until("the last revision", |status| status["revision"] == version);
        drop(stopped);
        for mapper in mappers {
            assert_eq!(mapper.join().expect("a mapper"), version);
        }
        version
    });
    soak.finish(&[("revisions", &revisions)]);
    let mut most = 0;
    for (kind, process) in processes {
        let output = process.wait_with_output().expect("its end");
        assert!(output.status.success(), "{kind}: {}", words(&output));
        let seen = String::from_utf8_lossy(&output.stdout).into_owned();
        let seen: Vec<u64> = seen.split_whitespace().map(|one| one.parse().expect("a number")).collect();
        assert_eq!(seen.last(), Some(&revisions), "{kind} saw {seen:?}");
        most = most.max(seen.len());
    }
    assert!(most > 4, "the revisions came while files were read");
    let status = mounted.status();
    assert_eq!(status["errors"], serde_json::json!([]), "{status:#}");
    status["view"]["switches"].as_u64().expect("a number")
}
