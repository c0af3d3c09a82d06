//! Tags, differences, logs and rollbacks with the binary alone.

use std::fs;
use std::path::Path;

use esker_testkit::mirror::Mirror;
use serde_json::Value;

use crate::publishing::{NAME, Workshop};
use crate::test_env::{complaint, words};
use crate::test_user::TestUser;

/// A repository with three revisions: `file` is added, changed, and removed; the tags v1 and v2 name the first two.
fn workshop() -> Workshop {
    let workshop = Workshop::with(TestUser::ordinary(), |top| {
        fs::create_dir(top).expect("a folder");
        fs::write(top.join("file"), "one\ntwo\nthree\n").expect("a file");
    });
    workshop.create();
    let tree = workshop.tree();
    let edit = |work: &(dyn Fn(&Path) + Sync)| {
        TestUser::ordinary().does(|| work(Path::new(&tree)));
    };
    workshop.json(&["publish", NAME, &tree, "--tag", "v1"]);
    edit(&|top| fs::write(top.join("file"), "one\n2\nthree\n").expect("a file"));
    workshop.json(&["publish", NAME, &tree, "--tag", "v2", "--message", "a better two"]);
    edit(&|top| fs::remove_file(top.join("file")).expect("a file"));
    edit(&|top| fs::write(top.join("other"), "other\n").expect("a file"));
    workshop.json(&["publish", NAME, &tree, "--allow-shrink"]);
    workshop
}

#[track_caller]
fn text(workshop: &Workshop, arguments: &[&str]) -> String {
    let output = workshop.esker(arguments);
    assert!(output.status.success(), "{}", words(&output));
    String::from_utf8(output.stdout).expect("text")
}

fn json(workshop: &Workshop, arguments: &[&str]) -> Value {
    serde_json::from_str(&text(workshop, &[arguments, &["--json"]].concat())).expect("JSON")
}

#[test]
fn a_difference_is_shown_in_four_forms() {
    let workshop = workshop();
    let summary = text(&workshop, &["diff", NAME]);
    assert!(summary.contains("removed  /file") && summary.contains("added    /other"), "{summary}");
    assert!(summary.contains("revision 2 to 3") && summary.contains("1 added"), "{summary}");
    let stat = text(&workshop, &["diff", NAME, "v1", "v2", "--stat"]);
    assert!(stat.contains("files     0 added, 1 changed, 0 removed"), "{stat}");
    let patch = text(&workshop, &["diff", NAME, "1", "2", "/file", "--patch"]);
    let expected = "--- a/file\n+++ b/file\n@@ -1,3 +1,3 @@\n one\n-two\n+2\n three\n";
    assert_eq!(patch, expected);
    for revisions in [&["v1", "v2"][..], &["v1", "v1"]] {
        let typo = [&["diff", NAME], revisions, &["/fil"]].concat();
        let output = workshop.esker(&typo);
        assert_eq!(output.status.code(), Some(2), "{}", words(&output));
        assert!(words(&output).contains("neither revision has `/fil`"), "{}", words(&output));
    }
    let found = json(&workshop, &["diff", NAME, "v1", "v2", "/file"]);
    let found = &found.as_array().expect("an array")[0];
    assert_eq!((&found["path"], &found["change"]), (&"/file".into(), &"changed".into()));
    assert_eq!((&found["old_size"], &found["new_size"]), (&14.into(), &12.into()));
    let attributes = found["attributes"].as_array().expect("an array");
    assert!(attributes.contains(&"content".into()), "{found}");
    // The same through the client, by URL.
    let mirror = Mirror::serve(workshop.home("storage"));
    let key = workshop.home(&format!("keys/{NAME}.pub"));
    let cache = workshop.world.cache().display().to_string();
    let url = mirror.url(NAME);
    let remote = workshop
        .world
        .esker(&["diff", &url, "1", "2", "/file", "--patch", "--public-key", &key, "--cache", &cache])
        .output()
        .expect("running esker");
    assert_eq!(String::from_utf8_lossy(&remote.stdout), expected, "{}", words(&remote));
}

