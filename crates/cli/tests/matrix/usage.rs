//! The command line itself: help, exit codes, messages.

use std::collections::BTreeSet;
use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::{Output, Stdio};

use esker_testkit::fixture;
use esker_testkit::mirror::Fault;

use crate::test_env::{TestEnv, complaint, printed, words};
use crate::test_user::TestUser;

/// Returns every command that `--help` shows, those of commands included, and "" for `esker` itself.
pub(crate) fn commands(world: &TestEnv) -> Vec<String> {
    let mut all = vec![String::new()];
    let mut at = 0;
    while let Some(command) = all.get(at).cloned() {
        let help = help(world, &command);
        // The commands of `esker` itself have a heading for each role.
        let (begin, end) =
            if command.is_empty() { ("\nMount and run:\n", "Options:") } else { ("\nCommands:\n", "") };
        let listed = help.split_once(begin).map_or("", |(_, rest)| rest);
        for line in listed.lines().take_while(|line| *line != end) {
            // Descriptions go on in further lines, deeper.
            let name = line.strip_prefix("  ").filter(|rest| !rest.starts_with(' '));
            let name = name.and_then(|rest| rest.split(' ').next()).filter(|name| *name != "help");
            all.extend(name.map(|name| format!("{command} {name}").trim_start().to_owned()));
        }
        at += 1;
    }
    assert!(all.len() > 12, "{all:?}");
    all
}

/// Returns the output of a command's `--help`.
pub(crate) fn help(world: &TestEnv, command: &str) -> String {
    let words_of_it = command.split(' ').filter(|word| !word.is_empty()).chain(["--help"]);
    let output = world.esker(&words_of_it.collect::<Vec<_>>()).output().expect("running esker");
    assert!(output.status.success(), "{}", words(&output));
    String::from_utf8_lossy(&output.stdout).into_owned()
}

fn stderr(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}

/// Every command's help begins with one sentence and has an example that begins with the command.
#[test]
fn help_has_a_sentence_and_an_example() {
    let world = TestEnv::new(TestUser::ordinary(), fixture::RMD);
    for command in commands(&world) {
        let text = help(&world, &command);
        let first = text.lines().next().unwrap_or_default();
        assert!(first.ends_with('.') && !first.starts_with("Usage"), "{command}: {text}");
        assert!(text.contains(format!("\nExample: esker {command}").trim_end()), "{command}: {text}");
        assert!(!text.contains("--kernel") && !text.contains("--daemon"), "options for tests show: {text}");
    }
}

/// `docs/cli.md` equals the command line's own description.
#[test]
fn the_reference_of_commands_is_that_of_this_build() {
    let world = TestEnv::new(TestUser::ordinary(), fixture::RMD);
    let made = printed(&mut world.esker(&["manual", "--markdown"]));
    let page = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/cli.md");
    let written = std::fs::read_to_string(page).expect("docs/cli.md");
    assert!(
        written == made,
        "docs/cli.md differs from this build: write it with `esker manual --markdown > docs/cli.md`"
    );
}

/// Shells accept the completion scripts, which have all visible commands and no hidden ones.
#[test]
fn completions_have_all_visible_commands_and_options() {
    let world = TestEnv::new(TestUser::ordinary(), fixture::RMD);
    let commands = commands(&world);
    for shell in ["bash", "zsh", "fish"] {
        let script = printed(&mut world.esker(&["completions", shell]));
        for word in commands.iter().flat_map(|command| command.split(' ')) {
            assert!(script.contains(word), "{shell}: {word} is missing");
        }
        assert!(script.contains("public-key"), "{shell}: options are missing");
        assert!(!script.contains("proxy-from-input"), "{shell}: a hidden option is in it");
        assert!(!script.contains("replay"), "{shell}: a hidden command is in it");
        if shell == "bash" {
            let path = world.path("esker.bash");
            std::fs::write(&path, &script).expect("writing the script");
            let status = std::process::Command::new("bash").arg("-n").arg(&path).status();
            assert!(status.expect("running bash").success());
        }
    }
}

