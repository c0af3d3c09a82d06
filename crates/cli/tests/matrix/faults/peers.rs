//! Stopped processes that others share a cache through: the mount that writes it, and the broker of the node.

use std::fmt::Write as _;
use std::process::Child;
use std::time::Duration;

use esker_testkit::waiting;
use rustix::process::{Pid, Signal, kill_process};

use super::client::{Client, Mount};
use super::process::timed;
use super::{SWITCHED, add_to_report};
use crate::exclusive;
use crate::test_env::PATIENCE;

/// A process that owes a reply is pinged after ten seconds, and has ten to answer; the kernel requests a page a second
/// time after its read-ahead failed.
const SILENT: Duration = Duration::from_secs(40);

/// A stopped process that continues on drop, so that a failed assertion leaves no reader waiting.
pub(super) struct Frozen(Pid);

impl Frozen {
    pub(super) fn of(pid: Pid) -> Self {
        kill_process(pid, Signal::STOP).expect("a signal");
        Self(pid)
    }
}

impl Drop for Frozen {
    fn drop(&mut self) {
        // It was not reaped, so its id is still valid.
        let _ = kill_process(self.0, Signal::CONT);
    }
}

/// A process that is gone when this is dropped.
pub(super) struct Owned(pub(super) Child);

impl Drop for Owned {
    fn drop(&mut self) {
        // It may have ended.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

fn daemon(mount: &Mount<'_>) -> Pid {
    let pid = mount.status()["pid"].as_i64().and_then(|pid| i32::try_from(pid).ok());
    pid.and_then(Pid::from_raw).expect("a process id")
}

/// Cached files are readable, others fail in time.
fn bounded(client: &Client, mount: &Mount<'_>) -> [Duration; 2] {
    let (_, warm) = timed(|| client.read_old(mount));
    let (outcome, cold) = timed(|| client.try_new(mount));
    let error = outcome.expect_err("no peer fetches it");
    println!("a read ended after {cold:?} with {error}");
    assert!(warm < SWITCHED && cold < SILENT + SWITCHED, "{warm:?} {cold:?}");
    let told = mount.status()["errors"].to_string();
    assert!(told.contains("is it stopped?"), "the status does not say who is silent: {told}");
    [cold, warm]
}

#[track_caller]
fn until(what: &str, holds: impl Fn() -> bool) -> Duration {
    let (came, time) = timed(|| waiting::until(PATIENCE, holds));
    assert!(came, "{what} did not come about");
    time
}

fn row(what: &str, times: [String; 5]) -> String {
    let mut row = String::new();
    writeln!(row, "| {what} | {} |", times.join(" | ")).expect("writing to a string");
    row
}

fn ms(time: Duration) -> String {
    format!("{} ms", time.as_millis())
}

/// Stops the daemon that writes the cache of a user's mounts.
fn frozen_writer() -> String {
    let client = Client::new();
    let origin = client.nginx("origin", Some(&client.storage()));
    let first = client.at("first", &origin, &[]);
    let second = client.at("second", &origin, &[]).sharing(&first);
    let third = client.at("third", &origin, &[]).sharing(&first);
    first.mount_empty(SWITCHED);
    second.mount(SWITCHED);
    client.read_new(&second, SWITCHED);
    let writer = daemon(&first);
    let frozen = Frozen::of(writer);
    let (tries, [cold, warm]) = std::thread::scope(|scope| {
        // Each waits for the same silence; they need not wait for each other.
        let tries = scope.spawn(|| third.try_mount(SILENT + SWITCHED));
        let read = bounded(&client, &second);
        (tries.join().expect("no panic"), read)
    });
    let (refused, took) = tries;
    let words = refused.expect("the mount refuses it");
    assert!(words.contains(&writer.as_raw_nonzero().to_string()), "the writer is not named: {words}");
    drop(frozen);
    let back = until("a read", || client.try_new(&second).is_ok());
    third.mount(SWITCHED);
    client.read_new(&third, SWITCHED);
    let mounted = format!("refused, {}", ms(took));
    row("The mount that writes", [ms(cold), ms(warm), mounted, "the same".into(), ms(back)])
}

/// Stops the broker of the node.
fn frozen_broker() -> String {
    let client = Client::new();
    let origin = client.nginx("origin", Some(&client.storage()));
    let (broker, options) = client.broker();
    let mut broker = Owned(broker);
    let options = options.each_ref().map(String::as_str);
    let first = client.at("first", &origin, &options);
    let second = client.at("second", &origin, &options);
    first.mount_empty(SWITCHED);
    client.read_new(&first, SWITCHED);
    let uses_broker = |mount: &Mount<'_>| !mount.status()["cache"]["broker"].is_null();
    assert!(uses_broker(&first), "{:#}", first.status());
    let process = Pid::from_child(&broker.0);
    let frozen = Frozen::of(process);
    let ([mounted, remounted], [cold, warm]) = std::thread::scope(|scope| {
        // Without an answer a mount does without it.
        let mounts = scope.spawn(|| {
            second.empty_cache();
            let mounted = second.mount(SILENT + SWITCHED);
            assert!(!uses_broker(&second));
            second.umount();
            [mounted, second.mount(SILENT + SWITCHED)]
        });
        let read = bounded(&client, &first);
        (mounts.join().expect("no panic"), read)
    });
    client.read_new(&second, SWITCHED);
    drop(frozen);
    let back = until("a read", || client.try_new(&first).is_ok());
    println!("the other mount uses it {:?} after it went on", until("the broker", || uses_broker(&second)));
    client.read_new(&second, SWITCHED);
    for mount in [&first, &second] {
        mount.umount();
    }
    kill_process(process, Signal::TERM).expect("a signal");
    assert!(broker.0.wait().expect("its end").success());
    row("The broker", [cold, warm, mounted, remounted, back].map(ms))
}

/// > W5: A process that shares its cache and is stopped delays a read by forty seconds at most; what is cached is read as ever, and everything goes on when it does.
#[test]
fn processes_that_share_a_cache_can_be_frozen() {
    let _pass = exclusive::among_others();
    let rows = std::thread::scope(|scope| {
        let both = [scope.spawn(frozen_writer), scope.spawn(frozen_broker)];
        both.map(|one| one.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic)))
    });
    let mut text = String::from("## Those who share a cache are frozen\n\n");
    text += "| Frozen | First read | Read again | Mount | Mount again | Read after it goes on |\n";
    text += "|---|---|---|---|---|---|\n";
    text += &rows.concat();
    add_to_report(&text);
}
