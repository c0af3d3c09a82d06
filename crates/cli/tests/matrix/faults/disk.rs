//! Failing disks of a cache, and stopped processes that share it.

use std::fmt::Write as _;
use std::time::{Duration, Instant};

use esker_testkit::waiting::until;

use super::client::{Client, Mount};
use super::process::timed;
use super::{SWITCHED, add_to_report};
use crate::exclusive;
use crate::test_env::PATIENCE;

/// Fault of a disk.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Fault {
    /// The folder is removed, and not made again.
    Removed,
    /// No byte is left.
    Full,
    /// Nothing can be changed.
    ReadOnly,
    /// Every operation on a name fails.
    Failing,
}

const FAULTS: [Fault; 4] = [Fault::Removed, Fault::Full, Fault::ReadOnly, Fault::Failing];

impl Fault {
    /// Returns the script that begins it, with the disk at `$1` and the cache at `$2`.
    fn begin(self) -> &'static str {
        match self {
            Fault::Removed => "rm -rf $2",
            Fault::Full => "! head -c 64m /dev/zero >$1/fill 2>/dev/null",
            // A mount of its own, because one that has files open for writing can't be made read-only.
            Fault::ReadOnly => "mount --bind $2 $2 && mount -o remount,bind,ro $2",
            // A file system whose server is gone.
            Fault::Failing => {
                "exec 3<>/dev/fuse && mount -i -t fuse -o fd=3,rootmode=40000,user_id=0,group_id=0 none $2; \
                 exec 3>&-; ! ls $2 2>/dev/null"
            }
        }
    }

    fn end(self) -> &'static str {
        match self {
            Fault::Removed => "true",
            Fault::Full => "rm $1/fill",
            Fault::ReadOnly | Fault::Failing => "umount -l $2",
        }
    }
}

fn script(client: &Client, mount: &Mount<'_>, script: &str) {
    let (disk, cache) = (client.place("disk"), mount.cache());
    let script = format!("set -- {} {}; {script}", disk.display(), cache.display());
    client.namespace.as_ref().expect("a namespace").does(&script);
}

fn number(mount: &Mount<'_>, name: &str) -> u64 {
    mount.status()["cache"][name].as_u64().expect("a counter")
}

/// Reads until objects are cached again.
fn wait_until_kept(client: &Client, mount: &Mount<'_>) -> Duration {
    let start = Instant::now();
    // A new cache starts its counters at zero.
    let count = || ["objects", "unkept", "disk_errors"].map(|name| number(mount, name));
    loop {
        let before = count();
        client.read_new(mount, SWITCHED);
        let after = count();
        if after[0] > before[0] && after[1..] == before[1..] {
            return start.elapsed();
        }
        assert!(start.elapsed() < PATIENCE, "nothing is kept again: {:#}", mount.status());
        // Files to read are not without end; a role that changes takes seconds.
        until(SWITCHED / 100, || count() != after);
    }
}

/// > W4: Whatever becomes of the cache's disk, reads of what a server has do not fail, every mount ends in time or says what is wrong with the disk, and the cache is used again by itself once the disk is well.
#[test]
fn no_read_fails_because_of_a_failing_disk() {
    let _pass = exclusive::among_others();
    let client = Client::apart();
    let origin = client.nginx("origin", Some(&client.storage()));
    let disk = client.place("disk").display().to_string();
    let make = format!("mkdir {disk} && mount -t tmpfs -o size=32m,mode=755 none {disk}");
    client.namespace.as_ref().expect("a namespace").does(&make);
    let (mount, second) = (client.at("disk/first", &origin, &[]), client.at("disk/second", &origin, &[]));
    mount.mount_empty(SWITCHED);
    client.read_new(&mount, SWITCHED);
    let mut table = String::from("| Fault | First read | Read again | Mount | Mount again | Kept again |\n");
    table += "|---|---|---|---|---|---|\n";
    for fault in FAULTS {
        println!("{fault:?}");
        // Something is in the cache of the second mount when it comes back.
        second.mount_empty(SWITCHED);
        client.read_new(&second, SWITCHED);
        second.umount();
        let before = number(&mount, "unkept") + number(&mount, "disk_errors") + number(&mount, "evicted");
        script(&client, &mount, fault.begin());
        let cold = client.read_new(&mount, SWITCHED);
        let (_, warm) = timed(|| client.read_old(&mount));
        let met = number(&mount, "unkept") + number(&mount, "disk_errors") + number(&mount, "evicted");
        // A cache that is anew already has counted nothing yet.
        assert!(met > before || fault == Fault::Removed, "{fault:?} was not met: {:#}", mount.status());
        if number(&mount, "disk_errors") > 0 {
            let status = mount.status();
            let told =
                status["errors"].as_array().expect("errors").iter().any(|it| it["object"] == "the cache");
            assert!(told, "{fault:?} is not among the errors: {status:#}");
        }
        if fault != Fault::Full {
            script(&client, &second, fault.begin());
        }
        let tries = [(); 2].map(|()| {
            let (refused, took) = second.try_mount(SWITCHED);
            let Some(words) = refused else {
                client.read_new(&second, SWITCHED);
                second.umount();
                return format!("{} ms", took.as_millis());
            };
            assert!(fault == Fault::ReadOnly || fault == Fault::Failing, "{fault:?}: {words}");
            assert!(words.contains(&second.cache().display().to_string()), "{words}");
            format!("refused, {} ms", took.as_millis())
        });
        script(&client, &mount, fault.end());
        if fault != Fault::Full {
            script(&client, &second, fault.end());
        }
        // A mount that Landlock confines may not make its cache anew (C11).
        if fault == Fault::Removed {
            mount.mount_again(SWITCHED);
        }
        let kept = wait_until_kept(&client, &mount);
        second.mount(SWITCHED);
        client.read_new(&second, SWITCHED);
        second.umount();
        let ms = |time: Duration| format!("{} ms", time.as_millis());
        let [mounted, remounted] = tries;
        writeln!(
            table,
            "| {fault:?} | {} | {} | {mounted} | {remounted} | {} |",
            ms(cold),
            ms(warm),
            ms(kept)
        )
        .expect("writing to a string");
    }
    add_to_report(&format!("## The disk of the cache fails\n\n{table}"));
}