/// Each command has a man page.
#[test]
fn every_command_has_a_man_page() {
    let world = TestEnv::new(TestUser::ordinary(), fixture::RMD);
    let folder = world.path("home/man1");
    let folder_text = folder.to_str().expect("text");
    let pages = printed(&mut world.esker(&["manual", folder_text]));
    assert_eq!(pages.lines().count(), commands(&world).len());
    for command in commands(&world) {
        let name = format!("esker {command}");
        let dashed = name.trim_end().replace(' ', "-");
        let page = std::fs::read_to_string(folder.join(format!("{dashed}.1"))).expect("a page");
        assert!(page.contains(&format!(".TH {dashed} 1")), "{dashed}: {page}");
    }
}

/// Wrong usage and configuration exit with 2 and a description of the mistake.
#[test]
fn wrong_usage_exits_with_2() {
    let world = TestEnv::new(TestUser::ordinary(), fixture::RMD);
    let key = world.path("key.pub");
    let key = key.to_str().expect("a path in UTF-8");
    let (mnt, url) = (world.mountpoint(), world.url());
    let mnt = mnt.to_str().expect("a path in UTF-8");
    let cases: [(&[&str], &str); 12] = [
        (&[], "Usage"),
        (&["mount"], "MOUNTPOINT"),
        (&["mount", &url, mnt, "--nonsense"], "--nonsense"),
        (&["mount", "nonsense", mnt, "--public-key", key], "nonsense"),
        (&["mount", "ftp://host/a.test", mnt, "--public-key", key], "ftp://host/a.test"),
        (&["mount", &url, mnt, "--public-key", "/no/such/key"], "/no/such/key"),
        (&["mount", &url, mnt, "--public-key", "/dev/null"], "/dev/null"),
        (&["mount", &url, mnt, "--public-key", key, "--quota", "big"], "big"),
        (&["run", &url, "--public-key", key], "COMMAND"),
        (&["ls", &format!("{url}:/a"), "/b", "--public-key", key], "two paths"),
        (&["repo", "create", "days.test", "--whitelist-days", "0"], "--whitelist-days"),
        (&["repo", "resign", "days.test", "--whitelist-days", "3000000"], "--whitelist-days"),
    ];
    for (arguments, named) in cases {
        let output = world.esker(arguments).output().expect("running esker");
        assert_eq!(output.status.code(), Some(2), "{arguments:?}: {}", words(&output));
        assert!(stderr(&output).contains(named), "{arguments:?} does not name {named}: {}", words(&output));
    }
    assert!(!world.cache().exists(), "wrong usage opened the cache");
}

/// An error names the object, the cause, and the next step, each in words of its own.
#[test]
fn failures_have_distinct_messages() {
    let world = TestEnv::new(TestUser::ordinary(), fixture::RMD);
    let stranger = world.path("stranger.pub");
    std::fs::copy(fixture::FULL.public_key(), &stranger).expect("copying a key");
    let stranger = stranger.to_str().expect("a path in UTF-8").to_owned();
    let key = world.path("key.pub").display().to_string();
    let url = world.url();
    let mut told = BTreeSet::new();
    let mut expect = |arguments: &[&str], code: i32, named: &[&str]| {
        let output = world.esker(arguments).output().expect("running esker");
        let text = stderr(&output);
        assert_eq!(output.status.code(), Some(code), "{arguments:?}: {}", words(&output));
        for name in named {
            assert!(text.contains(name), "{arguments:?} does not say {name:?}: {text}");
        }
        assert!(text.starts_with("esker: ") && text.lines().count() > 1, "no next step: {text}");
        assert!(told.insert(text.clone()), "told twice: {text}");
    };
    let mnt = world.mountpoint().display().to_string();
    let none = format!("{mnt}/none");
    // Port 1 of this machine: no process listens there.
    let away = "http://127.0.0.1:1/rmd.test";
    expect(&["mount", &url, &none, "--public-key", &key], 1, &[&none, "mkdir"]);
    expect(&["mount", &url, "/dev/null", "--public-key", &key], 1, &["/dev/null", "not a directory"]);
    expect(&["mount", &url, &mnt, "--public-key", &stranger], 4, &["rmd.test", "whitelist", "public key"]);
    expect(&["mount", away, &mnt, "--public-key", &key], 3, &[away, "refused"]);
    let other = url.replace("rmd.test", "other.test");
    expect(
        &["mount", &other, &mnt, "--public-key", &key],
        3,
        &["other.test", "404", "since the server answers"],
    );
    expect(&["umount", &mnt], 1, &[&mnt, "not mounted"]);
    expect(&["cat", &format!("{url}:/no/such"), "--public-key", &key], 1, &["rmd.test:/no/such"]);
    expect(&["cat", &format!("{url}:/"), "--public-key", &key], 1, &["rmd.test:/", "directory"]);
    assert!(!world.is_mounted());
}

