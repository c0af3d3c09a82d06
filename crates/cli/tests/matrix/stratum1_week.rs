//! The week of the administrator of a Stratum 1 with replicas on a disk and in object stores, with what stopped or misled them.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};

use esker_testkit::s3::BUCKET;
use esker_testkit::waiting::until;
use rustix::process::Signal;
use serde_json::Value;

use crate::bucket_server::BucketServer;
use crate::daemons::signal;
use crate::publishing::{NAME, Workshop};
use crate::serve_operation::get;
use crate::served::Served;
use crate::test_env::{PATIENCE, words};
use crate::test_user::TestUser;

const SECOND: &str = "second.test";
const THIRD: &str = "third.test";

#[test]
fn an_administrators_week_of_replicas_has_no_dead_end() {
    let mut week = Week::new();
    week.copy_what_the_server_lists();
    week.copy_groups_and_paths();
    week.see_failures_and_wrong_keys();
    week.go_on_with_a_repository_that_was_made_anew();
    week.copy_into_object_stores();
    week.follow_what_is_added_later();
    week.collect_and_check();
}

struct Week {
    workshop: Workshop,
    /// Server of the publisher.
    server: Served,
}

#[track_caller]
fn done(output: &Output) -> String {
    assert!(output.status.success(), "{}", words(output));
    words(output)
}

#[track_caller]
fn refused(output: &Output, code: i32) -> String {
    assert_eq!(output.status.code(), Some(code), "{}", words(output));
    words(output)
}

/// Returns the files and folders below a folder that other users can't read.
fn unreadable(folder: &Path) -> Vec<PathBuf> {
    use std::os::unix::fs::PermissionsExt as _;
    let mut closed = Vec::new();
    for entry in fs::read_dir(folder).expect("a folder") {
        let path = entry.expect("an entry").path();
        let facts = fs::symlink_metadata(&path).expect("its facts");
        let needed = if facts.is_dir() { 0o555 } else { 0o444 };
        if facts.permissions().mode() & needed != needed {
            closed.push(path);
        } else if facts.is_dir() {
            closed.extend(unreadable(&path));
        }
    }
    closed
}

impl Week {
    /// Makes two repositories with a directory that has a catalog of its own, and serves them.
    fn new() -> Self {
        let workshop = Workshop::with(TestUser::ordinary(), |tree| {
            fs::create_dir_all(tree.join("part")).expect("folders");
            fs::write(tree.join("part/.cvmfscatalog"), "").expect("a file");
            fs::write(tree.join("part/file"), "a part\n").expect("a file");
            fs::write(tree.join("file"), "one\n").expect("a file");
        });
        let storage = workshop.home("storage");
        for name in [NAME, SECOND] {
            done(&workshop.esker(&["repo", "create", name]));
            workshop.json(&["publish", name, &workshop.tree()]);
        }
        let server = Served::start_as(workshop.world.person, Path::new(&storage));
        Self { workshop, server }
    }

    fn home(&self, name: &str) -> String {
        self.workshop.home(name)
    }

    /// Returns the address of all repositories of the publisher.
    fn base(&self) -> String {
        format!("{}/cvmfs/", self.server.url)
    }

    /// Changes a file of a repository, publishes it, and returns the revision.
    fn publish(&self, name: &str, content: &str) -> Value {
        let file = Path::new(&self.workshop.tree()).join("file");
        self.workshop.world.person.does(|| fs::write(file, content).expect("a file"));
        self.workshop.json(&["publish", name, &self.workshop.tree()])["revision"].clone()
    }

    /// Returns a command on the machine of the replicas.
    fn command(&self, arguments: &[&str]) -> Command {
        let mut command = self.workshop.world.esker(arguments);
        command.env("ESKER_STORAGE", self.home("copies"));
        command.env("AWS_ACCESS_KEY_ID", "key").env("AWS_SECRET_ACCESS_KEY", "secret");
        command
    }

    fn esker(&self, arguments: &[&str]) -> Output {
        self.command(arguments).output().expect("running esker")
    }

    /// Replicates into the folder of replicas.
    fn replicate(&self, arguments: &[&str]) -> Output {
        let copies = self.home("copies");
        self.esker(&[&["replicate"], arguments, &["--to", &copies, "--quiet"]].concat())
    }

