//! The week of the administrator of a Stratum 1 in a short form, with what stopped or misled. That of a release manager is in
//! `release_week/dead_ends.rs`.

use std::fs;
use std::path::Path;
use std::process::{Output, Stdio};

use esker_testkit::waiting::until;
use rustix::process::Signal;
use serde_json::Value;

use crate::daemons::signal;
use crate::publishing::{NAME, Workshop};
use crate::served::Served;
use crate::test_env::{PATIENCE, words};
use crate::test_user::TestUser;

const SECOND: &str = "second.test";

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
fn any_user_looks_at_and_checks_a_repository_that_all_may_read() {
    let Some(root) = TestUser::root() else { esker_testkit::skip!("only root has another user") };
    let workshop = Workshop::with(root, |tree| {
        fs::create_dir_all(tree).expect("a folder");
        fs::write(tree.join("file"), "one\n").expect("a file");
    });
    workshop.create();
    publish(&workshop, NAME, "one\n", &["--tag", "v1"]);
    let open = |name: &str| {
        let mode = std::os::unix::fs::PermissionsExt::from_mode(0o755);
        fs::set_permissions(workshop.world.path(name), mode).expect("a mode");
    };
    open("home");
    let person = TestUser::ordinary();
    let home = workshop.world.path("run").join("other");
    fs::create_dir(&home).expect("a folder");
    std::os::unix::fs::chown(&home, Some(person.uid), Some(person.gid)).expect("giving a folder away");
    open("run");
    let storage = workshop.home("storage");
    let (keys, key) = (home.display().to_string(), format!("{}/{NAME}.pub", home.display()));
    fs::copy(workshop.home(&format!("keys/{NAME}.pub")), &key).expect("the public key");
    let other = |arguments: &[&str]| {
        let mut command = person.command(workshop.world.program());
        command.args(arguments).args(["--storage", &storage]).env_clear().env("HOME", &home);
        command.env("XDG_RUNTIME_DIR", &home).current_dir("/").output().expect("running esker")
    };
    let folder = format!("{storage}/{NAME}");
    for arguments in [
        &["check", NAME][..],
        &["check", &folder],
        &["check", NAME, "--public-key", &key],
        &["repo", "info", NAME],
        &["repo", "list"],
        &["ls", NAME, "--public-key", &key],
        &["log", NAME, "--keys", &keys],
        &["tag", "list", NAME, "--keys", &keys],
        &["diff", NAME, "0", "--keys", &keys],
    ] {
        let output = other(arguments);
        assert!(output.status.success(), "{arguments:?}: {}", words(&output));
    }
}

#[test]
fn reading_commands_work_with_an_expired_whitelist_and_on_replicas_without_keys() {
    let workshop = workshop();
    workshop.create();
    publish(&workshop, NAME, "one\n", &["--tag", "v1"]);
    publish(&workshop, NAME, "two\n", &["--tag", "v2"]);
    let server = Served::start_as(workshop.world.person, Path::new(&workshop.home("storage")));
    let (url, copies) = (format!("{}/cvmfs/{NAME}", server.url), workshop.home("copies"));
    let key = workshop.home(&format!("keys/{NAME}.pub"));
    let copy = ["replicate", &url, "--public-key", &key, "--to", &copies, "--quiet"];
    done(&workshop.world.esker(&copy).output().expect("running esker"));
    workshop.let_whitelist_expire();
    let whitelist = |storage: &str| format!("{storage}/{NAME}/.cvmfswhitelist");
    fs::copy(whitelist(&workshop.home("storage")), whitelist(&copies)).expect("copying a whitelist");
    let (own, empty) = (workshop.home("storage"), workshop.home("empty"));
    for (storage, home) in [(&own, workshop.home("")), (&copies, empty)] {
        let call = |arguments: &[&str]| {
            let mut command = workshop.world.esker(arguments);
            command.env("ESKER_STORAGE", storage).env("HOME", &home);
            command.output().expect("running esker")
        };
        let keys = (storage == &own).then(|| ["--keys".to_owned(), workshop.home("keys")]);
        let file = format!("{NAME}:/file");
        for arguments in [
            &["tag", "list", NAME][..],
            &["tag", "list", NAME, "--branches"],
            &["tag", "show", NAME, "v1"],
            &["log", NAME],
            &["diff", NAME, "v1"],
            &["repo", "catalogs", NAME],
            &["ls", NAME],
            &["stat", &file],
            &["find", NAME],
            &["cat", &file],
            &["collect", NAME, "--dry-run"],
            &["repo", "list"],
            &["repo", "info", NAME],
            &["check", NAME],
            &["key", "list", NAME],
            &["profile", "list", NAME],
        ] {
            let of_publisher = matches!(arguments[0], "key" | "profile");
            if of_publisher && storage == &copies {
                continue;
            }
            let keys = keys.iter().flatten().filter(|_| arguments[..2] != ["repo", "list"]);
            let line: Vec<&str> = arguments.iter().copied().chain(keys.map(String::as_str)).collect();
            let output = call(&line);
            let code = if arguments[0] == "check" { 4 } else { 0 };
            assert_eq!(output.status.code(), Some(code), "{line:?}: {}", words(&output));
            let is_told = arguments[0] == "key" || words(&output).contains("expired");
            assert!(is_told, "{line:?}: {}", words(&output));
        }
    }
}

