//! `ls`, `cat`, `stat` and `find`: a repository without a mount.

use std::collections::BTreeMap;
use std::ffi::OsStr;
use std::fs;
use std::io::Read;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::symlink;
use std::process::{Command, Output, Stdio};

use esker_format::catalog::symlink::expand;
use esker_testkit::fixture;
use esker_testkit::listing::Entry;
use serde_json::Value;

use crate::publishing::{NAME, Workshop};
use crate::test_env::{TestEnv, words};
use crate::test_user::TestUser;

fn ask(world: &TestEnv, arguments: &[&str]) -> Output {
    let output = world
        .esker(arguments)
        .arg("--public-key")
        .arg(world.path("key.pub"))
        .arg("--cache")
        .arg(world.cache())
        .output()
        .expect("running esker");
    assert!(output.status.success(), "{arguments:?}: {}", words(&output));
    output
}

fn json(world: &TestEnv, arguments: &[&str]) -> Value {
    let output = ask(world, arguments);
    serde_json::from_slice(&output.stdout).unwrap_or_else(|error| panic!("{error}: {}", words(&output)))
}

fn bytes_of(entry: &Value) -> Vec<u8> {
    match entry["path_hex"].as_str() {
        Some(hex) => (0..hex.len())
            .step_by(2)
            .map(|at| u8::from_str_radix(&hex[at..at + 2], 16).expect("hex digits"))
            .collect(),
        None => entry["path"].as_str().expect("a path").as_bytes().to_vec(),
    }
}

fn assert_same(expected: &Entry, found: &Value) {
    let name = expected.path.escape_ascii();
    let kind = match expected.kind() {
        libc::S_IFREG => "file",
        libc::S_IFDIR => "directory",
        libc::S_IFLNK => "symlink",
        libc::S_IFIFO => "fifo",
        libc::S_IFSOCK => "socket",
        libc::S_IFCHR => "char device",
        libc::S_IFBLK => "block device",
        other => panic!("{name} has type {other:o}"),
    };
    assert_eq!(found["type"], kind, "{name}");
    assert_eq!(found["mode"], format!("{:04o}", expected.mode & 0o7777), "{name}");
    assert_eq!((&found["uid"], &found["gid"]), (&expected.uid.into(), &expected.gid.into()), "{name}");
    let time = found["mtime"].as_i64().expect("a time") * 1_000_000_000
        + found["mtime_ns"].as_i64().expect("nanoseconds");
    assert_eq!(time, expected.mtime_ns, "{name}");
    // Listings have targets without variables; these are shown as they were published.
    let raw = found["target"].as_str().filter(|target| target.contains("$("));
    if let Some(size) = expected.size {
        assert_eq!(found["size"], raw.map_or(size, |raw| raw.len() as u64), "{name}");
    }
    if let Some(links) = expected.nlink {
        assert_eq!(found["nlink"], links, "{name}");
    }
    if let Some(target) = &expected.target {
        let shown = match raw {
            Some(raw) => String::from_utf8_lossy(&expand(raw.as_bytes(), |_| None)).into_owned(),
            None => found["target"].as_str().expect("a target").to_owned(),
        };
        assert_eq!(shown, String::from_utf8_lossy(target), "{name}");
    }
}

#[test]
fn find_lists_every_entry_as_published() {
    for fixture in fixture::ALL {
        let world = TestEnv::new(TestUser::ordinary(), fixture);
        let found = json(&world, &["find", &world.url(), "--json"]);
        let found: BTreeMap<Vec<u8>, &Value> =
            found.as_array().expect("an array").iter().map(|entry| (bytes_of(entry), entry)).collect();
        let expected = fixture.listing("v3");
        assert_eq!(found.len(), expected.len(), "{}", fixture.name());
        for entry in &expected {
            let found = found.get(&entry.path);
            assert_same(entry, found.unwrap_or_else(|| panic!("no {}", entry.path.escape_ascii())));
        }
    }
}

