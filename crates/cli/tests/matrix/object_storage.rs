//! Repositories in object storage, by the binary alone: named once, and then by their name as those in folders.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use esker_testkit::fixture;
use esker_testkit::listing::of_folder;
use esker_testkit::s3::{BUCKET, S3Fault, S3Request, S3Server};
use esker_testkit::tree_scan::{differences, scan_tree};
use esker_testkit::waiting::Pace;
use serde_json::Value;

use crate::confinement::is_confined_server;
use crate::publishing::NAME;
use crate::served::Served;
use crate::test_env::{PATIENCE, TestEnv, esker_binary, words};
use crate::test_user::TestUser;

/// A publisher with a bucket.
struct Site {
    world: TestEnv,
    server: S3Server,
}

impl Site {
    fn new(person: TestUser) -> Self {
        let site = Self { world: TestEnv::new(person, fixture::RMD), server: S3Server::start() };
        let tree = site.tree();
        person.does(|| {
            fs::create_dir_all(tree.join("a/b")).expect("folders");
            fs::write(tree.join("a/b/large"), vec![7; 300_000]).expect("a file");
            fs::write(tree.join("a/file"), "content").expect("a file");
        });
        site
    }

    fn home(&self, name: &str) -> String {
        self.world.path("home").join(name).display().to_string()
    }

    fn tree(&self) -> PathBuf {
        PathBuf::from(self.home("tree"))
    }

    fn bucket(&self) -> String {
        format!("s3://{BUCKET}/cvmfs")
    }

    /// A command on a machine, which has a folder for the states of publishers.
    fn command(&self, machine: &str, arguments: &[&str]) -> Command {
        let mut command = self.world.esker(arguments);
        if arguments[..2] != ["repo", "list"] {
            command.args(["--keys", &self.home("keys")]);
        }
        command.env("ESKER_STORAGE", self.home(machine));
        command.env("AWS_ACCESS_KEY_ID", "key").env("AWS_SECRET_ACCESS_KEY", "secret");
        command
    }

    #[track_caller]
    fn esker(&self, arguments: &[&str]) -> String {
        let output: Output = self.command("machine", arguments).output().expect("running esker");
        assert!(output.status.success(), "{arguments:?}: {}", words(&output));
        String::from_utf8(output.stdout).expect("text")
    }

    #[track_caller]
    fn json(&self, arguments: &[&str]) -> Value {
        serde_json::from_str(&self.esker(&[arguments, &["--json"]].concat())).expect("JSON from esker")
    }

    fn create(&self) {
        let endpoint = self.server.endpoint();
        self.esker(&["repo", "create", NAME, "--storage", &self.bucket(), "--endpoint", &endpoint]);
    }

    fn publish(&self) -> Value {
        self.json(&["publish", NAME, &self.home("tree"), "--quiet"])
    }
}

