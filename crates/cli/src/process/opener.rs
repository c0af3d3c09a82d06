//! The process that opens files for a confined server: lists of name servers, certificates and keys, which are replaced.
//!
//! ```text
//!   server, without rights to /etc ── path ──► opener, which knows the paths since its start
//!                                  ◄── descriptor ──
//! ```
//!
//! Landlock grants folders, not names, and `/etc` holds secrets beside these files. The opener is started before the server
//! gives up its privileges, so that it also opens a key of root that was renewed. It is confined, and reads from the server
//! nothing but paths, of which it opens those that it knows.

use std::fs::{File, OpenOptions};
use std::io;
use std::os::fd::{AsFd as _, OwnedFd};
use std::os::unix::ffi::OsStrExt as _;
use std::os::unix::fs::OpenOptionsExt as _;
use std::os::unix::process::CommandExt as _;
use std::path::{Component, Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::Mutex;
use std::time::Duration;

use esker_confine::{Policy, Role};
use esker_format::name::RepositoryName;
use esker_node::packets;
use esker_run::take_signals;
use esker_store::{open_log, set_file_opener};
use rustix::net::sockopt;
use rustix::thread::CapabilitySet;

use super::{confine, privileges};
use crate::error::{Context as _, Failure, Kind};
use crate::settings::environment::Environment;

/// Name of the hidden subcommand.
pub(crate) const OPEN_FILES: &str = "open-files";

/// Ends of the files with the keys of a repository that a commit reads.
const SIGNING_KEYS: [&str; 5] = [".key", ".crt", ".pub", ".next.key", ".next.crt"];

/// Longest wait for an answer. A disk that doesn't answer must not stop the server.
const TIMEOUT: Duration = Duration::from_secs(10);

/// The files that an opener opens.
#[derive(Clone, Debug, Default)]
pub(crate) struct Openable {
    files: Vec<PathBuf>,
    /// Folders whose public keys (`*.pub`) are opened, and those of the folders directly in them.
    keys: Vec<PathBuf>,
    /// Folders whose keys of repositories are opened, as commits need them: any but master keys.
    signing_keys: Vec<PathBuf>,
    /// The access log, which is opened for appending, and made if it isn't there.
    log: Option<PathBuf>,
}

impl Openable {
    /// Returns the files that every server reads: name servers, names of machines, and authorities.
    pub(crate) fn of_machine() -> Self {
        Self { files: esker_store::files_of_machine(), ..Self::default() }
    }

    /// Adds a file; a folder is none.
    pub(crate) fn file(mut self, path: &Path) -> Self {
        self.files.extend(Some(path).filter(|path| !path.is_dir()).map(Path::to_owned));
        self
    }

    /// Adds the public keys in a folder.
    pub(crate) fn keys(mut self, folder: &Path) -> Self {
        self.keys.push(folder.to_owned());
        self
    }

    /// Adds what commits need of the keys of repositories in a folder.
    pub(crate) fn signing_keys(mut self, folder: &Path) -> Self {
        self.signing_keys.push(folder.to_owned());
        self
    }

    /// Adds the access log.
    pub(crate) fn log(mut self, path: Option<&Path>) -> Self {
        self.log = path.map(Path::to_owned);
        self
    }

    fn has(&self, path: &Path) -> bool {
        let is_key = |folder: &PathBuf| {
            let names = path.strip_prefix(folder).ok()?;
            let is_plain = names.components().all(|part| matches!(part, Component::Normal(_)));
            let is_near = (1..=2).contains(&names.components().count());
            Some(is_plain && is_near && path.extension().is_some_and(|end| end == "pub"))
        };
        let is_signing_key = |folder: &PathBuf| {
            let name = path.file_name()?.to_str()?;
            let mut names = SIGNING_KEYS.iter().filter_map(|end| name.strip_suffix(end));
            Some(path.parent() == Some(folder) && names.any(|name| RepositoryName::parse(name).is_ok()))
        };
        self.files.iter().chain(&self.log).any(|file| file == path)
            || self.signing_keys.iter().any(|folder| is_signing_key(folder) == Some(true))
            || self.keys.iter().any(|folder| is_key(folder) == Some(true))
    }

    /// Starts the opener with the rights of this process, and lets this process open these files through it.
    pub(crate) fn start(self, environment: &Environment) -> Result<(), Failure> {
        if !confine::is_wanted(environment) {
            return Ok(());
        }
        let started = self.spawn().context(Kind::Failed, "can't start the process that opens files")?;
        let asked = Mutex::new((started, 0_u32));
        set_file_opener(Box::new(move |path| {
            self.has(path).then(|| {
                let mut asked = asked.lock().map_err(|_| io::Error::other("the opener failed"))?;
                asked.1 = asked.1.wrapping_add(1);
                ask(&asked.0, asked.1, path)
            })
        }));
        Ok(())
    }

    fn spawn(&self) -> io::Result<OwnedFd> {
        let (ours, theirs) = packets::pair()?;
        sockopt::set_socket_timeout(&ours, sockopt::Timeout::Recv, Some(TIMEOUT))?;
        let mut command = Command::new("/proc/self/exe");
        command.arg(OPEN_FILES);
        for folder in &self.keys {
            command.arg("--keys").arg(folder);
        }
        for folder in &self.signing_keys {
            command.arg("--signing-keys").arg(folder);
        }
        if let Some(log) = &self.log {
            command.arg("--log").arg(log);
        }
        command.arg("--").args(&self.files).env_clear();
        // Ctrl-C is for the server, which goes on until its answers are sent.
        command.process_group(0).stdin(theirs).stdout(Stdio::null()).spawn()?;
        Ok(ours)
    }
}

/// Asks the opener for a file.
fn ask(socket: &OwnedFd, number: u32, path: &Path) -> io::Result<File> {
    let number = number.to_le_bytes();
    let gone = |error: io::Error| io::Error::other(format!("the process that opens files: {error}"));
    packets::send(socket, &[&number, path.as_os_str().as_bytes()], None).map_err(gone)?;
    loop {
        let (answer, file) = packets::receive(socket).map_err(gone)?;
        let Some((answered, error)) = answer.split_first_chunk::<4>() else {
            return Err(io::Error::other("the process that opens files has ended"));
        };
        // The answer to an earlier question came too late.
        if *answered == number {
            let error = error.try_into().map_or(libc::EIO, i32::from_le_bytes);
            return file.map(File::from).ok_or_else(|| io::Error::from_raw_os_error(error));
        }
    }
}

/// Opens files for a server; not for use by hand.
#[derive(clap::Args, Debug)]
pub(crate) struct Args {
    #[arg(long, value_name = "DIR")]
    keys: Vec<PathBuf>,

    #[arg(long, value_name = "DIR")]
    signing_keys: Vec<PathBuf>,

    #[arg(long, value_name = "FILE")]
    log: Option<PathBuf>,

    files: Vec<PathBuf>,
}

/// Answers a server until it ends.
pub(crate) fn run(args: Args) -> Result<(), Failure> {
    // It was started through a link in /proc, and would be named `exe` in process lists.
    let _ = rustix::thread::set_name(c"esker-opener");
    let Args { keys, signing_keys, log, files } = args;
    let openable = Openable { files, keys, signing_keys, log };
    privileges::become_user(None, CapabilitySet::DAC_READ_SEARCH)?;
    let folders = openable.keys.iter().chain(&openable.signing_keys);
    let policy = openable.files.iter().chain(folders).fold(Policy::new(Role::Opener), Policy::reopen);
    let policy = openable.log.iter().filter_map(|log| log.parent()).fold(policy, Policy::write);
    // The server tells what it is confined to itself.
    let _ = policy.prepare().enforce();
    // The end of the server ends it.
    take_signals(&[libc::SIGTERM, libc::SIGINT, libc::SIGHUP], |_| ())
        .context(Kind::Failed, "can't handle signals")?;
    openable.answer(&io::stdin()).context(Kind::Failed, "can't talk to the server")
}

impl Openable {
    fn answer(&self, socket: &io::Stdin) -> io::Result<()> {
        loop {
            let (message, _) = packets::receive(socket)?;
            if message.is_empty() {
                return Ok(());
            }
            let Some((number, path)) = message.split_first_chunk::<4>() else { continue };
            let opened = self.open(Path::new(std::ffi::OsStr::from_bytes(path)));
            let error = opened.as_ref().err().map_or(0, |error| error.raw_os_error().unwrap_or(libc::EIO));
            let file = opened.ok();
            packets::send(socket, &[number, &error.to_le_bytes()], file.as_ref().map(|file| file.as_fd()))?;
        }
    }

    fn open(&self, path: &Path) -> io::Result<File> {
        if !self.has(path) {
            return Err(io::Error::from_raw_os_error(libc::EACCES));
        }
        if self.log.as_deref() == Some(path) {
            return open_log(path);
        }
        // Opening a pipe would wait for a writer.
        let flags = libc::O_NOCTTY | libc::O_NONBLOCK;
        let file = OpenOptions::new().read(true).custom_flags(flags).open(path)?;
        if file.metadata()?.is_file() { Ok(file) } else { Err(io::Error::from_raw_os_error(libc::EINVAL)) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_folder_of_signing_keys_shows_no_master_key() {
        let folder = tempfile::tempdir().expect("a folder");
        let keys = folder.path().join("keys");
        std::fs::create_dir_all(keys.join("below")).expect("folders");
        let opened = ["a.org.key", "a.org.crt", "b.org.pub", "b.org.next.key", "b.org.next.crt"]
            .map(|name| keys.join(name));
        let others = ["a.org.masterkey", "a.org.gw", ".key", "id rsa.key", "below/a.org.key", "../a.org.key"];
        let others = others.map(|name| keys.join(name));
        opened.iter().chain(&others).for_each(|file| std::fs::write(file, "x").expect("a file"));
        let openable = Openable::default().signing_keys(&keys);
        opened.iter().for_each(|file| assert!(openable.open(file).is_ok(), "{}", file.display()));
        for file in others {
            let error = openable.open(&file).expect_err("it is none of them");
            assert_eq!(error.raw_os_error(), Some(libc::EACCES), "{}", file.display());
        }
    }

    #[test]
    fn only_named_files_and_public_keys_are_opened() {
        let folder = tempfile::tempdir().expect("a folder");
        let keys = folder.path().join("keys");
        std::fs::create_dir_all(keys.join("example.org")).expect("folders");
        let place = |name: &str| folder.path().join(name);
        for name in
            ["named", "secret", "keys/a.pub", "keys/a.masterkey", "keys/example.org/b.pub", "outside.pub"]
        {
            std::fs::write(place(name), name).expect("a file");
        }
        let openable = Openable::default().file(&place("named")).file(&keys).keys(&keys);
        for name in ["named", "keys/a.pub", "keys/example.org/b.pub"] {
            assert!(openable.open(&place(name)).is_ok(), "{name}");
        }
        for name in ["secret", "keys", "keys/a.masterkey", "keys/../outside.pub", "keys/../keys/a.pub"] {
            let error = openable.open(&place(name)).expect_err(name);
            assert_eq!(error.raw_os_error(), Some(libc::EACCES), "{name}");
        }
        rustix::fs::mknodat(
            rustix::fs::CWD,
            keys.join("pipe.pub"),
            rustix::fs::FileType::Fifo,
            rustix::fs::Mode::RUSR,
            0,
        )
        .expect("a pipe");
        assert!(openable.open(&keys.join("pipe.pub")).is_err());
    }
}
