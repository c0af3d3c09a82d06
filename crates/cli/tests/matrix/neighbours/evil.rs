//! A hostile server: it withholds objects, sends decompression bombs, states absurd sizes and floods with events.

use std::fs;
use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread::JoinHandle;

use esker_testkit::fixture::{self, Repository};
use esker_testkit::mirror::{Fault, Mirror, Rule};
use esker_testkit::object::{self, BOMB_UNIT};
use esker_testkit::revision_builder::RevisionBuilder;

use crate::test_env::{TestEnv, words};

/// Part of the paths of withheld objects.
pub(super) const NOWHERE: &str = "c0/ffee11";
/// Objects that never end, and too large for memory: they are spooled.
pub(super) const STALLED: u64 = 3;
const STALLED_LEN: usize = 40 << 20;
/// Files of the hostile repository that can't be read: bombs, and files of absurd sizes.
pub(super) const UNREADABLE: [&str; 5] = ["bomb", "bomb-small", "bomb-empty", "absurd", "absurd-huge"];
/// A file that can be read if there is room.
pub(super) const ZEROS: &str = "zeros";
/// Heads with absurd sizes.
pub(super) const HEADS: usize = 6;
/// Number of heads, the first ones, that name the right catalog.
pub(super) const HARMLESS_HEADS: usize = 2;

/// Returns the digest of an object that doesn't exist.
pub(super) fn withheld(number: u64) -> [u8; 20] {
    let mut digest = [0; 20];
    digest[..4].copy_from_slice(&[0xc0, 0xff, 0xee, 0x11]);
    digest[4..12].copy_from_slice(&number.to_le_bytes());
    digest
}

/// A fault that holds requests back; renewed now and then, because the server keeps a connection for each of them.
pub(super) struct Held<'m> {
    strike: Box<dyn Fn() -> Rule + Send + Sync + 'm>,
    rule: Mutex<Rule>,
    before: AtomicU64,
}

impl<'m> Held<'m> {
    fn by(strike: impl Fn() -> Rule + Send + Sync + 'm) -> Held<'m> {
        Held { rule: Mutex::new(strike()), strike: Box::new(strike), before: AtomicU64::new(0) }
    }

    /// Withholds objects: the server takes the requests and never answers.
    pub(super) fn withheld(mirror: &'m Mirror) -> Held<'m> {
        Held::by(move || mirror.fault(|path| path.contains(NOWHERE), Fault::NoAnswer))
    }

    /// Releases the held requests, and holds back later ones.
    pub(super) fn renew(&self) {
        let next = (self.strike)();
        let last = std::mem::replace(&mut *self.rule.lock().expect("the rule"), next);
        last.lift();
        self.before.fetch_add(last.hits(), Ordering::Relaxed);
    }

    pub(super) fn lift(&self) {
        self.rule.lock().expect("the rule").lift();
    }

    /// Waits until a request is held back; it isn't renewed before.
    pub(super) fn wait_for_hit(&self) {
        let rule = self.rule.lock().expect("the rule").clone();
        if self.before.load(Ordering::Relaxed) == 0 {
            rule.wait_for_hits(1);
        }
    }

    pub(super) fn hits(&self) -> u64 {
        self.before.load(Ordering::Relaxed) + self.rule.lock().expect("the rule").hits()
    }
}

/// A hostile repository on a server of its own.
pub(super) struct Evil {
    pub(super) mirror: Mirror,
    /// Objects that inflate to gigabytes.
    pub(super) bombs: Vec<String>,
    stalled: Vec<String>,
    _repository: Repository,
    notifier: Notifier,
}

impl Evil {
    pub(super) fn start() -> Evil {
        let repository = fixture::FULL.unpack();
        let craft = RevisionBuilder::of(&repository);
        craft.add_directory("soak");
        super::add_withheld(&craft);
        let gigabytes = 3 << 30;
        let sizes = [gigabytes, 1000, 0, i64::MAX.unsigned_abs(), 1 << 50];
        let mut bombs = Vec::new();
        for (number, (name, size)) in (0..).zip(UNREADABLE.into_iter().zip(sizes)) {
            let stored = object::bomb(gigabytes / BOMB_UNIT + number);
            bombs.push(super::add(&craft, &repository, name, (&stored, size)));
        }
        let zeros = 12 * BOMB_UNIT;
        super::add(&craft, &repository, ZEROS, (&object::bomb(zeros / BOMB_UNIT), zeros));
        let mut stalled = Vec::new();
        for number in 0..STALLED {
            let stored = super::noise(number, STALLED_LEN);
            let name = format!("stalled{number}");
            let hash = super::add(&craft, &repository, &name, (&stored, STALLED_LEN as u64));
            stalled.push(object::path(&hash, ""));
        }
        craft.publish(&repository);
        let mirror = Mirror::serve(repository.document_root());
        put_heads(&repository, &mirror, &bombs);
        Evil { mirror, bombs, stalled, _repository: repository, notifier: Notifier::start() }
    }

    /// Holds back the ends of large objects.
    pub(super) fn stalls(&self) -> Held<'_> {
        let most = STALLED_LEN as u64 - 1000;
        Held::by(move || {
            let paths = self.stalled.clone();
            let picks = move |path: &str| paths.iter().any(|end| path.ends_with(end));
            self.mirror.fault(picks, Fault::StallAfter(most))
        })
    }

    /// Returns the URL of the repository, or of one of its heads with absurd sizes.
    pub(super) fn url(&self, head: Option<usize>) -> String {
        let folder = head.map(|head| format!("head{head}/")).unwrap_or_default();
        self.mirror.url(&format!("{folder}full.test"))
    }

    /// Mounts it beside the good one.
    pub(super) fn mount<'w>(&self, world: &'w TestEnv, options: &[&str]) -> EvilMount<'w> {
        let place = world.path("evil");
        fs::create_dir(&place).expect("a folder");
        std::os::unix::fs::chown(&place, Some(world.person.uid), Some(world.person.gid)).expect("its owner");
        let mut command = world.esker(&["mount", &self.url(None)]);
        command.arg(&place).arg("--public-key").arg(world.path("key.pub"));
        command.args(["--push", &self.notifier.url]).args(options);
        command.env("ESKER_CACHE", world.path("home/evil"));
        let output = command.output().expect("esker mount");
        assert!(output.status.success(), "{}", words(&output));
        EvilMount { world, place }
    }

    /// Returns the number of events sent.
    pub(super) fn events(&self) -> u64 {
        self.notifier.events.load(Ordering::Relaxed)
    }
}

