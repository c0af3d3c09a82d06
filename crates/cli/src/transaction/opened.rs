//! Open transactions: a process holds the mount, and any number of commands enter it.
//!
//! ```text
//!  holder (serves the mount, has the lock) ─► process with the namespaces ─► init ─► keeper
//!                                                                             └────► commands that entered
//! ```
//!
//! The first process of the PID namespace ends with the keeper, and all commands with it. A holder that is killed leaves a
//! transaction that was interrupted.

use std::ffi::OsString;
use std::fs;
use std::io;

use esker_run::run_beside;
use esker_store::{FileLock, Locking};
use rustix::process::{Pid, Signal, kill_process};
use serde::{Deserialize, Serialize};

use super::session::VARIABLE;
use super::{LOCK, Transaction};
use crate::error::{Context as _, Failure, Kind};
use crate::mounting::run_mounted::of_run;
use crate::output::tell;

/// Hidden subcommand of the process that keeps the namespaces until a signal ends it.
pub(crate) const KEEPER: &str = "keep-transaction";
/// Highest number of a process of the namespace that is not of a command: `init` has 1, the keeper 2.
const KEEPING: u32 = 2;

/// Processes of an open transaction. Field names are an interface.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Opened {
    /// Process that serves the mount and has the lock.
    holder: u32,
    /// Process whose namespaces have the mount.
    mount: u32,
}

/// A process of a command in an open transaction. Field names are an interface.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct Inside {
    pid: u32,
    program: String,
}

/// Waits until a signal ends this process.
pub(crate) fn keep() -> ! {
    let _ = rustix::thread::set_name(c"esker-keeper");
    loop {
        std::thread::park();
    }
}

impl Opened {
    /// Returns the processes of commands that entered.
    pub(crate) fn inside(self) -> Vec<Inside> {
        let namespace = |pid: u32, kind: &str| fs::read_link(format!("/proc/{pid}/ns/{kind}")).ok();
        let Some(own) = namespace(self.mount, "pid_for_children") else { return Vec::new() };
        let all = fs::read_dir("/proc").into_iter().flatten().flatten();
        let mut pids: Vec<u32> = all.filter_map(|one| one.file_name().to_str()?.parse().ok()).collect();
        pids.sort_unstable();
        let is_inside = |pid: &u32| namespace(*pid, "pid").is_some_and(|other| other == own);
        let inside = |pid| {
            let text = |name: &str| fs::read_to_string(format!("/proc/{pid}/{name}")).ok();
            let status = text("status")?;
            let numbers = status.lines().find_map(|line| line.strip_prefix("NSpid:"))?;
            let number: u32 = numbers.split_whitespace().last()?.parse().ok()?;
            (number > KEEPING).then_some(Inside { pid, program: text("comm")?.trim_end().to_owned() })
        };
        pids.into_iter().filter(is_inside).filter_map(inside).collect()
    }
}

/// Returns the names of programs with their process ids, for messages.
pub(crate) fn named(inside: &[Inside]) -> String {
    let named = inside.iter().map(|one| format!("{} ({})", one.program.escape_debug(), one.pid));
    named.collect::<Vec<_>>().join(", ")
}

impl Transaction {
    /// Notes that this process holds the transaction open, with the process whose namespaces have the mount.
    pub(super) fn note_open(&mut self, mount: u32) -> Result<(), Failure> {
        if let Ok(record) = &mut self.record {
            record.open = Some(Opened { holder: std::process::id(), mount });
        }
        self.write()
    }

    /// Returns the processes of the transaction if it is open.
    pub(crate) fn opened(&self) -> Option<Opened> {
        let opened = self.record.as_ref().ok()?.open?;
        let locking = FileLock::try_take(&self.folder.join(LOCK)).ok()?;
        matches!(locking, Locking::Held(by) if by.pid == Some(opened.holder)).then_some(opened)
    }

    /// Takes the transaction. If it is open it ends first, which is refused while commands are inside, unless they shall
    /// end too.
    pub(crate) fn end(self, with_commands: bool) -> Result<(Self, FileLock), Failure> {
        let Some(opened) = self.opened() else {
            let lock = self.take()?;
            return Ok((self, lock));
        };
        let inside = opened.inside();
        if !with_commands && !inside.is_empty() {
            let what = format!("transaction {} has commands inside: {}", self.id, named(&inside));
            return Err(
                Failure::failed(what).hint("repeat this when they have ended, or end them with --force")
            );
        }
        let what = || format!("can't end the process {} of transaction {}", opened.holder, self.id);
        let holder = i32::try_from(opened.holder).ok().and_then(Pid::from_raw);
        let holder = holder.ok_or_else(|| Failure::new(Kind::Damaged, what()))?;
        kill_process(holder, Signal::TERM).map_err(io::Error::from).context(Kind::Failed, what())?;
        drop(FileLock::wait(&self.folder.join(LOCK)).context(Kind::Failed, what())?);
        let ended = Self::read(&self.id, self.folder);
        let lock = ended.take()?;
        // The warnings of the holder, which no terminal has shown.
        if let Ok(text) = fs::read_to_string(ended.log_file()) {
            tell(&text);
        }
        Ok((ended, lock))
    }

    /// Executes a command in the open transaction; returns only if that failed.
    pub(crate) fn enter(&self, opened: Opened, command: &[OsString]) -> Failure {
        let directory = match self.record() {
            Ok(record) => record.directory(),
            Err(failure) => return failure,
        };
        let own = (OsString::from(VARIABLE), OsString::from(&self.id));
        let others = std::env::vars_os().filter(|(name, _)| name != VARIABLE);
        let environment: Vec<_> = others.chain([own]).collect();
        match run_beside(opened.mount, &directory, command, &environment) {
            Ok(never) => match never {},
            Err(error) => of_run(&error),
        }
    }
}
