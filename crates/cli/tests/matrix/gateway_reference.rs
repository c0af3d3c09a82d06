//! The publisher of the reference and the gateway of Esker, and the other way round.

mod machine;
mod reference_gateway;
mod site;

use std::fs;
use std::process::Stdio;

use esker_testkit::waiting::Pace;

use self::reference_gateway::free_port;
use self::site::{SECRET, Site, fails, succeeds};
use crate::publishing::NAME;
use crate::test_env::{PATIENCE, complaint, printed};

/// A lease that does not end within a test.
const LONG: &str = "1h";
/// Exit code of the reference for a directory that is leased to another one: the error's number of Linux.
const EBUSY: i32 = 16;

/// All kinds of changes, each of which the repository has afterwards, and nothing else.
#[test]
fn the_reference_publishes_through_the_gateway() {
    let Some(site) = Site::new() else { return };
    let gateway = site.gateway(LONG);
    let manager = site.release_manager("manager", gateway.url(), SECRET);
    let create = "mkdir -p new/nested; echo new >new/file; : >new/empty; ln -s file new/link; touch new/nested/.cvmfscatalog
        echo nested >new/nested/file; head -c 20000000 /dev/urandom >new/large; echo more >>one/file";
    manager.publishes("", create, "");
    assert_eq!(site.file("/one/file").as_deref(), Some("first\nmore\n"));
    assert_eq!(site.file("/new/nested/file").as_deref(), Some("nested\n"));
    assert_eq!(site.file("/new/empty").as_deref(), Some(""));
    manager.does(&format!("[ $(wc -c </cvmfs/{NAME}/new/large) = 20000000 ]"));
    manager.publishes(
        "one",
        "rm one/file; mkdir one/file; echo in >one/file/in; rm -r one/deep",
        "-a release",
    );
    assert_eq!(site.file("/one/file/in").as_deref(), Some("in\n"));
    assert_eq!(site.file("/one/deep/file"), None);
    let tags = site.tags();
    let automatic = tags.iter().filter(|tag| tag.starts_with("generic")).count();
    assert!(tags.contains(&"release".to_owned()) && automatic == 2, "{tags:?}");
    // What is changed beside the lease is left out, as the reference's gateway does.
    manager.publishes("new", "echo late >new/late; echo beside >one/beside", "");
    assert_eq!(site.file("/new/late").as_deref(), Some("late\n"));
    assert_eq!(site.file("/one/beside"), None);
    // The marker goes, and the files stay.
    manager.publishes("new/", "rm new/nested/.cvmfscatalog", "");
    assert_eq!(site.file("/new/nested/file").as_deref(), Some("nested\n"));
    assert_eq!(site.revision(), 5);
    site.check();
}

/// A release manager whose mount is older than another one's commit in the same directory undoes nothing of it.
#[test]
fn a_stale_base_of_the_reference_is_rebased_or_a_named_conflict() {
    let Some(site) = Site::new() else { return };
    let gateway = site.gateway(LONG);
    let [stale, other] = ["stale", "other"].map(|name| site.release_manager(name, gateway.url(), SECRET));
    let lease = |action: &str| {
        let key = format!("/etc/cvmfs/keys/{NAME}.gw");
        stale
            .does(&format!("cvmfs_swissknife lease -a {action} -u {} -k {key} -p {NAME}/one", gateway.url()));
    };
    let publish_between = |script: &str| {
        succeeds(&stale.open("one"));
        lease("drop");
        other.publishes("one", script, "");
        lease("acquire");
    };
    publish_between("echo other >one/file");
    stale.change("echo stale >one/deep/file");
    succeeds(&stale.publish(""));
    assert_eq!(site.file("/one/file").as_deref(), Some("other\n"));
    assert_eq!(site.file("/one/deep/file").as_deref(), Some("stale\n"));

    publish_between("echo again >one/file");
    stale.change("echo stale >one/file");
    let before = site.revision();
    let said = fails(&stale.publish(""));
    assert!(said.contains("merge_error") && said.contains("/one/file"), "{said}");
    assert_eq!((site.revision(), site.file("/one/file").as_deref()), (before, Some("again\n")));
    succeeds(&stale.abort());
    stale.publishes("one", "echo stale >>one/file", "");
    assert_eq!(site.file("/one/file").as_deref(), Some("again\nstale\n"));
    site.check();
}