/// Puts heads with absurd sizes beside the good one, over the same objects.
fn put_heads(repository: &Repository, mirror: &Mirror, bombs: &[String]) {
    let keys = repository.fixture().keys();
    for bomb in bombs {
        let stored = repository.read(&object::path(bomb, ""));
        ["C", "H"].iter().for_each(|kind| repository.write(&object::path(bomb, kind), &stored));
    }
    let mut drafts: [_; HEADS] = std::array::from_fn(|_| repository.manifest());
    drafts[0].set('B', 1_u64 << 63);
    drafts[1].set('B', u64::MAX);
    drafts[2].set('C', &bombs[0]).set('B', 0);
    drafts[3].set('C', &bombs[1]).set('B', 1_u64 << 62);
    drafts[4].set('C', &bombs[2]).set('B', 60 << 20);
    drafts[5].set('C', &bombs[3]).set('B', 3_u64 << 30).set('S', u64::MAX);
    for (number, draft) in drafts.iter().enumerate() {
        mirror.put(&format!("/head{number}/full.test/.cvmfspublished"), draft.sign(&keys));
    }
    let root = repository.document_root().to_owned();
    mirror.make(move |path| {
        let (head, rest) = path.trim_start_matches('/').split_once('/')?;
        let is_plain =
            Path::new(rest).components().all(|part| matches!(part, std::path::Component::Normal(_)));
        (head.starts_with("head") && is_plain).then(|| fs::read(root.join(rest)).ok()).flatten()
    });
}

/// The mount of the hostile repository, unmounted on drop.
pub(super) struct EvilMount<'w> {
    world: &'w TestEnv,
    place: PathBuf,
}

impl Drop for EvilMount<'_> {
    fn drop(&mut self) {
        let output = self.world.esker(&["umount"]).arg(&self.place).output().expect("esker umount");
        assert!(output.status.success() || std::thread::panicking(), "{}", words(&output));
    }
}

/// Sends events, as fast as the listener reads them.
struct Notifier {
    url: String,
    events: Arc<AtomicU64>,
    stop: Arc<AtomicBool>,
    address: std::net::SocketAddr,
    acceptor: Option<JoinHandle<()>>,
}

impl Notifier {
    fn start() -> Notifier {
        let listener = TcpListener::bind("127.0.0.1:0").expect("listening");
        let address = listener.local_addr().expect("an address");
        let (events, stop) = (Arc::<AtomicU64>::default(), Arc::<AtomicBool>::default());
        let (sent, stopping) = (events.clone(), stop.clone());
        let acceptor = std::thread::spawn(move || {
            while let Ok((stream, _)) = listener.accept() {
                if stopping.load(Ordering::SeqCst) {
                    return;
                }
                let sent = sent.clone();
                // It ends when its listener does.
                std::thread::spawn(move || flood(stream, &sent));
            }
        });
        Notifier { url: format!("http://{address}/api/v1"), events, stop, address, acceptor: Some(acceptor) }
    }
}

fn flood(mut stream: TcpStream, sent: &AtomicU64) -> Option<()> {
    // A request has something in it, and nothing that matters.
    stream.read_exact(&mut [0]).ok()?;
    stream
        .write_all(b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nConnection: close\r\n\r\n")
        .ok()?;
    for revision in 1_000_u64.. {
        let event = format!("data: {{\"repository\":\"full.test\",\"revision\":{revision}}}\n\n");
        stream.write_all(event.as_bytes()).ok()?;
        sent.fetch_add(1, Ordering::Relaxed);
    }
    Some(())
}

impl Drop for Notifier {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::SeqCst);
        drop(TcpStream::connect(self.address));
        if let Some(acceptor) = self.acceptor.take() {
            acceptor.join().expect("the acceptor does not panic");
        }
    }
}
