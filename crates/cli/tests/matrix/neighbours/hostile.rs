//! A hostile user: reads that wait in hundreds, reads that are killed, files that are held open, and nonsense for the broker.

use std::collections::VecDeque;
use std::fmt::{self, Display};
use std::fs::{self, File};
use std::io::{IoSliceMut, Read};
use std::mem::MaybeUninit;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread::Scope;
use std::time::{Duration, Instant};

use esker_testkit::soak::Random;
use rustix::fs::OFlags;
use rustix::net::sockopt::{Timeout, set_socket_timeout};
use rustix::net::{
    AddressFamily, RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendFlags, SocketAddrUnix,
    SocketFlags, SocketType,
};
use serde_json::{Value, json};

use crate::test_env::TestEnv;
use crate::test_user::TestUser;

use super::broker::NodeBroker;
use super::evil::{self, Evil, Held};
use super::readers::{Readers, Stop, read_anew};

/// Threads that read slow files.
const FLOODING: u64 = 150;
/// Threads that read withheld objects, from either server.
const WITHHELD: [(usize, &str); 2] = [(100, "mnt/soak"), (150, "evil/soak")];
/// Programs that read at once, to be killed halfway.
const DOOMED: usize = 8;
/// Files that are held open, and descriptors of the broker.
const HELD: usize = 200;
/// Objects that are requested from the broker at once.
const ASKED: usize = 120;
/// Time for which its replies are read.
const LISTENING: Duration = Duration::from_secs(3);
/// The first number of requests that are absurd.
const ABSURD: u64 = 1 << 32;
/// Longest message of a broker.
const MESSAGE_MAX: usize = 64 << 10;

/// Its actions and their results.
#[derive(Default)]
pub(super) struct Counts {
    waited: AtomicU64,
    killed: AtomicU64,
    held: AtomicU64,
    descriptors: AtomicU64,
    /// Bombs and absurd sizes that were refused to a read, a program or a client of the broker.
    refused: [AtomicU64; 3],
    evicted: AtomicU64,
    disk_errors: AtomicU64,
}

fn count(counter: &AtomicU64) {
    counter.fetch_add(1, Ordering::Relaxed);
}

impl Counts {
    /// Panics if one of the attacks was none.
    pub(super) fn assert_hit(&self) {
        let [reads, programs, requests] = &self.refused;
        let all = [&self.waited, &self.killed, &self.held, &self.descriptors, reads, programs, requests];
        assert!(all.iter().all(|one| one.load(Ordering::Relaxed) > 0), "not all was tried: {self}");
    }
}

impl Display for Counts {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let get = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        write!(
            f,
            "{} waiting reads, {} killed, {} files and {} descriptors held, bombs and absurd sizes refused: {} reads, {} \
             programs, {} requests to the broker; evicted meanwhile: {}; operations that failed on the disk: {}",
            get(&self.waited),
            get(&self.killed),
            get(&self.held),
            get(&self.descriptors),
            get(&self.refused[0]),
            get(&self.refused[1]),
            get(&self.refused[2]),
            get(&self.evicted),
            get(&self.disk_errors),
        )
    }
}

pub(super) struct Hostile<'t> {
    /// User with hundreds of waiting reads.
    flooder: TestUser,
    /// User of the other attacks, which would wait behind those reads.
    person: TestUser,
    readers: &'t Readers,
    world: &'t TestEnv,
    broker: &'t NodeBroker,
    evil: &'t Evil,
    program: PathBuf,
    home: PathBuf,
    /// The version of the broker's protocol.
    version: u32,
    counts: Counts,
}

