//! Thousands of idle clients beside busy, slow, half-open and malformed ones, and the memory of the server.
//!
//! The server is a process of its own: this test, started again. By default there are 2,000 idle clients;
//! `ESKER_SOAK_IDLE=10000` has as many as the largest sites. Each answer is compared with the files.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{Shutdown, SocketAddr, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use esker_server::{Limits, Repositories, Server};
use esker_testkit::fixture::FULL;
use esker_testkit::soak::Soak;
use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};

use crate::client::{Client, PATIENCE, Response};

/// Variable that makes the test the server of another one, with the folder to serve.
const SERVED: &str = "ESKER_SOAK_SERVED";
/// Variable with the number of idle clients.
const IDLE: &str = "ESKER_SOAK_IDLE";
/// Default number of idle clients.
const IDLE_USUAL: usize = 2_000;
const BUSY: usize = 256;
const SLOW: usize = 64;
const HALF_OPEN: usize = 64;
/// Size of the object that slow clients read.
const LARGE: usize = 6 << 20;
/// Requests of a busy client in one round.
const REQUESTS: usize = 8;

/// Largest part of the server's memory that does not depend on the number of clients: code, threads and bodies that are not
/// sent yet (64 MiB and 256 KiB for each worker).
const BASE_MAX: u64 = 96 << 20;
/// Largest memory for each client that is connected.
const IDLE_MAX: u64 = 12 << 10;
/// The same for each client with an answer in progress: one chunk while memory is scarce, and the buffers of hyper.
const ACTIVE_MAX: u64 = 48 << 10;

/// The server, and the files that it serves.
struct Site {
    process: Child,
    address: SocketAddr,
    /// Paths and content of files that are asked for.
    files: Vec<(String, Vec<u8>)>,
    large: (String, Vec<u8>),
}

