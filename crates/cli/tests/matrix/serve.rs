//! `esker serve`: from a folder to a client and back.

use std::ffi::OsStr;
use std::fs;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::{Command, Stdio};

use esker_testkit::fixture;
use esker_testkit::skip;
use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;

use crate::test_env::{TestEnv, esker_binary, words};
use crate::test_user::TestUser;

/// Serves as the user of the tests, who owns the fixture's folder.
fn serve(folder: &Path, options: &[&str]) -> Command {
    let mut command = Command::new(esker_binary());
    command.arg("serve").arg(folder).args(options).env_clear().env("HOME", "/").stdout(Stdio::piped());
    command
}

#[test]
fn a_served_repository_reads_as_published_and_the_server_stops_on_a_signal() {
    let world = TestEnv::new(TestUser::ordinary(), fixture::FULL);
    for signal in [Signal::TERM, Signal::INT] {
        let mut server = serve(&world.repository.path(), &["--listen", "127.0.0.1:0", "--json"])
            .spawn()
            .expect("esker serve");
        let mut lines = BufReader::new(server.stdout.take().expect("its output"));
        let mut line = String::new();
        lines.read_line(&mut line).expect("a line");
        let ready: Value = serde_json::from_str(&line).expect("JSON");
        assert_eq!(ready["event"], "ready");
        let url = ready["repositories"][0]["url"].as_str().expect("a URL");
        assert!(url.ends_with("/cvmfs/full.test"), "{ready}");

        let mut find = world.esker(&["find", url, "--json"]);
        find.arg("--public-key").arg(world.path("key.pub"));
        // A cache of its own, so that every catalog has to be fetched.
        find.arg("--cache").arg(world.path("home").join(format!("cache-{}", signal.as_raw())));
        let found = find.output().expect("running esker");
        assert!(found.status.success(), "{}", words(&found));
        let found: Value = serde_json::from_slice(&found.stdout).expect("JSON");
        let listed = world.fixture().listing("v3").len();
        assert!(found.as_array().is_some_and(|found| found.len().abs_diff(listed) <= 1), "{listed} entries");

        let pid = Pid::from_raw(server.id().cast_signed()).expect("a process");
        kill_process(pid, signal).expect("a signal");
        line.clear();
        lines.read_to_string(&mut line).expect("the rest");
        let stopped: Value = serde_json::from_str(&line).expect("JSON");
        assert_eq!((&stopped["event"], &stopped["cut"]), (&"stopped".into(), &0.into()));
        assert!(stopped["requests"].as_u64() > Some(4), "{stopped}");
        assert!(server.wait().expect("its end").success());
    }
}

/// Started by root, the server has no privileges once it listens, and runs as the named user.
#[test]
fn a_server_started_by_root_drops_its_privileges() {
    let repository = fixture::FULL.unpack();
    for folder in repository.path().ancestors().take_while(|folder| *folder != std::env::temp_dir()) {
        fs::set_permissions(folder, fs::Permissions::from_mode(0o755)).expect("a mode");
    }
    let listen = ["--listen", "127.0.0.1:0", "--json"];
    if TestUser::myself().uid != 0 {
        let mut call = serve(&repository.path(), &listen);
        let refused = call.args(["--user", "root"]).output().expect("esker serve");
        assert_eq!(refused.status.code(), Some(2), "{}", words(&refused));
        skip!("only root has privileges to give up");
    }
    for (user, uid) in [("nobody", "65534"), ("root", "0")] {
        let mut call = serve(&repository.path(), &listen);
        let mut server = call.args(["--user", user]).spawn().expect("esker serve");
        let mut line = String::new();
        let output = server.stdout.as_mut().expect("its output");
        BufReader::new(output).read_line(&mut line).expect("that it is ready");
        let ready: Value = serde_json::from_str(&line).expect("JSON");
        let threads = fs::read_dir(format!("/proc/{}/task", server.id())).expect("its threads");
        let states: Vec<String> = threads
            .map(|thread| {
                fs::read_to_string(thread.expect("a thread").path().join("status")).expect("a state")
            })
            .collect();
        let address = ready["url"].as_str().and_then(|url| url.strip_prefix("http://")).expect("an address");
        let mut client = TcpStream::connect(address).expect("connecting");
        client.write_all(b"GET /cvmfs/full.test/.cvmfspublished HTTP/1.0\r\n\r\n").expect("a request");
        let mut answer = Vec::new();
        client.read_to_end(&mut answer).expect("an answer");
        server.kill().expect("a signal");
        server.wait().expect("its end");
        assert!(answer.starts_with(b"HTTP/1.0 200"), "{}", String::from_utf8_lossy(&answer));
        assert!(states.len() > 2);
        for state in states {
            let field = |name: &str| {
                let found = state.lines().find_map(|line| line.strip_prefix(name));
                found
                    .map(|value| value.split_whitespace().map(str::to_owned).collect::<Vec<_>>())
                    .expect("a field")
            };
            assert_eq!(field("Uid:"), [uid; 4], "{state}");
            for set in ["CapEff:", "CapPrm:", "CapBnd:", "CapInh:", "CapAmb:"] {
                assert!(field(set).concat().bytes().all(|digit| digit == b'0'), "{set} {state}");
            }
            assert_eq!(field("NoNewPrivs:"), ["1"]);
        }
    }
}

