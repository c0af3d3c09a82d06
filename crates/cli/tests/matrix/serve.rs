//! `esker serve`: from a folder to a client and back.

use std::io::{BufRead, BufReader, Read};
use std::net::TcpListener;
use std::path::Path;
use std::process::{Command, Stdio};

use esker_testkit::fixture;
use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;

use crate::person::Person;
use crate::world::{World, words};

/// Whoever runs the tests serves, because the fixture's folder is theirs.
fn serve(folder: &Path, options: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_esker"));
    command.arg("serve").arg(folder).args(options).env_clear().env("HOME", "/").stdout(Stdio::piped());
    command
}

#[test]
fn a_served_repository_reads_as_published_and_the_server_stops_when_told() {
    let world = World::new(Person::ordinary(), fixture::FULL);
    for signal in [Signal::TERM, Signal::INT] {
        let mut server = serve(&world.repository.path(), &["--listen", "127.0.0.1:0", "--json"])
            .spawn()
            .expect("esker serve");
        let mut lines = BufReader::new(server.stdout.take().expect("its output"));
        let mut line = String::new();
        lines.read_line(&mut line).expect("a line");
        let ready: Value = serde_json::from_str(&line).expect("JSON");
        assert_eq!(ready["event"], "ready");
        let url = ready["repositories"][0]["url"].as_str().expect("a URL");
        assert!(url.ends_with("/cvmfs/full.test"), "{ready}");

        let mut find = world.esker(&["find", url, "--json"]);
        find.arg("--public-key").arg(world.path("key.pub"));
        // A cache of its own, so that every catalog has to be fetched.
        find.arg("--cache").arg(world.path("home").join(format!("cache-{}", signal.as_raw())));
        let found = find.output().expect("running esker");
        assert!(found.status.success(), "{}", words(&found));
        let found: Value = serde_json::from_slice(&found.stdout).expect("JSON");
        let listed = world.fixture().listing("v3").len();
        assert!(found.as_array().is_some_and(|found| found.len().abs_diff(listed) <= 1), "{listed} entries");

        let pid = Pid::from_raw(server.id().cast_signed()).expect("a process");
        kill_process(pid, signal).expect("a signal");
        line.clear();
        lines.read_to_string(&mut line).expect("the rest");
        let stopped: Value = serde_json::from_str(&line).expect("JSON");
        assert_eq!((&stopped["event"], &stopped["cut"]), (&"stopped".into(), &0.into()));
        assert!(stopped["requests"].as_u64() > Some(4), "{stopped}");
        assert!(server.wait().expect("its end").success());
    }
}

#[test]
fn what_can_not_be_served_is_told() {
    let repository = fixture::RMD.unpack();
    let taken = TcpListener::bind("127.0.0.1:0").expect("a port");
    let address = taken.local_addr().expect("an address").to_string();
    let output = serve(&repository.path(), &["--listen", &address]).output().expect("running esker");
    assert_eq!(output.status.code(), Some(3), "{}", words(&output));
    assert!(words(&output).contains(&address) && words(&output).contains("--listen"), "{}", words(&output));
    let output = serve(Path::new("/no/such/folder"), &[]).output().expect("running esker");
    assert_eq!(output.status.code(), Some(2), "{}", words(&output));
    assert!(words(&output).contains("/no/such/folder"), "{}", words(&output));
    let output = serve(&repository.path(), &["--listen", "nonsense"]).output().expect("running esker");
    assert_eq!(output.status.code(), Some(2), "{}", words(&output));
}