/// Offline, the advice doesn't mention the server.
#[test]
fn unseen_repositories_are_unavailable_offline() {
    let world = TestEnv::new(TestUser::ordinary(), fixture::RMD);
    let mut ls = world.esker(&["ls", &world.url(), "--offline", "--public-key"]);
    let said = complaint(ls.arg(world.path("key.pub")), 3);
    assert!(said.contains("leave out --offline") && !said.contains("whether the server is up"), "{said}");
}

/// Users of CernVM-FS find their commands.
#[test]
fn equivalents_of_cernvm_fs_commands_are_listed() {
    let world = TestEnv::new(TestUser::ordinary(), fixture::RMD);
    let listed = printed(&mut world.esker(&["help", "cvmfs"]));
    for theirs in
        ["cvmfs_config", "cvmfs_server", "cvmfs_talk", "cvmfs_fsck", "cvmfs_preload", "mount -t cvmfs"]
    {
        assert!(listed.contains(theirs), "{theirs} is not in {listed}");
    }
    assert!(help(&world, "").contains("esker help cvmfs"));
    let known = commands(&world);
    for command in listed.lines().filter_map(|line| line.split_once("  esker ")).map(|(_, rest)| rest) {
        // Up to the first argument.
        let is_word = |word: &&str| !word.is_empty() && word.chars().all(|c| c.is_ascii_lowercase());
        let words: Vec<&str> = command.split(' ').take_while(is_word).collect();
        assert!(known.contains(&words.join(" ")), "{command} is no command of esker");
    }
}

/// A missing file is reported as missing, and not as an unconfigured repository.
#[test]
fn a_missing_image_or_folder_is_reported_as_missing() {
    let world = TestEnv::new(TestUser::ordinary(), fixture::RMD);
    let mountpoint = world.mountpoint().display().to_string();
    let absolute = world.path("typo.sqfs").display().to_string();
    for image in ["typo.sqfs", "./typo.sqfs", "work/typo.sif", &absolute] {
        for arguments in [&["mount", image, &mountpoint][..], &["run", image, "--", "true"]] {
            let said = complaint(&mut world.esker(arguments), 1);
            assert!(said.contains(image) && said.contains("No such file"), "{arguments:?}: {said}");
            assert!(!said.contains("CVMFS_SERVER_URL") && !said.contains("public-key"), "{said}");
        }
    }
    for arguments in [&["run", "./no/system", "--", "true"][..], &["ls", "no/repository"]] {
        let said = complaint(&mut world.esker(arguments), 2);
        assert!(said.contains("no such file or directory"), "{arguments:?}: {said}");
    }
    let mut ls = world.esker(&["ls", "served/rmd.test"]);
    std::os::unix::fs::symlink(world.repository.document_root(), world.path("served")).expect("a link");
    let said = complaint(ls.current_dir(world.path(".")), 2);
    let whole = world.path("served/rmd.test").display().to_string();
    assert!(said.contains(&whole), "the whole path isn't told: {said}");
}

/// An option without effect is refused by name, and not ignored.
#[test]
fn options_without_effect_are_refused() {
    let world = TestEnv::new(TestUser::ordinary(), fixture::RMD);
    let (url, key) = (world.url(), world.path("key.pub").display().to_string());
    let repository = ["run", &url, "--public-key", &key];
    let of_containers: [&[&str]; 13] = [
        &["--bind", "/tmp"],
        &["--writable-tmpfs"],
        &["--env", "A=B"],
        &["--cleanenv"],
        &["--home", "/tmp"],
        &["--no-home"],
        &["--no-bind"],
        &["--contain"],
        &["--pwd", "/"],
        &["--fakeroot"],
        &["--entrypoint"],
        &["--gpu"],
        &["--hook", "gpu"],
    ];
    for option in of_containers {
        let arguments = [&repository[..], option, &["--", "true"]].concat();
        let said = complaint(&mut world.esker(&arguments), 2);
        assert!(said.contains(option[0]) && said.contains("image"), "{option:?}: {said}");
    }
    let image = world.path("a.sqfs");
    std::fs::write(&image, "").expect("a file");
    let (image, mountpoint) = (image.display().to_string(), world.mountpoint().display().to_string());
    for option in [["--tag", "v1"], ["--date", "2026-01-31"], ["--root-hash", &"0".repeat(40)]] {
        for arguments in [&["mount", &image, &mountpoint][..], &["run", &image]] {
            let said = complaint(&mut world.esker(&[arguments, &option[..]].concat()), 2);
            assert!(
                said.contains(option[0]) && said.contains("revision"),
                "{arguments:?} {option:?}: {said}"
            );
        }
    }
}

