//! `make demo`: its script with a small folder. It shows the promised steps and leaves nothing, however it ends.

use std::fs::{self, File};
use std::io::{BufRead, BufReader, Read};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::sync::mpsc::channel;
use std::thread;

use esker_testkit::{fixture, programs};
use rustix::fs::{CWD, FileType, Mode, mknodat};
use rustix::process::{Pid, Signal, kill_process_group};

use crate::test_env::{PATIENCE, TestEnv, words};
use crate::test_user::TestUser;

/// The last words of a demo.
const NOTHING_LEFT: &str = "nothing is left of the demo: no mount, no process, no file";

/// The scripts of the demo and a folder to show.
struct Stage {
    world: TestEnv,
}

impl Stage {
    fn new(person: TestUser) -> Self {
        let world = TestEnv::new(person, fixture::RMD);
        let stage = Self { world };
        let scripts = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../scripts");
        // Other users may be unable to reach the source tree.
        let copies = stage.world.path("scripts");
        fs::create_dir(&copies).expect("a folder");
        for name in ["demo.sh", "demo-inside.sh", "demo-table.awk"] {
            programs::copy(&scripts.join(name), &copies.join(name));
        }
        fs::set_permissions(&copies, fs::Permissions::from_mode(0o755)).expect("a mode");
        person.does(|| {
            for folder in ["tree/bin", "tmp"] {
                fs::create_dir_all(stage.home(folder)).expect("a folder");
            }
            fs::write(stage.home("tree/data"), vec![7; 100_000]).expect("a file");
        });
        let program = stage.home("tree/bin/program");
        programs::write(person.command("sh"), &program, "#!/bin/sh\nwc -c <data\npwd\n");
        stage
    }

    fn home(&self, name: &str) -> PathBuf {
        self.world.path("home").join(name)
    }

    /// Returns the demo of a command; `via` is its way to mount.
    fn demo(&self, via: &str, command: &str) -> Command {
        let mut demo = self.world.person.command(self.world.path("scripts/demo.sh"));
        demo.arg(self.world.program())
            .env_clear()
            .env("PATH", std::env::var_os("PATH").unwrap_or_default())
            .env("HOME", self.world.path("home"))
            .env("XDG_RUNTIME_DIR", self.world.path("run"))
            .env("ESKER_CACHE", self.world.path("home/.cache/esker"))
            .env("ESKER_CONFIG_ROOT", self.world.config_root())
            .env("TMPDIR", self.home("tmp"))
            .env("DEMO_DIR", self.home("tree"))
            .env("DEMO_CMD", command)
            .env("DEMO_VIA", via)
            .current_dir("/")
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            // A file, because a remaining process would keep a pipe open, and the test waiting.
            .stderr(File::create(self.errors()).expect("a file"))
            .process_group(0);
        demo
    }

    fn errors(&self) -> PathBuf {
        self.world.path("errors")
    }

    /// Returns the output of a demo, its errors last.
    fn words(&self, output: &Output) -> String {
        words(output) + &fs::read_to_string(self.errors()).expect("its errors")
    }

    /// Returns all files below the folders that a demo could write to.
    fn files(&self) -> Vec<PathBuf> {
        let mut found = Vec::new();
        let mut folders = vec![self.world.path("home"), self.world.path("run")];
        while let Some(folder) = folders.pop() {
            for entry in fs::read_dir(&folder).expect("a folder") {
                let path = entry.expect("an entry").path();
                if path.is_dir() {
                    folders.push(path.clone());
                }
                found.push(path);
            }
        }
        found.sort();
        found
    }

    /// Asserts that no mount, process or file is left that was not there `before`.
    #[track_caller]
    fn assert_nothing_left(&self, before: &[PathBuf], after_what: &str) {
        assert_eq!(self.files(), before, "files after {after_what}");
        let ours = self.home("tmp");
        let ours = ours.as_os_str().as_bytes();
        let mounts = fs::read("/proc/self/mountinfo").expect("the mounts");
        assert!(!contains(&mounts, ours), "mounts after {after_what}");
        for process in fs::read_dir("/proc").expect("the processes") {
            // Those of others can't be read, and those that end meanwhile are no longer there.
            let environment = fs::read(process.expect("an entry").path().join("environ")).unwrap_or_default();
            assert!(!contains(&environment, ours), "a process is left after {after_what}");
        }
    }
}

