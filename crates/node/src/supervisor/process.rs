//! The supervisor's process.

use std::env;
use std::ffi::{OsStr, OsString};
use std::fs::File;
use std::io::{self, Read, Write};
use std::os::fd::{AsFd, AsRawFd, OwnedFd, RawFd};
use std::os::unix::net::UnixListener;
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::path::PathBuf;
use std::process::{Child, Command, ExitCode, ExitStatus, Stdio};
use std::time::{Duration, Instant};

use esker_kernel_mount::send_device;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fs::{Access, AtFlags, CWD, accessat};

use super::messages::{self, Kind, Message};
use super::program::OfDaemon;
use super::upgrade::{self, Replacement, Upgrade, Wish};
use super::{options, origin};
use crate::mount_spec::MountSpec;
use crate::packets;
use crate::sys;
use crate::terminal::shown;

/// Name of the socket that `esker upgrade` talks to, among the kept descriptors.
pub(crate) const UPGRADES: &str = "upgrades";

/// Name of the registry's lock.
pub(crate) const REGISTRATION: &str = "registration";

/// Name of the mount's options.
pub(crate) const SPEC: &str = "spec";

/// Exit code of a daemon that can't use its options. Starting it again doesn't help.
const UNUSABLE: i32 = 2;

/// Time limit for a daemon to serve the mount. It may have to wait for servers.
const START_WITHIN: Duration = Duration::from_secs(120);
/// Time limit for a daemon to end once the mount is gone, after which its place counts as free.
const END_WITHIN: Duration = Duration::from_secs(2);
/// Time limit for a daemon of another version to serve the mount.
const UPGRADE_WITHIN: Duration = Duration::from_secs(30);
/// Time limit for a daemon to finish its requests and end.
const RETIRE_WITHIN: Duration = Duration::from_secs(20);
/// Time for which a new daemon must serve to count as working.
const PROVEN_AFTER: Duration = Duration::from_secs(2);
/// Maximum number of descriptors that are kept for the next daemon: one for each thread that reads requests, and a few.
const KEPT_MAX: usize = 1024;
/// Number of daemons in a row that end before they are proven, after which the mount is given up.
const FAILURES_MAX: u32 = 16;
/// First pause before a daemon is started again, from the third failure in a row on; doubled each time.
const FIRST_PAUSE: Duration = Duration::from_millis(100);

/// Command line of the daemon.
#[derive(Debug)]
pub struct DaemonCommand {
    /// Name of the program, as processes see it.
    pub name: OsString,
    /// Arguments, of which the first is the subcommand.
    pub arguments: Vec<OsString>,
}

/// A daemon that runs.
struct Daemon {
    child: Child,
    socket: OwnedFd,
    started: Instant,
    serving: Option<Instant>,
    retire_until: Option<Instant>,
    reason: Option<String>,
}

/// End of a daemon.
struct DaemonEnd {
    status: ExitStatus,
    /// True if it has left the mount to a successor.
    retired: bool,
    /// True if it served, and was killed from outside.
    was_killed: bool,
    /// Reason that it gave.
    reason: Option<String>,
}

impl DaemonEnd {
    /// Returns the reason that it gave, or its status.
    fn reason(&self) -> String {
        self.reason.clone().unwrap_or_else(|| self.status.to_string())
    }
}

struct Supervisor {
    command: DaemonCommand,
    /// Program of the daemon, open, so that it stays the same when the file is replaced.
    program: File,
    /// Passwords of proxies, which must not be on a command line. Only programs that don't read the options need them.
    input: Vec<u8>,
    folder: Option<PathBuf>,
    /// Options of the mount.
    spec: OwnedFd,
    /// Paths that the daemon can write, by the first options.
    of_daemon: OfDaemon,
    kept: Vec<(String, OwnedFd)>,
    state: Vec<u8>,
    failures: u32,
    has_served: bool,
    has_ended: bool,
    upgrade: Option<Upgrade>,
    /// Options that a daemon changed during an upgrade.
    pending: Option<OwnedFd>,
}

