//! Restrictions of each daemon, as the kernel shows them.

mod exchanged;
mod names;

use std::fs;
use std::io::{BufRead, BufReader};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use esker_testkit::soak::Soak;
use esker_testkit::{fixture, skip};
use serde_json::Value;

use crate::broker::Broker;
use crate::sys::with_default_signals;
use crate::test_env::{TestEnv, esker_binary, printed, with_private_mounts};
use crate::test_user::TestUser;

/// Capabilities 1, 2 and 3: a serving thread of root reads and keeps files of other users.
const OF_A_SERVING_THREAD: u64 = 0b1110;

/// Lines of a thread's status in /proc.
struct Thread {
    name: String,
    status: String,
}

impl Thread {
    fn field(&self, name: &str) -> &str {
        let line = self.status.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':'));
        line.unwrap_or_else(|| panic!("no {name} in {}", self.status)).trim()
    }

    fn capabilities(&self) -> u64 {
        u64::from_str_radix(self.field("CapEff"), 16).expect("a number")
    }

    #[track_caller]
    fn is_confined(&self) {
        assert_eq!(self.field("Seccomp"), "2", "{}", self.name);
        assert_eq!(self.field("NoNewPrivs"), "1", "{}", self.name);
    }
}

/// Returns the threads of a process.
fn threads(pid: u64) -> Vec<Thread> {
    let tasks = fs::read_dir(format!("/proc/{pid}/task")).expect("threads");
    // One may have ended since it was listed.
    let status = |task: fs::DirEntry| fs::read_to_string(task.path().join("status")).ok();
    let statuses = tasks.filter_map(|task| status(task.expect("a thread")));
    let named = |status: String| {
        let name = status.lines().next().and_then(|line| line.strip_prefix("Name:"));
        Thread { name: name.expect("a name").trim().to_owned(), status }
    };
    statuses.map(named).collect()
}

#[track_caller]
fn is_confined_mount(pid: u64, person: TestUser) {
    for thread in threads(pid) {
        thread.is_confined();
        assert_eq!(thread.capabilities() & !OF_A_SERVING_THREAD, 0, "{}", thread.name);
        let uids: Vec<&str> = thread.field("Uid").split_whitespace().collect();
        assert!(uids.iter().all(|uid| *uid == person.uid.to_string()), "{uids:?}");
    }
    let helper = helper_of(u32::try_from(pid).expect("a process"));
    for thread in threads(helper.into()) {
        assert_eq!(thread.field("Seccomp"), if person.is_root() { "2" } else { "0" }, "{}", thread.name);
    }
    // The thread that reads requests starts all others. It has none of CAP_KILL, CAP_SETUID, CAP_SETGID, CAP_SETPCAP, CAP_SYS_MODULE.
    let main = threads(helper.into()).into_iter().find(|thread| thread.name == "esker-helper").expect("it");
    assert_eq!(main.capabilities() & (1 << 5 | 1 << 6 | 1 << 7 | 1 << 8 | 1 << 16), 0);
}

/// Returns the helper of a mount's daemon.
#[track_caller]
pub(crate) fn helper_of(daemon: u32) -> u32 {
    let comm = |pid: &u32| fs::read_to_string(format!("/proc/{pid}/comm")).unwrap_or_default();
    let helper = children_of(daemon).into_iter().find(|pid| comm(pid).trim() == "esker-helper");
    helper.expect("the helper of the mount")
}

/// Returns the child processes of a process.
pub(crate) fn children_of(process: u32) -> Vec<u32> {
    let all = fs::read_dir("/proc").expect("processes").flatten();
    let pids = all.filter_map(|entry| entry.file_name().to_str()?.parse().ok());
    let is_child = |pid: &u32| {
        let status = fs::read_to_string(format!("/proc/{pid}/status")).unwrap_or_default();
        status.lines().any(|line| line.split_whitespace().eq(["PPid:", &process.to_string()]))
    };
    pids.filter(is_child).collect()
}

/// > L10: No thread of a mount's daemon is without restrictions. What they forbid, another process does: nothing but operations on this mount, of which the daemon names no path, no program and no option.
#[test]
fn mounts_of_repositories_and_images_are_confined_and_can_be_unmounted() {
    for person in TestUser::all() {
        let env = TestEnv::new(person, fixture::FULL);
        let mounted = env.mount(&[]);
        mounted.does(|| fs::read_dir(mounted.path("")).expect("the root").count());
        let status = mounted.status();
        assert_eq!(status["confined"]["seccomp"], true, "{status:#}");
        is_confined_mount(status["pid"].as_u64().expect("a process"), person);
        // The log of a mount of root is not in the test's folder.
        if person.uid != 0 {
            assert!(env.logs().contains("confined: system calls"), "{}", env.logs());
        }
    }
}