/// Returns the files and folders below a folder that other users can't read.
fn unreadable(folder: &Path) -> Vec<std::path::PathBuf> {
    use std::os::unix::fs::PermissionsExt as _;
    let mut closed = Vec::new();
    for entry in fs::read_dir(folder).expect("a folder") {
        let path = entry.expect("an entry").path();
        let facts = fs::symlink_metadata(&path).expect("its facts");
        let needed = if facts.is_dir() { 0o555 } else { 0o444 };
        if facts.permissions().mode() & needed != needed {
            closed.push(path);
        } else if facts.is_dir() {
            closed.extend(unreadable(&path));
        }
    }
    closed
}

#[test]
fn an_administrator_copies_what_a_server_lists_and_sees_how_far_it_is() {
    let workshop = workshop();
    for name in [NAME, SECOND] {
        done(&workshop.esker(&["repo", "create", name]));
        publish(&workshop, name, "one\n", &[]);
    }
    let server = Served::start_as(workshop.world.person, Path::new(&workshop.home("storage")));
    let (copies, keys) = (workshop.home("copies"), workshop.home("keys"));
    let replicate = |arguments: &[&str]| {
        let line = [&["replicate"], arguments, &["--to", &copies, "--quiet"]].concat();
        workshop.world.esker(&line).output().expect("running esker")
    };
    let list = |options: &[&str]| {
        let line = [&["repo", "list", "--storage", &copies], options].concat();
        let output = workshop.world.esker(&line).output().expect("running esker");
        done(&output);
        String::from_utf8(output.stdout).expect("text")
    };
    let base = format!("{}/cvmfs/", server.url);
    // A mistyped name leaves nothing behind.
    let mistyped = format!("{base}mode.test");
    let said = refused(&replicate(&[&mistyped, "--public-key", &format!("{keys}/{NAME}.pub")]), 2);
    assert!(said.contains(&format!("the server {mistyped} has no repository mode.test")), "{said}");
    assert!(!Path::new(&copies).join("mode.test").exists());

    let some = format!("{base}sec*");
    done(&replicate(&[&some, "--public-key", &keys, "--reserve", "1M"]));
    assert!(!list(&[]).contains(NAME));
    done(&replicate(&[&base, "--public-key", &keys]));
    let listed: Value = serde_json::from_str(&list(&["--json"])).expect("JSON");
    for (at, name) in [NAME, SECOND].iter().enumerate() {
        let replica = &listed[at]["replica"];
        assert_eq!(listed[at]["name"], *name, "{listed}");
        assert_eq!(replica["servers"], format!("{base}{name}"), "{listed}");
        assert_eq!((&replica["behind"], &replica["failure"]), (&0.into(), &Value::Null), "{listed}");
        assert!(replica["succeeded"].is_i64(), "{listed}");
    }
    // Whatever the umask, a server that is another user reads what was copied.
    let strict = workshop.home("strict");
    let mut shell = workshop.world.person.command("/bin/sh");
    let copied = workshop.world.esker(&[
        "replicate",
        &format!("{base}{NAME}"),
        "--public-key",
        &keys,
        "--to",
        &strict,
    ]);
    shell.args(["-c", "umask 077; exec \"$@\"", "sh"]).arg(copied.get_program()).args(copied.get_args());
    shell.env_clear().env("HOME", workshop.world.path("home")).current_dir("/");
    done(&shell.output().expect("running esker"));
    let closed = unreadable(&Path::new(&strict).join(NAME));
    // State and lock are nothing for clients.
    let is_private = |path: &std::path::PathBuf| path.ends_with(".esker") || path.ends_with("txn/esker.lock");
    assert!(closed.iter().all(is_private), "{closed:?}");

    drop(server);
    refused(&replicate(&["--all"]), 3);
    let said = list(&[]);
    assert!(said.contains("last success") && said.contains("failed"), "{said}");

    // Groups in a file.
    let server = Served::start_as(workshop.world.person, Path::new(&workshop.home("storage")));
    let groups = workshop.home("groups");
    let base = format!("{}/cvmfs/", server.url);
    let text = format!("# ours\n{base}{NAME} --path /\u{61}\n\n{base}sec*  # others\n");
    fs::write(&groups, text).expect("a file");
    let said = refused(&replicate(&["--groups", &groups, "--public-key", &keys]), 2);
    assert!(said.contains("has all paths of the repository"), "{said}");
    fs::write(&groups, format!("{base}{NAME}\n{base}sec*\n")).expect("a file");
    done(&replicate(&["--groups", &groups]));
    fs::write(&groups, "--path /a\n").expect("a file");
    assert!(refused(&replicate(&["--groups", &groups]), 2).contains("line 1"));
}

