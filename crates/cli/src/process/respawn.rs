//! Starts this program again with its own command line, as a background process.

use std::ffi::OsString;
use std::io;
use std::os::fd::{AsFd, AsRawFd, OwnedFd, RawFd};
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Command, ExitCode};

use esker_node::daemon::{self, Report, Reporter, close_inherited};
use esker_node::supervisor::{self, DaemonCommand};
use esker_store::without_passwords;

use super::supervising;
use crate::error::{Context, Failure, Kind, warn};
use crate::settings::args::RepositoryArgs;

/// Data for starting this program again: its name, the option for the report's descriptor, and the error for a
/// failed start.
pub(crate) struct Respawn<'a> {
    pub(crate) name: &'a str,
    pub(crate) option: &'static str,
    pub(crate) failed: &'static str,
    /// True to start it below a supervisor, which starts it again when it ends too early.
    pub(crate) supervised: bool,
    /// Resolved options of a mount, as a memory file.
    pub(crate) spec: Option<&'a OwnedFd>,
}

/// Subcommand of the supervisor. The program recognizes it before it parses the command line, so that the process stays small.
pub(crate) const SUPERVISE: &str = "supervise-mount";

/// Runs as a supervisor; `arguments` are the descriptors for the report and of the mount's options, the daemon's name, and
/// its arguments.
pub(crate) fn supervise(arguments: &[OsString]) -> ExitCode {
    let number = |text: &OsString| text.to_str().and_then(|text| text.parse().ok());
    match arguments {
        [report, spec, name, arguments @ ..]
            if let (Some(report), Some(spec)) = (number(report), number(spec)) =>
        {
            let command = DaemonCommand { name: name.clone(), arguments: arguments.to_vec() };
            if let Err(error) = supervising::give_up() {
                warn(Some(&format!("the supervisor of the mount keeps privileges of root: {error}")));
            }
            supervisor::run(report, spec, command)
        }
        _ => Failure::usage(format!("{SUPERVISE} is called by `esker mount`")).report(),
    }
}

/// Starts the process with `line`, the command line after the program's name, and waits for its report. Returns its warning.
/// The process reads proxies that have passwords from its standard input: all users see command lines.
pub(crate) fn start_again(
    again: &Respawn<'_>,
    log: &Path,
    line: &[OsString],
) -> Result<Option<String>, Failure> {
    let mut command = Command::new("/proc/self/exe");
    command.arg0(again.name);
    let (line, proxies) = without_passwords_in(line);
    let spec = again.spec.map(AsFd::as_fd);
    let report = daemon::spawn(command, log, (proxies.as_deref(), spec), |fd| {
        let mut given = line.into_iter();
        let subcommand = given.next();
        let from_input = proxies.as_ref().map(|_| "--proxy-from-input".into());
        if let (true, Some(spec)) = (again.supervised, spec) {
            let numbers = [fd, spec.as_raw_fd()].map(|fd| fd.to_string().into());
            let supervisor = std::iter::once(SUPERVISE.into()).chain(numbers).chain([again.name.into()]);
            return supervisor.chain(subcommand).chain(from_input).chain(given).collect();
        }
        let spec = spec.map(|spec| format!("--spec={}", spec.as_raw_fd()).into());
        let hidden = std::iter::once(format!("{}={fd}", again.option).into()).chain(spec);
        subcommand.into_iter().chain(hidden).chain(from_input).chain(given).collect()
    });
    match report.context(Kind::Failed, again.failed)? {
        Report::Ready { warning } => Ok(warning),
        Report::Failed { code, message, hint } => {
            let failure = Failure::new(Kind::from_code(code), message).with_code(code);
            Err(hint.into_iter().fold(failure, Failure::hint))
        }
    }
}

/// Runs as a process that was started again with an option for the descriptor of its report. `run` gets the function that
/// reports that the process is ready, which fails if its starter is gone.
pub(crate) fn run_again<T>(
    option: &str,
    fd: RawFd,
    run: impl FnOnce(&mut dyn FnMut() -> io::Result<()>) -> Result<T, Failure>,
) -> Result<T, Failure> {
    // Started through a link in /proc, it would be called `exe` in lists of processes.
    let _ = rustix::thread::set_name(c"esker");
    let adopted = close_inherited(&[fd]).and_then(|()| Reporter::adopt(fd));
    let mut reporter =
        Some(adopted.map_err(|error| Failure::usage(format!("{option} is not for use by hand: {error}")))?);
    let mut report = |report: &Report| reporter.take().map_or(Ok(()), |reporter| reporter.report(report));
    let outcome = run(&mut || report(&Report::Ready { warning: None }));
    if let Err(failure) = &outcome {
        // If the starter is gone, the log has the failure.
        let _ = report(&failure.into());
    }
    outcome
}

/// Reads the proxies that are masked in the command line of a process that was started again.
pub(crate) fn read_proxies(args: &mut RepositoryArgs) -> Result<(), Failure> {
    let text = std::io::read_to_string(std::io::stdin());
    args.proxy = Some(text.context(Kind::Failed, "can't read the proxies")?);
    Ok(())
}

impl From<&Failure> for Report {
    fn from(failure: &Failure) -> Self {
        let Failure { message, hint, .. } = failure;
        Self::Failed { code: failure.code(), message: message.clone(), hint: hint.clone() }
    }
}

/// Returns a command line with the passwords of its proxies masked, and the proxies if they have some. Arguments after
/// `--` belong to another program.
fn without_passwords_in(line: &[OsString]) -> (Vec<OsString>, Option<String>) {
    let mut proxies = None;
    let mut is_next = false;
    let end = line.iter().position(|argument| argument == "--").unwrap_or(line.len());
    let (own, others) = line.split_at(end);
    let masked = own.iter().map(|argument| {
        let is_value = std::mem::replace(&mut is_next, argument == "--proxy");
        let text = argument.to_str().unwrap_or_default();
        let (before, value) = match text.strip_prefix("--proxy=") {
            Some(value) => ("--proxy=", value),
            None if is_value => ("", text),
            None => return argument.clone(),
        };
        let shown = without_passwords(value);
        if shown == value {
            return argument.clone();
        }
        proxies = Some(value.to_owned());
        format!("{before}{shown}").into()
    });
    let masked = masked.chain(others.iter().cloned()).collect();
    (masked, proxies)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn passwords_of_proxies_are_removed_from_a_command_line() {
        let line = |words: &str| words.split(' ').map(OsString::from).collect::<Vec<_>>();
        for (given, masked, proxies) in [
            ("mount u m --proxy http://p:1;DIRECT", "mount u m --proxy http://p:1;DIRECT", None),
            (
                "mount --proxy http://me:s@p:1 u m",
                "mount --proxy http://me:***@p:1 u m",
                Some("http://me:s@p:1"),
            ),
            ("mount --proxy=me:s@p:1|q:1 u m", "mount --proxy=me:***@p:1|q:1 u m", Some("me:s@p:1|q:1")),
            ("mount --source me:s@p u m", "mount --source me:s@p u m", None),
            (
                "run i --proxy http://me:s@p:1 -- curl --proxy http://you:t@q:1",
                "run i --proxy http://me:***@p:1 -- curl --proxy http://you:t@q:1",
                Some("http://me:s@p:1"),
            ),
        ] {
            assert_eq!(
                without_passwords_in(&line(given)),
                (line(masked), proxies.map(String::from)),
                "{given}"
            );
        }
    }
}
