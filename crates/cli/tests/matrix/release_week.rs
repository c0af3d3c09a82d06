//! The week of a release manager, with the binary alone: from the first revision to a check of every byte.

mod builds;
mod dead_ends;

use std::fs;
use std::path::Path;

use serde_json::{Value, json};

use crate::publishing::{NAME, Workshop};
use crate::test_env::{printed, words};
use crate::test_user::TestUser;
use crate::transactions::Publisher;
use builds::{install_a_project, install_a_wheel};

/// Every step shows what it did, and each later step goes on from it.
#[test]
fn a_release_managers_week_of_commands_succeeds() {
    for person in TestUser::all() {
        let week = Week { publisher: Publisher::new(person) };
        week.describe_and_configure();
        install_a_project(&week.publisher);
        install_a_wheel(&week.publisher);
        week.mend_and_drop();
        week.publish_folders();
        week.tag_and_compare();
        week.undo_and_roll_back();
        week.rotate_the_key();
        week.collect();
        week.check_and_mount();
    }
}

struct Week {
    publisher: Publisher,
}

/// Returns a field of all entries of an array.
#[track_caller]
fn fields(array: &Value, name: &str) -> Vec<Value> {
    array.as_array().expect("an array").iter().map(|one| one[name].clone()).collect()
}

impl Week {
    fn workshop(&self) -> &Workshop {
        &self.publisher.workshop
    }

    /// Returns the output of a command.
    #[track_caller]
    fn text(&self, arguments: &[&str]) -> String {
        let output = self.workshop().esker(arguments);
        assert!(output.status.success(), "{arguments:?}: {}", words(&output));
        String::from_utf8(output.stdout).expect("text")
    }

    /// Returns the JSON that a command prints.
    #[track_caller]
    fn json(&self, arguments: &[&str]) -> Value {
        serde_json::from_str(&self.text(&[arguments, &["--json"]].concat())).expect("JSON")
    }

    fn revision(&self) -> u64 {
        self.json(&["log", NAME, "--limit", "1"])[0]["revision"].as_u64().expect("a number")
    }

    fn tags(&self) -> Vec<String> {
        let names = fields(&self.json(&["tag", "list", NAME]), "name");
        names.iter().map(|name| name.as_str().expect("text").to_owned()).collect()
    }

    #[track_caller]
    fn assert_tags(&self, there: &[&str], absent: &[&str]) {
        let tags = self.tags();
        let has = |name: &&&str| tags.iter().any(|tag| tag == **name);
        assert_eq!(there.iter().filter(has).count(), there.len(), "{there:?} in {tags:?}");
        assert_eq!(absent.iter().filter(has).count(), 0, "{absent:?} not in {tags:?}");
    }

    /// Writes a folder of the publisher, and publishes it as `/docs`.
    fn publish_docs(&self, text: &str, options: &[&str]) -> Value {
        let folder = self.workshop().home("docs");
        self.workshop().world.person.does(|| {
            fs::create_dir_all(&folder).expect("a folder");
            fs::write(Path::new(&folder).join("guide"), text).expect("a file");
        });
        self.workshop().json(&[&["publish", NAME, &folder, "--to", "/docs"], options].concat())
    }

    /// The new repository is listed and described; revisions get no automatic tags, which would keep all of them.
    fn describe_and_configure(&self) {
        let storage = self.workshop().home("storage");
        let list =
            printed(&mut self.workshop().world.esker(&["repo", "list", "--json", "--storage", &storage]));
        let list: Value = serde_json::from_str(&list).expect("JSON");
        assert_eq!(fields(&list, "name"), [json!(NAME)], "{list}");
        let before = self.text(&["repo", "set", NAME, "--list"]);
        assert!(before.contains("automatic_tags"), "{before}");
        self.text(&["repo", "set", NAME, "automatic_tags=off"]);
        let info = self.text(&["repo", "info", NAME]);
        assert!(info.contains(NAME) && info.contains("whitelist"), "{info}");
    }

