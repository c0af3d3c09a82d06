//! `esker transaction`: commands change the repository, and their changes are published, kept or dropped.

mod attributes;
mod conflicts;
mod directory;
mod endings;
mod hooks;
mod opened;

use std::fs;
use std::io::{BufRead as _, BufReader, Read as _};
use std::path::Path;
use std::process::{Child, Command, Output, Stdio};

use esker_testkit::skip;
use rustix::mount::{MountFlags, UnmountFlags, mount, unmount};
use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;

use crate::publishing::{NAME, Workshop};
use crate::test_env::{complaint, mountinfo, printed, with_private_mounts, words};
use crate::test_user::TestUser;

/// A publisher with a repository of a small tree, and the folder of their transactions.
pub(crate) struct Publisher {
    pub(crate) workshop: Workshop,
}

impl Publisher {
    pub(crate) fn new(person: TestUser) -> Publisher {
        let workshop = Workshop::with(person, |top| {
            fs::create_dir_all(top.join("d/e")).expect("folders");
            fs::write(top.join("d/e/f"), "f\n").expect("a file");
            fs::write(top.join("g"), "g\n").expect("a file");
        });
        workshop.create();
        workshop.json(&["publish", NAME, &workshop.tree()]);
        Publisher { workshop }
    }

    /// Returns a call of `esker transaction` with these arguments.
    pub(crate) fn call(&self, arguments: &[&str]) -> Command {
        let folder = self.workshop.home("transactions");
        self.workshop.world.esker(&[&["transaction", "--transactions", &folder], arguments].concat())
    }

    /// Returns a call that runs a script in a new transaction.
    pub(crate) fn begin(&self, options: &[&str], script: &str) -> Command {
        self.begin_with_report(&[options, &["--quiet"]].concat(), script)
    }

    /// The same, but the report is printed.
    pub(crate) fn begin_with_report(&self, options: &[&str], script: &str) -> Command {
        let (storage, keys) = (self.workshop.home("storage"), self.workshop.home("keys"));
        let places = ["--storage", &storage, "--keys", &keys];
        let command = ["--", "sh", "-ec", script];
        self.call(&[&[NAME], options, &places, &command].concat())
    }

    fn list(&self) -> Vec<Value> {
        let text = printed(&mut self.call(&["list", "--json"]));
        serde_json::from_str(&text).expect("JSON of the transactions")
    }

    fn states(&self) -> Vec<String> {
        self.list().iter().map(|one| one["state"].as_str().expect("a state").to_owned()).collect()
    }

    /// Runs a script in the published repository, without a cache that remembers an older head.
    pub(crate) fn reads(&self, script: &str) -> String {
        let world = &self.workshop.world;
        let url = self.workshop.published();
        let mut command = world.esker(&["run", &url, "--public-key"]);
        command.arg(world.path("key.pub")).args(["--", "sh", "-ec", &format!("cd /cvmfs/{NAME}; {script}")]);
        printed(&mut command)
    }

    /// Lists the mounts of transactions: at `/cvmfs`, or in the folders of this publisher. Other tests have mounts in
    /// folders of theirs.
    fn mounts(&self) -> Vec<String> {
        let own = self.workshop.world.path("");
        let own = own.to_str().expect("text").trim_end_matches('/').to_owned();
        let is_own = |line: &&str| line.contains(" /cvmfs/") || line.contains(&own);
        mountinfo().lines().filter(is_own).map(str::to_owned).collect()
    }

    fn revision(&self) -> u64 {
        let head =
            fs::read(format!("{}/{NAME}/.cvmfspublished", self.workshop.home("storage"))).expect("a head");
        let text = String::from_utf8_lossy(&head).into_owned();
        let line = text.lines().find_map(|line| line.strip_prefix('S')).expect("a revision");
        line.parse().expect("a number")
    }
}

/// Lists a tree: path, kind, mode, size of files, time, and target.
const LISTING: &str = r"find . -type d -printf '%P %y %m %T@\n' -o -printf '%P %y %m %s %T@ %l\n' | sort";

