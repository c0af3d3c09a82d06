//! Transactions that stay open: commands of other terminals enter them.

use std::io::{BufRead as _, BufReader, Write as _};
use std::process::{Child, ChildStdin, Command, Stdio};

use esker_testkit::waiting::until;
use rustix::process::Signal;
use serde_json::Value;

use super::Publisher;
use crate::containers::rootfs::Rootfs;
use crate::daemons::{signal, wait_until_gone};
use crate::namespaces::call_where;
use crate::publishing::NAME;
use crate::test_env::{PATIENCE, complaint, printed, words};
use crate::test_user::TestUser;

/// Begins a transaction that stays open, and returns its id.
pub(crate) fn open(publisher: &Publisher, arguments: &[&str]) -> String {
    let (storage, keys) = (publisher.workshop.home("storage"), publisher.workshop.home("keys"));
    let places = ["--open", "--quiet", "--storage", &storage, "--keys", &keys];
    printed(&mut publisher.call(&[&[NAME], arguments, &places].concat())).trim_end().to_owned()
}

/// Returns a call that runs a script in an open transaction.
pub(crate) fn enter(publisher: &Publisher, id: &str, script: &str) -> Command {
    publisher.call(&["enter", id, "--", "sh", "-ec", script])
}

/// A command inside of a transaction, which waits for the end of its input.
struct Waiting {
    child: Child,
    input: ChildStdin,
}

impl Waiting {
    fn begin(publisher: &Publisher, id: &str) -> Waiting {
        let mut call = publisher.call(&["enter", id, "--", "cat"]);
        let mut child =
            call.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::null()).spawn().expect("esker");
        let mut input = child.stdin.take().expect("a pipe");
        input.write_all(b"runs\n").expect("input");
        let mut line = String::new();
        BufReader::new(child.stdout.as_mut().expect("a pipe")).read_line(&mut line).expect("a line");
        assert_eq!(line, "runs\n");
        Waiting { input, child }
    }

    fn end(self) {
        let Waiting { mut child, input } = self;
        drop(input);
        assert!(child.wait().expect("an end").success());
    }
}

/// Returns the numbers of the two processes in the record of a transaction.
fn holders(publisher: &Publisher) -> [u32; 2] {
    let open = publisher.list()[0]["open"].clone();
    ["holder", "mount"].map(|name| open[name].as_u64().expect("a number").try_into().expect("a number"))
}

/// Commands of several terminals change one tree at the same time. It is published once none of them is inside, and nothing
/// of it is left.
#[test]
fn an_open_transaction_is_entered_by_several_commands_and_published() {
    for person in TestUser::all() {
        let publisher = Publisher::new(person);
        let id = open(&publisher, &["/d", "--tag", "opened"]);
        let listed = printed(&mut publisher.call(&["list"]));
        assert!(listed.contains(", no command inside"), "{listed}");
        let processes = holders(&publisher);
        let script =
            format!("test \"$PWD\" = /cvmfs/{NAME}/d; test $ESKER_TRANSACTION = {id}; echo 1 >one; id -u");
        assert_eq!(printed(&mut enter(&publisher, &id, &script)), format!("{}\n", person.uid));
        assert_eq!(enter(&publisher, NAME, "exit 7").output().expect("esker").status.code(), Some(7));
        let terminated = enter(&publisher, NAME, "kill -TERM $$").output().expect("esker");
        assert_eq!(std::os::unix::process::ExitStatusExt::signal(&terminated.status), Some(15));
        complaint(&mut publisher.call(&["enter", &id, "--", "/absent"]), 127);

        let inside = Waiting::begin(&publisher, &id);
        printed(&mut enter(&publisher, &id, "cat one; mv one two; touch ../d/e/new"));
        let outside = complaint(&mut enter(&publisher, &id, "touch ../outside"), 1);
        assert!(outside.contains("Read-only"), "{outside}");
        let shown = printed(&mut publisher.call(&["show", &id]));
        assert!(shown.contains("/d/two") && !shown.contains("/d/one"), "{shown}");
        for ending in ["publish", "abort"] {
            let text = complaint(&mut publisher.call(&[ending, &id]), 1);
            assert!(text.contains("has commands inside: cat (") && text.contains("--force"), "{text}");
        }
        let text = complaint(&mut publisher.call(&["resume", &id, "--", "true"]), 1);
        assert!(
            text.contains("is open") && text.contains(&format!("esker transaction enter {id}")),
            "{text}"
        );
        let listed = publisher.list();
        assert_eq!(
            (&listed[0]["state"], &listed[0]["inside"][0]["program"]),
            (&"open".into(), &"cat".into())
        );
        inside.end();
        printed(&mut publisher.call(&["publish", &id, "--quiet"]));
        assert_eq!(publisher.reads("cat d/two; ls d/e"), "1\nf\nnew\n");
        let tags = publisher.workshop.esker(&["tag", "show", NAME, "opened", "--json"]);
        assert_eq!(
            serde_json::from_slice::<Value>(&tags.stdout).expect("JSON")["revision"],
            2,
            "{}",
            words(&tags)
        );
        assert_eq!(publisher.list(), [Value::Null; 0]);
        processes.into_iter().for_each(wait_until_gone);
        assert_eq!(publisher.mounts(), Vec::<String>::new(), "nothing is left mounted");
        let text = complaint(&mut enter(&publisher, &id, "true"), 2);
        assert!(text.contains("there is no transaction"), "{text}");
    }
}

