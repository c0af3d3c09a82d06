//! The weeks of a release manager and of the administrator of a Stratum 1, in short forms, with what stopped or misled them.

use std::fs;
use std::path::Path;
use std::process::Output;


use crate::publishing::{NAME, Workshop};
use crate::test_env::words;
use crate::test_user::TestUser;

fn workshop() -> Workshop {
    Workshop::with(TestUser::ordinary(), |tree| {
        fs::create_dir_all(tree).expect("a folder");
        fs::write(tree.join("file"), "one\n").expect("a file");
    })
}

/// Changes the file of the tree and publishes it.
fn publish(workshop: &Workshop, name: &str, content: &str, options: &[&str]) {
    let tree = workshop.tree();
    workshop.world.person.does(|| fs::write(Path::new(&tree).join("file"), content).expect("a file"));
    workshop.json(&[&["publish", name, &tree], options].concat());
}

/// Runs `esker` with the folders that it uses without options.
fn call(workshop: &Workshop, arguments: &[&str]) -> Output {
    let mut command = workshop.world.esker(arguments);
    command.env("ESKER_STORAGE", workshop.home("storage")).output().expect("running esker")
}

#[track_caller]
fn done(output: &Output) -> String {
    assert!(output.status.success(), "{}", words(output));
    words(output)
}

#[track_caller]
fn refused(output: &Output, code: i32) -> String {
    assert_eq!(output.status.code(), Some(code), "{}", words(output));
    words(output)
}

#[test]
fn the_publisher_mounts_and_runs_a_repository_by_its_name() {
    let workshop = workshop();
    let world = &workshop.world;
    let own = |arguments: &[&str]| call(&workshop, arguments);
    let tree = workshop.tree();
    done(&own(&["repo", "create", NAME]));
    done(&own(&["publish", NAME, &tree, "--tag", "v1"]));
    workshop.world.person.does(|| fs::write(Path::new(&tree).join("file"), "two\n").expect("a file"));
    done(&own(&["publish", NAME, &tree]));
    let file = format!("/cvmfs/{NAME}/file");
    assert_eq!(own(&["run", NAME, "--", "cat", &file]).stdout, b"two\n");
    assert_eq!(own(&["run", &format!("{NAME}@v1"), "--", "cat", &file]).stdout, b"one\n");
    let mountpoint = world.mountpoint().display().to_string();
    let said = done(&own(&["mount", NAME, &mountpoint]));
    assert!(said.contains(&format!("{NAME} has no server in the configuration")), "{said}");
    let mounted = world.mounted();
    let text = mounted.does(|| fs::read_to_string(mounted.path("file")));
    assert_eq!(text.expect("a file"), "two\n");
    drop(mounted);
    let said = refused(&own(&["mount", "absent.test", &mountpoint]), 2);
    assert!(said.contains("the configuration lacks settings for absent.test"), "{said}");
}

