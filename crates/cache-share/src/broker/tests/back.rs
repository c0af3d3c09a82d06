//! Return of a broker or a cache folder that went away.

use std::path::PathBuf;
use std::sync::mpsc::Receiver as Outcome;

use esker_store::CacheOptions;
use esker_testkit::log_lines::LogLines;
use esker_testkit::mirror::Fault;
use esker_testkit::waiting::until;

use super::*;
use crate::opener::CacheOpener;
use crate::shared_cache::Pace;

/// Interval of checks in these tests.
const LOOK: Duration = Duration::from_millis(20);

/// A client with its own cache, and its log.
struct Own {
    store: Arc<SharedCache>,
    cache: PathBuf,
    log: LogLines,
}

impl Own {
    fn open(node: &Node, broker: Option<BrokerAddress>) -> Self {
        Self::open_with(node, broker, room(64 << 20, Vec::new()))
    }

    fn open_with(node: &Node, broker: Option<BrokerAddress>, room: CacheOptions) -> Self {
        let cache = node.folder.path().join("own");
        let log = LogLines::collect();
        let engine = Engine::start(EngineOptions::default()).expect("an engine");
        let folder = cache.clone();
        let open = Box::new(CacheOpener { engine, folder, room });
        let pace = Pace { look: LOOK, ..Pace::default() };
        let url = node.mirror.url("public.test");
        let store = SharedCache::open_with(&cache, &url, open, broker, pace).expect("a cache");
        Self { store, cache, log }
    }

    fn ask(&self, object: &Made) -> Outcome<Result<Handle, StoreError>> {
        let (sender, receiver) = channel();
        self.store.get(object.wanted.clone(), Callback::new(move |outcome| drop(sender.send(outcome))));
        receiver
    }

    #[track_caller]
    fn wait_until(&self, what: &str, holds: impl Fn() -> bool) {
        // Only a cache in use checks what is around it.
        let holds = || {
            self.store.through();
            holds()
        };
        assert!(until(PATIENCE, holds), "{what} did not come about: {:?}", self.log.all());
    }

    fn said(&self, words: &str) -> bool {
        self.log.contain(words)
    }
}

fn bytes(answer: &Outcome<Result<Handle, StoreError>>) -> Vec<u8> {
    let handle = answer.recv_timeout(PATIENCE).expect("an answer").expect("an object");
    handle.read_all().expect("bytes")
}

/// As with 40 `esker run` at once: the first that ends was the writer of the cache, and there never was a broker.
#[test]
fn a_broker_that_is_only_looked_for_is_not_waited_for() {
    let mut node = Node::new();
    let object = made(30, 50_000);
    node.put("public.test", &object);
    node.broker = None;
    let address = BrokerAddress { is_named: false, ..node.address() };
    let first = Own::open(&node, Some(address.clone()));
    let second = Own::open(&node, Some(address));
    assert_eq!(
        [&first, &second].map(|own| own.store.through()),
        [Some(ObjectProvider::Ourselves), Some(ObjectProvider::Another)]
    );
    let begin = std::time::Instant::now();
    first.store.close();
    assert!(bytes(&second.ask(&object)) == object.plain);
    // A broker that served before would have five seconds to come back.
    assert!(begin.elapsed() < Duration::from_secs(5), "{:?}", begin.elapsed());
    assert_eq!(second.store.through(), Some(ObjectProvider::Ourselves));
    assert!(!second.said("broker"), "{:?}", second.log.all());
}

/// > C10: A mount that did without the broker of its node uses it once it is there, and no read fails because of that.
#[test]
fn a_broker_that_starts_late_is_used() {
    let mut node = Node::new();
    let objects: Vec<Made> = (20..24).map(|seed| made(seed, 50_000)).collect();
    objects.iter().for_each(|object| node.put("public.test", object));
    node.broker = None;
    let own = Own::open(&node, Some(node.address()));
    assert!(bytes(&own.ask(&objects[0])) == objects[0].plain);
    assert_eq!(own.store.through(), Some(ObjectProvider::Ourselves));
    // One is on its way while the mount changes over.
    let path = objects[1].path.clone();
    let stalled = node.mirror.fault(move |asked| asked.ends_with(&path), Fault::StallAfter(10));
    let waiting = own.ask(&objects[1]);
    stalled.wait_for_hits(1);
    node.start();
    own.wait_until("the broker", || matches!(own.store.through(), Some(ObjectProvider::Broker(_))));
    own.wait_until("a line of the log", || own.said("serves again"));
    stalled.lift();
    assert!(bytes(&waiting) == objects[1].plain);
    assert!(bytes(&own.ask(&objects[2])) == objects[2].plain);
    // The broker has the object, so it is not fetched again.
    assert!(read(&*node.open("public.test"), &objects[2].wanted) == objects[2].plain);
    assert_eq!(node.asked_for(&objects[2]), 1);

    // Gone for longer than is waited for, and back once more.
    node.broker = None;
    assert!(bytes(&own.ask(&objects[3])) == objects[3].plain);
    assert_eq!(own.store.through(), Some(ObjectProvider::Ourselves));
    own.wait_until("a line of the log", || own.said("no broker serves"));
    node.start();
    own.wait_until("the broker", || matches!(own.store.through(), Some(ObjectProvider::Broker(_))));
    assert!(bytes(&own.ask(&objects[0])) == objects[0].plain);
}

