//! Users of one node: ordinary ones, one without permission, and a hostile one.

mod back;
mod soak;

use std::fs;
use std::io;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::os::unix::fs::{FileExt, OpenOptionsExt, PermissionsExt, chown};
use std::sync::mpsc::channel;
use std::time::Duration;

use esker_format::compress::{Compression, compress_zlib};
use esker_format::hash::{ContentHash, HashAlgorithm};
use esker_format::object::{ObjectKind, ObjectName};
use esker_store::{Authorities, Callback, Handle, Holder, ObjectRequest};
use esker_testkit::mirror::Mirror;
use esker_testkit::{skip, skip_part};
use rustix::fs::OFlags;
use rustix::net::{AddressFamily, SendFlags, SocketFlags, SocketType, socket_with};
use rustix::process::{Gid, Uid};

use super::*;
use crate::shared_cache::{BrokerAddress, ObjectProvider, Receiver, SharedCache, ToWriter, VERSION, send};

const PATIENCE: Duration = Duration::from_secs(60);
const ALICE: u32 = 61_001;
const MALLORY: u32 = 61_002;

/// A broker, two repositories on a mirror, and folders for each user's own files.
struct Node {
    folder: tempfile::TempDir,
    mirror: Mirror,
    me: u32,
    destinations: Destinations,
    broker: Option<NodeBroker>,
}

struct Made {
    plain: Vec<u8>,
    wanted: ObjectRequest,
    path: String,
}

fn made(seed: u8, len: usize) -> Made {
    let plain: Vec<u8> = (0..len).map(|at| (at % 251) as u8 ^ seed).collect();
    let stored = compress_zlib(&plain);
    let name = ObjectName::new(ContentHash::of(HashAlgorithm::Sha1, &stored), ObjectKind::File);
    let wanted = ObjectRequest::new(name, Compression::Zlib, "/a/file").size(len as u64);
    Made { plain, wanted, path: name.path() }
}

impl Node {
    fn new() -> Self {
        let folder = tempfile::tempdir().expect("a folder");
        fs::set_permissions(folder.path(), fs::Permissions::from_mode(0o755)).expect("a mode");
        let mirror = Mirror::serve(folder.path());
        let me = rustix::process::geteuid().as_raw();
        let mut node = Self { folder, mirror, me, destinations: Destinations::All, broker: None };
        node.start();
        node
    }

    fn start(&mut self) {
        let readers = Readers::Only { uids: vec![ALICE], gids: vec![] };
        let rules =
            Rules { repositories: [("secret.test".to_owned(), readers)].into(), others: Readers::AllUsers };
        let socket = self.folder.path().join("run/socket");
        make_run(&socket);
        let cache = self.folder.path().join("cache");
        let options = BrokerOptions {
            cache,
            quota: 64 << 20,
            lower: Vec::new(),
            socket,
            rules,
            destinations: self.destinations.clone(),
            authorities: Authorities::default(),
        };
        self.broker = Some(NodeBroker::start(options).expect("a broker"));
    }

    fn address(&self) -> BrokerAddress {
        let socket = self.folder.path().join("run/socket");
        BrokerAddress { socket, trusted: vec![self.me], is_named: true }
    }

    fn put(&self, repository: &str, object: &Made) {
        self.mirror.put(&format!("/{repository}/{}", object.path), compress_zlib(&object.plain));
    }

    /// Opens the objects of a repository for the calling user.
    fn open(&self, repository: &str) -> Arc<SharedCache> {
        self.open_or(repository, || panic!("the private cache was used"))
    }

    /// Opens it when the broker may not have noticed the end of earlier connections: waits for a free connection.
    fn open_once_there_is_room(&self, repository: &str) -> Arc<SharedCache> {
        self.open_or(repository, no_private_cache)
    }

    fn open_or(
        &self,
        repository: &str,
        private: impl Fn() -> Result<Arc<dyn Writer>, StoreError> + Send + Sync + 'static,
    ) -> Arc<SharedCache> {
        let uid = rustix::process::geteuid();
        let cache = self.folder.path().join(format!("own-{uid:?}"));
        let url = self.mirror.url(repository);
        SharedCache::open_through(&cache, &url, Box::new(private), Some(self.address())).expect("the broker")
    }

