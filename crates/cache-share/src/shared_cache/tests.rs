//! Simulates several processes in one: each opens the lock file itself.

mod narrow;

use std::collections::HashMap;
use std::io::{Seek, Write};
use std::os::fd::{AsFd, OwnedFd};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::mpsc::{Receiver, channel};

use esker_format::compress::Compression;
use esker_format::hash::{ContentHash, HashAlgorithm};
use esker_format::object::{ObjectKind, ObjectName};
use esker_store::{Blame, Cache, CacheStatus, FileLock, TrafficStatus};
use esker_testkit::waiting::until;
use parking_lot::Condvar;

use super::wire::{ToClient, ToWriter, VERSION, send};
use super::*;

const PATIENCE: Duration = Duration::from_secs(60);

/// A cache that all fakes of a test share: objects, and whether the network answers.
#[derive(Default)]
struct World {
    objects: Mutex<HashMap<CacheKey, Vec<u8>>>,
    /// Objects in the cache.
    cached: Mutex<HashMap<CacheKey, Vec<u8>>>,
    silent: AtomicBool,
    /// While set, another process has the lock and doesn't reply.
    taken: AtomicBool,
    refusals: AtomicUsize,
    asked: AtomicUsize,
    parked: Mutex<Vec<(ObjectRequest, Callback<Handle>)>>,
    parked_changed: Condvar,
    holders: Mutex<Vec<Weak<dyn Holder>>>,
    /// Prefetches that are held back.
    warming: Mutex<usize>,
    warming_changed: Condvar,
    called_off: Mutex<usize>,
    called_off_changed: Condvar,
}

const ROOM: Room = Room { quota: 17, used: 11 };

struct FakeStore(Arc<World>);

impl ObjectStore for FakeStore {
    fn get(&self, wanted: ObjectRequest, done: Callback<Handle>) {
        self.0.asked.fetch_add(1, Ordering::SeqCst);
        if self.0.silent.load(Ordering::SeqCst) {
            self.0.parked.lock().push((wanted, done));
            self.0.parked_changed.notify_all();
            return;
        }
        match self.0.objects.lock().get(&wanted.key()) {
            Some(bytes) => done.ok(handle(bytes)),
            None => {
                let cause = Cause::Missing { status: "404".into() };
                done.err(StoreError::new(wanted.label(), cause).from_place("http://far"));
            }
        }
    }

    fn warm(&self, wanted: ObjectRequest, token: &CancelToken, done: Callback<Warmed>) {
        let there = self.0.objects.lock().get(&wanted.key()).map(|bytes| bytes.len() as u64);
        match there {
            Some(bytes) if !self.0.silent.load(Ordering::SeqCst) => done.ok(Warmed::Fetched(bytes)),
            Some(_) => {
                let (label, world) = (wanted.label(), Arc::downgrade(&self.0));
                let parked = Mutex::new(Some(done));
                token.on_cancel(move || {
                    let Some(done) = parked.lock().take() else { return };
                    // Counted before the reply: its receiver may ask for the count at once.
                    if let Some(world) = world.upgrade() {
                        *world.called_off.lock() += 1;
                        world.called_off_changed.notify_all();
                    }
                    done.err(StoreError::new(label.clone(), Cause::Cancelled));
                });
                *self.0.warming.lock() += 1;
                self.0.warming_changed.notify_all();
            }
            None => done.err(StoreError::new(wanted.label(), Cause::Missing { status: "404".into() })),
        }
    }

    fn cached(&self, wanted: &ObjectRequest) -> Option<Handle> {
        self.0.cached.lock().get(&wanted.key()).map(|bytes| handle(bytes))
    }

    fn add_holder(&self, holder: Weak<dyn Holder>) {
        self.0.holders.lock().push(holder);
    }

    fn status(&self) -> StoreStatus {
        let cache = CacheStatus { quota: ROOM.quota, used: ROOM.used, ..CacheStatus::default() };
        let traffic = TrafficStatus { prefetched_used_bytes: 18, ..TrafficStatus::default() };
        StoreStatus { cache, traffic, ..StoreStatus::default() }
    }

    fn room(&self) -> Room {
        ROOM
    }
}

fn handle(bytes: &[u8]) -> Handle {
    let mut file = tempfile::tempfile().expect("a file");
    file.write_all(bytes).expect("write");
    file.rewind().expect("rewind");
    Handle::from_fd(OwnedFd::from(file), bytes.len() as u64, ())
}