/// The published tree is the one that the command saw, as root and as an ordinary user.
#[test]
fn a_transaction_publishes_what_its_command_saw() {
    for person in TestUser::all() {
        let publisher = Publisher::new(person);
        let script = format!(
            "mv d/e d/moved; rm g; mkdir g; echo in >g/in; rm -r d/moved; mkdir d/moved; ln -s f d/moved/l; \
             touch dark; chmod 000 dark; mkdir closed; touch closed/x; chmod 000 closed; chmod 700 closed; \
             printf 'a\\nb' >'odd name'; {LISTING}"
        );
        let output = publisher
            .begin_with_report(&["--message", "a move", "--tag", "moved"], &script)
            .output()
            .expect("esker");
        assert!(output.status.success(), "{person:?}: {}", words(&output));
        let said = String::from_utf8_lossy(&output.stdout).into_owned();
        let report = said.strip_prefix(&publisher.reads(LISTING)).expect("what the command saw");
        assert!(report.contains("revision 2") && report.contains("moved"), "{report}");
        assert_eq!(publisher.list(), [Value::Null; 0]);
        assert_eq!(publisher.mounts(), Vec::<String>::new(), "nothing is left mounted");
        // The number by which collects know the folder stays.
        let left = fs::read_dir(publisher.workshop.home("transactions")).expect("the folder");
        let left = left.filter(|entry| entry.as_ref().expect("an entry").file_name() != ".number");
        assert_eq!(left.count(), 0);
    }
}

/// A command that fails keeps its changes; they are shown, continued by another command, and published.
#[test]
fn changes_of_a_failed_command_are_kept_and_resumed() {
    for person in TestUser::all() {
        let publisher = Publisher::new(person);
        let text = complaint(&mut publisher.begin(&[], "echo new >new; exit 7"), 7);
        assert!(text.contains("exit code 7") && text.contains("is kept"), "{text}");
        assert_eq!((publisher.states(), publisher.revision()), (vec!["kept".to_owned()], 1));
        let shown = printed(&mut publisher.call(&["show", NAME]));
        assert!(shown.contains("1 added, 1 changed, 0 removed") && shown.contains("/new"), "{shown}");
        let id = publisher.list()[0]["id"].as_str().expect("an id").to_owned();
        let mut resume =
            publisher.call(&["resume", &id, "--keep", "--", "sh", "-ec", "cat new; echo 2 >>new"]);
        assert_eq!(printed(&mut resume).lines().next(), Some("new"));
        let report = printed(&mut publisher.call(&["publish", &id, "--json", "--quiet"]));
        let report: Value = serde_json::from_str(&report).expect("a report");
        assert_eq!((&report["revision"], &report["differences"]["added"]["files"]), (&2.into(), &1.into()));
        assert_eq!(publisher.reads("cat new"), "new\n2\n");
        assert_eq!(publisher.states(), [""; 0]);
    }
}

/// `--keep` keeps, `--dry-run` prints and drops, and `abort` drops; none of them publishes.
#[test]
fn changes_are_kept_or_dropped_on_request() {
    let publisher = Publisher::new(TestUser::ordinary());
    let text = printed(&mut publisher.begin_with_report(&["--dry-run"], "touch new"));
    assert!(text.contains("would publish: 1 added") && text.contains("/new"), "{text}");
    assert_eq!(publisher.states(), [""; 0]);
    let output = publisher.begin(&["--keep"], "touch new").output().expect("esker");
    assert!(output.status.success(), "{}", words(&output));
    assert_eq!(publisher.states(), ["kept"]);
    assert!(printed(&mut publisher.call(&["abort", NAME])).contains("was dropped"));
    assert_eq!((publisher.states().len(), publisher.revision()), (0, 1));
    let text = complaint(&mut publisher.call(&["abort", NAME]), 2);
    assert!(text.contains("there is no transaction"), "{text}");
}

/// Processes that a command leaves running end with it, so that they change nothing while it is published.
#[test]
fn processes_that_a_command_leaves_end_with_it() {
    for person in TestUser::all() {
        let publisher = Publisher::new(person);
        // The pipe of the output ends with the last process that has it.
        let script = "touch new; (while :; do sleep 1000; done) & exit 0";
        let output = publisher.begin(&[], script).output().expect("esker");
        assert!(output.status.success(), "{}", words(&output));
        assert_eq!(publisher.revision(), 2);
    }
}