    fn asked_for(&self, object: &Made) -> usize {
        self.mirror.count(|path| path.ends_with(&object.path))
    }

    fn dial(&self) -> OwnedFd {
        let kind = (AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC);
        let socket = socket_with(kind.0, kind.1, kind.2, None).expect("a socket");
        let address = rustix::net::SocketAddrUnix::new(self.address().socket.as_path()).expect("an address");
        rustix::net::connect(&socket, &address).expect("connecting");
        crate::shared_cache::limit_receives(&socket, Some(PATIENCE)).expect("a deadline");
        socket
    }
}

fn make_run(socket: &Path) {
    let folder = socket.parent().expect("a folder");
    if !folder.exists() {
        fs::create_dir(folder).expect("a folder");
    }
    fs::set_permissions(folder, fs::Permissions::from_mode(0o755)).expect("a mode");
}

/// Refuses to open a private cache, so that clients wait for the broker.
fn no_private_cache() -> Result<Arc<dyn Writer>, StoreError> {
    Err(StoreError::new("the cache", Cause::Busy { path: "nowhere".into(), pid: None }))
}

/// Runs a function as another user, on a thread of its own.
fn as_user<T: Send>(uid: u32, what: impl FnOnce() -> T + Send) -> T {
    std::thread::scope(|scope| {
        let thread = scope.spawn(move || {
            let (user, group) = (Uid::from_raw(uid), Gid::from_raw(uid));
            rustix::thread::set_thread_groups(&[]).expect("dropping groups");
            rustix::thread::set_thread_res_gid(group, group, group).expect("becoming another group");
            rustix::thread::set_thread_res_uid(user, user, user).expect("becoming another user");
            what()
        });
        thread.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))
    })
}

/// True if the test can act as other users.
fn can_be_others() -> bool {
    rustix::process::geteuid().is_root()
}

fn get(store: &dyn ObjectStore, wanted: &ObjectRequest) -> Result<Handle, StoreError> {
    let (sender, receiver) = channel();
    store.get(wanted.clone(), Callback::new(move |outcome| drop(sender.send(outcome))));
    receiver.recv_timeout(PATIENCE).expect("an answer in time")
}

fn read(store: &dyn ObjectStore, wanted: &ObjectRequest) -> Vec<u8> {
    get(store, wanted).expect("an object").read_all().expect("bytes")
}

/// > C3: Through a broker all users of a node share one cache: an object that one of them fetched is not fetched again.
#[test]
fn users_read_objects_that_another_user_fetched() {
    let node = Node::new();
    let object = made(1, 50_000);
    node.put("public.test", &object);
    let users = if can_be_others() { vec![ALICE, MALLORY, 0] } else { vec![node.me] };
    for uid in users {
        let read_it = || {
            let store = node.open("public.test");
            assert!(matches!(store.through(), Some(ObjectProvider::Broker(_))));
            assert!(read(&*store, &object.wanted) == object.plain);
        };
        if uid == node.me { read_it() } else { as_user(uid, read_it) }
    }
    assert_eq!(node.asked_for(&object), 1);
    if !can_be_others() {
        skip!("only root can be other users");
    }
}