/// A read that waits for a descriptor has not been started by the old cache.
#[test]
fn reads_that_wait_for_a_descriptor_continue_through_the_broker() {
    let mut node = Node::new();
    let objects: Vec<Made> = (60..62).map(|seed| made(seed, 50_000)).collect();
    objects.iter().for_each(|object| node.put("public.test", object));
    node.broker = None;
    let room = CacheOptions { descriptors: Some(1), ..room(64 << 20, Vec::new()) };
    let own = Own::open_with(&node, Some(node.address()), room);
    let answer = own.ask(&objects[0]).recv_timeout(PATIENCE).expect("an answer");
    let _busy = answer.expect("an object");
    let waiting = own.ask(&objects[1]);
    own.wait_until("both", || own.store.status().cache.objects == 2);
    node.start();
    own.wait_until("the broker", || matches!(own.store.through(), Some(ObjectProvider::Broker(_))));
    assert!(bytes(&waiting) == objects[1].plain);
}

/// > C11: A cache whose folder is removed under a mount is made anew, without a remount, and no read fails meanwhile. A mount that Landlock confines leaves that to its next mount, because it may not write to the folder around its cache.
#[test]
fn a_removed_cache_folder_is_created_again() {
    let node = Node::new();
    let objects: Vec<Made> = (30..33).map(|seed| made(seed, 50_000)).collect();
    objects.iter().for_each(|object| node.put("public.test", object));
    let own = Own::open(&node, None);
    assert!(bytes(&own.ask(&objects[0])) == objects[0].plain);
    let path = objects[1].path.clone();
    let stalled = node.mirror.fault(move |asked| asked.ends_with(&path), Fault::StallAfter(10));
    let waiting = own.ask(&objects[1]);
    stalled.wait_for_hits(1);
    fs::remove_dir_all(&own.cache).expect("removing a cache in use");
    stalled.lift();
    assert!(bytes(&waiting) == objects[1].plain);
    own.wait_until("a new cache", || own.said("removed") && own.cache.join("objects").exists());
    own.wait_until("a role", || own.store.through() == Some(ObjectProvider::Ourselves));
    for object in &objects {
        assert!(bytes(&own.ask(object)) == object.plain);
    }
    let status = own.store.status().cache;
    assert_eq!((status.objects, status.unkept), (3, 0), "{status:?}");
    // It is an ordinary cache: other mounts read from it.
    let other = Own::open(&node, None);
    assert_eq!(other.store.through(), Some(ObjectProvider::Another));
    let before = node.asked_for(&objects[2]);
    assert!(bytes(&other.ask(&objects[2])) == objects[2].plain);
    assert_eq!(node.asked_for(&objects[2]), before);
}

/// > W4: Whatever becomes of the cache's disk, reads of what a server has do not fail, every mount ends in time or says what is wrong with the disk, and the cache is used again by itself once the disk is well.
#[test]
fn no_read_fails_when_no_process_can_become_the_writer() {
    let node = Node::new();
    let objects: Vec<Made> = (40..46).map(|seed| made(seed, 50_000)).collect();
    objects.iter().for_each(|object| node.put("public.test", object));
    let both = [Own::open(&node, None), Own::open(&node, None)];
    assert_eq!(both.each_ref().map(|own| own.store.is_writer()), [true, false]);
    assert!(bytes(&both[1].ask(&objects[0])) == objects[0].plain);
    // No process can open the cache any more, and its writer leaves.
    let (lock, away) = (both[0].cache.join("lock"), node.folder.path().join("away"));
    fs::rename(&lock, &away).expect("renaming the lock");
    fs::create_dir(&lock).expect("a folder in its place");
    let mut object = objects.iter();
    for own in &both {
        own.wait_until("doing without the disk", || own.said("fetched without being cached"));
        for _ in 0..2 {
            let object = object.next().expect("another object");
            assert!(bytes(&own.ask(object)) == object.plain);
        }
        assert!(bytes(&own.ask(&objects[0])) == objects[0].plain);
    }
    fs::remove_dir(&lock).expect("the folder");
    for own in &both {
        own.wait_until("the cache", || own.said("can be used again"));
    }
    let writers = || both.iter().filter(|own| own.store.is_writer()).count();
    both[0].wait_until("sharing it", || writers() == 1);
    for own in &both {
        assert!(bytes(&own.ask(&objects[5])) == objects[5].plain);
    }
    assert_eq!(node.asked_for(&objects[5]), 1);
}
