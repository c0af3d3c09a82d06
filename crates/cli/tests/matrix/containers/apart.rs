//! A hostile image under `--contain`, and the processes that keep it mounted.

use std::fs;
use std::io::{BufRead, BufReader};
use std::os::unix::process::ExitStatusExt;
use std::process::{Command, Stdio};

use rustix::process::{Pid, Signal, kill_process};

use super::Site;
use crate::test_env::{printed, words};
use crate::test_user::TestUser;

/// Lists the names of processes, and tries to read the file `$1` through the root and working directory of every
/// process, and to trace it.
const ATTACK: &str = "for p in /proc/[0-9]*; do echo $p $(cat $p/comm);\n\
                        for at in root cwd root/.esker-old-root cwd/.esker-old-root; do cat $p/$at$1 2>/dev/null; done\n\
                        for fd in $p/fd/*; do cat $fd$1 2>/dev/null; done\n\
                        [ ! -r $p/mem ] || (echo > $p/mem) 2>/dev/null; done; echo over";

/// > N9: A command under `--contain` doesn't see the processes that keep its image mounted or go ahead of it, and reaches no file of the host through them: it has no rights over them, also where it is root of its namespace.
#[test]
fn a_hostile_image_does_not_leave_through_the_processes_that_keep_it() {
    for person in TestUser::all() {
        let site = Site::of(person);
        site.root.write("/attack", ATTACK, 0o755);
        let secret = site.world.path("home/secret");
        fs::write(&secret, "the host's secret").expect("a file");
        std::os::unix::fs::chown(&secret, Some(person.uid), Some(person.gid)).expect("given away");
        let image = site.world.path("image.sqfs");
        let mut make = Command::new("mksquashfs");
        make.arg(site.root.path()).arg(&image).args(["-all-root", "-quiet", "-no-progress", "-noappend"]);
        printed(&mut make);
        let (image, secret) = (image.display().to_string(), secret.display().to_string());
        for options in [&["--contain"][..], &["--contain", "--fakeroot"], &["--contain", "--no-home"]] {
            let call = |command: &[&str]| {
                let mut call = site.world.esker(&["run", &image]);
                call.args(options).arg("--").args(command).current_dir(site.home());
                call
            };
            // Another command of the image, so that one shared mount is in service while another starts.
            let mut other = call(&["sh", "-c", "echo here; read never"]);
            let mut other =
                other.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().expect("running esker");
            let mut said = [0; 5];
            std::io::Read::read_exact(other.stdout.as_mut().expect("its output"), &mut said).expect("a line");
            let output = call(&["sh", "/attack", &secret]).output().expect("running esker");
            drop(other.stdin.take());
            assert!(other.wait().is_ok());
            let said = words(&output);
            assert!(said.contains("over") && !said.contains("secret"), "{person:?} {options:?}: {said}");
            assert!(
                said.contains("/proc/1 init") && !said.contains("esker"),
                "{person:?} {options:?}: {said}"
            );
        }
    }
}

/// The command has process ids of its own, and ends like any other.
#[test]
fn a_contained_command_ends_like_any_other() {
    for person in TestUser::all() {
        let site = Site::of(person);
        let run = |script: &str| site.run(&["--contain"], &["sh", "-c", script]);
        let output = run("exit 42").output().expect("running esker");
        assert_eq!(output.status.code(), Some(42), "{}", words(&output));
        let output = run("kill -TERM $$").output().expect("running esker");
        assert_eq!(output.status.signal(), Some(libc::SIGTERM), "{}", words(&output));
        let output = site.run(&["--contain"], &["no-such-program"]).output().expect("running esker");
        assert_eq!(output.status.code(), Some(127), "{}", words(&output));
        // Signals reach it, and its background processes go on.
        let mut child = run("trap 'echo caught; kill $!; exit 7' TERM; sleep 1000 & echo ready; wait")
            .stdout(Stdio::piped())
            .spawn()
            .expect("running esker");
        let mut lines = BufReader::new(child.stdout.take().expect("its output")).lines();
        assert_eq!(lines.next().expect("a line").expect("text"), "ready");
        let pid = Pid::from_child(&child);
        kill_process(pid, Signal::TERM).expect("sent");
        assert_eq!(lines.next().expect("a line").expect("text"), "caught");
        assert_eq!(child.wait().expect("its end").code(), Some(7));
        let (reader, writer) = std::io::pipe().expect("a pipe");
        let (behind, go) = std::io::pipe().expect("a pipe");
        let script = "exec 3<&0; (read go <&3; cat /made-for-this-test) & echo left";
        assert!(run(script).stdin(behind).stdout(writer).status().expect("running esker").success());
        drop(go);
        let lines: Vec<String> = BufReader::new(reader).lines().map(|line| line.expect("a line")).collect();
        assert_eq!(lines, ["left", "a system"]);
        // A killed `esker run` takes its command along.
        let mut child = run("echo ready; read never")
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .expect("running esker");
        let mut output = BufReader::new(child.stdout.take().expect("its output"));
        let mut line = String::new();
        output.read_line(&mut line).expect("a line");
        child.kill().expect("killed");
        assert_eq!(output.read_line(&mut line).expect("the end of its output"), 0);
        child.wait().expect("its end");
    }
}