    /// Returns what `repo list` has about a replica.
    #[track_caller]
    fn listed(&self, name: &str) -> Value {
        let output = self.esker(&["repo", "list", "--storage", &self.home("copies"), "--json"]);
        done(&output);
        let listed: Value = serde_json::from_slice(&output.stdout).expect("JSON");
        let all = listed.as_array().expect("an array");
        all.iter().find(|one| one["name"] == name).cloned().unwrap_or_default()
    }

    fn copy_what_the_server_lists(&self) {
        let (base, keys) = (self.base(), self.home("keys"));
        // A mistyped name leaves nothing behind.
        let mistyped = format!("{base}mode.test");
        let said = refused(&self.replicate(&[&mistyped, "--public-key", &format!("{keys}/{NAME}.pub")]), 2);
        assert!(said.contains(&format!("the server {mistyped} has no repository mode.test")), "{said}");
        assert!(!Path::new(&self.home("copies")).join("mode.test").exists());

        let some = format!("{base}sec*");
        done(&self.replicate(&[&some, "--public-key", &keys, "--reserve", "1M"]));
        assert_eq!((self.listed(NAME), &self.listed(SECOND)["revision"]), (Value::Null, &1.into()));
        done(&self.replicate(&[&base, "--public-key", &keys]));
        for name in [NAME, SECOND] {
            let listed = self.listed(name);
            let replica = &listed["replica"];
            assert_eq!(replica["servers"], format!("{base}{name}"), "{listed}");
            assert_eq!((&replica["behind"], &replica["failure"]), (&0.into(), &Value::Null), "{listed}");
            assert!(replica["succeeded"].is_i64(), "{listed}");
        }
        // Whatever the umask, a server that is another user reads what was copied.
        let strict = self.home("strict");
        let mut shell = self.workshop.world.person.command("/bin/sh");
        let url = format!("{base}{NAME}");
        let copied = self.command(&["replicate", &url, "--public-key", &keys, "--to", &strict]);
        shell.args(["-c", "umask 077; exec \"$@\"", "sh"]).arg(copied.get_program()).args(copied.get_args());
        shell.env_clear().env("HOME", self.workshop.world.path("home")).current_dir("/");
        done(&shell.output().expect("running esker"));
        let closed = unreadable(&Path::new(&strict).join(NAME));
        // State and lock are nothing for clients.
        let is_private = |path: &PathBuf| path.ends_with(".esker") || path.ends_with("txn/esker.lock");
        assert!(closed.iter().all(is_private), "{closed:?}");
    }

    fn copy_groups_and_paths(&self) {
        let (base, keys, groups) = (self.base(), self.home("keys"), self.home("groups"));
        let text = format!("# ours\n{base}{NAME} --path /part\n\n{base}sec*  # others\n");
        fs::write(&groups, text).expect("a file");
        let said = refused(&self.replicate(&["--groups", &groups, "--public-key", &keys]), 2);
        assert!(said.contains("has all paths of the repository"), "{said}");
        fs::write(&groups, format!("{base}{NAME}\n{base}sec*\n")).expect("a file");
        done(&self.replicate(&["--groups", &groups]));
        fs::write(&groups, "--path /a\n").expect("a file");
        assert!(refused(&self.replicate(&["--groups", &groups]), 2).contains("line 1"));
        // A path that is not there is an error, and leaves nothing behind.
        let part = self.home("part");
        let of_part = |path: &str| {
            let url = format!("{base}{NAME}");
            self.esker(&["replicate", &url, "--public-key", &keys, "--to", &part, "--path", path, "--quiet"])
        };
        let said = refused(&of_part("/absent"), 2);
        assert!(said.contains("/absent"), "{said}");
        done(&of_part("/part"));
    }

    fn see_failures_and_wrong_keys(&mut self) {
        let storage = self.home("storage");
        let person = self.workshop.world.person;
        // The server is away, and comes back at another address.
        self.server = Served::start_as(person, Path::new(&storage));
        refused(&self.replicate(&["--all"]), 3);
        let shown = self.esker(&["repo", "list", "--storage", &self.home("copies")]);
        let said = done(&shown);
        assert!(said.contains("last success") && said.contains("failed"), "{said}");
        done(&self.replicate(&[&self.base()]));
        assert_eq!(self.listed(NAME)["replica"]["failure"], Value::Null);
        let replica = format!("{}/{NAME}", self.home("copies"));
        done(&self.esker(&["repo", "info", &replica]));
        let other = self.home(&format!("keys/{SECOND}.pub"));
        let said = refused(&self.esker(&["repo", "info", &replica, "--public-key", &other]), 4);
        assert!(said.contains("wrong"), "{said}");
    }

