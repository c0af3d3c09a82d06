//! kill -9 of a server at any moment: readers get an error or the right bytes, and the next server serves at once.

use std::fs;
use std::io::{self, BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::os::fd::AsFd;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::time::{Duration, Instant};

use esker_store::{Callback, Engine, EngineOptions, Fetch, RetryPolicy, Source, connect};
use esker_testkit::fixture;
use esker_testkit::listing::Entry;
use esker_testkit::object;
use esker_testkit::soak::Soak;
use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};
use serde_json::Value;

use crate::test_env::{TestEnv, esker_binary, words};
use crate::test_user::TestUser;

const NAME: &str = "full.test";
/// An object large enough to be interrupted. Its bytes don't match its name, which is not checked.
const LARGE: &str = "data/00/00000000000000000000000000000000000001";
const LARGE_LEN: usize = 24 << 20;
const PIECE: usize = 64 << 10;

/// A server that does not outlive the test.
struct Server(Child);

impl Drop for Server {
    fn drop(&mut self) {
        // Whether there is one to kill is the business of the test.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Starts a server and waits until it serves.
fn start(folder: &Path, address: SocketAddr) -> (Server, SocketAddr) {
    let mut server = Command::new(esker_binary())
        .arg("serve")
        .arg(folder)
        .args(["--json", "--listen", &address.to_string()])
        .env_clear()
        .env("HOME", "/")
        .stdout(Stdio::piped())
        .spawn()
        .expect("esker serve");
    let mut line = String::new();
    BufReader::new(server.stdout.take().expect("its output")).read_line(&mut line).expect("a line");
    let ready: Value = serde_json::from_str(&line).unwrap_or_else(|_| panic!("it serves at once: {line:?}"));
    let url = ready["url"].as_str().expect("a URL").trim_start_matches("http://");
    (Server(server), url.parse().expect("an address"))
}

/// A served file of the repository.
struct Served {
    path: String,
    bytes: Vec<u8>,
}

fn served_files(root: &Path) -> Vec<Served> {
    let mut files = Vec::new();
    let mut waiting = vec![root.to_owned()];
    while let Some(folder) = waiting.pop() {
        for entry in fs::read_dir(&folder).expect("a folder") {
            let path = entry.expect("an entry").path();
            let below = path.strip_prefix(root).expect("below").to_str().expect("text").to_owned();
            if path.is_dir() {
                waiting.push(path);
            } else if below.starts_with(".cvmfs") || below.starts_with("data/") {
                files.push(Served { path: below, bytes: fs::read(&path).expect("a file") });
            }
        }
    }
    files.sort_by(|a, b| a.path.cmp(&b.path));
    files
}

/// Results of the readers.
#[derive(Default)]
struct Counts {
    whole: AtomicU64,
    /// Ended before the length that was promised.
    cut: AtomicU64,
    refused: AtomicU64,
    mounted: AtomicU64,
    mounted_errors: AtomicU64,
}

/// State shared by all readers.
struct Readers<'r> {
    address: SocketAddr,
    files: &'r [Served],
    counts: &'r Counts,
    stop: &'r AtomicBool,
    /// Notified of every piece that arrived.
    progress: SyncSender<()>,
}

fn count(counter: &AtomicU64) {
    counter.fetch_add(1, Ordering::Relaxed);
}

impl Readers<'_> {
    fn goes_on(&self) -> bool {
        !self.stop.load(Ordering::Relaxed)
    }

    fn arrived(&self) {
        // The killer may be busy, or gone.
        let _ = self.progress.try_send(());
    }

    /// Prefers large files: only they can be cut by a kill.
    fn choose(&self, random: &mut StdRng) -> &Served {
        let large = self.files.iter().find(|file| file.path == LARGE).expect("the large one");
        if random.random_ratio(1, 3) { large } else { &self.files[random.random_range(0..self.files.len())] }
    }

