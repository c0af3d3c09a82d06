//! Publishers without keys or credentials store large objects in the bucket themselves, if the gateway lets them.

use std::fs;
use std::path::Path;
use std::process::Command;

use esker_testkit::fixture;
use esker_testkit::s3::{BUCKET, S3Fault, S3Request, S3Server};
use esker_testkit::soak::Random;
use serde_json::Value;

use crate::publishing::NAME;
use crate::served::Served;
use crate::test_env::{TestEnv, words};
use crate::test_user::TestUser;

/// Number of large files.
const LARGE: usize = 24;

/// A repository in a bucket, with its owner and its gateway.
struct Site {
    world: TestEnv,
    bucket: S3Server,
}

impl Site {
    fn new(person: TestUser) -> Self {
        let site = Self { world: TestEnv::new(person, fixture::RMD), bucket: S3Server::start() };
        run(&mut site.with_keys(&["repo", "create", NAME]));
        let (state, key) = (site.home("gateway"), site.home("build.gw"));
        let grant = format!("{NAME}/");
        run(&mut site
            .world
            .esker(&["gateway", "key", "add", "build", &grant, "--state", &state, "--output", &key]));
        let tree = site.home("tree");
        site.world.person.does(|| {
            fs::create_dir_all(&tree).expect("a folder");
            let mut random = Random(1);
            for number in 0..LARGE {
                let bytes: Vec<u8> = (0..25_000).flat_map(|_| random.draw().to_le_bytes()).collect();
                fs::write(format!("{tree}/large-{number}"), bytes).expect("a file");
                fs::write(format!("{tree}/small-{number}"), format!("{number}")).expect("a file");
            }
        });
        site
    }

    fn home(&self, name: &str) -> String {
        self.world.path("home").join(name).display().to_string()
    }

    /// Returns a command that knows the keys, the credentials and the server.
    fn with_keys(&self, arguments: &[&str]) -> Command {
        let mut command = self.world.esker(arguments);
        command.args(["--keys", &self.home("keys"), "--storage", &format!("s3://{BUCKET}/cvmfs")]);
        command.env("ESKER_STORAGE", self.home("owner")).env("AWS_ENDPOINT_URL", self.bucket.endpoint());
        command.env("AWS_ACCESS_KEY_ID", "key").env("AWS_SECRET_ACCESS_KEY", "secret");
        command
    }

    fn gateway(&self, options: &[&str]) -> Served {
        let state = self.home("gateway");
        Served::by(&mut self.with_keys(&[&["gateway", "--state", &state], options].concat()))
    }

    /// Publishes the tree through a gateway; returns the report.
    fn publish(&self, gateway: &Served, target: &str) -> Value {
        let mut command = self.world.esker(&["publish", NAME, &self.home("tree"), "--to", target]);
        command.args(["--json", "--quiet", "--storage", &self.home("state"), "--gateway", &gateway.url]);
        command.args([
            "--key",
            &self.home("build.gw"),
            "--public-key",
            &self.home(&format!("keys/{NAME}.pub")),
        ]);
        command.args(["--server", &format!("{}/{BUCKET}/cvmfs/{NAME}", self.bucket.endpoint())]);
        serde_json::from_str(&run(&mut command)).expect("JSON from esker")
    }

    /// Returns the number of objects that publishers stored.
    fn stored_by_publishers(&self) -> usize {
        let is_theirs = |request: &&S3Request| is_signed(request) && !request.key.contains("/.esker/");
        self.bucket.requests().iter().filter(is_theirs).count()
    }

    fn is_in_order(&self, revision: u64) {
        let checked: Value =
            serde_json::from_str(&run(self.with_keys(&["check", NAME, "--data"]).arg("--json")))
                .expect("JSON");
        assert_eq!(checked["report"]["revision"], revision, "{checked}");
    }
}

fn is_signed(request: &S3Request) -> bool {
    request.method == "PUT" && request.asks("X-Amz-Signature")
}

#[track_caller]
fn run(command: &mut Command) -> String {
    let output = command.output().expect("running esker");
    assert!(output.status.success(), "{}", words(&output));
    String::from_utf8(output.stdout).expect("text")
}

#[test]
fn publishers_store_large_objects_in_the_bucket_themselves() {
    for person in TestUser::all() {
        let site = Site::new(person);
        let gateway = site.gateway(&["--signed-uploads"]);
        assert_eq!(site.publish(&gateway, "/one")["revision"], 1);
        assert_eq!(site.stored_by_publishers(), LARGE, "as user {}", person.uid);
        // What is stored is not stored again.
        assert_eq!(site.publish(&gateway, "/two")["revision"], 2);
        assert_eq!(site.stored_by_publishers(), LARGE);
        site.is_in_order(2);
        let expected = fs::read(Path::new(&site.home("tree")).join("large-3")).expect("a file");
        let shown = site.with_keys(&["cat", NAME, "/two/large-3"]).output().expect("running esker");
        assert!(shown.stdout == expected, "{}", words(&shown));
    }
}

/// The bucket ignores checksums, or refuses what publishers store, or the gateway doesn't let them.
#[test]
fn where_publishers_can_not_store_objects_the_gateway_does() {
    let site = Site::new(TestUser::ordinary());
    site.bucket.ignore_checksums();
    let gateway = site.gateway(&["--signed-uploads"]);
    assert_eq!(site.publish(&gateway, "/one")["revision"], 1);
    let left = site.bucket.objects(BUCKET).into_keys().filter(|key| key.contains("/.esker/uploads/"));
    assert_eq!(left.collect::<Vec<_>>(), Vec::<String>::new());
    site.is_in_order(1);

    let site = Site::new(TestUser::ordinary());
    let rule = site
        .bucket
        .fault(|request| is_signed(request) && !request.key.contains("/.esker/"), S3Fault::Status(403));
    let gateway = site.gateway(&["--signed-uploads"]);
    assert_eq!(site.publish(&gateway, "/one")["revision"], 1);
    assert!(rule.hits() > 0);
    site.is_in_order(1);

    let site = Site::new(TestUser::ordinary());
    let gateway = site.gateway(&[]);
    assert_eq!(site.publish(&gateway, "/one")["revision"], 1);
    assert_eq!(site.stored_by_publishers(), 0);
    site.is_in_order(1);
}