impl Drop for Site {
    fn drop(&mut self) {
        // It ends with its input; one that does not is ended here.
        drop(self.process.stdin.take());
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

impl Site {
    fn connect(&self) -> TcpStream {
        let stream = TcpStream::connect(self.address).expect("connecting");
        stream.set_read_timeout(Some(PATIENCE)).expect("a deadline");
        stream
    }

    fn client(&self) -> Client {
        Client(BufReader::new(self.connect()))
    }

    /// Returns the bytes of physical memory that the server has now, and the most that it had.
    fn memory(&self) -> (u64, u64) {
        let status = std::fs::read_to_string(format!("/proc/{}/status", self.process.id()));
        let status = status.expect("the status of the server");
        let size = |name: &str| {
            let line = status.lines().find_map(|line| line.strip_prefix(name)).expect("a size");
            line.split_ascii_whitespace().next().expect("a number").parse::<u64>().expect("a number") << 10
        };
        (size("VmRSS:"), size("VmHWM:"))
    }
}

fn idle_clients() -> usize {
    std::env::var(IDLE).ok().map_or(IDLE_USUAL, |text| text.parse().expect("a number in ESKER_SOAK_IDLE"))
}

/// Serves a folder until its input ends.
fn be_the_server(folder: &Path) {
    esker_testkit::descriptors::allow(16 * 1024);
    let limits = Limits {
        connections: 16_000,
        idle: Duration::from_secs(3600),
        head: Duration::from_secs(3600),
        // The slow clients read less than a segment in the time of a long soak, so nothing is sent to them.
        stall: Duration::from_secs(3600),
        slowest: 1,
        ..Limits::default()
    };
    let repositories = Repositories::open(&[folder.to_owned()]).expect("a folder");
    let server = Server::bind("127.0.0.1:0".parse().expect("an address"), repositories, limits);
    let server = server.expect("a server");
    let stopper = server.stopper();
    writeln!(std::io::stdout(), "\nserving {}", server.address()).expect("a pipe");
    std::thread::spawn(move || {
        // The end of the input is the end of the test.
        let _ = std::io::stdin().read(&mut [0]);
        stopper.stop();
    });
    server.run().expect("serving");
}

fn start(folder: &Path, files: Vec<(String, Vec<u8>)>, large: (String, Vec<u8>)) -> Site {
    let mut process = Command::new(std::env::current_exe().expect("this program"))
        .args(["--exact", "soak::soak_crowd", "--nocapture"])
        .env(SERVED, folder)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .expect("starting the server");
    let mut output = BufReader::new(process.stdout.take().expect("its output"));
    let mut line = String::new();
    let address = loop {
        line.clear();
        assert!(output.read_line(&mut line).expect("its output") > 0, "the server ended");
        if let Some(address) = line.trim().strip_prefix("serving ") {
            break address.parse().expect("an address");
        }
    };
    process.stdout = Some(output.into_inner());
    Site { process, address, files, large }
}

/// Asks for a file in one of several ways and compares the answer.
fn ask(client: &mut Client, files: &[(String, Vec<u8>)], random: &mut StdRng) {
    let (path, bytes) = &files[random.random_range(0..files.len())];
    let tag = path.rsplit_once("/data/").map(|(_, name)| format!("\"{}\"", name.replacen('/', "", 1)));
    let whole = |answer: Response| assert_eq!((answer.status, &answer.body), (200, bytes), "{path}");
    match (random.random_range(0..8), tag) {
        (0, _) => {
            let answer = client.ask("HEAD", path, "");
            let len = answer.field("Content-Length").map(str::to_owned);
            assert_eq!((answer.status, len), (200, Some(bytes.len().to_string())), "{path}");
        }
        (1, Some(tag)) => {
            let answer = client.ask("GET", path, &format!("If-None-Match: {tag}\r\n"));
            assert_eq!((answer.status, answer.body.len()), (304, 0), "{path}");
        }
        (2, Some(_)) if bytes.len() > 2 => {
            let answer = client.ask("GET", path, "Range: bytes=1-1\r\n");
            assert_eq!((answer.status, answer.body.as_slice()), (206, &bytes[1..2]), "{path}");
        }
        (3, _) => assert_eq!(client.ask("GET", &format!("{path}0"), "").status, 404, "{path}0"),
        (4, _) => {
            // Two requests before the first answer.
            let request = format!("GET {path} HTTP/1.1\r\nHost: test\r\n\r\n");
            client.send(request.repeat(2).as_bytes());
            whole(client.response(false));
            whole(client.response(false));
        }
        (5, _) => whole(client.ask("GET", path, "Cache-Control: no-cache\r\n")),
        _ => whole(client.ask("GET", path, "")),
    }
}

/// Sends what no server understands; the connection must end, without a file.
fn malformed(site: &Site, random: &mut StdRng) {
    let requests = [
        "GET / HTTP/1.1\r\n\r\n",
        "GET / HTTP/1.1\r\nHost: a\r\nHost: b\r\n\r\n",
        "GET /cvmfs/full.test/.cvmfspublished HTTP/1.1\r\nHost: a\r\nContent-Length: 4\r\n\r\nGET ",
        "GET /cvmfs/full.test/.cvmfspublished HTTP/1.1\nHost: a\n\n",
        "\u{16}\u{3}\u{1}\u{0}",
        "GET /cvmfs/full.test/.cvmfspublished HTTP/9.9\r\nHost: a\r\n\r\n",
    ];
    let mut client = site.client();
    client.send(requests[random.random_range(0..requests.len())].as_bytes());
    let _ = client.0.get_ref().shutdown(Shutdown::Write);
    let said = client.rest();
    let is_refusal = said.is_empty() || said.starts_with(b"HTTP/1.1 4") || said.starts_with(b"HTTP/1.1 505");
    assert!(is_refusal, "{}", String::from_utf8_lossy(&said));
}

/// A client that reads little at a time.
struct Slow {
    stream: TcpStream,
    received: Vec<u8>,
}

impl Slow {
    fn new(site: &Site) -> Self {
        let mut stream = site.connect();
        let request = format!("GET {} HTTP/1.1\r\nHost: test\r\nConnection: close\r\n\r\n", site.large.0);
        stream.write_all(request.as_bytes()).expect("asking");
        Self { stream, received: Vec::new() }
    }

    fn read_some(&mut self) {
        let mut room = [0; 512];
        let len = self.stream.read(&mut room).expect("some bytes");
        self.received.extend_from_slice(&room[..len]);
    }

    fn finish(mut self, expected: &[u8]) {
        self.stream.read_to_end(&mut self.received).expect("the rest");
        let at = self.received.windows(4).position(|end| end == b"\r\n\r\n").expect("a head") + 4;
        assert!(self.received.starts_with(b"HTTP/1.1 200 ") && self.received[at..] == *expected);
    }
}

fn site() -> (esker_testkit::fixture::Repository, Site) {
    let repository = FULL.unpack();
    let mut state = 7_u32;
    let noise = std::iter::repeat_with(|| {
        state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        state.to_le_bytes()[3]
    });
    let hash = repository.store(&noise.take(LARGE).collect::<Vec<_>>(), "");
    let large = esker_testkit::object::path(&hash, "");
    let large = (format!("/cvmfs/full.test/{large}"), repository.read(&large));
    let mut files = vec![("/cvmfs/full.test/.cvmfspublished".to_owned(), repository.read(".cvmfspublished"))];
    let folders: Vec<PathBuf> = (0..=255).map(|byte| format!("data/{byte:02x}").into()).collect();
    for folder in folders {
        let Ok(entries) = std::fs::read_dir(repository.path().join(&folder)) else { continue };
        for entry in entries {
            let path = folder.join(entry.expect("an object").file_name());
            let path = path.to_str().expect("a text");
            let file = (format!("/cvmfs/full.test/{path}"), repository.read(path));
            if file.0 != large.0 {
                files.push(file);
            }
        }
    }
    let site = start(repository.document_root(), files, large);
    (repository, site)
}

#[test]
fn soak_crowd() {
    if let Some(folder) = std::env::var_os(SERVED) {
        return be_the_server(Path::new(&folder));
    }
    esker_testkit::descriptors::allow(16 * 1024);
    let idle = idle_clients();
    let (_repository, site) = site();
    let mut soak = Soak::begin("soak_crowd");
    let mut random = StdRng::seed_from_u64(soak.seed());
    let (before, _) = site.memory();
    let mut crowd: Vec<TcpStream> = Vec::with_capacity(idle);
    for _ in 0..idle {
        // The buffer of the client is no cost of an idle connection.
        let mut client = site.client();
        ask(&mut client, &site.files, &mut random);
        crowd.push(client.0.into_inner());
    }
    let half_open: Vec<_> = (0..HALF_OPEN)
        .map(|_| {
            let mut client = site.client();
            client.send(b"GET /cvmfs/full.test/.cvmfspubl");
            client
        })
        .collect();
    let (at_rest, _) = site.memory();
    let slow: Vec<_> = (0..SLOW).map(|_| Mutex::new(Slow::new(&site))).collect();
    let answers = AtomicU64::new(0);
    let next = AtomicU64::new(0);
    while soak.goes_on() {
        std::thread::scope(|scope| {
            for _ in 0..BUSY {
                let mut random = StdRng::seed_from_u64(random.random());
                let (site, slow, answers, next) = (&site, &slow, &answers, &next);
                scope.spawn(move || {
                    let mut client = site.client();
                    for _ in 0..REQUESTS {
                        ask(&mut client, &site.files, &mut random);
                        answers.fetch_add(1, Ordering::Relaxed);
                    }
                    let turn = next.fetch_add(1, Ordering::Relaxed) as usize;
                    slow[turn % SLOW].lock().expect("a slow client").read_some();
                    match turn % 8 {
                        0 => malformed(site, &mut random),
                        // A client that leaves in the middle of an answer.
                        1 => client
                            .send(format!("GET {} HTTP/1.1\r\nHost: t\r\n\r\n", site.large.0).as_bytes()),
                        // A client that closes its half first still gets the answer.
                        2 => {
                            let (path, bytes) = &site.files[0];
                            client.send(format!("GET {path} HTTP/1.1\r\nHost: t\r\n\r\n").as_bytes());
                            client.0.get_ref().shutdown(Shutdown::Write).expect("a socket");
                            assert_eq!(&client.response(false).body, bytes);
                        }
                        _ => {}
                    }
                });
            }
        });
    }
    let (_, most) = site.memory();
    // Every idle client is still connected, and is served.
    for stream in crowd {
        ask(&mut Client(BufReader::new(stream)), &site.files, &mut random);
    }
    for mut client in half_open {
        client.send(b"ished HTTP/1.1\r\nHost: test\r\n\r\n");
        assert_eq!(client.response(false).body, site.files[0].1);
    }
    for slow in slow {
        slow.into_inner().expect("a slow client").finish(&site.large.1);
    }
    let per_idle = at_rest.saturating_sub(before) / idle as u64;
    let active = (BUSY + SLOW + HALF_OPEN) as u64;
    let bound = BASE_MAX + IDLE_MAX * idle as u64 + ACTIVE_MAX * active;
    soak.finish(&[
        ("idle clients", &idle),
        ("answers", &answers.load(Ordering::Relaxed)),
        ("memory of an idle client in bytes", &per_idle),
        ("most memory of the server in MiB", &(most >> 20)),
        ("bound in MiB", &(bound >> 20)),
    ]);
    assert!(most <= bound, "the server has {most} bytes, and {bound} are allowed");
    assert!(per_idle <= IDLE_MAX, "an idle client costs {per_idle} bytes");
}
