//! The fault matrix: real proxies, servers and disks that fail in every way, while files are read for the first time
//! and again, and while repositories are mounted for the first time and again.
//!
//! With `ESKER_FAULTS_REPORT=FILE` the times go to that file, too.

mod client;
mod disk;
mod hang;
mod lists;
mod namespace;
mod peers;
pub(crate) mod process;

use std::fmt::Write as _;
use std::sync::Mutex;
use std::time::{Duration, Instant};

use client::{Client, Mount};
pub(crate) use process::ended;
use process::{Process, timed};

use crate::exclusive;

/// A proxy or server that is silent or slow for so long is left.
const TIMEOUT: &str = "0.5";
/// Time after which a route that was marked down is tried again.
const RESET: &str = "0.2";
/// Time limit of any operation while a good route is left: a few timeouts and the load of the machine.
const SWITCHED: Duration = Duration::from_secs(20);

/// Fault to inject.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Fault {
    /// Killed; connections are refused.
    Stopped,
    /// Stopped by a signal: connections are accepted by the kernel, and nothing more happens.
    Frozen,
    /// Another process listens and never replies.
    Mute,
    /// A hundred bytes a second.
    Slow,
    /// One byte of every file is changed.
    Corrupt,
    /// The last byte of everything is missing.
    Truncated,
    /// A login page with status 200.
    Html,
    /// Closes every connection without an answer.
    Closed,
    Status(u16),
}

const FAULTS: [Fault; 12] = [
    Fault::Stopped,
    Fault::Frozen,
    Fault::Mute,
    Fault::Slow,
    Fault::Corrupt,
    Fault::Truncated,
    Fault::Html,
    Fault::Closed,
    Fault::Status(500),
    Fault::Status(503),
    Fault::Status(404),
    Fault::Status(429),
];

impl Fault {
    fn flag(self) -> Option<String> {
        match self {
            Fault::Stopped | Fault::Frozen | Fault::Mute => None,
            Fault::Slow => Some("slow".into()),
            Fault::Corrupt => Some("corrupt".into()),
            Fault::Truncated => Some("truncate".into()),
            Fault::Html => Some("html".into()),
            Fault::Closed => Some("444".into()),
            Fault::Status(status) => Some(status.to_string()),
        }
    }

    fn begin(self, process: &mut Process) {
        match self.flag() {
            Some(flag) => process.flag(&flag, true),
            None if self == Fault::Stopped => process.stop(),
            None if self == Fault::Mute => process.mute(),
            None => process.freeze(true),
        }
    }

    fn end(self, process: &mut Process) {
        match self.flag() {
            Some(flag) => process.flag(&flag, false),
            None if self == Fault::Frozen => process.freeze(false),
            None => process.run(),
        }
    }
}

/// One line of the report.
struct Line {
    fault: Fault,
    cold: Duration,
    next: Duration,
    mount: Duration,
    remount: Duration,
    recovered: Duration,
}

static REPORT: Mutex<String> = Mutex::new(String::new());

fn report(title: &str, lines: &[Line]) {
    let mut text =
        format!("## {title}\n\n| Fault | First read | Next read | Mount | Mount again | Back in use |\n");
    text += "|---|---|---|---|---|---|\n";
    for Line { fault, cold, next, mount, remount, recovered } in lines {
        let ms = |time: &Duration| format!("{} ms", time.as_millis());
        let times = [cold, next, mount, remount, recovered].map(ms).join(" | ");
        writeln!(text, "| {fault:?} | {times} |").expect("writing to a string");
    }
    add_to_report(&text);
}

fn add_to_report(text: &str) {
    println!("{text}");
    let mut report = REPORT.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
    report.push_str(text);
    report.push('\n');
    if let Some(path) = std::env::var_os("ESKER_FAULTS_REPORT") {
        std::fs::write(path, format!("{HEAD}{report}")).expect("writing the report");
    }
}

