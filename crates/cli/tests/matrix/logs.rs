//! Formats and levels of the log.

use std::fs;

use esker_testkit::fixture;
use esker_testkit::mirror::Fault;
use esker_testkit::programs;
use serde_json::Value;

use crate::test_env::{TestEnv, complaint, printed, words};
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

/// Lines have the mount and the repository, and a failure of a read its object and its process.
#[test]
fn the_log_of_a_mount_is_found_by_name_and_by_mount_point() {
    let world = TestEnv::new(TestUser::ordinary(), fixture::FULL);
    let mounted = world.mount(&["--log-format", "json", "--no-prefetch"]);
    mounted.does(|| fs::metadata(mounted.path("data/hex.txt"))).expect("a file");
    let rule = world.mirror.fault(|path| path.contains("/data/"), Fault::Missing);
    mounted.does(|| fs::read(mounted.path("data/hex.txt"))).expect_err("its object is missing");
    rule.assert_hit();
    let (name, mountpoint) = (world.fixture().name(), world.mountpoint().display().to_string());
    let logs = |arguments: &[&str]| printed(world.esker(&["logs"]).args(arguments));
    let said = logs(&[name, "--level", "warn", "--since", "1h", "--json"]);
    let lines: Vec<Value> = said.lines().map(|line| serde_json::from_str(line).expect("JSON")).collect();
    let of_read = lines.iter().find(|line| line["fields"]["object"] == "/data/hex.txt");
    let of_read = of_read.unwrap_or_else(|| panic!("{said}"));
    assert_eq!((&of_read["mount"], &of_read["repository"]), (&mountpoint.as_str().into(), &name.into()));
    assert!(of_read["fields"]["caller"].is_u64(), "{of_read}");
    let text = logs(&[&mountpoint]);
    assert!(text.contains(" UTC warning: /data/hex.txt: "), "{text}");
    assert_eq!(logs(&[name, "--level", "error"]), "");
    let said = complaint(&mut world.esker(&["logs", "other.test"]), 1);
    assert!(said.contains("other.test is not a mount") && said.contains("esker status"), "{said}");
}

/// The journal is read by a program of systemd, which stands in here.
#[test]
fn lines_of_a_mount_that_is_gone_are_in_the_journal() {
    let world = TestEnv::new(TestUser::ordinary(), fixture::FULL);
    let tools = world.path("home/tools");
    let program = tools.join("journalctl");
    let script = r#"#!/bin/sh
case "$*" in *"SYSLOG_IDENTIFIER=esker ESKER_REPOSITORY=gone.test"*) ;; *) exit 1 ;; esac
echo '{"__REALTIME_TIMESTAMP":"3600000000","PRIORITY":"4","_PID":"7","MESSAGE":"proxy is out","ESKER_PROXY":"p"}'
"#;
    world.person.does(|| fs::create_dir(&tools)).expect("a folder");
    programs::write(world.person.command("sh"), &program, script);
    let path = format!("{}:{}", tools.display(), std::env::var("PATH").unwrap_or_default());
    let text = printed(world.esker(&["logs", "gone.test"]).env("PATH", &path));
    assert_eq!(text, "1970-01-01 01:00:00 UTC warning: proxy is out\n");
    complaint(world.esker(&["logs", "other.test"]).env("PATH", &path), 1);
}
