//! `esker collect` and `esker check` with the binary alone.

use std::fs;
use std::path::PathBuf;

use esker_testkit::mirror::Mirror;
use esker_testkit::object::inflate;
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

/// Returns the object of the only file of the head. Objects of other revisions are as long.
fn head_object(workshop: &Workshop) -> PathBuf {
    let data = PathBuf::from(workshop.home("storage")).join(NAME).join("data");
    let folders = fs::read_dir(data).expect("a folder").map(|folder| folder.expect("an entry").path());
    let files =
        folders.filter(|folder| folder.file_name().is_some_and(|name| name.len() == 2)).flat_map(|folder| {
            fs::read_dir(folder).expect("a folder").map(|file| file.expect("an entry").path())
        });
    // Catalogs and the like have a letter behind their hash.
    let is_content = |path: &PathBuf| path.file_name().is_some_and(|name| name.len() == 38);
    let is_wanted = |path: &PathBuf| inflate(&fs::read(path).expect("an object")) == b"content 3";
    files.filter(is_content).find(is_wanted).expect("an object")
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

/// A publisher that needs a condemned object during the grace time keeps it: the collect that follows deletes all others.
#[test]
fn a_condemned_object_that_is_published_again_stays() {
    let workshop = published(TestUser::ordinary());
    let old = ["collect", NAME, "--keep-last", "0"];
    let log = workshop.home("deleted.log");
    let listed = workshop.json(&[&old[..], &["--log", &log]].concat());
    let waiting = listed["result"]["waiting"]["objects"].as_u64().expect("a number");
    let again = PathBuf::from(workshop.tree()).join("again");
    workshop.world.person.does(|| fs::write(again, "content 0").expect("a file"));
    let report = workshop.json(&["publish", NAME, &workshop.tree()]);
    assert_eq!(report["objects_stored"], 1, "{report}");
    let swept = workshop.json(&[&old[..], &["--grace", "0", "--log", &log]].concat());
    assert_eq!(swept["result"]["deleted"]["revived"], 1, "{swept}");
    assert!(swept["result"]["deleted"]["objects"].as_u64() >= Some(waiting - 1), "{swept}");
    let text = fs::read_to_string(&log).expect("the log");
    assert!(text.contains("revision 0 (") && text.contains("# Garbage Collection finished at "), "{text}");
    let checked = workshop.json(&["check", NAME, "--data"]);
    assert_eq!(checked["report"]["findings"], Value::Array(vec![]), "{checked}");
    let read = workshop.esker(&["cat", &format!("{NAME}:/again")]);
    assert_eq!(String::from_utf8_lossy(&read.stdout), "content 0", "{}", words(&read));
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

/// A check of a server finds what a check of its folder finds: by requests without a body, and with --data by all bytes.
#[test]
fn a_repository_on_a_server_is_checked() {
    let workshop = published(TestUser::ordinary());
    let server = Mirror::serve(workshop.home("storage"));
    let url = server.url(NAME);
    let key = workshop.home(&format!("keys/{NAME}.pub"));
    let check = |more: &[&str]| {
        let line = [&["check", &url, "--public-key", &key, "--quiet", "--json"], more].concat();
        let output = workshop.world.esker(&line).output().expect("running esker");
        let report: Value = serde_json::from_slice(&output.stdout).expect("JSON");
        (output.status.code(), report["report"].clone())
    };
    let (code, whole) = check(&[]);
    assert_eq!((code, &whole["findings"]), (Some(0), &Value::Array(vec![])), "{whole}");
    assert!(whole["notes"].as_array().is_some_and(Vec::is_empty), "{whole}");
    let asked = server.requests();
    let heads = asked.iter().filter(|request| request.method == "HEAD").count() as u64;
    assert!(whole["objects"].as_u64().is_some_and(|objects| objects > 0 && heads >= objects), "{heads}");
    let (code, read) = check(&["--data"]);
    assert_eq!((code, &read["read_objects"]), (Some(0), &whole["objects"]), "{read}");
    let object = head_object(&workshop);
    workshop.world.person.does(|| fs::write(&object, b"other").expect("an object"));
    assert_eq!(check(&[]).0, Some(0), "presence alone does not see it");
    let (code, damaged) = check(&["--data"]);
    let finding = &damaged["findings"][0];
    assert_eq!(
        (code, &finding["kind"], &finding["path"]),
        (Some(4), &"object-damaged".into(), &"/file".into())
    );
    workshop.world.person.does(|| fs::remove_file(&object).expect("an object"));
    for more in [&[][..], &["--data"]] {
        let (code, missing) = check(more);
        assert_eq!((code, &missing["findings"][0]["kind"]), (Some(4), &"object-missing".into()), "{missing}");
    }
    drop(server);
    let away = workshop.world.esker(&["check", &url, "--public-key", &key]).output().expect("esker");
    assert_eq!(away.status.code(), Some(3), "{}", words(&away));
    let refused = workshop.world.esker(&["check", &url, "--repair", "/nowhere"]).output().expect("esker");
    assert_eq!(refused.status.code(), Some(2), "{}", words(&refused));
}

/// A damaged object is found by name and path, and fetched from a mirror.
#[test]
fn damage_is_found_and_repaired() {
    let workshop = published(TestUser::ordinary());
    let root = PathBuf::from(workshop.home("storage")).join(NAME);
    let mirror = workshop.home("mirror");
    let copied = std::process::Command::new("cp").arg("-a").arg(&root).arg(&mirror).status();
    assert!(copied.expect("running cp").success());
    let object = head_object(&workshop);
    workshop.world.person.does(|| fs::write(&object, b"other").expect("an object"));
    let output = workshop.esker(&["check", NAME, "--quiet"]);
    assert!(output.status.success(), "presence alone does not see it: {}", words(&output));
    for target in [NAME.to_owned(), root.display().to_string()] {
        let output = workshop.esker(&["check", &target, "--data", "--quiet"]);
        assert_eq!(output.status.code(), Some(4), "{}", words(&output));
        assert!(words(&output).contains("object-damaged /file"), "{}", words(&output));
    }
    let output = workshop.esker(&["check", NAME, "--data", "--repair", &format!("file://{mirror}")]);
    assert!(output.status.success(), "{}", words(&output));
    assert!(words(&output).contains("repaired 1 objects"), "{}", words(&output));
    let checked = workshop.json(&["check", NAME, "--data"]);
    assert_eq!(checked["report"]["findings"], Value::Array(vec![]), "{checked}");
}
