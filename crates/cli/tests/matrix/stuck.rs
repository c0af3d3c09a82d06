//! A mount that takes questions and never answers, where the configuration repository should be.

use std::fs::File;
use std::io::{Read, Write};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;

use esker_kernel_mount::{Mount, MountOptions, Unmount};
use esker_testkit::fixture;
use rustix::event::{PollFd, PollFlags, Timespec, poll};

use crate::configuring::{configured, write_files};
use crate::faults::ended;
use crate::test_env::{TestEnv, words};
use crate::test_user::TestUser;

/// Time limit of any command while something hangs.
const BOUND: Duration = Duration::from_secs(25);

/// The kernel withdraws unread requests, but not those that were read: readers that wait for them can't be ended.
struct Silent {
    place: std::path::PathBuf,
    over: Arc<AtomicBool>,
    asked: Arc<AtomicUsize>,
    thread: Option<std::thread::JoinHandle<()>>,
}

impl Silent {
    fn mount(place: &Path) -> Self {
        // The user of the tests mounts; the reader may be another.
        let options = MountOptions {
            source: "silent".into(),
            allow_other: TestUser::myself().is_root(),
            ..MountOptions::default()
        };
        let device = Mount::new(place, &options).expect("mounted").into_device();
        let (over, asked) = (Arc::<AtomicBool>::default(), Arc::<AtomicUsize>::default());
        let (stop, count) = (over.clone(), asked.clone());
        let thread = std::thread::spawn(move || be_silent(File::from(device), &stop, &count));
        Self { place: place.to_owned(), over, asked, thread: Some(thread) }
    }
}

/// Greets the kernel and reads everything else without a word.
#[allow(clippy::host_endian_bytes, reason = "the kernel speaks in the byte order of the machine")]
fn be_silent(mut device: File, over: &AtomicBool, asked: &AtomicUsize) {
    const INIT: u32 = 26;
    let mut request = vec![0; 256 << 10];
    while !over.load(Ordering::SeqCst) {
        let tick = Timespec { tv_sec: 0, tv_nsec: 50_000_000 };
        let ready = poll(&mut [PollFd::new(&device, PollFlags::IN)], Some(&tick));
        if ready.is_ok_and(|ready| ready == 0) {
            continue;
        }
        let Ok(len) = device.read(&mut request) else { return };
        let word = |at: usize| u32::from_ne_bytes(request[at..at + 4].try_into().expect("four bytes"));
        if len < 40 || word(4) != INIT {
            asked.fetch_add(1, Ordering::SeqCst);
            continue;
        }
        // Length, no error, the number of the question; then version 7.31 and room for writes.
        let mut answer = [0; 80];
        answer[..4].copy_from_slice(&80_u32.to_ne_bytes());
        answer[8..16].copy_from_slice(&request[8..16]);
        for (at, value) in [(16, 7_u32), (20, 31), (36, 4096), (40, 1)] {
            answer[at..at + 4].copy_from_slice(&value.to_ne_bytes());
        }
        device.write_all(&answer).expect("greeted");
    }
}

impl Drop for Silent {
    fn drop(&mut self) {
        // Once the device is closed, waiting readers get an error.
        let unmounted = esker_kernel_mount::unmount(&self.place, Unmount::Lazy);
        self.over.store(true, Ordering::SeqCst);
        let ended = self.thread.take().map(std::thread::JoinHandle::join);
        if !std::thread::panicking() {
            unmounted.expect("unmounted");
            assert!(ended.is_some_and(|ended| ended.is_ok()));
        }
    }
}

/// > H2: A configuration repository that does not answer holds up no command: each ends in time, and those that need it say so.
#[test]
fn a_hanging_configuration_repository_delays_no_command() {
    let world = TestEnv::new(TestUser::ordinary(), fixture::RMD);
    let name = world.fixture().name();
    let general = "CVMFS_CONFIG_REPOSITORY=config.test\nCVMFS_MOUNT_DIR=/cvmfs\n";
    let own = format!(
        "CVMFS_SERVER_URL={}\nCVMFS_HTTP_PROXY=DIRECT\nCVMFS_PUBLIC_KEY=/key.pub\nCVMFS_CACHE_BASE={}\n",
        world.url(),
        world.path("home/caches").display()
    );
    let local = format!("/etc/cvmfs/config.d/{name}.local");
    write_files(&world, &[("/etc/cvmfs/default.conf", general), (&local, &own)]);
    std::fs::copy(world.path("key.pub"), world.path("root/key.pub")).expect("a key");
    let place = world.path("root/cvmfs/config.test");
    std::fs::create_dir_all(&place).expect("a folder");
    let silent = Silent::mount(&place);
    let mountpoint = world.mountpoint().display().to_string();
    let told = |arguments: &[&str]| {
        let asked = silent.asked.load(Ordering::SeqCst);
        let (output, took) = ended(configured(&world, arguments), BOUND);
        println!("{} took {took:?}", arguments[..1].join(" "));
        let said = words(&output);
        assert!(said.contains("config.test") && said.contains("does not answer"), "{arguments:?}: {said}");
        // The kernel lets later lookups wait for the first one.
        assert!(silent.asked.load(Ordering::SeqCst) > 0, "{arguments:?} did not go there ({asked} before)");
        output
    };
    told(&["config", "show", name]);
    told(&["config", "check", name, "--offline"]);
    // Other sources of the name are enough.
    let listed = told(&["ls", &format!("{name}:/")]);
    assert!(listed.status.success(), "{}", words(&listed));
    let mounted = told(&["mount", name, &mountpoint]);
    assert!(mounted.status.success(), "{}", words(&mounted));
    drop(world.mounted());
    // These don't need it.
    for arguments in [&["status"][..], &["doctor"], &["cache", "status"]] {
        ended(configured(&world, arguments), BOUND);
    }
}
