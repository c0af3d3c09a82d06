//! `esker gateway`: its keys, its operators and its end.

mod attacks;
mod station;

use std::fs;
use std::io::Read as _;
use std::path::Path;

use esker_testkit::mirror::Mirror;
use esker_testkit::waiting::Pace;
use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;

use self::station::{Key, Running, Station};
use crate::attacks::{Daemon, tried};
use crate::publishing::NAME;
use crate::test_env::{PATIENCE, printed, words};
use crate::test_user::TestUser;

fn signal(running: &Running, signal: Signal) {
    let pid = Pid::from_raw(running.child.id().cast_signed()).expect("a process");
    kill_process(pid, signal).expect("a signal");
}

/// Waits until a request with a key is answered as expected.
#[track_caller]
fn wait_for(running: &Running, key: &Key, is_valid: bool) {
    let path = format!("{NAME}/waited-for");
    let answered = || {
        let answer = running.lease(key, &path);
        (answer["reason"] != "invalid_hmac").then_some(())
    };
    let settled = || if is_valid { answered() } else { answered().is_none().then_some(()) };
    assert!(Pace::LOOK.until_some(PATIENCE, settled).is_some(), "key {}", key.name);
}

#[test]
fn a_gateway_publishes_confined_as_the_owner_of_the_repositories() {
    for person in TestUser::all() {
        let station = Station::new(person);
        let key = station.key("build", &[&format!("{NAME}/two")]);
        let running = station.start(&[]);
        for thread in fs::read_dir(format!("/proc/{}/task", running.child.id())).expect("threads") {
            let status =
                fs::read_to_string(thread.expect("a thread").path().join("status")).expect("a status");
            for line in ["Seccomp:\t2", "NoNewPrivs:\t1", "CapPrm:\t0000000000000000"] {
                assert!(status.contains(line), "{line}: {status}");
            }
            assert!(status.contains(&format!("Uid:\t{}\t", person.uid)), "{status}");
        }
        // Only root traces it.
        if TestUser::root().is_some() {
            let daemon = Daemon { name: "gateway", process: running.child.id() };
            let found = tried(&daemon, esker_confine::probe().landlock.is_some());
            assert!(found.is_empty(), "as user {}: {found:?}", person.uid);
        }
        let token = running.token(&key, &format!("{NAME}/two"));
        let (root, objects) = station.build("two/file", "second\n");
        assert_eq!(running.send(&key, &token, &objects)["status"], "ok");
        let answer = running.commit(&key, &token, &root);
        assert_eq!((&answer["status"], &answer["final_revision"]), (&"ok".into(), &2.into()), "{answer}");
        assert_eq!(station.file("/two/file"), "second\n");
        assert_eq!(station.file("/one/file"), "first\n");
        let checked = station.workshop.esker(&["check", NAME, "--data"]);
        assert!(checked.status.success(), "{}", words(&checked));
    }
}

#[test]
fn keys_change_while_the_gateway_runs() {
    let station = Station::new(TestUser::ordinary());
    let first = station.key("build", &[&format!("{NAME}/")]);
    let running = station.start(&[]);
    wait_for(&running, &first, true);
    let rotated = |name: &str, keep: &str| {
        let file = station.workshop.home(name);
        let said = station.operator(&["key", "rotate", "build", "--keep-old", keep, "--output", &file]);
        (Key::read(Path::new(&file)), said)
    };
    let (second, said) = rotated("second.gw", "1h");
    assert!(said.contains("the old secret is valid until 20"), "{said}");
    wait_for(&running, &second, true);
    wait_for(&running, &first, true);
    let (third, said) = rotated("third.gw", "0s");
    assert!(said.contains("the old secret is not valid any more"), "{said}");
    signal(&running, Signal::HUP);
    wait_for(&running, &third, true);
    wait_for(&running, &second, false);
    let list: Value = serde_json::from_str(&station.operator(&["key", "list", "--json"])).expect("JSON");
    assert_eq!(list[0]["grants"], serde_json::json!([format!("{NAME}/")]));
    // Keys that can't be read leave the others as they are.
    let broken = station.workshop.home("gateway/publishers/broken.json");
    fs::write(&broken, "{").expect("a file");
    signal(&running, Signal::HUP);
    wait_for(&running, &third, true);
    fs::remove_file(broken).expect("its end");
    station.operator(&["key", "remove", "build"]);
    wait_for(&running, &third, false);
}