#[test]
fn a_log_says_which_revision_changed_a_path() {
    let workshop = workshop();
    let all = json(&workshop, &["log", NAME]);
    let numbers: Vec<_> =
        all.as_array().expect("an array").iter().map(|one| one["revision"].clone()).collect();
    assert_eq!(numbers, [3, 2, 1, 0].map(Value::from));
    let descriptions = all[1]["descriptions"].as_array().expect("an array");
    assert!(descriptions.contains(&"a better two".into()), "{descriptions:?}");
    let branch = ["--branch", "fix", "--from", "v1", "--tag", "f1", "--message", "a fix of one"];
    workshop.json(&[&["publish", NAME, &workshop.tree(), "--allow-shrink"], &branch[..]].concat());
    let whole = text(&workshop, &["log", NAME]);
    assert!(whole.contains("  message   a better two\n") && !whole.contains("a fix"), "{whole}");
    let whole = text(&workshop, &["log", NAME, "--branch", "fix"]);
    assert!(whole.contains("(f1)") && whole.contains("  message   a fix of one\n"), "{whole}");
    assert!(whole.contains("(v1)") && !whole.contains("v2"), "{whole}");
    let refused = workshop.esker(&["log", NAME, "--branch", "none"]);
    assert!(words(&refused).contains("none") && !refused.status.success(), "{}", words(&refused));
    let text = text(&workshop, &["log", NAME, "/file"]);
    let lines: Vec<_> = text.lines().map(str::trim).filter(|line| line.starts_with("path ")).collect();
    assert_eq!(lines[0], "path      removed", "{text}");
    assert!(lines[1].starts_with("path      changed: content"), "{text}");
    assert_eq!(lines[2], "path      added");
    let one = json(&workshop, &["log", NAME, "/file", "--limit", "1"]);
    assert_eq!(one.as_array().map(Vec::len), Some(1));
}

#[test]
fn tags_are_added_moved_and_removed() {
    let workshop = workshop();
    let dry = json(&workshop, &["tag", "add", NAME, "stable", "--revision", "v1", "--dry-run"]);
    assert_eq!((&dry["added"][0]["name"], &dry["added"][0]["revision"]), (&"stable".into(), &1.into()));
    text(&workshop, &["tag", "add", NAME, "stable", "--revision", "v1", "--message", "use this"]);
    let refused = workshop.esker(&["tag", "add", NAME, "stable"]);
    assert_eq!(refused.status.code(), Some(2), "{}", words(&refused));
    assert!(words(&refused).contains("esker tag move"), "{}", words(&refused));
    text(&workshop, &["tag", "move", NAME, "stable", "--revision", "2"]);
    let shown = json(&workshop, &["tag", "show", NAME, "stable"]);
    assert_eq!((&shown["revision"], &shown["description"]), (&2.into(), &"use this".into()));
    let refused = workshop.esker(&["tag", "remove", NAME, "stable", "nothing"]);
    assert_eq!(refused.status.code(), Some(2), "{}", words(&refused));
    text(&workshop, &["tag", "remove", NAME, "stable", "v1"]);
    let tags = json(&workshop, &["tag", "list", NAME]);
    let names: Vec<_> = tags.as_array().expect("an array").iter().map(|tag| tag["name"].clone()).collect();
    assert!(names.contains(&"v2".into()) && names.contains(&"trunk".into()), "{names:?}");
    assert!(!names.contains(&"v1".into()) && !names.contains(&"stable".into()), "{names:?}");
}

