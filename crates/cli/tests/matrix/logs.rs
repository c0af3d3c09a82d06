//! Formats and levels of the log.

use std::fs;

use esker_testkit::fixture;
use serde_json::Value;

use crate::test_env::{TestEnv, complaint, words};
use crate::test_user::TestUser;

/// A daemon inherits the format from the command line and the levels from the environment.
#[test]
fn log_lines_have_the_chosen_format_and_levels() {
    let world = TestEnv::new(TestUser::ordinary(), fixture::FULL);
    let key = world.path("key.pub");
    let mount = |levels: &str| {
        let mut command = world.esker(&["mount", &world.url()]);
        command.arg(world.mountpoint()).arg("--public-key").arg(&key).arg("--cache").arg(world.cache());
        command.args(["--log-format", "json"]).env("ESKER_LOG", levels).env("ESKER_LOG_FORMAT", "line");
        command
    };
    let output = mount("store=debug,error").output().expect("running esker");
    assert!(output.status.success(), "{}", words(&output));
    let mounted = world.mounted();
    mounted.does(|| fs::read(mounted.path("data/hex.txt"))).expect("a file");
    let log = world.logs();
    let lines: Vec<Value> =
        log.lines().map(|line| serde_json::from_str(line).unwrap_or_else(|_| panic!("{line}"))).collect();
    let pid = mounted.status()["pid"].clone();
    let received = lines.iter().find(|line| {
        line["message"] == "received"
            && line["fields"]["path"].as_str().is_some_and(|path| path.contains("data/"))
    });
    let received = received.unwrap_or_else(|| panic!("no object in {log}"));
    assert_eq!((&received["level"], &received["pid"]), (&"debug".into(), &pid), "{received}");
    assert!(received["target"].as_str().is_some_and(|target| target.starts_with("store::")), "{received}");
    drop(mounted);
    let said = complaint(&mut mount("store=loud"), 2);
    assert!(said.contains("$ESKER_LOG") && said.contains("store=debug,info"), "{said}");
}

/// A one-shot command has its lines on stderr, as text unless the environment says otherwise.
#[test]
fn log_lines_of_a_command_are_on_stderr() {
    let world = TestEnv::new(TestUser::ordinary(), fixture::FULL);
    let cat = |format: &str| {
        let mut command = world.esker(&["cat", &world.url(), "/data/hex.txt", "--verbose"]);
        command.arg("--public-key").arg(world.path("key.pub")).arg("--cache").arg(world.cache());
        let output = command.env("ESKER_LOG_FORMAT", format).output().expect("running esker");
        assert!(output.status.success(), "{}", words(&output));
        String::from_utf8(output.stderr).expect("text")
    };
    let text = cat("line");
    let (time, message) = text.split_once(" UTC ").expect("a time");
    assert_eq!(time.len(), "2026-11-21 08:09:10".len(), "{text}");
    assert!(message.starts_with("the cache is ") && text.lines().count() == 1, "{text}");
    let json: Value = serde_json::from_str(&cat("json")).expect("one object");
    assert_eq!(json["message"], message.trim_end());
    assert_eq!((&json["level"], json["fields"].is_null()), (&"info".into(), true), "{json}");
}