#[test]
fn a_follower_takes_up_replicas_that_are_added_later() {
    let workshop = workshop();
    for name in [NAME, SECOND] {
        done(&workshop.esker(&["repo", "create", name]));
        publish(&workshop, name, "one\n", &[]);
    }
    let server = Served::start_as(workshop.world.person, Path::new(&workshop.home("storage")));
    let (copies, keys) = (workshop.home("copies"), workshop.home("keys"));
    let command =
        |arguments: &[&str]| workshop.world.esker(&[&["replicate"], arguments, &["--to", &copies]].concat());
    let copy =
        |name: &str| done(&command(&[&server.url(name), "--public-key", &keys]).output().expect("esker"));
    copy(NAME);
    let mut follow = command(&["--all", "--follow", "--every", "1s"]);
    let follower = follow.stdout(Stdio::null()).stderr(Stdio::piped()).spawn().expect("esker");
    copy(SECOND);
    publish(&workshop, SECOND, "two\n", &[]);
    let is_here = || {
        let listed = workshop.world.esker(&["repo", "list", "--storage", &copies, "--json"]).output();
        let listed: Value = serde_json::from_slice(&listed.expect("esker").stdout).expect("JSON");
        listed[1]["name"] == SECOND && listed[1]["revision"] == 2
    };
    assert!(until(PATIENCE, is_here), "the replica that was added is not followed");
    signal(follower.id(), Signal::TERM);
    let output = follower.wait_with_output().expect("its end");
    let said = words(&output);
    assert!(output.status.success() && said.contains(&format!("{SECOND}: revision 1 → 2")), "{said}");
}

/// A client that sends more than its share waits as the server says, and no read fails.
#[test]
fn a_rate_of_each_client_slows_reads_down_and_breaks_none() {
    const FILES: usize = 40;
    let workshop = Workshop::with(TestUser::ordinary(), |tree| {
        fs::create_dir_all(tree).expect("a folder");
        for number in 0..FILES {
            fs::write(tree.join(number.to_string()), format!("content of {number}\n")).expect("a file");
        }
    });
    workshop.create();
    workshop.json(&["publish", NAME, &workshop.tree()]);
    let storage = workshop.home("storage");
    let mut serve = workshop.world.esker(&["serve", &storage, "--client-rate", "4"]);
    let served = Served::by(&mut serve);
    let key = workshop.home(&format!("keys/{NAME}.pub"));
    let script = format!("cd /cvmfs/{NAME}; for file in *; do cat $file || exit 1; done | wc -l");
    let url = served.url(NAME);
    let options = ["--public-key", &key, "--no-prefetch", "--no-broker", "--", "sh", "-c", &script];
    let output = workshop.world.esker(&[&["run", url.as_str()], &options[..]].concat()).output();
    let output = output.expect("running esker");
    assert!(output.status.success(), "{}", words(&output));
    assert_eq!(String::from_utf8_lossy(&output.stdout).trim(), FILES.to_string());
}
