//! Runs the process that asks the mounts' daemons for metrics on behalf of the server.
//!
//! The server answers strangers, and has neither rights to files of users nor Unix sockets. The asker has both, and no network:
//!
//! ```text
//!   collector ── HTTP ── server, a user of its own ── one byte ──► asker, of the user that started it ── sockets ── mounts
//!                                                 ◄── the metrics ──
//! ```

use std::io::{self, Read as _, Write as _};
use std::os::fd::AsFd as _;
use std::os::unix::net::UnixStream;
use std::os::unix::process::CommandExt as _;
use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use clap::ValueEnum as _;
use esker_confine::{Policy, Role};
use esker_node::runtime::SHARED;
use esker_run::take_signals;
use rustix::net::{AddressFamily, SocketFlags, SocketType, socketpair};
use rustix::thread::CapabilitySet;

use super::destination::Destination;
use super::{Names, Reader, Source};
use crate::error::{Context as _, Failure, Kind};
use crate::output::parse_duration;
use crate::process::{confine, privileges};
use crate::settings::Settings;

/// Name of the hidden subcommand.
pub(crate) const ASK_MOUNTS: &str = "ask-mounts";

/// Longest answer. A node has some hundred mounts, of a few KiB each.
const ANSWER_MAX: u64 = 256 << 20;
/// Time beyond that for the daemons of mounts, in which the asker answers.
const TIMEOUT: Duration = Duration::from_secs(30);

/// Request of a server to the process that asks the mounts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Wish {
    /// The metrics as text.
    Text,
    /// The metrics as a message to a collector.
    Message,
    /// The metrics in the file.
    File,
}

impl Wish {
    const ALL: [Wish; 3] = [Wish::Text, Wish::Message, Wish::File];

    fn byte(self) -> u8 {
        self as u8
    }
}

/// A running asker.
#[derive(Debug)]
pub(super) struct Asker(Mutex<UnixStream>);

impl Asker {
    /// Starts the process with the rights of this one. It ends with this one.
    pub(super) fn start(args: &super::Args) -> io::Result<Self> {
        let (ours, theirs) = socketpair(AddressFamily::UNIX, SocketType::STREAM, SocketFlags::CLOEXEC, None)?;
        let mut command = Command::new("/proc/self/exe");
        command.arg(ASK_MOUNTS).arg("--timeout").arg(args.timeout.as_secs_f64().to_string());
        if let Some(names) = args.names.to_possible_value() {
            command.arg("--names").arg(names.get_name());
        }
        if let Some(file) = &args.textfile {
            command.arg("--textfile").arg(std::path::absolute(file)?);
        }
        // Ctrl-C is for the server. The environment names the folder of the mounts.
        command.env_remove("NOTIFY_SOCKET").env_remove("LISTEN_PID");
        command.process_group(0).stdin(theirs).stdout(Stdio::null()).spawn()?;
        let stream = UnixStream::from(ours);
        stream.set_read_timeout(Some(args.timeout + TIMEOUT))?;
        Ok(Self(Mutex::new(stream)))
    }

    /// Returns what the asker answers.
    pub(super) fn ask(&self, wish: Wish) -> Result<Vec<u8>, Failure> {
        let mut stream = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let answer = talk(&mut stream, wish).inspect_err(|_| {
            // What comes later would be taken for the answer to another wish.
            drop(stream.shutdown(std::net::Shutdown::Both));
        });
        let (is_failure, bytes) =
            answer.context(Kind::Failed, "the process that asks the mounts doesn't answer")?;
        if is_failure { Err(Failure::failed(String::from_utf8_lossy(&bytes))) } else { Ok(bytes) }
    }
}

fn talk(stream: &mut UnixStream, wish: Wish) -> io::Result<(bool, Vec<u8>)> {
    rustix::io::write(&*stream, &[wish.byte()])?;
    let mut head = [0; 9];
    stream.read_exact(&mut head)?;
    let [is_failure, len @ ..] = head;
    let len = u64::from_le_bytes(len);
    if len > ANSWER_MAX {
        return Err(io::Error::other("its answer is too long"));
    }
    let mut bytes = Vec::new();
    (&*stream).take(len).read_to_end(&mut bytes)?;
    if bytes.len() as u64 == len {
        Ok((is_failure != 0, bytes))
    } else {
        Err(io::ErrorKind::UnexpectedEof.into())
    }
}

/// Asks mounts for a server of metrics; not for use by hand.
#[derive(clap::Args, Debug)]
pub(crate) struct Args {
    #[arg(long, value_enum)]
    names: Names,

    #[arg(long, value_parser = parse_duration)]
    timeout: Duration,

    #[arg(long)]
    textfile: Option<PathBuf>,
}

/// Answers a server until it ends.
pub(crate) fn run(args: &Args, settings: &Settings) -> Result<(), Failure> {
    // It was started through a link in /proc, and would be named `exe` in process lists.
    let _ = rustix::thread::set_name(c"esker-asker");
    let source = Source::Here(Reader::new(args.names, args.timeout, settings));
    let stdin = io::stdin().as_fd().try_clone_to_owned().context(Kind::Failed, "can't talk to the server")?;
    let file = args.textfile.as_deref().map(Destination::file).transpose()?;
    // Sockets of all users are asked.
    privileges::become_user(None, CapabilitySet::DAC_OVERRIDE.union(CapabilitySet::DAC_READ_SEARCH))?;
    let places = SHARED.iter().map(PathBuf::from).chain(["/run/user".into(), settings.runtime.clone()]);
    let policy = places.fold(Policy::new(Role::Asker), Policy::read);
    let policy = args.textfile.iter().filter_map(|file| file.parent()).fold(policy, Policy::write);
    confine::enforce(|| policy.prepare(), &settings.environment);
    // The end of the server ends it.
    take_signals(&[libc::SIGTERM, libc::SIGINT, libc::SIGHUP], |_| ())
        .context(Kind::Failed, "can't handle signals")?;
    let answer = |wish: Wish| match (wish, &file) {
        (Wish::Text, _) => source.text().map(String::into_bytes),
        (Wish::Message, _) => source.message(),
        (Wish::File, Some(file)) => file.write(&source).map(|()| Vec::new()),
        (Wish::File, None) => Err(Failure::failed("no file was named")),
    };
    serve(UnixStream::from(stdin), answer).context(Kind::Failed, "can't talk to the server")
}

fn serve(mut stream: UnixStream, answer: impl Fn(Wish) -> Result<Vec<u8>, Failure>) -> io::Result<()> {
    let mut byte = [0];
    while rustix::io::retry_on_intr(|| rustix::io::read(&stream, &mut byte))? == 1 {
        let Some(wish) = Wish::ALL.into_iter().find(|wish| wish.byte() == byte[0]) else { continue };
        let (is_failure, bytes) = match answer(wish) {
            Ok(bytes) => (0, bytes),
            Err(failure) => (1, failure.message.into_bytes()),
        };
        let mut message = vec![is_failure];
        message.extend((bytes.len() as u64).to_le_bytes());
        message.extend(bytes);
        stream.write_all(&message)?;
    }
    Ok(())
}