/// As under `nohup`: with SIGHUP ignored the server outlives the terminal.
#[test]
fn a_hangup_ignored_by_the_caller_stays_ignored() {
    let world = TestEnv::new(TestUser::ordinary(), fixture::FULL);
    for is_ignored in [false, true] {
        let call = serve(&world.repository.path(), &["--listen", "127.0.0.1:0", "--json"]);
        let first = if is_ignored { "trap '' HUP;" } else { "" };
        let mut shell = TestUser::myself().command("/bin/sh");
        shell
            .args(["-c", &format!("{first} exec \"$@\""), "sh"])
            .arg(call.get_program())
            .args(call.get_args());
        let mut server = shell.stdout(Stdio::piped()).spawn().expect("a shell");
        let mut line = String::new();
        let output = server.stdout.as_mut().expect("its output");
        BufReader::new(output).read_line(&mut line).expect("that it is ready");
        let status = fs::read_to_string(format!("/proc/{}/status", server.id())).expect("its status");
        server.kill().expect("a signal");
        server.wait().expect("its end");
        let has_hangup = |field: &str| {
            let mask = status.lines().find_map(|line| line.strip_prefix(field)).expect("a mask");
            u64::from_str_radix(mask.trim(), 16).expect("a number") & 1 == 1
        };
        // Handled signals are blocked.
        assert_eq!([has_hangup("SigIgn:"), has_hangup("SigBlk:")], [is_ignored, !is_ignored]);
    }
}

/// Every file in a repository's folder is requested: the publisher's state and keys, if they are there, don't exist
/// for clients.
#[test]
fn only_files_that_clients_need_are_served() {
    let world = TestEnv::new(TestUser::ordinary(), fixture::RMD);
    let storage = world.path("home").join("storage");
    let folder = storage.join("made.test");
    let tree = world.path("home").join("tree");
    world.person.does(|| {
        fs::create_dir(&tree).expect("a folder");
        fs::write(tree.join("file"), "content").expect("a file");
    });
    // With the keys where they should never be.
    let places = [OsStr::new("--storage"), storage.as_os_str(), OsStr::new("--keys"), folder.as_os_str()];
    for arguments in
        [&["repo", "create", "made.test"][..], &["publish", "made.test", tree.to_str().expect("text")]]
    {
        let output = world.esker(arguments).args(places).output().expect("running esker");
        assert!(output.status.success(), "{}", words(&output));
    }
    world.person.does(|| fs::write(folder.join("data/txn/upload"), "half")).expect("a file");
    let files = world.person.does(|| files_below(&folder));
    let mut command = world.esker(&["serve", "--listen", "127.0.0.1:0", "--json"]);
    let mut server = command.arg(&storage).stdout(Stdio::piped()).spawn().expect("esker serve");
    let mut lines = BufReader::new(server.stdout.take().expect("its output"));
    let mut line = String::new();
    lines.read_line(&mut line).expect("a line");
    let ready: Value = serde_json::from_str(&line).expect("JSON");
    let address = ready["url"].as_str().and_then(|url| url.strip_prefix("http://")).expect("an address");
    let (mut served, mut private) = (Vec::new(), Vec::new());
    for file in files {
        let mut stream = TcpStream::connect(address).expect("connecting");
        let request = format!("GET /cvmfs/made.test/{file} HTTP/1.1\r\nHost: h\r\nConnection: close\r\n\r\n");
        stream.write_all(request.as_bytes()).expect("asking");
        let mut answer = Vec::new();
        stream.read_to_end(&mut answer).expect("an answer");
        if answer.starts_with(b"HTTP/1.1 200 ") { &mut served } else { &mut private }.push(file);
    }
    kill_process(Pid::from_raw(server.id().cast_signed()).expect("a process"), Signal::TERM)
        .expect("a signal");
    assert!(server.wait().expect("its end").success());
    let is_public = |file: &String| {
        let object = file.starts_with("data/") && !file.starts_with("data/txn/");
        object || file.starts_with(".cvmfs") && !file.contains('/')
    };
    assert!(served.iter().all(is_public), "{served:?}");
    assert!(!private.iter().any(is_public), "{private:?}");
    assert!(served.len() > 5, "{served:?}");
    for secret in [".esker/settings.json", "made.test.key", "made.test.masterkey", "data/txn/upload"] {
        assert!(private.iter().any(|file| file == secret), "{secret} was not asked for: {private:?}");
    }
}

fn files_below(top: &Path) -> Vec<String> {
    let mut found = Vec::new();
    let mut folders = vec![top.to_owned()];
    while let Some(folder) = folders.pop() {
        for entry in fs::read_dir(folder).expect("a folder") {
            let path = entry.expect("an entry").path();
            if path.is_dir() {
                folders.push(path);
            } else {
                found.push(path.strip_prefix(top).expect("below").to_str().expect("text").to_owned());
            }
        }
    }
    found
}

#[test]
fn requests_that_can_not_be_served_are_reported() {
    let repository = fixture::RMD.unpack();
    let taken = TcpListener::bind("127.0.0.1:0").expect("a port");
    let address = taken.local_addr().expect("an address").to_string();
    let output = serve(&repository.path(), &["--listen", &address]).output().expect("running esker");
    assert_eq!(output.status.code(), Some(3), "{}", words(&output));
    assert!(words(&output).contains(&address) && words(&output).contains("--listen"), "{}", words(&output));
    let output = serve(Path::new("/no/such/folder"), &[]).output().expect("running esker");
    assert_eq!(output.status.code(), Some(2), "{}", words(&output));
    assert!(words(&output).contains("/no/such/folder"), "{}", words(&output));
    let output = serve(&repository.path(), &["--listen", "nonsense"]).output().expect("running esker");
    assert_eq!(output.status.code(), Some(2), "{}", words(&output));
}
