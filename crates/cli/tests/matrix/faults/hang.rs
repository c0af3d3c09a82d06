//! A folder below the cache, or the cache itself, does not answer: it is on a file system that another program serves,
//! which is stopped.

use std::path::Path;
use std::time::{Duration, Instant};

use rustix::process::Pid;

use super::client::{Client, Mount};
use super::peers::{Frozen, Owned};
use super::process::timed;
use super::{SWITCHED, add_to_report};
use crate::exclusive;
use crate::test_env::{PATIENCE, words};

/// Starts a disk that a program serves.
fn disk(client: &Client) -> Owned {
    let (behind, disk) = (client.place("behind"), client.place("disk"));
    client.run("mkdir", &["-p".as_ref(), &behind, &disk]);
    let serving = Owned(client.start("bindfs", &["-f".as_ref(), &behind, &disk]));
    let start = Instant::now();
    // It doesn't report that it serves; each check is a process.
    while !client.tries(SWITCHED, "mountpoint", &["-q".as_ref(), &disk]).0 {
        assert!(start.elapsed() < PATIENCE, "bindfs does not mount");
    }
    serving
}

/// > W6: A folder below the cache that does not answer delays a read by some seconds, once, and then the server is asked.
#[test]
fn the_server_replaces_a_hanging_lower_folder() {
    let _pass = exclusive::among_others();
    let client = Client::apart();
    let origin = client.nginx("origin", Some(&client.storage()));
    let serving = disk(&client);
    let lower = client.place("disk/lower");
    client.run("mkdir", &[&lower]);
    let lower = lower.display().to_string();
    let mount = client.at("mount", &origin, &["--lower", &lower]);
    mount.mount_empty(SWITCHED);
    client.read_new(&mount, SWITCHED);
    let late = || mount.status()["cache"]["lower"]["late"].as_u64().expect("a counter");
    assert_eq!(late(), 0);
    let frozen = Frozen::of(Pid::from_child(&serving.0));
    let first = client.read_new(&mount, SWITCHED);
    assert!(late() > 0, "the folder did not hang: {:#}", mount.status());
    let late_then = late();
    let next = client.read_new(&mount, SWITCHED);
    println!("a read took {first:?}, the next one {next:?}");
    assert_eq!(late(), late_then, "the next one waited, too");
    drop(frozen);
    client.read_new(&mount, SWITCHED);
    mount.umount();
}

/// As many readers as are reported: more than there are workers at first.
const READERS: usize = 24;
/// Deadline of a read that waits for the disk.
const DEADLINE: &str = "2";
/// Time until a silent disk is given up, besides the command's usual duration.
const GIVEN_UP: Duration = Duration::from_secs(40);

fn number(mount: &Mount<'_>, name: &str) -> u64 {
    mount.status()[name].as_u64().expect("a counter")
}

/// Reads files all at once, a process each; how many were read, and how long the last took.
fn read_all(client: &Client, mount: &Mount<'_>, numbers: std::ops::Range<usize>) -> (usize, Duration) {
    timed(|| {
        std::thread::scope(|scope| {
            let readers: Vec<_> =
                numbers.map(|number| scope.spawn(move || client.read(mount, number))).collect();
            readers.into_iter().map(|reader| reader.join().expect("no panic")).filter(Result::is_ok).count()
        })
    })
}

/// Measures requests while reads wait for the disk: each in time, and those answered by kernel or memory succeed.
fn asked_meanwhile(client: &Client, mount: &Mount<'_>) -> [Duration; 5] {
    let top = mount.mountpoint();
    let file = top.join("file-0");
    let asks: [(&str, Vec<&Path>); 3] =
        [("stat", vec!["-f".as_ref(), &top]), ("stat", vec![&file]), ("ls", vec![&top])];
    let [statfs, stat, list] = asks.map(|(program, arguments)| {
        let (went_well, took) = client.tries(SWITCHED, program, &arguments);
        assert!(went_well, "{program} {arguments:?}");
        took
    });
    let (output, status) = mount.esker(&["status", "--json"], true, SWITCHED);
    assert!(output.status.success(), "{}", words(&output));
    let (output, doctor) = mount.esker(&["doctor"], false, SWITCHED);
    println!("esker doctor: {}", words(&output));
    [statfs, stat, list, status, doctor]
}

