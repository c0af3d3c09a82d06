//! Replicas, made by the program: killed, following, in chains.

use std::fs;
use std::io::{BufRead as _, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use esker_testkit::check::{Findings, check};
use esker_testkit::mirror::Mirror;
use rustix::process::Signal;
use serde_json::Value;

use crate::daemons::signal;
use crate::publishing::{NAME, Workshop};
use crate::served::Served;
use crate::test_env::words;
use crate::test_user::TestUser;

fn make_tree(top: &Path) {
    for directory in ["a", "b", "c"] {
        fs::create_dir_all(top.join(directory)).expect("folders");
        fs::write(top.join(directory).join(".cvmfscatalog"), "").expect("a file");
        for number in 0..20 {
            fs::write(top.join(directory).join(format!("f{number}")), format!("{directory} {number}"))
                .expect("a file");
        }
    }
}

fn published(person: TestUser) -> Workshop {
    let workshop = Workshop::with(person, make_tree);
    workshop.create();
    let output = workshop.esker(&["publish", NAME, &workshop.tree(), "--quiet"]);
    assert!(output.status.success(), "{}", words(&output));
    workshop
}

/// Returns `esker replicate` of a URL into a folder of the user.
fn replicate(workshop: &Workshop, url: &str, to: &str, more: &[&str]) -> Command {
    let (key, to) = (workshop.home(&format!("keys/{NAME}.pub")), workshop.home(to));
    let line = ["replicate", url, "--to", &to, "--public-key", &key, "--quiet", "--json"];
    workshop.world.esker(&[&line, more].concat())
}

fn replicated(workshop: &Workshop, url: &str, to: &str, more: &[&str]) -> Value {
    let output = replicate(workshop, url, to, more).output().expect("running esker");
    assert!(output.status.success(), "{}", words(&output));
    let value: Value = serde_json::from_slice(&output.stdout).expect("JSON");
    value["result"].clone()
}

fn findings(workshop: &Workshop, to: &str) -> Findings {
    let public = fs::read_to_string(workshop.home(&format!("keys/{NAME}.pub"))).expect("the key");
    check(&PathBuf::from(workshop.home(to)).join(NAME), NAME, &public)
}

/// Killed after any request, a replica has its old head or none; the next run goes on.
#[test]
fn a_killed_replication_leaves_a_whole_replica_and_is_continued() {
    let workshop = published(TestUser::ordinary());
    let mirror = Mirror::serve(workshop.home("storage"));
    let url = mirror.url(NAME);
    let mut kills = 0;
    for round in 0..2 {
        for requests in [1, 3, 5, 9, 20, 40] {
            mirror.forget();
            let mut child =
                replicate(&workshop, &url, "copy", &[]).stdout(Stdio::null()).spawn().expect("esker");
            let ended = until_requests(&mirror, &mut child, requests);
            if !ended {
                kills += 1;
                signal(child.id(), Signal::KILL);
            }
            child.wait().expect("its end");
            if Path::new(&workshop.home("copy")).join(NAME).join(".cvmfspublished").exists() {
                findings(&workshop, "copy").assert_whole(&format!("round {round}, {requests} requests"));
            }
        }
        let done = replicated(&workshop, &url, "copy", &[]);
        assert_eq!(done["revision"], round + 1, "{done}");
        let found = findings(&workshop, "copy");
        found.assert_whole("after the last run");
        assert_eq!(found.revision, round + 1);
        let top = PathBuf::from(workshop.tree());
        workshop.world.person.does(|| {
            for number in 0..20 {
                fs::write(top.join(format!("b/new{number}")), format!("round {round} {number}"))
                    .expect("a file");
            }
        });
        let output = workshop.esker(&["publish", NAME, &workshop.tree(), "--quiet"]);
        assert!(output.status.success(), "{}", words(&output));
    }
    assert!(kills > 3, "{kills}");
}

/// Waits until so many requests have arrived; true if the program ended before.
fn until_requests(mirror: &Mirror, child: &mut Child, requests: usize) -> bool {
    let mut ended = false;
    esker_testkit::waiting::until(crate::test_env::PATIENCE, || {
        ended = child.try_wait().expect("its state").is_some();
        ended || mirror.count(|_| true) >= requests
    });
    ended
}

/// A published revision is on a replica at once, and on the replica of it.
#[test]
fn a_followed_revision_arrives_at_a_replica_and_at_its_replica() {
    let workshop = published(TestUser::ordinary());
    let first = Served::start_as(workshop.world.person, Path::new(&workshop.home("storage")));
    let follow = ["--follow", "--every", "2h"];
    let start = |url: &str, to: &str| {
        let mut child = replicate(&workshop, url, to, &follow).stdout(Stdio::piped()).spawn().expect("esker");
        let output = BufReader::new(child.stdout.take().expect("its output"));
        (child, output.lines())
    };
    let until = |lines: &mut std::io::Lines<_>, revision: u64| loop {
        let line: String = lines.next().expect("a line").expect("a line");
        let value: Value = serde_json::from_str(&line).expect("JSON");
        if value["result"]["revision"].as_u64() >= Some(revision) {
            return;
        }
    };
    let (mut one, mut of_one) = start(&first.url(NAME), "one");
    until(&mut of_one, 1);
    let second = Served::start_as(workshop.world.person, Path::new(&workshop.home("one")));
    let (mut two, mut of_two) = start(&second.url(NAME), "two");
    until(&mut of_two, 1);
    let file = PathBuf::from(workshop.tree()).join("a/new");
    workshop.world.person.does(|| fs::write(file, "new").expect("a file"));
    let output = workshop.esker(&["publish", NAME, &workshop.tree(), "--quiet"]);
    assert!(output.status.success(), "{}", words(&output));
    until(&mut of_one, 2);
    until(&mut of_two, 2);
    for (child, to) in [(&mut one, "one"), (&mut two, "two")] {
        signal(child.id(), Signal::TERM);
        assert!(child.wait().expect("its end").success(), "{to}");
        findings(&workshop, to).assert_whole(to);
    }
}

/// A replica is described with its lag, checked and collected by its name alone, and never published to.
#[test]
fn a_replica_is_described_checked_and_collected_without_keys() {
    let workshop = published(TestUser::ordinary());
    let mirror = Mirror::serve(workshop.home("storage"));
    replicated(&workshop, &mirror.url(NAME), "copy", &["--revisions", "0"]);
    let copy = workshop.home("copy");
    let keys = workshop.home("others");
    // A key of another repository under the name of this one does not matter: the replica has its own.
    let (foreign, named) = (workshop.world.path("key.pub"), format!("{keys}/{NAME}.pub"));
    workshop.world.person.does(|| {
        fs::create_dir(&keys).expect("a folder");
        fs::copy(&foreign, &named).expect("a key");
    });
    let run = |arguments: &[&str]| {
        let line = [arguments, &["--storage", &copy, "--keys", &keys]].concat();
        workshop.world.esker(&line).output().expect("running esker")
    };
    let file = PathBuf::from(workshop.tree()).join("a/f1");
    workshop.world.person.does(|| fs::write(file, "changed").expect("a file"));
    let output = workshop.esker(&["publish", NAME, &workshop.tree(), "--quiet"]);
    assert!(output.status.success(), "{}", words(&output));
    let info = run(&["repo", "info", NAME, "--online", "--json"]);
    let info: Value = serde_json::from_slice(&info.stdout).expect("JSON");
    let replica = &info["replica"];
    assert_eq!((&replica["behind"], &replica["online"]), (&1.into(), &true.into()), "{info:#}");
    assert_eq!(info["signatures_verified"], true, "{info:#}");
    // By name: servers, keys and selection are remembered.
    let again = workshop.world.esker(&["replicate", NAME, "--to", &copy, "--quiet", "--json"]).output();
    let again = again.expect("running esker");
    assert!(again.status.success(), "{}", words(&again));
    let info = run(&["repo", "info", NAME, "--json"]);
    let info: Value = serde_json::from_slice(&info.stdout).expect("JSON");
    assert_eq!((&info["revision"], &info["replica"]["behind"]), (&2.into(), &0.into()), "{info:#}");
    assert_eq!(info["replica"]["revisions"], 0, "{info:#}");
    for command in [&["check", NAME, "--data"][..], &["collect", NAME, "--keep-last", "0", "--grace", "0"]] {
        let output = run(command);
        assert!(output.status.success(), "{}", words(&output));
    }
    findings(&workshop, "copy").assert_whole("after the collect");
    let output = run(&["publish", NAME, &workshop.tree()]);
    assert_eq!(output.status.code(), Some(2), "{}", words(&output));
    assert!(words(&output).contains("replica"), "{}", words(&output));
}

/// Several repositories are copied by one command, and one that fails does not hold up the others.
#[test]
fn several_repositories_are_replicated_at_once() {
    let workshop = published(TestUser::ordinary());
    let mirror = Mirror::serve(workshop.home("storage"));
    let output =
        replicate(&workshop, &mirror.url(NAME), "copy", &[&mirror.url("other.example.org")]).output();
    let output = output.expect("running esker");
    assert!(!output.status.success(), "{}", words(&output));
    assert!(words(&output).contains("1 of 2 repositories"), "{}", words(&output));
    findings(&workshop, "copy").assert_whole("the one that is there");
}
