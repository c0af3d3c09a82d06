//! `esker trace` and `esker top` over real mounts.

use std::collections::BTreeSet;
use std::fs;
use std::io::{BufRead, BufReader};
use std::os::unix::process::ExitStatusExt;
use std::path::Path;
use std::process::{Command, Output, Stdio};

use esker_testkit::fixture;
use rustix::process::Signal;
use serde_json::Value;

use crate::daemons::{signal, wait_until_gone};
use crate::test_env::{Mounted, TestEnv, complaint, printed, words};
use crate::test_user::TestUser;

/// Folders and files of the images: what the programs read, and what they do not.
const FILES: [(&str, &str); 4] =
    [("bin/tool", "a tool"), ("lib/one", "first"), ("lib/two", "second"), ("lib/unused", "nothing")];

/// Lists a folder, reads two files in a child process, and looks for two absent ones.
const PROGRAM: &str = r#"
ls "$1/bin" >/dev/null
sh -c 'cat "$1/lib/one" "$1/bin/tool"' sh "$1" >/dev/null
test ! -e "$1/lib/absent" && test ! -e "$1/none/below"
"#;

/// Builds an image of [`FILES`].
fn image(world: &TestEnv) -> String {
    let folder = tempfile::tempdir().expect("a folder");
    for (name, content) in FILES {
        let path = folder.path().join(name);
        fs::create_dir_all(path.parent().expect("a folder")).expect("a folder");
        fs::write(path, content).expect("a file");
    }
    let path = world.path("image.sqfs");
    let mut make = Command::new("mksquashfs");
    printed(make.arg(folder.path()).arg(&path).args(["-noappend", "-quiet", "-no-progress"]));
    path.to_str().expect("a path that is text").to_owned()
}

/// Traces [`PROGRAM`] and returns the report.
fn trace(world: &TestEnv, options: &[&str]) -> Value {
    let mut command = world.esker(&["trace", "--format", "json", "--output", "-"]);
    command.args(options).args(["--", "sh", "-c", PROGRAM, "sh"]).arg(world.mountpoint());
    let output = command.output().expect("running esker");
    assert!(output.status.success(), "{}", words(&output));
    serde_json::from_slice(&output.stdout).unwrap_or_else(|error| panic!("{error}: {}", words(&output)))
}

/// Returns the paths in the mount with this use.
fn paths(report: &Value, wanted: &str) -> BTreeSet<String> {
    let files = report["files"].as_array().expect("files");
    let of = files.iter().filter(|file| file["use"] == wanted);
    of.map(|file| file["path_in_mount"].as_str().expect("a path").to_owned()).collect()
}

/// Returns the trace of a world's mount: root traces the mounts of other tests, too.
fn mount_of<'r>(report: &'r Value, world: &TestEnv) -> &'r Value {
    let mountpoint = world.mountpoint();
    let mut mounts = report["mounts"].as_array().expect("mounts").iter();
    mounts.find(|mount| mount["mountpoint"] == mountpoint.to_str().expect("text")).expect("the mount")
}

fn set(names: &[&str]) -> BTreeSet<String> {
    names.iter().map(|name| (*name).to_owned()).collect()
}

/// Returns all paths that a report names.
fn named(report: &Value) -> BTreeSet<String> {
    ["read", "listed", "looked_up", "missing"].iter().flat_map(|kind| paths(report, kind)).collect()
}

/// Everything that [`PROGRAM`] names, except folders that the kernel may know.
fn expected() -> BTreeSet<String> {
    set(&["/bin/tool", "/lib/one", "/lib/absent", "/none"])
}

#[test]
fn a_trace_names_the_files_that_a_program_read_and_those_that_are_missing() {
    for person in TestUser::all() {
        let world = TestEnv::new(person, fixture::RMD);
        let _mounted = world.mount_of(&image(&world), &["--show-with", "fuse"]);
        let cold = trace(&world, &[]);
        assert_eq!(paths(&cold, "read"), set(&["/bin/tool", "/lib/one"]), "{cold:#}");
        assert_eq!(paths(&cold, "missing"), set(&["/lib/absent", "/none"]), "{cold:#}");
        assert_eq!(paths(&cold, "failed"), set(&[]), "{cold:#}");
        let mount = mount_of(&cold, &world);
        assert_eq!((&mount["complete"], &mount["dropped"]), (&true.into(), &0.into()), "{cold:#}");
        let commands: BTreeSet<&str> = cold["processes"]
            .as_array()
            .expect("processes")
            .iter()
            .map(|process| process["command"].as_str().expect("a name"))
            .collect();
        assert!(commands.contains("cat"), "a grandchild belongs to the program: {commands:?}");
        let blocked = &cold["blocked"];
        assert!(blocked["wall_us"].as_u64() > Some(0), "{blocked:#}");
        assert!(blocked["wall_us"].as_u64() <= cold["wall_us"].as_u64(), "{blocked:#}");
        // Now everything is in the kernel's caches, so that only a kernel that asks again names it.
        let hot = trace(&world, &["--every-name"]);
        assert!(named(&hot).is_superset(&expected()), "{hot:#}");
        assert!(!named(&hot).contains("/lib/unused"), "{hot:#}");
    }
}