/// > C4: Nothing that another user does with the files of the broker changes a byte that a program reads.
#[test]
fn a_descriptor_from_the_broker_can_not_change_a_file() {
    if !can_be_others() {
        skip!("only root can be other users");
    }
    let node = Node::new();
    let object = made(2, 50_000);
    node.put("public.test", &object);
    let handle = as_user(MALLORY, || get(&*node.open("public.test"), &object.wanted)).expect("an object");
    let locked = as_user(MALLORY, || {
        let file = fs::File::from(handle.file().as_fd().try_clone_to_owned().expect("a copy"));
        let again = PathBuf::from(format!("/proc/self/fd/{}", file.as_raw_fd()));
        let deny = |what: &str, outcome: io::Result<()>| {
            let error = outcome.expect_err(what);
            println!("{what}: {error}");
        };
        deny("write", file.write_all_at(b"!", 0));
        deny("truncate", file.set_len(0));
        deny("append", fs::File::options().append(true).open(&again).map(drop));
        deny("open to write", fs::File::options().write(true).open(&again).map(drop));
        deny("open to read and write", fs::File::options().read(true).write(true).open(&again).map(drop));
        deny("open to truncate", fs::File::options().write(true).truncate(true).open(&again).map(drop));
        let tmpfile = fs::File::options().write(true).custom_flags(libc::O_NOFOLLOW).open(&again);
        deny("open the link itself", tmpfile.map(drop));
        deny("chmod", file.set_permissions(fs::Permissions::from_mode(0o666)));
        deny("chmod by path", fs::set_permissions(&again, fs::Permissions::from_mode(0o666)));
        deny("chown", chown(&again, Some(MALLORY), None));
        deny("set times", file.set_modified(std::time::SystemTime::UNIX_EPOCH));
        deny(
            "allocate",
            rustix::fs::fallocate(
                &file,
                rustix::fs::FallocateFlags::PUNCH_HOLE | rustix::fs::FallocateFlags::KEEP_SIZE,
                0,
                4096,
            )
            .map_err(Into::into),
        );
        deny(
            "set an attribute",
            rustix::fs::fsetxattr(&file, "user.x", b"y", rustix::fs::XattrFlags::empty()).map_err(Into::into),
        );
        let cache = node.folder.path().join("cache");
        deny("list the cache", fs::read_dir(&cache).map(drop));
        deny("remove the cache", fs::rename(&cache, node.folder.path().join("other")));
        deny("remove the socket", fs::remove_file(node.address().socket));
        // This is allowed and harmless: no other process takes this lock.
        rustix::fs::flock(&file, rustix::fs::FlockOperation::LockExclusive).expect("a lock");
        file
    });
    assert!(as_user(ALICE, || read(&*node.open("public.test"), &object.wanted)) == object.plain);
    assert_eq!(node.asked_for(&object), 1, "it was fetched again");
    drop(locked);
}

/// Each client has an open file description of its own: flags set by one client never affect another.
#[test]
fn clients_share_no_open_file() {
    let node = Node::new();
    let object = made(6, 50_000);
    node.put("public.test", &object);
    let as_other = |uid: u32| {
        let get_it = || get(&*node.open("public.test"), &object.wanted).expect("an object");
        if can_be_others() { as_user(uid, get_it) } else { get_it() }
    };
    if !can_be_others() {
        skip_part!("only root can be other users");
    }
    let (alice, mallory) = (as_other(ALICE), as_other(MALLORY));
    let file = mallory.file();
    let set = OFlags::NONBLOCK | OFlags::APPEND | OFlags::DIRECT;
    if rustix::fs::fcntl_setfl(&*file, set).is_err() {
        // No file system below /tmp takes O_DIRECT here; the other flags show the same.
        rustix::fs::fcntl_setfl(&*file, set - OFlags::DIRECT).expect("flags");
    }
    rustix::fs::flock(&*file, rustix::fs::FlockOperation::LockExclusive).expect("a lock");
    rustix::fs::seek(&*file, rustix::fs::SeekFrom::Start(7)).expect("a position");
    rustix::fs::fadvise(&*file, 0, None, rustix::fs::Advice::Random).expect("advice");
    for reader in [alice, as_other(ALICE), as_other(MALLORY)] {
        let flags = rustix::fs::fcntl_getfl(&*reader.file()).expect("flags");
        assert!(!flags.intersects(set), "{flags:?}");
        assert_eq!(flags & OFlags::RWMODE, OFlags::RDONLY);
        assert_eq!(rustix::fs::tell(&*reader.file()).expect("a position"), 0);
        let mut byte = [0];
        assert_eq!(reader.read_at(&mut byte, 1).expect("a byte"), 1);
        assert_eq!(byte[0], object.plain[1]);
    }
    assert_eq!(node.asked_for(&object), 1);
}