impl<'t> Hostile<'t> {
    pub(super) fn new(
        [flooder, person]: [TestUser; 2],
        world: &'t TestEnv,
        readers: &'t Readers,
        (broker, evil): (&'t NodeBroker, &'t Evil),
    ) -> Hostile<'t> {
        let home = world.path("mallory");
        fs::create_dir(&home).expect("a folder");
        if TestUser::myself().is_root() {
            std::os::unix::fs::chown(&home, Some(person.uid), Some(person.gid)).expect("its owner");
        }
        let mut program = world.program().to_owned();
        if person.does(|| File::open(&program).is_err()) {
            program = home.join("esker");
            fs::copy(world.program(), &program).expect("a copy");
        }
        let greets =
            |version: &u32| person.does(|| Client::greet(broker.socket(), &world.url(), *version).is_some());
        let version = (1..100).find(greets).expect("a version of the protocol");
        let counts = Counts::default();
        Hostile { flooder, person, readers, world, broker, evil, program, home, version, counts }
    }

    pub(super) fn counts(self) -> Counts {
        self.counts
    }

    /// Records the attack's results from a status.
    pub(super) fn note(&self, status: &Value) {
        for (counter, name) in [(&self.counts.evicted, "evicted"), (&self.counts.disk_errors, "disk_errors")]
        {
            counter.store(status["cache"][name].as_u64().expect("a number"), Ordering::Relaxed);
        }
    }

    /// Runs all attacks at once until the readers are told to stop.
    pub(super) fn start<'s>(&'s self, scope: &'s Scope<'s, '_>, held_back: &'s [&Held<'_>]) {
        let attacks: [fn(&Self); 5] =
            [Self::kill, Self::hold, Self::read_bombs, Self::run_programs, Self::talk];
        scope.spawn(move || self.attack(self.flooder, |hostile| hostile.wait(held_back)));
        for attack in attacks {
            scope.spawn(move || self.attack(self.person, attack));
        }
    }

    fn attack(&self, person: TestUser, attack: impl FnOnce(&Self) + Send) {
        let failed = Stop::of(self.readers, || {});
        person.does(|| attack(self));
        failed.not();
    }

    /// Makes hundreds of reads wait: one kind after the other is begun, or its requests would wait behind those of the
    /// next.
    fn wait(&self, held_back: &[&Held<'_>]) {
        let withheld = WITHHELD.map(|(threads, folder)| {
            let paths = (0..threads).map(|number| self.world.path(&format!("{folder}/withheld{number}")));
            paths.map(|path| vec![path]).collect::<Vec<_>>()
        });
        let stalled =
            (0..evil::STALLED).map(|number| vec![self.world.path(&format!("evil/soak/stalled{number}"))]);
        let zeros = vec![self.world.path("evil/soak").join(evil::ZEROS)];
        let mount = self.readers.mount();
        let flood: Vec<_> =
            (0..super::FLOOD).map(|number| mount.join(format!("soak/flood{number}"))).collect();
        std::thread::scope(|scope| {
            let start = |number: u64, paths: Vec<PathBuf>| {
                let reader = std::thread::Builder::new().stack_size(256 << 10);
                let reads = move || self.read_on(&paths, Random(number));
                reader.spawn_scoped(scope, reads).expect("a thread");
            };
            let (stalls, withholds) = held_back.split_at(1);
            (0..).zip(stalled.chain([zeros])).for_each(|(number, paths)| start(number, paths));
            stalls.iter().for_each(|held| held.wait_for_hit());
            (0..).zip(withheld.into_iter().flatten()).for_each(|(number, paths)| start(number, paths));
            withholds.iter().for_each(|held| held.wait_for_hit());
            (0..FLOODING).for_each(|number| start(number, flood.clone()));
        });
    }

    /// Reads some of these until told to stop.
    fn read_on(&self, paths: &[PathBuf], mut random: Random) {
        while self.readers.goes_on() {
            count(&self.counts.waited);
            if read_anew(&paths[random.below(paths.len())]).is_err() {
                self.readers.wait_for_reads(1);
            }
        }
    }

    /// Starts programs that read large files, and kills each halfway.
    fn kill(&self) {
        let mut doomed = VecDeque::new();
        let mut files = self.readers.files().iter().cycle().skip(super::SMALL);
        while self.readers.wait_for_reads(1) {
            let path = self.readers.mount().join(&files.next().expect("files").path);
            let mut cat = self.person.command("cat");
            cat.arg(path).stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
            doomed.push_back(Doomed(cat.spawn().expect("a program that reads")));
            if doomed.len() > DOOMED {
                doomed.pop_front();
                count(&self.counts.killed);
            }
        }
    }

    /// Reads a little of many files and keeps them open.
    fn hold(&self) {
        let mut held = VecDeque::new();
        for file in self.readers.files().iter().cycle() {
            if !self.readers.wait_for_reads(1) {
                return;
            }
            let open = File::open(self.readers.mount().join(&file.path));
            if let Ok(mut file) = open
                && file.read(&mut [0]).is_ok()
            {
                held.push_back(file);
                count(&self.counts.held);
            }
            if held.len() > HELD {
                held.pop_front();
            }
        }
    }

    /// Reads decompression bombs.
    fn read_bombs(&self) {
        for name in evil::UNREADABLE.iter().cycle() {
            if !self.readers.wait_for_reads(1) {
                return;
            }
            // The cache must not make room for the stated size of the file.
            let since = Instant::now();
            let read = File::open(self.world.path("evil/soak").join(name))
                .and_then(|mut file| file.read(&mut [0; 512]));
            match read {
                Ok(len) => assert!(len == 0 && *name == "bomb-empty", "{len} bytes of {name} were read"),
                Err(error) if error.raw_os_error() == Some(libc::EIO) => {
                    // One that took longer may have failed for another reason.
                    self.counts.refused[0].fetch_add((since.elapsed() < LISTENING).into(), Ordering::Relaxed);
                }
                Err(error) => panic!("{name}: {error}"),
            }
        }
    }

    /// Runs `esker cat` on heads of absurd sizes.
    fn run_programs(&self) {
        for head in (0..evil::HEADS).cycle() {
            if !self.readers.wait_for_reads(1) {
                return;
            }
            // Without stored heads: otherwise a head is refused by the last accepted one, and its catalog never
            // fetched.
            let cache = self.home.join("cache");
            match fs::remove_dir_all(&cache) {
                Err(error) if error.kind() != std::io::ErrorKind::NotFound => {
                    panic!("emptying the cache: {error}")
                }
                _ => {}
            }
            let mut cat = Command::new(&self.program);
            cat.arg("cat").arg(format!("{}:/data/hex.txt", self.evil.url(Some(head)))).arg("--public-key");
            cat.arg(self.world.path("key.pub"))
                .args(self.broker.options())
                .env_clear()
                .env("HOME", &self.home);
            cat.env("XDG_RUNTIME_DIR", &self.home).env("ESKER_CONFIG_ROOT", self.world.config_root());
            cat.env("ESKER_CACHE", &cache).current_dir("/").stdin(Stdio::null());
            let output = cat.output().expect("esker cat");
            // Absurd sizes of the right catalog lead nowhere else; the others lead to bombs, or to an absurd revision.
            let said = String::from_utf8_lossy(&output.stderr);
            let is_bad = head >= evil::HARMLESS_HEADS;
            assert!(!is_bad || !output.status.success(), "head {head} was taken");
            let is_refused = ["plain bytes", "absurdly far"].iter().any(|reason| said.contains(reason));
            self.counts.refused[1].fetch_add((is_bad && is_refused).into(), Ordering::Relaxed);
        }
    }

    /// Talks to the broker as no mount does.
    fn talk(&self) {
        let mut held = VecDeque::new();
        let mut silent = None;
        let objects = self.readers.files().iter().filter_map(|file| file.object.as_ref());
        let objects: Vec<_> = objects.take(ASKED).collect();
        while self.readers.wait_for_reads(1) {
            let greet = |servers: &str| Client::greet(self.broker.socket(), servers, self.version);
            let (good, evil) = (greet(&self.world.url()), greet(&self.evil.url(None)));
            let (Some(good), Some(evil)) = (good, evil) else { continue };
            for (number, (name, size)) in (0..).zip(&objects) {
                good.get(number, name, Some(*size), 1 << 20);
                let nowhere = esker_testkit::object::hex(&evil::withheld(number));
                good.get(1000 + number, &nowhere, Some(4096), 4096);
                good.say(&json!({"doubt": {"object": wanted(name, None, u64::MAX)}}));
                good.say(
                    &json!({"warm": {"id": number, "errand": 1, "object": wanted(&nowhere, None, u64::MAX)}}),
                );
                good.say(&json!({"status": {"id": number}}));
                good.say(&json!({"released": {"id": number, "held": vec![true; 500]}}));
            }
            for (number, bomb) in (0..).zip(&self.evil.bombs) {
                evil.get(ABSURD + number, bomb, None, u64::MAX);
                evil.get(ABSURD + 100 + number, bomb, Some(1 << 63), u64::MAX);
                evil.get(ABSURD + 200 + number, bomb, Some(60 << 20), 0);
            }
            let until = Instant::now() + LISTENING;
            for client in [&evil, &good] {
                while let Some((answer, descriptor)) = client.hear() {
                    let absurd = answer["failed"]["id"].as_u64().is_some_and(|id| id >= ABSURD);
                    let said = answer["failed"]["error"]["text"].as_str().unwrap_or_default();
                    let is_refused =
                        ["plain bytes", "larger quota"].iter().any(|reason| said.contains(reason));
                    self.counts.refused[2].fetch_add((absurd && is_refused).into(), Ordering::Relaxed);
                    if let Some(descriptor) = descriptor {
                        let all = OFlags::DIRECT | OFlags::APPEND | OFlags::NONBLOCK;
                        // Whatever the file system makes of it.
                        let _ = rustix::fs::fcntl_setfl(&descriptor, all);
                        let _ = rustix::fs::flock(
                            &descriptor,
                            rustix::fs::FlockOperation::NonBlockingLockExclusive,
                        );
                        held.push_back(descriptor);
                        count(&self.counts.descriptors);
                    }
                    if held.len() > HELD {
                        held.pop_front();
                    }
                    // Progress is reported for as long as a request waits.
                    if Instant::now() > until {
                        break;
                    }
                }
            }
            good.say(&json!({"nonsense": u64::MAX}));
            // The last one takes no answers until the next one takes its place.
            objects.iter().for_each(|(name, _)| evil.get(1, name, None, u64::MAX));
            silent = Some(evil);
        }
        drop(silent);
    }
}