struct FakeWriter {
    world: Arc<World>,
    lock: Mutex<Option<FileLock>>,
}

impl Writer for FakeWriter {
    fn store(&self, url: &str) -> Result<Arc<dyn ObjectStore>, StoreError> {
        if url.contains("refused") {
            return Err(StoreError::new(url, Cause::BadUrl { url: url.into(), reason: "it is refused" }));
        }
        Ok(Arc::new(FakeStore(self.world.clone())))
    }

    fn close(&self) {
        // Like an engine that ends: pending requests are never answered.
        self.world.parked.lock().clear();
        *self.lock.lock() = None;
    }
}

struct Bench {
    folder: tempfile::TempDir,
    world: Arc<World>,
}

impl Bench {
    fn new() -> Self {
        Self { folder: tempfile::tempdir().expect("a folder"), world: Arc::default() }
    }

    fn open(&self) -> Arc<SharedCache> {
        self.try_open("http://far/a.test").expect("open")
    }

    fn try_open(&self, url: &str) -> Result<Arc<SharedCache>, StoreError> {
        SharedCache::open(self.folder.path(), url, self.open_writer())
    }

    fn open_writer(&self) -> OpenWriter {
        let (folder, world) = (self.folder.path().to_owned(), self.world.clone());
        Box::new(move || -> Result<Arc<dyn Writer>, StoreError> {
            if world.taken.load(Ordering::SeqCst) {
                world.refusals.fetch_add(1, Ordering::SeqCst);
                return Err(StoreError::new("cache", Cause::Busy { path: folder.clone(), pid: None }));
            }
            let asked = FileLock::try_take(&folder.join("lock")).expect("a lock file");
            let busy = |holder: esker_store::LockHolder| {
                StoreError::new("cache", Cause::Busy { path: folder.clone(), pid: holder.pid })
            };
            let lock = asked.or_held(busy)?;
            Ok(Arc::new(FakeWriter { world: world.clone(), lock: Mutex::new(Some(lock)) }))
        })
    }

    fn add(&self, bytes: &[u8]) -> ObjectRequest {
        let hash = ContentHash::of(HashAlgorithm::Sha1, bytes);
        let wanted =
            ObjectRequest::new(ObjectName::new(hash, ObjectKind::File), Compression::Zlib, "/a/file");
        self.world.objects.lock().insert(wanted.key(), bytes.to_vec());
        wanted
    }

    fn wait_until_parked(&self, count: usize) {
        let deadline = Instant::now() + PATIENCE;
        let mut parked = self.world.parked.lock();
        while parked.len() < count {
            assert!(
                !self.world.parked_changed.wait_until(&mut parked, deadline).timed_out(),
                "{} of {count} requests reached the writer",
                parked.len()
            );
        }
    }
}

fn ask(shared: &SharedCache, wanted: &ObjectRequest) -> Receiver<Result<Handle, StoreError>> {
    let (sender, receiver) = channel();
    shared.get(
        wanted.clone(),
        Callback::new(move |outcome| {
            let _ = sender.send(outcome);
        }),
    );
    receiver
}

fn read(shared: &SharedCache, wanted: &ObjectRequest) -> Vec<u8> {
    let outcome = ask(shared, wanted).recv_timeout(PATIENCE).expect("an answer");
    outcome.expect("an object").read_all().expect("bytes")
}

#[test]
fn the_second_process_reads_through_the_first() {
    let bench = Bench::new();
    let wanted = bench.add(b"shared");
    let (first, second) = (bench.open(), bench.open());
    assert!(first.is_writer() && !second.is_writer());
    assert!(second.cached(&wanted).is_none());
    assert_eq!(read(&second, &wanted), b"shared");
    let asked = bench.world.asked.load(Ordering::SeqCst);
    assert_eq!(second.cached(&wanted).expect("kept").read_all().expect("bytes"), b"shared");
    assert_eq!(read(&second, &wanted), b"shared");
    assert_eq!(bench.world.asked.load(Ordering::SeqCst), asked, "a kept file was asked for again");
    assert_eq!(second.status().cache.quota, 17);
    assert_eq!(second.status().traffic.prefetched_used_bytes, 18);
    assert_eq!((first.room(), second.room()), (ROOM, ROOM), "what the writer said last");
}

fn warm(
    shared: &SharedCache,
    wanted: &ObjectRequest,
    token: &CancelToken,
) -> Receiver<Result<Warmed, StoreError>> {
    let (sender, receiver) = channel();
    let done = Callback::new(move |outcome| {
        let _ = sender.send(outcome);
    });
    shared.warm(wanted.clone(), token, done);
    receiver
}