/// Storage and keys of a new repository are in folders that the gateway knows, so it needs no restart.
#[test]
fn a_repository_that_is_new_to_a_running_gateway_is_published_to() {
    const SECOND: &str = "second.test";
    for person in TestUser::all() {
        let station = Station::new(person);
        station.key("build", &[&format!("{NAME}/")]);
        let running = station.start(&[]);
        let created = station.workshop.esker(&["repo", "create", SECOND]);
        assert!(created.status.success(), "{}", words(&created));
        let key = station.key("second", &[&format!("{SECOND}/")]);
        let leased = || running.lease(&key, &format!("{SECOND}/waited-for"))["status"] == "ok";
        assert!(Pace::LOOK.until(PATIENCE, leased), "as user {}", person.uid);
        let web = Mirror::serve(station.workshop.home("storage"));
        let [state, file, public] =
            ["state", "second.gw", "keys/second.test.pub"].map(|name| station.workshop.home(name));
        let (gateway, server) = (format!("http://{}", running.address), web.url(SECOND));
        let named = ["--gateway", &gateway, "--key", &file, "--server", &server, "--public-key", &public];
        let take_over = ["--take-over", "--storage", &state];
        let publish = ["publish", SECOND, &station.workshop.tree()];
        printed(&mut station.workshop.world.esker(&[&publish[..], &named, &take_over].concat()));
        let shown = station.workshop.esker(&["cat", SECOND, "/one/file"]);
        assert_eq!(shown.stdout, b"first\n", "{}", words(&shown));
    }
}

#[test]
fn operators_list_and_end_leases() {
    let station = Station::new(TestUser::ordinary());
    let key = station.key("build", &[&format!("{NAME}/")]);
    station.key("boss", &["--operator"]);
    let running = station.start(&[]);
    let ask = |arguments: &[&str], key: &str| {
        let (url, file) = (format!("http://{}", running.address), station.workshop.home(key));
        let arguments =
            [&["gateway", "lease"], arguments, &["--gateway", &url, "--key", &file, "--json"]].concat();
        station.workshop.world.esker(&arguments).output().expect("running esker")
    };
    let json = |arguments: &[&str]| {
        let output = ask(arguments, "boss.gw");
        assert!(output.status.success(), "{}", words(&output));
        serde_json::from_slice::<Value>(&output.stdout).expect("JSON")
    };
    let token = running.token(&key, &format!("{NAME}/a b"));
    running.token(&key, &format!("{NAME}/c"));
    let list = json(&["list"]);
    assert_eq!(
        (&list["leases"][0]["path"], &list["leases"][0]["key_id"]),
        (&format!("{NAME}/a b").into(), &"build".into())
    );
    assert_eq!((list["leases"].as_array().map(Vec::len), &list["waiting"]), (Some(2), &0.into()));
    assert!(!list.to_string().contains(&token), "{list}");
    let refused = ask(&["list"], "build.gw");
    assert!(!refused.status.success() && words(&refused).contains("no_admin_key"), "{}", words(&refused));
    assert_eq!(json(&["end", &format!("{NAME}/a b")])["ended"], 1);
    assert_eq!(json(&["list"])["leases"].as_array().map(Vec::len), Some(1));
    assert_eq!(running.send(&key, &token, &Vec::new())["reason"], "invalid lease");
    let log = json(&["log"]);
    assert_eq!(
        (&log[0]["event"], &log[1]["event"]),
        (&"ended by an operator".into(), &"acquired".into()),
        "{log}"
    );
}

#[test]
fn leases_outlive_a_gateway_that_is_stopped_or_killed() {
    let station = Station::new(TestUser::ordinary());
    let key = station.key("build", &[&format!("{NAME}/")]);
    let mut running = station.start(&[]);
    let token = running.token(&key, &format!("{NAME}/two"));
    let (root, objects) = station.build("two/file", "second\n");
    for end in [Signal::TERM, Signal::KILL] {
        signal(&running, end);
        assert_eq!(running.child.wait().expect("its end").success(), end == Signal::TERM);
        let mut said = String::new();
        running.child.stdout.take().expect("its output").read_to_string(&mut said).expect("text");
        assert_eq!(said.contains(r#""event":"stopped""#), end == Signal::TERM, "{said}");
        running = station.start(&[]);
        assert_eq!(running.send(&key, &token, &objects)["status"], "ok");
    }
    let answer = running.commit(&key, &token, &root);
    assert_eq!(answer["final_revision"], 2, "{answer}");
    // The lost answer to a commit is had again, and nothing is published twice.
    signal(&running, Signal::KILL);
    let running = station.start(&[]);
    assert_eq!(running.commit(&key, &token, &root), answer);
}
