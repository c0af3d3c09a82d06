//! Parts of tests that run in processes of their own: this binary, started again.

use std::fs::File;
use std::io::{BufRead, BufReader, Read, Write};
use std::path::Path;
use std::process::{Child, ChildStdout, Command, Stdio};
use std::time::{Duration, Instant};

use esker_fuse::KernelMask;

use crate::mounted::{PATIENCE, until};
use crate::sys;

const TASK: &str = "ESKER_TEST_TASK";
const PATH: &str = "ESKER_TEST_PATH";

/// Does what its environment says; without that, it is a test without content.
#[test]
fn a_child_process_does_its_task() {
    let Ok(task) = std::env::var(TASK) else { return };
    let path = std::env::var(PATH).expect("a path");
    let path = Path::new(&path);
    let task = match task.strip_prefix("hidden-") {
        Some(task) => {
            // As of a program that was set-user-ID, or has changed its user.
            let hidden = rustix::process::DumpableBehavior::NotDumpable;
            rustix::process::set_dumpable_behavior(hidden).expect("not dumpable");
            task.to_owned()
        }
        None => task,
    };
    // Tests send their signals to this thread.
    println!("\nready {}", rustix::thread::gettid().as_raw_nonzero());
    std::io::stdout().flush().expect("told");
    let result = match task.as_str() {
        "read" => read(path),
        "stat" => std::fs::symlink_metadata(path).map(|m| m.len().to_string()),
        "list" => std::fs::read_dir(path).map(|names| names.count().to_string()),
        "map" => Ok(sys::read_mapped(&File::open(path).expect("open")).len().to_string()),
        "catch-stat" => {
            [libc::SIGALRM, libc::SIGTERM, libc::SIGUSR1].into_iter().for_each(sys::catch);
            println!("caught");
            let result = std::fs::symlink_metadata(path).map(|m| m.len().to_string());
            println!("signals {}", sys::caught());
            result
        }
        "namespace" => crate::people::mount_and_hand_over(path),
        "until-killed-27" => crate::resume::serve_until_killed(KernelMask::LINUX_4_18, path),
        "until-killed-34" => crate::resume::serve_until_killed(KernelMask::LINUX_5_14, path),
        "until-killed-45" => crate::resume::serve_until_killed(KernelMask::LINUX_6_18, path),
        "serve" => crate::people::serve_for_others(),
        other => panic!("unknown task {other}"),
    };
    match result {
        Ok(text) => println!("result {text}"),
        Err(e) => println!("error {}", e.raw_os_error().unwrap_or(-1)),
    }
    std::process::exit(0);
}

fn read(path: &Path) -> std::io::Result<String> {
    let mut bytes = Vec::new();
    File::open(path)?.read_to_end(&mut bytes)?;
    Ok(bytes.len().to_string())
}

/// A process that does one task.
pub(crate) struct Task {
    pub(crate) child: Child,
    pub(crate) tid: u32,
    lines: BufReader<ChildStdout>,
}

/// The command that does `task` on `path`.
pub(crate) fn command(program: &Path, task: &str, path: &Path) -> Command {
    let mut command = Command::new(program);
    command.args(["--exact", "child::a_child_process_does_its_task", "--nocapture", "--test-threads=1"]);
    command.env(TASK, task).env(PATH, path).stdout(Stdio::piped()).stderr(Stdio::inherit());
    command
}

impl Task {
    pub(crate) fn new(task: &str, path: &Path) -> Self {
        Self::spawn(&mut command(&std::env::current_exe().expect("this binary"), task, path))
    }

    pub(crate) fn spawn(command: &mut Command) -> Self {
        let mut child = command.spawn().expect("started");
        let lines = BufReader::new(child.stdout.take().expect("piped"));
        let mut task = Self { child, tid: 0, lines };
        task.tid = task.line("ready ").parse().expect("a number");
        task
    }

    /// What follows `prefix` in the next line that has it.
    pub(crate) fn line(&mut self, prefix: &str) -> String {
        let mut line = String::new();
        loop {
            line.clear();
            let read = self.lines.read_line(&mut line).expect("a line");
            assert!(read > 0, "the process ended without saying {prefix:?}");
            if let Some(rest) = line.strip_prefix(prefix) {
                return rest.trim().to_owned();
            }
        }
    }

    pub(crate) fn pid(&self) -> u32 {
        self.child.id()
    }

    pub(crate) fn kill(&mut self) {
        self.child.kill().expect("killed");
    }

    /// How long it takes to end.
    pub(crate) fn ends_within(&mut self) -> Duration {
        let since = Instant::now();
        let ends = until(PATIENCE, || self.child.try_wait().expect("waited").is_some());
        assert!(ends, "process {} does not end", self.pid());
        since.elapsed()
    }
}

impl Drop for Task {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