/// Addresses of this node need the administrator's permission: as a number, as a name, and in a redirect.
#[test]
fn the_broker_connects_to_no_address_of_this_node_for_users() {
    let mut node = Node::new();
    let object = made(10, 50_000);
    node.put("public.test", &object);
    let connect = |node: &mut Node, allowed: &str| {
        node.broker = None;
        node.destinations = Destinations::Named(vec![allowed.parse().expect("a destination")]);
        node.start();
    };
    let ask = |node: &Node, servers: String| {
        let socket = node.dial();
        send(socket.as_fd(), &ToWriter::Hello { version: VERSION, servers }, None).expect("a greeting");
        Receiver::new(socket).next::<serde_json::Value>().expect("an answer").0
    };
    connect(&mut node, "any");
    let url = node.mirror.url("public.test");
    let port = url.rsplit_once(':').and_then(|(_, rest)| rest.split('/').next()).expect("a port").to_owned();
    for host in ["127.0.0.1", "[::1]", "localhost", "169.254.169.254", "0.0.0.0", "[::ffff:127.0.0.1]"] {
        let answer = ask(&node, format!("http://{host}:{port}/public.test"));
        let text = answer["failed"]["error"]["text"].as_str().unwrap_or_default();
        assert!(text.contains("--connect"), "{host}: {answer}");
    }
    let answer = ask(&node, "server http://a/public.test\nexternal server file:///etc".to_owned());
    assert!(answer["failed"].to_string().contains("neither with http"), "{answer}");
    assert_eq!(node.mirror.count(|_| true), 0, "a server was asked");
    connect(&mut node, "127.0.0.0/8");
    assert!(read(&*node.open("public.test"), &object.wanted) == object.plain);
}

/// Sizes and limits named by a user give that user no more of the disk than the quota.
#[test]
fn no_user_can_raise_the_limit() {
    let node = Node::new();
    let plain = vec![0; 300 << 20];
    let stored = compress_zlib(&plain);
    drop(plain);
    let name = ObjectName::new(ContentHash::of(HashAlgorithm::Sha1, &stored), ObjectKind::File);
    node.mirror.put(&format!("/public.test/{}", name.path()), stored);
    let unsized_one = ObjectRequest::new(name, Compression::Zlib, "/a/file").limit(u64::MAX);
    let store = node.open("public.test");
    for wanted in [unsized_one.clone().size(300 << 20), unsized_one] {
        let error = get(&*store, &wanted).expect_err("it is larger than the cache");
        assert!(error.to_string().contains("larger") || error.to_string().contains("more than"), "{error}");
    }
    let object = made(8, 50_000);
    node.put("public.test", &object);
    assert!(read(&*store, &object.wanted) == object.plain);
}

/// The broker checks an object that a client could not read, and the client gets the right bytes.
#[test]
fn an_object_that_a_client_can_not_read_is_fetched_again() {
    let node = Node::new();
    let object = made(9, 50_000);
    node.put("public.test", &object);
    let store = node.open("public.test");
    assert!(read(&*store, &object.wanted) == object.plain);
    let folders = fs::read_dir(node.folder.path().join("cache/objects")).expect("folders");
    let files = folders.flat_map(|folder| fs::read_dir(folder.expect("a folder").path()).expect("files"));
    let cached: Vec<PathBuf> = files.map(|file| file.expect("a file").path()).collect();
    assert_eq!(cached.len(), 1);
    let before = node.asked_for(&object);
    fs::File::options().write(true).open(&cached[0]).expect("the file").set_len(100).expect("a shorter file");
    let handle = get(&*store, &object.wanted).expect("an object");
    assert!(handle.read_all().is_err(), "the file ends early");
    drop(handle);
    store.recheck(&object.wanted);
    assert!(read(&*store, &object.wanted) == object.plain);
    assert!(node.asked_for(&object) > before);
}

/// > C5: Who may not read a repository gets nothing of it from the broker, not even by the name of an object that is cached.
#[test]
fn a_restricted_repository_is_served_to_its_readers_only() {
    if !can_be_others() {
        skip!("only root can be other users");
    }
    let node = Node::new();
    let object = made(3, 50_000);
    node.put("secret.test", &object);
    let bytes = as_user(ALICE, || read(&*node.open("secret.test"), &object.wanted));
    assert!(bytes == object.plain);
    assert_eq!(node.asked_for(&object), 1);
    as_user(MALLORY, || {
        let socket = node.dial();
        let servers = node.mirror.url("secret.test");
        send(socket.as_fd(), &ToWriter::Hello { version: VERSION, servers }, None).expect("a greeting");
        let answer: serde_json::Value = Receiver::new(socket).next().expect("an answer").0;
        assert!(answer["failed"]["error"]["text"].as_str().is_some_and(|text| text.contains("may not read")));
        // Through a public repository, the name of the object leads to that repository's server.
        let error = get(&*node.open("public.test"), &object.wanted).expect_err("it is not there");
        assert!(error.to_string().contains("404"), "{error}");
        let warmed = Callback::wait(|done| {
            node.open("public.test").warm(object.wanted.clone(), &esker_store::CancelToken::new(), done);
        });
        assert!(warmed.is_err(), "a prefetch told that it is there");
    });
    // Looking after the cache is not for other users, nor through this socket.
    for uid in [MALLORY, 0] {
        as_user(uid, || {
            let socket = node.dial();
            let care = ToWriter::Care { version: VERSION, task: crate::shared_cache::CacheTask::List };
            send(socket.as_fd(), &care, None).expect("a question");
            assert!(Receiver::new(socket).next::<serde_json::Value>().is_err(), "it was answered");
        });
    }
}