/// A reader that closes the pipe early causes no failure.
#[test]
fn a_closed_pipe_is_success() {
    let world = TestEnv::new(TestUser::ordinary(), fixture::FULL);
    let mut find = world.esker(&["find", &world.url(), "--json", "--public-key"]);
    let mut find = find
        .arg(world.path("key.pub"))
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .expect("running esker");
    let mut lines = BufReader::with_capacity(16, find.stdout.take().expect("a pipe")).lines();
    assert_eq!(lines.next().expect("a line").expect("text"), "[");
    drop(lines);
    let output = find.wait_with_output().expect("esker ends");
    assert!(output.status.success() && output.stderr.is_empty(), "{}", words(&output));
}

/// For a path right behind a repository, the error shows the place of the colon.
#[test]
fn the_error_shows_a_missing_colon() {
    let world = TestEnv::new(TestUser::ordinary(), fixture::RMD);
    let key = world.path("key.pub").display().to_string();
    let url = world.url();
    let wrong = format!("{url}/dir/file");
    let meant = format!("{url}:/dir/file");
    for command in [&["ls", &wrong][..], &["cat", &wrong], &["stat", &wrong], &["find", &wrong]] {
        let mut call = world.esker(&[command, &["--public-key", &key]].concat());
        let output = call.output().expect("running esker");
        assert!(!output.status.success(), "{}", words(&output));
        let said = stderr(&output);
        assert!(said.contains(&meant) && said.contains("colon"), "{command:?}: {said}");
    }
    let mut run = world.esker(&["run", &wrong, "--public-key", &key, "--", "true"]);
    let said = stderr(&run.output().expect("running esker"));
    assert!(said.contains(&meant), "{said}");
    let said = complaint(&mut world.esker(&["ls", "sw.example.org/dir"]), 2);
    assert!(said.contains("sw.example.org:/dir"), "{said}");
    let folder = world.repository.document_root().join("rmd.test/dir").display().to_string();
    let said = stderr(&world.esker(&["ls", &folder, "--public-key", &key]).output().expect("running esker"));
    assert!(said.contains("rmd.test:/dir"), "{said}");
}

/// Returns the paths and URLs that a message names more than once.
fn named_twice(message: &str) -> Vec<String> {
    let is_end = |letter: char| letter.is_whitespace() || "`'\"(),;".contains(letter);
    let words = message.split(is_end).map(|word| word.trim_end_matches([':', '.', '/']));
    let mut seen = BTreeSet::new();
    let mut twice = Vec::new();
    for word in words.filter(|word| word.trim_start_matches("file://").contains('/') && word.len() > 2) {
        // In `NAME:/path` and `URL:/path` the path counts as well.
        let path = word.split_once(":/").map(|(_, path)| path.trim_start_matches('/'));
        let named =
            path.filter(|_| !word.starts_with("http")).unwrap_or(word).trim_start_matches('/').to_owned();
        if !seen.insert(named.clone()) {
            twice.push(named);
        }
    }
    twice
}