const HEAD: &str = "# Faults of proxies, servers and disks\n\n\
    Written by the fault matrix (`crates/cli/tests/matrix/faults.rs`): real nginx and squid processes fail while \
    files are read and repositories are mounted. One route stays good, no read fails, and the test compares every byte. \
    An ordinary user mounts and reads, also where root runs the tests. \
    A proxy or server counts as silent or slow after 0.5 s, and is tested again 0.2 s after it was marked down \
    (defaults: 5 s, 300 s and 1800 s). First read: of an uncached file, in a mount that exists when the fault begins. \
    Next read: of another such file. Mount: with an empty cache; mount again: with the cache of that mount. Back in use: \
    from the end of the fault, without a remount, while uncached files are read. Kept again: likewise, until \
    the read files are in the cache again; a mount on an unwritable disk is refused with the name of the folder.\n\n";

/// Applies every fault to the route used first, with a good one to fail over to.
fn every_fault(client: &Client, mount: &Mount<'_>, broken: &mut Process, second: &Mount<'_>) -> Vec<Line> {
    let mut lines = Vec::new();
    for fault in FAULTS {
        println!("{fault:?}");
        client.wait_for_first(mount);
        let (before, answered) = (client.left(mount), broken.answered());
        fault.begin(broken);
        let cold = client.read_new(mount, SWITCHED);
        assert!(client.left(mount) > before, "{fault:?} was not met: {:#}", mount.route());
        // An access log is written when an answer ends; a silent one writes none.
        let answers =
            !matches!(fault, Fault::Stopped | Fault::Frozen | Fault::Mute | Fault::Closed | Fault::Slow);
        assert!(!answers || broken.answered() > answered, "{fault:?} was not served");
        let next = client.read_new(mount, SWITCHED);
        client.read_old(mount);
        let (mounted, remounted) = (second.mount_empty(SWITCHED), second.mount_again(SWITCHED));
        client.read_new(second, SWITCHED);
        client.read_old(second);
        second.umount();
        fault.end(broken);
        let (_, recovered) = timed(|| client.wait_for_first(mount));
        lines.push(Line { fault, cold, next, mount: mounted, remount: remounted, recovered });
    }
    lines
}

/// > W1: As long as one way through the proxies to one of the servers is good, no read fails, whatever the others do, and however long it takes on that way.
#[test]
fn a_proxy_that_fails_in_any_way_is_replaced() {
    let _pass = exclusive::among_others();
    let client = Client::new();
    let mut broken = client.nginx("bad-proxy", None);
    let good = client.squid("good-proxy");
    let origin = client.nginx("origin", Some(&client.storage()));
    let proxies = format!("{};{}", broken.url(), good.url());
    let options = ["--proxy", &proxies, "--timeout", TIMEOUT, "--reset-after", RESET];
    let (mount, second) = (client.at("first", &origin, &options), client.at("second", &origin, &options));
    mount.mount_empty(SWITCHED);
    let lines = every_fault(&client, &mount, &mut broken, &second);
    assert!(good.answered() > 0);
    report("A proxy fails, another is good", &lines);
}

/// > W2: A server that fails is left for another that has the repository, through the same proxy, and used again when it answers.
#[test]
fn a_server_that_fails_in_any_way_is_replaced() {
    let _pass = exclusive::among_others();
    let client = Client::new();
    let mut broken = client.nginx("bad-server", Some(&client.storage()));
    let good = client.nginx("good-server", Some(&client.storage()));
    let proxy = client.squid("proxy");
    let further = client.url(&good);
    let proxies = proxy.url();
    let options = ["--server", &further, "--proxy", &proxies, "--timeout", TIMEOUT, "--reset-after", RESET];
    let (mount, second) = (client.at("first", &broken, &options), client.at("second", &broken, &options));
    mount.mount_empty(SWITCHED);
    let lines = every_fault(&client, &mount, &mut broken, &second);
    assert!(good.answered() > 0 && proxy.answered() > 0);
    report("A server fails behind squid, another is good", &lines);
}