    /// Reads as any HTTP client does: a body shorter than its length doesn't count.
    fn raw(&self, mut random: StdRng) {
        while self.goes_on() {
            let Ok(stream) = TcpStream::connect(self.address) else {
                count(&self.counts.refused);
                continue;
            };
            let mut stream = BufReader::new(stream);
            while self.goes_on() {
                let file = self.choose(&mut random);
                match self.raw_file(&mut stream, &file.path) {
                    Ok(Some(body)) => {
                        assert!(body == file.bytes, "{} has other bytes", file.path);
                        count(&self.counts.whole);
                    }
                    Ok(None) => {
                        count(&self.counts.cut);
                        break;
                    }
                    Err(_) => {
                        count(&self.counts.refused);
                        break;
                    }
                }
            }
        }
    }

    /// Returns the body of a file; `None` if it was cut; an error if there was no reply.
    fn raw_file(&self, stream: &mut BufReader<TcpStream>, path: &str) -> io::Result<Option<Vec<u8>>> {
        let request = format!("GET /cvmfs/{NAME}/{path} HTTP/1.1\r\nHost: test\r\n\r\n");
        stream.get_mut().write_all(request.as_bytes())?;
        let mut length = None;
        let mut line = String::new();
        loop {
            line.clear();
            if stream.read_line(&mut line)? == 0 {
                return Err(io::ErrorKind::UnexpectedEof.into());
            }
            if let Some(value) = line.to_ascii_lowercase().strip_prefix("content-length:") {
                length = Some(value.trim().parse::<usize>().expect("a length"));
            } else if line.starts_with("HTTP/") {
                assert!(line.contains(" 200 "), "{path}: {line}");
            } else if line == "\r\n" {
                break;
            }
        }
        let mut body = vec![0; length.expect("a length")];
        for piece in body.chunks_mut(PIECE) {
            if stream.read_exact(piece).is_err() {
                return Ok(None);
            }
            self.arrived();
        }
        Ok(Some(body))
    }

    /// Reads with the client's network code, without hashes, which would hide its mistakes.
    fn fetch(&self, source: &dyn Source, mut random: StdRng) {
        while self.goes_on() {
            let file = self.choose(&mut random);
            let fetch = Fetch::new(file.path.clone(), "a file", 64 << 20);
            match Callback::wait(|done| source.fetch(fetch, done)) {
                Ok(stored) => {
                    assert!(stored.into_bytes().expect("bytes") == file.bytes, "{} is not whole", file.path);
                    count(&self.counts.whole);
                    self.arrived();
                }
                Err(_) => count(&self.counts.refused),
            }
        }
    }

    /// Reads through a mount whose cache has no room for the repository.
    fn mounted(&self, files: &[(PathBuf, &Entry)], mut random: StdRng) {
        while self.goes_on() {
            let (path, entry) = &files[random.random_range(0..files.len())];
            match read_anew(path) {
                Ok(bytes) => {
                    assert_eq!(Some(object::sha256(&bytes)), entry.sha256, "{}", path.display());
                    count(&self.counts.mounted);
                }
                Err(error) => {
                    assert_eq!(error.raw_os_error(), Some(5), "{}: {error}", path.display());
                    count(&self.counts.mounted_errors);
                }
            }
        }
    }
}

/// Reads a file, and has the kernel forget it.
fn read_anew(path: &Path) -> io::Result<Vec<u8>> {
    let mut file = fs::File::open(path)?;
    let mut bytes = Vec::new();
    file.read_to_end(&mut bytes)?;
    rustix::fs::fadvise(file.as_fd(), 0, None, rustix::fs::Advice::DontNeed)?;
    Ok(bytes)
}

/// One attempt per request, so that each error is visible.
fn source(address: SocketAddr) -> std::sync::Arc<dyn Source> {
    let retry = RetryPolicy { attempts: 1, ..RetryPolicy::default() };
    let engine = Engine::start(EngineOptions { retry, ..EngineOptions::default() }).expect("an engine");
    connect(&engine, &format!("http://{address}/cvmfs/{NAME}")).expect("a source")
}

