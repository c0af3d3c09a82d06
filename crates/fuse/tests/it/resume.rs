//! A session goes on in another process after its own was killed.

use std::fs::{self, File};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::fs::{FileExt, MetadataExt};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::process::Stdio;
use std::sync::Arc;

use esker_fuse::{KernelMask, Session, SessionDescriptors, SessionOptions};
use esker_kernel_mount::{Mount, MountOptions, Unmount};
use esker_testkit::memory_tree::{Action, Call, Entry, MemoryTree};
use esker_vfs::Tree;

use crate::child::{self, Task};
use crate::mounted::PATIENCE;
use crate::on_all_kernels;

/// Number of descriptors of the session.
const WORKERS: usize = 4;
const CONTENT: &[u8] = b"what it says";

/// Returns the tree of both processes: their nodes are the same.
fn tree() -> Arc<MemoryTree> {
    let tree = MemoryTree::new();
    tree.put("held", Entry::file(CONTENT));
    tree.put("slow", Entry::file(CONTENT));
    tree.put("read", Entry::file(CONTENT));
    tree.put("mapped", Entry::file(&vec![7; 1 << 20]));
    tree.put("dir", Entry::directory());
    for number in 0..40 {
        tree.put(&format!("dir/{number}"), Entry::file(b""));
    }
    Arc::new(tree)
}

fn options(kernel: KernelMask, mountpoint: &Path) -> SessionOptions {
    SessionOptions {
        outlives: true,
        kernel,
        threads: WORKERS,
        mountpoint: Some(mountpoint.into()),
        ..SessionOptions::default()
    }
}

/// Mounts, hands the descriptors to the parent process, and answers only a part of its requests until it is killed.
pub(crate) fn serve_until_killed(kernel: KernelMask, mountpoint: &Path) -> std::io::Result<String> {
    let tree = tree();
    for (call, path) in
        [(Call::Lookup, "slow"), (Call::Read, "read"), (Call::List, "dir"), (Call::Read, "mapped")]
    {
        tree.script().set(call, path, Action::Park);
    }
    let options_of_mount = MountOptions { source: "memory".into(), ..MountOptions::default() };
    let device = Mount::new(mountpoint, &options_of_mount).expect("mounted").into_device();
    let served: Arc<dyn Tree> = Arc::clone(&tree) as _;
    let session = Session::start(device, served, options(kernel, mountpoint)).expect("a session");
    let descriptors = session.descriptors().expect("descriptors");
    assert_eq!(descriptors.devices.len(), WORKERS);
    for descriptor in descriptors.devices.iter().chain([&descriptors.memory]).chain(&descriptors.names) {
        esker_kernel_mount::send_device(std::io::stdin(), descriptor.as_fd())?;
    }
    let parked =
        |call, count| assert!(tree.script().until_parked(call, count, PATIENCE), "{call:?} is not parked");
    parked(Call::Lookup, 1);
    parked(Call::List, 1);
    parked(Call::Read, 2);
    println!("parked");
    session.wait();
    panic!("it was not killed");
}

on_all_kernels! {
    /// Programs that wait for an answer get it from the next process, and numbers stay.
    fn a_successor_answers_what_a_killed_process_left(kernel: KernelMask) {
        let folder = tempfile::tempdir().expect("a folder");
        let mountpoint = folder.path();
        let (ours, theirs) = UnixStream::pair().expect("sockets");
        let task = format!("until-killed-{}", kernel.minor());
        let mut command = child::command(&std::env::current_exe().expect("this binary"), &task, mountpoint);
        command.stdin(Stdio::from(OwnedFd::from(theirs)));
        let mut server = Task::spawn(&mut command);
        drop(command);
        let received = || esker_kernel_mount::receive_device(&ours).expect("a descriptor");
        let devices = (0..WORKERS).map(|_| received()).collect();
        let descriptors = {
            let (memory, has_names) = (received(), kernel != KernelMask::LINUX_6_18);
            SessionDescriptors { devices, memory, names: has_names.then(&received) }
        };

        let held = File::open(mountpoint.join("held")).expect("opened");
        let before = held.metadata().expect("attributes").ino();
        let mut waiting = [("stat", "slow"), ("read", "read"), ("list", "dir"), ("map", "mapped")]
            .map(|(task, name)| Task::new(task, &mountpoint.join(name)));
        server.line("parked");
        server.kill();
        server.ends_within();

        let tree = tree();
        let served: Arc<dyn Tree> = Arc::clone(&tree) as _;
        let session = Session::resume(descriptors, served, options(kernel, mountpoint)).expect("resumed");
        let results = waiting.each_mut().map(|task| task.line("result "));
        assert_eq!(results, ["12", "12", "40", "1048576"].map(String::from));
        let mut content = [0; CONTENT.len()];
        held.read_exact_at(&mut content, 0).expect("read");
        assert_eq!(content, CONTENT);
        assert_eq!(fs::metadata(mountpoint.join("held")).expect("attributes").ino(), before);
        drop(held);
        session.unmount(Unmount::Lazy).expect("unmounted");
        assert!(session.wait());
        assert_eq!(tree.held(), 0, "a mount that is gone holds nothing");
        assert_eq!(tree.violations(), Vec::<String>::new());
    }
}