/// The first line of a message names a path or URL once, however many layers added it.
#[test]
fn messages_name_a_path_once() {
    let world = TestEnv::new(TestUser::ordinary(), fixture::RMD);
    let home = |name: &str| world.path("home").join(name).display().to_string();
    world.person.does(|| {
        for folder in ["folder", "storage", "tree", "closed"] {
            std::fs::create_dir(home(folder)).expect("a folder");
        }
        std::fs::write(home("file"), "x").expect("a file");
        std::fs::write(home("junk.sqfs"), "junk".repeat(100)).expect("a file");
        let closed = <std::fs::Permissions as std::os::unix::fs::PermissionsExt>::from_mode(0o000);
        std::fs::set_permissions(home("closed"), closed).expect("a mode");
    });
    let (storage, keys) = (home("storage"), home("keys"));
    let own = ["--storage", &storage, "--keys", &keys];
    printed(&mut world.esker(&[&["repo", "create", "own.test"][..], &own].concat()));
    let key = world.path("key.pub").display().to_string();
    let (mnt, url, tree) = (world.mountpoint().display().to_string(), world.url(), home("tree"));
    let away = "http://127.0.0.1:1/cvmfs/rmd.test";
    let rule = world.mirror.fault(|path| path.contains("/data/") && !path.ends_with('C'), Fault::Missing);
    let file_of = |command: &'static str| vec![command.to_owned(), format!("{url}:/{}", small_file(&world))];
    let mut lines: Vec<Vec<String>> = vec![file_of("cat")];
    let call = |words: &[&str]| words.iter().map(|word| (*word).to_owned()).collect::<Vec<String>>();
    lines.push(call(&["ls", away]));
    lines.push(call(&["mount", away, &mnt]));
    lines.push(call(&["ls", &url.replace("rmd.test", "none.test")]));
    lines.push(call(&["cat", &format!("{url}:/no/such")]));
    lines.push(call(&["cat", &format!("{url}:/")]));
    let trust = ["--public-key", &key];
    for line in &mut lines {
        line.extend(trust.iter().map(|word| (*word).to_owned()));
    }
    let things = [
        home("none/such"),
        home("file"),
        home("junk.sqfs"),
        home("folder"),
        home("closed/x"),
        "no/such".into(),
    ];
    for thing in &things {
        let calls: [&[&str]; 24] = [
            &["mount", thing, &mnt],
            &["mount", &url, thing, "--public-key", &key],
            &["mount", &url, &mnt, "--public-key", thing],
            &["ls", &url, "--public-key", &key, "--cache", thing],
            &["ls", &url, "--public-key", &key, "--ca", thing],
            &["run", thing, "--", "true"],
            &["ls", thing],
            &["umount", thing],
            &["image", "inspect", thing],
            &["image", "ls", thing],
            &["image", "verify", thing],
            &["image", "extract", thing, &home("out")],
            &["image", "build", thing, &home("no/folder/o.sqfs")],
            &["image", "build", &tree, &format!("{thing}/o.sqfs")],
            &["cache", "check", "--cache", thing],
            &["config", "check", thing],
            &["config", "show", thing],
            &["profile", "show", thing],
            &["setup", "import", thing],
            &["compare", thing, &tree],
            &["publish", "own.test", thing, "--storage", &storage, "--keys", &keys],
            &["publish", "own.test", &tree, "--storage", thing, "--keys", &keys],
            &["publish", "own.test", &tree, "--storage", &storage, "--keys", thing],
            &["ingest", "own.test", thing, "--to", "/x", "--storage", &storage, "--keys", &keys],
        ];
        lines.extend(calls.iter().map(|words| call(words)));
    }
    let mut failures = 0;
    for line in &lines {
        let words: Vec<&str> = line.iter().map(String::as_str).collect();
        let output = world.esker(&words).current_dir(home("tree")).output().expect("running esker");
        let said = stderr(&output);
        for message in said.lines().filter(|line| line.starts_with("esker: ")) {
            failures += 1;
            let twice = named_twice(message);
            assert!(twice.is_empty(), "{line:?} names {twice:?} twice: {message}");
        }
        assert!(!world.is_mounted(), "{line:?}");
    }
    assert!(failures > 80, "only {failures} messages of {} calls", lines.len());
    assert!(rule.hits() > 0, "nothing met the fault");
}

/// Returns the path of a file that has content.
fn small_file(world: &TestEnv) -> String {
    let listing = world.fixture().listing("v3");
    let found =
        listing.iter().find(|entry| entry.is_file() && entry.size > Some(0) && entry.mode & 0o400 != 0);
    String::from_utf8_lossy(&found.expect("a file").path).into_owned()
}
