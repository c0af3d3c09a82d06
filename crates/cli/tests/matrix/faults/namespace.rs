//! A mount namespace of a person's own, in which they are root and may break disks.

use std::io::{BufRead, BufReader, Write};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::Mutex;
use std::sync::mpsc::{Receiver, channel};

use crate::test_env::PATIENCE;
use crate::test_user::TestUser;

/// A shell that keeps the namespace, with its mounted disks.
pub(super) struct Namespace {
    person: TestUser,
    shell: Child,
    said: Mutex<Receiver<String>>,
}

impl Namespace {
    pub(super) fn of(person: TestUser) -> Self {
        let mut command = person.command("unshare");
        command.args(["--user", "--map-root-user", "--mount", "sh"]).current_dir("/");
        command.stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut shell = command.spawn().expect("unshare of util-linux");
        let lines = BufReader::new(shell.stdout.take().expect("a pipe")).lines();
        let (said, heard) = channel();
        std::thread::spawn(move || {
            for line in lines.map_while(Result::ok) {
                if said.send(line).is_err() {
                    return;
                }
            }
        });
        let namespace = Self { person, shell, said: Mutex::new(heard) };
        namespace.does("true");
        namespace
    }

    /// Runs a script in the shell, which must succeed; its open files stay open.
    #[track_caller]
    pub(super) fn does(&self, script: &str) {
        let mut pipe = self.shell.stdin.as_ref().expect("a pipe");
        writeln!(pipe, "{{ {script}\n}} >&2; echo ended $?").expect("told");
        let said = self.said.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
        let word = said.recv_timeout(PATIENCE);
        assert_eq!(word.as_deref(), Ok("ended 0"), "{script}");
    }

    /// Wraps a command to run in the namespace.
    pub(super) fn enter(&self, command: &Command) -> Command {
        let mut inside = self.person.command("nsenter");
        let target = self.shell.id().to_string();
        inside.args(["--user", "--mount", "--preserve-credentials", "--target", &target, "--"]);
        inside.arg(command.get_program()).args(command.get_args()).current_dir(Path::new("/"));
        // A command of esker's has only its own environment; one of the system's inherits ours.
        if command.get_envs().next().is_some() {
            inside.env_clear().envs(command.get_envs().filter_map(|(name, value)| Some((name, value?))));
        }
        inside
    }
}

impl Drop for Namespace {
    fn drop(&mut self) {
        // Its open files are closed with it; the disks go when the last process in the namespace ends.
        let _ = self.shell.kill();
        let _ = self.shell.wait();
    }
}