/// In a container without a process group of its own, the number of the group is 0.
#[test]
fn a_transaction_runs_where_its_process_group_has_no_number() {
    let Some(root) = TestUser::root() else { skip!("only root makes a PID namespace here") };
    let publisher = Publisher::new(root);
    let inside = publisher.begin(&[], "touch new");
    let mut outside = Command::new("unshare");
    outside.args(["--pid", "--fork", "--kill-child", "--mount-proc", "cut", "-d ", "-f5", "/proc/self/stat"]);
    assert_eq!(printed(&mut outside), "0\n", "the group is outside");
    let mut call = Command::new("unshare");
    call.args(["--pid", "--fork", "--kill-child", "--mount-proc"]).arg(inside.get_program());
    call.args(inside.get_args()).env_clear();
    call.envs(inside.get_envs().filter_map(|(name, value)| Some((name, value?))));
    printed(&mut call);
    assert_eq!(publisher.revision(), 2);
}

/// Starts a command that says that it runs and then waits; returns the rest of its output.
fn waiting(publisher: &Publisher) -> (Child, BufReader<std::process::ChildStdout>) {
    let mut call = publisher.begin(&[], "echo text >new; echo runs; exec sleep 1000");
    let mut child = call.stdout(Stdio::piped()).stderr(Stdio::null()).spawn().expect("esker");
    let mut output = BufReader::new(child.stdout.take().expect("a pipe"));
    let mut line = String::new();
    output.read_line(&mut line).expect("a line");
    assert_eq!(line, "runs\n");
    (child, output)
}

/// After `kill -9` the changes are listed as interrupted, no process and no mount is left, and the changes can be
/// continued.
#[test]
fn a_killed_transaction_is_listed_and_resumed() {
    for person in TestUser::all() {
        let publisher = Publisher::new(person);
        let (mut child, mut output) = waiting(&publisher);
        assert_eq!(publisher.states(), ["running"]);
        let text = complaint(&mut publisher.call(&["abort", NAME]), 1);
        assert!(text.contains("is running"), "{text}");
        child.kill().expect("a signal");
        child.wait().expect("an end");
        // Ends when the last process of the command has.
        output.read_to_end(&mut Vec::new()).expect("the rest");
        assert_eq!(publisher.states(), ["interrupted"]);
        assert_eq!(publisher.mounts(), Vec::<String>::new(), "nothing is left mounted");
        printed(&mut publisher.call(&["resume", NAME, "--quiet", "--", "cat", "new"]));
        assert_eq!(publisher.reads("cat new"), "text\n");
    }
}

/// A signal for `esker transaction` ends the command, and its changes are kept.
#[test]
fn a_terminated_command_keeps_its_changes() {
    let publisher = Publisher::new(TestUser::ordinary());
    let (mut child, mut output) = waiting(&publisher);
    let pid = Pid::from_child(&child);
    publisher.workshop.world.person.does(|| kill_process(pid, Signal::TERM)).expect("a signal");
    output.read_to_end(&mut Vec::new()).expect("the rest");
    assert!(!child.wait().expect("an end").success());
    let all = publisher.list();
    assert_eq!((&all[0]["state"], &all[0]["outcome"]), (&"kept".into(), &serde_json::json!({"signal": 15})));
}

/// Asserts that a transaction in this state is listed, shown and dropped.
#[track_caller]
fn assert_manageable(publisher: &Publisher, state: &str) {
    assert_eq!(publisher.states(), [state]);
    let shown = printed(&mut publisher.call(&["show", NAME]));
    assert!(shown.contains("added") && shown.contains("/new"), "{shown}");
    printed(&mut publisher.call(&["abort", NAME]));
    assert_eq!(publisher.states(), [""; 0]);
}

fn kept(person: TestUser) -> Publisher {
    let publisher = Publisher::new(person);
    let output = publisher.begin(&["--keep"], "touch new; rm g; mkdir shut; chmod 000 shut").output();
    let output = output.expect("esker");
    assert!(output.status.success(), "{}", words(&output));
    publisher
}