    /// A build that fails is looked at, mended and published; another one is dropped.
    fn mend_and_drop(&self) {
        let publisher = &self.publisher;
        let output =
            publisher.begin(&["/broken", "--create"], "echo half >result; exit 1").output().expect("esker");
        assert_eq!(output.status.code(), Some(1), "{}", words(&output));
        printed(&mut publisher.call(&["resume", NAME, "--quiet", "--", "sh", "-ec", "echo whole >result"]));
        assert_eq!(publisher.reads("cat broken/result"), "whole\n");
        let output = publisher.begin(&["--keep"], "rm -r broken d").output().expect("esker");
        assert!(output.status.success(), "{}", words(&output));
        printed(&mut publisher.call(&["abort", NAME]));
        let list = printed(&mut publisher.call(&["list", "--json"]));
        assert_eq!(serde_json::from_str::<Value>(&list).expect("JSON"), json!([]));
        assert_eq!(publisher.reads("ls d"), "e\n");
    }

    /// A folder is published three times, beside all that transactions made; the first and the last one get tags.
    fn publish_folders(&self) {
        let before = self.revision();
        let plan = self.publish_docs("one\ntwo\n", &["--dry-run"]);
        assert_eq!((&plan["published"], &plan["differences"]["added"]["files"]), (&json!(false), &json!(1)));
        assert_eq!(self.revision(), before);
        let first = self.publish_docs("one\ntwo\n", &["--tag", "docs-1", "--message", "the first guide"]);
        assert_eq!((&first["revision"], &first["tag"]), (&json!(before + 1), &json!("docs-1")));
        self.publish_docs("one\n2\n", &[]);
        let last = self.publish_docs("one\n2\nthree\n", &["--tag", "docs-3"]);
        assert_eq!(last["revision"], before + 3);
        let again = self.workshop().json(&["publish", NAME, &self.workshop().home("docs"), "--to", "/docs"]);
        assert_eq!((&again["published"], &again["revision"]), (&json!(false), &json!(before + 3)));
        assert_eq!(self.publisher.reads("cat docs/guide broken/result"), "one\n2\nthree\nwhole\n");
    }

    /// A tag is added, moved and removed; the difference and the log name what was published.
    fn tag_and_compare(&self) {
        let last = self.revision();
        self.text(&["tag", "add", NAME, "production", "--revision", "docs-1", "--message", "for all"]);
        self.text(&["tag", "move", NAME, "production", "--revision", "docs-3"]);
        let shown = self.json(&["tag", "show", NAME, "production"]);
        assert_eq!((&shown["revision"], &shown["description"]), (&json!(last), &json!("for all")));
        self.text(&["tag", "add", NAME, "mistake"]);
        self.text(&["tag", "remove", NAME, "mistake"]);
        self.assert_tags(&["docs-1", "docs-3", "production", "trunk", "trunk-previous"], &["mistake"]);

        let patch = self.text(&["diff", NAME, "docs-1", "docs-3", "/docs/guide", "--patch"]);
        let expected = "--- a/docs/guide\n+++ b/docs/guide\n@@ -1,2 +1,3 @@\n one\n-two\n+2\n+three\n";
        assert_eq!(patch, expected);
        let stat = self.text(&["diff", NAME, "docs-1", "docs-3", "--stat"]);
        assert!(stat.contains("files     0 added, 1 changed, 0 removed"), "{stat}");
        let log = self.json(&["log", NAME, "/docs"]);
        assert_eq!(fields(&log, "revision"), [last, last - 1, last - 2].map(Value::from), "{log}");
        assert!(fields(&log, "descriptions")[2].to_string().contains("the first guide"), "{log}");
        let log = self.json(&["log", NAME, "/broken"]);
        assert_eq!(fields(&log, "path"), [json!("added")], "{log}");
    }

    /// A mistake is undone, the repository returns to a tag, and comes back from there by number.
    fn undo_and_roll_back(&self) {
        let good = self.revision();
        self.publish_docs("a mistake\n", &["--tag", "wrong"]);
        self.text(&["undo", NAME]);
        assert_eq!(self.revision(), good + 2);
        assert_eq!(self.publisher.reads("cat docs/guide"), "one\n2\nthree\n");
        self.assert_tags(&["docs-1", "docs-3", "production"], &["wrong"]);

        let plan = self.text(&["rollback", NAME, "--to", "docs-1", "--dry-run"]);
        assert!(plan.contains("/docs/guide") && plan.contains("would be removed"), "{plan}");
        let back = self.json(&["rollback", NAME, "--to", "docs-1"]);
        assert_eq!((&back["revision"], &back["tag"]), (&json!(good + 3), &json!("docs-1")), "{back}");
        assert_eq!(self.publisher.reads("cat docs/guide"), "one\ntwo\n");
        self.assert_tags(&["docs-1", "trunk"], &["docs-3", "production"]);

        self.text(&["rollback", NAME, "--to", &good.to_string()]);
        assert_eq!(self.publisher.reads("cat docs/guide broken/result"), "one\n2\nthree\nwhole\n");
        self.assert_tags(&["trunk"], &["docs-1", "docs-3"]);
        self.text(&["tag", "add", NAME, "production"]);
    }

