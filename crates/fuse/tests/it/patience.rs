//! Deadlines: which calls wait, how long, and what ends a wait.

use std::fs;
use std::time::{Duration, Instant};

use esker_fuse::{Deadlines, KernelMask};
use esker_testkit::memory_tree::{Action, Call, Entry, MemoryTree};
use esker_vfs::ErrorKind;

use crate::child::Task;
use crate::mounted::{Mounted, PATIENCE, is_root, keep_caches, until};
use crate::{on_all_kernels, sys};

const SHORT: Duration = Duration::from_millis(200);

fn tree() -> MemoryTree {
    let tree = MemoryTree::new();
    tree.put("dir", Entry::directory());
    tree.put("dir/file", Entry::file(&[7; 10_000]));
    tree.put("dir/other", Entry::file(&[8; 10_000]));
    tree.put("link", Entry::symlink(b"dir/file"));
    tree
}

/// That tree mounted, with one call of one path behaving as the action says.
fn mounted(kernel: KernelMask, call: Call, path: &str, action: Action) -> Mounted {
    mounted_with(kernel, Deadlines::default(), call, path, action)
}

fn mounted_with(kernel: KernelMask, deadlines: Deadlines, call: Call, path: &str, action: Action) -> Mounted {
    let tree = tree();
    tree.script().set(call, path, action);
    Mounted::with_deadlines(tree, kernel, deadlines)
}

/// A mount and a process in a page fault without a reply, although the deadline of reads has passed.
fn silent_page_fault(kernel: KernelMask) -> (Mounted, Task) {
    let deadlines = Deadlines { read: SHORT, ..Deadlines::default() };
    let mounted = mounted_with(kernel, deadlines, Call::Read, "dir/file", Action::Park);
    let mut task = Task::new("map", &mounted.path("dir/file"));
    assert!(mounted.tree.script().until_parked(Call::Read, 1, PATIENCE));
    // A call for another file meets the same deadline and shows that it has passed.
    mounted.tree.script().set(Call::Read, "dir/other", Action::Park);
    assert!(fs::read(mounted.path("dir/other")).is_err());
    assert!(task.child.try_wait().expect("waited").is_none(), "not killed by SIGBUS");
    (mounted, task)
}