#[test]
fn a_mount_that_is_not_the_writer_prefetches_too() {
    let bench = Bench::new();
    let (there, mut missing) = (bench.add(b"there"), bench.add(b"missing"));
    missing.name.hash = ContentHash::of(HashAlgorithm::Sha1, b"nowhere");
    let (_first, second) = (bench.open(), bench.open());
    let token = CancelToken::new();
    let outcome = |wanted| warm(&second, wanted, &token).recv_timeout(PATIENCE).expect("an answer");
    assert_eq!(outcome(&there).expect("warmed"), Warmed::Fetched(5));
    let error = outcome(&missing).expect_err("missing").to_string();
    assert!(error.starts_with(&missing.label()) && error.contains("404"), "{error}");
    assert_eq!(read(&second, &there), b"there");
    assert_eq!(outcome(&there).expect("warmed"), Warmed::Here, "it is open in this process");
}

/// Cancelling a prefetch reaches the writer; so does the end of a client, which cancels its prefetches.
#[test]
fn prefetches_are_cancelled_across_processes() {
    let bench = Bench::new();
    let wanted: Vec<ObjectRequest> = (0..6u8).map(|n| bench.add(&[n])).collect();
    bench.world.silent.store(true, Ordering::SeqCst);
    let (_first, second, third) = (bench.open(), bench.open(), bench.open());
    let (over, open) = (CancelToken::new(), CancelToken::new());
    let waiting: Vec<_> = wanted[..3].iter().map(|wanted| warm(&second, wanted, &over)).collect();
    let others: Vec<_> = wanted[3..].iter().map(|wanted| warm(&third, wanted, &open)).collect();
    wait_for(&bench.world.warming, &bench.world.warming_changed, 6);
    over.cancel();
    for waiting in waiting {
        let error = waiting.recv_timeout(PATIENCE).expect("an answer").expect_err("called off");
        assert!(error.to_string().contains("prefetch cancelled"), "{error}");
    }
    assert_eq!(*bench.world.called_off.lock(), 3, "the other token is still open");
    third.close();
    wait_for(&bench.world.called_off, &bench.world.called_off_changed, 6);
    for waiting in others {
        assert!(waiting.recv_timeout(PATIENCE).expect("an answer").is_err());
    }
    let late = warm(&second, &wanted[0], &over).recv_timeout(PATIENCE).expect("an answer");
    assert!(matches!(late.expect_err("over").cause(), Cause::Cancelled));
}

fn wait_for(count: &Mutex<usize>, changed: &Condvar, wanted: usize) {
    let deadline = Instant::now() + PATIENCE;
    let mut count = count.lock();
    while *count < wanted {
        assert!(!changed.wait_until(&mut count, deadline).timed_out(), "{count} of {wanted}");
    }
}

#[test]
fn an_error_keeps_its_origin_and_names_the_readers_object() {
    let bench = Bench::new();
    let mut wanted = bench.add(b"there");
    wanted.name.hash = ContentHash::of(HashAlgorithm::Sha1, b"not there");
    let (_first, second) = (bench.open(), bench.open());
    let error = ask(&second, &wanted).recv_timeout(PATIENCE).expect("an answer").expect_err("missing");
    assert_eq!(error.blame(), Blame::Host);
    assert!(!error.may_pass());
    let text = error.to_string();
    assert!(
        text.starts_with(&wanted.label()) && text.contains("http://far") && text.contains("404"),
        "{text}"
    );
    assert_eq!(text.matches(&wanted.label()).count(), 1, "{text}");
}

#[test]
fn a_repository_that_the_writer_refuses_is_refused() {
    let bench = Bench::new();
    let _first = bench.open();
    let error = bench.try_open("http://refused/a.test").err().expect("refused");
    assert!(error.to_string().contains("it is refused"), "{error}");
}

