//! Publishers without keys of the repository share it through a gateway, beside publishers with keys, while publishers and
//! gateway are killed, the storage fails, and links are slow and break.

use std::fs;
use std::io::{BufRead, BufReader};
use std::net::SocketAddr;
use std::process::{Child, Command, Output, Stdio};
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::mpsc::channel;
use std::time::{Duration, Instant};

use esker_testkit::fixture;
use esker_testkit::s3::{BUCKET, S3Fault, S3Request, S3Rule, S3Server};
use esker_testkit::slow_link::SlowLink;
use esker_testkit::soak::{Random, Soak};
use esker_testkit::waiting::for_moment_of_fault;
use serde_json::Value;

use crate::publishing::NAME;
use crate::serial_order::{
    Attempt, Commits, Outcome, content, files_of, output_unless_killed, serial_tree, write_folder,
};
use crate::test_env::{TestEnv, words};
use crate::test_user::TestUser;

/// Publishers through the gateway.
const PUBLISHERS: usize = 18;
/// Publishers with keys of the repository, which write to the bucket themselves.
const WITH_KEYS: usize = 2;
/// Directories that several publishers replace.
const COMMON: usize = 3;
/// Number of attempts after which the test gives up waiting for each kind of disturbance.
const ATTEMPTS_MAX: u64 = 5000;
/// One in so many requests of publishers with keys and of the gateway meets each fault of the bucket.
const FAULT_EVERY: u64 = 60;
/// Shortest time between two kills of the gateway, and the random time that is added.
const LIFE_OF_GATEWAY: Duration = Duration::from_secs(2);

/// The bucket, the gateway and the machines.
struct Site {
    world: TestEnv,
    bucket: S3Server,
    gateway: Mutex<Child>,
    address: SocketAddr,
    link: SlowLink,
}

/// How a publisher reaches the repository.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Way {
    Gateway,
    SlowGateway,
    Keys,
}

impl Site {
    fn new() -> Self {
        let world = TestEnv::new(TestUser::ordinary(), fixture::RMD);
        let bucket = S3Server::start();
        let created = with_keys(&world, &bucket, "owner", &["repo", "create", NAME]).output();
        let created = created.expect("running esker");
        assert!(created.status.success(), "{}", words(&created));
        fs::copy(home(&world, &format!("keys/{NAME}.pub")), world.path("key.pub")).expect("the key");
        for publisher in 0..PUBLISHERS {
            let (name, file) = (format!("key-{publisher}"), key_file(&world, publisher));
            let grant = format!("{NAME}/");
            let arguments = [
                "gateway",
                "key",
                "add",
                &name,
                &grant,
                "--state",
                &home(&world, "gateway"),
                "--output",
                &file,
            ];
            let added = world.esker(&arguments).output().expect("running esker");
            assert!(added.status.success(), "{}", words(&added));
        }
        let (gateway, address) = start_gateway(&world, &bucket, "127.0.0.1:0");
        let link = SlowLink::to(address, 2_000_000, Duration::from_millis(5));
        Self { world, bucket, gateway: Mutex::new(gateway), address, link }
    }

    /// Kills the gateway and starts the next one at its address.
    fn kill_gateway(&self) {
        let mut gateway = self.gateway.lock().expect("no panic");
        gateway.kill().expect("a signal");
        gateway.wait().expect("its end");
        *gateway = start_gateway(&self.world, &self.bucket, &self.address.to_string()).0;
    }

    fn url_of_repository(&self) -> String {
        format!("{}/{BUCKET}/cvmfs/{NAME}", self.bucket.endpoint())
    }

    /// Returns the command of a publisher.
    fn publish(&self, number: usize, way: Way, folder: &str, target: &str) -> Command {
        let arguments = ["publish", NAME, folder, "--to", target, "--json", "--quiet"];
        let address = match way {
            Way::Keys => {
                return with_keys(&self.world, &self.bucket, &format!("machine {number}"), &arguments);
            }
            Way::Gateway => self.address,
            Way::SlowGateway => self.link.address(),
        };
        let mut command = self.world.esker(&arguments);
        command.env("ESKER_STORAGE", home(&self.world, &format!("machine {number}")));
        command.args(["--gateway", &format!("http://{address}"), "--key", &key_file(&self.world, number)]);
        command.args(["--server", &self.url_of_repository(), "--take-over"]);
        command.arg("--public-key").arg(self.world.path("key.pub"));
        command
    }

    #[track_caller]
    fn json(&self, arguments: &[&str]) -> Value {
        let output = with_keys(&self.world, &self.bucket, "owner", arguments).arg("--json").output();
        let output = output.expect("running esker");
        assert!(output.status.success(), "{arguments:?}: {}", words(&output));
        serde_json::from_slice(&output.stdout).expect("JSON from esker")
    }