#[test]
fn find_takes_names_types_and_depths_as_find_does() {
    let world = TestEnv::new(TestUser::ordinary(), fixture::FULL);
    let expected = fixture::FULL.listing("v3");
    let lines = |arguments: &[&str]| -> Vec<Vec<u8>> {
        let url = format!("{}:/", world.url());
        let output = ask(&world, &[&["find", &url], arguments].concat());
        let mut lines: Vec<Vec<u8>> =
            output.stdout.split(|byte| *byte == b'\n').map(<[u8]>::to_vec).collect();
        assert_eq!(lines.pop(), Some(Vec::new()), "the last line ends");
        lines
    };
    let scripts: Vec<Vec<u8>> = expected
        .iter()
        .filter(|entry| entry.is_file() && entry.path.ends_with(b".txt"))
        .map(|entry| entry.path.clone())
        .collect();
    assert!(!scripts.is_empty());
    for spelling in [["-name", "*.txt", "-type", "f"], ["--name", "*.txt", "--type", "f"]] {
        let mut found = lines(&spelling);
        found.sort();
        assert_eq!(found, scripts);
    }
    let depth = |path: &[u8]| path[1..].split(|byte| *byte == b'/').filter(|part| !part.is_empty()).count();
    let shallow = expected.iter().filter(|entry| depth(&entry.path) <= 1).count();
    assert_eq!(lines(&["-maxdepth", "1"]).len(), shallow);
}

#[test]
fn ls_shows_names_in_order_and_long_lines() {
    let world = TestEnv::new(TestUser::ordinary(), fixture::FULL);
    let place = format!("{}:/sw", world.url());
    let names = ask(&world, &["ls", &place]);
    let mut expected: Vec<String> = fixture::FULL
        .listing("v3")
        .iter()
        .filter_map(|entry| Some(String::from_utf8_lossy(entry.path.strip_prefix(b"/sw/")?).into_owned()))
        .filter(|name| !name.contains('/'))
        .collect();
    expected.sort();
    let shown = String::from_utf8(names.stdout).expect("text");
    assert_eq!(shown.lines().collect::<Vec<_>>(), expected);
    let separate = ask(&world, &["ls", &world.url(), "/sw"]);
    assert_eq!(String::from_utf8(separate.stdout).expect("text"), shown);
    let array = json(&world, &["ls", &place, "--json"]);
    let listed: Vec<&str> =
        array.as_array().expect("an array").iter().filter_map(|entry| entry["path"].as_str()).collect();
    assert_eq!(listed, expected);
    let long = ask(&world, &["ls", "-l", &place]);
    let long = String::from_utf8(long.stdout).expect("text");
    assert_eq!(long.lines().count(), expected.len());
    assert!(long.lines().all(|line| line.starts_with(['d', '-', 'l']) && line.contains("2026-")), "{long}");
}

#[test]
fn cat_prints_whole_and_chunked_files_and_follows_links() {
    for fixture in fixture::ALL {
        let world = TestEnv::new(TestUser::ordinary(), fixture);
        let listing = fixture.listing("v3");
        let largest = listing.iter().filter(|entry| entry.is_file()).max_by_key(|entry| entry.size);
        let smallest = listing
            .iter()
            .filter(|entry| {
                entry.is_file() && entry.size > Some(0) && std::str::from_utf8(&entry.path).is_ok()
            })
            .min_by_key(|entry| entry.size);
        for entry in [largest, smallest].into_iter().flatten() {
            let path = std::str::from_utf8(&entry.path).expect("a path in UTF-8");
            let output = ask(&world, &["cat", &format!("{}:{path}", world.url())]);
            let digest = esker_testkit::object::sha256(&output.stdout);
            assert_eq!(Some(digest), entry.sha256, "{path} of {}", fixture.name());
        }
    }
}

