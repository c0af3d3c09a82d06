//! `esker broker`, and mounts that get their objects from it.

use std::ffi::OsStr;
use std::fs;
use std::io::{BufRead, BufReader};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{MetadataExt, PermissionsExt, chown};
use std::path::PathBuf;
use std::process::{Child, Stdio};

use esker_testkit::fixture::{self, Fixture};
use esker_testkit::skip;
use rustix::process::{Pid, Signal, kill_process};

use crate::configuring::{configured, write_files};
use crate::test_env::{Mounted, TestEnv, esker_binary, words};
use crate::test_user::TestUser;

const FIXTURE: Fixture = fixture::RMD;
/// Resident memory of a mount at rest, in KiB.
const AT_REST_MAX: u64 = 20 << 10;

/// A broker that runs as the user of the tests.
pub(crate) struct Broker {
    process: Child,
    socket: PathBuf,
}

impl Broker {
    pub(crate) fn start(world: &TestEnv) -> Self {
        Self::start_with(world, &[])
    }

    fn start_with(world: &TestEnv, options: &[&str]) -> Self {
        let folder = world.path("broker");
        fs::create_dir_all(&folder).expect("a folder");
        fs::set_permissions(&folder, fs::Permissions::from_mode(0o755)).expect("a mode");
        let socket = folder.join("socket");
        let mut command = std::process::Command::new(esker_binary());
        command
            .args(["broker", "--quota", "100M", "--connect", "127.0.0.1", "--cache"])
            .arg(folder.join("cache"));
        command.arg("--socket").arg(&socket).args(options);
        command.env_clear().env("ESKER_CONFIG_ROOT", world.config_root());
        command.stdin(Stdio::null()).stderr(Stdio::piped());
        let mut process = command.spawn().expect("esker broker");
        let mut line = String::new();
        let said = BufReader::new(process.stderr.take().expect("its output")).read_line(&mut line);
        said.expect("a word");
        assert!(line.contains("serving the cache"), "{line}");
        Self { process, socket }
    }

    /// Returns the options of a mount that uses it and, as another user, trusts it.
    pub(crate) fn options(&self) -> [String; 4] {
        let uid = TestUser::myself().uid.to_string();
        ["--broker".into(), self.socket.display().to_string(), "--broker-user".into(), uid]
    }

    pub(crate) fn pid(&self) -> u32 {
        self.process.id()
    }

    /// Kills it without a chance to clean up.
    pub(crate) fn kill(mut self) {
        self.process.kill().expect("killing");
        self.process.wait().expect("its end");
    }

    pub(crate) fn stop(mut self) {
        let pid = Pid::from_child(&self.process);
        kill_process(pid, Signal::TERM).expect("a signal");
        assert!(self.process.wait().expect("its end").success());
    }
}