#[test]
fn the_environment_switches_the_confinement_of_a_mount_off() {
    let env = TestEnv::new(TestUser::ordinary(), fixture::RMD);
    let mut mount = env.esker(&["mount", &env.url()]);
    mount.arg(env.mountpoint()).arg("--public-key").arg(env.path("key.pub")).arg("--cache").arg(env.cache());
    printed(mount.env("ESKER_CONFINE", "off"));
    let mounted = env.mounted();
    let status = mounted.status();
    assert_eq!(status["confined"]["seccomp"], false);
    assert_eq!(status["confined"]["reason"], "ESKER_CONFINE=off");
    let all = threads(status["pid"].as_u64().expect("a process"));
    assert!(all.iter().all(|thread| thread.field("Seccomp") == "0"));
}

/// A server that does not outlive the test.
pub(crate) struct Server {
    pub(crate) child: Child,
    pub(crate) url: String,
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

pub(crate) fn start(command: &mut Command) -> Server {
    // Tests send the one that `nohup` has ignored.
    with_default_signals(command);
    let child = command.env_clear().env("HOME", "/").stdin(Stdio::null()).stdout(Stdio::piped()).spawn();
    let mut server = Server { child: child.expect("a server"), url: String::new() };
    let mut line = String::new();
    let output = server.child.stdout.take().expect("its output");
    BufReader::new(output).read_line(&mut line).expect("a line");
    let ready: Value = serde_json::from_str(&line).unwrap_or_else(|_| panic!("it is not ready: {line:?}"));
    assert_eq!(ready["event"], "ready");
    server.url = ready["url"].as_str().expect("a URL").to_owned();
    server
}

#[track_caller]
pub(crate) fn is_confined_server(pid: u32) {
    for thread in threads(pid.into()) {
        thread.is_confined();
        assert_eq!(thread.capabilities(), 0, "{}", thread.name);
    }
}

#[test]
fn servers_proxies_and_brokers_are_confined_in_every_thread() {
    let env = TestEnv::new(TestUser::ordinary(), fixture::FULL);
    for folder in env.repository.path().ancestors().take_while(|folder| *folder != std::env::temp_dir()) {
        let open = std::os::unix::fs::PermissionsExt::from_mode(0o755);
        fs::set_permissions(folder, open).expect("a mode");
    }
    let esker = || Command::new(esker_binary());
    let serve =
        start(esker().arg("serve").arg(env.repository.path()).args(["--listen", "127.0.0.1:0", "--json"]));
    is_confined_server(serve.child.id());
    let server = format!("http://{}", env.mirror.address());
    let proxy = start(
        esker()
            .args(["proxy", "--json", "--upstream", &server, "--listen", "127.0.0.1:0", "--cache"])
            .arg(env.path("proxy-cache")),
    );
    is_confined_server(proxy.child.id());
    let broker = Broker::start(&env);
    is_confined_server(broker.pid());
}

/// Length of a measured window; ten of them are the shortest soak.
const WINDOW: Duration = Duration::from_secs(3);

/// Context switches of all threads of a process.
fn switches(pid: u64) -> Vec<(String, u64)> {
    let count = |thread: &Thread, name: &str| thread.field(name).parse::<u64>().expect("a number");
    let both = |thread: Thread| {
        let sum = count(&thread, "voluntary_ctxt_switches") + count(&thread, "nonvoluntary_ctxt_switches");
        (thread.name, sum)
    };
    threads(pid).into_iter().map(both).collect()
}

/// Lets a measured window pass, in which nothing else may happen.
fn pass(window: Duration) {
    let (_sender, nothing) = std::sync::mpsc::channel::<()>();
    nothing.recv_timeout(window).expect_err("nothing is sent");
}

/// A mount at rest wakes no thread before its time to live ends, which is minutes here.
#[test]
fn soak_a_resting_mount_wakes_no_thread() {
    // The doctor of another test touches all mounts that it sees.
    if TestUser::root().is_none() {
        skip!("only root hides a mount from other tests");
    }
    with_private_mounts();
    let mut soak = Soak::begin("resting_mount");
    let env = TestEnv::new(TestUser::ordinary(), fixture::FULL);
    let mounted = env.mount(&["--ttl", "3600", "--push", "off"]);
    mounted.does(|| fs::read_dir(mounted.path("")).expect("the root").count());
    let pid = mounted.status()["pid"].as_u64().expect("a process");
    // After the last request the watch of requests looks once more, the recorder of reads ends (10 s), and connections to
    // the server are closed (15 s).
    pass(7 * WINDOW);
    let before = switches(pid);
    while soak.goes_on_until(10) {
        // The measured window: nothing else may happen in it.
        pass(WINDOW);
        let after = switches(pid);
        assert!(before == after, "threads woke at rest: {before:?} became {after:?}");
    }
    soak.finish(&[("threads", &before.len()), ("wake-ups", &0)]);
}