#[test]
fn transactions_are_listed_shown_and_dropped_with_an_expired_whitelist() {
    for person in TestUser::all() {
        let publisher = kept(person);
        let workshop = &publisher.workshop;
        workshop.let_whitelist_expire();
        let text = complaint(&mut publisher.call(&["publish", NAME]), 4);
        assert!(text.contains("is kept") && text.contains("whitelist expired"), "{text}");
        let folder = workshop.home("transactions");
        let info = workshop.esker(&["repo", "info", NAME, "--transactions", &folder]);
        assert!(words(&info).contains("kept, exit code 0"), "{}", words(&info));
        let storage = workshop.home("storage");
        let list = ["repo", "list", "--transactions", &folder, "--storage", &storage];
        let listed = printed(&mut workshop.world.esker(&list));
        assert!(listed.contains("1 open transaction"), "{listed}");
        assert_manageable(&publisher, "kept");
    }
}

#[test]
fn transactions_are_listed_shown_and_dropped_without_keys() {
    let publisher = kept(TestUser::ordinary());
    fs::remove_dir_all(publisher.workshop.home("keys")).expect("removing the keys");
    let text = complaint(&mut publisher.call(&["publish", NAME]), 2);
    assert!(text.contains("is kept"), "{text}");
    assert_manageable(&publisher, "kept");
}

#[test]
fn transactions_are_listed_shown_and_dropped_without_a_network() {
    let Some(root) = TestUser::root() else { skip!("only root makes a network namespace here") };
    let publisher = kept(root);
    let folder = publisher.workshop.home("transactions");
    for arguments in [&["list"][..], &["show", NAME], &["abort", NAME]] {
        let mut call = Command::new("unshare");
        call.arg("--net").arg(publisher.workshop.world.program()).args([
            "transaction",
            "--transactions",
            &folder,
        ]);
        printed(call.args(arguments));
    }
    assert_eq!(publisher.states(), [""; 0]);
}

/// The folder of a transaction that is aborted may be on a disk without a free byte.
#[test]
fn transactions_are_listed_shown_and_dropped_on_a_full_disk() {
    let Some(root) = TestUser::root() else { skip!("only root mounts a small disk") };
    let publisher = Publisher::new(root);
    let folder = publisher.workshop.home("transactions");
    fs::create_dir(&folder).expect("a folder");
    with_private_mounts();
    mount("none", &*folder, "tmpfs", MountFlags::empty(), Some(c"size=1m")).expect("a small disk");
    let text = complaint(&mut publisher.begin(&[], "touch new; cat /dev/zero >large"), 1);
    assert!(text.contains("is kept"), "{text}");
    let rest = Path::new(&folder).join("rest");
    let full = std::io::copy(&mut std::io::repeat(1), &mut fs::File::create(rest).expect("a file"));
    assert_eq!(full.expect_err("a full disk").kind(), std::io::ErrorKind::StorageFull);
    // There was no room for the exit code of the command.
    assert_manageable(&publisher, "interrupted");
    // Else the folder of the test could not be removed.
    unmount(&*folder, UnmountFlags::DETACH).expect("unmounting");
}

/// A daemon that serves the same repository may be dead: a transaction has its own mount.
#[test]
fn transactions_are_listed_shown_and_dropped_beside_a_dead_mount() {
    let publisher = kept(TestUser::ordinary());
    let world = &publisher.workshop.world;
    let url = publisher.workshop.published();
    let mounted = world.mount_of(&url, &[]);
    let pid = mounted.status()["pid"].as_i64().and_then(|pid| Pid::from_raw(pid as i32)).expect("a process");
    world.person.does(|| kill_process(pid, Signal::KILL)).expect("a signal");
    assert_manageable(&publisher, "kept");
}

/// A record that can't be read names its place, and the transaction can still be dropped.
#[test]
fn a_damaged_transaction_is_named_and_dropped() {
    let publisher = kept(TestUser::ordinary());
    let id = publisher.list()[0]["id"].as_str().expect("an id").to_owned();
    let record = Path::new(&publisher.workshop.home("transactions")).join(&id).join("record.json");
    fs::write(record, "{").expect("a record");
    assert_eq!(publisher.states(), ["damaged"]);
    assert!(complaint(&mut publisher.call(&["show", &id]), 4).contains("record.json"));
    printed(&mut publisher.call(&["abort", &id]));
    assert_eq!(publisher.states(), [""; 0]);
}