#[test]
fn requests_outlive_their_writer() {
    let bench = Bench::new();
    let wanted: Vec<ObjectRequest> = (0..50u8).map(|n| bench.add(&[n])).collect();
    let first = bench.open();
    let others = [bench.open(), bench.open(), bench.open()];
    bench.world.silent.store(true, Ordering::SeqCst);
    let waiting: Vec<_> =
        others.iter().flat_map(|other| wanted.iter().map(|wanted| ask(other, wanted))).collect();
    bench.wait_until_parked(waiting.len());
    bench.world.silent.store(false, Ordering::SeqCst);
    first.close();
    for (n, waiting) in waiting.iter().enumerate() {
        let handle = waiting.recv_timeout(PATIENCE).expect("an answer").expect("an object");
        assert_eq!(handle.read_all().expect("bytes"), [(n % wanted.len()) as u8]);
    }
    assert_eq!(others.iter().filter(|other| other.is_writer()).count(), 1);
    // And again, until one is left.
    let mut others = Vec::from(others);
    while !others.is_empty() {
        let at = others.iter().position(|other| other.is_writer()).expect("a writer");
        others.remove(at).close();
        for other in &others {
            let mut another = wanted[0].clone();
            // Not one that is kept.
            another.name.hash = ContentHash::of(HashAlgorithm::Sha1, &[others.len() as u8, b'x']);
            bench.world.objects.lock().insert(another.key(), vec![1]);
            assert_eq!(read(other, &another), [1]);
        }
    }
}

/// An election lasts as long as another process has the lock; closing must not wait for it.
#[test]
fn closing_ends_an_election() {
    let bench = Bench::new();
    let (first, second) = (bench.open(), bench.open());
    bench.world.taken.store(true, Ordering::SeqCst);
    first.close();
    assert!(until(PATIENCE, || bench.world.refusals.load(Ordering::SeqCst) >= 2), "no election");
    let (closed, is_closed) = channel();
    thread::spawn(move || {
        second.close();
        closed.send(()).expect("the test waits");
    });
    is_closed.recv_timeout(PATIENCE).expect("closing ends");
}

/// The writer is stopped, and continues later.
#[test]
fn a_silent_writer_is_reported() {
    let bench = Bench::new();
    let wanted = bench.add(b"late");
    bench.world.taken.store(true, Ordering::SeqCst);
    let listener = address::Listener::bind(bench.folder.path()).expect("a socket");
    let (folder, open) = (bench.folder.path().to_owned(), bench.open_writer());
    let opening = thread::spawn(move || {
        let pace = Pace { silence: Duration::from_millis(100), ..Pace::default() };
        SharedCache::open_with(&folder, "http://far/a", open, None, pace)
    });
    let (socket, _) = listener.accept().expect("a client");
    let mut receiver = wire::Receiver::new(socket.try_clone().expect("a descriptor"));
    assert!(matches!(receiver.next(), Ok((ToWriter::Hello { .. }, None))));
    send(socket.as_fd(), &ToClient::Welcome, None).expect("sent");
    let shared = opening.join().expect("no panic").expect("open");
    for _ in 0..2 {
        let error = ask(&shared, &wanted).recv_timeout(PATIENCE).expect("an answer").expect_err("no object");
        let ours = std::process::id();
        assert!(matches!(error.cause(), Cause::Silent { pid: Some(pid), .. } if *pid == ours), "{error}");
        assert!(error.may_pass(), "a page fault has to wait");
    }
    thread::spawn(move || {
        while let Ok((message, _)) = receiver.next() {
            let object = tempfile::tempfile().expect("a file");
            let sent = match message {
                ToWriter::Get { id, .. } => send(
                    socket.as_fd(),
                    &ToClient::Object { id, len: 0, waits_us: [0; 4] },
                    Some(object.as_fd()),
                ),
                ToWriter::Status { id } => {
                    send(socket.as_fd(), &ToClient::Status { id, status: Box::default() }, None)
                }
                _ => break,
            };
            sent.expect("sent");
        }
    });
    let is_answered = || ask(&shared, &wanted).recv_timeout(PATIENCE).expect("an answer").is_ok();
    assert!(until(PATIENCE, is_answered), "no object comes");
}

#[test]
fn a_closed_store_answers_with_an_error() {
    let bench = Bench::new();
    let wanted = bench.add(b"x");
    let (first, second) = (bench.open(), bench.open());
    bench.world.silent.store(true, Ordering::SeqCst);
    let waiting = ask(&second, &wanted);
    bench.wait_until_parked(1);
    second.close();
    assert!(waiting.recv_timeout(PATIENCE).expect("an answer").is_err());
    first.close();
    assert!(ask(&first, &wanted).recv_timeout(PATIENCE).expect("an answer").is_err());
}

struct Holds(Vec<CacheKey>, Mutex<Vec<CacheKey>>);

impl Holder for Holds {
    fn release(&self, victims: &[CacheKey]) -> Vec<bool> {
        self.1.lock().extend_from_slice(victims);
        victims.iter().map(|victim| self.0.contains(victim)).collect()
    }
}

