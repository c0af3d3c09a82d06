//! The week of a release manager through all that once stopped or misled one, each time with the way on.

use std::fs;
use std::io::{BufRead as _, BufReader, Write as _};
use std::path::Path;
use std::process::{Command, Output, Stdio};

use esker_testkit::mirror::Mirror;
use esker_testkit::programs;
use esker_testkit::waiting::until;
use serde_json::{Value, json};

use crate::publishing::{NAME, Workshop};
use crate::test_env::{PATIENCE, complaint, printed, words};
use crate::test_user::TestUser;

const SECOND: &str = "second.test";

#[test]
fn a_release_managers_week_has_no_dead_end() {
    let workshop = Workshop::with(TestUser::ordinary(), |tree| {
        fs::create_dir_all(tree.join("tools")).expect("a folder");
        fs::write(tree.join("tools/version"), "1\n").expect("a file");
        for (file, link) in [("a1", "a2"), ("b1", "b2")] {
            fs::write(tree.join(file), "1\n").expect("a file");
            fs::hard_link(tree.join(file), tree.join(link)).expect("a link");
        }
    });
    let week = Week { workshop };
    week.monday_mistakes_are_refused_or_kept();
    week.tuesday_conflicts_are_decided();
    week.wednesday_several_terminals_work_in_one_tree();
    week.thursday_publishers_work_side_by_side();
    week.friday_all_repositories_are_cared_for();
}

struct Week {
    workshop: Workshop,
}

impl Week {
    /// Returns a call with the folders that commands use without options.
    fn call(&self, arguments: &[&str]) -> Command {
        let mut command = self.workshop.world.esker(arguments);
        command.env("ESKER_STORAGE", self.workshop.home("storage"));
        command
    }

    #[track_caller]
    fn done(&self, arguments: &[&str]) -> String {
        printed(&mut self.call(arguments))
    }

    #[track_caller]
    fn json(&self, arguments: &[&str]) -> Value {
        serde_json::from_str(&self.done(&[arguments, &["--json"]].concat())).expect("JSON")
    }

    #[track_caller]
    fn refused(&self, arguments: &[&str], code: i32, reasons: &[&str]) {
        let text = complaint(&mut self.call(arguments), code);
        assert!(reasons.iter().all(|reason| text.contains(reason)), "{reasons:?} in {text}");
    }