#[test]
fn a_repository_in_a_bucket_is_used_by_its_name_like_one_in_a_folder() {
    let site = Site::new(TestUser::ordinary());
    site.create();
    let address = format!("s3://{BUCKET}/cvmfs/{NAME}");
    assert_eq!(site.json(&["repo", "info", NAME])["place"], address.as_str());
    let first = site.publish();
    assert_eq!((&first["revision"], &first["published"]), (&1.into(), &true.into()), "{first}");
    let listed = site.json(&["repo", "list", "--storage", &site.home("machine")]);
    assert_eq!((&listed[0]["name"], &listed[0]["address"]), (&NAME.into(), &address.as_str().into()));
    site.esker(&["tag", "add", NAME, "v1"]);
    site.world.person.does(|| fs::write(site.tree().join("a/file"), "changed").expect("a file"));
    assert_eq!(site.publish()["revision"], 2);
    let changed = site.esker(&["diff", NAME, "v1"]);
    assert!(changed.contains("/a/file"), "{changed}");
    assert!(site.esker(&["log", NAME]).contains("v1"));
    site.esker(&["rollback", NAME, "--to", "v1"]);
    assert_eq!(site.json(&["repo", "info", NAME])["revision"], 3);
    let collected =
        site.json(&["collect", NAME, "--keep-tags", "--automatic-tags", "1s", "--grace", "0", "--quiet"]);
    assert_eq!(collected["result"]["waiting"], Value::Null, "{collected}");
    let checked = site.json(&["check", NAME, "--data", "--quiet"]);
    assert_eq!(checked["report"]["findings"], Value::Array(vec![]), "{checked}");
    assert!(checked["report"]["read_objects"].as_u64() >= Some(2), "{checked}");
    assert!(site.esker(&["repo", "reindex", NAME]).contains("indexed"));
    site.esker(&["repo", "resign", NAME]);
    let info = site.json(&["repo", "info", NAME]);
    assert!(info["last_check"].is_string() && info["check_succeeded"] == true, "{info}");
    let orphans = site.json(&["collect", NAME, "--orphans", "--grace", "0", "--quiet"]);
    assert!(orphans["result"]["plan"]["orphans"].is_u64(), "{orphans}");
    site.esker(&["check", NAME, "--data", "--quiet"]);

    // Another machine names the bucket and its server once, with any command.
    let (bucket, endpoint) = (site.bucket(), site.server.endpoint());
    let elsewhere = |arguments: &[&str]| site.command("other", arguments).output().expect("running esker");
    let first = elsewhere(&["log", NAME, "--storage", &bucket, "--endpoint", &endpoint]);
    assert!(first.status.success(), "{}", words(&first));
    let later = elsewhere(&["tag", "list", NAME]);
    assert!(later.status.success() && words(&later).contains("v1"), "{}", words(&later));
    for wrong in [
        &["tag", "list", NAME, "--storage", &bucket, "--endpoint", "http://127.0.0.1:1"][..],
        &["tag", "list", NAME, "--endpoint", &endpoint],
    ] {
        let refused = elsewhere(wrong);
        assert_eq!(refused.status.code(), Some(2), "{wrong:?}: {}", words(&refused));
    }

    site.esker(&["repo", "remove", NAME, "--yes"]);
    let left = site.server.objects(BUCKET);
    assert!(left.is_empty(), "{:?}", left.keys().collect::<Vec<_>>());
    assert!(!Path::new(&site.home("machine")).join(NAME).exists());
}

/// A server needs no copy of its own: what it served once it serves without the bucket, too.
#[test]
fn clients_mount_from_a_server_in_front_of_a_bucket() {
    let site = Site::new(TestUser::ordinary());
    site.create();
    site.publish();
    fs::copy(site.home(&format!("keys/{NAME}.pub")), site.world.path("key.pub")).expect("the key");
    let (place, endpoint) = (format!("{}/{NAME}", site.bucket()), site.server.endpoint());
    let mut serve = site.world.esker(&["serve", &place, "--endpoint", &endpoint, "--cache", "served"]);
    serve.current_dir(site.home(""));
    let served = Served::by(serve.env("AWS_ACCESS_KEY_ID", "key").env("AWS_SECRET_ACCESS_KEY", "secret"));
    // The publisher's machine knows the bucket and its server by the name of the repository.
    let mut by_name = site.world.esker(&["serve", NAME, "--cache", "named"]);
    by_name.current_dir(site.home("")).env("ESKER_STORAGE", site.home("machine"));
    let named = Served::by(by_name.env("AWS_ACCESS_KEY_ID", "key").env("AWS_SECRET_ACCESS_KEY", "secret"));
    let key = site.home(&format!("keys/{NAME}.pub"));
    let info = site.world.esker(&["repo", "info", &named.url(NAME), "--json", "--public-key", &key]).output();
    let info: Value = serde_json::from_slice(&info.expect("running esker").stdout).expect("JSON");
    assert_eq!((&info["revision"], &info["signatures_verified"]), (&1.into(), &true.into()), "{info}");
    drop(named);
    let expected = site.world.person.does(|| of_folder(&site.tree()));
    for has_bucket in [true, false] {
        if !has_bucket {
            site.server.fault(|_| true, S3Fault::Drop);
            site.world.empty_cache();
        }
        let mounted = site.world.mount_of(&served.url(NAME), &[]);
        let found = mounted.does(|| scan_tree(&site.world.mountpoint()));
        let wrong = differences(&expected, &found, site.world.person.ownership());
        assert!(wrong.is_empty(), "{has_bucket}: {wrong:#?}");
    }
}

