//! Workers blocked by the tree, as by one whose disk does not answer.

use std::fs;
use std::time::{Duration, Instant};

use esker_fuse::{Deadlines, SessionOptions};
use esker_kernel_mount::Unmount;
use esker_testkit::memory_tree::{Action, Call, Entry, MemoryTree};

use crate::child::Task;
use crate::mounted::{Mounted, PATIENCE, keep_caches, until};
use crate::on_all_kernels;

const SHORT: Duration = Duration::from_millis(200);
/// More than the workers, fewer than the extra workers.
const SOME: usize = 12;
/// More than the extra workers.
const MANY: usize = 160;

fn tree(files: usize) -> MemoryTree {
    let tree = MemoryTree::new();
    tree.put("known", Entry::directory());
    for number in 0..files {
        // Each in a directory of its own, or the kernel looks one name up after the other.
        tree.put(&format!("dir{number}"), Entry::directory());
        tree.put(&format!("dir{number}/file"), Entry::file(&[7; 5000]));
    }
    tree
}

fn options(deadlines: Deadlines) -> SessionOptions {
    SessionOptions { threads: 2, deadlines, ..SessionOptions::default() }
}

fn short() -> Deadlines {
    Deadlines { lookup: SHORT, attributes: SHORT, list: SHORT, read: SHORT, fault: None }
}

/// How the reads of so many files end that hang the thread which asks for them.
fn read_all(mounted: &Mounted, files: usize) -> Vec<std::io::Result<usize>> {
    std::thread::scope(|scope| {
        let read = |number| {
            let path = mounted.path(&format!("dir{number}/file"));
            let reader = std::thread::Builder::new().stack_size(64 << 10);
            reader.spawn_scoped(scope, move || fs::read(path).map(|bytes| bytes.len())).expect("a thread")
        };
        let all: Vec<_> = (0..files).map(read).collect();
        all.into_iter().map(|reader| reader.join().expect("a reader")).collect()
    })
}

fn hang(mounted: &Mounted, call: Call, files: usize) {
    (0..files).for_each(|n| mounted.tree.script().set(call, &format!("dir{n}/file"), Action::Hang));
}

fn go_on(mounted: &Mounted, call: Call, files: usize) {
    (0..files).for_each(|n| mounted.tree.script().clear(call, &format!("dir{n}/file")));
}

/// While so many reads hang, others are answered, and each ends at its deadline.
fn others_are_served(mounted: &Mounted, files: usize, others: impl Fn()) {
    let _caches = keep_caches();
    fs::metadata(mounted.path("known")).expect("known");
    hang(mounted, Call::Read, files);
    std::thread::scope(|scope| {
        let reading = scope.spawn(|| read_all(mounted, files));
        assert!(until(PATIENCE, || mounted.session.counters().hired > 0), "no worker was hired");
        rustix::fs::statvfs(mounted.root()).expect("statfs");
        fs::metadata(mounted.path("known")).expect("known attributes");
        others();
        for outcome in reading.join().expect("readers") {
            assert_eq!(outcome.expect_err("it hangs").raw_os_error(), Some(libc::EIO));
        }
    });
    // What was read ahead has a deadline, too.
    assert!(until(PATIENCE, || mounted.session.counters().waiting == 0));
    go_on(mounted, Call::Read, files);
    for outcome in read_all(mounted, files) {
        assert_eq!(outcome.expect("the disk is well"), 5000);
    }
}

on_all_kernels! {
    fn each_call_ends_at_its_deadline_and_others_are_served(kernel: KernelMask) {
        let mounted = Mounted::with(tree(SOME), SessionOptions { kernel, ..options(short()) });
        let list = || {
            let names = fs::read_dir(mounted.path("known")).expect("a listing");
            assert!(names.map(|name| name.expect("a name")).next().is_none());
        };
        others_are_served(&mounted, SOME, list);
        assert!(mounted.session.counters().hired <= 2 * SOME as u64);
    }

    fn a_hanging_request_is_detected_on_an_idle_mount(kernel: KernelMask) {
        let mounted = Mounted::with(tree(1), SessionOptions { kernel, ..options(short()) });
        for (call, path) in [(Call::Lookup, "dir0/file"), (Call::List, "dir0"), (Call::LinkTarget, "link")] {
            if call == Call::LinkTarget {
                mounted.tree.put("link", Entry::symlink(b"dir0"));
            }
            mounted.tree.script().set(call, path, Action::Hang);
            let start = Instant::now();
            let path_there = mounted.path(path);
            let outcome = match call {
                Call::List => fs::read_dir(path_there).and_then(|mut names| names.next().transpose()).map(drop),
                Call::LinkTarget => fs::read_link(path_there).map(drop),
                _ => fs::metadata(path_there).map(drop),
            };
            assert_eq!(outcome.expect_err("it hangs").raw_os_error(), Some(libc::EIO), "{call:?}");
            assert!(start.elapsed() >= SHORT, "{call:?}");
            assert_eq!(mounted.tree.script().calls(call, path), 1, "{call:?}");
            mounted.tree.script().clear(call, path);
        }
    }

    fn a_killed_or_interrupted_caller_ends_at_once(kernel: KernelMask) {
        let mounted = Mounted::with(tree(3), SessionOptions { kernel, ..options(Deadlines::default()) });
        // A page that is read ahead for one who is killed is waited for by the next, so each has a file of its own.
        let calls = [(Call::Lookup, "stat", "dir0/file"), (Call::Read, "read", "dir1/file")];
        for (call, task, path) in calls.into_iter().chain([(Call::Read, "map", "dir2/file")]) {
            mounted.tree.script().set(call, path, Action::Hang);
            let mut task = Task::new(task, &mounted.path(path));
            assert!(mounted.tree.script().until_called(call, path, 1, PATIENCE), "{call:?}");
            task.kill();
            // A request that is overlooked waits for the deadline of a minute.
            let took = task.ends_within();
            assert!(took < Duration::from_secs(20), "killed, gone after {took:?}");
            mounted.tree.script().clear(call, path);
        }
    }

    fn a_mount_that_hangs_can_be_unmounted(kernel: KernelMask) {
        let mounted = Mounted::with(tree(SOME), SessionOptions { kernel, ..options(short()) });
        hang(&mounted, Call::Read, SOME);
        read_all(&mounted, SOME).into_iter().for_each(|outcome| assert!(outcome.is_err()));
        mounted.session.unmount(Unmount::Lazy).expect("unmounted");
        mounted.session.wait();
        let said = mounted.log.take();
        assert!(matches!(said.as_slice(), [line] if line.contains("blocked on disk I/O")), "{said:?}");
        go_on(&mounted, Call::Read, SOME);
        assert!(until(PATIENCE, || mounted.tree.held() == 0), "those who were held up clean up");
    }
}

/// With all extra workers blocked, requests that need no tree are still answered, and every call ends.
#[test]
fn one_worker_stays_free_while_many_requests_hang() {
    crate::mounted::with_fuse(|| {
        let deadlines = Deadlines { read: Duration::from_secs(5), ..short() };
        let mounted = Mounted::with(tree(MANY), options(deadlines));
        others_are_served(&mounted, MANY, || {});
        assert!(mounted.session.counters().hired >= 128, "{}", mounted.session.counters().hired);
    });
}
