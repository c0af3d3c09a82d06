//! A folder below the cache does not answer: it is on a file system that another program serves, which is stopped.

use std::time::Instant;

use rustix::process::Pid;

use super::SWITCHED;
use super::client::Client;
use super::peers::{Frozen, Owned};
use crate::gate;
use crate::world::PATIENCE;

/// A disk that a program serves.
fn disk(client: &Client) -> Owned {
    let (behind, disk) = (client.place("behind"), client.place("disk"));
    client.run("mkdir", &["-p".as_ref(), &behind, &disk]);
    let serving = Owned(client.start("bindfs", &["-f".as_ref(), &behind, &disk]));
    let start = Instant::now();
    // It tells nobody when it serves; each look is a process.
    while !client.tries(SWITCHED, "mountpoint", &["-q".as_ref(), &disk]).0 {
        assert!(start.elapsed() < PATIENCE, "bindfs does not mount");
    }
    serving
}

/// > W6: A folder below the cache that does not answer delays a read by some seconds, once, and then the server is asked.
#[test]
fn a_folder_below_that_hangs_is_left_for_the_server() {
    let _pass = gate::among_others();
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