on_all_kernels! {
    /// > P2: A cached read and a stat answer at once, however many other reads wait for a server that does
    /// not.
    fn a_thousand_waiting_reads_do_not_delay_other_requests(kernel: KernelMask) {
        // A thousand for each kernel, which may run at the same time.
        esker_testkit::descriptors::allow(4000);
        let _caches = keep_caches();
        let tree = tree();
        tree.put("warm", Entry::file(&vec![9; 1 << 20]));
        for i in 0..5 {
            tree.put(&format!("dir/ready{i}"), Entry::file(&[8; 10_000]));
        }
        for i in 0..1000 {
            tree.put(&format!("dir/slow{i}"), Entry::file(&vec![1; 300_000]));
            tree.script().set(Call::Read, &format!("dir/slow{i}"), Action::Park);
        }
        let mounted = Mounted::new(tree, kernel);
        assert_eq!(fs::read(mounted.path("warm")).expect("read").len(), 1 << 20);
        std::thread::scope(|scope| {
            for i in 0..1000 {
                let path = mounted.path(&format!("dir/slow{i}"));
                let reader = std::thread::Builder::new().stack_size(64 << 10);
                reader.spawn_scoped(scope, move || fs::read(path).map(|b| b.len())).expect("a thread");
            }
            assert!(mounted.tree.script().until_parked(Call::Read, 1000, PATIENCE));
            assert!(mounted.session.counters().waiting >= 1000);
            // The best of a few, because the machine does other things; a wait for one of the
            // thousand would wait every time.
            let cached = (0..5).map(|_| {
                let since = Instant::now();
                assert_eq!(fs::read(mounted.path("warm")).expect("read").len(), 1 << 20);
                fs::metadata(mounted.path("dir/file")).expect("stat");
                since.elapsed()
            });
            let cached = cached.min().expect("some");
            // Nor does one that the kernel does not have but the tree has at hand.
            let uncached = (0..5).map(|i| {
                let since = Instant::now();
                assert_eq!(fs::read(mounted.path(&format!("dir/ready{i}"))).expect("read").len(), 10_000);
                since.elapsed()
            });
            let uncached = uncached.min().expect("some");
            for i in 0..1000 {
                mounted.tree.script().clear(Call::Read, &format!("dir/slow{i}"));
            }
            mounted.tree.script().resume(Call::Read);
            // At the end, so that a failure does not leave a thousand readers behind.
            assert!(cached < Duration::from_millis(10), "a cached read and a stat took {cached:?}");
            assert!(uncached < Duration::from_millis(100), "an uncached read took {uncached:?}");
        });
        let parked = mounted.session.counters();
        assert!(parked.opcodes.iter().any(|o| o.name == "READ" && o.parked >= 1000));
    }

    /// > P3: A program that waits for a server can be killed and is gone within a second.
    fn a_killed_caller_ends_at_once(kernel: KernelMask) {
        let tree = tree();
        tree.script().set(Call::Read, "dir/file", Action::Park);
        tree.script().set(Call::Lookup, "dir/other", Action::Park);
        tree.script().set(Call::List, "dir", Action::Park);
        let mounted = Mounted::new(tree, kernel);
        for (task, path, call) in [
            ("read", "dir/file", Call::Read),
            ("stat", "dir/other", Call::Lookup),
            ("list", "dir", Call::List),
            ("map", "dir/file", Call::Read),
        ] {
            // The best of a few, because the machine does other things.
            let took = (0..3).map(|_| {
                let before = mounted.tree.script().parked(call);
                let mut task = Task::new(task, &mounted.path(path));
                // The second reader of a page waits for the first one's request.
                let expected = if call == Call::Read { before.max(1) } else { before + 1 };
                assert!(mounted.tree.script().until_parked(call, expected, PATIENCE), "{path}");
                task.kill();
                task.ends_within()
            });
            let took = took.min().expect("some");
            assert!(took < Duration::from_secs(1), "killed while waiting for {path}, gone after {took:?}");
        }
        mounted.tree.script().fail_parked(Call::Read, ErrorKind::Damaged);
        mounted.tree.script().resume(Call::Lookup);
        mounted.tree.script().resume(Call::List);
    }

    fn a_caller_can_be_killed_at_any_moment(kernel: KernelMask) {
        let mounted = mounted(kernel, Call::Lookup, "dir/file", Action::Park);
        // The lookup may be on its way to the kernel, in a queue, being read, noted, or waiting.
        for round in 0..60_u32 {
            let parked = mounted.tree.script().parked(Call::Lookup);
            let mut task = Task::new("stat", &mounted.path("dir/file"));
            if round % 4 == 0 {
                assert!(mounted.tree.script().until_parked(Call::Lookup, parked + 1, PATIENCE));
            } else {
                (0..round * 50).for_each(|_| std::hint::spin_loop());
            }
            task.kill();
            // A request that is overlooked waits for the deadline of a minute.
            let took = task.ends_within();
            assert!(took < Duration::from_secs(20), "killed in round {round}, gone after {took:?}");
        }
        assert!(mounted.requests("INTERRUPT") > 0, "some were killed while they waited");
        assert!(until(PATIENCE, || mounted.session.counters().waiting == 0));
        mounted.tree.script().resume(Call::Lookup);
    }

    /// > P4: A signal that ends a program or asks it to stop (SIGINT, SIGTERM, SIGHUP, SIGQUIT) ends its
    /// wait with EINTR; any other signal leaves the wait as it is, so that timers and children do not make
    /// a stat or a read fail.
    fn only_signals_that_stop_programs_end_their_wait(kernel: KernelMask) {
        let mounted = mounted(kernel, Call::Lookup, "dir/file", Action::Park);
        let mut task = Task::new("catch-stat", &mounted.path("dir/file"));
        task.line("caught");
        assert!(mounted.tree.script().until_parked(Call::Lookup, 1, PATIENCE));
        let before = mounted.requests("INTERRUPT");
        sys::signal_thread(task.pid(), task.tid, libc::SIGALRM);
        assert!(until(PATIENCE, || mounted.requests("INTERRUPT") > before), "the kernel announces it");
        assert_eq!(mounted.session.counters().waiting, 1, "a timer is no reason to fail a stat");
        // The kernel announces only the first; this one has to be noticed.
        sys::signal_thread(task.pid(), task.tid, libc::SIGTERM);
        assert_eq!(task.line("signals "), "2");
        assert_eq!(task.line("error "), libc::EINTR.to_string());
        mounted.tree.script().resume(Call::Lookup);
    }

    fn a_timer_signal_does_not_fail_a_read(kernel: KernelMask) {
        let mounted = mounted(kernel, Call::Lookup, "dir/file", Action::Park);
        let mut task = Task::new("catch-stat", &mounted.path("dir/file"));
        task.line("caught");
        assert!(mounted.tree.script().until_parked(Call::Lookup, 1, PATIENCE));
        for _ in 0..20 {
            sys::signal_thread(task.pid(), task.tid, libc::SIGALRM);
            sys::signal_thread(task.pid(), task.tid, libc::SIGUSR1);
        }
        assert!(until(PATIENCE, || mounted.requests("INTERRUPT") > 0));
        mounted.tree.script().resume(Call::Lookup);
        assert_ne!(task.line("signals "), "0");
        assert_eq!(task.line("result "), "10000");
    }

    /// > P6: A request fails with EIO when nothing of what it waits for has arrived for its deadline of a
    /// minute, and `esker status` shows it.
    fn a_wait_ends_at_its_deadline(kernel: KernelMask) {
        let tree = tree();
        tree.script().set(Call::Lookup, "dir/file", Action::Park);
        tree.script().set(Call::Read, "dir/other", Action::Park);
        tree.script().set(Call::LinkTarget, "link", Action::Park);
        tree.script().set(Call::List, "dir", Action::Park);
        let deadlines = Deadlines { lookup: SHORT, attributes: SHORT, list: SHORT, read: SHORT, fault: None };
        let mounted = Mounted::with_deadlines(tree, kernel, deadlines);
        let failed = |r: std::io::Result<()>| r.expect_err("late").raw_os_error() == Some(libc::EIO);
        let since = Instant::now();
        assert!(failed(fs::metadata(mounted.path("dir/file")).map(drop)));
        assert!(since.elapsed() >= SHORT);
        assert!(failed(fs::read_link(mounted.path("link")).map(drop)));
        assert!(failed(fs::read_dir(mounted.path("dir")).and_then(|mut d| d.next().expect("an error").map(drop))));
        assert!(failed(fs::read(mounted.path("dir/other")).map(drop)));
        let late: Vec<_> = mounted.tree.failures().into_iter().filter(|f| f.1 == ErrorKind::TimedOut).collect();
        assert!(late.len() >= 4, "{late:?}");
        assert!(late.iter().any(|(path, _, caller)| path == "dir/other" && caller.is_some()));
        // Late answers are dropped.
        for call in [Call::Lookup, Call::Read, Call::LinkTarget, Call::List] {
            mounted.tree.script().resume(call);
        }
        mounted.tree.script().clear(Call::Lookup, "dir/file");
        assert_eq!(fs::metadata(mounted.path("dir/file")).expect("in time").len(), 10_000);
    }

    fn a_deadline_counts_from_the_last_arrival_of_bytes(kernel: KernelMask) {
        let tree = tree();
        tree.put("more", Entry::directory());
        tree.put("more/file", Entry::file(&[9; 10]));
        let (calls, paths) = ([Call::Read, Call::Lookup, Call::LinkTarget, Call::List], ["dir/other", "more/file", "link", "dir"]);
        for (call, path) in calls.into_iter().zip(paths) {
            tree.script().set(call, path, Action::Park);
        }
        let deadlines = Deadlines { lookup: SHORT, attributes: SHORT, list: SHORT, read: SHORT, fault: None };
        let mounted = Mounted::with_deadlines(tree, kernel, deadlines);
        let script = mounted.tree.script();
        script.keep_arriving(true);
        // So that no lookup of theirs waits behind the one that is parked.
        for path in ["dir/other", "more", "link"] {
            fs::symlink_metadata(mounted.path(path)).expect("known");
        }
        std::thread::scope(|scope| {
            let failed = |done: std::io::Result<()>| {
                assert_eq!(done.expect_err("late").raw_os_error(), Some(libc::EIO));
                Instant::now()
            };
            let (dir, file, other, link) =
                (mounted.path("dir"), mounted.path("more/file"), mounted.path("dir/other"), mounted.path("link"));
            let list = move || fs::read_dir(dir).and_then(|mut names| names.next().expect("an error").map(drop));
            let waits = [
                scope.spawn(move || failed(fs::read(other).map(drop))),
                scope.spawn(move || failed(fs::metadata(file).map(drop))),
                scope.spawn(move || failed(fs::read_link(link).map(drop))),
                scope.spawn(move || failed(list())),
            ];
            for call in calls {
                assert!(script.until_parked(call, 1, PATIENCE), "{call:?}");
            }
            let end = Instant::now() + SHORT * 4;
            assert!(!until(end - Instant::now(), || waits.iter().any(|wait| wait.is_finished())));
            // Something arrives for the last time after this, however long this thread stands still.
            let stopped = Instant::now();
            script.keep_arriving(false);
            for wait in waits {
                let ended = wait.join().expect("joined");
                assert!(ended >= stopped + SHORT - Duration::from_millis(20), "{:?} too soon", stopped + SHORT - ended);
            }
        });
        assert!(mounted.tree.failures().iter().any(|failure| failure.1 == ErrorKind::TimedOut));
    }

    /// > P8: However many callers wait for the same name or the same bytes, the last of them is told at the
    /// deadline of the first, which for all of them counts from when bytes last arrived.
    ///
    /// The kernel lets one of them ask at a time; each would have the whole deadline for itself.
    fn requests_queued_behind_others_share_their_deadline(kernel: KernelMask) {
        const CALLERS: usize = 12;
        const DEADLINE: Duration = Duration::from_secs(1);
        for (call, path) in [(Call::Lookup, "dir/file"), (Call::Read, "dir/file"), (Call::LinkTarget, "link")] {
            let all = Deadlines::default();
            let deadlines = Deadlines { lookup: DEADLINE, read: DEADLINE, ..all };
            let mounted = mounted_with(kernel, deadlines, call, path, Action::Park);
            let at = mounted.path(path);
            let ask = || match call {
                Call::Lookup => fs::symlink_metadata(&at).map(drop),
                Call::Read => fs::read(&at).map(drop),
                _ => fs::read_link(&at).map(drop),
            };
            let since = Instant::now();
            std::thread::scope(|scope| {
                let callers: Vec<_> = (0..CALLERS).map(|_| scope.spawn(ask)).collect();
                for caller in callers {
                    let error = caller.join().expect("joined").expect_err("no answer");
                    assert_eq!(error.raw_os_error(), Some(libc::EIO), "{call:?}");
                }
            });
            let took = since.elapsed();
            let calls = mounted.tree.script().calls(call, path);
            assert!(calls > CALLERS / 2, "{call:?}: they asked one after the other: {calls}");
            assert!(took < DEADLINE * CALLERS as u32 / 3, "{call:?}: {took:?} for {calls} requests");
            // An attempt of later is a new one.
            mounted.tree.script().clear(call, path);
            mounted.tree.script().resume(call);
            assert!(until(PATIENCE, || ask().is_ok()), "{call:?}");
        }
    }

    /// > P5: A page fault on a mapped file waits, killably, while trying again may help, and gets SIGBUS
    /// only for bytes that are damaged.
    fn a_page_fault_waits_while_its_source_fails(kernel: KernelMask) {
        let mounted = mounted(kernel, Call::Read, "dir/file", Action::Fail(ErrorKind::Unavailable));
        let mut task = Task::new("map", &mounted.path("dir/file"));
        assert!(mounted.tree.script().until_called(Call::Read, "dir/file", 3, PATIENCE), "asked again");
        assert!(task.child.try_wait().expect("waited").is_none(), "not killed by SIGBUS");
        assert!(mounted.tree.failures().iter().any(|f| f.0 == "dir/file" && f.1 == ErrorKind::Unavailable));
        // A call that can fail fails at its deadline while the other one waits.
        let read = Task::new("read", &mounted.path("dir/file"));
        drop(read);
        mounted.tree.script().clear(Call::Read, "dir/file");
        assert_eq!(task.line("result "), "10000");
    }

    fn a_page_fault_waits_while_its_source_is_silent(kernel: KernelMask) {
        let (mounted, mut task) = silent_page_fault(kernel);
        mounted.tree.script().clear(Call::Read, "dir/file");
        mounted.tree.script().resume(Call::Read);
        assert_eq!(task.line("result "), "10000");
    }

    fn a_waiting_page_fault_can_be_killed(kernel: KernelMask) {
        let mounted = mounted(kernel, Call::Read, "dir/file", Action::Fail(ErrorKind::Unavailable));
        let mut task = Task::new("map", &mounted.path("dir/file"));
        assert!(mounted.tree.script().until_called(Call::Read, "dir/file", 3, PATIENCE), "asked again");
        task.kill();
        let took = task.ends_within();
        assert!(took < Duration::from_secs(1), "gone after {took:?}");
        assert!(until(PATIENCE, || mounted.session.counters().waiting == 0), "no request waits any longer");
    }

    fn a_killed_page_fault_does_not_delay_the_unmount(kernel: KernelMask) {
        let (mounted, mut task) = silent_page_fault(kernel);
        assert!(mounted.session.counters().waiting > 0, "for the fault there is none");
        task.kill();
        let took = task.ends_within();
        assert!(took < Duration::from_secs(1), "gone after {took:?}");
        assert!(until(PATIENCE, || mounted.session.counters().waiting == 0), "no request waits any longer");
        mounted.tree.script().resume(Call::Read);
    }

    fn a_page_fault_on_damaged_data_fails_at_once(kernel: KernelMask) {
        use std::os::unix::process::ExitStatusExt;
        let mounted = mounted(kernel, Call::Read, "dir/file", Action::Fail(ErrorKind::Damaged));
        let mut task = Task::new("map", &mounted.path("dir/file"));
        task.ends_within();
        assert_eq!(task.child.wait().expect("waited").signal(), Some(libc::SIGBUS));
        assert!(mounted.tree.failures().iter().any(|f| f.1 == ErrorKind::Damaged));
    }

    /// > P9: Of a process that the mount's daemon may not look at, every read is tried again until the
    /// deadline and then fails, because a call must not hang; behind a page fault that is SIGBUS.
    fn a_hidden_reader_gets_an_error_at_the_deadline(kernel: KernelMask) {
        let deadlines = Deadlines { read: SHORT * 5, ..Deadlines::default() };
        let failing = Action::Fail(ErrorKind::Unavailable);
        let mounted = mounted_with(kernel, deadlines, Call::Read, "dir/file", failing);
        let mut task = Task::new("hidden-read", &mounted.path("dir/file"));
        assert!(is_root() || fs::read(format!("/proc/{}/maps", task.pid())).is_err(), "root sees all processes");
        assert!(mounted.tree.script().until_called(Call::Read, "dir/file", 1, PATIENCE));
        assert_eq!(task.line("error "), libc::EIO.to_string());
        assert!(is_root() || mounted.tree.script().calls(Call::Read, "dir/file") >= 3, "asked again");
        mounted.tree.script().set(Call::Read, "dir/other", Action::Park);
        let mut silent = Task::new("hidden-read", &mounted.path("dir/other"));
        assert!(mounted.tree.script().until_parked(Call::Read, 1, PATIENCE));
        assert_eq!(silent.line("error "), libc::EIO.to_string());
        mounted.tree.script().resume(Call::Read);
    }

    fn a_hidden_page_fault_survives_a_short_failure(kernel: KernelMask) {
        let mounted = mounted(kernel, Call::Read, "dir/file", Action::Fail(ErrorKind::Unavailable));
        let mut task = Task::new("hidden-map", &mounted.path("dir/file"));
        assert!(mounted.tree.script().until_called(Call::Read, "dir/file", 3, PATIENCE), "asked again");
        mounted.tree.script().clear(Call::Read, "dir/file");
        assert_eq!(task.line("result "), "10000");
    }

    fn a_deadline_for_page_faults_can_be_set(kernel: KernelMask) {
        use std::os::unix::process::ExitStatusExt;
        let deadlines = Deadlines { read: SHORT, fault: Some(SHORT * 2), ..Deadlines::default() };
        let mounted = mounted_with(kernel, deadlines, Call::Read, "dir/file", Action::Fail(ErrorKind::Unavailable));
        let mut task = Task::new("map", &mounted.path("dir/file"));
        let took = task.ends_within();
        assert!(took >= SHORT, "it was asked again for a while: {took:?}");
        assert_eq!(task.child.wait().expect("waited").signal(), Some(libc::SIGBUS));
    }

    fn a_failed_read_returns_the_error(kernel: KernelMask) {
        let mounted = mounted(kernel, Call::Read, "dir/file", Action::Fail(ErrorKind::Unavailable));
        let mut task = Task::new("read", &mounted.path("dir/file"));
        assert_eq!(task.line("error "), libc::EIO.to_string());
        // What failed was not kept.
        mounted.tree.script().clear(Call::Read, "dir/file");
        assert_eq!(fs::read(mounted.path("dir/file")).expect("read").len(), 10_000);
    }
}