/// What a command leaves running stays inside, and ends with the transaction where that is wanted. A holder that was killed
/// leaves a transaction that is opened again.
#[test]
fn an_open_transaction_whose_holder_was_killed_is_opened_again() {
    for person in TestUser::all() {
        let publisher = Publisher::new(person);
        let id = open(&publisher, &[]);
        let processes = holders(&publisher);
        let inside = Waiting::begin(&publisher, &id);
        signal(processes[0], Signal::KILL);
        let Waiting { mut child, input } = inside;
        assert!(!child.wait().expect("an end").success(), "commands end with the mount");
        drop(input);
        assert!(until(PATIENCE, || publisher.states() == ["interrupted"]), "{:?}", publisher.states());
        assert_eq!(publisher.mounts(), Vec::<String>::new(), "nothing is left mounted");
        let text = complaint(&mut enter(&publisher, &id, "true"), 2);
        assert!(text.contains("is not open") && text.contains("resume"), "{text}");

        let (storage, keys) = (publisher.workshop.home("storage"), publisher.workshop.home("keys"));
        printed(&mut publisher.call(&["resume", &id, "--open", "--quiet"]));
        printed(&mut enter(&publisher, &id, "echo new >new; sleep 1000 >/dev/null 2>&1 &"));
        complaint(&mut publisher.call(&["publish", &id, "--quiet"]), 1);
        printed(&mut publisher.call(&["publish", &id, "--quiet", "--force"]));
        assert_eq!(publisher.reads("cat new"), "new\n");
        // One that was dropped is as if it had never been.
        let id = open(&publisher, &[]);
        printed(&mut enter(&publisher, &id, "touch more"));
        let processes = holders(&publisher);
        printed(&mut publisher.call(&["abort", &id]));
        processes.into_iter().for_each(wait_until_gone);
        assert_eq!((publisher.list().len(), publisher.revision()), (0, 2));
        // One whose tree can't be mounted is not begun.
        let places = [NAME, "--open", "--storage", &storage, "--keys", &keys];
        let obstacle = "echo 0 > /proc/sys/user/max_user_namespaces";
        let output = call_where(&publisher.workshop.world, &publisher.call(&places), obstacle);
        assert_eq!(output.status.code(), Some(1), "{}", words(&output));
        assert!(words(&output).contains("user.max_user_namespaces is 0"), "{}", words(&output));
        assert_eq!(publisher.list(), [Value::Null; 0]);
    }
}

/// A container that is started inside has the tree of the transaction.
#[test]
fn a_container_shows_an_open_transaction() {
    let publisher = Publisher::new(TestUser::ordinary());
    let world = &publisher.workshop.world;
    let image = Rootfs::new(&world.path("image"));
    let id = open(&publisher, &[]);
    let program = world.program().to_str().expect("text");
    let image = image.path().to_str().expect("text").to_owned();
    let script = format!("echo contained >/cvmfs/{NAME}/new; ls /made-for-this-test");
    let run = ["enter", &id, "--", program, "run", &image, "--bind", "/cvmfs", "--", "sh", "-ec", &script];
    printed(&mut publisher.call(&run));
    printed(&mut publisher.call(&["publish", &id, "--quiet"]));
    assert_eq!(publisher.reads("cat new"), "contained\n");
}