/// > C6: A client that floods the broker, takes no answers or talks nonsense delays others by a bounded time.
#[test]
fn malformed_excessive_and_missing_messages_stop_no_other_client() {
    if !can_be_others() {
        skip!("only root can be other users");
    }
    let node = Node::new();
    let (object, other) = (made(4, 50_000), made(5, 50_000));
    node.put("public.test", &object);
    node.put("public.test", &other);
    let servers = node.mirror.url("public.test");
    let sockets = as_user(MALLORY, || {
        assert!(read(&*node.open("public.test"), &object.wanted) == object.plain);
        let nonsense: [&[u8]; 6] =
            [b"{}", b"\xff\xfe", b"[[[[[[[[", b"{\"hello\":{\"version\":1}}", &[b'['; 60_000], b"null"];
        for bytes in nonsense {
            let socket = node.dial();
            rustix::net::send(&socket, bytes, SendFlags::NOSIGNAL).expect("sending");
            assert!(Receiver::new(socket).next::<serde_json::Value>().is_err(), "nonsense was answered");
        }
        // More connections than one user may have, each with more questions than are served, and no answer is taken.
        let mut sockets = Vec::new();
        for _ in 0..BOUNDS.connections + 20 {
            let socket = node.dial();
            rustix::io::ioctl_fionbio(&socket, true).expect("not to block");
            let hello = ToWriter::Hello { version: VERSION, servers: servers.clone() };
            let mut sent = send(socket.as_fd(), &hello, None).is_ok();
            let mut id = 1;
            while sent && id < 500 {
                let text = serde_json::json!({"get": {"id": id, "object": {
                    "name": object.wanted.name.to_string(), "compression": object.wanted.compression.to_flag(),
                    "size": object.plain.len(), "limit": object.plain.len(), "what": "x".repeat(100),
                    "alternative_path": false}}});
                sent = send(socket.as_fd(), &text, None).is_ok();
                id += 1;
            }
            sockets.push(socket);
        }
        sockets
    });
    // Meanwhile another user reads cached and uncached objects.
    for object in [&object, &other] {
        assert!(as_user(ALICE, || read(&*node.open("public.test"), &object.wanted)) == object.plain);
    }
    drop(sockets);
    let again = as_user(MALLORY, || read(&*node.open_once_there_is_room("public.test"), &other.wanted));
    assert!(again == other.plain);
}

/// A client that claims to hold everything, or doesn't reply, does not keep the cache from evicting.
#[test]
fn claims_of_other_users_do_not_stop_evictions() {
    struct Greedy;
    impl Holder for Greedy {
        fn release(&self, victims: &[esker_store::CacheKey]) -> Vec<bool> {
            vec![true; victims.len()]
        }
    }
    if !can_be_others() {
        skip!("only root can be other users");
    }
    let node = Node::new();
    // Three times the quota.
    let objects: Vec<Made> = (0..150).map(|seed| made(seed, 1 << 20)).collect();
    objects.iter().for_each(|object| node.put("public.test", object));
    let greedy: Arc<dyn Holder> = Arc::new(Greedy);
    let mallory = as_user(MALLORY, || {
        let store = node.open("public.test");
        store.add_holder(Arc::downgrade(&greedy));
        store
    });
    assert!(read(&*mallory, &objects[0].wanted) == objects[0].plain);
    as_user(ALICE, || {
        let store = node.open("public.test");
        for object in &objects {
            assert!(read(&*store, &object.wanted) == object.plain);
        }
        let status = store.status().cache;
        assert!(status.used <= status.quota, "{status:?}");
        assert!(status.evicted > 0 && status.unkept == 0, "{status:?}");
    });
}