    fn go_on_with_a_repository_that_was_made_anew(&self) {
        self.publish(SECOND, "before\n");
        done(&self.replicate(&[SECOND]));
        done(&self.workshop.esker(&["repo", "remove", SECOND, "--yes", "--keep-keys"]));
        done(&self.workshop.esker(&["repo", "create", SECOND]));
        self.publish(SECOND, "anew\n");
        let said = refused(&self.replicate(&[SECOND]), 4);
        assert!(said.contains(&format!("`esker replicate {SECOND} --forget-history`")), "{said}");
        done(&self.replicate(&[SECOND, "--forget-history"]));
        assert_eq!(self.listed(SECOND)["revision"], 1);
    }

    /// Two stores at other addresses than the environment says, one of which goes away.
    fn copy_into_object_stores(&self) {
        let mut stores = [BucketServer::start_in_memory(), BucketServer::start_in_memory()];
        let (url, keys, to) =
            (format!("{}{NAME}", self.base()), self.home("keys"), format!("s3://{BUCKET}/x"));
        for (number, store) in stores.iter().enumerate() {
            let mut command =
                self.command(&["replicate", &url, "--public-key", &keys, "--to", &to, "--quiet"]);
            command.args(["--endpoint", &store.endpoint()]).env("AWS_ENDPOINT_URL", "http://127.0.0.1:1");
            // Each has the replica of a machine.
            command.env("ESKER_STORAGE", self.home(&format!("machine{number}")));
            done(&command.output().expect("running esker"));
        }
        let [store, other] = &mut stores;
        let serve = |store: &BucketServer| {
            let (place, cache) = (format!("{to}/{NAME}"), self.home("serve-cache"));
            let mut serve =
                self.command(&["serve", &place, "--endpoint", &store.endpoint(), "--cache", &cache]);
            Served::by(serve.args(["--head-age", "0s"]))
        };
        for store in [&*other, &*store] {
            let served = serve(store);
            let key = format!("{keys}/{NAME}.pub");
            let read =
                self.esker(&["cat", &format!("{}:/part/file", served.url(NAME)), "--public-key", &key]);
            assert_eq!(read.stdout, b"a part\n", "{}", words(&read));
        }
        let served = serve(store);
        let address = served.url.trim_start_matches("http://").to_owned();
        let head = format!("/cvmfs/{NAME}/.cvmfspublished");
        assert!(get(&address, "/readyz").starts_with("HTTP/1.1 200"));
        store.kill();
        // Clients get the head that is known, and the server says that its storage is gone.
        assert!(get(&address, &head).starts_with("HTTP/1.1 200"));
        let gone = format!("esker_serve_upstream_up{{repository=\"{NAME}\"}} 0");
        let says_so = || get(&address, "/metrics").contains(&gone);
        assert!(until(PATIENCE, says_so), "{}", get(&address, "/metrics"));
    }

    fn follow_what_is_added_later(&self) {
        let (copies, keys) = (self.home("copies"), self.home("keys"));
        let mut follow = self.command(&["replicate", "--all", "--follow", "--every", "1s", "--to", &copies]);
        let follower = follow.stdout(Stdio::null()).stderr(Stdio::piped()).spawn().expect("esker");
        done(&self.workshop.esker(&["repo", "create", THIRD]));
        self.publish(THIRD, "one\n");
        done(&self.replicate(&[&format!("{}{THIRD}", self.base()), "--public-key", &keys]));
        self.publish(THIRD, "two\n");
        let is_here = || self.listed(THIRD)["revision"] == 2;
        assert!(until(PATIENCE, is_here), "the replica that was added is not followed");
        signal(follower.id(), Signal::TERM);
        let output = follower.wait_with_output().expect("its end");
        let said = words(&output);
        assert!(output.status.success() && said.contains(&format!("{THIRD}: revision 1 → 2")), "{said}");
    }

    /// A collect beside a run that renews the same replicas.
    fn collect_and_check(&self) {
        let copies = self.home("copies");
        self.publish(NAME, "the last\n");
        let mut collect =
            self.command(&["collect", "--all", "--grace", "0", "--quiet", "--storage", &copies]);
        let collecting = collect.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().expect("esker");
        done(&self.replicate(&["--all"]));
        done(&collecting.wait_with_output().expect("its end"));
        assert_eq!(self.listed(NAME)["replica"]["behind"], 0);
        done(&self.esker(&["check", "--all", "--data", "--quiet", "--storage", &copies]));
    }
}
