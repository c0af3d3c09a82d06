//! Waits for servers that never answer end after an interruption.

use std::process::Command;
use std::time::{Duration, Instant};

use esker_store::{Callback, Engine, EngineOptions, Fetch, StoreError, connect, interrupt};
use esker_testkit::mirror::{Fault, Mirror};
use esker_testkit::s3::{S3Fault, S3Server};

use crate::buckets::{HEAD, object, open, settings};

/// Variable that tells the test that it is the process to interrupt: an interruption is for good.
const INTERRUPTED: &str = "ESKER_TEST_INTERRUPTED";
/// Much longer than a wait may go on.
const NEVER: Duration = Duration::from_secs(600);

fn wait_for_servers() {
    let server = S3Server::start();
    let rule = server.fault(|_| true, S3Fault::Delay(NEVER));
    let web = tempfile::tempdir().unwrap();
    let mirror = Mirror::serve(web.path());
    let silent = mirror.fault(|_| true, Fault::NoAnswer);
    let sink = open("s3://bucket/cvmfs/a.test", &settings(&server));
    let engine = Engine::start(EngineOptions::default()).unwrap();
    let source = connect(&engine, mirror.url("a.test").as_str()).unwrap();
    let begun = Instant::now();
    interrupt();
    let (name, bytes) = object(3);
    let waits: [&dyn Fn() -> Result<(), StoreError>; 6] = [
        &|| sink.put(&name, &bytes).and_then(|_| sink.flush()),
        &|| sink.prepare(),
        &|| sink.read(HEAD, 1 << 20).map(drop),
        &|| sink.len_of(&name).map(drop),
        &|| sink.list(&mut |_| ()),
        &|| Callback::wait(|done| source.fetch(Fetch::new("x", "x", 1 << 20), done)).map(drop),
    ];
    for (number, wait) in waits.iter().enumerate() {
        let error = wait().unwrap_err();
        assert!(error.is_interruption(), "wait {number}: {error:?}");
    }
    rule.assert_hit();
    silent.assert_hit();
    drop((sink, source, engine));
    assert!(begun.elapsed() < Duration::from_secs(5), "{:?}", begun.elapsed());
    // The threads of the servers wait on.
    std::process::exit(0);
}

/// > U14: A command that publishes, replicates, checks or collects ends soon after SIGTERM or Ctrl-C, also while a server accepts its requests and never answers, and the next one uses what was stored.
#[test]
fn every_wait_for_a_silent_server_ends_soon_after_an_interruption() {
    if std::env::var_os(INTERRUPTED).is_some() {
        return wait_for_servers();
    }
    let test = "interruption::every_wait_for_a_silent_server_ends_soon_after_an_interruption";
    let mut child = Command::new(std::env::current_exe().unwrap());
    let status = child.args(["--exact", test, "--nocapture"]).env(INTERRUPTED, "1").status().unwrap();
    assert!(status.success(), "{status}");
}
