//! `esker collect` and `esker check` with the binary alone.

use std::fs;
use std::path::PathBuf;

use serde_json::Value;

use crate::publishing::{NAME, Workshop};
use crate::test_env::words;
use crate::test_user::TestUser;

/// Publishes four revisions without automatic tags, which would keep them.
fn published(person: TestUser) -> Workshop {
    let workshop = Workshop::with(person, |top| fs::create_dir_all(top).expect("a folder"));
    workshop.create();
    let settings = PathBuf::from(workshop.home("storage")).join(NAME).join(".esker/settings.json");
    let text = fs::read_to_string(&settings).expect("the settings");
    let without = text.replace("\"automatic_tags\": true", "\"automatic_tags\": false");
    assert_ne!(text, without);
    person.does(|| fs::write(&settings, without).expect("the settings"));
    for number in 0..4 {
        let file = PathBuf::from(workshop.tree()).join("file");
        person.does(|| fs::write(file, format!("content {number}")).expect("a file"));
        workshop.json(&["publish", NAME, &workshop.tree()]);
    }
    workshop
}

/// The object with the most bytes, of those that are not catalogs or the like.
fn some_object(workshop: &Workshop) -> PathBuf {
    let data = PathBuf::from(workshop.home("storage")).join(NAME).join("data");
    let folders = fs::read_dir(data).expect("a folder").map(|folder| folder.expect("an entry").path());
    let files =
        folders.filter(|folder| folder.file_name().is_some_and(|name| name.len() == 2)).flat_map(|folder| {
            fs::read_dir(folder).expect("a folder").map(|file| file.expect("an entry").path())
        });
    let is_content = |path: &PathBuf| path.file_name().is_some_and(|name| name.len() == 38);
    files
        .filter(is_content)
        .max_by_key(|path| fs::metadata(path).expect("an object").len())
        .expect("an object")
}

/// Old revisions are listed, deleted after the grace time, and the head stays whole.
#[test]
fn old_revisions_are_collected() {
    for person in TestUser::all() {
        let workshop = published(person);
        let kept = workshop.json(&["collect", NAME, "--keep", "1d", "--grace", "0"]);
        assert_eq!(kept["result"]["deleted"]["objects"], 0, "{kept}");
        let old = ["collect", NAME, "--keep-last", "1"];
        let plan = workshop.json(&[&old[..], &["--dry-run"]].concat());
        let goes = plan["result"]["plan"]["objects"].as_u64().expect("a number");
        assert!(goes > 0 && plan["dry_run"] == Value::Bool(true), "{plan}");
        let listed = workshop.json(&old);
        assert_eq!(listed["result"]["waiting"]["objects"].as_u64(), Some(goes), "{listed}");
        let swept = workshop.json(&[&old[..], &["--grace", "0"]].concat());
        assert_eq!(swept["result"]["deleted"]["objects"].as_u64(), Some(goes), "{swept}");
        let checked = workshop.json(&["check", NAME, "--data"]);
        assert_eq!(checked["report"]["findings"], Value::Array(vec![]), "{checked}");
        let all = workshop.esker(&["collect", "--all"]);
        assert!(all.status.success() && words(&all).contains(NAME), "{}", words(&all));
    }
}

/// A repository whose publisher keeps everything is refused with the way to allow it.
#[test]
fn a_repository_that_keeps_everything_is_not_collected() {
    let workshop = Workshop::with(TestUser::ordinary(), |top| fs::create_dir_all(top).expect("a folder"));
    let output = workshop.esker(&["repo", "create", NAME, "--keep-all"]);
    assert!(output.status.success(), "{}", words(&output));
    let output = workshop.esker(&["collect", NAME]);
    assert_eq!(output.status.code(), Some(2), "{}", words(&output));
    assert!(words(&output).contains("esker repo set"), "{}", words(&output));
}

/// A damaged object is found by name and path, and fetched from a mirror.
#[test]
fn damage_is_found_and_repaired() {
    let workshop = published(TestUser::ordinary());
    let root = PathBuf::from(workshop.home("storage")).join(NAME);
    let mirror = workshop.home("mirror");
    let copied = std::process::Command::new("cp").arg("-a").arg(&root).arg(&mirror).status();
    assert!(copied.expect("running cp").success());
    let object = some_object(&workshop);
    workshop.world.person.does(|| fs::write(&object, b"other").expect("an object"));
    let output = workshop.esker(&["check", NAME, "--quiet"]);
    assert!(output.status.success(), "presence alone does not see it: {}", words(&output));
    for target in [NAME.to_owned(), root.display().to_string()] {
        let output = workshop.esker(&["check", &target, "--data", "--quiet"]);
        assert_eq!(output.status.code(), Some(4), "{}", words(&output));
        assert!(words(&output).contains("object-damaged /file"), "{}", words(&output));
    }
    let output =
        workshop.esker(&["check", NAME, "--data", "--repair", &format!("file://{mirror}"), "--quiet"]);
    assert!(output.status.success(), "{}", words(&output));
    assert!(words(&output).contains("repaired 1 objects"), "{}", words(&output));
    let checked = workshop.json(&["check", NAME, "--data"]);
    assert_eq!(checked["report"]["findings"], Value::Array(vec![]), "{checked}");
}