    /// Returns the listed certificates, and those that signed the head.
    fn certificates(&self) -> (Vec<String>, Vec<String>) {
        let all = self.json(&["key", "list", NAME]);
        let with = |field: &str| {
            let all = all["certificates"].as_array().expect("an array").iter();
            let some = all.filter(|one| one[field] == true);
            some.map(|one| one["fingerprint"].as_str().expect("text").to_owned()).collect::<Vec<_>>()
        };
        (with("listed"), with("signed_head"))
    }

    /// The publisher's key is replaced, and the repository is mountable after every step.
    fn rotate_the_key(&self) {
        let (listed, old) = self.certificates();
        assert_eq!(listed, old);
        let started = self.json(&["key", "rotate", NAME])["rotation"].clone();
        let new = started["new"].as_str().expect("a fingerprint").to_owned();
        assert_eq!((&started["old"], &started["finished"]), (&json!(old[0]), &json!(false)), "{started}");
        assert_eq!((self.certificates().0.len(), self.certificates().1), (2, old.clone()));
        assert_eq!(self.publisher.reads("cat broken/result"), "whole\n");
        self.publish_docs("one\n2\n3\n", &[]);
        assert_eq!((self.certificates().0.len(), self.certificates().1), (2, vec![new.clone()]));
        assert_eq!(self.publisher.reads("cat docs/guide"), "one\n2\n3\n");
        let finished = self.json(&["key", "rotate", NAME, "--finish"])["rotation"].clone();
        assert_eq!(finished["finished"], true, "{finished}");
        assert_eq!(self.certificates(), (vec![new.clone()], vec![new]));
        assert_eq!(self.publisher.reads("cat docs/guide"), "one\n2\n3\n");
    }

    /// Objects that only dropped revisions name are listed, are deleted after the grace time, and nothing else is.
    fn collect(&self) {
        // Its content is in no other revision.
        self.publish_docs("dropped by the collect\n", &[]);
        self.publish_docs("one\n2\n3\n", &["--tag", "docs-4"]);
        let collect = ["collect", NAME, "--keep-tags"];
        let plan = self.workshop().json(&[&collect[..], &["--dry-run"]].concat())["result"]["plan"].clone();
        let goes = plan["objects"].as_u64().expect("a number");
        assert!(goes > 2 && fields(&plan["dropped"], "revision").len() > 2, "{plan}");
        let listed = self.workshop().json(&[&collect[..], &["--grace", "1h"]].concat())["result"].clone();
        assert_eq!((&listed["deleted"]["objects"], &listed["waiting"]["objects"]), (&json!(0), &json!(goes)));
        // A publisher that needs a listed object meanwhile has it in its revision.
        self.publish_docs("dropped by the collect\n", &["--tag", "again"]);
        let swept = self.workshop().json(&[&collect[..], &["--grace", "0"]].concat())["result"].clone();
        let deleted = swept["deleted"]["objects"].as_u64().expect("a number");
        assert!(deleted > 0 && swept["waiting"].is_null(), "{swept}");
        assert_eq!(self.publisher.reads("cat docs/guide"), "dropped by the collect\n");
        self.assert_tags(&["production", "docs-4", "again", "trunk"], &[]);
    }

    /// Every byte is right, and the head and a tag are mounted.
    fn check_and_mount(&self) {
        let workshop = self.workshop();
        let checked = workshop.json(&["check", NAME, "--data"]);
        assert_eq!(checked["report"]["findings"], json!([]), "{checked}");
        let url = workshop.published();
        for (place, expected) in
            [(url.clone(), "dropped by the collect\n"), (format!("{url}@production"), "one\n2\nthree\n")]
        {
            let mounted = workshop.world.mount_of(&place, &[]);
            let (guide, broken) = (mounted.path("docs/guide"), mounted.path("broken/result"));
            let read = mounted.does(|| (fs::read_to_string(guide), fs::read_to_string(broken)));
            assert_eq!((&*read.0.expect("a file"), &*read.1.expect("a file")), (expected, "whole\n"));
        }
    }
}
