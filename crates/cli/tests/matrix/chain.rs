//! A chain of copies whose parts are killed at random while revisions are published: a bucket, a replica of it, a replica
//! of that one, a site proxy, and a client. The client of CernVM-FS reads beside ours if `ESKER_REFERENCE` names the folder
//! with its `cvmfs2`.

mod part;
mod reference;
mod tree;

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::time::{Duration, Instant};

use esker_testkit::fixture;
use esker_testkit::listing::of_folder;
use esker_testkit::s3::BUCKET;
use esker_testkit::soak::{Random, Soak};
use esker_testkit::tree_scan::{Ownership, differences, scan_tree};
use esker_testkit::waiting::{for_moment_of_fault, until};

use crate::bucket_server::BucketServer;
use crate::publishing::NAME;
use crate::test_env::{TestEnv, words};
use crate::test_user::TestUser;

use part::Part;
use reference::ReferenceClient;
use tree::{PublishedTree, look};

/// Time between two publishes.
const PACE: Duration = Duration::from_secs(5);
/// The same in a soak of less than a minute.
const SHORT_PACE: Duration = Duration::from_secs(1);
/// Longest time from the last publish until the client has it. All parts run then.
const ARRIVAL: Duration = Duration::from_secs(120);
/// Longest time from the start of a publish to the kill beside it, in milliseconds.
const KILL_WITHIN: usize = 400;

/// The publisher, whose repository is in the bucket.
struct Publisher<'w> {
    world: &'w TestEnv,
    folder: PathBuf,
}

impl Publisher<'_> {
    fn command(&self, arguments: &[&str]) -> Command {
        let home = |name: &str| self.world.path("home").join(name).display().to_string();
        let mut command = self.world.esker(arguments);
        command.args(["--keys", &home("keys")]).env("ESKER_STORAGE", home("machine"));
        command.env("AWS_ACCESS_KEY_ID", "key").env("AWS_SECRET_ACCESS_KEY", "secret");
        command
    }

    /// Publishes the tree; the error has the words of the command.
    fn publish(&self) -> Result<(), String> {
        let folder = self.folder.display().to_string();
        let output = self.command(&["publish", NAME, &folder, "--quiet"]).output().expect("running esker");
        if output.status.success() { Ok(()) } else { Err(words(&output)) }
    }
}

/// What readers have seen.
#[derive(Default)]
struct Reads {
    whole: AtomicU64,
    between: AtomicU64,
    newest: AtomicU64,
    over: AtomicBool,
}

impl Reads {
    /// Reads until the end of the soak; returns the first failure.
    fn read_on(&self, mount: &Path, mut random: Random) -> Result<(), String> {
        let mut last = 0;
        while !self.over.load(Ordering::SeqCst) {
            match look(mount, &mut random)? {
                Some(number) if number < last => return Err(format!("revision {number} after {last}")),
                Some(number) => {
                    last = number;
                    self.newest.fetch_max(number, Ordering::SeqCst);
                    self.whole.fetch_add(1, Ordering::SeqCst);
                }
                None => drop(self.between.fetch_add(1, Ordering::SeqCst)),
            }
        }
        Ok(())
    }
}

/// Starts the replicas, their servers and the proxy, in the order of the data.
fn start_parts<'w>(world: &'w TestEnv, bucket: &BucketServer) -> Vec<Part<'w>> {
    let home = |name: &str| world.path("home").join(name).display().to_string();
    let key = world.path("key.pub").display().to_string();
    let replicate = |name: &'static str, source: String, to: &'static str| {
        let (to, key) = (home(to), key.clone());
        Part::worker(name, move || {
            let mut command = world.esker(&["replicate", &source, "--to", &to, "--public-key", &key]);
            command.args(["--follow", "--every", "1s", "--quiet"]);
            command
        })
    };
    let serve = |name: &'static str, folder: &'static str| {
        let folder = home(folder);
        world.person.does(|| fs::create_dir_all(&folder)).expect("a folder");
        Part::server(name, move |address| world.esker(&["serve", &folder, "--listen", address, "--json"]))
    };
    let mut parts = vec![serve("the server of the first replica", "first")];
    parts.push(serve("the server of the second replica", "second"));
    let (first, second) = (parts[0].url(), parts[1].url());
    let origin = format!("{}/{BUCKET}/cvmfs/{NAME}", bucket.endpoint());
    parts.push(replicate("the replication of the bucket", origin, "first"));
    parts.push(replicate("the replication of the first replica", format!("{first}/cvmfs/{NAME}"), "second"));
    let cache = home("proxy");
    parts.push(Part::server("the proxy", move |address| {
        let upstream = ["--upstream", &second, "--upstream", &first, "--public-key", &key];
        let mut command =
            world.esker(&[&["proxy", "--listen", address, "--cache", &cache], &upstream[..]].concat());
        command.args(["--head-age", "1s", "--json"]);
        command
    }));
    parts
}