/// Supervises the daemon of one mount until the mount is gone. `report` is the descriptor on which the first daemon
/// reports to the process that mounts, `spec` the memory file with the mount's options.
pub fn run(report: RawFd, spec: RawFd, command: DaemonCommand) -> ExitCode {
    // At most 15 bytes.
    let _ = rustix::thread::set_name(c"esker-superviso");
    match begin(report, spec, command) {
        Ok(status) => match (status.code(), status.signal()) {
            (Some(code), _) => ExitCode::from(u8::try_from(code).unwrap_or(1)),
            (None, signal) => ExitCode::from(u8::try_from(128 + signal.unwrap_or(0)).unwrap_or(1)),
        },
        Err(error) => {
            say(&format!("the supervisor can't start the daemon: {error}"));
            ExitCode::FAILURE
        }
    }
}

fn begin(report: RawFd, spec: RawFd, command: DaemonCommand) -> io::Result<ExitStatus> {
    let (report, spec) = (sys::adopt(report)?, sys::adopt(spec)?);
    sys::close_inherited(&[report.as_raw_fd(), spec.as_raw_fd()])?;
    origin::adopt_orphans();
    let mut input = Vec::new();
    io::stdin().read_to_end(&mut input)?;
    let first = MountSpec::read(spec.try_clone()?).map_err(io::Error::other)?;
    let mut supervisor = Supervisor {
        command,
        program: File::open("/proc/self/exe")?,
        input,
        folder: env::current_dir().ok(),
        spec,
        of_daemon: OfDaemon::from(&first),
        kept: Vec::new(),
        state: Vec::new(),
        failures: 0,
        has_served: false,
        has_ended: false,
        upgrade: None,
        pending: None,
    };
    supervisor.watch(report)
}

/// Writes a line to the log of the mount.
pub(super) fn say(text: &str) {
    // The log may be on a full disk.
    let _ = writeln!(io::stderr(), "esker supervisor: {}", shown(text));
}

impl Supervisor {
    /// Runs daemons until one has unmounted, and returns its status.
    fn watch(&mut self, report: OwnedFd) -> io::Result<ExitStatus> {
        let mut report = Some(report);
        loop {
            let started = self.start(report.take()).and_then(|daemon| self.supervise(daemon));
            match started {
                Ok(end) if self.has_ended || !self.has_served => return Ok(end.status),
                Ok(end) if end.retired && self.replace() => {}
                Ok(end) => {
                    if end.was_killed {
                        self.keep_options();
                    }
                    self.note_failure(&end.reason(), end.status.code() == Some(UNUSABLE));
                }
                Err(error) if !self.has_served => return Err(error),
                Err(error) => self.note_failure(&error.to_string(), false),
            }
            if self.failures > FAILURES_MAX {
                say("the mount is given up; its programs get errors until it is unmounted and mounted again");
                return Ok(ExitStatus::from_raw(1 << 8));
            }
            if self.failures > 1 {
                // Nothing else happens here meanwhile.
                std::thread::sleep(FIRST_PAUSE * (1 << (self.failures - 2).min(6)));
            }
        }
    }

    /// Makes the next daemon one of the new program or options; false without one.
    fn replace(&mut self) -> bool {
        let Some(mut upgrade) = self.upgrade.take() else { return false };
        let next = upgrade.next.take();
        let is_new = next.is_some();
        if let Some(next) = next {
            upgrade.previous = Some(self.put(next));
        }
        self.upgrade = Some(upgrade);
        is_new
    }

    /// Uses a program or options for the next daemon; returns those of the one before.
    fn put(&mut self, replacement: Replacement) -> Replacement {
        match replacement {
            Replacement::Program(program) => {
                Replacement::Program(std::mem::replace(&mut self.program, program.into()).into())
            }
            Replacement::Options(spec) => Replacement::Options(std::mem::replace(&mut self.spec, spec)),
        }
    }

    /// Keeps new options whose daemon served: that it was killed from outside says nothing about them.
    fn keep_options(&mut self) {
        let are_new = |upgrade: &mut Upgrade| matches!(upgrade.previous, Some(Replacement::Options(_)));
        if let Some(upgrade) = self.upgrade.take_if(are_new) {
            upgrade
                .answer("lost the daemon with the new settings was killed; another one takes over with them");
        }
    }