#[test]
fn stat_shows_extended_attributes() {
    let world = TestEnv::new(TestUser::ordinary(), fixture::FULL);
    let listing = fixture::FULL.listing("v3");
    let entry = listing
        .iter()
        .filter(|entry| std::str::from_utf8(&entry.path).is_ok())
        .max_by_key(|entry| entry.xattrs.len())
        .expect("a listing");
    assert!(!entry.xattrs.is_empty());
    let path = std::str::from_utf8(&entry.path).expect("a path in UTF-8");
    let found = json(&world, &["stat", &format!("{}:{path}", world.url()), "--json"]);
    assert_same(entry, &found);
    for (name, value) in &entry.xattrs {
        let name = String::from_utf8_lossy(name).into_owned();
        let hex: String = value.iter().map(|byte| format!("{byte:02x}")).collect();
        assert_eq!(found["xattrs"][&name], hex, "{name} of {path}");
    }
    let text = ask(&world, &["stat", &format!("{}:{path}", world.url())]);
    assert!(String::from_utf8_lossy(&text.stdout).contains("Xattr"), "{}", words(&text));
}

#[test]
fn names_that_are_no_text_can_be_used() {
    let world = TestEnv::new(TestUser::ordinary(), fixture::FULL);
    let listing = fixture::FULL.listing("v3");
    let no_text = |entry: &&Entry| std::str::from_utf8(&entry.path).is_err() && entry.is_file();
    let entry = listing.iter().find(no_text).expect("a name that is no text");
    let place = [world.url().as_bytes(), b":", &entry.path].concat();
    let asked = |command: &str, arguments: &[&[u8]]| {
        let mut call = world.esker(&[command, "--public-key"]);
        call.arg(world.path("key.pub")).arg("--cache").arg(world.cache());
        let output = call.args(arguments.iter().map(|name| OsStr::from_bytes(name))).output();
        let output = output.expect("running esker");
        assert!(output.status.success(), "{command}: {}", words(&output));
        output.stdout
    };
    let content = asked("cat", &[&place]);
    assert_eq!(Some(esker_testkit::object::sha256(&content)), entry.sha256);
    assert_eq!(asked("cat", &[world.url().as_bytes(), &entry.path]), content);
    let found: Value = serde_json::from_slice(&asked("stat", &[&place, b"--json"])).expect("JSON");
    assert_eq!(bytes_of(&found), entry.path);
    assert_eq!(asked("ls", &[&place]), [&entry.path, &b"\n"[..]].concat());
    let name = entry.path.rsplit(|byte| *byte == b'/').next().expect("a name");
    let found = asked("find", &[world.url().as_bytes(), b"-name", name]);
    assert!(found.split(|byte| *byte == b'\n').any(|path| path == entry.path), "{}", found.escape_ascii());
}

/// Publishers choose names; those names must not control the terminal of a user who lists them.
#[test]
fn names_do_not_control_a_terminal() {
    let bad = "a\u{1b}]0;title\u{7}\u{9b}31m\nb";
    let workshop = Workshop::with(TestUser::ordinary(), |top| {
        fs::create_dir(top).expect("a folder");
        fs::write(top.join(bad), "content").expect("a file");
        symlink(bad, top.join("link")).expect("a link");
    });
    workshop.create();
    workshop.json(&["publish", NAME, &workshop.tree()]);
    let url = workshop.published();
    let key = workshop.world.path("key.pub").display().to_string();
    let place = format!("{url}:/{bad}");
    let commands: [&[&str]; 5] =
        [&["ls", &url], &["ls", "-l", &url], &["find", &url], &["stat", &place], &["ls", &place]];
    for command in commands {
        let mut call = workshop.world.esker(&[command, &["--public-key", &key]].concat());
        let shown = on_a_terminal(&mut call);
        let text = String::from_utf8(shown).expect("text");
        assert!(text.contains("a?]0;title??31m?b"), "{command:?}: {text:?}");
        let controls = text.chars().filter(|c| c.is_control() && !matches!(c, '\r' | '\n')).count();
        assert_eq!(controls, 0, "{command:?}: {text:?}");
        let piped = call.stdout(Stdio::piped()).output().expect("running esker").stdout;
        let exact = piped.windows(bad.len()).any(|here| here == bad.as_bytes());
        assert!(exact, "{command:?} changed names for a program: {}", piped.escape_ascii());
    }
}