/// The bucket is a Stratum 0 by itself.
#[test]
fn clients_mount_straight_from_a_bucket() {
    let site = Site::new(TestUser::ordinary());
    site.create();
    site.publish();
    fs::copy(site.home(&format!("keys/{NAME}.pub")), site.world.path("key.pub")).expect("the key");
    let url = format!("{}/{BUCKET}/cvmfs/{NAME}", site.server.endpoint());
    let mounted = site.world.mount_of(&url, &[]);
    let expected = site.world.person.does(|| of_folder(&site.tree()));
    let found = mounted.does(|| scan_tree(&site.world.mountpoint()));
    let wrong = differences(&expected, &found, site.world.person.ownership());
    assert!(wrong.is_empty(), "{wrong:#?}");
}

#[test]
fn publishers_on_two_machines_share_a_bucket_without_a_lock() {
    let site = Site::new(TestUser::ordinary());
    site.create();
    site.publish();
    let other = |arguments: &[&str]| {
        let mut command = site.command("other machine", arguments);
        command.env("AWS_ENDPOINT_URL", site.server.endpoint()).output().expect("running esker")
    };
    let nothing = other(&["publish", NAME, &site.home("tree")]);
    assert!(!nothing.status.success(), "the machine does not know the bucket: {}", words(&nothing));
    let bucket = site.bucket();
    let output = other(&["publish", NAME, &site.home("tree"), "--to", "/copy", "--storage", &bucket]);
    assert!(output.status.success(), "{}", words(&output));
    // Once is enough.
    let output = other(&["publish", NAME, &site.home("tree"), "--to", "/again"]);
    assert!(output.status.success(), "{}", words(&output));
    let refused = other(&["repo", "info", NAME, "--storage", "s3://elsewhere"]);
    assert!(words(&refused).contains("s3://elsewhere"), "{}", words(&refused));
    assert_eq!(site.json(&["repo", "info", NAME])["revision"], 3);
}

#[test]
fn a_bucket_that_is_not_there_leaves_nothing_on_the_machine() {
    let site = Site::new(TestUser::ordinary());
    let create =
        ["repo", "create", NAME, "--storage", "s3://missing/x", "--endpoint", &site.server.endpoint()];
    let output = site.command("machine", &create).output().expect("running esker");
    assert!(!output.status.success() && words(&output).contains("missing"), "{}", words(&output));
    assert!(!Path::new(&site.home("machine")).join(NAME).exists());
    let option = ["repo", "create", NAME, "--endpoint", "http://localhost:1"];
    let output = site.command("machine", &option).output().expect("running esker");
    assert!(words(&output).contains("--storage s3://"), "{}", words(&output));
}

/// Commands of a transaction see the tree of the bucket, which only requests with credentials may read.
#[test]
fn a_transaction_is_published_to_a_bucket_that_is_read_with_credentials() {
    let site = Site::new(TestUser::ordinary());
    let is_anonymous = |request: &S3Request| !request.fields.contains_key("authorization");
    let closed = site.server.fault(is_anonymous, S3Fault::Status(403));
    site.create();
    site.publish();
    let listed = site.esker(&["ls", &format!("{NAME}:/a"), "--storage", &site.home("machine")]);
    assert!(listed.contains("file"), "{listed}");
    let script = format!("echo more > /cvmfs/{NAME}/a/more && cat /cvmfs/{NAME}/a/file");
    let run = ["transaction", "--transactions", &site.home("open"), NAME, "--quiet"];
    let mut command = site.command("machine", &run);
    let output = command.args(["--", "sh", "-c", &script]).output().expect("running esker");
    assert!(output.status.success(), "{}", words(&output));
    assert_eq!(site.json(&["repo", "info", NAME])["revision"], 2);
    assert_eq!(closed.hits(), 0, "all requests are signed");
}