/// Refusals are understood by the reference, and its transactions can be ended.
#[test]
fn the_reference_understands_what_the_gateway_refuses() {
    let Some(site) = Site::new() else { return };
    let gateway = site.gateway("2s");
    let [one, two] = ["one", "two"].map(|name| site.release_manager(name, gateway.url(), SECRET));
    let stranger = site.release_manager("stranger", gateway.url(), "another");
    let said = fails(&stranger.open("one"));
    assert!(said.contains("invalid_hmac"), "{said}");

    succeeds(&one.open("one"));
    let busy = two.open("one/deep");
    let said = fails(&busy);
    assert_eq!(busy.status.code(), Some(EBUSY), "{said}");
    one.change("echo late >one/file");
    // The lease of the first one ends, as the second one sees.
    assert!(
        Pace::PROCESS.until(PATIENCE, || two.open("one/deep").status.success()),
        "the lease does not end"
    );
    let said = fails(&one.publish(""));
    assert!(said.contains("invalid lease"), "{said}");
    assert_eq!((site.revision(), site.file("/one/file").as_deref()), (1, Some("first\n")));
    succeeds(&one.abort());
    succeeds(&two.abort());
    site.check();
}

/// A restart of the gateway ends no transaction, and an unanswered request is not lost.
#[test]
fn transactions_of_the_reference_outlive_the_gateway() {
    let Some(site) = Site::new() else { return };
    let mut gateway = site.gateway(LONG);
    let manager = site.release_manager("manager", gateway.url(), SECRET);
    succeeds(&manager.open("one"));
    manager.change("echo changed >one/file");
    gateway.is_killed_and_restarted();
    succeeds(&manager.publish(""));
    assert_eq!(site.file("/one/file").as_deref(), Some("changed\n"));
    succeeds(&manager.open("one"));
    gateway.is_killed_and_restarted();
    succeeds(&manager.abort());
    manager.publishes("one", "rm one/file", "");
    assert_eq!(site.file("/one/file"), None);
    site.check();
}

/// On one machine with the gateway, the open transaction of a release manager is none that publishes to the storage itself.
#[test]
fn a_release_manager_may_work_on_the_machine_of_the_gateway() {
    let Some(site) = Site::new() else { return };
    let port = free_port();
    let manager = site.release_manager("both", &format!("http://127.0.0.1:{port}/api/v1"), SECRET);
    site.gateway_beside(&manager, port);
    manager.publishes("one", "echo changed >one/file", "");
    assert_eq!(site.file("/one/file").as_deref(), Some("changed\n"));
    site.check();
}

/// All kinds of changes by Esker's publisher, and what the reference's gateway refuses.
#[test]
fn esker_publishes_through_the_gateway_of_the_reference() {
    let Some(site) = Site::new() else { return };
    let gateway = site.reference_gateway(3600);
    let tree = site.tree();
    let publish = |secret: &str, options: &[&str]| {
        let tree = tree.display().to_string();
        site.esker(&gateway.url(), secret, &[&["publish", NAME, &tree], options].concat())
    };
    fs::create_dir(tree.join("new")).expect("a folder");
    fs::write(tree.join("new/file"), "new\n").expect("a file");
    fs::write(tree.join("new/large"), vec![7; 20_000_000]).expect("a file");
    fs::write(tree.join("new/.cvmfscatalog"), "").expect("a file");
    fs::write(tree.join("one/file"), "changed\n").expect("a file");
    printed(&mut publish(SECRET, &["--tag", "release"]));
    assert_eq!(site.file("/new/file").as_deref(), Some("new\n"));
    assert_eq!(site.file("/one/file").as_deref(), Some("changed\n"));
    let tags = site.tags();
    assert!(tags.contains(&"release".to_owned()), "{tags:?}");
    fs::remove_dir_all(tree.join("one/deep")).expect("removing a folder");
    printed(&mut publish(SECRET, &[]));
    assert_eq!(site.file("/one/deep/file"), None);

    let before = site.revision();
    fs::write(tree.join("two/file"), "refused\n").expect("a file");
    let said = complaint(&mut publish("another", &[]), 2);
    assert!(said.contains("invalid_hmac"), "{said}");
    assert_eq!(site.revision(), before);
    site.check();
}

/// The reference's gateway forgets at a restart what it needs for a commit of the leases that it had, and renews none. The
/// transaction waits for the end of its own lease, and publishes with another one.
#[test]
fn a_transaction_outlives_the_gateway_of_the_reference() {
    let Some(site) = Site::new() else { return };
    let gateway = site.reference_gateway(5);
    let [open, go] = ["open", "go"].map(|name| site.pipe(name));
    let script = format!("echo >{}; read line <{}; echo late >file", open.display(), go.display());
    let transaction = ["transaction", NAME, "/one", "--", "sh", "-ec", &script];
    let mut command = site.esker(&gateway.url(), SECRET, &transaction);
    let child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().expect("esker");
    fs::read(open).expect("the word of the transaction");
    gateway.is_killed_and_restarted();
    fs::write(go, "\n").expect("a word to the transaction");
    succeeds(&child.wait_with_output().expect("its end"));
    assert_eq!((site.revision(), site.file("/one/file").as_deref()), (2, Some("late\n")));
    site.check();
}