#[test]
fn eviction_asks_the_mounts_of_all_processes() {
    let bench = Bench::new();
    let (held, unheld) = (bench.add(b"held"), bench.add(b"unheld"));
    let (_first, second) = (bench.open(), bench.open());
    let holder = Arc::new(Holds(vec![held.key()], Mutex::default()));
    let as_holder: Arc<dyn Holder> = holder.clone();
    second.add_holder(Arc::downgrade(&as_holder));
    assert_eq!(read(&second, &unheld), b"unheld");
    assert!(second.cached(&unheld).is_some());
    let victims = [held.key(), unheld.key()];
    let holders: Vec<_> = bench.world.holders.lock().iter().filter_map(Weak::upgrade).collect();
    let mut all = [false, false];
    for answer in holders.iter().map(|holder| holder.release(&victims)) {
        all[0] |= answer[0];
        all[1] |= answer[1];
    }
    assert_eq!(all, [true, false]);
    assert_eq!(*holder.1.lock(), victims);
    assert!(second.cached(&unheld).is_none(), "an evicted file is kept open");
}

#[test]
fn descriptors_stay_within_their_bound() {
    let received = Received::new(2, || {});
    let open = |byte: u8| {
        let slot = received.slot()?;
        let file = tempfile::tempfile().expect("a file");
        let handle = Handle::from_fd(OwnedFd::from(file), 0, slot);
        let hash = ContentHash::of(HashAlgorithm::Sha1, &[byte]);
        received.keep(CacheKey { hash, compression: Compression::Zlib }, &handle);
        Some(handle)
    };
    let (a, b) = (open(1).expect("a slot"), open(2).expect("a slot"));
    assert!(received.slot().is_none(), "a third file although both are in use");
    drop(a);
    let c = open(3).expect("the slot of an idle file");
    drop((b, c));
    assert!(open(4).is_some() && open(5).is_some() && open(6).is_some());
}

#[test]
fn a_mapping_takes_no_descriptor() {
    let received = Received::new(1, || {});
    let mut file = tempfile::tempfile().expect("a file");
    file.write_all(b"mapped").expect("write");
    let handle = Handle::from_fd(OwnedFd::from(file), 6, received.slot().expect("a slot"));
    let mapped = handle.map().expect("mapped");
    assert!(received.slot().is_none());
    drop(handle);
    assert!(received.slot().is_some());
    assert_eq!(mapped.as_ref(), b"mapped");
}

#[test]
fn parked_requests_continue_when_a_slot_is_free() {
    let (sender, woken) = channel();
    let received = Received::new(1, move || {
        let _ = sender.send(());
    });
    let bench = Bench::new();
    let slot = received.slot().expect("a slot");
    let pending = Pending { wanted: bench.add(b"x"), done: Callback::new(|_| {}), attempts: 0 };
    received.park(pending);
    assert!(received.unpark().is_empty());
    drop(slot);
    woken.recv_timeout(PATIENCE).expect("woken");
    assert_eq!(received.unpark().len(), 1);
}

#[test]
fn untrusted_users_and_malformed_messages_are_refused() {
    let bench = Bench::new();
    let wanted = bench.add(b"still served");
    let (_first, second) = (bench.open(), bench.open());
    let hello = |version| ToWriter::Hello { version, servers: "http://far/a.test".into() };
    let answer = |message: &dyn Fn(&OwnedFd)| {
        let socket = address::dial(bench.folder.path()).expect("connect");
        address::limit_receives(&socket, Some(PATIENCE)).expect("a timeout");
        message(&socket);
        wire::Receiver::new(socket).next::<ToClient>()
    };
    let old = answer(&|socket| send(socket.as_fd(), &hello(VERSION + 1), None).expect("send"));
    match old {
        Ok((ToClient::Failed { id: 0, error }, _)) => {
            assert!(error.read("x".into()).to_string().contains("another build"));
        }
        other => panic!("{other:?}"),
    }
    let nonsense: [&[u8]; 3] = [b"", b"\xff\x00", b"{\"get\":{}}"];
    for bytes in nonsense {
        let hung_up = answer(&|socket| {
            let _ = rustix::net::send(socket, bytes, rustix::net::SendFlags::NOSIGNAL);
        });
        assert!(hung_up.is_err(), "{hung_up:?}");
    }
    assert_eq!(read(&second, &wanted), b"still served");
}