/// Cold: from a server. Warm: from the cache, after a new mount. Hot: from the kernel.
#[test]
fn cold_warm_and_hot_starts_name_the_same_files() {
    let mut hand_overs = Vec::new();
    for person in TestUser::all() {
        let world = TestEnv::new(person, fixture::RMD);
        let report = |mounted: &Mounted<'_>| {
            let script = r#"cat "$1/sw/pkg-2.0/bin/hello" >/dev/null; test ! -e "$1/sw/absent""#;
            let mut command = world.esker(&["trace", "--every-name", "--format", "json", "--output", "-"]);
            command.args(["--", "sh", "-c", script, "sh"]).arg(mounted.path(""));
            serde_json::from_str::<Value>(&printed(&mut command)).expect("JSON")
        };
        let source = |report: &Value| {
            let files = report["files"].as_array().expect("files");
            let hello = files.iter().find(|file| file["path_in_mount"] == "/sw/pkg-2.0/bin/hello");
            hello.map(|file| file["source"].clone()).unwrap_or_default()
        };
        let mounted = world.mount(&["--no-prefetch"]);
        let cold = report(&mounted);
        assert_eq!(source(&cold), "network", "{cold:#}");
        let servers =
            cold["files"].as_array().expect("files").iter().flat_map(|file| file["places"].as_array());
        assert!(servers.flatten().any(|place| *place == world.url()), "{cold:#}");
        let hot = report(&mounted);
        drop(mounted);
        let mounted = world.mount(&["--no-prefetch"]);
        let warm = report(&mounted);
        assert_eq!(source(&warm), "cache", "{warm:#}");
        for report in [&cold, &warm, &hot] {
            assert!(named(report).contains("/sw/pkg-2.0/bin/hello"), "{report:#}");
            assert!(paths(report, "missing").contains("/sw/absent"), "{report:#}");
            assert_eq!(report["blocked"]["by_cause_us"].as_object().map(serde_json::Map::len), Some(5));
            hand_overs.push(mount_of(report, &world)["hand_over_ns"].as_u64());
            let main = &report["main_thread"];
            assert!(main["ran_us"].as_u64() > Some(0) && main["waited_for_core_us"].is_u64(), "{main:#}");
        }
    }
    // A busy machine may hide it: a daemon counts a latency after its reply.
    assert!(hand_overs.iter().any(|time| *time > Some(0)), "{hand_overs:?}");
}

#[test]
fn a_trace_is_written_in_all_forms() {
    let world = TestEnv::new(TestUser::ordinary(), fixture::RMD);
    let _mounted = world.mount_of(&image(&world), &[]);
    let run = |format: &str| -> Output {
        let mut command =
            world.esker(&["trace", "--every-name", "--format", format, "--", "sh", "-c", PROGRAM, "sh"]);
        command.arg(world.mountpoint()).output().expect("running esker")
    };
    let text = |output: &Output| String::from_utf8(output.stderr.clone()).expect("text");
    let table = text(&run("table"));
    assert!(
        table.contains("waited") && table.contains("/lib/one") && table.contains("names do not exist"),
        "{table}"
    );
    let folded = text(&run("folded"));
    let line = folded.lines().find(|line| line.contains(";lib;one ")).unwrap_or_else(|| panic!("{folded}"));
    assert!(
        line.starts_with("cat;") && line.rsplit(' ').next().is_some_and(|count| count.parse::<u64>().is_ok())
    );
    let svg = text(&run("svg"));
    assert!(svg.starts_with("<?xml") && svg.trim_end().ends_with("</svg>"), "{svg}");
    well_formed(&svg);
    // The exit code is that of the command.
    let failing = complaint(&mut world.esker(&["trace", "--", "sh", "-c", "exit 7"]), 7);
    assert!(failing.contains("no request"), "{failing}");
    complaint(&mut world.esker(&["trace", "--", "/no/such/program"]), 127);
}

/// Checks that every element of an XML text is closed, in order.
fn well_formed(xml: &str) {
    let mut open = Vec::new();
    for piece in xml.split('<').skip(1) {
        let (tag, rest) = piece.split_once('>').unwrap_or_else(|| panic!("an open tag: {piece}"));
        assert!(!rest.contains('>'), "{piece}");
        let name = tag.trim_matches('/').split(' ').next().unwrap_or_default();
        match tag {
            _ if tag.starts_with('?') || tag.ends_with('/') => {}
            _ if tag.starts_with('/') => assert_eq!(open.pop(), Some(name)),
            _ => open.push(name),
        }
        for entity in rest.split('&').skip(1) {
            assert!(entity.contains(';'), "{rest}");
        }
    }
    assert_eq!(open, [""; 0]);
}

