//! The publisher of the reference and the gateway of Esker, and the other way round.

mod machine;
mod reference_gateway;
mod site;

use std::fs;
use std::io::Write as _;
use std::path::PathBuf;
use std::process::{Child, Output, Stdio};

use esker_testkit::raw_tar::{Raw, archive};
use esker_testkit::waiting::Pace;

use self::reference_gateway::free_port;
use self::site::{SECRET, Site, fails, succeeds};
use crate::publishing::NAME;
use crate::test_env::{PATIENCE, complaint, printed, words};

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
    let output = publish(SECRET, &["--tag", "release"]).output().expect("running esker");
    succeeds(&output);
    assert!(!words(&output).contains("warning"), "{}", words(&output));
    assert_eq!(site.file("/new/file").as_deref(), Some("new\n"));
    assert_eq!(site.file("/one/file").as_deref(), Some("changed\n"));
    let tags = site.tags();
    assert!(tags.contains(&"release".to_owned()), "{tags:?}");
    fs::remove_dir_all(tree.join("one/deep")).expect("removing a folder");
    printed(&mut publish(SECRET, &[]));
    assert_eq!(site.file("/one/deep/file"), None);

    // That gateway has no pipes and no hard links.
    site.pipe("tree/pipe");
    fs::hard_link(tree.join("two/file"), tree.join("two/link")).expect("a link");
    let said = words(&publish(SECRET, &[]).output().expect("running esker"));
    let named = ["/pipe", "/two/file", "/two/link"];
    assert!(said.contains("the gateway left out") && named.iter().all(|path| said.contains(path)), "{said}");

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
    let open = OpenTransaction::start(&site, &gateway.url(), "echo late >file");
    gateway.is_killed_and_restarted();
    succeeds(&open.ends());
    assert_eq!((site.revision(), site.file("/one/file").as_deref()), (2, Some("late\n")));
    site.check();
}

/// A transaction whose lease ends, and that others overtake, is put on what they published, or refused by name. The gateway would
/// overwrite their changes.
#[test]
fn a_stale_base_at_the_gateway_of_the_reference_is_rebased_or_a_named_conflict() {
    let Some(site) = Site::new() else { return };
    let gateway = site.reference_gateway(3);
    let tree = site.tree();
    let overtaken = |ours: &str, theirs: &str| {
        let open = OpenTransaction::start(&site, &gateway.url(), ours);
        fs::write(tree.join("one/file"), theirs).expect("a file");
        // It waits for the end of the lease.
        printed(&mut site.esker(&gateway.url(), SECRET, &["publish", NAME, &tree.display().to_string()]));
        open.ends()
    };
    succeeds(&overtaken("echo ours >deep/file", "theirs\n"));
    assert_eq!(site.file("/one/file").as_deref(), Some("theirs\n"));
    assert_eq!(site.file("/one/deep/file").as_deref(), Some("ours\n"));

    fs::write(tree.join("one/deep/file"), "ours\n").expect("a file");
    let before = site.revision();
    let said = fails(&overtaken("echo ours, and longer >file", "theirs again\n"));
    assert!(said.contains("/one/file") && said.contains(&format!("revision {}", before + 1)), "{said}");
    assert_eq!((site.revision(), site.file("/one/file").as_deref()), (before + 1, Some("theirs again\n")));
    site.check();
}

/// A lease that ends while an archive is read publishes nothing.
#[test]
fn an_expired_lease_at_the_gateway_of_the_reference_publishes_nothing() {
    let Some(site) = Site::new() else { return };
    let gateway = site.reference_gateway(2);
    let pipe = site.pipe("archive");
    let ingest = ["ingest", NAME, &pipe.display().to_string(), "--to", "/one"];
    let mut command = site.esker(&gateway.url(), SECRET, &ingest);
    let child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().expect("esker");
    let mut to = fs::File::create(&pipe).expect("the other end of the pipe");
    let tree = site.tree();
    fs::write(tree.join("one/file"), "theirs\n").expect("a file");
    // It waits for the end of the lease.
    printed(&mut site.esker(&gateway.url(), SECRET, &["publish", NAME, &tree.display().to_string()]));
    to.write_all(&archive(&[Raw::file(b"late", b"late\n")])).expect("writing to the pipe");
    drop(to);
    let said = fails(&child.wait_with_output().expect("its end"));
    assert!(said.contains("the lease has ended"), "{said}");
    assert_eq!((site.revision(), site.file("/one/late")), (2, None));
    site.check();
}

/// What the web server of a publisher hid until the commit is overwritten by this gateway. The publisher says so.
#[test]
fn what_the_gateway_of_the_reference_overwrites_is_an_error_or_a_warning() {
    let Some(site) = Site::new() else { return };
    let gateway = site.reference_gateway(3600);
    let tree = site.tree();
    let publish = |content: &str, server: &str| {
        fs::write(tree.join("one/file"), content).expect("a file");
        let arguments = ["publish", NAME, &tree.display().to_string()];
        site.esker_of(server, &gateway.url(), SECRET, &arguments).output().expect("running esker")
    };
    for is_shown_after in [false, true] {
        let (stale, rule) = site.stale_server();
        succeeds(&publish(&format!("theirs {is_shown_after}\n"), &site.server()));
        if is_shown_after {
            // The gateway reads the head when it begins the commit.
            site.lift_at_commit(&rule);
        }
        let before = site.revision();
        let late = publish(&format!("ours, and longer, {is_shown_after}\n"), &stale.url(NAME));
        rule.assert_hit();
        let said = words(&late);
        assert_eq!(site.revision(), before + 1, "{said}");
        match is_shown_after {
            true => assert!(!late.status.success() && said.contains("/one/file"), "{said}"),
            false => assert!(late.status.success() && said.contains("can't be found out"), "{said}"),
        }
    }
    site.check();
}

/// A transaction of `/one` whose command waits.
struct OpenTransaction {
    child: Child,
    go: PathBuf,
}

impl OpenTransaction {
    /// Starts one, which runs a script at its end.
    fn start(site: &Site, gateway: &str, script: &str) -> Self {
        let [open, go] = ["open", "go"].map(|name| site.pipe(name));
        let script = format!("echo >{}; read line <{}; {script}", open.display(), go.display());
        let transaction = ["transaction", NAME, "/one", "--create", "--", "sh", "-ec", &script];
        let mut command = site.esker(gateway, SECRET, &transaction);
        let child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().expect("esker");
        fs::read(open).expect("the word of the transaction");
        Self { child, go }
    }

    fn ends(self) -> Output {
        fs::write(self.go, "\n").expect("a word to the transaction");
        self.child.wait_with_output().expect("its end")
    }
}
