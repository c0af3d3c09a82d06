//! Executables of a repository that run before and after its commands.

use std::fs;
use std::path::Path;

use esker_testkit::programs;
use serde_json::json;

use super::Publisher;
use crate::publishing::NAME;
use crate::test_env::{complaint, printed, words};
use crate::test_user::TestUser;

/// Hooks run before and after; one that fails before stops the command.
#[test]
fn hooks_run_and_stop_what_they_come_before() {
    let publisher = Publisher::new(TestUser::ordinary());
    let folder = Path::new(&publisher.workshop.home("storage")).join(NAME).join(".esker/hooks");
    let log = publisher.workshop.home("log");
    let person = publisher.workshop.world.person;
    let write = |name: &str, text: &str| {
        person.does(|| fs::create_dir_all(&folder)).expect("a folder");
        programs::write(person.command("sh"), &folder.join(name), &format!("#!/bin/sh\n{text}\n"));
    };
    for name in ["transaction", "publish", "abort"] {
        for name in [format!("{name}-before"), format!("{name}-after")] {
            write(&name, &format!("echo {name} $1 >>{log}"));
        }
    }
    printed(&mut publisher.begin(&[], "touch new"));
    printed(&mut publisher.begin(&["--keep"], "touch other"));
    printed(&mut publisher.call(&["abort", NAME]));
    let said = fs::read_to_string(&log).expect("a log");
    let expected = [
        "transaction-before",
        "transaction-after",
        "publish-before",
        "publish-after",
        "transaction-before",
        "transaction-after",
        "abort-before",
        "abort-after",
    ];
    assert_eq!(said, expected.map(|name| format!("{name} {NAME}\n")).concat());
    write("publish-before", "exit 1");
    let text = complaint(&mut publisher.begin(&[], "touch more"), 1);
    assert!(text.contains("publish-before") && text.contains("is kept"), "{text}");
    assert_eq!(publisher.revision(), 2);
    write("transaction-before", "exit 1");
    let text = complaint(&mut publisher.begin(&[], "touch more"), 1);
    assert!(text.contains("transaction-before"), "{text}");
}

/// Hooks and signers block no signal that esker takes, so that Ctrl-C ends them.
#[test]
fn hooks_and_signers_get_signals() {
    let publisher = Publisher::new(TestUser::ordinary());
    let workshop = &publisher.workshop;
    let hook = Path::new(&workshop.home("storage")).join(NAME).join(".esker/hooks/publish-before");
    let log = workshop.home("log");
    let tell = format!("grep ^SigBlk: /proc/self/status >>{log}");
    let person = workshop.world.person;
    person.does(|| fs::create_dir_all(hook.parent().expect("a folder"))).expect("a folder");
    programs::write(person.command("sh"), &hook, &format!("#!/bin/sh\n{tell}\n"));
    person.does(|| fs::write(Path::new(&workshop.tree()).join("new"), "")).expect("a file");
    let signer = format!("{tell}; echo refused >&2; exit 1");
    let output = workshop.esker(&["publish", NAME, &workshop.tree(), "--signer", &signer]);
    assert!(!output.status.success() && words(&output).contains("refused"), "{}", words(&output));
    let told = fs::read_to_string(&log).expect("a log");
    let blocked: Vec<_> = told.lines().map(|line| line.trim_start_matches("SigBlk:").trim()).collect();
    assert_eq!(blocked, ["0000000000000000"; 2]);
}

/// Hooks are told what their command changes, and run for rollbacks and tags, too.
#[test]
fn hooks_are_told_tag_revision_transaction_and_path() {
    let publisher = Publisher::new(TestUser::ordinary());
    let folder = Path::new(&publisher.workshop.home("storage")).join(NAME).join(".esker/hooks");
    let log = publisher.workshop.home("log");
    let person = publisher.workshop.world.person;
    person.does(|| fs::create_dir_all(&folder)).expect("a folder");
    for name in ["transaction", "publish", "abort", "rollback", "tag"] {
        for name in [format!("{name}-before"), format!("{name}-after")] {
            let told = "$ESKER_REPOSITORY tag=$ESKER_TAG revision=$ESKER_REVISION id=${ESKER_TRANSACTION:+some} path=$ESKER_PATH";
            let text = format!("#!/bin/sh\necho told\necho {name} {told} >>{log}\n");
            programs::write(person.command("sh"), &folder.join(&name), &text);
        }
    }
    let said = printed(&mut publisher.begin(&["/d", "--tag", "v1", "--json"], "touch new"));
    assert!(said.starts_with('{'), "the output of hooks is not that of the command: {said}");
    let run = |arguments: &[&str]| {
        let output = publisher.workshop.esker(arguments);
        assert!(output.status.success(), "{}", words(&output));
    };
    run(&["tag", "add", NAME, "v2"]);
    run(&["undo", NAME]);
    run(&["tag", "add", NAME, "v3", "--dry-run"]);
    let told = fs::read_to_string(&log).expect("a log");
    let lines: Vec<String> = told.lines().map(|line| line.replace(&format!("{NAME} "), "")).collect();
    let expected = [
        "transaction-before tag=v1 revision=1 id= path=/d",
        "transaction-after tag=v1 revision=1 id=some path=/d",
        "publish-before tag=v1 revision= id=some path=/d",
        "publish-after tag=v1 revision=2 id=some path=/d",
        "tag-before tag=v2 revision= id= path=",
        "tag-after tag=v2 revision=2 id= path=",
        "rollback-before tag= revision= id= path=",
        "rollback-after tag= revision=3 id= path=",
    ];
    assert_eq!(json!(lines), json!(expected));
    let help = printed(&mut publisher.workshop.world.esker(&["help", "hooks"]));
    for word in ["transaction-before", "tag-after", "rollback-after", "ESKER_PATH", ".esker/hooks"] {
        assert!(help.contains(word), "{word} is not in {help}");
    }
}