    /// Returns the arguments of a transaction that runs a script.
    fn transaction<'a>(options: &[&'a str], script: &'a str) -> Vec<&'a str> {
        [&["transaction", NAME, "--quiet"], options, &["--", "sh", "-ec", script]].concat()
    }

    #[track_caller]
    fn changes(&self, options: &[&str], script: &str) -> Output {
        let output = self.call(&Self::transaction(options, script)).output().expect("esker");
        assert!(output.status.success(), "{}", words(&output));
        output
    }

    /// Returns the ids of the transactions that are there.
    fn open(&self) -> Vec<String> {
        let all = self.json(&["transaction", "list"]);
        let ids = all.as_array().expect("an array").iter().map(|one| one["id"].as_str().expect("an id"));
        ids.map(str::to_owned).collect()
    }

    fn reads(&self, script: &str) -> String {
        let script = format!("cd /cvmfs/{NAME}; {script}");
        self.done(&["run", NAME, "--", "sh", "-ec", &script])
    }

    fn storage(&self, path: &str) -> String {
        self.workshop.home(&format!("storage/{NAME}/{path}"))
    }

    fn monday_mistakes_are_refused_or_kept(&self) {
        self.done(&["repo", "create", NAME]);
        self.done(&["publish", NAME, &self.workshop.tree(), "--tag", "v1", "--message", "the first"]);
        self.refused(&Self::transaction(&["/tool"], "touch new"), 2, &["/tool", "--create makes it"]);
        self.refused(&Self::transaction(&["--tag", "v1"], "touch new"), 2, &["v1"]);
        assert_eq!(self.open(), [""; 0]);
        self.changes(&["/docs", "--create"], "echo 1 >guide");

        // A build that fails keeps its tag, message and id.
        let begun =
            Self::transaction(&["--tag", "v2", "--message", "the second", "--json"], "echo 2 >two; exit 7");
        let failed = self.call(&begun).output().expect("esker");
        let report: Value = serde_json::from_slice(&failed.stdout).expect("JSON");
        assert_eq!((failed.status.code(), &report["outcome"]), (Some(7), &json!({"code": 7})), "{report}");
        self.done(&["transaction", "publish", report["transaction"].as_str().expect("an id"), "--quiet"]);
        assert_eq!(self.json(&["tag", "show", NAME, "v2"])["description"], "the second");
        let log = self.done(&["log", NAME]);
        assert!(log.contains("the first") && log.contains("the second"), "{log}");

        // The reader of the report is gone.
        let (reader, writer) = std::io::pipe().expect("a pipe");
        drop(reader);
        let mut call = self.call(&["transaction", NAME, "--", "touch", "piped"]);
        let output = call.stdout(writer).stderr(Stdio::piped()).output().expect("esker");
        assert!(output.status.success(), "{}", words(&output));
        assert_eq!(
            (self.open().len(), &*self.reads("ls docs piped two")),
            (0, "piped\ntwo\n\ndocs:\nguide\n")
        );
    }

    /// Keeps a transaction whose change contradicts the one of another publisher; returns its id.
    fn conflict(&self, number: u32) -> String {
        self.changes(&["--keep"], &format!("echo ours {number} >tools/version; echo {number} >tools/own"));
        let id = self.open().pop().expect("a transaction");
        self.changes(&[], &format!("echo theirs {number} >tools/version; echo {number} >tools/other"));
        let ways = ["/tools/version", "--theirs PATH|--ours PATH", "--rebase"];
        self.refused(&["transaction", "publish", &id, "--quiet"], 1, &ways);
        id
    }

    fn tuesday_conflicts_are_decided(&self) {
        let seen = |expected: &str| assert_eq!(self.reads("cd tools; cat version own other"), expected);
        let publish = |id: &str, how: &[&str]| {
            self.done(&[&["transaction", "publish", id, "--quiet"], how].concat());
        };
        publish(&self.conflict(1), &["--theirs", "/tools/version"]);
        seen("theirs 1\n1\n1\n");
        publish(&self.conflict(2), &["--ours", "/tools"]);
        seen("ours 2\n2\n2\n");
        publish(&self.conflict(3), &["--drop", "/tools/version"]);
        seen("theirs 3\n3\n3\n");
        let id = self.conflict(4);
        let look = "cat tools/version tools/other; echo both >tools/version";
        let resume = ["transaction", "resume", &id, "--rebase", "--quiet", "--", "sh", "-ec", look];
        assert!(self.done(&resume).starts_with("ours 4\n4\n"));
        seen("both\n4\n4\n");
        assert_eq!(self.open(), [""; 0]);
    }

    fn wednesday_several_terminals_work_in_one_tree(&self) {
        let hooks = self.storage(".esker/hooks");
        let log = self.workshop.home("hooks.log");
        let person = self.workshop.world.person;
        person.does(|| fs::create_dir_all(&hooks)).expect("a folder");
        for name in ["publish-after", "rollback-after", "tag-after"] {
            let script = format!("#!/bin/sh\necho {name} \"$ESKER_TAG\" $ESKER_PATH >>{log}\n");
            programs::write(person.command("sh"), &Path::new(&hooks).join(name), &script);
        }
        let id = self.done(&["transaction", NAME, "/tools", "--open", "--tag", "v3", "--quiet"]);
        let id = id.trim_end();
        let enter = |script: &str| self.call(&["transaction", "enter", id, "--", "sh", "-ec", script]);
        // Both are in one tree at the same time.
        let first = "mkfifo meet; echo ready; cat <meet; rm meet; exec cat";
        let mut inside = enter(first).stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().expect("esker");
        let mut said = BufReader::new(inside.stdout.take().expect("a pipe")).lines();
        let mut line = || said.next().expect("a line").expect("text");
        assert_eq!(line(), "ready");
        printed(&mut enter("printf '3\\nnew\\n' >version; echo hello >meet"));
        assert_eq!(line(), "hello");
        let mut input = inside.stdin.take().expect("a pipe");
        input.write_all(b"still here\n").expect("input");
        assert_eq!(line(), "still here");
        let listed = self.json(&["transaction", "list"]);
        assert_eq!(
            (&listed[0]["state"], &listed[0]["inside"][0]["program"]),
            (&json!("open"), &json!("cat"))
        );
        self.refused(&["transaction", "publish", id], 1, &["has commands inside: cat (", "--force"]);
        drop(input);
        inside.wait().expect("an end");
        let patch = self.done(&["transaction", "show", id, "--patch"]);
        assert!(patch.contains("--- a/tools/version") && patch.contains("-both\n+3\n+new\n"), "{patch}");
        let stat = self.json(&["transaction", "show", id, "--stat"]);
        assert_eq!((&stat["insertions"], &stat["deletions"]), (&json!(2), &json!(1)), "{stat}");
        self.done(&["transaction", "publish", id, "--quiet"]);
        self.done(&["undo", NAME]);
        self.done(&["tag", "add", NAME, "after"]);
        let said = fs::read_to_string(&log).expect("a log");
        assert!(said.starts_with("publish-after v3 /tools\nrollback-after"), "{said}");
        assert!(said.contains("tag-after after"), "{said}");
        fs::remove_dir_all(&hooks).expect("removing the hooks");
    }

    fn thursday_publishers_work_side_by_side(&self) {
        // They change different groups of hard links in one directory.
        self.changes(&["--keep"], "echo 2 >a1; ln -f a1 a2");
        self.changes(&[], "echo 2 >b1; ln -f b1 b2");
        self.done(&["transaction", "publish", NAME, "--quiet"]);
        assert_eq!(self.reads("cat a1 a2 b1 b2; stat -c %h a1 b2"), "2\n2\n2\n2\n2\n2\n");
        // The folder of a large one is deleted behind it.
        self.changes(&[], "mkdir many; cd many; seq 600 | xargs touch; touch keep.log");
        self.refused(&["remove", NAME, "/many/x*"], 2, &["/many/x*"]);
        self.done(&["remove", NAME, "/many/[0-9]*", "/docs", "--allow-shrink", "--quiet"]);
        assert_eq!(self.reads("ls many; ls -d docs 2>/dev/null || true"), "keep.log\n");
        let folder = self.workshop.home(".local/state/esker/transactions");
        let left = || fs::read_dir(&folder).expect("the folder").count();
        // The number of the folder stays.
        assert!(until(PATIENCE, || left() == 1), "{} are left", left());
    }

    fn friday_all_repositories_are_cared_for(&self) {
        // The own storage is found by name.
        let mountpoint = self.workshop.world.mountpoint().display().to_string();
        let mounted = self.call(&["mount", &format!("{NAME}@v2"), &mountpoint]).output().expect("esker");
        let said = words(&mounted);
        assert!(mounted.status.success() && said.contains("has no server in the configuration"), "{said}");
        let mounted = self.workshop.world.mounted();
        assert_eq!(
            mounted.does(|| fs::read_to_string(mounted.path("tools/version"))).expect("a file"),
            "1\n"
        );
        drop(mounted);
        self.refused(&["mount", "absent.test", &mountpoint], 2, &["lacks settings for absent.test"]);

        self.done(&["repo", "create", SECOND]);
        self.done(&["publish", SECOND, &self.workshop.tree()]);
        let both = format!("{NAME},{SECOND}");
        self.done(&["tag", "add", &both, "friday"]);
        self.done(&["tag", "move", &both, "friday", "--revision", "0"]);
        assert_eq!(self.done(&["tag", "list", NAME, SECOND]).matches("friday ").count(), 2);
        self.done(&["tag", "remove", "--all", "friday"]);
        self.refused(
            &["tag", "remove", "--all", "friday"],
            2,
            &["2 of 2 repositories have tags that were not changed"],
        );
        self.refused(&["tag", "add", NAME], 2, &["the name of a tag is missing"]);
        assert_eq!(self.done(&["repo", "resign", "--all"]).matches("accepted until").count(), 2);
        assert_eq!(self.done(&["check", "--all"]).matches("; checked ").count(), 2);

        // A repository with faults holds up no other; the error of its fault names the way out.
        fs::write(self.storage(".cvmfsreflog"), "damaged").expect("a file");
        let one = "1 of 2 repositories have faults or were not checked";
        let output = self.call(&["check", NAME, SECOND]).output().expect("esker");
        let said = words(&output);
        assert_eq!(output.status.code(), Some(4), "{said}");
        assert!(said.contains(&format!("{SECOND}: revision")) && said.contains(one), "{said}");
        let publish = ["publish", NAME, &self.workshop.tree(), "--to", "/again"];
        self.refused(&publish, 4, &["`esker check NAME --repair-reflog`"]);
        self.done(&["check", NAME, "--repair-reflog"]);
        self.done(&publish);
        let other = self.workshop.home(&format!("storage/{SECOND}"));
        self.refused(&["check", NAME, "--repair", &other], 2, &[&format!("it has the repository {SECOND}")]);
        let mirror = Mirror::serve(self.workshop.home("storage"));
        self.refused(
            &["check", NAME, "--repair", &mirror.url("absent.test")],
            2,
            &["there is no repository"],
        );
        self.done(&["check", NAME, "--data"]);
    }
}