fn contains(text: &[u8], part: &[u8]) -> bool {
    text.windows(part.len()).any(|window| window == part)
}

/// Returns the numbers in the line of the table that begins with `title`.
#[track_caller]
fn row(output: &str, title: &str) -> Vec<f64> {
    let line = output.lines().find(|line| line.starts_with(title));
    let line = line.unwrap_or_else(|| panic!("no line {title:?} in {output}"));
    let cells = line[title.len()..].split_whitespace();
    cells.map(|cell| cell.parse().unwrap_or_else(|_| panic!("{cell:?} in {line:?}"))).collect()
}

/// Returns all users with their ways to mount: root's own way is `mount` only, since root needs no namespace of its
/// own.
fn ways() -> impl Iterator<Item = (TestUser, &'static str)> {
    TestUser::all().into_iter().flat_map(|person| {
        let ways: &[&str] = if person.is_root() { &["mount"] } else { &["mount", "run"] };
        ways.iter().map(move |way| (person, *way))
    })
}

#[test]
fn the_demo_shows_times_and_fetched_bytes() {
    for (person, way) in ways() {
        let stage = Stage::new(person);
        let before = stage.files();
        let command = r#"bin/program >"$OUT/said" && cat "$OUT/said""#;
        let output = stage.demo(way, command).output().expect("running the demo");
        assert!(output.status.success(), "{way}: {}", stage.words(&output));
        let text = String::from_utf8_lossy(&output.stdout).into_owned();
        let place = if way == "run" { "/cvmfs/demo.test" } else { "/mnt" };
        assert!(text.contains("100000\n") && text.contains(place), "the program's output: {text}");
        let [native, cold, warm, hot] = row(&text, "times native")[..] else { panic!("{text}") };
        assert!(native == 1.0 && cold > 0.0 && warm > 0.0 && hot > 0.0, "{text}");
        let fetched = row(&text, "objects fetched");
        assert!(fetched[0] >= 3.0, "catalog, program and data are fetched at first: {text}");
        assert_eq!(fetched[1..], [0.0, 0.0], "and never again: {text}");
        assert!(text.ends_with(&format!("{NOTHING_LEFT}\n")), "{text}");
        stage.assert_nothing_left(&before, way);
    }
}

