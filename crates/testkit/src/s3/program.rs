//! Real servers of the protocol S3, each in its own folder, at a free port.

use std::fs::{self, File};
use std::io::{Read, Write};
use std::net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use tempfile::TempDir;

use super::BUCKET;
use crate::waiting::until;

/// Time limit for a program to start listening.
const PATIENCE: Duration = Duration::from_secs(60);

/// Makes the command of a server that listens at a port and keeps its files in a folder.
type MakeCommand = Box<dyn Fn(u16, &Path) -> Command + Send + Sync>;

/// A running server with an empty bucket named [`BUCKET`]. Its key is `key`, with the secret `secret`.
pub struct S3Program {
    folder: TempDir,
    child: Child,
    port: u16,
    command: MakeCommand,
}

impl S3Program {
    /// Starts gofakes3, which keeps buckets in memory; none if it isn't installed.
    pub fn gofakes3() -> Option<Self> {
        let program = installed("bin/gofakes3")?;
        Some(Self::start(move |port, _| {
            let mut command = Command::new(&program);
            let host = format!("127.0.0.1:{port}");
            command.args(["-backend", "memory", "-quiet", "-initialbucket", BUCKET, "-host", &host]);
            command
        }))
    }

    /// Starts gofakes3, which keeps buckets in a file; none if it isn't installed.
    pub fn gofakes3_on_disk() -> Option<Self> {
        let program = installed("bin/gofakes3")?;
        Some(Self::start(move |port, folder| {
            let mut command = Command::new(&program);
            let host = format!("127.0.0.1:{port}");
            command.args(["-backend", "bolt", "-quiet", "-initialbucket", BUCKET, "-host", &host]);
            command.arg("-bolt.db").arg(folder.join("buckets.db"));
            command
        }))
    }

    /// Starts moto, a model of Amazon's services in memory; none if it isn't installed.
    pub fn moto() -> Option<Self> {
        let program = installed("moto/bin/moto_server")?;
        let server = Self::start(move |port, _| {
            let mut command = Command::new(&program);
            command.args(["-H", "127.0.0.1", "-p", &port.to_string()]);
            command
        });
        let mut stream = TcpStream::connect((Ipv4Addr::LOCALHOST, server.port)).expect("a connection");
        let host = format!("127.0.0.1:{}", server.port);
        write!(
            stream,
            "PUT /{BUCKET} HTTP/1.1\r\nHost: {host}\r\nContent-Length: 0\r\nConnection: close\r\n\r\n"
        )
        .expect("a request");
        let mut answer = String::new();
        stream.read_to_string(&mut answer).expect("an answer");
        assert!(answer.starts_with("HTTP/1.1 200"), "making a bucket: {answer}");
        Some(server)
    }

    /// Starts versitygw, which keeps buckets in a folder; none if it isn't installed.
    pub fn versitygw() -> Option<Self> {
        let program = installed("bin/versitygw")?;
        Some(Self::start(move |port, folder| {
            let buckets = folder.join("buckets");
            fs::create_dir_all(buckets.join(BUCKET)).expect("a folder");
            let mut command = Command::new(&program);
            command.env("ROOT_ACCESS_KEY", "key").env("ROOT_SECRET_KEY", "secret");
            command.args(["--port", &format!("127.0.0.1:{port}"), "posix"]).arg(buckets);
            command
        }))
    }

    pub(super) fn start(command: impl Fn(u16, &Path) -> Command + Send + Sync + 'static) -> Self {
        let folder = tempfile::tempdir().expect("a folder");
        let free = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).expect("a free port");
        let port = free.local_addr().expect("its address").port();
        drop(free);
        let child = run(command(port, folder.path()), folder.path());
        let mut server = Self { folder, child, port, command: Box::new(command) };
        server.wait();
        server
    }

    /// Kills the server.
    pub fn kill(&mut self) {
        self.child.kill().expect("killing the server");
        self.child.wait().expect("its end");
    }

    /// Starts a killed server again with what it has on disk, at the same port.
    pub fn restart(&mut self) {
        self.child = run((self.command)(self.port, self.folder.path()), self.folder.path());
        self.wait();
    }

    /// Waits until the server accepts a connection: no program reports that it listens.
    fn wait(&mut self) {
        let listens = until(PATIENCE, || {
            let ended = self.child.try_wait().expect("its state");
            assert!(ended.is_none(), "the server ended: {ended:?}\n{}", self.log());
            TcpStream::connect(SocketAddr::from((Ipv4Addr::LOCALHOST, self.port))).is_ok()
        });
        assert!(listens, "the server does not listen\n{}", self.log());
    }

    /// Returns the port of the server.
    pub(super) fn port(&self) -> u16 {
        self.port
    }

    /// Returns the URL of the server.
    pub fn endpoint(&self) -> String {
        format!("http://127.0.0.1:{}", self.port)
    }

    fn log(&self) -> String {
        fs::read_to_string(self.folder.path().join("log")).unwrap_or_default()
    }
}

fn run(mut command: Command, folder: &Path) -> Child {
    let log = || File::create(folder.join("log")).expect("a log");
    command.current_dir(folder).stdin(Stdio::null()).stdout(log()).stderr(log());
    command.spawn().unwrap_or_else(|error| panic!("{command:?}: {error}"))
}

impl Drop for S3Program {
    fn drop(&mut self) {
        // It may have ended by itself.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Returns a program that `scripts/s3-servers.sh` installed.
pub(super) fn installed(program: &str) -> Option<PathBuf> {
    let named = |name: &str| std::env::var_os(name).filter(|value| !value.is_empty()).map(PathBuf::from);
    let caches = named("XDG_CACHE_HOME").or_else(|| Some(named("HOME")?.join(".cache")));
    let folder = named("ESKER_TEST_SERVERS").or_else(|| Some(caches?.join("esker-tests")))?;
    Some(folder.join(program)).filter(|path| path.exists())
}