/// Keys of buckets are renewed by replacing the file, and the old one is revoked.
///
/// > H3: A confined daemon asks the name servers of the machine, and reads storage folders, certificates, keys of repositories and buckets, and lists of name servers that took the place of those it was started with, unless they are directly in a folder of many programs, such as `/` or `/var/lib`; its access log goes on when it is rotated.
#[test]
fn a_confined_server_signs_with_the_key_of_a_replaced_file() {
    let site = Site::new(TestUser::ordinary());
    site.create();
    site.publish();
    let (folder, is_revoked) = (site.world.path("aws"), Arc::new(AtomicBool::new(false)));
    fs::create_dir(&folder).expect("a folder");
    let file = folder.join("credentials");
    let write = |path: &Path, key: &str| {
        let text = format!("[default]\naws_access_key_id = {key}\naws_secret_access_key = secret\n");
        fs::write(path, text).expect("a file");
    };
    write(&file, "first");
    let is_signed_by = |request: &S3Request, key: &str| {
        request.fields.get("authorization").is_some_and(|text| text.contains(&format!("Credential={key}/")))
    };
    let revoked = is_revoked.clone();
    let refused = site.server.fault(
        move |request| revoked.load(Ordering::SeqCst) && is_signed_by(request, "first"),
        S3Fault::Status(403),
    );
    let place = format!("{}/{NAME}", site.bucket());
    let mut command = Command::new(esker_binary());
    command.args(["serve", &place, "--endpoint", &site.server.endpoint(), "--head-age", "0s", "--cache"]);
    command.arg(site.world.path("served")).env_clear().env("HOME", "/");
    let served = Served::by(command.env("AWS_SHARED_CREDENTIALS_FILE", &file));
    is_confined_server(served.pid());
    let key = site.home(&format!("keys/{NAME}.pub"));
    let list = || {
        let url = served.url(NAME);
        site.world.esker(&["ls", &url, "--public-key", &key, "--cache", "ram"]).output().expect("esker")
    };
    let listed = list();
    assert!(listed.status.success(), "{}", words(&listed));
    is_revoked.store(true, Ordering::SeqCst);
    list();
    refused.assert_hit();
    write(&folder.join("next"), "second");
    fs::rename(folder.join("next"), &file).expect("replacing the file");
    let is_used = || site.server.requests().iter().any(|request| is_signed_by(request, "second"));
    assert!(Pace::PROCESS.until(PATIENCE, || list().status.success() && is_used()), "{}", words(&list()));
}

/// The configuration for `cvmfs_server` names the bucket, and another machine takes the repository over with it.
#[test]
fn a_repository_in_a_bucket_is_exported_for_cvmfs_server_and_imported_on_another_machine() {
    let site = Site::new(TestUser::ordinary());
    site.create();
    site.publish();
    let conf = site.home("conf");
    site.esker(&["repo", "export-config", NAME, "--to", &conf]);
    let written = |name: &str| site.world.path("home/conf").join(name);
    site.world.person.does(|| {
        let text = fs::read_to_string(written("server.conf")).expect("server.conf");
        let usual = format!("/etc/cvmfs/repositories.d/{NAME}/s3.conf");
        assert!(text.contains(&format!("cvmfs/{NAME}@{usual}")), "{text}");
        fs::write(written("server.conf"), text.replace(&usual, &written("s3.conf").display().to_string()))
            .expect("server.conf");
        let keys = "CVMFS_S3_ACCESS_KEY=key\nCVMFS_S3_SECRET_KEY=secret\n";
        let text = fs::read_to_string(written("s3.conf")).expect("s3.conf");
        fs::write(written("s3.conf"), format!("{text}{keys}")).expect("s3.conf");
    });
    let server_conf = written("server.conf").display().to_string();
    let import = |more: &[&str]| {
        let mut command =
            site.command("other", &[&["repo", "import", NAME, "--config", &server_conf], more].concat());
        // The keys are those of the configuration.
        command.env_remove("AWS_ACCESS_KEY_ID").env_remove("AWS_SECRET_ACCESS_KEY");
        let output = command.output().expect("running esker");
        assert!(output.status.success(), "{}", words(&output));
        words(&output)
    };
    assert!(import(&["--dry-run"]).contains("would be taken over"));
    assert!(!Path::new(&site.home("other")).join(NAME).exists());
    let taken = import(&[]);
    assert!(taken.contains(&format!("s3://{BUCKET}/cvmfs/{NAME}")), "{taken}");
    assert!(taken.contains(&site.server.endpoint()) && !taken.contains("secret"), "{taken}");
    let publish = ["publish", NAME, &site.home("tree"), "--to", "/again", "--quiet"];
    let output = site.command("other", &publish).output().expect("running esker");
    assert!(output.status.success(), "{}", words(&output));
    assert_eq!(site.json(&["repo", "info", NAME])["revision"], 2);
}

