//! Publishers without keys: `--gateway` with a running `esker gateway`, as root and as an ordinary user.

use std::fs;
use std::io::{Read as _, Write as _};
use std::net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream};
use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;
use std::process::{Command, Output, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering};
use std::time::Duration;

use esker_testkit::mirror::Mirror;
use esker_testkit::waiting::{Pace, until};
use serde_json::Value;

use crate::publishing::{NAME, Workshop};
use crate::served::Served;
use crate::test_env::{complaint, printed, words};
use crate::test_user::TestUser;

/// Longest wait for what happens soon.
const PATIENCE: Duration = Duration::from_secs(60);

/// A repository with its owner, gateway and web server, and a publisher without keys, which has a state folder of its own.
struct Site {
    workshop: Workshop,
    gateway: Served,
    web: Mirror,
}

/// Directories that the publisher's keys may change, by the names of the keys.
const KEYS: [(&str, &str); 2] = [("one", "/"), ("part", "/part")];

impl Site {
    fn new(person: TestUser) -> Site {
        let workshop = Workshop::with(person, |top| {
            fs::create_dir_all(top.join("d/e")).expect("folders");
            fs::write(top.join("d/e/f"), "f\n").expect("a file");
            fs::write(top.join("large"), vec![7; 300_000]).expect("a file");
            fs::hard_link(top.join("large"), top.join("d/link")).expect("a link");
        });
        workshop.create();
        let home = |name: &str| workshop.home(name);
        let published = fs::read(home(&format!("keys/{NAME}.pub"))).expect("the public key");
        let folders = [home("gateway/publishers"), home("builder")];
        person.does(|| {
            folders.iter().for_each(|folder| fs::create_dir_all(folder).expect("a folder"));
            for (key, grant) in KEYS {
                let text = format!(r#"{{"secret":"secret of {key}","grants":["{NAME}{grant}"]}}"#);
                write_private(&format!("{}/{key}.json", folders[0]), &text.replace("secret of ", "s-"));
                write_private(&format!("{}/{key}", folders[1]), &format!("plain_text {key} s-{key}\n"));
            }
            // Its leases last for two seconds, unless they are renewed.
            let brief =
                format!(r#"{{"secret":"s-brief","grants":["{NAME}/"],"limits":{{"lease_seconds":2}}}}"#);
            write_private(&format!("{}/brief.json", folders[0]), &brief);
            write_private(&format!("{}/brief", folders[1]), "plain_text brief s-brief\n");
            write_private(&format!("{}/wrong", folders[1]), "plain_text one s-two\n");
            // The usual names in a folder of keys.
            write_private(&format!("{}/{NAME}.gw", folders[1]), "plain_text one s-one\n");
            fs::write(format!("{}/{NAME}.pub", folders[1]), published).expect("the public key");
        });
        let gateway = Served::by(&mut serve(&workshop));
        let web = Mirror::serve(home("storage"));
        Site { workshop, gateway, web }
    }

    /// Returns a command of the publisher.
    fn builder(&self, arguments: &[&str]) -> Command {
        let (state, keys) = (self.workshop.home("state"), self.workshop.home("builder"));
        let places = ["--storage", &state, "--keys", &keys];
        // What stands behind `--` is for the command of a transaction.
        let at = arguments.iter().position(|word| *word == "--").unwrap_or(arguments.len());
        let (before, behind) = arguments.split_at(at);
        self.workshop.world.esker(&[before, &places, behind].concat())
    }

    /// Returns a command of the publisher that names the gateway.
    fn through(&self, gateway: &str, arguments: &[&str]) -> Command {
        let server = self.web.url(NAME);
        let named = ["--gateway", gateway, "--server", &server];
        let at = arguments.iter().position(|word| *word == "--").unwrap_or(arguments.len());
        let (before, behind) = arguments.split_at(at);
        self.builder(&[before, &named, behind].concat())
    }

    /// Names the gateway once.
    fn introduce(&self) {
        let listed = ["publish", NAME, &self.workshop.tree(), "--dry-run"];
        let text = printed(&mut self.through(&self.gateway.url, &listed));
        assert!(text.contains("would publish"), "{text}");
    }

    #[track_caller]
    fn json(&self, arguments: &[&str]) -> Value {
        let text = printed(self.builder(arguments).args(["--json", "--quiet"]));
        serde_json::from_str(&text).expect("JSON from esker")
    }

    fn transaction(&self, arguments: &[&str]) -> Command {
        let folder = self.workshop.home("transactions");
        self.builder(&[&["transaction", "--transactions", &folder], arguments].concat())
    }

    /// Returns a command about a transaction that is there.
    fn kept(&self, arguments: &[&str]) -> Command {
        let folder = self.workshop.home("transactions");
        self.workshop.world.esker(&[&["transaction", "--transactions", &folder], arguments].concat())
    }

    fn leases(&self) -> Value {
        let text = self.asked("/api/v1/leases");
        let value: Value = serde_json::from_str(&text).expect("JSON");
        value["data"].clone()
    }

    /// Returns the answer of the gateway to a request without a signature.
    fn asked(&self, path: &str) -> String {
        let mut stream = TcpStream::connect(self.address()).expect("the gateway");
        stream.write_all(format!("GET {path} HTTP/1.0\r\n\r\n").as_bytes()).expect("a request");
        let mut text = String::new();
        stream.read_to_string(&mut text).expect("an answer");
        text.split_once("\r\n\r\n").expect("a body").1.to_owned()
    }

    fn address(&self) -> SocketAddr {
        let url = self.gateway.url.strip_prefix("http://").expect("a URL");
        url.split('/').next().expect("an address").parse().expect("an address")
    }

    fn received(&self) -> u64 {
        let metrics = self.asked("/metrics");
        let line = metrics.lines().find(|line| line.starts_with("esker_gateway_received_objects_total"));
        line.and_then(|line| line.split(' ').nth(1)?.parse().ok()).expect("a number")
    }

    /// Runs a script in the newest revision.
    fn reads(&self, script: &str) -> String {
        let url = self.workshop.published();
        let mut command = self.workshop.world.esker(&["run", &url, "--public-key"]);
        let key = self.workshop.world.path("key.pub");
        command.arg(key).args(["--", "sh", "-ec", &format!("cd /cvmfs/{NAME}; {script}")]);
        printed(&mut command)
    }

    fn tags(&self) -> Vec<Value> {
        let url = self.workshop.published();
        let mut list = self.workshop.world.esker(&["tag", "list", &url, "--json", "--public-key"]);
        let text = printed(list.arg(self.workshop.world.path("key.pub")));
        serde_json::from_str(&text).expect("JSON from esker")
    }

    fn is_sound(&self) {
        let checked = self.workshop.esker(&["check", NAME]);
        assert!(checked.status.success(), "{}", words(&checked));
    }
}

fn write_private(path: &str, text: &str) {
    fs::write(path, text).expect("a file");
    fs::set_permissions(path, fs::Permissions::from_mode(0o600)).expect("a mode");
}

fn serve(workshop: &Workshop) -> Command {
    let (storage, keys, state) = (workshop.home("storage"), workshop.home("keys"), workshop.home("gateway"));
    let places = ["--storage", &storage, "--keys", &keys, "--state", &state];
    workshop.world.esker(&[&["gateway"], &places[..]].concat())
}

/// Lists a tree: path, kind, mode, links, size of files, time, and target.
const LISTING: &str = r"find . -type d -printf '%P %y %m %T@\n' -o -printf '%P %y %m %n %s %T@ %l\n' | sort";

/// What a publisher without keys publishes is what the owner would publish.
#[test]
fn a_publish_through_a_gateway_equals_a_local_one() {
    for person in TestUser::all() {
        let site = Site::new(person);
        let tree = site.workshop.tree();
        site.introduce();
        assert_eq!(site.leases(), serde_json::json!({}), "a dry run leases nothing");
        let first = site.json(&["publish", NAME, &tree, "--to", "/sw/there"]);
        assert_eq!((&first["revision"], &first["published"]), (&1.into(), &true.into()), "{first}");
        assert!(first["tag"].as_str().is_some_and(|tag| tag.starts_with("generic-")), "{first}");
        assert_eq!(first["root"].as_str().map(str::len), Some(40), "{first}");
        let again = site.json(&["publish", NAME, &tree, "--to", "/sw/there"]);
        assert_eq!((&again["revision"], &again["published"]), (&1.into(), &false.into()), "{again}");
        site.workshop.json(&["publish", NAME, &tree, "--to", "/local"]);
        let listing = |folder: &str| site.reads(&format!("cd {folder}; {LISTING}"));
        assert_eq!(listing("sw/there"), listing("local"), "{person:?}");

        person.does(|| fs::write(Path::new(&tree).join("d/e/f"), "changed\n").expect("a file"));
        let options = ["--tag", "v1", "--message", "a change"];
        let changed = site.json(&[&["publish", NAME, &tree, "--to", "/sw/there"][..], &options].concat());
        assert_eq!((&changed["revision"], &changed["tag"]), (&3.into(), &"v1".into()), "{changed}");
        assert_eq!(changed["differences"]["changed"]["files"], 1, "{changed}");
        let tags = site.tags();
        let tag = tags.iter().find(|tag| tag["name"] == "v1").expect("the tag");
        assert_eq!((&tag["revision"], &tag["description"]), (&3.into(), &"a change".into()), "{tag}");

        let archive = site.workshop.home("a.tar");
        let packed = person.command("tar").args(["-C", &tree, "-cf", &archive, "d"]).status();
        assert!(packed.expect("tar").success());
        let ingested =
            site.json(&["ingest", NAME, &archive, "--to", "/packed", "--delete", "/sw/there/large"]);
        assert_eq!((&ingested["revision"], &ingested["published"]), (&4.into(), &true.into()));
        assert_eq!(site.reads("cat packed/d/e/f; ls sw/there"), "changed\nd\n");
        assert_eq!(site.leases(), serde_json::json!({}), "all leases have ended");
        site.is_sound();
    }
}

/// Hooks run where the publisher runs. The gateway starts no program.
#[test]
fn hooks_of_a_publisher_run_with_a_gateway_and_those_of_the_repository_do_not() {
    let site = Site::new(TestUser::ordinary());
    site.introduce();
    let told = site.workshop.home("told");
    let hook = |folder: &str, name: &str, script: &str| {
        let folder = format!("{}/{NAME}/.esker/hooks", site.workshop.home(folder));
        site.workshop.world.person.does(|| {
            fs::create_dir_all(&folder).expect("folders");
            let file = format!("{folder}/{name}");
            fs::write(&file, format!("#!/bin/sh\n{script}\n")).expect("a file");
            fs::set_permissions(file, fs::Permissions::from_mode(0o700)).expect("a mode");
        });
    };
    for (folder, name) in
        [("storage", "publish-before"), ("storage", "publish-after"), ("state", "publish-after")]
    {
        hook(folder, name, &format!("echo {folder} {name} $1 >>{told}"));
    }
    site.json(&["publish", NAME, &site.workshop.tree(), "--to", "/one"]);
    assert_eq!(fs::read_to_string(&told).expect("a file"), format!("state publish-after {NAME}\n"));
    hook("state", "publish-before", "exit 3");
    let said = complaint(&mut site.builder(&["publish", NAME, &site.workshop.tree(), "--to", "/two"]), 1);
    assert!(said.contains("publish-before"), "{said}");
    assert_eq!(site.reads("ls"), "one\n");
}

#[test]
fn tags_are_added_and_removed_and_what_needs_keys_is_refused_by_name() {
    let site = Site::new(TestUser::ordinary());
    site.introduce();
    site.json(&["publish", NAME, &site.workshop.tree()]);
    printed(&mut site.builder(&["tag", "add", NAME, "v1", "--message", "first"]));
    printed(&mut site.builder(&["tag", "add", NAME, "v2", "--revision", "1"]));
    printed(&mut site.builder(&["tag", "remove", NAME, "v2"]));
    let tags = site.tags();
    let names: Vec<&str> = tags.iter().filter_map(|tag| tag["name"].as_str()).collect();
    assert!(names.contains(&"v1") && !names.contains(&"v2"), "{names:?}");
    let twice = complaint(&mut site.builder(&["tag", "add", NAME, "v1"]), 2);
    assert!(twice.contains("v1"), "{twice}");
    let tree = site.workshop.tree();
    site.json(&["publish", NAME, &tree, "--to", "/two"]);
    for refused in [
        &["rollback", NAME, "--to", "1"][..],
        &["tag", "move", NAME, "v1", "--revision", "2"],
        &["repo", "resign", NAME],
        &["publish", NAME, &tree, "--branch", "b", "--from", "v1", "--tag", "t"],
    ] {
        let output = site.builder(refused).output().expect("esker");
        assert!(!output.status.success(), "{refused:?}: {}", words(&output));
        let said = words(&output);
        assert!(said.contains("do this where the repository is published"), "{refused:?}: {said}");
    }
    site.is_sound();
}

/// A transaction on a build node without root and without keys.
#[test]
fn a_transaction_leases_its_directory_and_is_published_by_the_gateway() {
    for person in TestUser::all() {
        let site = Site::new(person);
        site.introduce();
        site.json(&["publish", NAME, &site.workshop.tree(), "--to", "/part"]);
        let script = format!("test \"$PWD\" = /cvmfs/{NAME}/part; echo new >d/new; rm large; exit 7");
        let kept =
            complaint(&mut site.transaction(&[NAME, "/part", "--quiet", "--", "sh", "-ec", &script]), 7);
        assert!(kept.contains("is kept"), "{kept}");
        assert!(site.leases()[format!("{NAME}/part")].is_object(), "{}", site.leases());
        let busy = complaint(
            &mut site.builder(&["publish", NAME, &site.workshop.tree(), "--to", "/part/d", "--wait=0s"]),
            1,
        );
        assert!(busy.contains("is leased to another publisher") && busy.contains("--take-over"), "{busy}");
        let resumed = ["resume", NAME, "--keep", "--quiet", "--", "sh", "-ec", "cat d/new; echo 2 >>d/new"];
        assert_eq!(printed(&mut site.kept(&resumed)), "new\n");
        let report = printed(&mut site.kept(&["publish", NAME, "--json", "--quiet"]));
        let report: Value = serde_json::from_str(&report).expect("a report");
        assert_eq!((&report["revision"], &report["published"]), (&2.into(), &true.into()), "{report}");
        assert_eq!(site.reads("cat part/d/new; ls part"), "new\n2\nd\n");
        assert_eq!(site.leases(), serde_json::json!({}));

        let copy = ["--template", "/part/d", "/part/copy", "--", "sh", "-ec", "echo own >copy/own"];
        let copied = [&[NAME, "/part", "--quiet"][..], &copy].concat();
        printed(&mut site.transaction(&copied));
        assert_eq!(site.reads("cat part/copy/own part/copy/new"), "own\nnew\n2\n");
        let dropped = [NAME, "/part", "--quiet", "--keep", "--", "sh", "-ec", "touch x"];
        printed(&mut site.transaction(&dropped));
        printed(&mut site.kept(&["abort", NAME]));
        assert_eq!(site.leases(), serde_json::json!({}), "the lease is given up");
        let outside = complaint(
            &mut site.transaction(&[NAME, "/part", "--quiet", "--", "sh", "-ec", "touch ../outside"]),
            1,
        );
        assert!(outside.contains("/outside") && outside.contains("Read-only"), "{outside}");
        printed(&mut site.kept(&["abort", NAME]));
        site.is_sound();
    }
}

/// The process that holds an open transaction renews its lease, with which it is published.
#[test]
fn the_lease_of_an_open_transaction_is_renewed_until_it_is_published() {
    let site = Site::new(TestUser::ordinary());
    let (folder, key) = (site.workshop.home("transactions"), site.workshop.home("builder/brief"));
    let begin = ["transaction", "--transactions", &folder, NAME, "--open", "--quiet", "--key", &key];
    let id = printed(&mut site.through(&site.gateway.url, &begin));
    let expires = || site.leases()[format!("{NAME}/")]["expires"].as_str().map(str::to_owned);
    let first = expires().expect("a lease");
    assert!(until(PATIENCE, || expires().expect("it is renewed in time") != first));
    printed(&mut site.kept(&["enter", id.trim_end(), "--", "sh", "-ec", "echo new >new"]));
    printed(&mut site.kept(&["publish", id.trim_end(), "--quiet"]));
    assert_eq!((site.reads("cat new"), site.leases()), ("new\n".to_owned(), serde_json::json!({})));
}

#[test]
fn refusals_of_the_gateway_say_what_to_do() {
    let site = Site::new(TestUser::ordinary());
    let tree = site.workshop.tree();
    let publish = |gateway: &str, key: &str| {
        let key = site.workshop.home(&format!("builder/{key}"));
        site.through(gateway, &["publish", NAME, &tree, "--to", "/sw", "--key", &key])
    };
    let gateway = &site.gateway.url;
    let wrong = complaint(&mut publish(gateway, "wrong"), 2);
    assert!(wrong.contains("does not accept the key: invalid_hmac"), "{wrong}");
    let elsewhere = complaint(&mut publish(gateway, "part"), 2);
    assert!(elsewhere.contains("authorization error: invalid_path"), "{elsewhere}");
    let absent = complaint(&mut publish("http://127.0.0.1:1", "one"), 3);
    assert!(absent.contains("http://127.0.0.1:1") && absent.contains("can't be used"), "{absent}");
    let text = printed(&mut publish(gateway, "one"));
    assert!(text.contains("revision 1"), "{text}");
    // Another publisher changes what a transaction changes.
    let kept = [NAME, "/sw", "--quiet", "--keep", "--", "sh", "-ec", "echo theirs >d/e/f"];
    printed(&mut site.transaction(&kept));
    site.workshop.world.person.does(|| fs::write(Path::new(&tree).join("d/e/f"), "ours\n").expect("a file"));
    site.workshop.json(&["publish", NAME, &tree, "--to", "/sw"]);
    let conflict = complaint(&mut site.kept(&["publish", NAME, "--quiet"]), 1);
    assert!(conflict.contains("/sw/d/e/f"), "{conflict}");
    printed(&mut site.kept(&["abort", NAME]));
    assert_eq!(site.reads("cat sw/d/e/f"), "ours\n");
}

#[test]
fn a_publisher_waits_for_a_leased_directory() {
    let site = Site::new(TestUser::ordinary());
    site.introduce();
    let tree = site.workshop.tree();
    site.json(&["publish", NAME, &tree, "--to", "/sw"]);
    let kept = [NAME, "/sw/d", "--quiet", "--keep", "--", "sh", "-ec", "touch x"];
    printed(&mut site.transaction(&kept));
    let mut waiting = site.builder(&["publish", NAME, &tree, "--to", "/sw", "--wait", "--json"]);
    let waiting = waiting.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().expect("esker");
    let waits = || site.asked("/metrics").contains("\nesker_gateway_waiting 1\n");
    assert!(Pace::PROCESS.until(PATIENCE, waits), "{}", site.asked("/metrics"));
    printed(&mut site.kept(&["abort", NAME]));
    let output: Output = waiting.wait_with_output().expect("its end");
    assert!(output.status.success(), "{}", words(&output));
}

/// Passes connections on, until so many bytes went to the server.
fn narrow(to: SocketAddr, bytes: i64) -> (String, Arc<AtomicI64>) {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).expect("a port");
    let url = format!("http://{}", listener.local_addr().expect("an address"));
    let left = Arc::new(AtomicI64::new(bytes));
    let shared = left.clone();
    std::thread::spawn(move || {
        for client in listener.incoming() {
            let (client, left) = (client.expect("a client"), shared.clone());
            let server = TcpStream::connect(to).expect("the server");
            let (mut from_server, mut to_client) =
                (server.try_clone().expect("a copy"), client.try_clone().expect("a copy"));
            std::thread::spawn(move || std::io::copy(&mut from_server, &mut to_client));
            std::thread::spawn(move || {
                let (mut client, mut server, mut piece) = (client, server, [0; 4096]);
                while let Ok(count @ 1..) = client.read(&mut piece) {
                    if left.fetch_sub(count as i64, Ordering::Relaxed) < 0
                        || server.write_all(&piece[..count]).is_err()
                    {
                        // The rest is read, and goes nowhere.
                        while client.read(&mut piece).is_ok_and(|count| count > 0) {}
                        return;
                    }
                }
            });
        }
    });
    (url, left)
}

/// After a kill in the middle, the next run sends only what the gateway lacks.
#[test]
fn a_killed_publish_is_resumed() {
    let site = Site::new(TestUser::ordinary());
    site.introduce();
    let tree = site.workshop.home("big");
    site.workshop.world.person.does(|| {
        fs::create_dir(&tree).expect("a folder");
        let mut word = 1_u64;
        for file in 0..300 {
            let mut bytes = Vec::with_capacity(200_000);
            while bytes.len() < 200_000 {
                word = word.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
                bytes.extend_from_slice(&word.to_le_bytes());
            }
            fs::write(Path::new(&tree).join(format!("{file}")), bytes).expect("a file");
        }
    });
    let (narrow, _) = narrow(site.address(), 40 << 20);
    let publish = ["publish", NAME, &tree, "--to", "/big", "--quiet"];
    let mut first = site.through(&narrow, &publish);
    let mut first = first.stdout(Stdio::null()).stderr(Stdio::null()).spawn().expect("esker");
    assert!(Pace::PROCESS.until(PATIENCE, || site.received() > 0));
    first.kill().expect("a signal");
    first.wait().expect("its end");
    let before = site.received();
    let busy = complaint(site.through(&site.gateway.url, &publish).arg("--wait=0s"), 1);
    assert!(busy.contains("--take-over"), "{busy}");
    printed(site.through(&site.gateway.url, &publish).arg("--take-over"));
    let all = site.received();
    // 300 files, a catalog, and the empty file of markers; what arrived in a pack that broke off is not counted.
    assert!(before < all && all <= 303, "{before} of {all}");
    assert_eq!(site.reads("ls big | wc -l"), "300\n");
    site.is_sound();
}