/// > W7: While the cache's disk does not answer, a read ends at its deadline, everything that needs no byte of it is answered, and a mount that needs it is refused; when it answers again all goes on by itself.
#[test]
fn reads_continue_without_a_cache_on_a_hanging_disk() {
    let _pass = exclusive::among_others();
    let client = Client::apart();
    let origin = client.nginx("origin", Some(&client.storage()));
    let serving = disk(&client);
    let options = ["--cache-on-network", "--deadline", DEADLINE];
    let mount = client.at("first", &origin, &options).with_cache(client.place("disk/cache"));
    let second = client.at("second", &origin, &options).sharing(&mount);
    mount.mount(SWITCHED);
    for _ in 0..2 * READERS {
        client.read_new(&mount, SWITCHED);
    }
    // So that the kernel and we have none of them at hand.
    mount.mount_again(SWITCHED);
    client.run("ls", &[&mount.mountpoint()]);
    let hired = number(&mount, "hired");
    let frozen = Frozen::of(Pid::from_child(&serving.0));
    let ((read, warm), asked, (refused, mounted)) = std::thread::scope(|scope| {
        let reads = scope.spawn(|| read_all(&client, &mount, 0..READERS));
        let mounts = scope.spawn(|| second.try_mount(GIVEN_UP + SWITCHED));
        let asked = asked_meanwhile(&client, &mount);
        (reads.join().expect("no panic"), asked, mounts.join().expect("no panic"))
    });
    assert!(number(&mount, "hired") > hired, "no worker waited for the disk: {:#}", mount.status());
    assert_eq!(read, 0, "the disk did not hang");
    let (outcome, cold) = timed(|| client.try_new(&mount));
    println!("{READERS} reads ended after {warm:?}; of a new file {outcome:?} after {cold:?}");
    println!("statfs, stat, ls, status, doctor: {asked:?}; a mount: {refused:?} after {mounted:?}");
    assert!(outcome.is_err(), "a new file was read although nothing can be kept");
    assert!(warm < SWITCHED && cold < SWITCHED && asked.iter().all(|took| *took < SWITCHED));
    assert!(refused.is_some(), "the mount refuses it");
    drop(frozen);
    let start = Instant::now();
    while read_all(&client, &mount, 0..READERS).0 < READERS {
        assert!(start.elapsed() < PATIENCE, "it does not recover: {:#}", mount.status());
    }
    let back = start.elapsed();
    client.read_new(&mount, SWITCHED);
    let frozen = Frozen::of(Pid::from_child(&serving.0));
    let (_, unmounted) = timed(|| mount.umount());
    drop(frozen);
    let ms = |time: Duration| format!("{} ms", time.as_millis());
    let [statfs, stat, list, status, doctor] = asked.map(ms);
    let mut text =
        format!("## The disk of the cache hangs\n\n{READERS} files are read at once that are in the cache; ");
    text += "reads have a deadline of two seconds.\n\n| What | Time |\n|---|---|\n";
    let rows = [
        ("Read what is cached, until EIO", ms(warm)),
        ("First read of another file, until EIO", ms(cold)),
        ("`statfs`", statfs),
        ("`stat`", stat),
        ("`ls`", list),
        ("`esker status`", status),
        ("`esker doctor`", doctor),
        ("Another mount with this cache", format!("refused, {}", ms(mounted))),
        ("Unmount", ms(unmounted)),
        ("All of them read after it goes on", ms(back)),
    ];
    text.extend(rows.map(|(what, time)| format!("| {what} | {time} |\n")));
    add_to_report(&text);
    // The daemon's remaining threads have released the cache by then.
    mount.mount(SWITCHED);
    client.read_new(&mount, SWITCHED);
    mount.umount();
}