    /// Begins the replacement for which the one before had to be proven.
    fn begin_pending(&mut self, daemon: &mut Daemon) {
        if self.upgrade.is_none()
            && daemon.serving.is_some()
            && let Some(options) = self.pending.take()
        {
            self.begin_upgrade(daemon, Upgrade::new(None, Replacement::Options(options)));
        }
    }

    /// Decides what follows a daemon that has failed: the program before, if it was one of a new program, or another try.
    fn note_failure(&mut self, why: &str, is_unusable: bool) {
        if let Some(mut upgrade) = self.upgrade.take_if(|upgrade| upgrade.previous.is_some()) {
            let previous = upgrade.previous.take().unwrap_or_else(|| unreachable!("checked"));
            let failed = format!("{} ended before it was proven ({why})", previous.describe());
            say(&format!("{failed}; the one before takes over"));
            self.put(previous);
            upgrade.failed = Some(failed);
            self.upgrade = Some(upgrade);
            return;
        }
        // What can't pass by itself isn't tried again: the programs that wait get errors, and can be started anew.
        self.failures = if is_unusable { FAILURES_MAX + 1 } else { self.failures + 1 };
        let next = if self.failures > FAILURES_MAX { "no other can go on" } else { "another one takes over" };
        say(&format!("the daemon ended ({why}); {next}"));
        if let Some(upgrade) = self.upgrade.take_if(|upgrade| upgrade.failed.is_some()) {
            let failed = upgrade.failed.clone().unwrap_or_default();
            upgrade.answer(&format!("lost {failed}, and the one before ended, too ({why}); {next}"));
        }
    }

    fn start(&self, report: Option<OwnedFd>) -> io::Result<Daemon> {
        let (socket, theirs) = packets::pair()?;
        let mut command = Command::new(format!("/proc/self/fd/{}", self.program.as_raw_fd()));
        command.arg0(&self.command.name);
        let mut arguments = self.command.arguments.iter();
        command.args(arguments.next());
        if let Some(report) = &report {
            command.arg(format!("--daemon={}", report.as_raw_fd()));
            sys::inherit(&mut command, report.as_raw_fd());
        }
        command.arg(format!("--supervisor={}", theirs.as_raw_fd()));
        sys::inherit(&mut command, theirs.as_raw_fd());
        command.args(arguments);
        // Relative names of keys and images are those of the folder where the mount was made.
        let may_enter = |folder: &&PathBuf| {
            accessat(CWD, folder.as_path(), Access::EXEC_OK, AtFlags::EACCESS).is_ok() && folder.is_dir()
        };
        if let Some(folder) = self.folder.as_ref().filter(may_enter) {
            command.current_dir(folder);
        }
        command.stdin(if self.input.is_empty() { Stdio::null() } else { Stdio::piped() });
        let mut child = command.spawn()?;
        drop((theirs, report));
        if let Some(mut stdin) = child.stdin.take() {
            // A daemon that ended says why elsewhere.
            let _ = stdin.write_all(&self.input);
        }
        let (serving, retire_until, reason) = (None, None, None);
        let daemon = Daemon { child, socket, started: Instant::now(), serving, retire_until, reason };
        // The thread that waits for messages of a daemon notices its end.
        let _ = self.hand_over(&daemon.socket);
        Ok(daemon)
    }

    fn hand_over(&self, socket: &OwnedFd) -> io::Result<()> {
        messages::send(socket, Kind::Keep, SPEC.as_bytes(), Some(self.spec.as_fd()))?;
        for (name, descriptor) in &self.kept {
            messages::send(socket, Kind::Keep, name.as_bytes(), Some(descriptor.as_fd()))?;
        }
        if !self.state.is_empty() {
            messages::send(socket, Kind::State, &self.state, None)?;
        }
        messages::send(socket, Kind::Complete, b"", None)
    }