#[test]
fn a_running_process_is_traced_until_it_ends() {
    let world = TestEnv::new(TestUser::ordinary(), fixture::RMD);
    let _mounted = world.mount_of(&image(&world), &[]);
    // It reads once the trace runs, which it sees from the number of clients of the mount's socket: the trace's table
    // names the file.
    let script = r#"read go; cat "$1/lib/two""#;
    let mut program = world.person.command("sh");
    program.args(["-c", script, "sh"]).arg(world.mountpoint());
    program.stdin(std::process::Stdio::piped()).stdout(std::process::Stdio::piped());
    let mut program = program.spawn().expect("a program");
    let pid = program.id().to_string();
    let report = std::thread::scope(|scope| {
        let tracing = scope.spawn(|| {
            let mut command = world.esker(&["trace", "--pid", &pid, "--format", "json"]);
            printed(&mut command)
        });
        wait_for_trace(&world);
        drop(program.stdin.take());
        let report = tracing.join().expect("traced");
        assert!(program.wait().expect("ended").success());
        report
    });
    let report: Value = serde_json::from_str(&report).expect("JSON");
    assert_eq!(paths(&report, "read"), set(&["/lib/two"]), "{report:#}");
}

/// Waits until a daemon has a thread that writes a trace.
fn wait_for_trace(world: &TestEnv) {
    let status = printed(&mut world.esker(&["status", "--json"]));
    let status: Value = serde_json::from_str(&status).expect("JSON");
    let daemon = status["mounts"][0]["pid"].as_u64().expect("a process").to_string();
    let is_traced = || {
        let threads = fs::read_dir(Path::new("/proc").join(&daemon).join("task")).ok()?;
        let names =
            threads.flatten().filter_map(|thread| fs::read_to_string(thread.path().join("comm")).ok());
        names.into_iter().any(|name| name.trim() == "trace-writer").then_some(())
    };
    let pace = esker_testkit::waiting::Pace::PROCESS;
    pace.until_some(crate::test_env::PATIENCE, is_traced).expect("the trace begins");
}

#[test]
fn without_a_mount_there_is_nothing_to_trace() {
    let world = TestEnv::new(TestUser::ordinary(), fixture::RMD);
    let text = complaint(&mut world.esker(&["trace", "--", "true"]), 1);
    assert!(text.contains("no mount to trace") && text.contains("esker run NAME -- esker trace"), "{text}");
}

#[test]
fn top_prints_the_activity_of_all_mounts() {
    for person in TestUser::all() {
        let world = TestEnv::new(person, fixture::RMD);
        let mounted = world.mount(&[]);
        let second = world.path("home/second");
        person.does(|| fs::create_dir(&second)).expect("a folder");
        printed(world.esker(&["mount", &image(&world)]).arg(&second));
        mounted.does(|| fs::read_dir(mounted.path("")).expect("listing").count());
        let json = printed(&mut world.esker(&["top", "--json", "--count", "1"]));
        let text = printed(&mut world.esker(&["top", "--plain", "--count", "1"]));
        printed(world.esker(&["umount"]).arg(&second));
        let top: Value = serde_json::from_str(json.trim()).expect("one JSON object");
        let mounts = top["mounts"].as_array().expect("mounts");
        for place in [world.mountpoint(), second] {
            let place = place.to_str().expect("text");
            let mount = mounts.iter().find(|mount| mount["mountpoint"] == place);
            let mount = mount.unwrap_or_else(|| panic!("{place} is not in {top:#}"));
            assert_eq!(mount["state"], "serving", "{mount:#}");
            assert!(text.contains(place), "{text}");
        }
        assert!(text.starts_with("   REQ/S"), "{text}");
    }
}

#[test]
fn top_shows_a_daemon_that_hangs() {
    let world = TestEnv::new(TestUser::ordinary(), fixture::RMD);
    let mounted = world.mount(&[]);
    let pid = mounted.status()["pid"].as_i64().and_then(|pid| i32::try_from(pid).ok()).expect("a process");
    let pid = rustix::process::Pid::from_raw(pid).expect("a process");
    rustix::process::kill_process(pid, rustix::process::Signal::STOP).expect("stopped");
    let json = world.esker(&["top", "--json", "--count", "2"]).output();
    rustix::process::kill_process(pid, rustix::process::Signal::CONT).expect("continued");
    let output = json.expect("running esker");
    let text = String::from_utf8_lossy(&output.stdout);
    let last: Value = serde_json::from_str(text.lines().last().unwrap_or_default()).expect("JSON");
    assert_eq!(last["mounts"][0]["state"], "hanging", "{}", words(&output));
}

/// Ctrl-C goes to both, as the terminal does it; here only the trace gets the signal, and passes it on.
#[test]
fn a_signal_to_a_trace_ends_its_command() {
    let world = TestEnv::new(TestUser::ordinary(), fixture::RMD);
    let _mounted = world.mount(&[]);
    let script = "echo $$; exec sleep 1000";
    let mut trace = world.esker(&["trace", "--", "sh", "-c", script]);
    let mut trace = trace.stdout(Stdio::piped()).stderr(Stdio::null()).spawn().expect("esker");
    let mut line = String::new();
    BufReader::new(trace.stdout.take().expect("its output")).read_line(&mut line).expect("a line");
    signal(trace.id(), Signal::TERM);
    wait_until_gone(line.trim().parse().expect("a process id"));
    assert_eq!(trace.wait().expect("its end").signal(), Some(libc::SIGTERM));
}
