//! Tracers of requests.

use std::fs::{self, File};
use std::io::IsTerminal as _;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Condvar, Mutex};

use esker_fuse::{Call, CallKind, Tracer};
use esker_testkit::memory_tree::{Entry, MemoryTree};

use crate::mounted::{Mounted, PATIENCE};
use crate::on_all_kernels;

/// Keeps the calls of one thread.
#[derive(Default)]
struct Kept {
    thread: AtomicU32,
    calls: Mutex<Vec<Call>>,
    came: Condvar,
}

impl Tracer for Kept {
    fn wants(&self, caller: u32) -> bool {
        caller == self.thread.load(Ordering::SeqCst)
    }

    fn ended(&self, call: &Call) {
        self.calls.lock().expect("no panic").push(call.clone());
        self.came.notify_all();
    }
}

impl Kept {
    /// Waits for a call: it is reported after its reply.
    fn find(&self, what: &str, is_it: impl Fn(&Call) -> bool) -> Call {
        let calls = self.calls.lock().expect("no panic");
        let wait = self.came.wait_timeout_while(calls, PATIENCE, |calls| !calls.iter().any(&is_it));
        let (calls, _) = wait.expect("no panic");
        calls.iter().find(|call| is_it(call)).unwrap_or_else(|| panic!("{what}: {calls:?}")).clone()
    }
}

on_all_kernels! {
    fn a_tracer_gets_the_requests_of_the_threads_that_it_wants(kernel: KernelMask) {
        let tree = MemoryTree::new();
        tree.put("file", Entry::file(b"content"));
        let mounted = Mounted::new(tree, kernel);
        let kept = Arc::<Kept>::default();
        let me = rustix::thread::gettid().as_raw_nonzero().get().cast_unsigned();
        kept.thread.store(me, Ordering::SeqCst);
        let tracer: Arc<dyn Tracer> = kept.clone();
        mounted.session.add_tracer(tracer.clone());
        assert_eq!(fs::read(mounted.path("file")).expect("reading"), b"content");
        fs::metadata(mounted.path("absent")).expect_err("it is not there");
        let named = |name: &'static [u8]| move |call: &Call| call.name.as_deref() == Some(name);
        let found = kept.find("the lookup", named(b"file"));
        assert_eq!((found.kind, found.errno, found.caller), (CallKind::Lookup, 0, me));
        assert!(found.found.is_some() && found.ended >= found.began);
        let read = kept.find("the read", |call| call.kind == CallKind::Read);
        assert_eq!((Some(read.node.key), read.bytes, read.errno), (found.found, 7, 0));
        assert_eq!(kept.find("the missing name", named(b"absent")).errno, libc::ENOENT);
        assert!(!File::open(mounted.path("file")).expect("opening").is_terminal());
        let refused = kept.find("the ioctl", |call| call.kind == CallKind::Ioctl);
        assert_eq!((Some(refused.node.key), refused.errno, refused.caller), (found.found, libc::ENOTTY, me));
        mounted.session.remove_tracer(&tracer);
        let before = kept.calls.lock().expect("no panic").len();
        fs::metadata(mounted.path("later")).expect_err("it is not there");
        assert_eq!(kept.calls.lock().expect("no panic").len(), before, "it was removed");
    }

    fn a_tracer_gets_no_request_of_other_threads(kernel: KernelMask) {
        let mounted = Mounted::new(MemoryTree::new(), kernel);
        let kept = Arc::<Kept>::default();
        mounted.session.add_tracer(kept.clone());
        fs::metadata(mounted.path("absent")).expect_err("it is not there");
        // A request without a trace is never reported, so there is nothing to wait for.
        assert!(kept.calls.lock().expect("no panic").is_empty());
    }
}