    /// Publishes once; kills the publisher after this time, if one is given and the publisher still runs.
    fn attempt(
        &self,
        number: usize,
        way: Way,
        (target, label): (&str, &str),
        kill_after: Option<Duration>,
    ) -> Outcome {
        let folder = home(&self.world, &format!("tree {number}"));
        self.world.person.does(|| write_folder(folder.as_ref(), label));
        let mut command = self.publish(number, way, &folder, target);
        let Some(output) = output_unless_killed(&mut command, kill_after) else { return Outcome::Killed };
        outcome(&output).unwrap_or_else(|said| {
            assert!(
                said.contains(&format!("{target}/file")),
                "publisher {number} of {target}: {said}\n{}",
                self.log_of(target)
            );
            Outcome::Lost
        })
    }

    /// Returns what the gateways logged of a directory.
    fn log_of(&self, target: &str) -> String {
        let log = fs::read_to_string(home(&self.world, "gateway.log")).expect("the log");
        let lines: Vec<&str> =
            log.lines().filter(|line| line.contains(&format!("{NAME}{target} "))).collect();
        format!("the gateway's log:\n{}", lines.join("\n"))
    }
}

/// Returns what a publisher that ended said; an error of it as text.
fn outcome(output: &Output) -> Result<Outcome, String> {
    if !output.status.success() {
        return Err(words(output));
    }
    let report: Value = serde_json::from_slice(&output.stdout).expect("JSON from esker");
    if report["published"] == false {
        return Ok(Outcome::Unnumbered);
    }
    Ok(Outcome::Accepted(report["revision"].as_u64().expect("a revision")))
}

impl Drop for Site {
    fn drop(&mut self) {
        if let Ok(gateway) = self.gateway.get_mut() {
            // Whether there is one to kill is the business of the test.
            let _ = gateway.kill();
            let _ = gateway.wait();
        }
    }
}

fn home(world: &TestEnv, name: &str) -> String {
    world.path("home").join(name).display().to_string()
}

fn key_file(world: &TestEnv, number: usize) -> String {
    home(world, &format!("key-{number}.gw"))
}

/// Returns a command on a machine, which knows the keys, the credentials and the server.
fn with_keys(world: &TestEnv, bucket: &S3Server, machine: &str, arguments: &[&str]) -> Command {
    let mut command = world.esker(arguments);
    command.args(["--keys", &home(world, "keys"), "--storage", &format!("s3://{BUCKET}/cvmfs")]);
    command.env("ESKER_STORAGE", home(world, machine)).env("AWS_ENDPOINT_URL", bucket.endpoint());
    command.env("AWS_ACCESS_KEY_ID", "key").env("AWS_SECRET_ACCESS_KEY", "secret");
    command
}

fn start_gateway(world: &TestEnv, bucket: &S3Server, address: &str) -> (Child, SocketAddr) {
    let state = home(world, "gateway");
    let arguments = ["gateway", "--listen", address, "--json", "--state", &state, "--lease-time", "10s"];
    let mut command = with_keys(world, bucket, "machine of the gateway", &arguments);
    let log =
        fs::OpenOptions::new().create(true).append(true).open(home(world, "gateway.log")).expect("a log");
    let mut gateway = command.stdout(Stdio::piped()).stderr(log).spawn().expect("esker gateway");
    let mut line = String::new();
    BufReader::new(gateway.stdout.take().expect("its output")).read_line(&mut line).expect("a line");
    let ready: Value = serde_json::from_str(&line).unwrap_or_else(|_| panic!("it serves at once: {line:?}"));
    let url = ready["url"].as_str().expect("a URL");
    let address = url.trim_start_matches("http://").split('/').next().expect("an address");
    (gateway, address.parse().expect("an address"))
}

/// Lets each fault strike one in [`FAULT_EVERY`] signed requests; those of clients of the repository have no signature.
fn disturb(bucket: &S3Server) -> Vec<S3Rule> {
    let faults = [S3Fault::Drop, S3Fault::LoseAnswer, S3Fault::Cut, S3Fault::Status(500), S3Fault::SlowDown];
    let every = |(number, fault): (u64, S3Fault)| {
        let count = AtomicU64::new(number * FAULT_EVERY / 5);
        let picks = move |request: &S3Request| {
            request.fields.contains_key("authorization")
                && count.fetch_add(1, Ordering::Relaxed).is_multiple_of(FAULT_EVERY)
        };
        bucket.fault(picks, fault)
    };
    (0..).zip(faults).map(every).collect()
}

/// Publishes until the end of the soak.
fn publish_on(site: &Site, number: usize, mut random: Random, is_over: &AtomicBool, tell: &dyn Fn(Attempt)) {
    let way = match number {
        _ if number >= PUBLISHERS => Way::Keys,
        _ if number.is_multiple_of(3) => Way::SlowGateway,
        _ => Way::Gateway,
    };
    let mut last = Duration::from_secs(1);
    let mut count = 0u32;
    while !is_over.load(Ordering::SeqCst) {
        let target = match random.below(3) {
            0 => format!("/common-{}", random.below(COMMON)),
            _ => format!("/own-{number}"),
        };
        count += 1;
        let label = format!("by-{number}-{count}");
        // Some publishes end before their kill.
        let kill = (random.below(4) == 0).then(|| last.mul_f64(random.below(1200) as f64 / 1000.0));
        let started = Instant::now();
        let outcome = site.attempt(number, way, (&target, &label), kill);
        if outcome != Outcome::Killed {
            last = started.elapsed().min(Duration::from_secs(5));
        }
        tell(Attempt { target, label, outcome });
    }
}

