//! From mounting to unmounting: what the kernel holds is held, and given back.

use std::fs::{self, File};
use std::os::unix::fs::FileExt;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use esker_kernel_mount::Unmount;
use esker_testkit::memory_tree::{Action, Call, Entry, MemoryTree};
use esker_testkit::skip;
use esker_vfs::ErrorKind;

use crate::mounted::{Mounted, PATIENCE, drop_caches, is_root, until};
use crate::on_all_kernels;

fn wide() -> MemoryTree {
    let tree = MemoryTree::new();
    for d in 0..20 {
        tree.put(&format!("d{d}"), Entry::directory());
        for f in 0..50 {
            tree.put(&format!("d{d}/f{f}"), Entry::file(&[d; 100]));
        }
    }
    tree
}

fn read_everything(root: &std::path::Path) -> usize {
    let mut count = 0;
    for dir in fs::read_dir(root).expect("list") {
        for file in fs::read_dir(dir.expect("entry").path()).expect("list") {
            count += fs::read(file.expect("entry").path()).expect("read").len();
        }
    }
    count
}

on_all_kernels! {
    fn dropping_caches_releases_all_but_open_files(kernel: KernelMask) {
        if !is_root() {
            skip!("only root can drop caches");
        }
        let _caches = drop_caches();
        let mounted = Mounted::new(wide(), kernel);
        assert_eq!(read_everything(mounted.root()), 100_000);
        assert_eq!(mounted.session.counters().nodes, 1 + 20 + 1000);
        let open = File::open(mounted.path("d3/f7")).expect("open");
        // Other tests keep the caches busy, so one drop may not be enough.
        let drop_to = |nodes: u64| {
            until(PATIENCE, || {
                fs::write("/proc/sys/vm/drop_caches", "2").expect("dropped");
                mounted.session.counters().nodes == nodes
            })
        };
        assert!(drop_to(3), "{} nodes left, not root, d3 and f7", mounted.session.counters().nodes);
        assert!(mounted.tree.is_held("d3/f7") && mounted.tree.is_held("d3") && !mounted.tree.is_held("d4"));
        assert_eq!(mounted.session.counters().nodes, mounted.tree.held() as u64);
        let mut byte = [0];
        open.read_exact_at(&mut byte, 99).expect("still readable");
        assert_eq!(byte, [3]);
        drop(open);
        assert!(drop_to(1), "{} nodes left, not the root alone", mounted.session.counters().nodes);
        assert!(mounted.requests("BATCH_FORGET") + mounted.requests("FORGET") > 0);
    }

    fn concurrent_lookups_and_forgets_lose_no_node(kernel: KernelMask) {
        if !is_root() {
            skip!("only root can drop caches");
        }
        let _caches = drop_caches();
        let mounted = Mounted::new(wide(), kernel);
        let done = AtomicBool::new(false);
        let rounds = AtomicU64::new(0);
        std::thread::scope(|scope| {
            for _ in 0..4 {
                scope.spawn(|| {
                    for _ in 0..5 {
                        assert_eq!(read_everything(mounted.root()), 100_000);
                    }
                    if rounds.fetch_add(1, Ordering::SeqCst) == 3 {
                        done.store(true, Ordering::SeqCst);
                    }
                });
            }
            scope.spawn(|| {
                while !done.load(Ordering::SeqCst) {
                    fs::write("/proc/sys/vm/drop_caches", "2").expect("dropped");
                }
            });
        });
        assert_eq!(mounted.tree.violations(), Vec::<String>::new());
        assert!(mounted.session.counters().opcodes.iter().any(|o| o.name.contains("FORGET")));
    }

    fn unmounting_under_load_ends_cleanly(kernel: KernelMask) {
        let tree = wide();
        for f in 0..50 {
            tree.script().set(Call::Read, &format!("d5/f{f}"), Action::Park);
        }
        let mut mounted = Mounted::new(tree, kernel);
        mounted.quiet = true;
        std::thread::scope(|scope| {
            let readers: Vec<_> = (0..50)
                .map(|f| {
                    let path = mounted.path(&format!("d5/f{f}"));
                    scope.spawn(move || fs::read(path).expect_err("the mount went away").raw_os_error())
                })
                .collect();
            let walker = {
                let root = mounted.root().to_owned();
                scope.spawn(move || while fs::metadata(root.join("d0/f0")).is_ok() {})
            };
            assert!(mounted.tree.script().until_parked(Call::Read, 50, PATIENCE));
            let busy = mounted.session.unmount(Unmount::IfUnused).expect_err("it is in use");
            assert!(busy.to_string().contains("still uses it") || busy.to_string().contains("busy"), "{busy}");
            mounted.session.unmount(Unmount::Lazy).expect("detached");
            walker.join().expect("ended");
            assert!(!mounted.session.is_over(), "readers keep it");
            // The kernel asks again for what it read ahead, so what comes next fails, too.
            for f in 0..50 {
                mounted.tree.script().set(Call::Read, &format!("d5/f{f}"), Action::Fail(ErrorKind::Damaged));
            }
            mounted.tree.script().fail_parked(Call::Read, ErrorKind::Damaged);
            for reader in readers {
                assert_eq!(reader.join().expect("ended"), Some(libc::EIO));
            }
        });
        mounted.session.wait();
        assert!(mounted.session.is_over());
        assert_eq!(mounted.tree.held(), 0);
    }

    fn a_tree_that_panics_fails_one_call(kernel: KernelMask) {
        let tree = wide();
        tree.script().set(Call::Read, "d1/f1", Action::Panic);
        tree.script().set_times(Call::Lookup, "d2", Action::Panic, 20);
        let mut mounted = Mounted::new(tree, kernel);
        mounted.quiet = false;
        for _ in 0..20 {
            let error = fs::metadata(mounted.path("d2")).expect_err("panicked");
            assert_eq!(error.raw_os_error(), Some(libc::EIO));
        }
        // More panics than workers, and all are still there.
        assert_eq!(fs::metadata(mounted.path("d2")).expect("recovered").len(), 4096);
        assert_eq!(fs::read(mounted.path("d1/f1")).expect_err("panicked").raw_os_error(), Some(libc::EIO));
        assert_eq!(fs::read(mounted.path("d1/f2")).expect("read").len(), 100);
        let log = mounted.log.all();
        assert!(log.iter().any(|line| line.contains("panicked") && line.contains("the script says so")), "{log:?}");
    }

    fn a_reply_after_the_unmount_is_dropped(kernel: KernelMask) {
        if !is_root() {
            skip!("only root can abort a mount");
        }
        let tree = wide();
        tree.script().set(Call::Lookup, "d9", Action::Park);
        let mounted = Mounted::new(tree, kernel);
        let path = mounted.path("d9");
        let walker = std::thread::spawn(move || fs::metadata(path));
        assert!(mounted.tree.script().until_parked(Call::Lookup, 1, PATIENCE));
        let _ = rustix::mount::unmount(mounted.root(), rustix::mount::UnmountFlags::FORCE);
        assert!(walker.join().expect("ended").is_err(), "aborted");
        mounted.session.wait();
        assert_eq!(mounted.session.counters().waiting, 0);
        mounted.tree.script().resume(Call::Lookup);
        assert_eq!(mounted.tree.held(), 0);
    }
}
