//! Files whose contents are not stored by the publish that adds them: external data, grafts, copies by catalog rows.

use std::fs;
use std::path::Path;

use esker_testkit::mirror::Mirror;
use serde_json::Value;

use crate::publishing::{NAME, Workshop};
use crate::test_env::{complaint, printed, words};
use crate::test_user::TestUser;
use crate::transactions::Publisher;

fn content(len: usize) -> Vec<u8> {
    (0..len as u32).map(|at| (at.wrapping_mul(2_654_435_761) >> 24) as u8).collect()
}

/// Number of stored objects that are content of files.
fn stored(workshop: &Workshop) -> usize {
    let mut count = 0;
    for folder in fs::read_dir(format!("{}/{NAME}/data", workshop.home("storage"))).expect("the data") {
        let folder = folder.expect("a folder").path();
        if folder.file_name().is_some_and(|name| name.len() == 2) {
            let names =
                fs::read_dir(folder).expect("objects").map(|file| file.expect("an object").file_name());
            count += names.filter(|name| !name.to_string_lossy().ends_with(['C', 'H', 'X', 'M'])).count();
        }
    }
    count
}

/// Runs a script in a mount of the repository, with a server for external data.
fn read(workshop: &Workshop, server: &str, script: &str) -> String {
    let url = workshop.published();
    let mut command = workshop.world.esker(&["run", &url, "--external", server, "--public-key"]);
    command.arg(workshop.world.path("key.pub"));
    printed(command.args(["--", "sh", "-ec", &format!("cd /cvmfs/{NAME}; {script}")]))
}

/// Content that is published as external data is read through a mount from a server of the files themselves.
#[test]
fn external_data_of_a_publish_is_read_from_its_server() {
    for person in TestUser::all() {
        let workshop = Workshop::with(person, |top| {
            fs::create_dir(top.join("d")).expect("a folder");
            fs::write(top.join("d/small"), "small\n").expect("a file");
            fs::write(top.join("d/large"), content(20 << 20)).expect("a file");
        });
        workshop.create();
        let report = workshop.json(&["publish", NAME, &workshop.tree(), "--external"]);
        assert_eq!((&report["files_read"], &report["objects_stored"]), (&2.into(), &0.into()));
        // The object of empty files, with which catalogs are marked.
        assert_eq!(stored(&workshop), 1);
        let server = Mirror::serve(workshop.tree());
        let script = format!("cmp d/large '{}/d/large'; cat d/small", workshop.tree());
        assert_eq!(read(&workshop, &server.url(""), &script), "small\n");
        assert!(server.count(|path| path.ends_with("/d/large")) > 1, "each chunk is a request");
        let output = workshop.esker(&["check", NAME, "--data", "--quiet"]);
        assert!(output.status.success(), "{}", words(&output));
    }
}

/// A marker that `esker graft` writes is published by `esker publish`, and clients read the file that it was made of.
#[test]
fn a_graft_made_by_the_command_is_published() {
    let workshop =
        Workshop::with(TestUser::ordinary(), |top| fs::create_dir(top.join("d")).expect("a folder"));
    workshop.create();
    let origin = workshop.home("origin");
    let esker = |arguments: &[&str]| workshop.world.esker(&[&["graft"], arguments].concat());
    fs::create_dir_all(format!("{origin}/d")).expect("a folder");
    fs::write(format!("{origin}/d/data"), content(5 << 20)).expect("a file");
    let (file, tree) = (format!("{origin}/d/data"), workshop.tree());
    let text = printed(&mut esker(&[&file, "--chunk-size", "2M"]));
    assert!(
        text.starts_with("size=5242880\nchecksum=0000") && text.contains("chunk_offsets=0,2097152,4194304"),
        "{text}"
    );
    printed(&mut esker(&[&origin, "--output", &tree, "--chunk-size", "2M"]));
    assert_eq!(fs::read_to_string(format!("{tree}/d/.cvmfsgraft-data")).expect("a marker"), text);
    assert_eq!(fs::metadata(format!("{tree}/d/data")).expect("a file").len(), 0);
    let refused = complaint(&mut esker(&[&file, "--output", &format!("{origin}/d")]), 2);
    assert!(refused.contains("is no empty file"), "{refused}");
    assert_eq!(fs::metadata(&file).expect("the file").len(), 5 << 20, "the source is never emptied");
    workshop.json(&["publish", NAME, &tree, "--external"]);
    let server = Mirror::serve(&origin);
    let script = format!("cmp d/data '{file}'; ls -A d");
    assert_eq!(read(&workshop, &server.url(""), &script), "data\n");
}