/// Root's mounts are the only ones on many nodes.
#[test]
fn root_and_the_brokers_own_user_have_larger_quotas() {
    let node = Node::new();
    let host = node.broker.as_ref().expect("a broker").host.clone();
    let most = |uid| {
        let admission = host.admit(&Peer { uid, gids: Vec::new() }).expect("admitted");
        admission.quota.warms_max()
    };
    assert_eq!([0, node.me, ALICE].map(most), [OWN.warms, OWN.warms, BOUNDS.warms]);
}

/// > C7: A mount whose broker goes away waits for it for some seconds, and no read fails because it was restarted.
#[test]
fn a_restarted_broker_is_used_again() {
    let mut node = Node::new();
    let (first, second) = (made(6, 50_000), made(7, 50_000));
    node.put("public.test", &first);
    node.put("public.test", &second);
    let store = node.open("public.test");
    assert!(read(&*store, &first.wanted) == first.plain);
    node.broker = None;
    let (sender, receiver) = channel();
    store.get(second.wanted.clone(), Callback::new(move |outcome| drop(sender.send(outcome))));
    node.start();
    let handle = receiver.recv_timeout(PATIENCE).expect("an answer").expect("an object");
    assert!(handle.read_all().expect("bytes") == second.plain);
    assert!(matches!(store.through(), Some(ObjectProvider::Broker(_))));
}

/// The process that listens at the socket must belong to a trusted user.
#[test]
fn the_socket_of_an_untrusted_user_is_not_used() {
    let node = Node::new();
    let address = BrokerAddress { trusted: vec![node.me + 1], ..node.address() };
    let cache = node.folder.path().join("own");
    let quota = 64 << 20;
    let engine = Engine::start(EngineOptions::default()).expect("an engine");
    let folder = cache.clone();
    let open = move || open_writer(&engine, &folder, room(quota, Vec::new()));
    let url = node.mirror.url("public.test");
    let store =
        SharedCache::open_through(&cache, &url, Box::new(open), Some(address)).expect("a private cache");
    assert_eq!(store.through(), Some(ObjectProvider::Ourselves));
}

#[test]
fn only_a_plain_url_of_one_repository_is_served() {
    let name = |urls: &[&str]| {
        let mut servers = Servers::direct(urls[0]);
        servers.urls = urls.iter().map(|url| (*url).to_owned()).collect();
        name_of(&servers)
    };
    assert_eq!(name(&["http://h:80/cvmfs/a.test", "https://i/a.test"]).as_deref(), Ok("a.test"));
    for bad in [
        "file:///srv/a.test",
        "/srv/a.test",
        "http://h",
        "http://h/",
        "http://h/secret.test/../a.test",
        "http://h/secret.test/?/a.test",
        "http://h/secret.test/%2e%2e/a.test",
        "http://h/secret.test#/a.test",
        "http://h/secret.test//a.test",
        "http://h/x\n/a.test",
        "http://h/x\\a.test",
    ] {
        assert!(name(&[bad]).is_err(), "{bad} was accepted");
    }
    assert!(name(&["http://h/a.test", "http://h/b.test"]).is_err());
    let rules = Rules {
        repositories: [("Secret.test".to_owned(), Readers::Only { uids: vec![], gids: vec![7] })].into(),
        others: Readers::AllUsers,
    };
    let peer = |uid, gids: &[u32]| Peer { uid, gids: gids.to_vec() };
    assert_eq!(rules.cache_for("SECRET.test", &peer(5, &[5, 7])), Ok(Some("secret.test".to_owned())));
    assert_eq!(rules.cache_for("secret.TEST", &peer(5, &[5])), Err(()));
    assert_eq!(rules.cache_for("secret.test", &peer(0, &[])), Ok(Some("secret.test".to_owned())));
    assert_eq!(rules.cache_for("other.test", &peer(5, &[5])), Ok(None));
}

#[test]
fn a_socket_in_a_folder_of_others_is_refused() {
    let folder = tempfile::tempdir().expect("a folder");
    fs::set_permissions(folder.path(), fs::Permissions::from_mode(0o777)).expect("a mode");
    let error = Listener::bind_for_all(&folder.path().join("socket")).map(drop).expect_err("a trap");
    assert_eq!(error.kind(), io::ErrorKind::PermissionDenied);
}