/// Names that mean several transactions are refused with the list of them.
#[test]
fn a_transaction_is_named_by_its_id_if_there_are_several() {
    let publisher = kept(TestUser::ordinary());
    let output: Output = publisher.begin(&["--keep"], "touch second").output().expect("esker");
    assert!(output.status.success(), "{}", words(&output));
    let text = complaint(&mut publisher.call(&["abort", NAME]), 2);
    let ids: Vec<String> =
        publisher.list().iter().map(|one| one["id"].as_str().expect("an id").to_owned()).collect();
    assert!(ids.iter().all(|id| text.contains(id)), "{text}");
    printed(&mut publisher.call(&["abort", &ids[0]]));
    printed(&mut publisher.call(&["publish", NAME, "--quiet"]));
    assert_eq!(publisher.reads("ls"), "d\ng\nsecond\n");
}

/// Unpacking an archive and running a command in the tree are one revision.
#[test]
fn an_ingest_and_the_command_after_it_are_one_revision() {
    for person in TestUser::all() {
        let publisher = Publisher::new(person);
        let (storage, keys) = (publisher.workshop.home("storage"), publisher.workshop.home("keys"));
        let (archive, transactions) =
            (publisher.workshop.home("a.tar"), publisher.workshop.home("transactions"));
        let packed =
            person.command("tar").args(["-C", &publisher.workshop.tree(), "-cf", &archive, "d"]).status();
        assert!(packed.expect("tar").success());
        let ingest = |script: &str| {
            let places = ["--storage", &storage, "--keys", &keys, "--transactions", &transactions, "--quiet"];
            let arguments =
                [&["ingest", NAME, &archive, "--to", "/new", "--then", script], &places[..]].concat();
            publisher.workshop.world.esker(&arguments)
        };
        printed(&mut ingest("cat d/e/f >copy; rm -r d/e; touch ../beside"));
        assert_eq!(publisher.revision(), 2, "{person:?}");
        assert_eq!(publisher.reads("cat new/copy; ls new/d; ls"), "f\nbeside\nd\ng\nnew\n");
        // A command that fails keeps the archive, too.
        complaint(&mut ingest("echo more >>copy; exit 3"), 3);
        assert_eq!(publisher.revision(), 2);
        let shown = printed(&mut publisher.call(&["show", NAME]));
        assert!(shown.contains("/new/d/e/f") && shown.contains("/new/copy"), "{shown}");
        printed(&mut publisher.call(&["publish", NAME, "--quiet"]));
        assert_eq!(publisher.reads("cat new/copy; ls new/d"), "f\nmore\ne\n");
        assert_eq!(publisher.revision(), 3);
    }
}

/// Two transactions of one revision are both published, unless they changed the same path.
#[test]
fn a_transaction_is_published_on_top_of_another_or_kept_in_conflict() {
    let publisher = Publisher::new(TestUser::ordinary());
    for (name, script) in
        [("first", "echo 1 >g; touch one"), ("second", "echo 2 >g; touch two"), ("third", "touch three")]
    {
        let output = publisher.begin(&["--keep", "--message", name], script).output().expect("esker");
        assert!(output.status.success(), "{}", words(&output));
    }
    let ids: Vec<String> =
        publisher.list().iter().map(|one| one["id"].as_str().expect("an id").to_owned()).collect();
    printed(&mut publisher.call(&["publish", &ids[0], "--quiet"]));
    let text = complaint(&mut publisher.call(&["publish", &ids[1], "--quiet"]), 1);
    assert!(text.contains("/g") && text.contains("is kept"), "{text}");
    printed(&mut publisher.call(&["publish", &ids[2], "--quiet"]));
    assert_eq!(publisher.reads("cat g; ls"), "1\nd\ng\none\nthree\n");
    assert_eq!(publisher.list().len(), 1);
}