/// Descriptions of tags, names in differences and errors, and the paths that users type come from others as well.
#[test]
fn texts_of_others_do_not_control_a_terminal() {
    let bad = "a\u{1b}]0;title\u{7}\u{9b}31m";
    let shown = "a?]0;title??31m";
    let workshop = Workshop::with(TestUser::ordinary(), |top| {
        fs::create_dir(top).expect("a folder");
        fs::write(top.join("first"), "content").expect("a file");
    });
    workshop.create();
    let tree = workshop.tree();
    workshop.json(&["publish", NAME, &tree]);
    workshop.world.person.does(|| {
        fs::create_dir(format!("{tree}/{bad}")).expect("a folder");
        fs::write(format!("{tree}/{bad}/file"), format!("{bad}\n")).expect("a file");
    });
    workshop.json(&["publish", NAME, &tree, "--tag", "v1", "--message", bad]);
    let url = workshop.published();
    let key = workshop.world.path("key.pub").display().to_string();
    let (storage, keys) = (workshop.home("storage"), workshop.home("keys"));
    let mut commands = vec![
        vec!["tag", "list", &url, "--public-key", &key],
        vec!["tag", "show", &url, "v1", "--public-key", &key],
        vec!["log", &url, "--public-key", &key],
        vec!["diff", &url, "--public-key", &key],
        vec!["diff", &url, "--patch", "--public-key", &key],
        vec!["find", &url, "-name", bad, "--public-key", &key],
        vec!["revision", &url, "--public-key", &key],
        vec!["rollback", NAME, bad],
        vec!["check", bad],
        vec!["mount", bad, bad],
        vec!["image", "diff", bad, bad],
        vec!["tag", "add", NAME, bad, "--storage", &storage, "--keys", &keys],
    ];
    let compared = [format!("{tree}/{bad}"), tree.clone()];
    commands.push(vec!["compare", &compared[0], &compared[1]]);
    let mut seen = 0;
    for command in commands {
        let mut call = workshop.world.esker(&command);
        call.env("NO_COLOR", "1");
        let text = String::from_utf8(on_a_terminal(&mut call)).expect("text");
        let controls = text.chars().filter(|c| c.is_control() && !matches!(c, '\r' | '\n' | '\t')).count();
        assert_eq!(controls, 0, "{command:?}: {text:?}");
        seen += usize::from(text.contains(shown));
    }
    assert!(seen >= 9, "only {seen} commands showed the text");
    let shown = workshop.world.esker(&["tag", "show", &url, "v1", "--public-key", &key, "--json"]).output();
    let shown = shown.expect("running esker");
    let text = String::from_utf8_lossy(&shown.stdout);
    assert!(text.contains("\\u009b31m") && text.contains("\\u001b]"), "{}", words(&shown));
}

/// Returns the output of a command to a terminal.
fn on_a_terminal(command: &mut Command) -> Vec<u8> {
    let (mut outside, inside) = crate::sys::terminal();
    let errors = inside.try_clone().expect("a descriptor");
    let mut child = command.stdout(inside).stderr(errors).spawn().expect("running esker");
    // Its ends of the terminal are still open in the command.
    command.stdout(Stdio::null()).stderr(Stdio::null());
    let mut shown = Vec::new();
    match outside.read_to_end(&mut shown) {
        // A terminal's error after its other end is closed.
        Err(error) if error.raw_os_error() == Some(libc::EIO) => {}
        read => drop(read.expect("reading from a terminal")),
    }
    let ended = child.wait().expect("esker ends").code();
    assert!(matches!(ended, Some(0..=4)), "{ended:?}: {}", shown.escape_ascii());
    shown
}