    /// Serves a daemon until it ends.
    fn supervise(&mut self, mut daemon: Daemon) -> io::Result<DaemonEnd> {
        let watched = loop {
            match self.step(&mut daemon) {
                Ok(true) => {}
                Ok(false) => break Ok(()),
                Err(error) => {
                    // There must never be two daemons of one mount.
                    let _ = daemon.child.kill();
                    break Err(error);
                }
            }
        };
        drop(daemon.socket);
        let status = daemon.child.wait()?;
        origin::bury_orphans();
        watched?;
        // A daemon that was killed from outside doesn't count as one that can't go on.
        let was_killed = status.signal() == Some(libc::SIGKILL);
        if daemon.serving.is_some_and(|since| was_killed || since.elapsed() >= PROVEN_AFTER) {
            self.failures = 0;
        }
        let was_killed = was_killed && daemon.serving.is_some();
        Ok(DaemonEnd { status, retired: daemon.retire_until.is_some(), was_killed, reason: daemon.reason })
    }

    /// Waits for one event; returns false once the daemon has ended.
    fn step(&mut self, daemon: &mut Daemon) -> io::Result<bool> {
        let listener = self.kept.iter().find(|(name, _)| name == UPGRADES).map(|(_, listener)| listener);
        let listener = listener.filter(|_| daemon.serving.is_some() && self.upgrade.is_none());
        let mut wait = vec![PollFd::new(&daemon.socket, PollFlags::IN)];
        wait.extend(listener.map(|listener| PollFd::new(listener, PollFlags::IN)));
        let deadline = self.deadline(daemon);
        let left = deadline.map(|at| at.saturating_duration_since(Instant::now()));
        let left = left.and_then(|left| Timespec::try_from(left).ok());
        match poll(&mut wait, left.as_ref()) {
            Ok(0) => {
                self.overdue(daemon);
                return Ok(true);
            }
            Ok(_) => {}
            Err(rustix::io::Errno::INTR) => return Ok(true),
            Err(error) => return Err(error.into()),
        }
        let (has_message, has_client) =
            (!wait[0].revents().is_empty(), wait.get(1).is_some_and(|client| !client.revents().is_empty()));
        drop(wait);
        if has_client {
            self.accept(daemon);
        }
        if !has_message {
            return Ok(true);
        }
        match messages::receive(&daemon.socket) {
            Ok(Some(message)) => self.handle(daemon, message),
            Ok(None) => return Ok(false),
            // Of a program that is not ours: it gets no answer and is replaced.
            Err(error) => {
                say(&format!("a message of the daemon isn't understood: {error}"));
                let _ = daemon.child.kill();
                return Ok(false);
            }
        }
        Ok(true)
    }

    fn deadline(&self, daemon: &Daemon) -> Option<Instant> {
        let is_new = self.upgrade.as_ref().is_some_and(|upgrade| upgrade.previous.is_some());
        match (daemon.serving, daemon.retire_until) {
            (_, Some(until)) => Some(until),
            (None, None) => Some(daemon.started + if is_new { UPGRADE_WITHIN } else { START_WITHIN }),
            (Some(since), None) => is_new.then_some(since + PROVEN_AFTER),
        }
    }

    fn overdue(&mut self, daemon: &mut Daemon) {
        if self.has_ended {
            // One of its threads waits for a disk that doesn't answer. It has let go of the mount.
            self.kept.clear();
            daemon.retire_until = Some(Instant::now() + START_WITHIN);
            return;
        }
        let is_proven = daemon.serving.is_some() && daemon.retire_until.is_none();
        match self.upgrade.take_if(|_| is_proven) {
            Some(upgrade) => {
                upgrade.answer(&format!("ok {}", daemon.child.id()));
                self.begin_pending(daemon);
            }
            None => {
                say("the daemon takes too long, and is killed");
                let _ = daemon.child.kill();
                // So that it isn't killed again before it is gone.
                daemon.retire_until = daemon.retire_until.map(|_| Instant::now() + RETIRE_WITHIN);
                daemon.started = Instant::now();
            }
        }
    }

