//! A conflict of a kept transaction is decided, or looked at on the newest revision.

use serde_json::{Value, json};

use super::Publisher;
use crate::publishing::NAME;
use crate::test_env::{complaint, printed, words};
use crate::test_user::TestUser;

/// Keeps a transaction, publishes another one that changes the same file, and returns the id of the first.
fn in_conflict(publisher: &Publisher) -> String {
    let output = publisher.begin(&["--keep"], "echo ours >g; echo ours >our").output().expect("esker");
    assert!(output.status.success(), "{}", words(&output));
    let id = publisher.list()[0]["id"].as_str().expect("an id").to_owned();
    printed(&mut publisher.begin(&[], "echo theirs >g; echo theirs >their"));
    let text = complaint(&mut publisher.call(&["publish", &id, "--quiet"]), 1);
    assert!(text.contains("`/g`") && text.contains("is kept"), "{text}");
    assert!(text.contains("--theirs PATH|--ours PATH") && text.contains("resume ID --rebase"), "{text}");
    id
}

#[test]
fn a_conflict_is_decided_for_either_side() {
    let publisher = Publisher::new(TestUser::ordinary());
    let id = in_conflict(&publisher);
    let text = complaint(&mut publisher.call(&["publish", &id, "--theirs", "/d"]), 1);
    assert!(text.contains("`/g`"), "{text}");
    let report = printed(&mut publisher.call(&["publish", &id, "--theirs", "/g", "--json", "--quiet"]));
    let report: Value = serde_json::from_str(&report).expect("a report");
    assert_eq!(report["resolved"], json!([{"path": "/g", "side": "theirs"}]));
    assert_eq!(publisher.reads("cat g our their"), "theirs\nours\ntheirs\n");
    let id = in_conflict(&publisher);
    let report = printed(&mut publisher.call(&["publish", &id, "--ours", "/"]));
    assert!(report.contains("ours      /g"), "{report}");
    assert_eq!(publisher.reads("cat g our their"), "ours\nours\ntheirs\n");
    assert_eq!(publisher.list(), [Value::Null; 0]);
}

/// The tree of the transaction shows the changes of others, and its own ones where both changed a path. What is done there
/// goes on above it, also from a second rebase.
#[test]
fn a_transaction_goes_on_in_the_tree_of_the_newest_revision() {
    for person in TestUser::all() {
        let publisher = Publisher::new(person);
        let id = in_conflict(&publisher);
        let resume = ["resume", &id, "--rebase", "--keep", "--quiet", "--", "sh", "-ec"];
        let script = "cat g our their; rm their; echo more >more";
        let output = publisher.call(&[&resume[..], &[script]].concat()).output().expect("esker");
        assert!(output.status.success(), "{person:?}: {}", words(&output));
        assert_eq!(String::from_utf8_lossy(&output.stdout), "ours\nours\ntheirs\n");
        assert!(words(&output).contains("/g (ours)"), "{}", words(&output));
        printed(&mut publisher.begin(&[], "echo late >late"));
        let output = publisher.call(&["publish", &id, "--rebase"]).output().expect("esker");
        assert!(output.status.success(), "{}", words(&output));
        let shown = String::from_utf8_lossy(&output.stdout).into_owned();
        assert!(
            shown.contains("from revision 3") && shown.contains("/more") && !shown.contains("late"),
            "{shown}"
        );
        assert!(words(&output).contains("is kept"), "{}", words(&output));
        assert_eq!(publisher.revision(), 3, "nothing is published");
        printed(&mut publisher.call(&["publish", &id, "--quiet"]));
        assert_eq!(
            publisher.reads("cat g our more late; ls"),
            "ours\nours\nmore\nlate\nd\ng\nlate\nmore\nour\n"
        );
        assert_eq!(publisher.list(), [Value::Null; 0]);
    }
}

/// The base of a transaction that was rebased is kept by collects, and nothing of it is left when it was dropped.
#[test]
fn the_tree_of_a_rebased_transaction_outlives_a_collect() {
    let publisher = Publisher::new(TestUser::ordinary());
    let id = in_conflict(&publisher);
    printed(&mut publisher.call(&["publish", &id, "--rebase", "--quiet"]));
    let workshop = &publisher.workshop;
    for _ in 0..2 {
        let collected = workshop.esker(&["collect", NAME, "--grace", "0s"]);
        assert!(collected.status.success(), "{}", words(&collected));
    }
    printed(&mut publisher.call(&["publish", &id, "--quiet"]));
    assert_eq!(publisher.reads("cat g our their"), "ours\nours\ntheirs\n");
}