impl Drop for Broker {
    fn drop(&mut self) {
        // Whether there is one to kill is the business of the test.
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

/// Returns the path of a repository's file in a mount.
fn at(mount: &Mounted<'_>, path: &[u8]) -> PathBuf {
    mount.path("").join(OsStr::from_bytes(&path[1..]))
}

/// Returns the resident memory of a process in KiB, without the pages of its executable, which all processes share and whose
/// number depends on the build.
fn resident_kib(pid: u64) -> u64 {
    let executable = fs::read_link(format!("/proc/{pid}/exe")).expect("its executable");
    let executable = executable.to_str().expect("text");
    let text = fs::read_to_string(format!("/proc/{pid}/smaps")).expect("its memory");
    let mut is_code = false;
    let mut resident = 0;
    for line in text.lines() {
        if let Some(rss) = line.strip_prefix("Rss:") {
            let rss: u64 = rss.trim().trim_end_matches(" kB").parse().expect("a number");
            resident += if is_code { 0 } else { rss };
        } else if line.split(' ').next().is_some_and(|range| range.contains('-')) {
            is_code = line.ends_with(executable);
        }
    }
    assert!(resident > 1 << 10, "{text}");
    resident
}

/// Configured lower folders are for the writer of a cache; a broker on the command line is used all the same.
#[test]
fn a_broker_on_the_command_line_overrides_configured_tiers() {
    let world = TestEnv::new(TestUser::ordinary(), FIXTURE);
    let broker = Broker::start(&world);
    let name = FIXTURE.name();
    let home = world.path("home").display().to_string();
    let config = format!(
        "CVMFS_SERVER_URL={}\nCVMFS_HTTP_PROXY=DIRECT\nCVMFS_PUBLIC_KEY=/key.pub\nCVMFS_CACHE_BASE={home}/caches\n\
         CVMFS_ALIEN_CACHE=/alien\n",
        world.url()
    );
    write_files(&world, &[(&format!("/etc/cvmfs/config.d/{name}.local"), &config)]);
    fs::copy(world.path("key.pub"), world.path("root/key.pub")).expect("a key");
    let alien = world.path("root/alien");
    fs::create_dir(&alien).expect("a folder");
    chown(&alien, Some(world.person.uid), Some(world.person.gid)).expect("giving a folder away");
    let place = world.mountpoint().display().to_string();
    let options = broker.options();
    let through = |options: &[String]| {
        let mut command = configured(&world, &["mount", name, &place]);
        let mounted = command.args(options).output().expect("esker mount");
        assert!(mounted.status.success(), "{}", words(&mounted));
        world.mounted().status()["cache"]["broker"].clone()
    };
    assert_eq!(through(&options), broker.socket.display().to_string());
    assert!(through(&[]).is_null());
}

/// A broker that root starts and that becomes another user serves as before: mounts trust it, and the cache is that
/// user's.
#[test]
fn a_broker_changes_to_the_user_of_its_option() {
    let me = TestUser::myself();
    if me.uid != 0 {
        skip!("only root can become another user");
    }
    for person in TestUser::all() {
        let world = TestEnv::new(person, FIXTURE);
        let broker = Broker::start_with(&world, &["--user", "nobody"]);
        let options = broker.options();
        let mount = world.mount(&options.iter().map(String::as_str).collect::<Vec<_>>());
        assert_eq!(mount.status()["cache"]["broker"], broker.socket.display().to_string());
        let file =
            FIXTURE.listing("v3").into_iter().find(|entry| entry.is_file() && entry.mode & 0o444 == 0o444);
        let place = at(&mount, &file.expect("a file").path);
        world.person.does(|| fs::read(&place)).expect("its bytes");
        let facts = fs::metadata(world.path("broker/cache/objects")).expect("the cache");
        let state = fs::read_to_string(format!("/proc/{}/status", broker.process.id())).expect("its state");
        assert_eq!(facts.uid(), 65_534);
        assert!(
            state.contains("Uid:\t65534\t65534\t65534\t65534") && state.contains("NoNewPrivs:\t1"),
            "{state}"
        );
        assert!(state.contains("CapPrm:\t0000000000000000"), "{state}");
        drop(mount);
        broker.stop();
    }
}

/// > C9: A mount at rest takes less than 20 MB of memory beside the program's code, through a broker and as the writer of its own cache.
#[test]
fn mounts_use_the_broker_and_take_little_memory() {
    for person in TestUser::all() {
        let world = TestEnv::new(person, FIXTURE);
        let broker = Broker::start(&world);
        let options = broker.options();
        let options: Vec<&str> = options.iter().map(String::as_str).collect();
        let mount = world.mount(&options);
        let contents: Vec<_> = FIXTURE
            .listing("v3")
            .into_iter()
            .filter(|entry| entry.is_file() && entry.mode & 0o444 == 0o444)
            .collect();
        for entry in &contents {
            let path = at(&mount, &entry.path);
            let read = mount.does(|| fs::read(path)).expect("reading");
            assert_eq!(Some(esker_testkit::object::sha256(&read)), entry.sha256);
        }
        let status = mount.status();
        assert_eq!(status["cache"]["broker"], broker.socket.display().to_string(), "{status}");
        assert_eq!(status["cache"]["quota"], 100 << 20);
        assert!(!world.cache().join("objects").exists(), "objects were kept in the user's own folder");
        assert!(world.cache().join("heads").is_dir(), "what was accepted is remembered there");
        let daemon = status["pid"].as_u64().expect("a process");
        let resident = resident_kib(daemon);
        println!("{person:?}: a mount at rest through a broker has {resident} KiB");
        assert!(resident < AT_REST_MAX, "{resident} KiB");

        // Another mount finds everything there.
        let before = world.mirror.count(|path| path.contains("/data/"));
        let name =
            contents.iter().find_map(|entry| std::str::from_utf8(&entry.path).ok()).expect("a plain name");
        let path = format!("{}:{name}", world.url());
        let mut cat = world.esker(&["cat", &path, "--public-key"]);
        let output = cat.arg(world.path("key.pub")).args(&options).output().expect("running esker");
        assert!(output.status.success(), "{}", words(&output));
        let after = world.mirror.count(|path| path.contains("/data/"));
        assert_eq!(before, after, "something was fetched again");
        // Without the broker the mount goes on, with a cache of its own.
        broker.stop();
        let path = at(&mount, &contents[1].path);
        assert!(mount.does(|| fs::read(path)).is_ok());
        drop(mount);
    }
}

#[test]
fn an_idle_writer_takes_little_memory() {
    let world = TestEnv::new(TestUser::ordinary(), FIXTURE);
    let mount = world.mount(&[]);
    for entry in FIXTURE.listing("v3").iter().filter(|entry| entry.is_file() && entry.mode & 0o444 == 0o444) {
        let path = at(&mount, &entry.path);
        mount.does(|| fs::read(path)).expect("reading");
    }
    let resident = resident_kib(mount.status()["pid"].as_u64().expect("a process"));
    println!("the writer of a cache at rest has {resident} KiB");
    assert!(resident < AT_REST_MAX, "{resident} KiB");
}
