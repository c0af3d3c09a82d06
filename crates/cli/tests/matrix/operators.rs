//! Surprises of release managers and administrators beside those of their weeks (`release_week/dead_ends.rs`, `stratum1_week.rs`).

use std::fs;
use std::path::Path;
use std::process::Output;

use crate::publishing::{NAME, Workshop};
use crate::served::Served;
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

#[track_caller]
fn done(output: &Output) -> String {
    assert!(output.status.success(), "{}", words(output));
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