/// Kills servers until it was enough; returns the longest time until the next one served.
fn kill_servers(
    soak: &mut Soak,
    root: &Path,
    (mut server, address): (Server, SocketAddr),
    progress: &Receiver<()>,
    counts: &Counts,
) -> (Server, Duration) {
    let mut random = StdRng::seed_from_u64(soak.seed());
    let mut longest = Duration::ZERO;
    // Until a kill has cut an answer, however long that takes; without one nothing is shown.
    while soak.goes_on_until(if counts.cut.load(Ordering::Relaxed) == 0 { 1000 } else { 0 }) {
        for _ in 0..random.random_range(0..300) {
            progress.recv().expect("readers");
        }
        server.0.kill().expect("killing the server");
        server.0.wait().expect("its end");
        let killed = Instant::now();
        (server, _) = start(root, address);
        longest = longest.max(killed.elapsed());
    }
    (server, longest)
}

#[test]
fn soak_server_kill_nine() {
    let world = TestEnv::new(TestUser::ordinary(), fixture::FULL);
    let root = world.repository.path();
    let noise =
        (0..LARGE_LEN as u32).map(|i| (i.wrapping_mul(2_654_435_761) >> 13) as u8).collect::<Vec<_>>();
    world.repository.write(LARGE, &noise);
    let files = served_files(&root);
    let (server, address) = start(&root, "127.0.0.1:0".parse().expect("an address"));
    let mountpoint = world.mountpoint();
    let mut mount = world.esker(&["mount", &format!("http://{address}/cvmfs/{NAME}"), "--quota", "1M"]);
    mount.arg(&mountpoint).arg("--public-key").arg(world.path("key.pub")).arg("--cache").arg(world.cache());
    let output = mount.output().expect("running esker");
    assert!(output.status.success(), "{}", words(&output));
    let mounted = world.mounted();
    let listing = world.fixture().listing("v3");
    let shown: Vec<_> = listing
        .iter()
        .filter(|entry| entry.is_file() && entry.mode & 0o400 != 0)
        .map(|entry| {
            use std::os::unix::ffi::OsStrExt as _;
            (mountpoint.join(std::ffi::OsStr::from_bytes(entry.below_root())), entry)
        })
        .collect();

    let mut soak = Soak::begin("server_kill_nine");
    let seed = soak.seed();
    let (counts, stop) = (Counts::default(), AtomicBool::new(false));
    let (sender, progress) = sync_channel(1000);
    let readers = Readers { address, files: &files, counts: &counts, stop: &stop, progress: sender };
    let random = |number: u64| StdRng::seed_from_u64(seed.wrapping_add(number));
    let source = source(address);
    let (server, longest) = std::thread::scope(|scope| {
        let (readers, shown, source, mounted) = (&readers, &shown, &source, &mounted);
        for number in 1..3 {
            scope.spawn(move || readers.raw(random(number)));
            scope.spawn(move || readers.fetch(&**source, random(10 + number)));
        }
        scope.spawn(move || mounted.does(|| readers.mounted(shown, random(20))));
        let ended = kill_servers(&mut soak, &root, (server, address), &progress, &counts);
        stop.store(true, Ordering::Relaxed);
        ended
    });
    // With a server that stays, everything is there.
    for file in &files {
        let fetch = Fetch::new(file.path.clone(), "a file", 64 << 20);
        let stored = Callback::wait(|done| source.fetch(fetch, done)).expect("a file");
        assert!(stored.into_bytes().expect("bytes") == file.bytes, "{}", file.path);
    }
    mounted.does(|| {
        for (path, entry) in &shown {
            let bytes = fs::read(path).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
            assert_eq!(Some(object::sha256(&bytes)), entry.sha256, "{}", path.display());
        }
    });
    drop(mounted);
    drop(server);
    let get = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
    assert!(get(&counts.cut) > 0 && get(&counts.whole) > 100 && get(&counts.mounted) > 0);
    soak.finish(&[
        ("answers read whole", &get(&counts.whole)),
        ("answers cut by a kill", &get(&counts.cut)),
        ("attempts without an answer", &get(&counts.refused)),
        ("files read through a mount", &get(&counts.mounted)),
        ("of these with an error", &get(&counts.mounted_errors)),
        ("longest time until the next one served, ms", &longest.as_millis()),
        ("wrong bytes", &0),
    ]);
}