/// A transaction on a branch is published there, at once or after it was kept, also if the tag that it began at moved.
#[test]
fn a_transaction_on_a_branch_leaves_the_head() {
    let publisher = Publisher::new(TestUser::ordinary());
    let tags = |arguments: &[&str]| {
        let output = publisher.workshop.esker(&[&["tag"], arguments].concat());
        assert!(output.status.success(), "{}", words(&output));
        String::from_utf8(output.stdout).expect("text")
    };
    tags(&["add", NAME, "v1"]);
    let text = complaint(&mut publisher.begin(&["--branch", "fix", "--from", "v1"], "touch never"), 2);
    assert!(text.contains("needs a tag") && text.contains("--keep"), "{text}");
    let begin = ["--branch", "fix", "--from", "v1", "--keep"];
    assert!(publisher.begin(&begin, "echo fixed >fixed").status().expect("esker").success());
    assert!(publisher.begin(&[], "echo head >head").status().expect("esker").success());
    tags(&["move", NAME, "v1"]);
    assert!(printed(&mut publisher.call(&["list"])).contains("of branch fix"));
    printed(&mut publisher.call(&["publish", NAME, "--tag", "f1"]));
    let more = publisher.begin(&["--branch", "fix", "--tag", "f2"], "ls; echo more >more").output();
    let more = String::from_utf8(more.expect("esker").stdout).expect("text");
    assert!(more.starts_with("d\nfixed\ng\n"), "{more}");
    assert_eq!((publisher.revision(), publisher.reads("ls")), (2, "d\ng\nhead\n".to_owned()));
    let listed = tags(&["list", NAME, "--branches"]);
    assert!(listed.contains("fix  since revision 2  2 tags, newest f2: revision 3"), "{listed}");
}

/// Parameters of clients say how a mount shows a repository on this machine; a transaction shows what is published, and
/// publishes no translation.
///
/// > K10: A transaction shows owners and modes as published, whatever the configuration of clients on the machine says, and so publishes none that it translates.
#[test]
fn a_transaction_of_root_ignores_the_parameters_of_clients() {
    if !TestUser::myself().is_root() {
        skip!("only root publishes the owners of others");
    }
    let publisher = Publisher::new(TestUser::myself());
    let world = &publisher.workshop.world;
    let printed_by = |script: &str| {
        let mut call = publisher.begin(&[], script);
        configure_as_client(world, &mut call);
        let output = call.output().expect("running esker");
        assert!(output.status.success(), "{}", words(&output));
        String::from_utf8(output.stdout).expect("text")
    };
    printed_by("chown 12:13 d/e/f && chmod 0600 d/e/f && chmod 0700 d");
    // The parameters are in force for clients of this machine.
    let mut client = world.esker(&["config", "show", NAME]);
    configure_as_client(world, &mut client);
    let said = words(&client.output().expect("running esker"));
    assert!(said.contains("CVMFS_WORLD_READABLE"), "{said}");
    let seen = printed_by("stat -c %u:%g:%a d/e/f d && touch d/e/f && mv d/e moved && ln moved/f moved/g");
    assert!(seen.starts_with("12:13:600\n0:0:700\n"), "{seen}");
    let seen = printed_by("stat -c %u:%g:%a moved/f moved/g d && exit 0");
    assert!(seen.starts_with("12:13:600\n12:13:600\n0:0:700\n"), "{seen}");
    let mut stat = world.esker(&[
        "stat",
        "--json",
        &format!("file://{}/{NAME}", publisher.workshop.home("storage")),
        "/moved/f",
    ]);
    stat.args(["--public-key", &format!("{}/{NAME}.pub", publisher.workshop.home("keys"))]);
    let stat: Value = serde_json::from_str(&printed(&mut stat)).expect("JSON");
    assert!(stat.to_string().contains("\"uid\":12"), "{stat}");
}

/// Gives a call the configuration of a client that translates owners and modes.
fn configure_as_client(world: &crate::test_env::TestEnv, call: &mut Command) {
    let url = format!("file://{}/@fqrn@", world.path("home/storage").display());
    let lines = format!(
        "CVMFS_HTTP_PROXY=DIRECT\nCVMFS_SERVER_URL={url}\nCVMFS_CLAIM_OWNERSHIP=yes\nCVMFS_WORLD_READABLE=yes\n\
         CVMFS_UID_MAP=/etc/ids\nCVMFS_GID_MAP=/etc/ids\n"
    );
    crate::configuring::write_files(world, &[("/etc/cvmfs/default.local", &lines), ("/etc/ids", "* 77\n")]);
    call.env("ESKER_CONFIG_ROOT", world.path("root"));
}