/// Publishes one revision while a part is killed, which runs again afterwards. Returns whether the first attempt failed.
fn publish_beside_a_kill(
    publisher: &Publisher<'_>,
    (bucket, parts): (&mut BucketServer, &mut [Part<'_>]),
    victim: usize,
    delay: Duration,
) -> bool {
    let is_bucket = victim == parts.len();
    let outcome = std::thread::scope(|scope| {
        let publish = scope.spawn(|| publisher.publish());
        for_moment_of_fault(delay);
        match parts.get_mut(victim) {
            Some(part) => part.kill(),
            None => bucket.kill(),
        }
        publish.join().expect("the publisher")
    });
    match parts.get_mut(victim) {
        Some(part) => part.start(),
        None => bucket.start_again(),
    }
    if let Err(text) = &outcome {
        assert!(is_bucket, "a publish failed beside a kill of another part: {text}");
        publisher.publish().expect("the bucket is back");
    }
    outcome.is_err()
}

fn all_words(parts: &[Part<'_>]) -> String {
    parts.iter().map(Part::words).collect()
}

/// Waits for the next publish; panics with the failure of a reader.
fn pace(failures: &Receiver<String>, until: Instant) {
    match failures.recv_timeout(until.saturating_duration_since(Instant::now())) {
        Ok(failure) => panic!("{failure}"),
        Err(RecvTimeoutError::Timeout) => {}
        Err(RecvTimeoutError::Disconnected) => panic!("the readers ended"),
    }
}

fn read_until_over(reads: &Reads, mount: &Path, random: Random, failures: &Sender<String>) {
    if let Err(failure) = reads.read_on(mount, random) {
        // The other reader may have failed first.
        let _ = failures.send(failure);
    }
}

/// No read fails while one good way is left, no client sees a mixture of two revisions or an older one, and in the end
/// everything equals the publisher's tree.
#[test]
fn soak_chain_of_copies() {
    let world = TestEnv::new(TestUser::ordinary(), fixture::RMD);
    let mut bucket = BucketServer::start();
    let mut soak = Soak::begin("chain_of_copies");
    let mut random = Random(soak.seed());
    let folder = world.path("home/tree");
    let mut tree = world.person.does(|| PublishedTree::new(folder.clone()));
    let publisher = Publisher { world: &world, folder: folder.clone() };
    let storage = format!("s3://{BUCKET}/cvmfs");
    let mut create =
        publisher.command(&["repo", "create", NAME, "--storage", &storage, "--endpoint", &bucket.endpoint()]);
    if ReferenceClient::is_wanted() {
        // It has no other way to learn of a revision.
        create.args(["--ttl", "1"]);
    }
    let created = create.output().expect("running esker");
    assert!(created.status.success(), "{}", words(&created));
    fs::copy(world.path(&format!("home/keys/{NAME}.pub")), world.path("key.pub")).expect("the key");
    world.person.does(|| tree.change(&mut random));
    publisher.publish().expect("the first revision");
    let mut parts = start_parts(&world, &bucket);
    let url = |part: &Part<'_>| format!("{}/cvmfs/{NAME}", part.url());
    let is_ready = |name: &str| world.path(&format!("home/{name}/{NAME}/.cvmfspublished")).exists();
    let are_ready = until(ARRIVAL, || is_ready("first") && is_ready("second"));
    assert!(are_ready, "the replicas are empty\n{}", all_words(&parts));
    let servers = [url(&parts[1]), url(&parts[0])];
    let options = ["--server", &servers[0], "--server", &servers[1], "--push", "server"];
    let proxy = parts.last().expect("the proxy");
    let mounted = world.mount_of(&url(proxy), &options);
    let reference = ReferenceClient::mount(&world, &proxy.url(), &servers);

    let (reads, mount) = (Reads::default(), world.mountpoint());
    let reads_of_reference = Reads::default();
    let pause = if soak.lasting() < Duration::from_secs(60) { SHORT_PACE } else { PACE };
    let (mut failed, mut bucket_kills) = (0u64, 0u64);
    let victims = parts.len() + 1;
    std::thread::scope(|scope| {
        let (sender, failures) = channel();
        let (reads, mount, mounted) = (&reads, &mount, &mounted);
        for number in 1..=2u64 {
            let (random, sender) = (Random(soak.seed() ^ number << 32), sender.clone());
            scope.spawn(move || mounted.does(|| read_until_over(reads, mount, random, &sender)));
        }
        if let Some(client) = &reference {
            let (reads, random) = (&reads_of_reference, Random(soak.seed() ^ 3 << 32));
            scope.spawn(move || read_until_over(reads, client.mountpoint(), random, &sender));
        }
        let _over = [OnDrop(&reads.over), OnDrop(&reads_of_reference.over)];
        let mut order: Vec<usize> = Vec::new();
        while soak.goes_on_until(victims as u64) {
            let next = Instant::now() + pause;
            world.person.does(|| tree.change(&mut random));
            // Each part is killed as often as the others, in a random order.
            if order.is_empty() {
                order = (0..victims).collect();
            }
            let victim = order.swap_remove(random.below(order.len()));
            bucket_kills += u64::from(victim == parts.len());
            let delay = Duration::from_millis(random.below(KILL_WITHIN) as u64);
            failed += u64::from(publish_beside_a_kill(&publisher, (&mut bucket, &mut parts), victim, delay));
            pace(&failures, next);
        }
        let readers =
            [("the client", Some(reads)), ("cvmfs2", reference.as_ref().map(|_| &reads_of_reference))];
        for (client, reads) in readers.into_iter().filter_map(|(client, reads)| Some((client, reads?))) {
            let newest = || reads.newest.load(Ordering::SeqCst);
            let arrived = until(ARRIVAL, || {
                pace(&failures, Instant::now());
                newest() == tree.number
            });
            let (newest, logs) = (newest(), world.logs());
            let parts = all_words(&parts);
            assert!(arrived, "{client} is at {newest} of {}\n{logs}{parts}", tree.number);
        }
    });
    let expected = world.person.does(|| of_folder(&folder));
    if let Some(client) = reference {
        let wrong = differences(&expected, &scan_tree(client.mountpoint()), Ownership::Published);
        assert!(wrong.is_empty(), "cvmfs2: {wrong:#?}");
    }
    let found = mounted.does(|| scan_tree(&mount));
    let wrong = differences(&expected, &found, world.person.ownership());
    assert!(wrong.is_empty(), "{wrong:#?}");
    drop(mounted);
    for part in &mut parts {
        assert!(part.kills > 0, "{} was never killed", part.name);
        part.kill();
    }
    let key = world.path("key.pub").display().to_string();
    for replica in ["first", "second"] {
        let replica = world.path(&format!("home/{replica}/{NAME}")).display().to_string();
        let check = ["check", &replica, "--public-key", &key, "--data", "--quiet"];
        let checked = world.esker(&check).output().expect("running esker");
        assert!(checked.status.success(), "{}", words(&checked));
    }
    soak.finish(&[
        ("revisions", &tree.number),
        ("bucket", &bucket.describe()),
        ("kills of it", &bucket_kills),
        ("publishes that failed and were repeated", &failed),
        ("kills of other parts", &parts.iter().map(|part| part.kills - 1).sum::<u64>()),
        ("whole reads", &reads.whole.load(Ordering::SeqCst)),
        ("reads across a change", &reads.between.load(Ordering::SeqCst)),
        ("whole reads of cvmfs2", &reads_of_reference.whole.load(Ordering::SeqCst)),
        ("its reads across a change", &reads_of_reference.between.load(Ordering::SeqCst)),
        ("failed or mixed reads", &0),
    ]);
}

/// Sets a flag when dropped, also by a panic.
struct OnDrop<'f>(&'f AtomicBool);

impl Drop for OnDrop<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::SeqCst);
    }
}