/// Killing a proxy in the middle of a reply costs a retry, not the file.
#[test]
fn a_proxy_killed_during_a_reply_costs_a_retry() {
    let _pass = exclusive::among_others();
    let client = Client::new();
    let mut broken = client.nginx("bad-proxy", None);
    let good = client.squid("good-proxy");
    let origin = client.nginx("origin", Some(&client.storage()));
    // The unknown name is given up at once, and so is the closed port.
    let proxies = format!("http://no-such-proxy.invalid:3128|{};{}", broken.url(), good.url());
    let options = ["--proxy", &proxies, "--timeout", TIMEOUT, "--reset-after", RESET];
    let mount = client.at("first", &origin, &options);
    mount.mount_empty(SWITCHED);
    client.wait_for_active(&mount, &broken);
    broken.flag("steady", true);
    let received = mount.received();
    std::thread::scope(|scope| {
        let reading = scope.spawn(|| client.read_large(&mount, SWITCHED));
        // Some of it is here, and seconds are left of the rest.
        mount.wait_until("the answer to begin", |status| {
            status["network"]["received_bytes"].as_u64().is_some_and(|bytes| bytes > received + 4096)
        });
        broken.stop();
        reading.join().expect("reading");
    });
    assert!(client.left(&mount) > 0, "{:#}", mount.route());
}

/// > W3: Where no way is good every call ends within its deadline, what is cached is read as ever, and everything goes on by itself when a way is good again.
#[test]
fn calls_without_any_server_end_and_recover() {
    const DEADLINE: Duration = Duration::from_secs(1);
    let _pass = exclusive::among_others();
    let client = Client::new();
    let mut origin = client.nginx("origin", Some(&client.storage()));
    let mut proxies = [client.squid("one"), client.squid("two")];
    let groups = format!("{}|{}", proxies[0].url(), proxies[1].url());
    let options = ["--proxy", &groups, "--timeout", "0.2", "--reset-after", RESET, "--deadline", "1"];
    let (mount, second) = (client.at("first", &origin, &options), client.at("second", &origin, &options));
    mount.mount_empty(SWITCHED);
    client.read_new(&mount, SWITCHED);
    let mut gone = |is_gone: bool, what: &str, proxies: &mut [Process; 2]| match (what, is_gone) {
        ("the proxies are frozen", _) => proxies.iter().for_each(|proxy| proxy.freeze(is_gone)),
        ("the server is stopped", true) => origin.stop(),
        ("the server is stopped", false) => origin.run(),
        (_, true) => proxies.iter_mut().for_each(Process::mute),
        (_, false) => proxies.iter_mut().for_each(Process::run),
    };
    for what in ["the proxies are frozen", "the server is stopped", "the proxies are mute"] {
        gone(true, what, &mut proxies);
        let before = mount.retries();
        let (outcome, took) = timed(|| client.try_new(&mount));
        let error = outcome.expect_err("nothing to read it from");
        println!("{what}: a read ended after {took:?} with {error}");
        assert!(took < DEADLINE + SWITCHED / 2, "{what}: {took:?}");
        assert!(mount.retries() > before, "{what} was not met: {:#}", mount.route());
        let (_, took) = timed(|| client.read_old(&mount));
        assert!(took < SWITCHED / 2, "{what}: what is cached took {took:?}");
        let (refused, took) = second.try_mount_empty(SWITCHED * 2);
        println!("{what}: a mount ended after {took:?}");
        assert!(!refused, "{what}: nothing to mount");
        gone(false, what, &mut proxies);
        let start = Instant::now();
        while let Err(error) = client.try_new(&mount) {
            assert!(start.elapsed() < SWITCHED, "{what}: {error} after {:?}", start.elapsed());
        }
        println!("{what}: read again {:?} after it ended", start.elapsed());
    }
}