/// A command that fails, here or only in the mount, ends the demo with its exit code and its error.
#[test]
fn a_failing_command_ends_the_demo_with_its_exit_code() {
    for (person, way) in ways() {
        let stage = Stage::new(person);
        let before = stage.files();
        let cases = [
            ("echo the reason; exit 7", 7, false),
            (r#"case $PWD in */tree) ;; *) echo the reason; exit 9; esac"#, 9, true),
        ];
        for (command, code, published) in cases {
            let output = stage.demo(way, command).output().expect("running the demo");
            let said = stage.words(&output);
            assert_eq!(output.status.code(), Some(code), "{way}: {said}");
            assert!(said.contains("the reason") && said.contains(&format!("exit code {code}")), "{said}");
            assert_eq!(said.contains("esker publish"), published, "{said}");
            stage.assert_nothing_left(&before, command);
        }
        let mut nowhere = stage.demo(way, "true");
        let output = nowhere.env("DEMO_DIR", "/no/such/folder").output().expect("running the demo");
        assert_eq!(output.status.code(), Some(2), "{}", stage.words(&output));
        assert!(stage.words(&output).contains("/no/such/folder"), "{}", stage.words(&output));
        stage.assert_nothing_left(&before, "a wrong folder");
    }
}

/// Starts a demo, and interrupts it once it has written a line that begins with `step`, to its output or to `also`.
/// Ctrl-C reaches the whole process group, as from a terminal; the outcome is always the same.
#[track_caller]
fn interrupt_at(step: &str, stage: &Stage, mut demo: Command, before: &[PathBuf], also: Option<PathBuf>) {
    let mut demo = demo.spawn().expect("the demo");
    let (sender, lines) = channel();
    let forward = |source: Box<dyn Read + Send>| {
        let sender = sender.clone();
        thread::spawn(move || {
            for line in BufReader::new(source).lines() {
                // The receiver needs only one line.
                let _ = sender.send(line.expect("a line"));
            }
        })
    };
    let output = forward(Box::new(demo.stdout.take().expect("its output")));
    if let Some(also) = also {
        // Opening waits for a writer; should none come, the thread stays and the test fails below.
        let sender = sender.clone();
        thread::spawn(move || sender.send(fs::read_to_string(also).expect("a line")));
    }
    drop(sender);
    while !lines.recv_timeout(PATIENCE).expect("the step is reached").starts_with(step) {}
    let group = Pid::from_raw(demo.id().cast_signed()).expect("a process");
    kill_process_group(group, Signal::INT).expect("a signal");
    output.join().expect("the rest of its output");
    let output = demo.wait_with_output().expect("its end");
    assert_eq!(output.status.code(), Some(130), "{step}: {}", stage.words(&output));
    assert_eq!(
        lines.iter().last().as_deref().unwrap_or_default(),
        NOTHING_LEFT,
        "{step}: {}",
        stage.words(&output)
    );
    stage.assert_nothing_left(before, step);
}

#[test]
fn ctrl_c_leaves_nothing_at_any_step() {
    for (person, way) in ways() {
        let stage = Stage::new(person);
        let (reached, never) = (stage.home("reached"), stage.home("never"));
        for fifo in [&reached, &never] {
            let made = person.does(|| mknodat(CWD, fifo, FileType::Fifo, Mode::from_raw_mode(0o600), 0));
            made.expect("a fifo");
        }
        let before = stage.files();
        for step in ["$ esker repo create", "$ esker serve", &format!("$ esker {way}")] {
            interrupt_at(step, &stage, stage.demo(way, "bin/program"), &before, None);
        }
        // The command waits in the mount for an object that never comes.
        let command = format!(
            "case $PWD in */tree) ;; *) echo reached >{}; exec cat {}; esac",
            reached.display(),
            never.display()
        );
        interrupt_at("reached", &stage, stage.demo(way, &command), &before, Some(reached));
    }
}

/// `make demo` prints the duration of its build beforehand, and ends if the first call of rustc fails, even if the
/// next one would not.
#[test]
fn make_reports_its_duration_and_needs_rustc() {
    let folder = tempfile::tempdir().expect("a folder");
    let path = |name: &str| folder.path().join(name);
    for name in ["scripts", "bin"] {
        fs::create_dir(path(name)).expect("a folder");
    }
    let makefile = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../Makefile");
    fs::copy(makefile, path("Makefile")).expect("the Makefile");
    let script = |name: &str, text: &str| {
        programs::write(Command::new("sh"), &path(name), &format!("#!/bin/sh\n{text}\n"));
    };
    for name in ["release", "strip", "static", "demo"] {
        script(&format!("scripts/{name}.sh"), &format!("echo {name} \"$@\""));
    }
    script(
        "bin/rustc",
        "[ -e \"$0.called\" ] || { : >\"$0.called\"; echo no toolchain >&2; exit 1; }; echo host: here-linux",
    );
    let make = || {
        let mut command = Command::new("make");
        let inherited = std::env::var("PATH").unwrap_or_default();
        command.arg("demo").current_dir(folder.path()).env_clear();
        command.env("PATH", format!("{}:{inherited}", path("bin").display()));
        command.output().expect("running make")
    };
    let failed = make();
    let said = words(&failed);
    assert!(!failed.status.success() && said.contains("rustc does not work"), "{said}");
    assert!(said.contains("no toolchain") && !said.contains("release here"), "{said}");
    assert!(path("bin/rustc.called").exists(), "rustc was called");
    let done = make();
    let said = words(&done);
    assert!(done.status.success(), "{said}");
    let (estimate, build) = (said.find("minutes").expect("an estimate"), said.find("\nrelease here-linux"));
    assert!(build.is_some_and(|build| estimate < build), "{said}");
    assert!(said.contains("\ndemo target/here-linux/release/esker"), "{said}");
}