#[test]
fn a_rollback_is_seen_by_clients_and_undone() {
    let workshop = workshop();
    let plan = text(&workshop, &["rollback", NAME, "--to", "v1", "--dry-run"]);
    assert!(plan.contains("added    /file") && plan.contains("would be removed"), "{plan}");
    text(&workshop, &["rollback", NAME, "--to", "v1"]);
    assert_eq!(text(&workshop, &["cat", &format!("{NAME}:/file")]), "one\ntwo\nthree\n");
    assert_eq!(text(&workshop, &["ls", &format!("{NAME}@v1:/")]), "file\n", "the tag is at revision 4");
    let refused = workshop.esker(&["undo", NAME]);
    assert!(words(&refused).contains("--to 3"), "{}", words(&refused));
    text(&workshop, &["rollback", NAME, "--to", "3"]);
    assert_eq!(text(&workshop, &["cat", &format!("{NAME}:/other")]), "other\n");
    let tags = text(&workshop, &["tag", "list", NAME]);
    assert!(!tags.contains("v1"), "revision 4, which the tag named, is after revision 3: {tags}");
}

#[test]
fn a_mount_of_a_tag_shows_its_revision() {
    let workshop = workshop();
    let url = workshop.published();
    let mounted = workshop.world.mount_of(&format!("{url}@v2"), &[]);
    let path = mounted.path("file");
    assert_eq!(mounted.does(|| fs::read(&path).expect("a file")), b"one\n2\nthree\n");
    drop(mounted);
    let mut both = workshop.world.esker(&["mount", &format!("{url}@v2"), "--tag", "v1"]);
    both.arg(workshop.world.mountpoint()).arg("--public-key").arg(workshop.world.path("key.pub"));
    let two = complaint(both.arg("--cache").arg(workshop.world.cache()), 2);
    assert!(two.contains("two revisions"), "{two}");
}

#[test]
fn a_branch_is_published_and_listed_while_the_head_stays() {
    let workshop = workshop();
    let tree = workshop.tree();
    let head = json(&workshop, &["log", NAME, "--limit", "1"]);
    let refused = workshop.esker(&["publish", NAME, &tree, "--branch", "fix", "--from", "v1"]);
    assert_eq!(refused.status.code(), Some(2), "{}", words(&refused));
    assert!(words(&refused).contains("--tag"), "{}", words(&refused));
    let refused = workshop.esker(&["publish", NAME, &tree, "--branch", "fix", "--tag", "f1"]);
    assert!(words(&refused).contains("no branch `fix`"), "{}", words(&refused));
    assert!(words(&refused).contains("--from"), "{}", words(&refused));
    let to = ["--to", "/fix"];
    let publish = |more: &[&str]| text(&workshop, &[&["publish", NAME, &tree], &to[..], more].concat());
    let report = publish(&["--branch", "fix", "--from", "v1", "--tag", "f1"]);
    assert!(report.contains("branch    fix; the head stays"), "{report}");
    TestUser::ordinary().does(|| fs::write(Path::new(&tree).join("more"), "more").expect("a file"));
    publish(&["--branch", "fix", "--tag", "f2"]);

    assert_eq!(json(&workshop, &["log", NAME, "--limit", "1"]), head);
    assert_eq!(text(&workshop, &["ls", &format!("{NAME}@f2:/")]), "file\nfix\n");
    assert_eq!(text(&workshop, &["cat", &format!("{NAME}@f2:/fix/more")]), "more");
    let listed = text(&workshop, &["tag", "list", NAME, "--branches"]);
    let lines: Vec<_> = listed.lines().collect();
    assert!(
        lines[0].starts_with("(default)") && lines[1].starts_with("  fix  since revision 2  2 tags"),
        "{listed}"
    );
    let branches = json(&workshop, &["tag", "list", NAME, "--branches"]);
    assert_eq!((&branches[1]["name"], &branches[1]["newest"]["name"]), (&"fix".into(), &"f2".into()));
    assert!(text(&workshop, &["tag", "list", NAME]).contains("on branch fix"));
    let removed = text(&workshop, &["tag", "remove", NAME, "f1", "f2"]);
    assert!(removed.contains("branch fix removed"), "{removed}");
}
