//! A server of a test's own, and a client that shows every byte.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::path::PathBuf;
use std::thread::JoinHandle;
use std::time::Duration;

use esker_server::{Limits, Options, Repositories, Served, Server, Stopper};

/// Longer than anything here takes; a test that waits so long has failed.
pub(crate) const PATIENCE: Duration = Duration::from_secs(60);

/// A running server, stopped when it is dropped.
pub(crate) struct Running {
    pub(crate) address: SocketAddr,
    pub(crate) stopper: Stopper,
    thread: Option<JoinHandle<Served>>,
}

impl Running {
    pub(crate) fn start(folders: &[PathBuf], limits: Limits) -> Self {
        let repositories = Repositories::open(folders).expect("folders");
        let server = Server::bind("127.0.0.1:0".parse().expect("an address"), repositories, limits)
            .expect("listening");
        Self::on(server)
    }

    pub(crate) fn on(server: Server) -> Self {
        let (address, stopper) = (server.address(), server.stopper());
        let thread = std::thread::spawn(move || server.run().expect("serving"));
        Self { address, stopper, thread: Some(thread) }
    }

    /// A server with these options.
    pub(crate) fn with(folders: &[PathBuf], options: Options) -> Self {
        let address = "127.0.0.1:0".parse().expect("an address");
        let listener = Server::listen(address).expect("listening");
        let repositories = Repositories::open(folders).expect("folders");
        Self::on(Server::new(vec![listener], repositories, options).expect("a server"))
    }

    pub(crate) fn of(folders: &[PathBuf]) -> Self {
        Self::start(folders, Limits::default())
    }

    pub(crate) fn client(&self) -> Client {
        let stream = TcpStream::connect(self.address).expect("connecting");
        stream.set_read_timeout(Some(PATIENCE)).expect("a deadline");
        Client(BufReader::new(stream))
    }

    /// A client at another address of this machine.
    pub(crate) fn client_from(&self, address: std::net::IpAddr) -> Client {
        use rustix::net::{AddressFamily, SocketType, bind, connect, socket};
        let socket = socket(AddressFamily::INET, SocketType::STREAM, None).expect("a socket");
        bind(&socket, &SocketAddr::new(address, 0)).expect("an address");
        connect(&socket, &self.address).expect("connecting");
        let stream = TcpStream::from(socket);
        stream.set_read_timeout(Some(PATIENCE)).expect("a deadline");
        Client(BufReader::new(stream))
    }

    /// Asks for a path on a connection of its own.
    pub(crate) fn get(&self, path: &str) -> Response {
        self.client().ask("GET", path, "")
    }

    /// Stops it and waits for its end.
    pub(crate) fn stop(mut self) -> Served {
        self.stopper.stop();
        self.thread.take().expect("a thread").join().expect("the server's thread")
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        self.stopper.stop();
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

pub(crate) struct Client(pub(crate) BufReader<TcpStream>);

#[derive(Debug)]
pub(crate) struct Response {
    pub(crate) status: u16,
    pub(crate) fields: Vec<(String, String)>,
    pub(crate) body: Vec<u8>,
}

impl Response {
    pub(crate) fn field(&self, name: &str) -> Option<&str> {
        let mut values = self.fields.iter().filter(|(field, _)| field.eq_ignore_ascii_case(name));
        let value = values.next().map(|(_, value)| value.as_str());
        assert!(values.next().is_none(), "{name} stands twice in {self:?}");
        value
    }

    pub(crate) fn text(&self) -> &str {
        std::str::from_utf8(&self.body).expect("text")
    }
}

impl Client {
    pub(crate) fn send(&mut self, bytes: &[u8]) {
        self.0.get_mut().write_all(bytes).expect("sending");
    }

    /// Asks and reads the answer; `fields` are whole lines.
    pub(crate) fn ask(&mut self, method: &str, path: &str, fields: &str) -> Response {
        self.send(format!("{method} {path} HTTP/1.1\r\nHost: test\r\n{fields}\r\n").as_bytes());
        self.response(method == "HEAD")
    }

    /// Reads a status line and the fields.
    pub(crate) fn head(&mut self) -> Response {
        let mut line = String::new();
        self.0.read_line(&mut line).expect("a status line");
        let status = line.split(' ').nth(1).unwrap_or_else(|| panic!("{line:?}")).parse().expect("a status");
        let mut fields = Vec::new();
        loop {
            line.clear();
            self.0.read_line(&mut line).expect("a field");
            let Some((name, value)) = line.trim_end().split_once(": ") else { break };
            fields.push((name.to_owned(), value.to_owned()));
        }
        Response { status, fields, body: Vec::new() }
    }

    pub(crate) fn response(&mut self, head_only: bool) -> Response {
        let mut response = self.head();
        let len = response.field("Content-Length").map_or(0, |len| len.parse().expect("a length"));
        if !head_only && response.status != 304 {
            response.body = vec![0; len];
            self.0.read_exact(&mut response.body).expect("the body");
        }
        response
    }

    /// Reads until the server closes.
    pub(crate) fn rest(&mut self) -> Vec<u8> {
        let mut rest = Vec::new();
        self.0.read_to_end(&mut rest).expect("the end of the connection");
        rest
    }
}
