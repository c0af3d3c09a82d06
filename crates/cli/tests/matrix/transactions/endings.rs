//! Ends of commands and shells in transactions, for scripts that look at codes and reports.

use std::fs;
use std::io::Write as _;
use std::path::Path;
use std::process::Stdio;
use std::time::Duration;

use esker_testkit::waiting::Pace;
use esker_testkit::{programs, skip};
use serde_json::{Value, json};

use super::Publisher;
use crate::publishing::NAME;
use crate::test_env::{complaint, printed, words};
use crate::test_user::TestUser;

/// A tag and a message that a transaction was begun with are those of its revision, unless others are named later.
#[test]
fn a_kept_transaction_has_the_tag_and_message_of_its_begin() {
    let publisher = Publisher::new(TestUser::ordinary());
    let begin = ["--tag", "v1", "--message", "the first"];
    complaint(&mut publisher.begin(&begin, "touch new; exit 1"), 1);
    let id = publisher.list()[0]["id"].as_str().expect("an id").to_owned();
    let resume = ["resume", &id, "--message", "mended", "--keep", "--", "touch", "more"];
    assert!(publisher.call(&resume).output().expect("esker").status.success());
    printed(&mut publisher.call(&["publish", &id, "--quiet"]));
    let tag = publisher.workshop.esker(&["tag", "show", NAME, "v1", "--json"]);
    let tag: Value = serde_json::from_slice(&tag.stdout).expect("JSON");
    assert_eq!((&tag["revision"], &tag["description"]), (&json!(2), &json!("mended")));
}

/// What can be refused at the begin doesn't wait for the end of a build.
#[test]
fn a_tag_that_exists_is_refused_before_the_command_runs() {
    let publisher = Publisher::new(TestUser::ordinary());
    let added = publisher.workshop.esker(&["tag", "add", NAME, "taken"]);
    assert!(added.status.success(), "{}", words(&added));
    let text = complaint(&mut publisher.begin(&["--tag", "taken"], "echo ran >&2"), 2);
    assert!(text.contains("taken") && !text.contains("ran\n"), "{text}");
    assert_eq!((publisher.list().len(), publisher.revision()), (0, 1));
}

/// A reader that closes the pipe of the report decides nothing about the changes.
#[test]
fn a_closed_pipe_leaves_no_half_state() {
    let publisher = Publisher::new(TestUser::ordinary());
    for (round, options) in [&[][..], &["--json"]].iter().enumerate() {
        let (reader, writer) = std::io::pipe().expect("a pipe");
        drop(reader);
        let mut call = publisher.call(&[&[NAME][..], options].concat());
        let (storage, keys) = (publisher.workshop.home("storage"), publisher.workshop.home("keys"));
        call.args(["--storage", &storage, "--keys", &keys, "--", "touch", &format!("new{round}")]);
        let output = call.stdout(writer).stderr(Stdio::piped()).output().expect("esker");
        assert!(output.status.success(), "{}", words(&output));
        assert_eq!((publisher.list().len(), publisher.revision()), (0, 2 + round as u64));
    }
}

/// With --json standard output is one value, which names the transaction also if its command failed.
#[test]
fn the_json_of_a_transaction_has_its_id_and_nothing_of_the_command() {
    let publisher = Publisher::new(TestUser::ordinary());
    let run = |script: &str, code: i32| -> Value {
        let output = publisher.begin(&["--json"], script).output().expect("esker");
        assert_eq!(output.status.code(), Some(code), "{}", words(&output));
        assert!(String::from_utf8_lossy(&output.stderr).contains("from the command"), "{}", words(&output));
        serde_json::from_slice(&output.stdout).expect("one value")
    };
    let report = run("echo from the command; touch new", 0);
    assert_eq!((&report["revision"], report["transaction"].is_string()), (&json!(2), true), "{report}");
    let report = run("echo from the command; touch more; exit 7", 7);
    let id = publisher.list()[0]["id"].clone();
    let kept = json!({ "transaction": id, "published": false, "outcome": { "code": 7 } });
    assert_eq!(report, kept);
}

/// A large folder of changes is deleted by another process. Nothing of it is left in the end, also if that was killed before.
#[test]
fn what_a_transaction_leaves_is_deleted_behind_it() {
    let publisher = Publisher::new(TestUser::ordinary());
    let folder = publisher.workshop.home("transactions");
    let left = || {
        let names =
            fs::read_dir(&folder).expect("the folder").map(|entry| entry.expect("an entry").file_name());
        names.filter(|name| name != ".number").count()
    };
    let many = "mkdir many; cd many; i=0; while [ $i -lt 1500 ]; do : >$i; i=$((i + 1)); done; chmod 500 .";
    printed(&mut publisher.begin(&[], many));
    assert_eq!(publisher.list().len(), 0);
    assert!(Pace::PROCESS.until(Duration::from_secs(60), || left() == 0), "{} are left", left());
    // Of a process that was killed.
    let stale = Path::new(&folder).join(".removed-1-20000101-000000");
    publisher.workshop.world.person.does(|| fs::create_dir_all(stale.join("upper"))).expect("folders");
    printed(&mut publisher.begin(&[], "touch new"));
    assert!(Pace::PROCESS.until(Duration::from_secs(60), || left() == 0), "{} are left", left());
}

/// The exit code of an interactive shell is that of the shell, whatever becomes of the changes.
#[test]
fn a_shell_on_a_terminal_has_its_own_exit_code() {
    let publisher = Publisher::new(TestUser::ordinary());
    let person = publisher.workshop.world.person;
    let is_there = |program: &str| person.command(program).arg("--version").output().is_ok();
    if !is_there("script") {
        skip!("there is no script(1), which makes a terminal");
    }
    let shell = publisher.workshop.home("shell");
    programs::write(person.command("sh"), Path::new(&shell), "#!/bin/sh\ntouch new\nexit 5\n");
    for (answer, revision, kept) in [("d\n", 1, 0), ("p\n", 2, 0), ("k\n", 2, 1)] {
        let (storage, keys) = (publisher.workshop.home("storage"), publisher.workshop.home("keys"));
        let call = publisher.call(&[NAME, "--storage", &storage, "--keys", &keys, "--quiet"]);
        let line: Vec<String> = std::iter::once(call.get_program())
            .chain(call.get_args())
            .map(|word| format!("'{}'", word.to_str().expect("text")))
            .collect();
        let line = format!("SHELL={shell} {}", line.join(" "));
        let mut terminal = person.command("script");
        terminal.args(["-qec", &line, "/dev/null"]).env_clear().env("SHELL", "/bin/sh");
        terminal.envs(call.get_envs().filter_map(|(name, value)| Some((name, value?))));
        let mut child = terminal
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .expect("script");
        child.stdin.take().expect("a pipe").write_all(answer.as_bytes()).expect("an answer");
        let output = child.wait_with_output().expect("an end");
        assert_eq!(output.status.code(), Some(5), "{answer:?}: {}", words(&output));
        assert_eq!((publisher.revision(), publisher.list().len()), (revision, kept), "{}", words(&output));
    }
}