    fn accept(&mut self, daemon: &mut Daemon) {
        let listener = self.kept.iter().find(|(name, _)| name == UPGRADES);
        let accepted = listener.and_then(|(_, listener)| {
            let listener = UnixListener::from(listener.try_clone().ok()?);
            let (client, _) = listener.accept().ok()?;
            upgrade::accept(client, &self.of_daemon)
        });
        match accepted {
            Some(Wish::Upgrade(upgrade)) => self.begin_upgrade(daemon, upgrade),
            // The client may be gone.
            Some(Wish::Options(client)) => _ = send_device(&client, self.spec.as_fd()),
            None => {}
        }
    }

    fn begin_upgrade(&mut self, daemon: &mut Daemon, upgrade: Upgrade) {
        daemon.retire_until = Some(Instant::now() + RETIRE_WITHIN);
        self.upgrade = Some(upgrade);
        let _ = messages::send(&daemon.socket, Kind::Retire, b"", None);
    }

    /// Keeps a descriptor for the next daemon.
    fn keep(&mut self, name: &[u8], descriptor: OwnedFd) {
        let name = String::from_utf8_lossy(name).into_owned();
        let known = self.kept.iter().position(|(known, _)| *known == name);
        match known {
            // Clients connect to the first, and its lock is the place of the mount.
            Some(_) if [UPGRADES, REGISTRATION].contains(&&*name) => {}
            Some(at) => self.kept[at].1 = descriptor,
            None if self.kept.len() < KEPT_MAX => self.kept.push((name, descriptor)),
            None => say("the daemon hands over too many descriptors"),
        }
    }

    /// Replaces a daemon that has changed its options.
    fn renew(&mut self, daemon: &mut Daemon, options: OwnedFd) {
        match &mut self.upgrade {
            None if daemon.retire_until.is_none() => {
                self.begin_upgrade(daemon, Upgrade::new(None, Replacement::Options(options)));
            }
            // Of several changes in a row the last has all.
            Some(upgrade) if upgrade.client.is_none() && upgrade.next.is_some() => {
                upgrade.next = Some(Replacement::Options(options));
            }
            // The daemon that is starting, or is not proven yet, is replaced once it is.
            _ => self.pending = Some(options),
        }
    }

    /// Heeds a message of the daemon, which may not widen what the next daemon can do.
    fn handle(&mut self, daemon: &mut Daemon, message: Message) {
        match (message.kind, message.descriptor) {
            (Kind::Keep, Some(given)) if message.text == SPEC.as_bytes() => {
                match options::from_daemon(&self.spec, given) {
                    Ok(spec) => self.spec = spec,
                    Err(error) => say(&format!("the daemon's options are not kept: {error}")),
                }
            }
            (Kind::Options, Some(given)) => match options::from_daemon(&self.spec, given) {
                Ok(options) => self.renew(daemon, options),
                Err(error) => say(&format!("the daemon isn't replaced: {error}")),
            },
            (Kind::Keep, Some(descriptor)) => self.keep(&message.text, descriptor),
            // It doesn't change with the daemon.
            (Kind::State, _) if self.state.is_empty() => self.state = message.text,
            (Kind::Failed, _) => {
                daemon.reason = Some(String::from_utf8_lossy(&message.text).into_owned());
            }
            (Kind::Serving, _) => {
                daemon.serving = Some(Instant::now());
                self.has_served = true;
                if let Some(upgrade) = self.upgrade.take_if(|upgrade| upgrade.failed.is_some()) {
                    let failed = upgrade.failed.clone().unwrap_or_default();
                    upgrade.answer(&format!("failed {failed}; the one before serves again"));
                }
                self.begin_pending(daemon);
                // From here on it belongs to no terminal, and keeps no folder busy.
                let _ = rustix::process::setsid();
                let _ = env::set_current_dir(OsStr::new("/"));
            }
            (Kind::Ended, _) => {
                self.has_ended = true;
                // The kernel ends a mount in use once all descriptors are gone. The lock says that processes are left.
                self.kept.retain(|(name, _)| name == REGISTRATION);
                daemon.retire_until = Some(Instant::now() + END_WITHIN);
            }
            _ => {}
        }
    }
}