/// A program that is killed in the end.
struct Doomed(Child);

impl Drop for Doomed {
    fn drop(&mut self) {
        // It may have ended.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

fn wanted(name: &str, size: Option<u64>, limit: u64) -> Value {
    json!({
        "name": name, "compression": 0, "size": size, "limit": limit, "what": "/x".repeat(500),
        "alternative_path": false, "external": null,
    })
}

/// A client of the broker that sends arbitrary messages.
struct Client(OwnedFd);

impl Client {
    fn greet(socket: &Path, servers: &str, version: u32) -> Option<Client> {
        let flags = SocketFlags::CLOEXEC;
        let client =
            rustix::net::socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, flags, None).ok()?;
        rustix::net::connect(&client, &SocketAddrUnix::new(socket).expect("an address")).ok()?;
        set_socket_timeout(&client, Timeout::Recv, Some(Duration::from_secs(1))).expect("a deadline");
        let client = Client(client);
        client.say(&json!({"hello": {"version": version, "servers": servers}}));
        let (answer, _) = client.hear()?;
        (answer == "welcome").then_some(client)
    }

    fn get(&self, id: u64, name: &str, size: Option<u64>, limit: u64) {
        self.say(&json!({"get": {"id": id, "user": 0, "object": wanted(name, size, limit)}}));
    }

    /// Sends it, ignoring a closed or full socket.
    fn say(&self, message: &Value) {
        let text = message.to_string();
        let _ = rustix::net::send(&self.0, text.as_bytes(), SendFlags::NOSIGNAL | SendFlags::DONTWAIT);
    }

    /// Returns the next message, if one arrives soon.
    fn hear(&self) -> Option<(Value, Option<OwnedFd>)> {
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
        let mut ancillary = RecvAncillaryBuffer::new(&mut space);
        let mut buffer = vec![0; MESSAGE_MAX];
        let mut into = [IoSliceMut::new(&mut buffer)];
        let got =
            rustix::net::recvmsg(&self.0, &mut into, &mut ancillary, RecvFlags::CMSG_CLOEXEC).ok()?.bytes;
        let descriptor = ancillary.drain().find_map(|message| match message {
            RecvAncillaryMessage::ScmRights(mut descriptors) => descriptors.next(),
            _ => None,
        });
        Some((serde_json::from_slice(buffer.get(..got)?).ok()?, descriptor))
    }
}
