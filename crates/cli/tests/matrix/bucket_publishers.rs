//! Publishers on many machines share one bucket without a lock, and some of them are killed.

use std::fs;
use std::path::Path;
use std::process::Command;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::channel;
use std::time::{Duration, Instant};

use esker_testkit::fixture;
use esker_testkit::s3::BUCKET;
use esker_testkit::soak::{Random, Soak};
use serde_json::Value;

use crate::bucket_server::BucketServer;
use crate::publishing::NAME;
use crate::serial_order::{
    Attempt, Commits, Outcome, content, files_of, output_unless_killed, serial_tree, write_folder,
};
use crate::test_env::{TestEnv, words};
use crate::test_user::TestUser;

/// Machines with a publisher each.
const PUBLISHERS: usize = 20;
/// Directories that several publishers replace.
const COMMON: usize = 3;
/// Number of attempts after which the test gives up waiting for a conflict and a kill.
const ATTEMPTS_MAX: u64 = 10_000;

/// The bucket and the machines.
struct Site {
    world: TestEnv,
    bucket: BucketServer,
}

impl Site {
    fn home(&self, name: &str) -> String {
        self.world.path("home").join(name).display().to_string()
    }

    /// Returns a command on a machine, which knows the keys, the credentials and the server.
    fn command(&self, machine: &str, arguments: &[&str]) -> Command {
        let mut command = self.world.esker(arguments);
        command.args(["--keys", &self.home("keys"), "--storage", &format!("s3://{BUCKET}/cvmfs")]);
        command.env("ESKER_STORAGE", self.home(machine)).env("AWS_ENDPOINT_URL", self.bucket.endpoint());
        command.env("AWS_ACCESS_KEY_ID", "key").env("AWS_SECRET_ACCESS_KEY", "secret");
        command
    }

    #[track_caller]
    fn json(&self, arguments: &[&str]) -> Value {
        let output = self.command("machine 0", arguments).arg("--json").output().expect("running esker");
        assert!(output.status.success(), "{arguments:?}: {}", words(&output));
        serde_json::from_slice(&output.stdout).expect("JSON from esker")
    }

    /// Publishes once; kills the publisher after this time, if one is given and the publisher still runs.
    fn attempt(&self, machine: &str, target: &str, label: &str, kill_after: Option<Duration>) -> Outcome {
        let folder = self.home(&format!("{machine} tree"));
        self.world.person.does(|| write_folder(Path::new(&folder), label));
        let arguments = ["publish", NAME, &folder, "--to", target, "--json", "--quiet"];
        let mut command = self.command(machine, &arguments);
        let Some(output) = output_unless_killed(&mut command, kill_after) else { return Outcome::Killed };
        if output.status.success() {
            let report: Value = serde_json::from_slice(&output.stdout).expect("JSON from esker");
            assert_eq!(report["published"], true, "{report}");
            return Outcome::Accepted(report["revision"].as_u64().expect("a revision"));
        }
        let said = words(&output);
        let names_it =
            said.contains(&format!("{target}/file")) && said.contains("after this change was computed");
        assert!(names_it, "{machine} published to {target}: {said}");
        Outcome::Lost
    }
}

/// Publishes until the end of the soak.
fn publish_on(site: &Site, number: usize, mut random: Random, is_over: &AtomicBool, tell: &dyn Fn(Attempt)) {
    let machine = format!("machine {number}");
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
        let outcome = site.attempt(&machine, &target, &label, kill);
        if outcome != Outcome::Killed {
            last = started.elapsed();
        }
        tell(Attempt { target, label, outcome });
    }
}

/// Publishers of disjoint and of the same directories commit without a lock while some of them are killed: the tree is
/// that of the accepted commits in their order, and the errors of losing publishers name the path.
#[test]
fn soak_twenty_publishers_of_one_bucket() {
    let world = TestEnv::new(TestUser::ordinary(), fixture::RMD);
    let mut site = Site { world, bucket: BucketServer::start_in_memory() };
    let mut soak = Soak::begin("twenty_publishers_of_one_bucket");
    let created = site.command("machine 0", &["repo", "create", NAME]).output().expect("running esker");
    assert!(created.status.success(), "{}", words(&created));
    assert_eq!(site.attempt("machine 0", "/first", "first", None), Outcome::Accepted(1));

    let is_over = AtomicBool::new(false);
    let mut attempts: Vec<Attempt> = Vec::new();
    std::thread::scope(|scope| {
        let (sender, results) = channel();
        let (site, is_over) = (&site, &is_over);
        for number in 0..PUBLISHERS {
            let (random, sender) = (Random(soak.seed() ^ (number as u64 + 1) << 32), sender.clone());
            // The test ends first only by a panic.
            let tell = move |attempt| drop(sender.send(attempt));
            scope.spawn(move || publish_on(site, number, random, is_over, &tell));
        }
        drop(sender);
        for attempt in results {
            attempts.push(attempt);
            let has = |outcome| attempts.iter().any(|attempt| attempt.outcome == outcome);
            let missing = if has(Outcome::Lost) && has(Outcome::Killed) { 0 } else { ATTEMPTS_MAX };
            if !soak.goes_on_until(missing) {
                is_over.store(true, Ordering::SeqCst);
            }
        }
    });
    let count = |outcome| attempts.iter().filter(|attempt| attempt.outcome == outcome).count();
    let (lost, killed) = (count(Outcome::Lost), count(Outcome::Killed));
    assert!(lost > 0 && killed > 0, "{lost} lost a race, and {killed} were killed");
    let head = site.json(&["repo", "info", NAME])["revision"].as_u64().expect("a revision");
    let (mut expected, late) = serial_tree(&attempts, (head, Commits::Single), |old, new| {
        site.json(&["diff", NAME, &old.to_string(), &new.to_string()])
    });

    // It completes the reflog, if the last publisher was killed after its commit.
    assert_eq!(site.attempt("machine 0", "/last", "last", None), Outcome::Accepted(head + 1));
    for label in ["first", "last"] {
        expected.insert(format!("/{label}/file"), content(label));
        expected.insert(format!("/{label}/{label}"), String::new());
    }
    let checked = site.json(&["check", NAME, "--data", "--quiet"]);
    assert_eq!(checked["report"]["findings"], Value::Array(vec![]), "{checked}");
    fs::copy(site.home(&format!("keys/{NAME}.pub")), site.world.path("key.pub")).expect("the key");
    let url = format!("{}/{BUCKET}/cvmfs/{NAME}", site.bucket.endpoint());
    let mounted = site.world.mount_of(&url, &[]);
    let mount = site.world.mountpoint();
    assert_eq!(mounted.does(|| files_of(&mount)), expected);
    drop(mounted);
    let described = site.bucket.describe();
    site.bucket.kill();
    soak.finish(&[
        ("publishers", &PUBLISHERS),
        ("bucket", &described),
        ("revisions", &(head + 1)),
        ("publishes that lost a race, with the path", &lost),
        ("publishers killed", &killed),
        ("of these after their commit", &late),
    ]);
}