#[test]
fn a_replica_in_a_bucket_is_collected() {
    let site = Site::new(TestUser::ordinary());
    site.create();
    // Tags would keep the revisions.
    site.esker(&["repo", "set", NAME, "automatic_tags=off"]);
    site.publish();
    let url = format!("{}/{BUCKET}/cvmfs/{NAME}", site.server.endpoint());
    let key = site.home(&format!("keys/{NAME}.pub"));
    let other = |arguments: &[&str]| {
        let mut command = site.command("replica", arguments);
        command.env("AWS_ENDPOINT_URL", site.server.endpoint());
        let output = command.output().expect("running esker");
        assert!(output.status.success(), "{arguments:?}: {}", words(&output));
        String::from_utf8(output.stdout).expect("text")
    };
    let replicate = || {
        let to = format!("s3://{BUCKET}/copies");
        let options = ["--to", &to, "--public-key", &key, "--revisions", "0", "--quiet"];
        let mut command = site.world.esker(&[&["replicate", &url], &options[..]].concat());
        command.env("ESKER_STORAGE", site.home("replica")).env("AWS_ENDPOINT_URL", site.server.endpoint());
        command.env("AWS_ACCESS_KEY_ID", "key").env("AWS_SECRET_ACCESS_KEY", "secret");
        let output = command.output().expect("running esker");
        assert!(output.status.success(), "{}", words(&output));
    };
    // A plan looks at the bucket, not at a folder of the same name on the machine, and remembers nothing.
    let plan = |machine: &str| {
        let to = format!("s3://{BUCKET}/copies");
        let options =
            ["--to", &to, "--public-key", &key, "--revisions", "0", "--quiet", "--dry-run", "--json"];
        let mut command = site.world.esker(&[&["replicate", &url], &options[..]].concat());
        command.env("ESKER_STORAGE", site.home(machine)).env("AWS_ENDPOINT_URL", site.server.endpoint());
        command.env("AWS_ACCESS_KEY_ID", "key").env("AWS_SECRET_ACCESS_KEY", "secret");
        let output = command.output().expect("running esker");
        assert!(output.status.success(), "{}", words(&output));
        assert!(!Path::new(&site.home(machine)).join(NAME).exists(), "{machine}");
        let plan: Value = serde_json::from_slice(&output.stdout).expect("JSON");
        plan["result"]["objects"].as_u64().expect("a number")
    };
    assert!(plan("planner") > 0);
    replicate();
    assert_eq!(plan("planner"), 0, "the bucket has all of it");
    for content in ["two", "three"] {
        replicate();
        site.world.person.does(|| fs::write(site.tree().join("a/file"), content).expect("a file"));
        site.publish();
    }
    replicate();
    let collect = ["collect", NAME, "--keep-tags", "--grace", "0", "--quiet", "--json"];
    let collected: Value = serde_json::from_str(&other(&collect)).expect("JSON");
    assert!(collected["result"]["deleted"]["objects"].as_u64() > Some(0), "{collected}");
    other(&["check", NAME, "--data", "--quiet"]);
    let info: Value = serde_json::from_str(&other(&["repo", "info", NAME, "--json"])).expect("JSON");
    assert_eq!((&info["revision"], &info["check_succeeded"]), (&3.into(), &true.into()), "{info}");
}