/// A transaction begins with a copy of a directory, and publishes it with what its command changes.
#[test]
fn a_template_is_copied_and_changed_in_one_revision() {
    for person in TestUser::all() {
        let publisher = Publisher::new(person);
        let before = stored(&publisher.workshop);
        let options = ["/new", "--template", "/d", "/new/copy"];
        printed(&mut publisher.begin(&options, "cat copy/e/f; echo changed >copy/e/g"));
        assert_eq!(publisher.reads("cat new/copy/e/f new/copy/e/g d/e/f; ls d/e"), "f\nchanged\nf\nf\n");
        assert_eq!(stored(&publisher.workshop), before + 1, "{person:?}");
        let text = complaint(&mut publisher.begin(&["/other", "--template", "/d", "/copy"], "true"), 2);
        assert!(text.contains("/copy is not below /other"), "{text}");
        let report = publisher.workshop.json(&["repo", "copy", NAME, "/new/copy", "/again"]);
        assert_eq!((&report["revision"], &report["differences"]["added"]["files"]), (&3.into(), &2.into()));
        assert_eq!(publisher.reads("cat again/e/g"), "changed\n");
    }
}

/// The same catalogs are listed by name, by folder, and by URL.
#[test]
fn catalogs_are_listed_by_name_folder_and_url() {
    let workshop = Workshop::with(TestUser::ordinary(), |top: &Path| {
        fs::create_dir_all(top.join("a/b")).expect("folders");
        fs::write(top.join("a/b/.cvmfscatalog"), "").expect("a file");
    });
    workshop.create();
    workshop.json(&["publish", NAME, &workshop.tree()]);
    let url = workshop.published();
    let folder = format!("{}/{NAME}", workshop.home("storage"));
    let key = workshop.world.path("key.pub").display().to_string();
    let output = workshop.esker(&["repo", "catalogs", NAME, "--json"]);
    assert!(output.status.success(), "{}", words(&output));
    let by_name: Value = serde_json::from_slice(&output.stdout).expect("JSON");
    let paths: Vec<&str> =
        by_name.as_array().expect("a list").iter().filter_map(|one| one["path"].as_str()).collect();
    assert_eq!(paths, ["/", "/a/b"]);
    for place in [&url, &folder] {
        let text =
            printed(&mut workshop.world.esker(&["repo", "catalogs", place, "--json", "--public-key", &key]));
        assert_eq!(serde_json::from_str::<Value>(&text).expect("JSON"), by_name, "{place}");
    }
    let text =
        printed(&mut workshop.world.esker(&["repo", "catalogs", &url, "--long", "--public-key", &key]));
    let hash = by_name[1]["hash"].as_str().expect("a hash");
    assert!(text.lines().any(|line| line.contains(hash) && line.ends_with("  /a/b")), "{text}");
}

/// A publish collects if that is due, and its report says so; a collect that can't be made is a warning.
#[test]
fn a_publish_collects_when_that_is_due() {
    let publisher = Publisher::new(TestUser::ordinary());
    let workshop = &publisher.workshop;
    let output = workshop.esker(&["repo", "set", NAME, "automatic_collect=1d", "automatic_collect_keep=1s"]);
    assert!(output.status.success(), "{}", words(&output));
    let publish = |name: &str| {
        fs::write(format!("{}/{name}", workshop.tree()), name).expect("a file");
        workshop.json(&["publish", NAME, &workshop.tree()])
    };
    let report = publish("one");
    assert!(report["published"] == true && report["collected"]["plan"]["revision"].is_u64(), "{report}");
    let status = format!("{}/{NAME}/.cvmfs_status.json", workshop.home("storage"));
    assert!(fs::read_to_string(&status).expect("the status").contains("last_gc"));
    assert!(publish("two")["collected"].is_null(), "the last one was just now");
    // A collect is under way.
    fs::remove_file(&status).expect("the status");
    let lock = fs::File::create(format!("{}/{NAME}/.esker/collect.lock", workshop.home("storage")))
        .expect("the lock");
    rustix::fs::flock(&lock, rustix::fs::FlockOperation::LockExclusive).expect("the lock");
    fs::write(format!("{}/three", workshop.tree()), "").expect("a file");
    let output = workshop.esker(&["publish", NAME, &workshop.tree(), "--quiet"]);
    assert!(
        output.status.success() && words(&output).contains("nothing was collected"),
        "{}",
        words(&output)
    );
}