/// Kills the gateway and breaks the slow link until the end of the soak; returns the number of kills.
fn kill_on(site: &Site, mut random: Random, is_over: &AtomicBool) -> u64 {
    let mut kills = 0;
    while !is_over.load(Ordering::SeqCst) {
        for_moment_of_fault(LIFE_OF_GATEWAY + Duration::from_millis(random.below(3000) as u64));
        site.kill_gateway();
        kills += 1;
        site.link.break_connections();
    }
    kills
}

/// Reads a mounted repository until the end of the soak; returns the number of files read. Nothing fails, and each file has
/// the content of one attempt.
fn read_on(world: &TestEnv, is_over: &AtomicBool) -> u64 {
    let mut files = 0;
    while !is_over.load(Ordering::SeqCst) {
        for target in fs::read_dir(world.mountpoint()).expect("the mount") {
            let file = target.expect("an entry").path().join("file");
            let text =
                fs::read_to_string(&file).unwrap_or_else(|error| panic!("{}: {error}", file.display()));
            assert!(text.starts_with("content of attempt ") && text.ends_with('\n'), "{text:?}");
            files += 1;
        }
    }
    files
}

#[test]
fn soak_twenty_publishers_through_a_gateway() {
    let site = Site::new();
    let mut soak = Soak::begin("twenty_publishers_through_a_gateway");
    let first = site.attempt(PUBLISHERS, Way::Keys, ("/first", "first"), None);
    assert_eq!(first, Outcome::Accepted(1));
    let mounted = site.world.mount_of(&site.url_of_repository(), &[]);
    let rules = disturb(&site.bucket);
    let is_over = AtomicBool::new(false);
    let mut attempts: Vec<Attempt> = Vec::new();
    let (kills, files) = std::thread::scope(|scope| {
        let (sender, results) = channel();
        let (site, is_over) = (&site, &is_over);
        let random = |number: u64| Random(soak.seed() ^ number << 32);
        for number in 0..PUBLISHERS + WITH_KEYS {
            let (random, sender) = (random(number as u64 + 1), sender.clone());
            // The test ends first only by a panic.
            let tell = move |attempt| drop(sender.send(attempt));
            scope.spawn(move || publish_on(site, number, random, is_over, &tell));
        }
        drop(sender);
        let killer = random(99);
        let killer = scope.spawn(move || kill_on(site, killer, is_over));
        let reader = scope.spawn(|| mounted.does(|| read_on(&site.world, is_over)));
        for attempt in results {
            attempts.push(attempt);
            let has = |outcome| attempts.iter().any(|attempt| attempt.outcome == outcome);
            let missing = if has(Outcome::Lost) && has(Outcome::Killed) { 0 } else { ATTEMPTS_MAX };
            if !soak.goes_on_until(missing) {
                is_over.store(true, Ordering::SeqCst);
            }
        }
        (killer.join().expect("no panic"), reader.join().expect("no panic"))
    });
    drop(mounted);
    rules.iter().for_each(S3Rule::assert_hit);
    let faults: u64 = rules.iter().map(S3Rule::hits).sum();
    assert!(kills > 2 && files > 0, "{kills} kills of the gateway, {files} files read");
    let count = |outcome| attempts.iter().filter(|attempt| attempt.outcome == outcome).count();
    let (lost, killed) = (count(Outcome::Lost), count(Outcome::Killed));

    let head = site.json(&["repo", "info", NAME])["revision"].as_u64().expect("a revision");
    let diff = |old: u64, new: u64| site.json(&["diff", NAME, &old.to_string(), &new.to_string()]);
    let (mut expected, late) = serial_tree(&attempts, (head, Commits::Joint), diff);
    // It completes the reflog, if the last commit was interrupted after it replaced the head.
    assert_eq!(site.attempt(0, Way::Gateway, ("/last", "last"), None), Outcome::Accepted(head + 1));
    for label in ["first", "last"] {
        expected.insert(format!("/{label}/file"), content(label));
        expected.insert(format!("/{label}/{label}"), String::new());
    }
    let checked = site.json(&["check", NAME, "--data", "--quiet"]);
    assert_eq!(checked["report"]["findings"], Value::Array(vec![]), "{checked}");
    let mounted = site.world.mount_of(&site.url_of_repository(), &[]);
    let mount = site.world.mountpoint();
    assert_eq!(mounted.does(|| files_of(&mount)), expected);
    drop(mounted);
    soak.finish(&[
        ("publishers through the gateway", &PUBLISHERS),
        ("publishers with keys", &WITH_KEYS),
        ("revisions", &(head + 1)),
        ("kills of the gateway", &kills),
        ("faults of the bucket", &faults),
        ("files read by a client", &files),
        ("publishes that lost a race, with the path", &lost),
        ("publishers killed", &killed),
        ("of these after their commit", &late),
    ]);
}
